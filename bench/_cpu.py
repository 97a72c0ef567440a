"""What `ingest.py` and `omop.py` measure with: CPU seconds of a child process, data made once, versions."""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from ehrsequencing import __version__


def cpu_of(script: str, *arguments: object) -> tuple[str, dict[str, float]]:
    """Run a script in a process of its own.

    Returns:
        What it printed; `user_s` and `system_s` of the process and of its children, and `wall_s`.
    """
    command = [sys.executable, str(Path(script).resolve()), *map(str, arguments)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {"user_s": after.ru_utime - before.ru_utime, "system_s": after.ru_stime - before.ru_stime}
    return printed, {**used, "wall_s": wall}


def made_once(folder: Path, unit: str, make: Callable[[], int]) -> int:
    """Make data in a folder unless it is there already; returns its size in a unit, as in `events`.

    The size is written last, so that data whose making was interrupted is made again.
    """
    marker = folder / f"{unit}.json"
    if marker.is_file():
        return int(json.loads(marker.read_text())[unit])
    folder.mkdir(parents=True, exist_ok=True)
    size = make()
    marker.write_text(json.dumps({unit: size}))
    return size


def versions() -> dict[str, object]:
    """The machine, and what ran on it."""
    return {
        "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "python": platform.python_version(), "numpy": np.__version__, "pyarrow": pa.__version__,
        "ehrsequencing": __version__,
    }  # fmt: skip
