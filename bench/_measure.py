"""What the benchmarks measure with: interleaved timing, ratios with spread, GEMM peak, FLOPs, peak memory, a clock."""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Attributes:
        prepare: Round number → the input of one call; not timed.
        run: The call that is timed.
        units: Round number → what one call gets done (visits, or FLOPs), so that contenders of different sizes compare.
    """

    prepare: Callable[[int], Any]
    run: Callable[[Any], object]
    units: Callable[[int], float]


def interleaved(
    contenders: Mapping[str, Contender],
    *,
    rounds: int,
    burst: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per unit of every contender in every round.

    Round-robin, so that a machine that slows down slows all of them; the order turns, so that nobody always runs behind
    the same neighbour. The first call of a turn is not counted if others follow: it finds the caches full of the
    neighbour's data.

    Args:
        contenders: By name.
        rounds: How often each has its turn.
        burst: Seconds of a turn: a fast contender is called as often as that takes, a slow one once.
        clock: `time.process_time` on a busy machine; right for one thread only.
    """
    for contender in contenders.values():  # first calls make buffers and optimiser states
        contender.run(contender.prepare(0))
    found: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            contender, times = contenders[name], list[float]()
            while not times or sum(times) < burst:
                given = contender.prepare(number)
                started = clock()
                contender.run(given)
                times.append(clock() - started)
            found[name].append(statistics.median(times[1:] or times) / contender.units(number))
    return found


def quartiles(values: Sequence[float], scale: float = 1.0) -> list[float]:
    """First quartile, median, third quartile, times a scale; of one value, that value three times."""
    values = [scale * value for value in values]
    if len(values) == 1:
        return values * 3
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, median, third]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """Quartiles of the ratio, taken round by round."""
    return quartiles([a / b for a, b in zip(slow, fast, strict=True)])


def gemm_contenders(rows: int, dim: int) -> dict[str, Contender]:
    """The float32 matrix products of one layer's linear maps at N = rows, forward and backward, each in FLOPs.

    The peak of a round is the best rate among them.
    """

    def contender(m: int, k: int, n: int) -> Contender:
        a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
        return Contender(
            lambda _: None, lambda _: torch.mm(a, b, out=out), lambda _: 2.0 * m * k * n
        )

    d = dim
    shapes = [(rows, d, 3 * d), (rows, d, 4 * d), (rows, 4 * d, d), (4 * d, rows, d)]
    return {f"gemm {m}x{k}x{n}": contender(m, k, n) for m, k, n in shapes}


def peak_rates(seconds_per_flop: Mapping[str, Sequence[float]]) -> list[float]:
    """FLOP/s of the best product in each round."""
    products = [times for name, times in seconds_per_flop.items() if name.startswith("gemm ")]
    return [1 / min(times) for times in zip(*products, strict=True)]


def flops_of(loss: Callable[[], Tensor]) -> int:
    """FLOPs of a forward and backward pass as executed; attention by its plain backend, for flash is not counted."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


# ---- memory ----------------------------------------------------------------------------------------------------------


def peak_mib() -> float:
    """Highest resident memory of this process so far.

    VmHWM where there is a /proc: `ru_maxrss` of a child also remembers the process it was forked from.
    """
    found = _status("VmHWM")
    if found is not None:
        return found
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 2**10
    )


def own_mib() -> float:
    """Memory of this process now, without the pages of mapped files; NaN where there is no /proc."""
    found = _status("RssAnon")
    return float("nan") if found is None else found


def _status(field: str) -> float | None:
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.is_file() else []
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) / 2**10 if found else None


def child(script: Path, *arguments: object, threads: int = 1) -> dict[str, Any]:
    """Run a script in a process of its own; the JSON of its last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, str(script), *map(str, arguments)]
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


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


# ---- the machine -----------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.is_file() else []
    name = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    load = os.getloadavg()[0]
    return {
        "cpu": name or platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "features": [flag for flag in known if flag in flags], "system": platform.platform(),
        "python": platform.python_version(), "torch": torch.__version__, "load_at_start": round(load, 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip
