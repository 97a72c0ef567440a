"""What a metric is: one record with its function, its words and how models are compared by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.outcomes import ScoredRows


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. A record in `registry.METRICS` is all that a new metric needs.

    Raises:
        EhrseqError: Models are to be compared by what is neither better higher nor lower.
    """

    key: str  # its name in `metrics.json`
    name: str  # its name in tables, as in `C`
    meaning: str  # what it is and how to read it, in half a sentence
    # scored rows → (..., causes, horizons), or (..., causes) where `taken` is `over time`; a leading resample axis
    # where the rows have one. None where it is not made of scored rows
    of: Callable[[ScoredRows], Floats] | None = None
    better: Literal[1, 0, -1] = 0  # 1: higher is better; -1: lower is; 0: neither
    target: float | None = None  # its value where the risks mean what they say, as 1 for O/E
    digits: int = 3  # decimals that are printed, after multiplying by `scale`
    scale: float = 1.0  # 100 prints a share in percent
    # the table of the report in which it stands
    part: Literal["accuracy", "calibration"] = "accuracy"
    # `everywhere`: of every model, for each cause, for all causes as one, and in repeated splits. `causes`: of every
    # model, for each cause (regressions, which cost more and need more events). `strongest`: of our model and the
    # strongest baseline. `over time`: of every model, from risks on a grid of times: one number for each cause.
    # `elsewhere`: not of scored rows (likelihoods, simulations); the record gives its words only
    taken: Literal["everywhere", "causes", "strongest", "over time", "elsewhere"] = "everywhere"
    compared: bool = False  # whether models are compared by it: paired differences to each baseline
    # a difference that does not matter; None where that depends on how frequent the event is
    margin: float | None = None
    interval: bool = True  # whether it has a bootstrap interval
    # whether the number of events can be worked out from it and the number at risk; the report then hides it where it
    # hides that number. False for what ranks subjects or describes a shape
    tells_counts: bool = True
    # whether the table in the terminal has it; only for metrics that are taken everywhere
    in_terminal: bool = True

    def __post_init__(self) -> None:
        if self.compared and not self.better:
            raise EhrseqError(
                "compares models without a direction", where=self.key, fix="set better to 1 or -1"
            )
        if (self.of is None) != (self.taken == "elsewhere"):
            raise EhrseqError(
                "has no function", where=self.key, fix="give it one, or set taken to 'elsewhere'"
            )
