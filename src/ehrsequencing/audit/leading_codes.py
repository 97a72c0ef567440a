"""Looks for codes that stand in the last visit before an event, and nowhere else: written because of the event.

A visit counts where a prediction time sees it before the follow-up ends. The *zone* before the end of a follow-up is
its last visit at any lead, its last day, or its last week (with blanking, before the blanking). A code is suspicious
where it is more frequent in the zone before events than

- in the same subjects' other visits (Mantel–Haenszel, a stratum a subject), and
- in the zones of those who leave without the event (a stratum for visits of about the same number since the index),

both by an odds ratio of at least 10 and beyond chance. (One comparison is enough where nobody can be compared, if the
event follows nearly all visits with the code.) So a code that everybody has at the index, or at the end of follow-up,
is no finding.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, pdtr

from ehrsequencing.audit.data import FEWEST_CARRIERS, AuditData, Check, Finding
from ehrsequencing.core.arrays import Bools, Floats, Ints, ragged
from ehrsequencing.predictors.cox import CoxRegression, CoxRows
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import count_at_or_before

ZONES = {"the last one": None, "in the last day": 1.0, "in the last week": 7.0}
WAIT_DAYS = 1.0  # until a prediction time sees a visit
LEAST_ODDS_RATIO = 10.0
# of a code's visits, the last before the event at any lead: a leak
SURE_LAST, FEWEST_HOLDERS = 0.95, 20
_CARE = re.compile(
    r"hospice|palliat|comfort|resuscitat|\b(dnr|dni|dnar|cmo)\b|end of life|terminal care|withdraw",
    re.IGNORECASE,
)
SURE_SHARE = 0.9  # of a code's visits, followed by the event within a day or a week: a leak
NO_CHANCE = 0.01  # of each comparison
BY_CHANCE = 0.001  # how many codes may look like this in the clearer of both comparisons although they tell nothing
MOST_NAMED = 5
FEWEST_EVENTS, PAIRS = 20, 50_000
WINDOWS_DAYS = (30.0, 90.0, 365.0)
FEWER_ROWS, MORE_ROWS = 0.75, 0.9  # C of the number of rows before the event
ADVICE = (
    "ask how it comes to be recorded; if it is written because of the event, add it to the task's outcome or to "
    "visits.ignore, or set blanking"
)


@dataclass(frozen=True)
class _Visits:
    """Visits of the training and tuning subjects, N in all, and what followed them."""

    subject: Ints  # (N,)
    number: Ints  # (N,) 0 for the first since the index, 1, 2 to 3, 4 to 7 …
    is_last: Bools  # (N,) of its follow-up
    days: Floats  # (N,) to the event or the end of follow-up
    cause: Ints  # (N,) 0 without an event
    visit: Ints  # (P,) distinct pairs of a visit
    token: Ints  # (P,) … and a token

    @classmethod
    def of(cls, records: TaskRecords, families: Sequence[tuple[str, Ints]], size: int) -> "_Visits":
        """The visits; a family of codes is a token after the `size` codes."""
        timelines, rows = records.timelines, records.rows
        owner = timelines.owner
        place = np.arange(len(owner)) - timelines.subject_offsets[owner]
        seen_by = rows.visits_before.astype(np.int64)
        before, first = count_at_or_before(rows.subject, seen_by, owner, place)
        row = first + before  # the first that sees the visit
        has_row = row < rows.row_offsets[owner + 1]
        row[~has_row] = 0
        waited = (rows.prediction_us[row] - timelines.end_us) / DAY_US
        visit = np.flatnonzero(has_row & (waited <= WAIT_DAYS))
        row, owner, waited = row[visit], owner[visit], waited[visit]
        days = rows.duration_days[row] - rows.entry_days[row] + waited
        end_us = timelines.end_us[visit] + np.round(days * DAY_US)
        first_of_owner = np.searchsorted(owner, owner)
        since = np.arange(len(owner)) - first_of_owner
        has_next = (np.diff(owner) == 0) & (np.diff(end_us) <= DAY_US)
        codes, code_offsets = ragged(timelines.visit_offsets, visit)
        of_visit = np.repeat(np.arange(len(visit)), np.diff(code_offsets))
        token = timelines.codes[codes].astype(np.int64)
        stacked = [np.stack([of_visit, token])]
        for number, (_, members) in enumerate(families):
            some = of_visit[np.isin(token, members)]
            stacked.append(np.stack([some, np.full(len(some), size + number)]))
        pairs = np.unique(np.concatenate(stacked, axis=1), axis=1)
        return cls(
            owner,
            np.log2(since + 1).astype(np.int64),
            ~np.r_[has_next, False][: len(owner)],
            days,
            rows.cause[row].astype(np.int64),
            *pairs,
        )


def _compared(
    visits: _Visits, cases: Bools, controls: Bools, stratum: Ints, size: int
) -> tuple[Bools, Bools, Floats]:
    """Tokens that are more frequent in some visits than in others, by Mantel and Haenszel's odds ratio.

    Returns:
        (V,) by far more frequent; (V,) in too few cases to be compared, of strata that have both; (V,) the chance of
        so many cases with it.
    """
    strata = int(stratum.max(initial=-1)) + 1
    n1 = np.bincount(stratum[cases], minlength=strata)
    n0 = np.bincount(stratum[controls], minlength=strata)
    key = stratum[visits.visit] * size + visits.token
    used = (cases | controls)[visits.visit] & ((n1 > 0) & (n0 > 0))[stratum[visits.visit]]
    cells, place = np.unique(key[used], return_inverse=True)
    in_case = cases[visits.visit[used]]
    a = np.bincount(place, in_case, len(cells))
    c = np.bincount(place, ~in_case, len(cells))
    at, token = cells // size, cells % size
    total = n1[at] + n0[at]
    up = np.bincount(token, a * (n0[at] - c) / total, size)
    down = np.bincount(token, c * (n1[at] - a) / total, size)
    observed = np.bincount(token, a, size).astype(np.float64)
    expected = np.bincount(token, n1[at] * (a + c) / total, size)
    visits_with = np.bincount(token, a + c, size)
    # chance of so many or more: Hoeffding's bound, by a binomial tail with the same mean
    chance = betainc(
        np.maximum(observed, 1.0),
        visits_with - np.minimum(observed, visits_with) + 1.0,
        expected / np.maximum(visits_with, 1.0),
    )
    is_blind = observed < FEWEST_CARRIERS
    is_high = (up + 0.5 >= LEAST_ODDS_RATIO * (down + 0.5)) & (chance < NO_CHANCE)
    return is_high & ~is_blind, is_blind, np.where(is_blind, 1.0, chance)


def event_after_code(data: AuditData) -> Finding:
    """Compare the zones before each cause with other visits and with the zones of others."""
    size = len(data.vocabulary) + len(data.families)
    visits = _Visits.of(data.fitted, data.families, len(data.vocabulary))
    people = _people(visits, np.ones(len(visits.subject), np.bool_), size)
    leading = _leading(data, visits, size)
    with_event = max(
        len(np.unique(visits.subject[visits.cause == number]))
        for number in range(1, 1 + len(data.task.causes))
    )
    tested = {"visits": len(visits.subject), "codes": int((people >= FEWEST_CARRIERS).sum())}
    if with_event < FEWEST_CARRIERS:
        return Finding("not_tested", f"no cause has {FEWEST_CARRIERS} people with it", tested)
    if not leading:
        return Finding("passed", "no code stands just before events and seldom elsewhere", tested)
    gravest = {one[2]: one for one in sorted(leading)}
    codes = {token for token in gravest if token < len(data.vocabulary)}
    for token in gravest.keys() - codes:  # a family whose member is named adds nothing
        if codes & {*data.members([token])}:
            del gravest[token]
    ranked = sorted(gravest.values(), reverse=True)
    said = [f"{data.code_name(k, int(people[k]))} ({words})" for _, _, k, words in ranked]
    more = f" and {len(said) - MOST_NAMED:,} more" if len(said) > MOST_NAMED else ""
    return Finding(
        "leak" if ranked[0][0] else "warning",
        f"just before events, and seldom elsewhere, stand {', '.join(said[:MOST_NAMED])}{more}; {ADVICE}",
        tested,
        round(ranked[0][1], 2),
        SURE_SHARE,
        data.members(gravest),
    )


def _leading(data: AuditData, visits: _Visits, size: int) -> list[tuple[bool, float, int, str]]:
    """Suspicious tokens of each zone and cause: is it a leak, share, token, in words."""
    several = np.bincount(visits.subject)[visits.subject] > 1
    holders = _people(visits, several, size) >= FEWEST_HOLDERS

    def of_several(rows: Bools) -> Ints:
        return np.bincount(visits.token[(several & rows)[visits.visit]], minlength=size)

    # tokens that end the record of those without an event, too: discharge, last contact
    is_free = visits.cause == 0
    count = of_several(is_free)
    ends_records = (count >= FEWEST_CARRIERS) & (
        of_several(is_free & visits.is_last) > SURE_SHARE * count
    )
    every = np.maximum(of_several(np.ones_like(is_free)), 1)
    leading = list[tuple[bool, float, int, str]]()
    for number, cause in enumerate(data.task.causes, start=1):
        has_event = visits.cause == number
        for where, days in ZONES.items():
            zone = visits.is_last if days is None else visits.days <= days
            cases = zone & has_event
            own, no_own, chance = _compared(visits, cases, ~zone, visits.subject, size)
            others, no_others, chance_beside = _compared(
                visits, cases, zone & ~has_event, visits.number, size
            )
            # a visit counts one half where the follow-up ends
            known = 1.0 - 0.5 * (zone & is_free)
            seen = np.bincount(visits.token, known[visits.visit], size)
            share = np.bincount(visits.token, cases[visits.visit], size) / np.maximum(seen, 1.0)
            alone = (own & no_others) | (others & no_own)
            high = (own & others) | ((share > SURE_SHARE) & alone)
            high &= np.minimum(chance, chance_beside) * size < BY_CHANCE
            high &= _people(visits, cases, size) >= FEWEST_CARRIERS
            sure = share > SURE_SHARE
            if days is None:
                sure = holders & (of_several(zone & has_event) / every >= SURE_LAST)
            for token in np.flatnonzero(high & sure & ~ends_records).tolist():
                name = data.name_of(token).replace("_", " ")
                # care that changed because death was expected was known at the time, and is no leak
                sure[token] = _CARE.search(name) is None
            for token in np.flatnonzero(high).tolist():
                words = f"{share[token]:.0%} of its visits are {where} before {cause}"
                is_leak = bool(sure[token] and not ends_records[token])
                leading.append((is_leak, float(share[token]), token, words))
    return leading


def _people(visits: _Visits, chosen: Bools, size: int) -> Ints:
    """(V,) how many subjects have each token in the chosen visits."""
    some = chosen[visits.visit]
    pairs = np.unique(np.stack([visits.subject[visits.visit[some]], visits.token[some]]), axis=1)
    return np.bincount(pairs[1], minlength=size)


def row_density(data: AuditData) -> Finding:
    """Compare how many rows stand before each cause with the same time of others, who are followed for longer.

    The last day belongs to `event_after_code`. Sick people come more often: more rows alone are no finding.
    """
    rows, rng = data.fitted.rows, data.rng(31)
    first = rows.row_offsets[:-1][np.diff(rows.row_offsets) > 0]
    days, found = rows.duration_days[first], dict[str, tuple[float, float]]()
    for number, cause in enumerate(data.task.causes, start=1):
        cases = np.flatnonzero((rows.cause[first] == number) & (days > WAIT_DAYS))
        if len(cases) < FEWEST_EVENTS:
            continue
        case, other = rng.choice(cases, PAIRS), rng.integers(0, len(first), PAIRS)
        case, other = np.stack([case, other])[:, days[other] > days[case]]
        for window in WINDOWS_DAYS if len(case) else ():  # else nobody is followed for longer
            own, theirs = (
                _rows_before(data.fitted, first[people], days[case] - WAIT_DAYS, window)
                for people in (case, other)
            )
            more = float(np.mean(own > theirs) + np.mean(own == theirs) / 2)
            where = f"rows in the {window:.0f} days before {cause}"
            found |= {f"more {where}": (more, MORE_ROWS), f"fewer {where}": (1 - more, FEWER_ROWS)}
    tested = {"subjects": len(first)}
    if not found:
        return Finding("not_tested", f"no cause has {FEWEST_EVENTS} people with it", tested)
    words, (c, bound) = max(found.items(), key=lambda one: one[1][0] - one[1][1])
    said = f"{words} than at that time of people followed for longer, with a C of {c:.2f}"
    if c <= bound:
        return Finding("passed", said, tested, round(c, 2), bound)
    advice = (
        "rows may be missing, or were added, because of it: ask until when whose records were kept"
    )
    return Finding("warning", f"{said}; {advice}", tested, round(c, 2), bound)


def _rows_before(records: TaskRecords, first: Ints, days: Floats, window_days: float) -> Ints:
    """(P,) tokens in the last days before some days after the first prediction times `first`."""
    timelines, subject = records.timelines, records.rows.subject[first]
    end_us = records.rows.prediction_us[first] + np.round(days * DAY_US).astype(np.int64)
    start_us = end_us - round(window_days * DAY_US)
    until, visit = count_at_or_before(timelines.owner, timelines.end_us, subject, end_us)
    since, _ = count_at_or_before(timelines.owner, timelines.end_us, subject, start_us)
    return timelines.visit_offsets[visit + until] - timelines.visit_offsets[visit + since]


# ---- events by level of a code, and numbers that are those measured later ------------------------------------------

FEWEST_EXPECTED = 10.0  # events of a level, of which fewer than a tenth were seen
LEAST_RATIO, RARE_CHANCE = 0.1, 1e-4
FEWEST_LEVELS = 20  # distinct numbers of a code: of fewer, two are often equal
FEWEST_PAIRS = 20
# of numbers that equal the next one, and by how many standard errors
SURE_EQUAL, BEYOND_CHANCE = 0.5, 5.0


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
            if due >= FEWEST_EXPECTED and pdtr(seen, due) < RARE_CHANCE:
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
        if share > SURE_EQUAL and share - by_chance > BEYOND_CHANCE * error:
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
        SURE_EQUAL,
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
    Check(
        "event_after_code",
        "Does a code stand just before the event, and seldom elsewhere?",
        event_after_code,
    ),
    Check(
        "row_density",
        "Are there fewer rows before the event than of others, or far more?",
        row_density,
    ),
)
