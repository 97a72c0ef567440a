"""Keeping freed memory: the same large block, asked for again, costs no new pages."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import ehrsequencing

SCRIPT = """
import resource, sys
import numpy as np
from ehrsequencing.core.signals import keep_freed_memory
assert not int(sys.argv[1]) or keep_freed_memory()
np.ones(1 << 22)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(1 << 22)  # 32 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_blocks_are_kept() -> None:
    path = str(Path(ehrsequencing.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path}
    faults = [
        int(subprocess.run([sys.executable, "-c", SCRIPT, on], env=environment, capture_output=True, check=True).stdout)
        for on in ("0", "1")
    ]
    assert faults[1] < faults[0] / 5
