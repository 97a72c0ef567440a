"""Checks that every input was known at its prediction time: prepared arrays against their stamps and the records."""

import numpy as np

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding, count_text, judge, no_source
from ehrsequencing.audit.source import Source
from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, Ints32
from ehrsequencing.records.codes import CodeMatcher, split_condition
from ehrsequencing.records.encoding import MAX_AGE_YEARS
from ehrsequencing.records.events import DAY_US, STATIC, Events
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.records.visits import count_at_or_before
from ehrsequencing.records.vocabulary import SUMMARIES

# relative to max(1, |number|): ages, gaps, ranks and values are stored in float32
NUMBERS_DIFFER = 1e-4
MAX_TOKENS = 5_000  # of one subject, compared with its events
_US_PER_YEAR = 365.25 * DAY_US


def stamps(data: AuditData) -> Finding:
    """Every visit that a prediction time sees has ended by then; a visit's own prediction time is its end.

    A query may see part of one more visit, which has begun by then.
    """
    late = misplaced = total = 0
    for name in SPLITS:
        records = data.records[name]
        timelines, rows = records.timelines, records.rows
        first, seen, p = _views(records)
        end, start = timelines.end_us, timelines.start_us
        unsorted = (np.diff(timelines.owner) == 0) & (np.diff(end) < 0)
        late += int(unsorted.sum()) + int((start > end).sum())
        last = np.where(
            seen > 0,
            end[np.clip(first + seen - 1, 0, len(end) - 1)] if len(end) else STATIC,
            STATIC,
        )
        beyond = first + seen > timelines.subject_offsets[rows.subject + 1]
        late += int(((last > p) | beyond).sum())
        late += int(((rows.unfinished_codes > 0) & ~_lies_in_next_visit(records)).sum())
        misplaced += int((~rows.is_query & (last != p)).sum())
        misplaced += int((rows.index_us > p).sum())
        total += len(p)
    what = "prediction times see a visit that had not ended"
    clean = "every visit that is seen had ended"
    finding = judge(late, of=total, what=what, clean=clean, tested={"rows": total})
    if finding.verdict == "passed" and misplaced:
        what = "prediction times are not at the end of their visit"
        return judge(misplaced, of=total, what=what, clean=clean, tested={"rows": total})
    return finding


def _lies_in_next_visit(records: TaskRecords) -> Bools:
    """Which rows are queries in the visit after those that had ended, and see no more codes than it has."""
    timelines, rows = records.timelines, records.rows
    first, seen, p = _views(records)
    following = first + seen
    out = rows.is_query & (following < timelines.subject_offsets[rows.subject + 1])
    row, visit = np.flatnonzero(out), following[out]
    out[row] = (timelines.start_us[visit] <= p[row]) & (p[row] < timelines.end_us[visit])
    out[row] &= rows.unfinished_codes[row] <= np.diff(timelines.visit_offsets)[visit]
    return out


def tokens_in_records(data: AuditData) -> Finding:
    """Each token of a visible visit has an event in the records, stamped within the visit; each static one, a row."""
    if data.source is None:
        return no_source(data)
    unexplained = later = static = total = subjects = 0
    for name in SPLITS:
        for subject in data.sample[name].tolist():
            found = _explain(data, data.source, data.records[name], subject)
            subjects += 1
            unexplained, later, static, total = (
                a + b for a, b in zip((unexplained, later, static, total), found, strict=True)
            )
    tested = {"subjects": subjects, "tokens": total}
    parts = [
        f"{count_text(n)} {what}"
        for n, what in (
            (later, "are in a visit that ended before they were recorded"),
            (unexplained, "have no event in the records"),
            (static, "are said to have no time, and have no such row in the records"),
        )
        if n
    ]
    bad = unexplained + later + static
    what = f"tokens do not follow from the records: {', '.join(parts)}"
    clean = "every token comes from an event that was recorded within its visit"
    return judge(bad, of=total, what=what, clean=clean, tested=tested)


def _explain(
    data: AuditData, source: Source, records: TaskRecords, subject: int
) -> tuple[int, int, int, int]:
    """Tokens of one subject: without an event, with a later one only, static without a row; and how many in all."""
    timelines, rows = records.timelines, records.rows
    events = source.records[int(timelines.subject_id[subject])]
    event, token, number = _encoded(data, source, events)
    time_us = events.time_us[event]
    first, last_row = (
        int(timelines.subject_offsets[subject]),
        int(rows.row_offsets[subject + 1]) - 1,
    )
    stop = first + int(rows.visits_before[last_row])
    low, high = int(timelines.visit_offsets[first]), int(timelines.visit_offsets[stop])
    high = min(high, low + MAX_TOKENS)
    of_token: dict[int, Ints] = {
        int(code): np.flatnonzero((token == code) & (time_us != STATIC))
        for code in np.unique(token)
    }
    visit = np.searchsorted(timelines.visit_offsets, np.arange(low, high), side="right") - 1
    nowhere = late = 0
    for k, v in zip(range(low, high), visit.tolist(), strict=True):
        place = of_token.get(int(timelines.codes[k]), np.zeros(0, np.int64))
        rank = float(timelines.values[k, 0])
        same = (
            np.isnan(number[place])
            if np.isnan(rank)
            else np.abs(number[place] - rank) <= NUMBERS_DIFFER
        )
        moment = time_us[place[same]]
        if not np.any((moment >= timelines.start_us[v]) & (moment <= timelines.end_us[v])):
            late, nowhere = late + bool(np.any(moment > timelines.end_us[v])), nowhere + 1
    a, b = int(timelines.static_offsets[subject]), int(timelines.static_offsets[subject + 1])
    still = set(token[time_us == STATIC].tolist())
    wrong_static = sum(code not in still for code in timelines.static_codes[a:b].tolist())
    return nowhere - late, late, wrong_static, high - low + b - a


def _encoded(data: AuditData, source: Source, events: Events) -> tuple[Ints, Ints, Floats32]:
    """Event, token and rank of each token that the vocabulary makes of a record."""
    vocabulary, every = data.vocabulary, np.arange(len(events))
    if not len(events):
        return every, every, np.zeros(0, np.float32)
    chosen = every[~source.excluded.mask(events.codes)[events.code]]
    keeps = vocabulary.keeps_number(events.codes)[events.code[chosen]]
    token, numbers = vocabulary.encode_values(
        vocabulary.ids(events.codes)[events.code[chosen]],
        np.where(keeps, events.value[chosen], np.nan),
    )
    return chosen, token.astype(np.int64), numbers[:, 0]


def summaries(data: AuditData) -> Finding:
    """The summaries that a query carries, computed again by simple loops from the events stamped up to its moment."""
    settings = data.vocabulary.settings
    if not settings.carry or settings.mode == "none":
        return Finding("not_tested", "this run carries no summaries of the past")
    if data.source is None:
        return no_source(data)
    wrong = total = summed = 0
    for name in SPLITS:
        timelines, rows = data.records[name].timelines, data.records[name].rows
        for subject in data.sample[name].tolist():
            events = data.source.records[int(timelines.subject_id[subject])]
            numeric = _numeric(data, data.source, events)
            for row in range(int(rows.row_offsets[subject]), int(rows.row_offsets[subject + 1])):
                a, b = int(rows.carry_offsets[row]), int(rows.carry_offsets[row + 1])
                found = _sorted(rows.carry_codes[a:b], rows.carry_values[a:b])
                expected = np.zeros((0, 3))
                if rows.is_query[row]:
                    expected = _summaries_at(data, events, numeric, int(rows.prediction_us[row]))
                    total, summed = total + 1, summed + b - a
                wrong += found.shape != expected.shape or bool(np.any(_differ(found, expected)))
    tested = {"queries": total, "summaries": summed}
    if not summed and not wrong:
        return Finding("not_tested", "no sampled query carries a summary", tested)
    what = "queries carry summaries that the record until then does not give"
    clean = "every summary follows from the record until then"
    return judge(wrong, of=max(total, wrong), what=what, clean=clean, tested=tested)


def _numeric(data: AuditData, source: Source, events: Events) -> dict[int, Ints]:
    """Events with a number, by the token that has summaries."""
    if not len(events):
        return {}
    token = data.vocabulary.ids(events.codes)[events.code]
    usable = (data.vocabulary.summary_tokens[token, SUMMARIES.index("LAST")] >= 0) & ~np.isnan(
        events.value
    )
    usable &= data.vocabulary.keeps_number(events.codes)[events.code]
    usable &= (events.time_us != STATIC) & ~source.excluded.mask(events.codes)[events.code]
    return {
        int(code): np.flatnonzero(usable & (token == code)) for code in np.unique(token[usable])
    }


def _summaries_at(
    data: AuditData, events: Events, numeric: dict[int, Ints], moment_us: int
) -> Floats:
    names, numbers = list[int](), list[float]()
    for code, place in numeric.items():
        known = place[events.time_us[place] <= moment_us]
        if len(known):
            values = events.value[known].astype(np.float64)
            since = (moment_us - int(events.time_us[known[-1]])) / DAY_US
            made = {
                "LAST": values[-1],
                "FIRST": values[0],
                "MEAN": values.mean(),
                "MIN": values.min(),
                "MAX": values.max(),
                "SINCE": since,
                "COUNT": float(len(values)),
            }
            names += data.vocabulary.summary_tokens[code].tolist()
            numbers += [float(made[s]) for s in SUMMARIES]
    return _sorted(
        *data.vocabulary.encode_values(np.array(names, dtype=np.int32), np.array(numbers))
    )


def _sorted(codes: Ints32, values: Floats32) -> Floats:
    table = np.column_stack([codes, values]).astype(np.float64).reshape(len(codes), 3)
    return table[np.lexsort((table[:, 1], table[:, 0]))]


def _differ(found: Floats, expected: Floats) -> Bools:
    """Which numbers differ; both NaN is equal."""
    apart = np.abs(found - expected) > NUMBERS_DIFFER * np.maximum(1.0, np.abs(expected))
    return np.asarray(apart | (np.isnan(found) != np.isnan(expected)))


def time_signals(data: AuditData) -> Finding:
    """Ages and gaps of visits and queries, computed again from the stamps."""
    wrong = total = 0
    for name in SPLITS:
        records = data.records[name]
        timelines, rows = records.timelines, records.rows
        start, end = timelines.start_us, timelines.end_us
        owner = timelines.owner
        birth = timelines.birth_us[owner]
        has_previous = np.r_[False, np.diff(owner) == 0][: len(owner)]
        gap = np.zeros(len(start))
        gap[1:] = np.maximum(start[1:] - end[:-1], 0) / DAY_US
        gap[~has_previous] = 0.0
        wrong += int(_differ(timelines.delta_days.astype(np.float64), gap).sum())
        wrong += int(_differ(timelines.age_years.astype(np.float64), _age(start, birth)).sum())

        first, seen, p = _views(records)
        last = end[np.clip(first + seen - 1, 0, len(end) - 1)] if len(end) else p
        since = np.where(seen > 0, (p - last) / DAY_US, 0.0)
        stored, inside = rows.delta_days.astype(np.float64), (rows.unfinished_codes > 0)
        wrong += int(_differ(stored, since)[~inside].sum())
        # The time since an event of a visit is not longer than since the start of that visit.
        begun_us = start.take((first + seen)[inside], mode="clip")
        wrong += int(
            (
                (stored[inside] < 0)
                | (stored[inside] > (p[inside] - begun_us) / DAY_US + NUMBERS_DIFFER)
            ).sum()
        )
        wrong += int(
            _differ(
                rows.age_years.astype(np.float64), _age(p, timelines.birth_us[rows.subject])
            ).sum()
        )
        total += 2 * (len(start) + len(p))
    what = "ages and gaps are not those of the stamps"
    clean = "every age and gap is that of the stamps up to its visit"
    return judge(wrong, of=total, what=what, clean=clean, tested={"numbers": total})


def _age(moment_us: Ints, birth_us: Ints) -> Floats:
    known = birth_us != STATIC
    age = np.full(len(moment_us), np.nan)
    age[known] = (moment_us[known] - birth_us[known]) / _US_PER_YEAR
    return np.where((age > MAX_AGE_YEARS) | (age < 0), np.nan, age)


def outcome_in_input(data: AuditData) -> Finding:
    """Codes of the outcome, or of a competing cause, in visits after the index that an at-risk row sees.

    First by the names of the tokens, for everybody. An outcome's code may also be written under another name: that of
    the parent to which it is rolled up, or the unknown token of its type. Such a token is compared with the records.
    """
    parents = data.source.parents if data.source is not None else {}
    ending = data.task.competing if data.task.recurrent else data.task.patterns
    patterns = [
        pattern for some in ending.values() for pattern in some if split_condition(pattern) is None
    ]
    matcher = CodeMatcher(patterns, parents=parents)
    matches = np.zeros(len(data.vocabulary), dtype=bool)  # what is unknown has no name of its own
    matches[list(data.vocabulary.index.values())] = matcher.mask(data.vocabulary.codes)
    matches = matches[data.base_token]
    tested, bad, still = {"rows": 0}, 0, 0
    for name in SPLITS:
        records = data.records[name]
        timelines, rows = records.timelines, records.rows
        first, seen, _ = _views(records)
        up_to_index = _up_to_index(records)
        hits = np.r_[0, np.cumsum(matches[timelines.codes])][timelines.visit_offsets]
        bad += int((hits[first + seen] > hits[np.minimum(first + up_to_index, first + seen)]).sum())
        of_static = np.r_[0, np.cumsum(matches[timelines.static_codes])][timelines.static_offsets]
        still += int((np.diff(of_static)[rows.subject] > 0).sum())
        tested["rows"] += len(rows)
    if still and not bad:
        what = "prediction times see a code of the outcome among the codes without a time"
        return judge(still, of=tested["rows"], what=what, clean="", tested=tested)
    if data.source is None:
        if not bad and (data.vocabulary.rollup or any(p.startswith("under:") for p in patterns)):
            return no_source(data)
    elif not bad:
        finding = _outcome_by_another_name(data, data.source, matcher, matches)
        if finding is not None:
            return finding
    what = "at-risk prediction times see a code of the outcome after the index"
    clean = "no at-risk prediction time sees a code of an outcome after its index"
    return judge(bad, of=tested["rows"], what=what, clean=clean, tested=tested)


def _up_to_index(records: TaskRecords) -> Ints:
    """(R,) how many visits of each row's subject had ended by the index."""
    timelines, rows = records.timelines, records.rows
    return count_at_or_before(timelines.owner, timelines.end_us, rows.subject, rows.index_us)[0]


def _outcome_by_another_name(
    data: AuditData, source: Source, outcome: CodeMatcher, named: Bools
) -> Finding | None:
    """Tokens that an outcome shares with other codes, except `named`: after the index, each needs one of those."""
    vocabulary = data.vocabulary
    codes = tuple(code for code in source.codes if outcome(code) and not source.excluded(code))
    shared = np.zeros(len(vocabulary), dtype=bool)
    shared[vocabulary.ids(codes)] = True
    shared &= ~named
    if not shared.any():
        return None
    alone = total = subjects = 0
    for name in SPLITS:
        timelines, rows = data.records[name].timelines, data.records[name].rows
        up_to_index = _up_to_index(data.records[name])
        for subject in data.sample[name].tolist():
            low, high = int(rows.row_offsets[subject]), int(rows.row_offsets[subject + 1])
            start = int(timelines.subject_offsets[subject])
            visits = (
                start + int(up_to_index[low:high].min()),
                start + int(rows.visits_before[high - 1]),
            )
            events = source.records[int(timelines.subject_id[subject])]
            found = _without_another_cause(data, source, timelines, visits, events, outcome, shared)
            alone, total, subjects = alone + found[0], total + found[1], subjects + 1
    if not alone:
        return None
    tested = {"subjects": subjects, "tokens": total}
    what = "tokens that the outcome shares with other codes come from the outcome alone, in visits that at-risk "
    return judge(alone, of=total, what=f"{what}prediction times see", clean="", tested=tested)


def _without_another_cause(
    data: AuditData,
    source: Source,
    timelines: Timelines,
    visits: tuple[int, int],
    events: Events,
    outcome: CodeMatcher,
    shared: Bools,
) -> tuple[int, int]:
    """Shared tokens in some visits of a subject without an event of another code in the visit; and how many in all."""
    low, high = (int(timelines.visit_offsets[visit]) for visit in (visits[0], max(visits)))
    base = data.base_token[timelines.codes[low:high]]
    place = np.flatnonzero(shared[base])[:MAX_TOKENS]
    if not len(place):
        return 0, 0
    event, token, _ = _encoded(data, source, events)
    token = data.base_token[token]
    other = shared[token] & ~outcome.mask(events.codes)[events.code[event]]
    token, moment = token[other], events.time_us[event[other]]
    visit = np.searchsorted(timelines.visit_offsets, low + place, side="right") - 1
    explained = [
        bool(
            np.any(
                (token == base[k])
                & (moment >= timelines.start_us[v])
                & (moment <= timelines.end_us[v])
            )
        )
        for k, v in zip(place.tolist(), visit.tolist(), strict=True)
    ]
    return len(place) - sum(explained), len(place)


def _views(records: TaskRecords) -> tuple[Ints, Ints, Ints]:
    """First visit of each row's subject, how many visits the row sees, and its moment."""
    return (
        records.first_visit,
        records.rows.visits_before.astype(np.int64),
        records.rows.prediction_us,
    )


CHECKS = (
    Check("stamps", "Had every visit that a prediction uses ended by the prediction time?", stamps),
    Check(
        "tokens_in_records",
        "Had every code been recorded by the time the model uses it?",
        tokens_in_records,
    ),
    Check("summaries", "Do summaries (last value, mean …) stop at the prediction time?", summaries),
    Check(
        "time_signals",
        "Are ages and time gaps those of the past, not of the next visit?",
        time_signals,
    ),
    Check(
        "outcome_in_input",
        "Is the outcome itself, under any of its codes, among the inputs?",
        outcome_in_input,
    ),
)
