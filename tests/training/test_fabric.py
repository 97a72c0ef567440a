"""Fabric does not look for schedulers: which process this is, ehrsequencing finds out by itself."""

import warnings
from pathlib import Path

import pytest
from ehrsequencing.training.fabric import make_fabric
from lightning_fabric import Fabric


@pytest.fixture
def under_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell inside an allocation of two tasks, on a machine with `srun`."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, value in {"JOB_ID": "1", "JOB_NAME": "train", "NTASKS": "2", "PROCID": "1", "NODELIST": "a,b"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


@pytest.mark.usefixtures("under_slurm")
def test_one_process_of_an_allocation_is_a_process_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = make_fabric("32")
    assert (made.world_size, made.global_rank) == (1, 0)


@pytest.mark.usefixtures("under_slurm")
def test_fabric_by_itself_would_take_the_allocation_for_its_own() -> None:
    """The mutant: without the named environment it warns or refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((UserWarning, ValueError, RuntimeError)):
            Fabric(accelerator="auto", devices=1, precision="32-true")
