"""Fabric for one process: where batches go, and in which precision a model computes."""

from typing import Any, Literal

from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment

_PRECISION: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed"}


def make_fabric(precision: Literal["32", "bf16"], *, devices: Any = 1) -> Fabric:
    """Fabric on a GPU where there is one, else on the CPU.

    The environment is named, so that Fabric does not look for Slurm, LSF or MPI: which process this is, ehrsequencing
    finds out by itself. Fabric would warn wherever `srun` is installed, and refuse allocations of several tasks.

    Args:
        precision: As `training.precision`.
        devices: As `Processes.devices`.
    """
    return Fabric(
        accelerator="auto",
        devices=devices,
        precision=_PRECISION[precision],
        plugins=[LightningEnvironment()],
    )
