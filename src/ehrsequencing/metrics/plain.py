"""The metrics on plain arrays: times, causes and one risk a row go in, a number comes out.

    time      (n,) days to the event or censoring
    cause     (n,) 0 = censored, 1 = the event of interest, 2 … = competing events (or True and False for one event)
    risk      (n,) predicted risk of the event of interest by the horizon
    horizon   as in `"1y"`, or a number of days

All of them correct for censoring by inverse-probability weighting, and count a competing event as event-free for ever.
A number is NaN where it is undefined, say where the follow-up ends before the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Floats, Ints, detached
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import day_of, days_of
from ehrsequencing.metrics import accuracy, calibration, discrimination
from ehrsequencing.metrics.censoring import aalen_johansen
from ehrsequencing.metrics.outcomes import ScoredRows


def _rows(time: ArrayLike, cause: ArrayLike, risk: ArrayLike, horizon: str | float) -> ScoredRows:
    """The rows with the event of interest as cause 1; nothing is predicted of the other causes."""
    codes, own = whole_causes(cause), detached(risk).astype(np.float64)
    if own.ndim != 1:
        raise EhrseqError(
            "expected one risk a row", where="risk", fix="give the risks by this horizon, (n,)"
        )
    risks = np.zeros((len(own), max(int(codes.max(initial=0)), 1), 1))
    risks[:, 0, 0] = own
    return ScoredRows.of(time, codes, risks, [day_of(horizon)])


def whole_causes(cause: ArrayLike) -> Ints:
    """Causes as whole numbers, True and False as 1 and 0.

    Raises:
        EhrseqError: One is a word, a fraction or missing.
    """
    given = detached(cause)
    try:
        numbers = given.astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.full(given.shape, np.nan)
    if not (np.isfinite(numbers) & (numbers == np.rint(numbers))).all():
        raise EhrseqError(
            "not one whole number a row",
            where="cause",
            fix="0 = censored, 1 = the event of interest, 2 … = competing, as in np.where(status == 'dead', 1, 0)",
        )
    return numbers.astype(np.int64)


def _ranks(risk: ArrayLike) -> Floats:
    """Scores as numbers from 0 to 1 in the same order: only the order counts."""
    score = detached(risk).astype(np.float64)
    known = len(score) and np.isfinite(score).all()
    return discrimination.dense_rank(score) / len(score) if known else score


def _first(values: Floats) -> float:
    return float(values[0, 0])


def concordance(
    time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float
) -> float:
    """C: how often the subject with the earlier event has the higher risk (Wolbers' C; with one cause Uno's C).

    Args:
        time: (n,) days.
        cause: (n,) 0 = censored, 1 = the event of interest, 2 … = competing.
        risk: (n,) any score that is higher for an earlier event.
        horizon: As in `"1y"`, or a number of days, up to which events count.

    Example:
        >>> import ehrsequencing as eh
        >>> eh.metrics.concordance([100, 200, 300, 400], [1, 1, 0, 0], [0.9, 0.2, 0.3, 0.1], horizon=365.25)
        0.8
    """
    return _first(discrimination.wolbers_c(_rows(time, cause, _ranks(risk), horizon)))


def auc(time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float) -> float:
    """Cumulative/dynamic AUC at the horizon: does a subject with the event by then score above one without it?

    Example:
        >>> auc([100, 200, 300, 400], [1, 1, 0, 0], [0.9, 0.2, 0.3, 0.1], horizon=250)
        0.75
    """
    return _first(discrimination.cumulative_dynamic_auc(_rows(time, cause, _ranks(risk), horizon)))


def brier(time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float) -> float:
    """Brier score at the horizon: the mean squared error of the risk.

    Example:
        >>> round(brier([100, 200, 300, 400], [1, 1, 0, 0], [0.9, 0.2, 0.3, 0.1], horizon=250), 4)
        0.1875
    """
    return _first(accuracy.brier(_rows(time, cause, risk, horizon)))


def ipa(time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float) -> float:
    """Share of the Brier score removed, against giving everyone the observed incidence; 0 is no skill.

    Example:
        >>> round(ipa([100, 200, 300, 400], [1, 1, 0, 0], [0.9, 0.2, 0.3, 0.1], horizon=250), 4)
        0.25
    """
    return _first(accuracy.index_of_prediction_accuracy(_rows(time, cause, risk, horizon)))


def observed_over_expected(
    time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float
) -> float:
    """Events by the horizon over the sum of the risks, of the rows that are known there; 1 is calibrated in the large.

    Example:
        >>> round(observed_over_expected([100, 200, 300, 400], [1, 1, 0, 0], [0.9, 0.2, 0.3, 0.1], horizon=250), 4)
        1.3333
    """
    return _first(accuracy.observed_over_expected(_rows(time, cause, risk, horizon)))


def ici(time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float) -> float:
    """Integrated calibration index: the mean distance of the risk from the smoothed observed risk.

    Example:
        >>> risk = np.linspace(0.05, 0.95, 200)
        >>> event = np.random.default_rng(0).random(200) < risk
        >>> bool(ici(np.where(event, 100, 400), event, risk, horizon=365.25) < 0.1)
        True
    """
    return _first(calibration.smooth_calibration(_rows(time, cause, risk, horizon))["ici"])


def calibration_intercept(
    time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float
) -> float:
    """How far the logit of the risk has to be shifted; 0 is right, above 0 the risks are too low.

    Example:
        >>> risk = np.full(100, 0.5)
        >>> event = np.arange(100) < 50
        >>> abs(round(calibration_intercept(np.where(event, 100, 400), event, risk, horizon=365.25), 4))
        0.0
    """
    return _first(calibration.calibration_intercept_slope(_rows(time, cause, risk, horizon))[0])


def calibration_slope(
    time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float
) -> float:
    """How far the logit of the risk has to be stretched; 1 is right, below 1 the risks are too extreme.

    Example:
        >>> risk = np.repeat([0.2, 0.8], 100)
        >>> event = np.r_[np.arange(100) < 20, np.arange(100) < 80]
        >>> round(calibration_slope(np.where(event, 100, 400), event, risk, horizon=365.25), 4)
        1.0
    """
    return _first(calibration.calibration_intercept_slope(_rows(time, cause, risk, horizon))[1])


def net_benefit(
    time: ArrayLike, cause: ArrayLike, risk: ArrayLike, *, horizon: str | float, threshold: float
) -> float:
    """Net benefit per subject of acting on whoever has at least the threshold's risk; acting on nobody is 0.

    Example:
        >>> round(net_benefit([100, 200, 300, 400], [1, 1, 0, 0], [0.9, 0.2, 0.3, 0.1], horizon=250, threshold=0.2), 4)
        0.4375
    """
    curve = accuracy.decision_curve(_rows(time, cause, risk, horizon), [float(threshold)])
    return float(curve["net_benefit"][0, 0, 0])


def cumulative_incidence(
    time: ArrayLike, cause: ArrayLike, *, at: Sequence[str | float] | str | float
) -> Floats:
    """Observed incidence of the event of interest by some days, by Aalen–Johansen; with one cause 1 − Kaplan–Meier.

    Example:
        >>> cumulative_incidence([100, 200, 300, 400], [1, 2, 1, 0], at=[150, 350]).tolist()
        [0.25, 0.5]
    """
    codes = whole_causes(cause)
    curve = aalen_johansen(time, codes, n_causes=max(int(codes.max(initial=0)), 1))
    return np.asarray(curve.at(np.array(days_of(at, where="at")))[0], dtype=np.float64)
