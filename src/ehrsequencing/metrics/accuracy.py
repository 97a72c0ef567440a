"""Overall accuracy with competing causes, weighted for censoring: Brier score, IPA, O/E, decision curves.

Every metric takes `ScoredRows` and returns one number for each cause and horizon, (causes, horizons), or with a block
of bootstrap weights (resamples, causes, horizons); NaN where it is undefined. A row whose event was seen at T weighs
1 / G(T−), a row known to be event-free at the horizon t weighs 1 / G(t−), with G the distribution of censoring times,
and a row censored before t weighs nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Floats, row_blocks
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import SubjectClock, divide
from ehrsequencing.metrics.outcomes import Metric, ScoredRows


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
        scores[:, :, h] = divide(rows.known_weights[h] @ error.T, rows.total_weight[:, None])
    return rows.finish(rows.where_covered(scores))


def null_brier(rows: ScoredRows) -> Floats:
    """Brier score of giving everyone the observed incidence of these rows, again for each resample.

    Returns:
        (causes, horizons) or (resamples, causes, horizons).
    """
    risk = rows.observed_risk
    scores = np.empty_like(rows.observed_risk)
    for h in range(len(rows.horizons_days)):
        known = rows.known_weights[h]
        events = divide(known @ rows.has_event_by(h).T, rows.total_weight[:, None])
        others = divide(known.sum(axis=1), rows.total_weight)[:, None] - events
        scores[:, :, h] = others * risk[:, :, h] ** 2 + events * (1.0 - risk[:, :, h]) ** 2
    return rows.finish(rows.where_covered(scores))


def index_of_prediction_accuracy(rows: ScoredRows) -> Floats:
    """IPA = 1 − Brier / Brier of the null prediction (Kattan & Gerds 2018): 0 is no skill, below 0 is harm.

    Returns:
        (causes, horizons) or (resamples, causes, horizons); NaN where the null prediction is perfect.
    """
    null = null_brier(rows)
    # A null score of 0 up to rounding (everybody or nobody had the event) leaves the skill undefined.
    return 1.0 - divide(rows.once(brier), np.where(null < 1e-12, 0.0, null))


def observed_over_expected(rows: ScoredRows) -> Floats:
    """O/E: events seen over events expected; 1 is calibrated in the large.

    Of a model with hazards, over everybody while under observation:

        O/E_e(t) = Σ_i 1[T_i ≤ t, cause_i = e] / Σ_i ∫₀^min(T_i, t) λ_e(u | x_i) du

    The difference of the two sums is a martingale, so that no censoring that is independent given x biases it, and no
    weights are needed: neither drop-out nor a follow-up that ends at an age or a date. Risks alone do not tell how many
    events to expect by any other day; they are compared with the events by t of the rows that are known there:

        O/E_e(t) = Σ_i ω_i(t) y_i / Σ_i ω_i(t) risk_i

    Returns:
        (causes, horizons) or (resamples, causes, horizons); NaN where no event is expected, or nobody is followed to
        the horizon.
    """
    if rows.expected is None:
        sums = np.empty((2, len(rows.weights), *rows.risk.shape[1:]))
        for h in range(len(rows.horizons_days)):
            known = rows.known_weights[h]
            sums[0, :, :, h] = known @ rows.has_event_by(h).T
            sums[1, :, :, h] = known @ rows.risk[:, :, h]
        return rows.finish(rows.where_covered(divide(*sums)))
    clock, weights = rows.fixed_censoring, rows.weights
    if isinstance(clock, SubjectClock) and clock.is_by_history:  # as the expected events then are
        weights = weights * rows.inverse_at_duration
    seen = [weights @ rows.has_event_by(h).T for h in range(len(rows.horizons_days))]
    expected = rows.weights @ rows.expected.reshape(len(rows.expected), -1)
    observed = np.stack(seen, axis=2)
    ratio = divide(observed, expected.reshape(observed.shape))
    # where too few people carry the weights by the history, the horizon is refused
    refused = np.isin(rows.horizons_days, getattr(clock, "refused_days", ()))
    followed = rows.counts.reaches(rows.horizons_days) & ~refused
    return rows.finish(np.where(followed[:, None], ratio, np.nan))


def integrated_brier(rows: ScoredRows) -> Floats:
    """Brier score averaged over time: the trapezoid rule over `rows.horizons_days`, taken as a time grid.

        IBS_e = (1 / (t_max − t_min)) ∫ BS_e(t) dt

    Returns:
        (causes,) or (resamples, causes); NaN where follow-up does not reach the end of the grid.
    """
    days = rows.horizons_days
    scores = brier(rows)
    areas = 0.5 * (scores[..., 1:] + scores[..., :-1]) * np.diff(days)
    return areas.sum(axis=-1) / (days[-1] - days[0])


def decision_curve(rows: ScoredRows, thresholds: ArrayLike) -> dict[str, Floats]:
    """Net benefit (Vickers & Elkin 2006; with censoring and competing causes Vickers et al. 2008).

        NB(p) = TP(p) − (flagged(p) − TP(p)) · p / (1 − p),     TP(p) = (1 / n) Σ_{i: risk_i ≥ p} ω_i(t) y_i

    with flagged(p) the share of rows whose risk is at least p, and ω_i(t) y_i the censoring-weighted event of cause e
    by the horizon (`ScoredRows.known_weights`). Who had a competing event is a false positive when flagged. Sensitivity
    and PPV are ratios of sums of these weights, so that they are never above 1.

    Args:
        rows: The scored rows.
        thresholds: (thresholds,), or (causes, horizons, thresholds) of each cell; strictly between 0 and 1.

    Returns:
        Each (causes, horizons, thresholds), with a leading resample axis for a block of weights: `net_benefit` is true
        positives per row, less weighted false positives; `treat_all` the same when acting on everyone (on nobody it is
        0); `flagged` the share of rows whose risk is at least the threshold, `sensitivity` of those with the event,
        `ppv` the share of the flagged rows that have the event by the horizon.

    Raises:
        EhrseqError: A threshold outside (0, 1).
    """
    at = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    if not ((at > 0) & (at < 1)).all():
        raise EhrseqError(
            "outside (0, 1)", where="thresholds", fix="a threshold is a risk between 0 and 1"
        )
    of_cell = np.broadcast_to(at, (*rows.risk.shape[1:], at.shape[-1]))
    odds = of_cell / (1.0 - of_cell)
    flagged, true, known = np.zeros((3, len(rows.weights), *of_cell.shape))
    had = np.zeros((len(rows.weights), *rows.risk.shape[1:], 1))
    for e, h in np.ndindex(*rows.risk.shape[1:]):
        inverse = rows.known_weights[h]
        events = inverse * rows.has_event_by(h)[e]
        had[:, e, h, 0] = events.sum(axis=1)
        for some in row_blocks(len(rows.risk)):
            above = (rows.risk[some, e, h, None] >= of_cell[e, h]).astype(np.float64)
            flagged[:, e, h] += rows.weights[:, some] @ above
            true[:, e, h] += events[:, some] @ above
            known[:, e, h] += inverse[:, some] @ above
    sensitivity, ppv = divide(true, had), divide(true, known)
    total = rows.total_weight[:, None, None, None]
    flagged, true = divide(flagged, total), divide(true, total)
    observed = rows.observed_risk[..., None]
    found = {
        "net_benefit": true - (flagged - true) * odds,
        "treat_all": observed - (1.0 - observed) * odds,
        "flagged": flagged,
        "sensitivity": sensitivity,
        "ppv": ppv,
    }
    return {name: rows.finish(rows.where_covered(values)) for name, values in found.items()}


RECORDS = (
    Metric(
        key="brier",
        name="Brier",
        meaning="mean squared error of the predicted risk; lower is better",
        of=brier,
        better=-1,
        digits=4,
        compared=True,
        on="logit",
        in_terminal=False,
    ),
    Metric(
        key="ipa",
        name="IPA",
        meaning="share of the prediction error removed, against giving everyone the same average risk",
        of=index_of_prediction_accuracy,
        better=1,
        compared=True,
        on="log of the rest",
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
        on="log",
        of_every_row=True,
    ),
    Metric(
        key="oe_hazards",
        name="O/E by hazards",
        meaning="events observed for each that the hazards expect while people are followed",
        target=1.0,
        digits=2,
        part="calibration",
        taken="elsewhere",
    ),
    Metric(
        key="ibs",
        name="IBS",
        meaning="Brier score averaged over time; lower is better",
        of=integrated_brier,
        better=-1,
        digits=4,
        taken="over time",
    ),
    Metric(
        key="nll",
        name="NLL",
        meaning="negative log-likelihood per prediction; lower is better",
        better=-1,
        digits=4,
        taken="elsewhere",
        compared=True,
    ),
)
