"""`ehrseq train --init`: what learns, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ehrsequencing.cli.app import app
from ehrsequencing.config import load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.transfer import MATCHES, Pretrained, match_vocabularies
from helpers.training import NetworkTrainer as Trainer
from helpers.visits import vocabulary_of

SHORT = ("training.epochs=1", "training.min_steps=2", "training.recalibration=0", "training.blend=false")


@pytest.fixture(scope="module")
def source(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 16 wide."""
    out = tmp_path_factory.mktemp("source") / "model"
    study = load_study(None, ["model.dim=16", "model.heads=2", "model.layers=2", *SHORT])
    Pretrainer(Prepared(sim_prepared), out, study=study, task_name="simulated").fit()
    return out


def start(prepared: Path, source: Path, *settings: str) -> Trainer:
    study = load_study(None, [*SHORT, *settings])
    return Trainer(Prepared(prepared), "simulated", prepared / "nowhere", study=study, init=Pretrained(source))


def learned(trainer: Trainer) -> int:
    return sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)


def test_only_what_was_copied_is_frozen(sim_prepared: Path, source: Path) -> None:
    """A third layer above two copied ones learns all of its weights, whatever the mode."""
    frozen, full = (start(sim_prepared, source, "model.layers=3", f"transfer.mode={m}") for m in ("frozen", "full"))
    assert learned(frozen) < learned(full)
    learns = {name: p.requires_grad for name, p in frozen.model.named_parameters()}
    assert learns["timeline.layers.2.qkv.weight"]
    assert learns["timeline.layers.2.W1.bias"]
    assert not learns["timeline.layers.1.qkv.weight"]
    assert not learns["timeline.layers.1.qkv.bias"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["model.architecture=flat"], "which a training from it keeps"),
        (["model.dim=32"], "has model.dim=16"),
    ],
)
def test_settings_that_do_nothing_are_refused(settings: list[str], told: str, sim_prepared: Path, source: Path) -> None:
    with pytest.raises(EhrseqError, match=told):
        start(sim_prepared, source, *settings)


def test_transfer_needs_a_model(sim_prepared: Path, tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["train", str(sim_prepared), "--out", str(tmp_path / "no"), *arguments])
        assert found.exit_code == 2
        return " ".join(found.output.split())

    assert "transfer.mode: needs a model to start from" in told("transfer.mode=frozen")
    file = tmp_path / "study.yaml"
    file.write_text("transfer: {mode: frozen}\n")
    assert "transfer.mode: needs a model to start from" in told("--config", str(file))


def test_each_code_is_found_by_the_first_rule_that_applies() -> None:
    codes, kinds = ("DX//A", "DX//A1", "LAB//X", "RX//NEW", "ZZ//LOST"), ("DX", "LAB", "RX")
    ours = vocabulary_of(*codes, kinds=(*kinds, "ZZ"), numeric=("LAB//X",), carry=True)
    theirs = vocabulary_of("DX//A", "DX//UP", "LAB//Y", "RX//OLD", kinds=kinds, numeric=("LAB//Y",), carry=True)
    parents = {"DX//A": ["DX//UP"], "DX//A1": ["DX//MID"], "DX//MID": ["DX//UP"], "LAB//X": ["LAB//Y"]}
    match = match_vocabularies(ours, theirs, parents=parents)
    names = {
        name: (theirs.tokens[match.source[token]] if match.source[token] >= 0 else None, MATCHES[match.how[token]])
        for token, name in enumerate(ours.tokens)
    }
    assert names["DX//A"] == ("DX//A", "name")
    assert names["DX//A1"] == ("DX//UP", "ancestor")
    assert names["LAB//X//Q2"] == ("LAB//Y//Q2", "ancestor")
    assert names["LAST//LAB//X"] == ("LAST//LAB//Y", "ancestor")
    assert names["RX//NEW"] == (None, "none")
    assert names["[UNK//RX]"] == ("[UNK//RX]", "name")
    assert names["[UNK//ZZ]"] == (None, "none")
    weight = np.zeros(len(ours), dtype=np.int64)
    weight[[ours.index["DX//A"], ours.index["ZZ//LOST"]]] = 3, 1
    overlap = match.overlap(ours, weight)
    assert (overlap["name"], overlap["none"]["share"]) == ({"codes": 1, "share": 0.75}, 0.25)
    assert sum(each["codes"] for each in overlap.values()) == 5
