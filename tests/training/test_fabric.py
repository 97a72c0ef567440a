"""Fabric takes one device, and leaves alone what a batch system says of its own."""

from pathlib import Path

import pytest

from ehrsequencing.training.fabric import fabric_of


@pytest.mark.parametrize("tasks", [None, "2"])
def test_slurm_is_neither_recommended_nor_obeyed(
    tasks: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning is an error here. By itself, Fabric warns where `srun` is, and refuses two tasks."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if tasks is not None:
        monkeypatch.setenv("SLURM_NTASKS", tasks)
        monkeypatch.setenv("SLURM_JOB_NAME", "ehrseq-train")
        monkeypatch.setenv("SLURM_PROCID", "1")
    assert fabric_of("32").world_size == 1
