"""What `ingest.py`, `omop.py` and `scale.py` measure with: CPU seconds, memory of a child, data made once."""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from ehrsequencing.core.version import __version__


def cpu_of(
    script: str, *arguments: object, python: str = sys.executable
) -> tuple[str, dict[str, float]]:
    """Run a script in a process of its own.

    Returns:
        What it printed; `user_s` and `system_s` of the process and of those that it started and waited for, `wall_s`,
        and `own_gib`, the most memory that all of them held at once, without the pages of mapped files.
    """
    command = [python, str(Path(script).resolve()), *map(str, arguments)]
    before, start, own = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0.0
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed)
        while process.poll() is None:
            own = max(own, sum(map(own_gib, tree_of(process.pid))))
            time.sleep(0.05)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        printed.seek(0)
        used = {
            "user_s": after.ru_utime - before.ru_utime,
            "system_s": after.ru_stime - before.ru_stime,
        }
        return printed.read(), {**used, "wall_s": wall, "own_gib": own}


def own_gib(pid: int) -> float:
    """Memory of a process without the pages of mapped files; 0 where it has ended or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 2**20


def tree_of(pid: int) -> list[int]:
    """A process and all that it started, directly or not, as far as the system tells."""
    found = [pid]
    for one in found:
        for thread in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, thread.read_text(encoding="ascii").split())
    return found


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
