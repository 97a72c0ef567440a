"""Discrimination with competing causes: Wolbers' C and the cumulative/dynamic AUC, weighted for censoring.

Both take `ScoredRows` and return one number for each cause and horizon, (causes, horizons), or with a block of
bootstrap weights (resamples, causes, horizons); NaN where nothing can be compared. A subject with a competing event
never has the event of interest: it counts as event-free for ever, not as censored. At the end the AUC within strata, as
of sex and age: pairs from different strata are never compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.metrics.censoring import SubjectClock, divide
from ehrsequencing.metrics.outcomes import Metric, ScoredRows

__all__ = ["cumulative_dynamic_auc", "wolbers_c"]


def wolbers_c(rows: ScoredRows) -> Floats:
    """Wolbers' truncated concordance for competing risks (Wolbers et al. 2014); Uno's C with one cause.

    For cause e and horizon t, with s the predicted risk by t, i runs over the events of cause e by t and j over

    - rows seen event-free longer than i (T_j > T_i, or censored at T_i): pair weight 1 / G(T_i−)²;
    - rows with a competing event by then (T_j ≤ T_i): pair weight 1 / (G(T_i−) G(T_j−));

        C = Σ_ij weight_ij · (1[s_i > s_j] + ½ 1[s_i = s_j]) / Σ_ij weight_ij

    Where each row has its own G, a pair weighs ω_i(t) ω_j(t) (`ScoredRows.known_weights`): both must be known at t.
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


def stratified_auc(
    score: Floats, stratum: Ints, subject: Ints, case: Bools, weights: Floats
) -> tuple[Floats, Floats]:
    """AUC of each stratum: how often a case scores above a control of its own stratum; ties count one half.

        AUC_g = Σ_{i case, j control in g} w_i w_j (1[s_i > s_j] + ½ 1[s_i = s_j]) / Σ_{i, j} w_i w_j

    Args:
        score: (n,) of rows, at most one of a subject in a stratum.
        stratum: (n,).
        subject: (n,) column of the weights.
        case: (n,) rows with the event; the others are controls.
        weights: (resamples, subjects) how often each subject was drawn.

    Returns:
        For every stratum with a case and a control: the AUC (strata, resamples), NaN without a drawn case or control,
        and how many cases were drawn (strata, resamples), 0 there.
    """
    strata = np.intersect1d(stratum[case], stratum[~case])
    auc, total = np.zeros((2, len(strata), len(weights)))
    for k, one in enumerate(strata.tolist()):
        cases, controls = (np.flatnonzero((stratum == one) & side) for side in (case, ~case))
        wins = np.sign(score[cases][:, None] - score[controls][None, :]) * 0.5 + 0.5
        w_case, w_control = weights[:, subject[cases]], weights[:, subject[controls]]
        pairs = w_case.sum(axis=1) * w_control.sum(axis=1)
        auc[k] = divide(np.einsum("bi,bi->b", w_case, w_control @ wins.T), pairs)
        total[k] = np.where(pairs > 0, w_case.sum(axis=1), 0.0)
    return auc, total


RECORDS = (
    Metric(
        key="c",
        name="C",
        meaning="of two subjects, how often the one with the earlier event was given the higher risk",
        of=wolbers_c,
        better=1,
        compared=True,
        margin=0.02,
        on="logit",
    ),
    Metric(
        key="auc",
        name="AUC",
        meaning="how often a subject with the event by the horizon was given more risk than others",
        of=cumulative_dynamic_auc,
        better=1,
        compared=True,
        margin=0.02,
        on="logit",
        in_terminal=False,
    ),
)


def _per_cell(rows: ScoredRows, metric: Callable[[ScoredRows, int, int], Floats]) -> Floats:
    """`metric` for each cause and horizon, NaN where follow-up does not reach the horizon."""
    values = np.full((len(rows.weights), *rows.risk.shape[1:]), np.nan)
    for e, h in rows.places():
        values[:, e, h] = metric(rows, e, h)
    return rows.finish(rows.where_covered(values))


def _auc(rows: ScoredRows, e: int, h: int) -> Floats:
    case = rows.has_event_by(h)[e]
    control = rows.is_event_free_at(h) | (rows.has_event_by(h).any(axis=0) & ~case)
    known = rows.known_weights[h]
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

    if isinstance(rows.fixed_censoring, SubjectClock):
        # each row has its own G: a pair weighs as much as both of its rows, which must be known at the horizon
        weighted = doubly = later = rows.known_weights[h]
    else:
        # 1 / G(T−) of an event, shared by all its pairs; pairs with a later row have it twice, pairs with an earlier
        # competing event have that row's own factor instead.
        weighted = rows.weights * rows.inverse_at_duration
        doubly, later = weighted * rows.inverse_at_duration, rows.weights
    rank = dense_rank(rows.risk[:, e, h])
    wins, pairs = np.zeros(len(weighted)), np.zeros(len(weighted))
    pairs += _pairs_above(doubly, later, turn, event, np.ones_like(event))
    pairs += _pairs_above(weighted, weighted, -turn, event, competing)
    # Turn i < turn j exactly if at their highest differing bit i has 0 and j has 1, and all higher bits agree. So each
    # pair is counted at one bit, within one group of equal higher bits, where only the score is left to compare.
    for bit in range(int(turn.max()).bit_length()):
        group, is_late = turn >> (bit + 1), (turn >> bit) & 1 == 1
        wins += _wins(doubly, later, rank, event & ~is_late, is_late, group)
        wins += _wins(weighted, weighted, rank, event & is_late, competing & ~is_late, group)
    return divide(wins, pairs)


def dense_rank(score: Floats) -> Ints:
    """(n,) rank of each score among the distinct scores, equal scores having equal ranks."""
    return np.unique(score, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _wins(
    case_weight: Floats,
    control_weight: Floats,
    rank: Ints,
    case: Bools,
    control: Bools,
    group: Ints,
) -> Floats:
    """Σ over pairs of a case and a control of one group: weights × (1[rank_case > rank_control] + ½ 1[equal])."""
    width = int(rank.max()) + 1
    cases, controls = np.flatnonzero(case), np.flatnonzero(control)
    place = group[controls] * width + rank[controls]
    order = np.argsort(place, kind="stable")
    controls, place = controls[order], place[order]
    wanted = group[cases] * width + rank[cases]
    below, upto = (
        np.searchsorted(place, wanted, side="left"),
        np.searchsorted(place, wanted, side="right"),
    )
    start = np.searchsorted(place, group[cases] * width, side="left")
    cumulative = np.zeros((len(control_weight), len(controls) + 1))
    np.cumsum(control_weight[:, controls], axis=1, out=cumulative[:, 1:])
    half_tied = 0.5 * (cumulative[:, below] + cumulative[:, upto]) - cumulative[:, start]
    return np.einsum("rc,rc->r", case_weight[:, cases], half_tied)


def _pairs_above(
    case_weight: Floats, control_weight: Floats, turn: Ints, case: Bools, control: Bools
) -> Floats:
    """Σ over pairs of a case and a control with turn_control > turn_case: product of their weights."""
    cases, controls = np.flatnonzero(case), np.flatnonzero(control)
    controls = controls[np.argsort(-turn[controls], kind="stable")]
    above = np.searchsorted(-turn[controls], -turn[cases], side="left")
    cumulative = np.zeros((len(control_weight), len(controls) + 1))
    np.cumsum(control_weight[:, controls], axis=1, out=cumulative[:, 1:])
    return np.einsum("rc,rc->r", case_weight[:, cases], cumulative[:, above])
