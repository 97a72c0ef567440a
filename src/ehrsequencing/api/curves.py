"""Curves as step functions, and the exact observed one; it shows single persons."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Floats
from ehrsequencing.metrics.censoring import aalen_johansen as cumulative_incidence
from ehrsequencing.metrics.censoring import aalen_johansen_se


class StepFunction:
    """A curve that is constant between its points, as scikit-survival's users know it.

    Attributes:
        x: (n,) days, increasing, 0 first.
        y: (n,) values there.
        low: (n,) lower limits of a 95 % interval; None without one.
        high: (n,) the upper limits.
        domain: The first and the last day.

    Example:
        >>> curve = StepFunction(np.array([0.0, 30.0, 90.0]), np.array([0.0, 0.1, 0.2]))
        >>> curve(45.0), curve([0, 90]).tolist()
        (0.1, [0.0, 0.2])
    """

    def __init__(
        self, x: Floats, y: Floats, *, low: Floats | None = None, high: Floats | None = None
    ) -> None:
        self.x, self.y = x, y
        self.low, self.high = low, high
        self.domain = (float(x[0]), float(x[-1]))

    def __call__(self, x: ArrayLike) -> Any:
        """The value at some days.

        Raises:
            ValueError: A day is not within the domain.
        """
        days = np.asarray(x, dtype=np.float64)
        if not ((days >= self.domain[0]) & (days <= self.domain[1])).all():
            raise ValueError(f"x must be within [{self.domain[0]:g}; {self.domain[1]:g}]")
        found = self.y[np.searchsorted(self.x, days, side="right") - 1]
        return float(found) if found.ndim == 0 else found

    def __repr__(self) -> str:
        return (
            f"StepFunction({len(self.x)} points from {self.domain[0]:g} to {self.domain[1]:g} days)"
        )


def aalen_johansen(time: ArrayLike, cause: ArrayLike, *, of: int = 1) -> StepFunction:
    """The exact Aalen–Johansen curve of a cause, with a 95 % interval. It shows single persons: do not share it.

    Args:
        time: (n,) days to the event or censoring.
        cause: (n,) int, 0 = censored, 1 = the event of interest, 2 … = competing.
        of: Whose cumulative incidence.

    Returns:
        A step function from 0 to the longest follow-up, with `low` and `high` (estimate ± 1.96 standard errors).

    Example:
        >>> import ehrsequencing as eh
        >>> curve = eh.aalen_johansen([10.0, 20.0, 30.0, 40.0], [1, 2, 0, 1])
        >>> curve(25), curve.y.tolist()
        (0.25, [0.0, 0.25, 0.25, 0.25, 0.75])
    """
    duration = np.asarray(time, dtype=np.float64)
    codes = np.asarray(cause, dtype=np.int64)
    n_causes = max(of, int(codes.max(initial=1)))
    found = cumulative_incidence(duration, codes, n_causes=n_causes)
    x = np.unique(np.r_[0.0, found.times_days, duration.max(initial=0.0)])
    y = found.at(x)[of - 1]
    error = 1.96 * aalen_johansen_se(duration, codes, x, n_causes=n_causes)[of - 1]
    return StepFunction(x, y, low=np.clip(y - error, 0, 1), high=np.clip(y + error, 0, 1))
