"""Explanations as tables, of one subject or of a cohort.

Of a cohort they are mean effects among carriers, with intervals over subjects. A code is compared with the record
without it. Two kinds of code have no such record, and are compared otherwise: of an attribute with two values, such as
sex, one with the other; of a code with a number, the newest number at the 90th percentile of the subjects' with that
at the 10th.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ehrsequencing.core.arrays import Floats, Ints, hash_u64
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.core.errors import refuse_idle, refuse_unknown
from ehrsequencing.core.outputs import EXPLANATION, output_file
from ehrsequencing.explain.deletions import KINDS, change, deletion, removed_codes
from ehrsequencing.explain.record import (
    Copies,
    Edit,
    Question,
    SubjectRecord,
    kept_rows,
    predict_copies,
    subject_record,
    subject_records,
)
from ehrsequencing.metrics.bootstrap import bootstrap_subjects, percentile_interval
from ehrsequencing.prediction.predict import Moment, NewRecords, no_prediction_times
from ehrsequencing.prediction.prediction_file import with_notes, without_formulas

NEARLY_ALL = 0.9  # share of the subjects beyond which a record without a code is unlike any other
Compared = tuple[str, str | None]  # a code, and what it is compared with
Changed = tuple[int, str, float]  # a row of a record, and the code and number that it has instead
RANGE = (10, 90)  # percentiles between which a number is moved
OF_RANGE = f"{RANGE[0]}th percentile"  # what a code with a number is compared with
COHORT_COLUMNS = pa.schema(
    [
        ("code", pa.string()),
        # what the code is compared with: null for the record without it, else the other value or `OF_RANGE`
        ("against", pa.string()),
        # subjects with the code, at least 11, rounded as all counts that may be shared
        ("carriers", pa.string()),
        ("change_in_risk", pa.float64()),  # mean among carriers: with the code − without it
        ("low", pa.float64()),  # 95 % interval by bootstrap over subjects
        ("high", pa.float64()),
        ("change_in_log_hazard", pa.float64()),
        ("raised", pa.float64()),  # share of the carriers whose risk the code raises
    ]
)


@dataclass(frozen=True)
class Explanation:
    """What moves the risk of one subject, or the risks of a cohort.

    Attributes:
        risk: The subject's risk, or the cohort's mean, at the last prediction times.
        table: The effects, the largest first.
        is_part: Whether a record is so long that not every code was removed.
        visits: How many visits the subject has by then.
        subjects: How many subjects were explained.
    """

    risk: float
    table: pa.Table
    is_part: bool
    visits: int = 0
    subjects: int = 1


def explain_cohort(
    question: Question,
    records: NewRecords,
    *,
    subjects: int | None = 1000,
    bootstrap: int = 200,
    progress: Callable[[int, int], None] = lambda done, todo: None,
) -> Explanation:
    """Remove or change each code in each subject's record, and average over those who have it.

    Args:
        question: Cause and horizon.
        records: The data.
        subjects: How many subjects at most, chosen by a hash of their ids; None: all.
        bootstrap: Resamples of subjects for the intervals.
        progress: Called with the number of subjects done and to do.

    Returns:
        Codes with at least 11 carriers; of those that more than 90 % of the subjects have, only the ones that are
        compared with another value.

    Raises:
        EhrseqError: Nobody has a prediction time.
    """
    parts = [np.zeros(0, np.int64)]
    for shard, rows in records.prediction_times(Moment("last")):
        parts.append(shard.subject_id[np.unique(rows.subject)])
    everybody = np.concatenate(parts)
    if not len(everybody):
        raise no_prediction_times(records)
    by_hash = np.argsort(hash_u64(everybody.astype(np.uint64)), kind="stable")
    people = list(subject_records(records, set(everybody[by_hash[:subjects]].tolist())))
    others = _other_values(people)
    has_numbers = question.run.study.values.mode != "none"
    numbers: dict[str, list[float]] = {}  # code → its newest numbers, one a subject
    for record in people if has_numbers else ():
        for name, row in _newest_numbers(record).items():
            numbers.setdefault(name, []).append(float(record.record.events.value[row]))
    percentiles = {
        name: np.percentile(own, RANGE).tolist()
        for name, own in numbers.items()
        if len(own) >= SMALLEST_COUNT
    }
    ranges = {name: (low, high) for name, (low, high) in percentiles.items() if low < high}
    found = [removed_codes(question, record) for record in people]
    contrasts = [_contrasts(record, others, ranges) for record in people]
    carriers = Counter(code for codes, _ in found for code in codes)
    # a code that is compared with another value, or that few lack, has no row for its removal
    most = NEARLY_ALL * len(people)
    shown = {code for code, n in carriers.items() if SMALLEST_COUNT <= n <= most}
    shown -= {*others, *ranges}
    removed = [[code for code in codes if code in shown] for codes, _ in found]
    asked = (
        copies
        for record, codes, (_, changes) in zip(people, removed, contrasts, strict=True)
        for copies in _copies(record, codes, changes)
    )
    risks: list[float] = []
    # three parallel lists, with one entry for each subject and code
    subject, code, effect = list[int](), list[Compared](), list[Floats]()
    answered = predict_copies(question.run.vocabulary, asked, predict=question.answer)
    for codes, (names, changes) in zip(removed, contrasts, strict=True):
        whole, without = np.split(next(answered)[:, 0], [1])
        changed = np.reshape([next(answered)[0, 0] for _ in changes], (-1, 2))
        code += [*((name, None) for name in codes), *names]
        effect += [whole - without, changed[::2] - changed[1::2]]
        subject += [len(risks)] * (len(codes) + len(names))
        risks.append(float(whole[0, 0]))
        progress(len(risks), len(people))
    weights = None
    if bootstrap:
        weights = np.concatenate(list(bootstrap_subjects(np.arange(len(risks)), bootstrap, 0)))
    owner = np.array(subject, dtype=np.int64)
    table = _table(code, np.concatenate(effect), owner, weights)
    is_part = any(more for _, more in found)
    return Explanation(float(np.mean(risks)), table, is_part, subjects=len(risks))


# ---- codes that are compared with another value ----------------------------------------------------------------------


def _other_values(people: Sequence[SubjectRecord]) -> dict[str, str]:
    """The two values of each attribute without a time that has no third, each with the other."""
    values: dict[str, set[str]] = {}
    for record in people:
        for code in record.codes_of(record.static_rows):
            attribute, _, value = code.partition("//")
            if value:
                values.setdefault(attribute, set()).add(code)
    pairs = [sorted(codes) for codes in values.values() if len(codes) == 2]
    return {one: other for pair in pairs for one, other in (pair, pair[::-1])}


def _newest_numbers(record: SubjectRecord) -> dict[str, int]:
    """The row of the newest number of each code at the last prediction time."""
    events = record.record.events
    rows = np.flatnonzero(record.known_rows() & ~np.isnan(events.value))
    return {events.codes[events.code[row]]: row for row in rows.tolist()}


def _contrasts(
    record: SubjectRecord, others: Mapping[str, str], ranges: Mapping[str, tuple[float, float]]
) -> tuple[list[Compared], list[Changed]]:
    """Which codes of a record are compared with another value at the last prediction time, and two changes for each."""
    events, names, changes = record.record.events, list[Compared](), list[Changed]()
    static = {code for code in record.codes_of(record.static_rows) if code in others}
    pairs = {min(code, others[code]) for code in static if others[code] not in static}
    for code in sorted(pairs):
        own = code if code in static else others[code]
        row = np.flatnonzero(record.static_rows & (events.code == record.code_number[own]))[0]
        names.append((code, others[code]))
        changes += [(int(row), name, np.nan) for name in (code, others[code])]
    for code, row in _newest_numbers(record).items():
        if code in ranges:
            names.append((code, OF_RANGE))
            changes += [(row, code, value) for value in reversed(ranges[code])]
    return names, changes


def _copies(
    record: SubjectRecord, without: Iterable[str], changes: Iterable[Changed]
) -> Iterator[Copies]:
    """A record at its last prediction time: as it is and without each of some codes; then with each row changed."""
    events = record.record.events
    edits = [Edit(), *(Edit(codes=(code,)) for code in without)]
    yield Copies(record, kept_rows(record, edits), [-1])
    for row, name, number in changes:
        code, value = events.code.copy(), events.value.copy()
        code[row], value[row] = len(events.codes), number
        other = replace(
            events,
            codes=(*events.codes, name),
            code=code,
            value=value,
        )
        changed = replace(record, record=replace(record.record, events=other))
        yield Copies(changed, [np.ones(len(events), dtype=bool)], [-1])


def _table(
    code: Sequence[Compared],
    effect: Floats,
    subject: Ints,
    weights: Ints | None,
) -> pa.Table:
    """One row a code, from the effect (n, 2) of each code of each subject, and weights (B, subjects) of resamples."""
    numbers = {key: k for k, key in enumerate(dict.fromkeys(code))}
    number = np.array([numbers[key] for key in code], dtype=np.int64)
    carriers = np.bincount(number, minlength=len(numbers))
    rows = list[dict[str, Any]]()
    for (name, against), k in numbers.items():
        if carriers[k] < SMALLEST_COUNT:
            continue
        own = np.flatnonzero(number == k)
        row: dict[str, Any] = {
            "code": name,
            "against": against,
            "carriers": count_text(int(carriers[k])),
            "change_in_risk": float(effect[own, 0].mean()),
            "change_in_log_hazard": float(effect[own, 1].mean()),
            "raised": float((effect[own, 0] > 0).mean()),
        }
        if weights is not None:
            weight = weights[:, subject[own]]
            total = weight.sum(axis=1)
            with np.errstate(invalid="ignore"):
                means = weight @ effect[own, 0] / np.where(total > 0, total, np.nan)
            row["low"], row["high"] = (float(limit) for limit in percentile_interval(means))
        rows.append(row)
    rows.sort(key=lambda row: -abs(row["change_in_risk"]))
    return pa.Table.from_pylist(rows, schema=COHORT_COLUMNS)


# ---- tables of a subject, and their files ----------------------------------------------------------------------------


CHANGE = "since the prediction time before"  # the kind of the rows that add up
COLUMNS = pa.schema(
    [
        ("kind", pa.string()),  # one of deletions.KINDS, or CHANGE
        ("code", pa.string()),  # null for a visit, and for time passing
        ("visit", pa.int64()),  # number of the visit within the record, from 0
        ("time", pa.timestamp("us")),  # start of that visit
        ("rows", pa.int64()),  # of the record that were removed
        # risk with it minus risk without it; in rows of CHANGE its part of the change
        (
            "change_in_risk",
            pa.float64(),
        ),
        ("change_in_log_hazard", pa.float64()),
    ]
)
SUFFIXES = (".parquet", ".csv")


def explained(
    question: Question,
    records: NewRecords,
    subject: int | None,
    *,
    kind: str | None = None,
    subjects: int | None = None,
    progress: Callable[[int, int], None] = lambda done, todo: None,
) -> Explanation:
    """The effects on a subject's last risk, of one kind or of all, or the mean effects on those of a cohort.

    Args:
        question: Cause and horizon.
        records: The data.
        subject: One subject; None: the cohort.
        kind: One of `deletions.KINDS`, `CHANGE` for the parts that add up to the change since the prediction time
            before, or `all`.
        subjects: Of a cohort, at most so many.
        progress: Called with the number of subjects done and to do.

    Returns:
        A table with the columns of `COLUMNS`, sorted by kind and size, or with those of `COHORT_COLUMNS`.

    Raises:
        EhrseqError: There is no such kind or subject, nobody has a prediction time, or an argument would do nothing.
    """
    if subject is None:
        refuse_idle({"kind": kind}, "without a subject", where="explain")
        return explain_cohort(question, records, subjects=subjects or 1000, progress=progress)
    refuse_idle({"subjects": subjects}, "beside a subject", where="explain")
    every, kind = (*KINDS, CHANGE), kind or "all"
    refuse_unknown("kind", [kind], (*every, "all"))
    kinds = every if kind == "all" else (kind,)
    record = subject_record(records, subject)
    removed = deletion(question, record, kinds=kinds)
    rows: list[dict[str, object]] = [
        {
            "kind": effect.kind,
            "code": effect.code,
            "visit": effect.visit,
            "rows": effect.count,
            "change_in_risk": effect.effect,
            "change_in_log_hazard": effect.log_hazard,
        }
        for effect in removed.effects
    ]
    if CHANGE in kinds and len(record.moments) > 1:
        rows += [
            {"kind": CHANGE, "code": part.text, "visit": part.visit, "change_in_risk": part.change}
            for part in change(question, record)[2]
        ]
    starts: dict[object, int] = dict(enumerate(record.record.visits.start_us.tolist()))
    timed = [row | {"time": starts.get(row["visit"])} for row in rows]
    table = pa.Table.from_pylist(timed, schema=COLUMNS)
    return Explanation(
        removed.risk, table, removed.is_part, visits=record.moments.visits_before[-1]
    )


# ---- files -----------------------------------------------------------------------------------------------------------


def write_table(table: pa.Table, out: Path, *, overwrite: bool = False) -> None:
    """Write a table as Parquet or CSV. It appears when it is complete; `overwrite` as of `refuse_existing`."""
    with output_file(out, EXPLANATION, overwrite=overwrite) as temporary:
        if out.name.endswith(".parquet"):
            notes = with_notes(table.schema, {}, kind=EXPLANATION).metadata
            pq.write_table(table.replace_schema_metadata(notes), temporary)
        else:
            for number, field in enumerate(table.schema):
                if pa.types.is_string(field.type):
                    table = table.set_column(number, field, without_formulas(table[number]))
            pc.write_csv(table, temporary)
