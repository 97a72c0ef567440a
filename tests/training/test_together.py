"""Two processes train as one does: gradients, weights, metrics, and a training that both kinds continue."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from ehrsequencing.core.outputs import read_manifest
from ehrsequencing.training.processes import ALONE, Processes, balanced
from helpers.together import VARIANTS, run_two, step_sums, steps, trainer

TO = 1e-6


@pytest.fixture(scope="module")
def two(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("together")
    for code, text in run_two(sim_prepared, out):
        assert code == 0, text
    return out


def gap(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest difference between tensors of the same names; of those above 1, as a share."""
    assert ours.keys() == theirs.keys()
    return max(float(((ours[name] - theirs[name]).abs() / theirs[name].abs().clamp(min=1.0)).max()) for name in ours)


def told(two: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((two / f"told {rank}.json").read_text())
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_of_two_processes_are_those_of_one(two: Path, sim_prepared: Path, name: str) -> None:
    one = trainer(sim_prepared, two / "nowhere", ALONE, *VARIANTS[name])
    for step, subjects in steps(one).items():
        alone = step_sums(one, subjects)
        assert max(float(gradient.abs().max()) for gradient in alone.values()) > 1e-3
        for rank in (0, 1):
            assert gap(load_file(two / f"sums {name} {step} {rank}.safetensors"), alone) < TO


def test_broken_sums_would_be_seen(two: Path, sim_prepared: Path) -> None:
    one = trainer(sim_prepared, two / "nowhere", ALONE)
    alone = step_sums(one, steps(one)["drawn"])
    for mutant in ("mean", "masks"):
        assert gap(load_file(two / f"{mutant} 0.safetensors"), alone) > 1e-3
    assert told(two, 0)["unsynchronised"] == told(two, 1)["unsynchronised"]
    assert "no longer hold the same weights" in told(two, 0)["unsynchronised"]


def history(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [row[name] for row in rows for name in ("train_nll", "tuning_nll", "steps")]


@pytest.mark.parametrize("name", ["two", "resumed", "members"])
def test_weights_and_losses_are_those_of_one_process(two: Path, sim_prepared: Path, tmp_path: Path, name: str) -> None:
    """Also where a training was continued by one process and then by two again."""
    settings = ("training.members=2", "training.epochs=1") if name == "members" else ()
    trainer(sim_prepared, tmp_path / "run", ALONE, *settings).fit()
    assert history(two / name) == pytest.approx(history(tmp_path / "run"), abs=TO)
    ours, theirs = (load_file(run / "model.safetensors") for run in (two / name, tmp_path / "run"))
    if name != "members":
        new = trainer(sim_prepared, tmp_path / "new", ALONE).model.state_dict()
        assert gap(dict(new), theirs) > 1e-2  # it has learned
    # Adam divides by the size of gradients: for the smallest ones of the second member that is noise by noise.
    assert gap(ours, theirs) < (5e-6 if name == "members" else TO)
    fingerprints = {read_manifest(run, what="a run")["fingerprint"] for run in (two / name, tmp_path / "run")}
    assert len(fingerprints) == 1
    assert not list(two.rglob(".ehrseq-lock"))


def test_a_training_was_stopped_in_all_processes_and_saved(two: Path) -> None:
    assert told(two, 0)["resumed"] == ["both", "after it was saved", "alone"]
    assert told(two, 1)["resumed"] == ["both", "after it was saved"]  # process 0 saves slowly


def test_work_is_divided_evenly_and_nobody_is_left_out(two: Path, sim_prepared: Path) -> None:
    one = trainer(sim_prepared, two / "nowhere", ALONE)
    shares = np.array([told(two, rank)["shares"] for rank in (0, 1)])
    assert np.abs(np.diff(shares, axis=0)).max() <= one.loader.cost.max()
    assert sorted(told(two, 0)["tuning"] + told(two, 1)["tuning"]) == one.tuning.subjects.tolist()
    parts = [one.tuning.cost[told(two, rank)["tuning"]].sum() for rank in (0, 1)]
    assert abs(parts[0] - parts[1]) <= 2 * one.tuning.cost.max()


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_shares_are_a_partition_of_about_equal_cost(cost: list[int], count: int) -> None:
    costs, subjects = np.array(cost, dtype=np.int64), np.arange(len(cost)) * 7
    share = balanced(costs, count)
    load = np.bincount(share, weights=costs, minlength=count)
    assert load.max() - load.min() <= max([*cost, 0])  # no item could move from the fullest to the emptiest in vain
    everyone = [Processes(rank, count) for rank in range(count)]
    for divide in ("share", "stretch"):
        parts = [getattr(one, divide)(subjects, costs).tolist() for one in everyone]
        assert sorted(subject for part in parts for subject in part) == subjects.tolist()
        assert all(part == sorted(part) for part in parts)
