"""Settings of runs that train in seconds, and how many examples tests draw."""

import os

EXAMPLES = int(os.environ.get("EXAMPLES", "25"))  # where a test does not say itself; `make test-all` draws 200

TINY = (
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=2",
    "training.min_steps=4",
    "training.distillation=0",
    "training.blend=false",
)


def examples(number: int) -> int:
    """How many examples a slow check draws: so many in `make test-all`, an eighth of them in `make test`."""
    return max(number * EXAMPLES // 200, 1)
