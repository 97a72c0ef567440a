"""Two processes train as one does: gradients, weights, metrics, and a training that both kinds continue."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file
from torch import Tensor

from ehrsequencing.core.outputs import read_manifest
from ehrsequencing.training.processes import ALONE, Processes
from helpers.command_line import ehrseq
from helpers.two_processes import TINY, VARIANTS, step_sums, steps, torchrun, trainer

TO = 1e-11  # in float64


@pytest.fixture(autouse=True, scope="module")
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def two(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two")
    process = torchrun("helpers.two_processes", sim_prepared, out)
    _, text = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return out


def gap(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest difference between tensors of the same names; of those above 1, as a share."""
    assert ours.keys() == theirs.keys()
    return max(float(((ours[name] - theirs[name]).abs() / theirs[name].abs().clamp(min=1.0)).max()) for name in ours)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_of_two_processes_are_those_of_one(two: Path, sim_prepared: Path, name: str) -> None:
    one = trainer(sim_prepared, two / "nowhere", ALONE, *VARIANTS[name])
    for step, subjects in steps(one).items():
        alone = step_sums(one, subjects)
        assert max(float(gradient.abs().max()) for gradient in alone.values()) > 1e-3
        for rank in (0, 1):
            assert gap(load_file(two / f"sums {name} {step} {rank}.safetensors"), alone) < TO


def test_a_mean_instead_of_the_sum_would_be_seen(two: Path, sim_prepared: Path) -> None:
    one = trainer(sim_prepared, two / "nowhere", ALONE)
    assert gap(load_file(two / "mean 0.safetensors"), step_sums(one, steps(one)["drawn"])) > 1e-3


def history(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [row[name] for row in rows for name in ("train_nll", "tuning_nll", "steps")]


def test_weights_and_losses_are_those_of_one_process(two: Path, sim_prepared: Path, tmp_path: Path) -> None:
    """Of a training that two processes began, one continued, and two ended."""
    run = two / "resumed"
    trainer(sim_prepared, tmp_path / "run", ALONE).fit()
    assert history(run) == pytest.approx(history(tmp_path / "run"), abs=TO)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "run"))
    new = trainer(sim_prepared, tmp_path / "new", ALONE).model.state_dict()
    assert gap(dict(new), theirs) > 1e-2  # it has learned
    assert gap(ours, theirs) < TO
    fingerprints = {read_manifest(folder, what="a run")["fingerprint"] for folder in (run, tmp_path / "run")}
    assert len(fingerprints) == 1
    stopped = [json.loads((two / f"stopped {rank}.json").read_text()) for rank in (0, 1)]
    assert stopped == [["both", "alone"], ["both"]]


@given(st.lists(st.integers(0, 50), max_size=30, unique=True), st.integers(1, 5))
def test_shares_are_a_partition(subjects: list[int], count: int) -> None:
    parts = [Processes(rank, count).share(np.array(subjects)).tolist() for rank in range(count)]
    assert sorted(subject for part in parts for subject in part) == sorted(subjects)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.slow
def test_a_stopped_torchrun_goes_on_in_one_process(sim_prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = torchrun("ehrsequencing", "train", sim_prepared, "--out", out, *TINY, "training.epochs=500")
    while process.poll() is None and not list(out.glob("checkpoints/step-*/manifest.json")):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=100)
    assert process.returncode, text
    rows = (out / "history.jsonl").read_text().splitlines() if (out / "history.jsonl").exists() else []
    done = ehrseq("train", sim_prepared, "--out", out, *TINY, "--resume", f"training.epochs={len(rows) + 2}")
    assert done.exit_code == 0, done.stderr


@pytest.mark.slow
def test_torchrun_prints_once(sim_prepared: Path, tmp_path: Path) -> None:
    process = torchrun("ehrsequencing", "train", sim_prepared, "--out", tmp_path / "run", "--json", *TINY)
    found, text = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert json.loads(found)["wrote"] == {"run": str(tmp_path / "run")}
    assert text.count("epoch 1 of 2: loss") == text.count("epoch 2 of 2: loss") == 1


@pytest.mark.parametrize(
    "words", [("predict", "run", "data"), ("evaluate", "run"), ("prepare", "data", "--out", "x"), ("audit", "run")]
)
def test_other_commands_refuse_torchrun(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    done = ehrseq(*words)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert f"ehrseq {words[0]}: runs in one process" in done.stderr
