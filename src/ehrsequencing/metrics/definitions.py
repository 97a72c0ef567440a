"""Discrimination and overall accuracy with competing causes, weighted for censoring (SCIENCE.md §6).

Every metric takes `ScoredRows` and returns one number per cause and horizon, (causes, horizons), or with a block of
bootstrap weights (resamples, causes, horizons). What is undefined (no comparable pairs, no event, a horizon beyond the
follow-up) is NaN. A subject with a competing event never has the event of interest: it is a non-event forever, not a
censored one. Censoring is made up for by weights: a row whose event was seen at T weighs 1 / G(T−), a row known to be
event-free at the horizon t weighs 1 / G(t−), with G the distribution of censoring times, and a row censored before t
weighs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.arrays import Bools, Floats, Ints
from ehrsequencing.errors import EhrseqError
from ehrsequencing.metrics.censoring import RowCensoring, StepFunction, divide
from ehrsequencing.metrics.outcomes import ScoredRows

#: Elements of one (resamples, n) work array: what fits the cache; what 16 resamples that share a sorting may take.
BLOCK_ELEMENTS, LARGEST_BLOCK_ELEMENTS = 2**18, 2**23


def wolbers_c(rows: ScoredRows) -> Floats:
    """Wolbers' truncated concordance for competing risks (Wolbers et al. 2014); Uno's C with one cause.

    For cause e and horizon t, with s the predicted risk by t, i runs over the events of cause e by t and j over

    - rows seen event-free longer than i (T_j > T_i, or censored at T_i): pair weight 1 / G(T_i−)²;
    - rows with a competing event by then (T_j ≤ T_i): pair weight 1 / (G(T_i−) G(T_j−));

        C = Σ_ij weight_ij · (1[s_i > s_j] + ½ 1[s_i = s_j]) / Σ_ij weight_ij

    Two events of cause e at one instant are not comparable. Costs O(resamples · n log n).

    Returns:
        (causes, horizons) or (resamples, causes, horizons); NaN without comparable pairs.
    """
    return _per_cell(rows, _concordance)


def cumulative_dynamic_auc(rows: ScoredRows) -> Floats:
    """Cumulative/dynamic AUC: does a subject with the event by t score above one without it by t?

    Cases have an event of cause e by the horizon; controls are event-free there **or had a competing event by then**
    (Blanche et al. 2013, controls of type 2). Each is weighted for censoring, ties in the score count one half.

    Returns:
        (causes, horizons) or (resamples, causes, horizons); NaN without a case or a control.
    """
    return _per_cell(rows, _auc)


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
    risk = rows.observed_risk if null_risk is None else np.broadcast_to(np.asarray(null_risk), rows.observed_risk.shape)
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
    return _skill(brier(rows), null_brier(rows, null_risk=null_risk))


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
            "an integral needs at least two times", where="horizons_days", fix="pass risks on a time grid"
        )
    scores = brier(rows)
    areas = 0.5 * (scores[..., 1:] + scores[..., :-1]) * np.diff(days)
    mean: Floats = areas.sum(axis=-1) / (days[-1] - days[0])
    return mean


def metric_table(
    duration_days: ArrayLike,
    cause: ArrayLike,
    risk: ArrayLike,
    horizons_days: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    censoring: StepFunction | RowCensoring | None = None,
    null_risk: ArrayLike | None = None,
) -> dict[str, Floats]:
    """The whole table of one landmark, as a point estimate or for a block of bootstrap weights, by the same code.

    Args:
        duration_days: (n,) from the prediction time to the event or censoring.
        cause: (n,) int, 0 = censored, 1..causes.
        risk: (n, causes, horizons) predicted cumulative incidence.
        horizons_days: (horizons,) increasing.
        weights: (n,) or (resamples, n) multiplicities, as `bootstrap_subjects` draws them.
        censoring: G fitted on other rows; default: on these, again for each resample.
        null_risk: (causes, horizons) the null prediction of the IPA; default: Aalen–Johansen of these rows.

    Returns:
        `wolbers_c`, `auc`, `brier`, `null_brier`, `ipa`, `observed` (Aalen–Johansen), `expected` (mean risk) and
        `observed_over_expected`, each (causes, horizons), or (resamples, causes, horizons) for a block of weights.

    Example:
        >>> table = metric_table([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], [[[0.9]], [[0.2]], [[0.6]], [[0.1]]], [3.5])
        >>> [round(float(table[name][0, 0]), 5) for name in ("wolbers_c", "auc", "brier", "observed")]
        [1.0, 1.0, 0.06625, 0.625]
    """
    blocks = []
    for block in _blocks(None if weights is None else np.asarray(weights)):
        rows = ScoredRows.of(duration_days, cause, risk, horizons_days, weights=block, censoring=censoring)
        blocks.append(table_of_rows(rows, null_risk=null_risk))
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def table_of_rows(rows: ScoredRows, *, null_risk: ArrayLike | None = None) -> dict[str, Floats]:
    """The table of `metric_table` for rows that are scored already."""
    score, null = brier(rows), null_brier(rows, null_risk=null_risk)
    observed, expected = rows.finish(rows.observed_risk), rows.finish(rows.mean_risk)
    return {
        "wolbers_c": wolbers_c(rows),
        "auc": cumulative_dynamic_auc(rows),
        "brier": score,
        "null_brier": null,
        "ipa": _skill(score, null),
        "observed": observed,
        "expected": expected,
        "observed_over_expected": divide(observed, expected),
    }


def _skill(score: Floats, null: Floats) -> Floats:
    """1 − score / null; a null score of 0 up to rounding (everybody or nobody had the event) leaves it undefined."""
    return 1.0 - divide(score, np.where(null < 1e-12, 0.0, null))


def _blocks(weights: np.ndarray | None) -> Iterator[np.ndarray | None]:
    """Cut a large block of weights into smaller ones; leave everything else as it is."""
    if weights is None or weights.ndim != 2 or weights.size <= BLOCK_ELEMENTS:
        yield weights
        return
    n_rows = weights.shape[1]
    step = max(1, BLOCK_ELEMENTS // n_rows, min(16, LARGEST_BLOCK_ELEMENTS // n_rows))
    for start in range(0, len(weights), step):
        yield weights[start : start + step]


def _per_cell(rows: ScoredRows, metric: Callable[[ScoredRows, int, int], Floats]) -> Floats:
    """`metric` for each cause and horizon, NaN where follow-up does not reach the horizon."""
    cells = [[metric(rows, e, h) for h in range(rows.risk.shape[2])] for e in range(rows.n_causes)]
    return rows.finish(rows.where_covered(np.moveaxis(np.array(cells), -1, 0)))


def _auc(rows: ScoredRows, e: int, h: int) -> Floats:
    case = rows.has_event_by(h)[e]
    control = rows.is_event_free_at(h) | (rows.has_event_by(h).any(axis=0) & ~case)
    known = rows.known_weights(h)
    together = np.zeros(len(case), dtype=np.int64)
    wins = _wins(known, known, dense_rank(rows.risk[:, e, h]), case, control, together)
    return divide(wins, known[:, case].sum(axis=1) * known[:, control].sum(axis=1))


def _concordance(rows: ScoredRows, e: int, h: int) -> Floats:
    duration, cause, horizon = rows.duration_days, rows.cause, rows.horizons_days[h]
    event = (cause == e + 1) & (duration <= horizon)
    competing = (cause > 0) & (cause != e + 1)
    # `turn` orders the rows in time around the events of interest: the k-th distinct event time is 2k − 1, whoever is
    # seen at it or after it, but not until the next, is 2k. So rows censored at the instant of an event outlived it
    # (and so did rows with a competing event, which weigh the same either way), and tied events are never compared.
    turn = 2 * np.searchsorted(np.unique(duration[event]), duration, side="right")
    turn[event] -= 1

    if isinstance(rows.fixed_censoring, RowCensoring):
        return _concordance_by_pairs(rows, rows.fixed_censoring, e, h, turn)
    # 1 / G(T−) of an event, shared by all its pairs; pairs with a later row have it twice, pairs with an earlier
    # competing event have that row's own factor instead.
    weighted = rows.weights * rows.inverse_at_duration
    doubly = weighted * rows.inverse_at_duration
    rank = dense_rank(rows.risk[:, e, h])
    wins, pairs = np.zeros(len(weighted)), np.zeros(len(weighted))
    pairs += _pairs_above(doubly, rows.weights, turn, event, np.ones_like(event))
    pairs += _pairs_above(weighted, weighted, -turn, event, competing)
    # Turn i < turn j exactly if at their highest differing bit i has 0 and j has 1, and all higher bits agree. So each
    # pair is counted at one bit, within one group of equal higher bits, where only the score is left to compare.
    for bit in range(int(turn.max()).bit_length()):
        group, is_late = turn >> (bit + 1), (turn >> bit) & 1 == 1
        wins += _wins(doubly, rows.weights, rank, event & ~is_late, is_late, group)
        wins += _wins(weighted, weighted, rank, event & is_late, competing & ~is_late, group)
    return divide(wins, pairs)


def _concordance_by_pairs(rows: ScoredRows, censoring: RowCensoring, e: int, h: int, turn: Ints) -> Floats:
    """Wolbers' C where each row has its own G: 1 / (G_i(T_i−) G_j(T_i−)) does not come apart into two factors."""
    score, competing = rows.risk[:, e, h], (rows.cause > 0) & (rows.cause != e + 1)
    cases = np.flatnonzero(turn % 2 == 1)
    inverse = rows.inverse_at_duration[0]
    wins, pairs = np.zeros(len(rows.weights)), np.zeros(len(rows.weights))
    step = max(1, BLOCK_ELEMENTS // len(score))
    for i in (cases[start : start + step] for start in range(0, len(cases), step)):
        later = turn[:, None] > turn[i]
        weight = later * divide(1.0, censoring.before(rows.duration_days[i]), undefined=0.0)
        weight += (~later & competing[:, None]) * inverse[:, None]
        weight *= inverse[i]
        better = (score[i] > score[:, None]) + 0.5 * (score[i] == score[:, None])
        own = rows.weights[:, i]
        pairs += np.einsum("rc,rc->r", own, rows.weights @ weight)
        wins += np.einsum("rc,rc->r", own, rows.weights @ (weight * better))
    return divide(wins, pairs)


def dense_rank(score: Floats) -> Ints:
    """(n,) rank of each score among the distinct scores, equal scores having equal ranks."""
    return np.unique(score, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _wins(case_weight: Floats, control_weight: Floats, rank: Ints, case: Bools, control: Bools, group: Ints) -> Floats:
    """Σ over pairs of a case and a control of one group: weights × (1[rank_case > rank_control] + ½ 1[equal])."""
    width = int(rank.max()) + 1
    cases, controls = np.flatnonzero(case), np.flatnonzero(control)
    place = group[controls] * width + rank[controls]
    order = np.argsort(place, kind="stable")
    controls, place = controls[order], place[order]
    wanted = group[cases] * width + rank[cases]
    below, upto = np.searchsorted(place, wanted, side="left"), np.searchsorted(place, wanted, side="right")
    start = np.searchsorted(place, group[cases] * width, side="left")
    cumulative = np.zeros((len(control_weight), len(controls) + 1))
    np.cumsum(control_weight[:, controls], axis=1, out=cumulative[:, 1:])
    half_tied = 0.5 * (cumulative[:, below] + cumulative[:, upto]) - cumulative[:, start]
    sums: Floats = np.einsum("rc,rc->r", case_weight[:, cases], half_tied)
    return sums


def _pairs_above(case_weight: Floats, control_weight: Floats, turn: Ints, case: Bools, control: Bools) -> Floats:
    """Σ over pairs of a case and a control with turn_control > turn_case: product of their weights."""
    cases, controls = np.flatnonzero(case), np.flatnonzero(control)
    controls = controls[np.argsort(-turn[controls], kind="stable")]
    above = np.searchsorted(-turn[controls], -turn[cases], side="left")
    cumulative = np.zeros((len(control_weight), len(controls) + 1))
    np.cumsum(control_weight[:, controls], axis=1, out=cumulative[:, 1:])
    sums: Floats = np.einsum("rc,rc->r", case_weight[:, cases], cumulative[:, above])
    return sums
