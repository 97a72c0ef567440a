"""How threads wait for one another: a thread that spins takes a core from whoever has work.

torch's threads meet again and again within a step. By default each one spins for long before it sleeps, which is
fastest alone and, where another job needs the core, several times slower than one thread (docs/performance.md).
"""

import os

_SPINS = "30000"  # rounds of waiting before a thread sleeps


def wait_briefly() -> None:
    """Let torch's threads sleep after a short wait; no number changes. Call it before the first import of torch.

    It concerns GNU's OpenMP, which torch has on Linux. What the environment says about waiting stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
