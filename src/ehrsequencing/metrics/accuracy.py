"""Overall accuracy with competing causes, weighted for censoring: Brier score, IPA, integrated Brier score and O/E.

Every function takes `ScoredRows` and returns one number for each cause and horizon, (causes, horizons), or with a block
of bootstrap weights (resamples, causes, horizons); NaN where it is undefined. A row whose event was seen at T weighs
1 / G(T−), a row known to be event-free at the horizon t weighs 1 / G(t−), with G the distribution of censoring times,
and a row censored before t weighs nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import divide
from ehrsequencing.metrics.metric import Metric
from ehrsequencing.metrics.outcomes import ScoredRows


def brier(rows: ScoredRows) -> Floats:
    """IPCW Brier score (Graf 1999; Schoop 2011 with competing causes), competing events counted as non-events.

        BS_e(t) = (1 / n) Σ_i ω_i(t) (1[T_i ≤ t, cause_i = e] − risk_i)²

    with ω_i(t) of `ScoredRows.known_weights`.

    Returns:
        (causes, horizons) or (resamples, causes, horizons).
    """
    scores = np.empty((len(rows.weights), *rows.risk.shape[1:]))
    for h in range(len(rows.horizons_days)):
        error = (rows.has_event_by(h) - rows.risk[:, :, h].T) ** 2
        scores[:, :, h] = divide(rows.known_weights(h) @ error.T, rows.total_weight[:, None])
    return rows.finish(rows.where_covered(scores))


def null_brier(rows: ScoredRows, *, null_risk: ArrayLike | None = None) -> Floats:
    """Brier score of a prediction that is the same for everyone.

    Args:
        rows: The scored rows; their risks are not used.
        null_risk: (causes, horizons) that prediction, say the training subjects' incidence. Default: the Aalen–Johansen
            incidence of these rows, again for each resample.

    Returns:
        (causes, horizons) or (resamples, causes, horizons).
    """
    risk = (
        rows.observed_risk
        if null_risk is None
        else np.broadcast_to(np.asarray(null_risk), rows.observed_risk.shape)
    )
    scores = np.empty_like(rows.observed_risk)
    for h in range(len(rows.horizons_days)):
        known = rows.known_weights(h)
        events = divide(known @ rows.has_event_by(h).T, rows.total_weight[:, None])
        others = divide(known.sum(axis=1), rows.total_weight)[:, None] - events
        scores[:, :, h] = others * risk[:, :, h] ** 2 + events * (1.0 - risk[:, :, h]) ** 2
    return rows.finish(rows.where_covered(scores))


def index_of_prediction_accuracy(rows: ScoredRows, *, null_risk: ArrayLike | None = None) -> Floats:
    """IPA = 1 − Brier / Brier of the null prediction (Kattan & Gerds 2018): 0 is no skill, below 0 is harm.

    Args:
        rows: The scored rows.
        null_risk: See `null_brier`.

    Returns:
        (causes, horizons) or (resamples, causes, horizons); NaN where the null prediction is perfect.
    """
    null = null_brier(rows, null_risk=null_risk)
    # A null score of 0 up to rounding (everybody or nobody had the event) leaves the skill undefined.
    return 1.0 - divide(rows.once(brier), np.where(null < 1e-12, 0.0, null))


def observed_over_expected(rows: ScoredRows) -> Floats:
    """O/E: Aalen–Johansen incidence over the mean predicted risk; 1 is calibrated in the large.

    Returns:
        (causes, horizons) or (resamples, causes, horizons); NaN where no risk is predicted at all.
    """
    return rows.finish(divide(rows.observed_risk, rows.mean_risk))


def integrated_brier(rows: ScoredRows) -> Floats:
    """Brier score averaged over time: the trapezoid rule over `rows.horizons_days`, taken as a time grid.

        IBS_e = (1 / (t_max − t_min)) ∫ BS_e(t) dt

    Returns:
        (causes,) or (resamples, causes); NaN where follow-up does not reach the end of the grid.

    Raises:
        EhrseqError: Fewer than two times.
    """
    days = rows.horizons_days
    if len(days) < 2:
        raise EhrseqError(
            "an integral needs two times", where="horizons_days", fix="pass risks on a time grid"
        )
    scores = brier(rows)
    areas = 0.5 * (scores[..., 1:] + scores[..., :-1]) * np.diff(days)
    mean: Floats = areas.sum(axis=-1) / (days[-1] - days[0])
    return mean


RECORDS = (
    Metric(
        key="brier",
        name="Brier",
        meaning="mean squared error of the predicted risk; lower is better",
        of=brier,
        better=-1,
        digits=4,
        compared=True,
        in_terminal=False,
    ),
    Metric(
        key="ipa",
        name="IPA",
        meaning="share of the prediction error removed, against giving everyone the same average risk",
        of=index_of_prediction_accuracy,
        better=1,
        compared=True,
        margin=0.02,
    ),
    Metric(
        key="oe",
        name="O/E",
        meaning="events observed for each event expected; 1 is right, above 1 the risks are too low",
        of=observed_over_expected,
        target=1.0,
        digits=2,
        part="calibration",
    ),
    Metric(
        key="ibs",
        name="IBS",
        meaning="Brier score averaged over time; lower is better",
        of=integrated_brier,
        better=-1,
        digits=4,
        taken="over time",
        tells_counts=False,
    ),
    Metric(
        key="nll",
        name="NLL",
        meaning="negative log-likelihood per prediction; lower is better",
        better=-1,
        digits=4,
        taken="elsewhere",
        compared=True,
        tells_counts=False,
    ),
)
