"""Timing contenders in turns: ratios with spread, the peak of matrix products, and FLOPs."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.measure import quartiles


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
