"""Codes that are known by their description: the branch in pretraining, and what it gives another site."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ehrsequencing.config import load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training import matching
from ehrsequencing.training.loop import Trainer
from ehrsequencing.training.matching import Wording
from ehrsequencing.training.pretrained import Pretrained
from ehrsequencing.training.pretraining.described import DescribedEmbedding
from ehrsequencing.training.pretraining.loop import Pretrainer
from helpers.training import Interrupted, raise_at

TEXTS = ["", "", "Acute heart failure", "Chronic heart failure", "", "Kidney injury", "failure, heart: acute"]
WORDING = Wording.of(TEXTS)
TINY = (
    *("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.min_steps=4"),
    *("training.checkpoint_steps=1", "training.checkpoint_seconds=0", "pretraining.described_share=0.3"),
)


@pytest.fixture
def branch() -> DescribedEmbedding:
    torch.manual_seed(0)
    table = nn.Embedding(len(TEXTS), 4, padding_idx=0, dtype=torch.float64)
    made = DescribedEmbedding(table, [WORDING.row(text) for text in TEXTS], share=0.4).double()
    nn.init.normal_(made.projection)
    return made.eval()


def slowly(branch: DescribedEmbedding, ids: torch.Tensor) -> torch.Tensor:
    """Row + n-grams · P, with dense n-grams."""
    return branch.weight[ids] + torch.from_numpy(WORDING.rows(TEXTS))[ids] @ branch.projection


@pytest.mark.parametrize("shape", [(7,), (2, 3), (0,)])
def test_a_vector_is_a_row_and_what_the_description_says(branch: DescribedEmbedding, shape: tuple[int, ...]) -> None:
    ids = torch.randint(0, len(TEXTS), shape)
    torch.testing.assert_close(branch(ids), slowly(branch, ids), atol=1e-7, rtol=1e-7)  # numbers are float32
    torch.testing.assert_close(branch.folded()(ids), branch(ids))
    assert branch(torch.tensor([0])).abs().max() == 0  # padding


def test_the_order_of_words_says_nothing_and_their_letters_do(branch: DescribedEmbedding) -> None:
    said = branch.of_descriptions(torch.arange(len(TEXTS)))
    torch.testing.assert_close(said[2], said[6])
    assert not torch.allclose(said[2], said[3])
    assert said[4].abs().max() == 0


def test_gradients_reach_rows_and_projection(branch: DescribedEmbedding) -> None:
    ids = torch.tensor([2, 5, 2, 4])

    def of(weight: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
        named = {"weight": weight, "projection": projection}
        found: torch.Tensor = torch.func.functional_call(branch, named, (ids,))
        return found

    given = [p.detach().clone().requires_grad_() for p in (branch.weight, branch.projection)]
    assert torch.autograd.gradcheck(of, given)


def test_only_described_codes_lose_their_row_and_as_often_as_asked(branch: DescribedEmbedding) -> None:
    torch.manual_seed(1)
    branch.train()
    ids = torch.arange(len(TEXTS)).repeat(2000)
    lost = ~torch.isclose(branch(ids), slowly(branch, ids), atol=1e-6).all(1)
    share = lost.reshape(2000, -1).double().mean(0)
    described = torch.tensor([bool(text) for text in TEXTS])
    assert share[~described].max() == 0
    assert (share[described] - 0.4).abs().max() < 0.05
    branch.share = 0.0
    torch.testing.assert_close(branch(ids), slowly(branch, ids), atol=1e-7, rtol=1e-7)


def pretrain(prepared: Path, out: Path, *settings: str, **given: Any) -> None:
    study = load_study(None, [*TINY, *settings])
    Pretrainer(Prepared(prepared), out, study=study, task_name="simulated").fit(**given)


@pytest.fixture(scope="module")
def pretrained(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("described") / "model"
    pretrain(sim_prepared, out)
    return out


@pytest.mark.parametrize("architecture", ["hierarchical", "flat"])
def test_the_model_is_an_ordinary_one(architecture: str, sim_prepared: Path, tmp_path: Path) -> None:
    pretrain(sim_prepared, tmp_path / "with", f"model.architecture={architecture}")
    pretrain(sim_prepared, tmp_path / "without", f"model.architecture={architecture}", "pretraining.described_share=0")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("with", "without"))
    assert {name: p.shape for name, p in ours.items()} == {name: p.shape for name, p in theirs.items()}
    source = Pretrained(tmp_path / "with")
    assert source.projection is not None
    assert np.abs(source.projection).max() > 0
    assert Pretrained(tmp_path / "without").projection is None


def test_an_interrupted_pretraining_ends_with_the_same_bytes(
    pretrained: Path, sim_prepared: Path, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        pretrain(sim_prepared, tmp_path / "model", on_progress=raise_at(3))
    pretrain(sim_prepared, tmp_path / "model", resume=True)
    for name in ("model.safetensors", "objectives.safetensors"):
        assert (tmp_path / "model" / name).read_bytes() == (pretrained / name).read_bytes()


class Renamed(Pretrained):
    """The same model at a site that names every code in another way, and describes them in the same words."""

    def __init__(self, folder: Path, *, words: str) -> None:
        super().__init__(folder)
        texts, names = super().descriptions, {code: f"SITE//{code}" for code in self.vocabulary.codes}
        self.__dict__["descriptions"] = {names[code]: f"{text} {words}" for code, text in texts.items()}
        self.vocabulary = replace(self.vocabulary, codes=tuple(names[code] for code in self.vocabulary.codes))


def test_codes_of_other_names_get_the_vectors_of_their_descriptions(
    pretrained: Path, sim_prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "SAME_WORDS", 1.1)  # no description counts as the same
    source = Renamed(pretrained, words="(recorded)")
    study = load_study(None, ["training.epochs=1"])
    trainer = Trainer(Prepared(sim_prepared), "simulated", sim_prepared / "nowhere", study=study, init=source)
    assert trainer.started_from is not None
    overlap, similar = trainer.started_from["overlap"], trainer.started_from["similar_descriptions"]
    assert overlap["name"]["codes"] == overlap["description"]["codes"] == 0
    assert similar == {"learned": True, "codes": overlap["similar description"]["codes"]}
    assert similar["codes"] > 20
    vocabulary, rows = trainer.prepared.vocabulary, trainer.model.code_embedding.table.weight
    texts, projection = Pretrained(pretrained).descriptions, source.projection
    assert projection is not None
    code = "DX//A00"
    expected = torch.from_numpy(Wording.of(source.descriptions.values()).rows([texts[code]]) @ projection)[0]
    torch.testing.assert_close(rows[vocabulary.index[code]].double(), expected, atol=1e-6, rtol=1e-5)


def test_records_without_descriptions_are_refused(sim_prepared: Path, tmp_path: Path) -> None:
    study = load_study(None, TINY)
    with pytest.raises(EhrseqError, match=r"no code of the records has a description.*codes\.parquet"):
        Pretrainer(Prepared(sim_prepared), tmp_path, study=study, descriptions={})


def test_the_folder_says_what_was_asked(pretrained: Path) -> None:
    assert "described_share: 0.3" in (pretrained / "config.yaml").read_text()
    assert json.loads((pretrained / "descriptions.json").read_text())["DX//A00"]
