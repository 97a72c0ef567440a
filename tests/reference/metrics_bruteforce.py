"""The metrics written down pair by pair and row by row, without weights, sorting or vectors.

Bootstrap multiplicities are tested by repeating rows. `Rules` spells out each convention, so that a test can break
one at a time and see that the comparison notices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

Curve = Callable[[float], float]


@dataclass(frozen=True)
class Rules:
    """Conventions; anything but the defaults is a mutant."""

    tied_score: float = 0.5
    censored_at_event_is_later: bool = True
    event_at_horizon_counts: bool = True
    competing_is_censoring: bool = False
    weigh_pairs_twice: bool = True
    events_leave_before_censoring: bool = True
    g_before: bool = True
    competing_are_controls: bool = True
    censored_at_horizon_is_free: bool = True


DEFAULT = Rules()


@dataclass(frozen=True)
class Sample:
    """A small random data set; times are multiples of 1/8 so that float32 libraries see the same ties."""

    duration: np.ndarray  # (n,)
    cause: np.ndarray  # (n,)
    risk: np.ndarray  # (n, causes, horizons)
    horizons: np.ndarray  # (horizons,)


def random_sample(seed: int, *, n_causes: int | None = None, n: int | None = None, n_horizons: int = 3) -> Sample:
    """Ties in time and score, 0 to 80 % censoring, one to three causes, horizons on and between the observed times."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 45)) if n is None else n
    n_causes = int(rng.integers(1, 4)) if n_causes is None else n_causes
    n_times = int(rng.integers(4, 160))
    duration = rng.integers(1, n_times + 1, size=n) / 8.0
    censored = rng.random() * 0.8
    cause = np.where(rng.random(n) < censored, 0, rng.integers(1, n_causes + 1, size=n))
    decimals = int(rng.integers(1, 4))
    risk = np.round(rng.beta(1.2, 2.5, size=(n, n_causes, n_horizons)) / n_causes, decimals)
    horizons = np.sort(rng.choice(np.arange(2, 2 * n_times + 2), size=n_horizons, replace=False)) / 16.0
    return Sample(duration, cause, risk, horizons)


def survival_before(
    duration: Sequence[float], is_jump: Sequence[bool], leaves_first: Sequence[bool], t: float
) -> float:
    """Product-limit estimate just before t; rows of `leaves_first` leave the risk set before jumps of their time."""
    product = 1.0
    for s in sorted({d for d, jump in zip(duration, is_jump, strict=True) if jump}):
        if s >= t:
            break
        at_risk = sum(d > s or (d == s and not first) for d, first in zip(duration, leaves_first, strict=True))
        jumps = sum(d == s and jump for d, jump in zip(duration, is_jump, strict=True))
        product *= 1.0 - jumps / at_risk
    return product


def censoring_curves(duration: Sequence[float], cause: Sequence[int], rules: Rules = DEFAULT) -> Curve:
    """G(t−) (or, as a mutant, G(t))."""
    is_censored = [c == 0 for c in cause]
    first = [c > 0 and rules.events_leave_before_censoring for c in cause]

    @cache
    def g(t: float) -> float:
        return survival_before(duration, is_censored, first, t if rules.g_before else math.nextafter(t, math.inf))

    return g


def aalen_johansen(duration: Sequence[float], cause: Sequence[int], e: int, t: float) -> float:
    """Cumulative incidence of cause e by t."""
    total, survival = 0.0, 1.0
    for s in sorted({d for d, c in zip(duration, cause, strict=True) if c > 0 and d <= t}):
        at_risk = sum(d >= s for d in duration)
        total += survival * sum(d == s and c == e for d, c in zip(duration, cause, strict=True)) / at_risk
        survival *= 1.0 - sum(d == s and c > 0 for d, c in zip(duration, cause, strict=True)) / at_risk
    return total


def reaches(duration: Sequence[float], cause: Sequence[int], t: float) -> bool:
    """Somebody is observed until t, or the last ones observed all had an event."""
    last = max(duration)
    return last >= t or all(c > 0 for d, c in zip(duration, cause, strict=True) if d == last)


def wolbers_c(
    duration: Sequence[float],
    cause: Sequence[int],
    score: Sequence[float],
    e: int,
    horizon: float,
    g: Curve,
    rules: Rules = DEFAULT,
) -> float:
    """Wolbers' C over all ordered pairs."""
    wins = pairs = 0.0
    for i in range(len(duration)):
        by_horizon = duration[i] <= horizon if rules.event_at_horizon_counts else duration[i] < horizon
        if cause[i] != e or not by_horizon:
            continue
        for j in range(len(duration)):
            outlived = duration[j] > duration[i] or (
                rules.censored_at_event_is_later and duration[j] == duration[i] and cause[j] == 0
            )
            competed = cause[j] not in (0, e) and duration[j] <= duration[i]
            if outlived:
                weight = 1.0 / g(duration[i]) ** (2 if rules.weigh_pairs_twice else 1)
            elif competed and not rules.competing_is_censoring:
                weight = 1.0 / (g(duration[i]) * g(duration[j]))
            else:
                continue
            pairs += weight
            if score[i] > score[j]:
                wins += weight
            elif score[i] == score[j]:
                wins += rules.tied_score * weight
    return wins / pairs if pairs else math.nan


def known_weight(t: float, c: int, horizon: float, g: Curve, rules: Rules = DEFAULT) -> float:
    """Inverse probability of a row's status at the horizon being known; 0 where it is not."""
    if c > 0 and t <= horizon:
        return 1.0 / g(t)
    if t > horizon or (t == horizon and c == 0 and rules.censored_at_horizon_is_free):
        return 1.0 / g(horizon)
    return 0.0


def auc(
    duration: Sequence[float],
    cause: Sequence[int],
    score: Sequence[float],
    e: int,
    horizon: float,
    g: Curve,
    rules: Rules = DEFAULT,
) -> float:
    """Cumulative/dynamic AUC over all pairs of a case and a control."""
    n = range(len(duration))
    weight = [known_weight(duration[i], cause[i], horizon, g, rules) for i in n]
    wins = pairs = 0.0
    for i in n:
        if cause[i] != e or duration[i] > horizon:
            continue
        for j in n:
            is_event = cause[j] > 0 and duration[j] <= horizon
            if is_event and (cause[j] == e or not rules.competing_are_controls):
                continue
            pairs += weight[i] * weight[j]
            if score[i] > score[j]:
                wins += weight[i] * weight[j]
            elif score[i] == score[j]:
                wins += rules.tied_score * weight[i] * weight[j]
    return wins / pairs if pairs else math.nan


def brier(
    duration: Sequence[float],
    cause: Sequence[int],
    risk: Sequence[float],
    e: int,
    horizon: float,
    g: Curve,
    rules: Rules = DEFAULT,
) -> float:
    """IPCW Brier score, row by row."""
    total = 0.0
    for t, c, r in zip(duration, cause, risk, strict=True):
        if rules.competing_is_censoring and c not in (0, e):
            c = 0
        total += known_weight(t, c, horizon, g, rules) * ((c == e and t <= horizon) - r) ** 2
    return total / len(duration)


def ks_calibration(
    duration: Sequence[float], cause: Sequence[int], risk: Sequence[float], e: int, horizon: float, g: Curve
) -> float:
    """Largest gap between observed and expected events among rows up to some risk."""
    gaps = []
    for cut in set(risk):
        gap = 0.0
        for t, c, r in zip(duration, cause, risk, strict=True):
            if r <= cut:
                gap += (known_weight(t, c, horizon, g) if c == e and t <= horizon else 0.0) - r
        gaps.append(abs(gap) / len(duration))
    return max(gaps)


def net_benefit(
    duration: Sequence[float],
    cause: Sequence[int],
    risk: Sequence[float],
    e: int,
    horizon: float,
    g: Curve,
    threshold: float,
) -> float:
    """True positives less weighted false positives, per row."""
    true = flagged = 0.0
    for t, c, r in zip(duration, cause, risk, strict=True):
        if r >= threshold:
            flagged += 1.0
            true += known_weight(t, c, horizon, g) if c == e and t <= horizon else 0.0
    return (true - (flagged - true) * threshold / (1.0 - threshold)) / len(duration)
