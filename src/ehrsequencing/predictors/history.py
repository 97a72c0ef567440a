"""History features of the baselines: what is known at a prediction time, as one row of numbers.

A row at p sees the subject's static codes and the visits with `end ≤ p` (`TaskRows.visits_before` counts them); where p
lies in a visit, that visit's codes stamped ≤ p too, as one more visit; and nothing else. Summaries of a code run along
the subject's record, so that a row costs the same at the thousandth visit as at the first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats, Floats32, Ints, Ints32, offsets, ragged
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords, Timelines, as_of, joined
from ehrsequencing.records.vocabulary import Vocabulary

Pair = tuple[int, int]

TIMING = (
    "age_years",
    "days_since_index",
    "days_since_visit",
    "days_between_visits",
    "visits",
    "is_query",
)
OF_CODE = ("count", "days_since")  # of every code, and of every pair of codes that share a visit
OF_NUMBER = ("last", "mean", "min", "max")  # of a code with numbers: ranks among training values
CHUNK_ITEMS = 500_000  # tokens, or rows, held at a time
MOST_CHOOSING = 20_000  # training subjects by whom pairs are chosen, spread evenly over all
AGE_KNOTS_YEARS = (40.0, 60.0, 75.0)
SOME_ROWS = 8  # rows for each person wanted that `has_people` looks at first


@dataclass(frozen=True)
class FeatureSpec:
    """Which features a row has. Chosen on training subjects."""

    codes: tuple[int, ...]  # token ids of the codes that are summarised
    numeric: tuple[int, ...]  # those of them that carry numbers
    static_codes: tuple[int, ...]  # token ids of the static codes, one column each
    names: tuple[str, ...]  # (F,) name of every feature, such as `last LAB//BUN`
    pairs: tuple[Pair, ...] = ()  # pairs of those codes whose common visits are summarised

    def __len__(self) -> int:
        return len(self.names)


def fit_feature_spec(
    records: TaskRecords,
    vocabulary: Vocabulary,
    *,
    max_codes: int = 200,
    max_static_codes: int = 50,
    max_pairs: int = 0,
    enough: int = 1,
) -> FeatureSpec:
    """Choose the codes, and the pairs of codes in one visit, that most training subjects have by their last row.

    Args:
        records: Visits and prediction times of the training subjects.
        vocabulary: Names the features and says which codes carry numbers. Unknown tokens are never chosen: they stand
            for different codes in different data.
        max_codes: Timed codes at most; ties go to the smaller token id.
        max_static_codes: Static codes at most.
        max_pairs: Pairs at most. No outcome is looked at.
        enough: Training subjects that a code or a pair needs.
    """
    counts = np.zeros(len(vocabulary), dtype=np.int64)
    static_counts = np.zeros(len(vocabulary), dtype=np.int64)
    bounds = records.rows.row_offsets
    last_row = bounds[1:][np.diff(bounds) > 0] - 1  # in time order: it has seen the most visits
    for chosen in _chunks(records, last_row):
        every, subject, visits = _records_until(records, chosen)
        part = every.take(subject)
        known = _before(part, visits)
        owner = np.repeat(part.owner, np.diff(part.visit_offsets))
        counts += _subjects_with(owner[known], part.codes[known], len(vocabulary))
        static_counts += _subjects_with(part.static_owner, part.static_codes, len(vocabulary))
    codes = _most_frequent(counts, vocabulary, max_codes, enough)
    static = _most_frequent(static_counts, vocabulary, max_static_codes, enough)
    has_numbers = vocabulary.settings.mode in ("polynomial", "interpolate")
    numeric = tuple(code for code in codes if has_numbers and vocabulary.scale[code] >= 0)
    names = [*TIMING, *(f"static {vocabulary.tokens[code]}" for code in static)]
    for code in codes:
        of_code = OF_CODE + (OF_NUMBER if code in numeric else ())
        names += [f"{summary} {vocabulary.tokens[code]}" for summary in of_code]
    pairs = tuple[Pair, ...]()
    if max_pairs:
        step = max(1, -(-len(last_row) // MOST_CHOOSING))
        subjects = np.zeros((len(codes), len(codes)), dtype=np.int64)
        for chosen in _chunks(records, last_row[::step]):
            every, subject, visits = _records_until(records, chosen)
            part = every.take(subject)
            subjects += shared_visits(part, _before(part, visits), codes)
        # those that most subjects have in a visit; ties go to the smaller ids
        one, other = np.triu_indices(len(codes), 1)
        count = subjects[one, other]
        most = np.argsort(-count, kind="stable")[:max_pairs]
        most = most[count[most] >= enough]
        pairs = tuple((codes[one[k]], codes[other[k]]) for k in most)
    for first, second in pairs:
        pair = f"{vocabulary.tokens[first]} + {vocabulary.tokens[second]}"
        names += [f"{summary} {pair}" for summary in OF_CODE]
    return FeatureSpec(codes, numeric, static, tuple(names), pairs)


def history_features(records: TaskRecords, *, chosen: Ints, columns: FeatureSpec) -> Floats32:
    """Features of some prediction times, from what was known at each.

    - `age_years` at p, `days_since_index`, `days_since_visit` (0 at a visit's own end), `days_between_visits` (the last
      known visit and the one before), `visits` so far, `is_query`;
    - `static CODE`: 1 or 0;
    - `count CODE` so far, and `days_since CODE`: from the end of its last visit;
    - `count A + B`: visits so far that held both codes, and `days_since A + B`: from the end of the last of them;
    - `last`, `mean`, `min`, `max CODE`: of the numbers so far, as ranks among training values (sd 1).

    Args:
        records: Visits and prediction times; may be memory-mapped, and are read in chunks of whole subjects.
        chosen: (r,) row numbers, in any order.
        columns: Which features.

    Returns:
        (r, F) float32; NaN = not known.
    """
    out = np.empty((len(chosen), len(columns)), dtype=np.float32)
    order = np.argsort(chosen, kind="stable")
    done = 0
    for part in _chunks(records, chosen[order]):
        where = order[done : done + len(part)]
        out[where] = _features(records, part, columns)
        done += len(part)
    return out


def _features(records: TaskRecords, chosen: Ints, columns: FeatureSpec) -> Floats32:
    """Features of one chunk of rows, sorted; its subjects fit in memory."""
    rows = records.rows
    part, subject, visits = _records_until(records, chosen)
    prediction_us = rows.prediction_us[chosen]
    first_visit = part.subject_offsets[subject]
    stop_visit = first_visit + visits  # visits [first, stop) are known
    seen = stop_visit > first_visit

    out = np.full((len(chosen), len(columns)), np.nan, dtype=np.float32)
    out[:, 0] = rows.age_years[chosen]
    out[:, 1] = (prediction_us - rows.index_us[chosen]) / DAY_US
    out[seen, 2] = (prediction_us[seen] - part.end_us[stop_visit[seen] - 1]) / DAY_US
    again = stop_visit > first_visit + 1
    out[again, 3] = part.delta_days[stop_visit[again] - 1]
    out[:, 4] = stop_visit - first_visit
    out[:, 5] = rows.is_query[chosen]
    column = len(TIMING) + len(columns.static_codes)
    out[:, len(TIMING) : column] = has_static(part, columns.static_codes)[subject]

    def count_and_since(visit: Ints) -> Floats32:
        """(r, 2) how many of these visits (rising) a row knows, and the days since the last of them, NaN without."""
        first, stop = np.searchsorted(visit, first_visit), np.searchsorted(visit, stop_visit)
        numbers, has = np.full((len(chosen), 2), np.nan, dtype=np.float32), stop > first
        numbers[:, 0] = stop - first
        numbers[has, 1] = (prediction_us[has] - part.end_us[visit[stop[has] - 1]]) / DAY_US
        return numbers

    for code, visit, value in _occurrences(part, columns.codes):
        out[:, column : column + len(OF_CODE)] = count_and_since(visit)
        column += len(OF_CODE)
        if code in columns.numeric:
            is_number = ~np.isnan(value)
            visit, number = visit[is_number], value[is_number].astype(np.float64)
            begin, end = np.searchsorted(visit, first_visit), np.searchsorted(visit, stop_visit)
            new_subject = np.r_[True, np.diff(part.owner[visit]) != 0][: len(visit)]
            out[:, column : column + len(OF_NUMBER)] = _running(
                number, np.cumsum(new_subject) - 1, begin, end
            )
            column += len(OF_NUMBER)
    # pairs come last; the visits that hold both codes, each once
    paired = sorted({code for pair in columns.pairs for code in pair})
    holding = {code: np.unique(visit) for code, visit, _ in _occurrences(part, tuple(paired))}
    for one, other in columns.pairs:
        shared = np.intersect1d(holding[one], holding[other], assume_unique=True)
        out[:, column : column + len(OF_CODE)] = count_and_since(shared)
        column += len(OF_CODE)
    return out


def _records_until(records: TaskRecords, chosen: Ints) -> tuple[Timelines, Ints, Ints]:
    """What some rows see: records, the record of each row, and how many of its visits are known.

    A query that lies in a visit has a record of its own, which ends at its moment.
    """
    rows = records.rows
    subjects, subject = np.unique(rows.subject[chosen], return_inverse=True)
    part, visits = records.timelines.take(subjects), rows.visits_before[chosen].astype(np.int64)
    codes = rows.unfinished_codes[chosen].astype(np.int64)
    inside = np.flatnonzero(codes)
    if len(inside):
        row = chosen[inside]
        known_us = rows.prediction_us[row] - np.round(rows.delta_days[row] * float(DAY_US)).astype(
            np.int64
        )
        cut = as_of(
            part,
            subject[inside],
            visits=visits[inside],
            unfinished_codes=codes[inside],
            end_us=known_us,
        )
        part, subject[inside] = joined([part, cut]), len(subjects) + np.arange(len(inside))
        visits[inside] += 1
    return part, subject, visits


def _running(value: Floats, group: Ints, first: Ints, stop: Ints) -> Floats32:
    """Last, mean, min and max of `value[first:stop]`, each span starting where its group starts; NaN if empty.

    The running minimum of every group in one pass: dense ranks are lowered by more than their range from group to
    group, so that the minimum never carries over; and the maximum alike.
    """
    out = np.full((len(first), 4), np.nan, dtype=np.float32)
    has = stop > first
    if not has.any():
        return out
    levels, rank = np.unique(value, return_inverse=True)
    shift = len(levels) * group
    lowest = levels[np.minimum.accumulate(rank - shift) + shift]
    highest = levels[np.maximum.accumulate(rank + shift) - shift]
    total = np.r_[0.0, np.cumsum(value)]
    at = stop[has] - 1
    out[has, 0] = value[at]
    out[has, 1] = (total[stop[has]] - total[first[has]]) / (stop[has] - first[has])
    out[has, 2] = lowest[at]
    out[has, 3] = highest[at]
    return out


def _occurrences(part: Timelines, codes: tuple[int, ...]) -> Iterator[tuple[int, Ints, Floats32]]:
    """Each code with the visits that hold it (rising, repeats kept) and its numbers there."""
    column = column_of(part, codes)[part.codes]
    token = np.flatnonzero(column >= 0)
    # a stable sort, in which a visit's tokens stay in the order of their times
    token = token[np.argsort(column[token], kind="stable")]
    bounds = offsets(column[token].astype(np.int64), len(codes))
    visit = np.searchsorted(part.visit_offsets, token, side="right") - 1
    value = part.values[token, 0]
    for position, code in enumerate(codes):
        span = slice(bounds[position], bounds[position + 1])
        yield code, visit[span], value[span]


def has_static(timelines: Timelines, codes: Sequence[int]) -> Floats32:
    """(S, C) 1 where the subject has the static code, else 0."""
    owner, out = timelines.static_owner, np.zeros((len(timelines), len(codes)), dtype=np.float32)
    for column, code in enumerate(codes):
        out[owner[timelines.static_codes == code], column] = 1.0
    return out


def _chunks(records: TaskRecords, chosen: Ints) -> Iterator[Ints]:
    """Cut sorted row numbers into runs of whole subjects of at most `CHUNK_ITEMS` tokens and rows (or one subject)."""
    if not len(chosen):
        return
    subject, timelines = records.rows.subject[chosen], records.timelines
    first = np.flatnonzero(np.r_[True, subject[1:] != subject[:-1]])
    tokens = timelines.visit_offsets[timelines.subject_offsets]
    size = np.diff(tokens)[subject[first]] + np.diff(np.r_[first, len(chosen)])
    start, held = 0, 0
    for row, items in zip(first.tolist(), size.tolist(), strict=True):
        if row > start and held + items > CHUNK_ITEMS:
            yield chosen[start:row]
            start, held = row, 0
        held += items
    yield chosen[start:]


def _before(part: Timelines, visits_before: Ints) -> Ints:
    """Tokens of the first `visits_before` visits of each subject."""
    known = np.arange(len(part.start_us)) < (part.subject_offsets[:-1] + visits_before)[part.owner]
    return ragged(part.visit_offsets, np.flatnonzero(known))[0]


def _subjects_with(owner: Ints, codes: Ints32, size: int) -> Ints:
    """Number of distinct owners of each code."""
    pairs = np.unique(owner * size + codes)
    return np.bincount(pairs % size, minlength=size)


def _most_frequent(
    counts: Ints, vocabulary: Vocabulary, limit: int, enough: int
) -> tuple[int, ...]:
    """Known tokens by falling count, those that too few have left out; in the order of their ids."""
    counts = np.where(np.arange(len(counts)) < vocabulary.n_unknown, 0, counts)
    ranked = np.argsort(-counts, kind="stable")[:limit]
    return tuple(sorted(ranked[counts[ranked] >= max(enough, 1)].tolist()))


def shared_visits(part: Timelines, known: Ints, codes: Sequence[int]) -> Ints:
    """How many subjects have two codes in one visit.

    A subject costs (visits × codes²) multiplications of 0 and 1 at most, however many codes its visits hold.

    Args:
        part: Visits of some subjects.
        known: Positions of the tokens that count, rising.
        codes: (C,) token ids that may make a pair.

    Returns:
        (C, C), symmetric, 0 on the diagonal.
    """
    column = column_of(part, codes)[part.codes[known]]
    token, column = known[column >= 0], column[column >= 0].astype(np.int64)
    visit = np.searchsorted(part.visit_offsets, token, side="right") - 1
    bounds = np.searchsorted(visit, part.subject_offsets)
    out = np.zeros((len(codes), len(codes)), dtype=np.int64)
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if stop - start < 2:
            continue
        own, place = np.unique(column[start:stop], return_inverse=True)
        held = np.zeros((int(visit[stop - 1] - visit[start]) + 1, len(own)), dtype=np.float32)
        held[visit[start:stop] - visit[start], place] = 1.0
        out[own[:, None], own] += held.T @ held > 0
    np.fill_diagonal(out, 0)
    return out


def column_of(part: Timelines, codes: Sequence[int]) -> Ints32:
    """Column of each token id among some codes, -1 for the others."""
    out = np.full(
        max(int(part.codes.max(initial=0)), max(codes, default=0)) + 1, -1, dtype=np.int32
    )
    out[list(codes)] = np.arange(len(codes))
    return out


def has_people(owner: Ints, enough: int) -> bool:
    """Whether rows are of at least so many people; most often a few of them show it."""
    few = owner[:: max(1, len(owner) // (SOME_ROWS * enough))]
    return len(set(few.tolist())) >= enough or len(np.unique(owner)) >= enough
