"""An alarm that may be looked at every night: an e-process against the null that O/E lies in a band.

N counts people's first events and Λ adds up the hazards that were predicted for them before. Where hazards are right
but for one factor θ₀, N − θ₀Λ is a martingale, however the predictions of a person depend on one another. No model has
an O/E of 1.000, so the null is θ₀ ∈ [0.9, 1.1]. With a = 1.1 upwards and a = 0.9 downwards

    M(N, Λ) = mean over θ beyond a of (θ/a)^N · e^(−(θ − a)Λ)

is a supermartingale for every θ₀ in the band. A change may come late, so M begins anew every four weeks. The weighted
mean of all of these (`START`), over starts, directions, causes and groups, is one e-process: its mean is at most 1 at
any stopping time, and under the null it ever reaches 20 with a probability of at most 1/20 (Ville). Starts that lie
ahead count 1, as M does before it begins: a mean over those that have begun would be no e-process.
"""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats

BAND = (0.9, 1.1)  # O/E that is no alarm
ABOVE, BELOW = (1.4, 1.7), (0.7, 0.4)  # θ of the mixtures
START_EVERY = 28  # days
START = 10.0  # half of the weight lies on the first ten starts
THRESHOLD = 20.0  # 1 / 0.05


@dataclass(frozen=True)
class Evidence:
    """The e-process by day, and the parts of which it is the mean; all in logarithms.

    Attributes:
        total: (D,) after each day.
        parts: (D, 2, S) of each direction, upwards first, and stream, over its starts. They are shown, and never alarm.
    """

    total: Floats
    parts: Floats

    def alarm_day(self, threshold: float = THRESHOLD) -> int | None:
        """The first day at which the e-process reaches the threshold; None where it never did."""
        days = np.flatnonzero(self.total >= np.log(threshold))
        return int(days[0]) if len(days) else None


def log_martingales(observed: Floats, expected: Floats) -> Floats:
    """Logarithms of M upwards and downwards, (2, …), of counts and expected counts of one shape."""
    sides = []
    for edge, thetas in zip(reversed(BAND), (ABOVE, BELOW), strict=True):
        theta = np.reshape(thetas, (-1,) + (1,) * observed.ndim)
        logs = observed * np.log(theta / edge) - (theta - edge) * expected
        sides.append(np.logaddexp.reduce(logs, axis=0) - np.log(len(thetas)))
    return np.stack(sides)


def evidence(observed: Floats, expected: Floats, *, start_every: int = START_EVERY) -> Evidence:
    """The e-process of daily counts.

    Args:
        observed: (D, S) first events of each day and stream (a cause in a group of people).
        expected: (D, S) what the hazards of that day add up to.
        start_every: Days after which a new start begins.

    Example:
        >>> found = evidence(np.full((70, 1), 2.0), np.full((70, 1), 1.0))
        >>> found.alarm_day(), evidence(np.ones((70, 1)), np.ones((70, 1))).alarm_day()
        (24, None)
    """
    n, e = (np.cumsum(counts, axis=0, dtype=np.float64) for counts in (observed, expected))
    parts, left = np.full((len(n), 2, n.shape[1]), -np.inf), np.ones(len(n))
    for number, day in enumerate(range(0, len(n), start_every)):
        weight = START / ((START + number) * (START + number + 1))  # all of them add up to 1
        before = (n[day - 1], e[day - 1]) if day else (0.0, 0.0)
        logs = log_martingales(n[day:] - before[0], e[day:] - before[1])
        parts[day:] = np.logaddexp(parts[day:], np.log(weight) + np.moveaxis(logs, 0, 1))
        left[day:] -= weight
    parts = np.logaddexp(parts, np.log(left)[:, None, None])
    flat = parts.reshape(len(n), 2 * n.shape[1])
    return Evidence(np.logaddexp.reduce(flat, axis=1) - np.log(flat.shape[1]), parts)
