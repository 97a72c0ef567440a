"""The engine's bench: the seeds' padded designs compute the packed models' numbers, and every row is measured."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ehrsequencing import ModelConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.build import build_model
from reference.seeds import PaddedFlat, PaddedHierarchical, PaddedTokens, PaddedVisits, load_packed

SEEDS: dict[str, Any] = {
    "dim": 16,
    "heads": 2,
    "layers": 2,
    "dropout": 0.0,
    "history_dropout": 0.0,
    "head": "visit",
    "values": "none",
}
HIERARCHICAL: dict[str, Any] = {**SEEDS, "visit_mlp": False, "delta_bins": "linear", "rotary": False}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    return importlib.import_module("engine")


@pytest.fixture(params=["dense", "ragged truncated", "ragged"])
def drawn(bench: ModuleType, request: pytest.FixtureRequest) -> PaddedVisits:
    small = bench.replace(bench.SHAPES[request.param], most_visits=12, most_codes=7)
    visits: PaddedVisits = bench.padded(small, 5, seed=0)
    return visits


def loaded(theirs: nn.Module, ours: SurvivalModel) -> None:
    """Weights that make every part count (the packed models start near zero), in both."""
    torch.manual_seed(1)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    load_packed(theirs, ours.state_dict())


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("places", [False, True])
def test_padded_hierarchical_is_the_packed_model(bench: ModuleType, drawn: PaddedVisits, places: bool) -> None:
    config = ModelConfig.model_validate({**HIERARCHICAL, "vocab_size": bench.VOCABULARY, "code_position": places})
    ours, theirs, batch = build_model(config), PaddedHierarchical(config), bench.packed(drawn)
    loaded(theirs, ours)
    real = drawn.visit_mask
    torch.testing.assert_close(theirs(drawn)[real], batch.to_padded(ours(batch))[real], rtol=1e-5, atol=1e-5)
    assert float(ours(batch).detach().std()) > 0.01, "all alike: they would agree whatever is computed"
    torch.testing.assert_close(theirs.loss(drawn), ours.loss(batch), rtol=1e-5, atol=1e-5)
    expected = gradients(ours.loss(batch), ours)
    for name, gradient in gradients(theirs.loss(drawn), theirs).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_padded_flat_is_the_packed_flat_model(bench: ModuleType, drawn: PaddedVisits, attention: str) -> None:
    settings = {**SEEDS, "vocab_size": bench.VOCABULARY, "architecture": "flat", "attention": attention}
    config = ModelConfig.model_validate(settings)
    ours, theirs, batch = build_model(config), PaddedFlat(config), bench.packed(drawn)
    loaded(theirs, ours)
    real, tokens = drawn.visit_mask, PaddedTokens.of(drawn)
    torch.testing.assert_close(theirs(tokens)[real], batch.to_padded(ours(batch))[real], rtol=1e-5, atol=1e-5)
    if attention == "causal":  # the packed model refuses to fit hazards that see the future
        torch.testing.assert_close(theirs.loss(tokens), ours.loss(batch), rtol=1e-5, atol=1e-5)


def test_a_wrong_reference_would_be_seen(bench: ModuleType) -> None:
    drawn = bench.padded(bench.replace(bench.SHAPES["ragged"], most_visits=12, most_codes=7), 5, seed=0)
    config = ModelConfig.model_validate({**HIERARCHICAL, "vocab_size": bench.VOCABULARY})
    ours, theirs = build_model(config), PaddedHierarchical(config)
    loaded(theirs, ours)
    before = theirs(drawn)
    unmasked = bench.replace(drawn, code_mask=torch.ones_like(drawn.code_mask))
    assert not torch.allclose(theirs(unmasked), before, atol=1e-3)
    with pytest.raises(ValueError, match="not the weights"):
        load_packed(PaddedFlat(ModelConfig.model_validate({**SEEDS, "architecture": "flat"})), ours.state_dict())


def test_drawn_records_have_the_sizes_of_the_design(bench: ModuleType) -> None:
    chance = torch.Generator().manual_seed(0)
    sizes = bench.Shape.draw((12, 152), 10**6, (100_000,), chance).double()
    assert abs(float(sizes.median()) - 12) <= 1
    assert abs(float(sizes.quantile(0.99)) - 152) < 8
    dense = bench.padded(bench.SHAPES["dense"], 2, seed=0)
    assert bool(dense.code_mask.all())
    assert tuple(dense.codes.shape) == (2, 50, 30)


def test_interleaving_takes_turns_and_ratios_are_of_one_round(bench: ModuleType) -> None:
    measure = importlib.import_module("_measure")
    calls: list[str] = []
    contenders = {
        name: measure.Contender(lambda number: number, lambda _, name=name: calls.append(name), lambda _: 1.0)
        for name in "ab"
    }
    found = measure.interleaved(contenders, rounds=3, burst=0.0)
    assert calls == ["a", "b", *"ab", *"ba", *"ab"]  # a first call each, then rounds whose order turns
    assert [len(times) for times in found.values()] == [3, 3]
    assert measure.ratio([2.0, 30.0, 4.0], [1.0, 10.0, 2.0]) == [2.0, 2.0, 2.5]


def test_the_clock_counts_nested_time_once() -> None:
    measure = importlib.import_module("_measure")
    clock, now = measure.Clock(), [0.0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    inner = clock.wrap(lambda: passes(2.0), "inner")
    outer = clock.wrap(lambda: (passes(1.0), inner(), inner(), passes(0.5)), "outer")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure.time, "perf_counter", lambda: now[0])
        outer()
    assert clock.seconds == {"inner": 4.0, "outer": 1.5}


def test_copies_are_other_subjects_with_the_same_records(bench: ModuleType, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    train = importlib.import_module("_engine_train")
    from ehrsequencing.simulate import simulate

    simulate(tmp_path / "one", subjects=6, seed=0)
    train.copies(tmp_path / "one", tmp_path / "three", 3)
    once, thrice = (pq.read_table(tmp_path / name / "data").to_pandas() for name in ("one", "three"))
    assert thrice.subject_id.nunique() == 18
    assert sorted(thrice.groupby("subject_id").size()) == sorted([*once.groupby("subject_id").size()] * 3)
    splits = pq.read_table(tmp_path / "three" / "metadata" / "subject_splits.parquet")
    assert splits.num_rows == 18


def test_step_section_measures_every_row(bench: ModuleType, tmp_path: Path) -> None:
    bench.main(["--quick", "--only", "step", "--out", str(tmp_path / "new" / "engine.json")])
    found = json.loads((tmp_path / "new" / "engine.json").read_text())
    assert {"cpu", "torch", "cores"} <= found["machine"].keys()
    rows = found["rows"]
    cells = {(shape, mode) for shape in bench.SHAPES for mode in ("train", "inference")}
    for contender in ("flat", "padded", *bench.OURS):
        steps = [row for row in rows if row["section"] == "step" and row["contender"] == contender]
        assert {(row["shape"], row["mode"]) for row in steps} == cells
        assert all(row["us_per_visit"][1] > 0 for row in steps)
    for slow, fast in bench.PAIRS:
        ratios = [row for row in rows if row["section"] == "ratio" and (row["slow"], row["fast"]) == (slow, fast)]
        assert {(row["shape"], row["mode"]) for row in ratios} == cells
    shares = [row for row in rows if row["section"] == "share"]
    assert {row["shape"] for row in shares} == set(bench.SHAPES)
    assert all(0 < row["share"][1] < 1 for row in shares)


def test_train_section_names_where_the_time_goes(bench: ModuleType, tmp_path: Path) -> None:
    train = importlib.import_module("_engine_train")
    (row,) = train.time_of_train(tmp_path, tmp_path, subjects=100, repeats=1, quick=True)
    assert {"forward", "backward", "optimiser", "collate", "rest"} <= row["parts"].keys()
    assert sum(share[1] for share in row["parts"].values()) == pytest.approx(1)
    assert 0 < row["collate"][1] < row["outside"][1] < 1


@pytest.mark.slow
def test_sections_with_child_processes(bench: ModuleType, tmp_path: Path) -> None:
    bench.main(["--quick", "--only", "memory", "scaling", "--out", str(tmp_path / "engine.json")])
    rows = json.loads((tmp_path / "engine.json").read_text())["rows"]
    assert {row["contender"] for row in rows if row["section"] == "memory"} == {"flat", "padded", "ours", "ours mini"}
    assert all(row["peak_mib"] > 0 for row in rows if row["section"] == "memory")
    assert [row["subjects"] for row in rows if row["section"] == "scaling"] == [120, 240]


def test_the_table_of_goals_shows_what_was_measured_and_what_was_not(bench: ModuleType) -> None:
    cell = {"shape": "dense", "mode": "train", "dim": 128, "layers": 4, "threads": 1}
    rows: list[dict[str, Any]] = [
        {"section": "ratio", **cell, "slow": "flat", "fast": "ours", "ratio": [50.0, 52.0, 53.0]},
        {"section": "ratio", **cell, "slow": "flat", "fast": "ours", "ratio": [80.0, 82.0, 83.0], "threads": 2},
        {"section": "memory", "contender": "flat", "peak_mib": 600.0},
        {"section": "memory", "contender": "ours", "peak_mib": 100.0},
        {"section": "train", "data": "simulated", "collate": [0.03, 0.031, 0.04], "outside": [0.06, 0.06, 0.06]},
        {"section": "scaling", "subjects": 1000, "against_smallest": [1.0, 1.0, 1.0]},
        {"section": "scaling", "subjects": 10_000, "against_smallest": [0.9, 0.94, 1.0]},
    ]
    lines = {line.split(" | ")[0].strip("| "): line for line in bench.goals_table(rows).splitlines()}
    assert "| 45 | 58 | 52.0 (50.0–53.0) | 82.0 (80.0–83.0) |" in lines["dense 50×30, train, flat ÷ ours, d128"]
    assert "not in this run" in lines["dense 50×30, train, flat ÷ ours, d256"]
    assert "| 6.0 | not in this run |" in lines["peak memory, dense B=32, flat ÷ ours"]
    assert "3.1 (3.0–4.0) %" in lines["collate ÷ step, simulated"]
    assert "-6.0 (-10.0–0.0) %" in lines["cost against data, subjects"]
