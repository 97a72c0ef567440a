"""Lightning Fabric of one process: it moves batches to its device and chooses the precision."""

from typing import Any, Literal

from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment


def fabric_of(precision: Literal["32", "bf16"], devices: Any = 1) -> Fabric:
    """Fabric for one device, the best that is there.

    It is told that no cluster starts our processes. Fabric would look for one by itself: it warns on every machine that
    has Slurm's `srun`, and refuses to work in an allocation of several tasks.

    Args:
        precision: Of the settings.
        devices: How many, one; or a list with the number of the GPU.
    """
    kind: Any = {"32": "32-true", "bf16": "bf16-mixed"}[precision]
    return Fabric(accelerator="auto", devices=devices, precision=kind, plugins=[LightningEnvironment()])
