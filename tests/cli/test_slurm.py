"""The scripts of `examples/slurm`, run by Slurm itself where it is installed (Debian: `slurm-wlm`)."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.command_line import ehrseq
from helpers.slurm import Cluster, cluster, missing
from helpers.storage import everything

SCRIPTS = Path(__file__).parents[2] / "examples" / "slurm"
SMALL = ("model.dim=16", "model.heads=2", "model.layers=1", "training.min_steps=4")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=f"not installed: {' '.join(missing())}")]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def test_an_array_prepares_the_bytes_of_one_process(slurm: Cluster, sim_data: Path, tmp_path: Path) -> None:
    task = sim_data / "task.yaml"
    assert ehrseq("prepare", sim_data, "--task", task, "--out", tmp_path / "one").exit_code == 0
    words = (SCRIPTS / "prepare.sbatch", sim_data, task, tmp_path / "two")
    job = slurm.submit(*words, options=("--array=1-3",))
    slurm.wait(job)
    assert everything(tmp_path / "two") == everything(tmp_path / "one"), slurm.output(job)


def test_two_machines_train_stop_and_go_on(slurm: Cluster, sim_prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (SCRIPTS / "train.sbatch", sim_prepared, run, *SMALL, "training.patience=1000")
    options = ("--cpus-per-task=1", "--no-requeue")
    job = slurm.submit(*words, "training.epochs=500", "training.checkpoint_seconds=1e9", options=options)
    until = time.monotonic() + 200
    while not (run / "history.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.1)
    slurm.ask("scancel", "--signal=TERM", job)
    slurm.wait(job)
    told = slurm.output(job)
    assert told.count("stopped by SIGTERM") == told.count("repeat the command with --resume") == 1, told
    assert list((run / "checkpoints").glob("step-*")), told
    epochs = len((run / "history.jsonl").read_text().splitlines()) + 1
    again = slurm.submit(*words, f"training.epochs={epochs}", "training.checkpoint_seconds=1e9", options=options)
    slurm.wait(again)
    assert (run / "model.safetensors").exists(), slurm.output(again)
    assert slurm.output(again).count(f" of {epochs}: loss") == 1


def test_two_machines_predict_the_bytes_of_one(slurm: Cluster, sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    assert ehrseq("predict", sim_run, sim_data, "--out", tmp_path / "one.parquet").exit_code == 0
    job = slurm.submit(SCRIPTS / "predict.sbatch", sim_run, sim_data, tmp_path / "two.parquet")
    slurm.wait(job)
    assert (tmp_path / "two.parquet").exists(), slurm.output(job)
    assert (tmp_path / "two.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
