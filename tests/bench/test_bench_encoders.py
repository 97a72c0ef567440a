"""The experiment of docs/what-each-encoder-learns.md: what its claims rest on."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from ehrsequencing import ModelConfig, VisitBatch
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.simulate import SimulationConfig, simulate
from helpers.bench import load_bench

A1, A2, B1, B2 = 1, 2, 3, 4


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_bench("encoders")


def interaction(bench: ModuleType, *, silenced: bool = True, **settings: Any) -> float:
    """|η(A1 B1) − η(A1 B2) − η(A2 B1) + η(A2 B2)| of one random model, each visit a subject: 0 where it is additive."""
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=5, size="small", dropout=0.0, edges_days=(30.0, 365.0), wide_head=True, **settings)
    model = build_model(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if silenced:
        bench.silence_all_but_wide_head(model)
    codes = torch.tensor([[[A1, B1]], [[A1, B2]], [[A2, B1]], [[A2, B2]]])
    real = torch.ones(4, 1, 2, dtype=torch.bool)
    batch = VisitBatch.from_padded(codes, real, torch.full((4, 1), 60.0), torch.zeros(4, 1), real.any(-1))
    logits = model.eval()(batch).detach().flatten(1)
    return float((torch.tensor([1.0, -1, -1, 1]).double() @ logits).abs().max())


def test_behind_a_linear_head_mean_pooling_is_additive(bench: ModuleType) -> None:
    assert interaction(bench, visit_encoder="mean", visit_mlp=False) < 1e-12


@pytest.mark.parametrize(
    ("silenced", "settings"),
    [
        (False, {"visit_encoder": "mean", "visit_mlp": False}),  # the timeline and the head's hidden layer
        (True, {"visit_encoder": "mean", "visit_mlp": True}),
        (True, {"visit_encoder": "transformer", "visit_mlp": False}),
    ],
)
def test_anything_nonlinear_behind_or_inside_the_pooling_is_not(
    bench: ModuleType, silenced: bool, settings: dict[str, Any]
) -> None:
    assert interaction(bench, silenced=silenced, **settings) > 1e-3


def test_a_smaller_sample_is_the_first_subjects_and_all_that_are_held_out(bench: ModuleType, tmp_path: Path) -> None:
    simulate(tmp_path / "all", subjects=60, seed=0, config=SimulationConfig(truth_futures=4))
    bench.first_subjects(tmp_path / "all", tmp_path / "part", 20)

    def subjects(folder: str, split: str) -> set[int]:
        return {
            subject
            for path in (tmp_path / folder / "data" / split).glob("*.parquet")
            for subject in pq.read_table(path)["subject_id"].to_pylist()
        }

    others = sorted(subjects("all", "train") | subjects("all", "tuning"))
    assert sorted(subjects("part", "train") | subjects("part", "tuning")) == others[:20]
    assert subjects("part", "held_out") == subjects("all", "held_out") != set()
    listed = pq.read_table(tmp_path / "part" / "metadata" / "subject_splits.parquet")["subject_id"].to_pylist()
    assert set(listed) == {*others[:20], *subjects("all", "held_out")}
