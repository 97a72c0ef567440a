"""Who has no events although others like them do, and numbers that are those measured later."""

import numpy as np
from scipy.special import pdtr

from ehrsequencing.audit.data import FEWEST_CARRIERS, AuditData, Check, Finding
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.predictors.cox import CoxRegression, CoxRows
from ehrsequencing.records.events import DAY_US

FEWEST_EXPECTED = 10.0  # events of a level, of which fewer than a tenth were seen
LEAST_RATIO, NO_CHANCE = 0.1, 1e-4
FEWEST_LEVELS = 20  # distinct numbers of a code: of fewer, two are often equal
FEWEST_PAIRS = 20
SURE_SHARE, BEYOND_CHANCE = (
    0.5,
    5.0,
)  # of numbers that equal the next one, and by how many standard errors
MOST_NAMED = 5


def events_by_level(data: AuditData) -> Finding:
    """Events of the people with each code without a time, against those that what else is known of them expects.

    The model is a Cox regression on codes and numbers at the first prediction time that knows no code without a time. A
    site that records no outcome has none where others like its people have many.
    """
    known, rows = data.known, data.fitted.rows
    first, static = known.row[0], known.frequent("static")
    x = np.nan_to_num(known.features[0][:, known.frequent("count", "last")].astype(np.float64))
    days, entry = rows.duration_days[first], rows.entry_days[first]
    found = list[tuple[float, float, str]]()
    for number, outcome in enumerate(data.task.causes, start=1):
        event = rows.cause[first] == number
        if event.sum() < FEWEST_EXPECTED:
            continue
        score = np.zeros(len(x))
        if x.shape[1]:
            part = CoxRows(x, entry, days, event)
            score = CoxRegression(part).fit(ridge=float(event.sum()), tolerance=1e-6).log_hazard(x)
        expected = expected_by_breslow(score, entry, days, event)
        for column in static.tolist():
            has = known.features[0][:, column] > 0
            seen, due = int(event[has].sum()), float(expected[has].sum())
            if due >= FEWEST_EXPECTED and pdtr(seen, due) < NO_CHANCE:
                name = known.shown(data, [column])
                words = f"of those with {name} {seen / due:.0%} of the expected events of {outcome}"
                found.append((seen / due, due, words))
    tested = {"subjects": len(first), "codes": len(static)}
    if not len(static):
        return Finding("not_tested", "no code without a time is frequent", tested)
    low = sorted(one for one in found if one[0] < LEAST_RATIO)
    if not low:
        return Finding(
            "passed", "events are recorded at all levels of the codes without a time", tested
        )
    said = ", ".join(words for *_, words in low[:MOST_NAMED])
    return Finding(
        "warning",
        f"there are {said}; ask whether their outcomes are recorded at all, and leave those out whose are not",
        tested,
        round(low[0][0], 2),
        LEAST_RATIO,
    )


def expected_by_breslow(score: Floats, entry: Floats, days: Floats, event: Bools) -> Floats:
    """(n,) events that a Cox model expects of each row while it is at risk."""
    times, counts = np.unique(days[event], return_counts=True)
    factor = np.exp(score - score.mean())

    def until(moment: Floats) -> Floats:
        order = np.argsort(moment, kind="stable")
        total = np.r_[0.0, np.cumsum(factor[order])]
        return np.asarray(total[np.searchsorted(moment[order], times, side="left")])

    steps = np.r_[0.0, np.cumsum(counts / np.maximum(until(entry) - until(days), 1e-12))]
    seen, before = (np.searchsorted(times, x, side="right") for x in (days, entry))
    return np.asarray(factor * (steps[seen] - steps[before]))


def filled_backwards(data: AuditData) -> Finding:
    """Whether numbers known at the first prediction time are those that were measured next.

    A number equals the next one of its code more often across that moment than elsewhere over as long a gap. Codes with
    fewer than 20 distinct numbers are left out, whose numbers are often equal.
    """
    lines, rows = data.fitted.timelines, data.fitted.rows
    visit = np.repeat(np.arange(len(lines.start_us)), np.diff(lines.visit_offsets))
    some = np.flatnonzero(~np.isnan(lines.values[:, 0]))
    subject, token, value = lines.owner[visit[some]], lines.codes[some], lines.values[some, 0]
    order = np.lexsort((visit[some], token, subject))
    subject, token, value, at = subject[order], token[order], value[order], visit[some][order]
    next_is_own = (np.diff(subject) == 0) & (np.diff(token) == 0)
    k = np.flatnonzero(next_is_own)
    first_row = rows.row_offsets[:-1]
    has_row = np.diff(rows.row_offsets) > 0
    at_first = np.minimum(first_row, len(rows) - 1)
    partly = rows.unfinished_codes[at_first] > 0  # a visit that has begun
    known = np.where(has_row, rows.visits_before[at_first] + partly, 0)
    moment = (lines.subject_offsets[:-1] + known)[subject]  # visits before it are known
    crosses = (at[k] < moment[k]) & (at[k + 1] >= moment[k])
    gap = np.log2(1 + (lines.start_us[at[k + 1]] - lines.start_us[at[k]]) / DAY_US).astype(np.int64)
    equal, codes = value[k] == value[k + 1], token[k]
    tested = {"numbers": len(k), "codes": 0}
    found = list[tuple[float, float, int]]()
    for code in np.unique(codes[crosses]).tolist():
        own = codes == code
        if (
            len(np.unique(value[token == code])) < FEWEST_LEVELS
            or (own & crosses).sum() < FEWEST_PAIRS
        ):
            continue
        tested["codes"] += 1
        share, by_chance = across(equal[own], crosses[own], gap[own])
        error = np.sqrt(max(by_chance * (1 - by_chance), 0.01) / (own & crosses).sum())
        if share > SURE_SHARE and share - by_chance > BEYOND_CHANCE * error:
            found.append((share, by_chance, code))
    if not tested["codes"]:
        return Finding("not_tested", "no code has enough numbers", tested)
    if not found:
        return Finding("passed", "no number is the one that was measured next", tested)
    share, by_chance, code = max(found)
    carriers = len(np.unique(subject[token == code]))
    return Finding(
        "leak",
        f"{share:.0%} of the numbers of {data.code_name(code, carriers)} known at the first prediction time equal the "
        f"next one, and {by_chance:.0%} elsewhere over as long a gap: they were filled in from later; take what was "
        "measured",
        tested,
        round(share, 2),
        SURE_SHARE,
        tuple(code for *_, code in found),
    )


def across(equal: Bools, crosses: Bools, gap: Ints) -> tuple[float, float]:
    """Share of equal pairs across the moment, and elsewhere over gaps alike; a gap without others counts as equal."""
    share = np.ones(int(gap.max(initial=0)) + 1)
    for one in np.unique(gap).tolist():
        elsewhere = (gap == one) & ~crosses
        if elsewhere.sum() >= FEWEST_CARRIERS:
            share[one] = equal[elsewhere].mean()
    return float(equal[crosses].mean()), float(share[gap[crosses]].mean())


CHECKS = (
    Check(
        "events_by_level",
        "Do people with some code without a time have no events, as at a site that records none?",
        events_by_level,
    ),
    Check(
        "filled_backwards",
        "Are numbers known at the first prediction time those that were measured next?",
        filled_backwards,
    ),
)
