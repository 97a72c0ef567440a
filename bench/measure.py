"""The one way to measure: a child process, the memory of this one, a clock, quartiles, and what the machine is."""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
EHRSEQ = (sys.executable, "-m", "ehrsequencing")


# ---- a child process -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Child:
    """What a process printed and used, with all processes that it started and waited for.

    Attributes:
        printed: Its standard output, and that of errors where they were asked for.
        code: 0, or what it ended with.
        user_s: CPU seconds in user mode.
        system_s: CPU seconds in the kernel.
        wall_s: Seconds on the clock.
        peak_gib: Resident memory of the largest of the processes; pages of mapped files count.
        own_gib: Most memory that all of them held at once without such pages, looked at fifty times a second.
    """

    printed: str
    code: int
    user_s: float
    system_s: float
    wall_s: float
    peak_gib: float
    own_gib: float

    @property
    def cpu_s(self) -> float:
        """User and system time."""
        return self.user_s + self.system_s

    @property
    def json(self) -> dict[str, Any]:
        """The JSON of its last line."""
        facts: dict[str, Any] = json.loads(self.printed.splitlines()[-1])
        return facts


def run(
    command: Sequence[object],
    *,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    with_errors: bool = False,
    must_succeed: bool = True,
) -> Child:
    """Run a command in a process of its own.

    Args:
        command: Its words.
        threads: Of torch and the like; None: as they are here.
        environment: Variables beside those of this process.
        with_errors: Whether what it says on its standard error is printed, too.
        must_succeed: Whether this process ends, too, where the other one fails.
    """
    words = list(map(str, command))
    more = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    variables = {**os.environ, **more, **(environment or {})}
    start, own, ended, status = time.perf_counter(), 0.0, 0, 0
    with tempfile.TemporaryFile("w+") as printed:
        errors = subprocess.STDOUT if with_errors else None
        process = subprocess.Popen(words, stdout=printed, stderr=errors, env=variables)
        while not ended:
            own = max(own, sum(map(own_gib, tree_of(process.pid))))
            time.sleep(0.02)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read()
    if process.returncode and must_succeed:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}\n{text[-2000:]}")
    peak = usage.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    return Child(text, process.returncode, usage.ru_utime, usage.ru_stime, wall, peak, own)


def ehrseq(*command: object) -> Child:
    """Run one command of ehrseq, and say so; this process ends where it fails."""
    print(f"$ ehrseq {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    return run([*EHRSEQ, *command])


def run_bench(name: str, *arguments: object, threads: int | None = 1) -> Child:
    """Run a benchmark of `python -m bench` in a process of its own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "bench", name, *arguments]
    return run(command, threads=threads, environment={"PYTHONPATH": path})


def own_gib(pid: int) -> float:
    """Memory of a process without the pages of mapped files; 0 where it has ended or the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 2**20


def tree_of(pid: int) -> list[int]:
    """A process and all that it started, directly or not, as far as the system tells."""
    tree = [pid]
    for one in tree:
        for thread in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                tree += map(int, thread.read_text(encoding="ascii").split())
    return tree


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


# ---- memory of this process -----------------------------------------------------------------------------------------


def peak_mib() -> float:
    """Highest resident memory of this process so far.

    VmHWM where there is a /proc: `ru_maxrss` of a child also remembers the process it was forked from.
    """
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 2**10
    )


def own_mib() -> float:
    """Memory of this process now, without the pages of mapped files; NaN where there is no /proc."""
    own = _status("RssAnon")
    return float("nan") if own is None else own


def _status(field: str) -> float | None:
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.is_file() else []
    sizes = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(sizes[0]) / 2**10 if sizes else None


# ---- where the time of a program goes --------------------------------------------------------------------------------


class Clock:
    """Seconds by name, each call without the named calls inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = [0.0]  # for each open call: seconds of the named calls inside it

    def wrap(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, timed under a name."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            self._inside.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = time.perf_counter() - started
                self.seconds[name] = self.seconds.get(name, 0.0) + elapsed - self._inside.pop()
                self._inside[-1] += elapsed

        return timed

    @contextmanager
    def watching(self, places: Sequence[tuple[Any, str, str]]) -> Iterator[None]:
        """Time `owner.attribute` under a name, for each (owner, attribute, name), while the context lasts."""
        with ExitStack() as stack:
            for owner, attribute, name in places:
                stack.enter_context(
                    patch.object(owner, attribute, self.wrap(getattr(owner, attribute), name))
                )
            yield


# ---- numbers and the machine -----------------------------------------------------------------------------------------


def quartiles(values: Sequence[float], scale: float = 1.0) -> list[float]:
    """First quartile, median, third quartile, times a scale; of one value, that value three times."""
    values = [scale * value for value in values]
    if len(values) == 1:
        return values * 3
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, median, third]


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "features": [flag for flag in known if flag in flags],
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "pyarrow", "ehrsequencing")},
        "load_at_start": round(os.getloadavg()[0], 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
