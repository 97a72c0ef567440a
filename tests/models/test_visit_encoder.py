"""A new visit encoder is one class: settings accept its name, models train with it, and a saved model keeps it.

Settings load without torch, so they read the parts of this package from source; importing must declare the same.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ehrsequencing as eh
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import load_study
from ehrsequencing.config.base import visit_encoder
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.ensemble import build_model, load_model
from ehrsequencing.models.segments import CodeVectors, segment_softmax
from helpers.strategies import VOCAB, pack, sample_records


@pytest.fixture(autouse=True)
def _forgets_it() -> Iterator[None]:
    yield  # not a copy of the classes: those of a module that a test imports would be lost with it
    visit_encoder._classes.pop("loudest", None)


def declare() -> type[nn.Module]:
    @eh.visit_encoder("loudest")
    class LoudestCode(nn.Module):
        """The codes of a visit, weighted by how loud they are."""

        def __init__(self, config: eh.ModelConfig) -> None:
            super().__init__()
            self.loudness = nn.Linear(config.dim, 1)

        def forward(self, codes: CodeVectors, batch: VisitBatch) -> Tensor:
            e = codes.expand()
            weights = segment_softmax(self.loudness(e).squeeze(1), batch.visit_offsets, batch.visit_of_code)
            return torch.zeros(batch.n_visits, e.shape[1]).index_add(0, batch.visit_of_code, weights.unsqueeze(1) * e)

    return LoudestCode


def test_one_class_trains_a_step_and_is_kept(tmp_path: Path) -> None:
    LoudestCode = declare()
    config = eh.ModelConfig(
        vocab_size=VOCAB, dim=8, heads=2, layers=1, visit_encoder="loudest", causes=2, edges_days=(30.0,)
    )
    torch.manual_seed(0)
    model, batch = build_model(config), pack(sample_records())
    batch = VisitBatch(
        **{
            name: x.float() if isinstance(x, Tensor) and x.dtype == torch.float64 else x
            for name, x in vars(batch).items()
            if name in VisitBatch.__dataclass_fields__
        }
    )
    assert isinstance(model.visit_encoder.pooling, LoudestCode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = model.loss(batch)
    before.backward()
    assert model.visit_encoder.pooling.loudness.weight.grad.abs().max() > 0
    optimizer.step()
    model.eval()
    assert model.loss(batch) < before
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again.visit_encoder.pooling, LoudestCode)
    assert torch.equal(again(batch), model(batch))


def test_a_name_that_nobody_declared_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        EhrseqError, match=r"model\.visit_encoder: 'loudest' is not one of .*attention, .*; if it is your own, import"
    ):
        load_study(None, ["model.visit_encoder=loudest"])
    config = eh.ModelConfig(visit_encoder="mean", dim=8, heads=2, layers=1)
    build_model(config).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text().replace('"mean"', '"loudest"')
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(EhrseqError, match="'loudest' is not one of"):
        load_model(tmp_path)


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(EhrseqError, match="is the name of another part"):
        eh.visit_encoder("mean")(type("Mine", (nn.Module,), {}))
    assert declare() is not declare()  # again in a notebook: the last one counts


def test_every_part_is_listed_with_its_module() -> None:
    for name, module in visit_encoder.modules.items():
        assert visit_encoder.class_of(name).__module__ == module  # imports it, whose decorator declares it
    assert visit_encoder._classes.keys() <= visit_encoder.modules.keys()  # no part of this package is unlisted


def test_settings_know_all_parts_without_torch() -> None:
    code = (
        "import sys; from ehrsequencing import ModelConfig, visit_encoder\n"
        "assert ModelConfig(architecture='flat').history_dropout == 0\n"
        "c = ModelConfig(visit_encoder='transformer')\n"
        "assert c.relates_codes and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_encoder_that_takes_a_width_is_told_what_it_gets() -> None:
    @eh.visit_encoder("loudest")
    class OfWidth(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.loudness = nn.Linear(dim, 1)

    config = eh.ModelConfig(vocab_size=VOCAB, dim=8, heads=2, layers=1, visit_encoder="loudest", edges_days=(30.0,))
    with pytest.raises(EhrseqError, match=r"visit_encoder=loudest: cannot .*__init__\(self, config\).*config\.dim"):
        build_model(config)
