"""Index times and labels from other tools in, `cohort.parquet` out.

In: a MEDS label file (`subject_id, prediction_time`), an ACES result (`subject_id, index_timestamp` or `trigger`, or
MEDS labels), or an OHDSI cohort table (`cohort_definition_id, subject_id, cohort_start_date, cohort_end_date`). Only
index times are taken from them. Outcome and censoring always come from the records, since such files drop subjects
whose follow-up ended early, or say that they had no outcome.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq

from ehrsequencing.config import EligibilityConfig, HistoryCode, TaskConfig
from ehrsequencing.config.task import CensoringConfig
from ehrsequencing.core.arrays import Bools, Floats, Ints, spans
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_unpacked
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    NEVER,
    SECOND_US,
    STATIC,
    first_time,
    opens_run,
    parse_date_us,
)
from ehrsequencing.records.meds import SPLITS, parquet_files
from ehrsequencing.records.parquet_rows import read_table, subject_ids
from ehrsequencing.records.timelines import TaskRecords, TaskRows, open_arrays
from ehrsequencing.records.visits import Record, count_at_or_before, next_of
from ehrsequencing.records.words import lines_of

# Columns that name the index, the best first; matched without regard to case, as OHDSI exports come in either.
_MOMENTS = ("prediction_time", "index_timestamp", "trigger", "cohort_start_date")
_COHORT_ID = "cohort_definition_id"
_COHORT_CHUNK = 20_000  # subjects in one row group of `cohort.parquet`
# written as a plain string, since Arrow's own schema is not stored in the file
_WORD = pa.dictionary(pa.int8(), pa.string())
_COHORT = pa.schema(
    [
        ("subject_id", pa.int64()),
        ("index_time", pa.timestamp("us")),
        ("prediction_time", pa.timestamp("us")),
        ("kind", _WORD),
        ("duration_days", pa.float64()),
        ("cause", pa.int8()),
        ("split", _WORD),
    ]
)
_FEW = ["index_time", "kind", "cause", "split"]  # whose few values make a dictionary


@dataclass(frozen=True)
class IndexTimes:
    """Index times of subjects, distinct, sorted by subject and time."""

    subject_id: Ints  # (n,) int64
    time_us: Ints  # (n,) int64, microseconds since 1970

    def of(self, subject_ids: Ints) -> tuple[Ints, Ints]:
        """The index times of some subjects.

        Returns:
            (m,) position in `subject_ids`, and (m,) times; sorted.
        """
        first = np.searchsorted(self.subject_id, subject_ids, side="left")
        count = np.searchsorted(self.subject_id, subject_ids, side="right") - first
        return np.repeat(np.arange(len(subject_ids)), count), self.time_us[spans(first, count)[0]]


def read_index_times(path: Path) -> IndexTimes:
    """Read index times from a file (Parquet, CSV, CSV.gz) or a folder of Parquet files.

    Args:
        path: MEDS labels, an ACES result, or an OHDSI cohort table of one cohort.

    Raises:
        EhrseqError: The file cannot be read, is none of the three, or has rows without a subject or a time.
    """
    table = _read(path)
    names = {name.lower(): name for name in table.column_names}
    moment = next((names[name] for name in _MOMENTS if name in names), None)
    if "subject_id" not in names or moment is None:
        raise EhrseqError(
            "holds no cohort",
            where=str(path),
            fix=f"it needs subject_id and one of {', '.join(_MOMENTS)}",
        )
    if _COHORT_ID in names and (cohorts := len(pc.unique(table[names[_COHORT_ID]]))) > 1:
        raise EhrseqError(
            f"holds {cohorts} cohorts",
            where=f"{path}, {_COHORT_ID}",
            fix="keep the rows of one of them",
        )
    ids = subject_ids(table[names["subject_id"]], path).to_numpy()
    times = _times(table[moment], path)
    if not len(ids):
        raise EhrseqError("holds no row", where=str(path), fix="name a file with index times")
    pairs = np.unique(np.stack([ids, times]), axis=1)
    return IndexTimes(pairs[0], pairs[1])


@dataclass(frozen=True)
class BooleanLabels:
    """Labels of yes or no, distinct, sorted by subject and time."""

    subject_id: Ints  # (n,)
    time_us: Ints  # (n,) microseconds since 1970
    value: Bools  # (n,)

    def find(self, subject_id: Ints, time_us: Ints) -> tuple[Ints, Bools]:
        """The label of each of some moments.

        Returns:
            (m,) its position here, and (m,) whether there is one.
        """
        own = np.rec.fromarrays([self.subject_id, self.time_us])
        moments = np.rec.fromarrays([subject_id, time_us])
        place = np.minimum(np.searchsorted(own, moments), len(own) - 1)
        return place, np.asarray(own[place] == moments)


def read_boolean_labels(path: Path) -> BooleanLabels:
    """Read a MEDS label file, or a folder of them: `subject_id`, `prediction_time` and `boolean_value`.

    Raises:
        EhrseqError: A column is missing or has gaps, or two labels of one subject and time contradict one another.
    """
    table, needed = _read(path), ("subject_id", "prediction_time", "boolean_value")
    if absent := [name for name in needed if name not in table.column_names]:
        raise EhrseqError(
            f"has no column {absent[0]}",
            where=str(path),
            fix="name the labels of a MEDS task: subject_id, prediction_time, boolean_value",
        )
    value = table["boolean_value"]
    if not pa.types.is_boolean(value.type) or value.null_count or not len(value):
        raise EhrseqError(
            "boolean_value is not true or false in every row",
            where=str(path),
            fix="give every label true or false",
        )
    ids = subject_ids(table["subject_id"], path).to_numpy()
    times = _times(table["prediction_time"], path)
    rows = np.unique(np.stack([ids, times, value.to_numpy().astype(np.int64)]), axis=1)
    if len(rows[0]) > 1 and (np.diff(rows[:2]) == 0).all(axis=0).any():
        raise EhrseqError(
            "some subjects have two different labels at one time",
            where=str(path),
            fix="keep one of them",
        )
    return BooleanLabels(rows[0], rows[1], rows[2].astype(np.bool_))


def _read(path: Path) -> pa.Table:
    if path.is_dir():
        parts = [read_table(part) for part in parquet_files(path)]
        if not parts:
            raise EhrseqError(
                "holds no Parquet file",
                where=str(path),
                fix="name a file, or a folder of label shards",
            )
        common = [n for n in parts[0].column_names if all(n in p.column_names for p in parts)]
        return pa.concat_tables(
            [part.select(common) for part in parts], promote_options="permissive"
        )
    if not path.is_file():
        raise EhrseqError(
            "is no file",
            where=str(path),
            fix="correct index.file (relative to the task file's folder)",
        )
    if path.name.lower().endswith((".csv", ".csv.gz")):
        data = read_unpacked(path)
        try:
            return pv.read_csv(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise EhrseqError(
                "cannot be read as CSV", where=str(path), fix="save it as CSV again"
            ) from error
    return read_table(path)


def _times(column: pa.ChunkedArray, path: Path) -> Ints:
    """Microseconds; a date is its midnight."""
    kind = column.type
    if not (pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)):
        raise EhrseqError(
            f"the index time has type {kind}",
            where=str(path),
            fix="write it as a date or a timestamp without a time zone",
        )
    if column.null_count:
        raise EhrseqError(
            f"{column.null_count} rows have no index time",
            where=str(path),
            fix="remove or fill them",
        )
    return np.asarray(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy())


def write_cohort(folder: Path, task: str) -> None:
    """Write `cohort.parquet` from the stored arrays: by split, subject and time."""
    place = folder / "tasks" / task
    # three times as fast as with pyarrow's defaults
    few = {"use_dictionary": _FEW, "write_statistics": False, "store_schema": False}
    with pq.ParquetWriter(place / "cohort.parquet", _COHORT, **few) as writer:
        for split in SPLITS:
            subject_ids = np.load(folder / "visits" / split / "subject_id.npy")
            for start in range(0, len(subject_ids), _COHORT_CHUNK):
                # mapped again for each chunk, because pages that were read would stay in memory
                rows = open_arrays(TaskRows, place / split)
                bounds = rows.row_offsets[start : start + _COHORT_CHUNK + 1]
                subject_id = np.repeat(subject_ids[start : start + _COHORT_CHUNK], np.diff(bounds))
                part, kinds = slice(bounds[0], bounds[-1]), ["visit", "query"]
                kind = rows.is_query[part].view(np.int8)
                columns = [
                    pa.array(subject_id),
                    pa.array(rows.index_us[part]).cast(pa.timestamp("us")),
                    pa.array(rows.prediction_us[part]).cast(pa.timestamp("us")),
                    pa.DictionaryArray.from_arrays(kind, kinds),
                    pa.array(rows.duration_days[part]),
                    pa.array(rows.cause[part]),
                    pa.DictionaryArray.from_arrays(np.zeros(len(subject_id), np.int8), [split]),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=_COHORT))


# ---- the end of follow-up by design ----


def designed_end(rule: CensoringConfig, birth_us: Ints, data_end_us: Ints | int) -> Ints:
    """When each subject's follow-up ends by design, whatever happens before; `NEVER` where nothing ends it so.

    Args:
        rule: Of the task.
        birth_us: (S,) `STATIC` where unknown: an age then ends nothing.
        data_end_us: End of the data set, one for all or (S,); nobody is followed for longer.

    Returns:
        (S,) microseconds.
    """
    out = np.full(len(birth_us), NEVER)
    if rule.date is not None:
        out[:] = np.minimum(parse_date_us(rule.date), data_end_us)
    elif rule.dataset_end:
        out[:] = data_end_us
    elif rule.age is not None:
        known = birth_us != STATIC
        age_us = birth_us[known] + round(rule.age * DAY_US)
        out[known] = np.minimum(age_us, np.broadcast_to(data_end_us, out.shape)[known])
    return out


def potential_days(
    records: TaskRecords, task: TaskConfig, dataset_end_us: int, cut_us: int = NEVER
) -> Floats:
    """(R,) days from each prediction time until follow-up ends by design, at `cut_us` at the latest; else infinite."""
    rows = records.rows
    design = designed_end(task.censoring, records.timelines.birth_us, dataset_end_us)
    end_us = np.minimum(design, cut_us)[rows.subject]
    days = (end_us - rows.prediction_us) / DAY_US
    return np.where(end_us == NEVER, np.inf, days)


# ---- eligibility: who has a code before the index, and who has not ---------------------------------------------------


MAX_AGE_DAYS = 120 * 365.25  # beyond it an age is unknown, as everywhere


class Eligibility:
    """A task's criteria for its indexes.

    Args:
        rules: The criteria.
        parents: Parents of each code, for `under:` patterns.

    Attributes:
        must_have: Each rule with its matcher.
        must_not_have: Each rule with its matcher.
    """

    def __init__(
        self, rules: EligibilityConfig, *, parents: Mapping[str, list[str]] | None = None
    ) -> None:
        self.rules = rules
        self.must_have, self.must_not_have = (
            [(rule, CodeMatcher(rule.code, parents=parents, confirmed=True)) for rule in wanted]
            for wanted in (rules.must_have, rules.must_not_have)
        )

    def passed(self, record: Record, owner: Ints, moment_us: Ints) -> tuple[int, Ints]:
        """How many criteria there are, and (I,) how many each index passes before the first that it fails.

        Args:
            record: The shard.
            owner: (I,) subject row of each index.
            moment_us: (I,) the indexes.
        """
        holds, rules = list[Bools](), self.rules
        if rules.history > 0:
            is_row = ~record.events.is_code(BIRTH)
            first_us = first_time(record.events, is_row, record.subject, len(record.birth_us))
            holds.append(_time_since(first_us[owner], moment_us) >= round(rules.history * DAY_US))
        if rules.min_age is not None or rules.max_age is not None:
            age_us = _time_since(record.birth_us[owner], moment_us)
            high = MAX_AGE_DAYS * DAY_US + 1 if rules.max_age is None else rules.max_age * DAY_US
            low = round((rules.min_age or 0.0) * DAY_US)
            holds.append((age_us >= low) & (age_us < min(round(high), MAX_AGE_DAYS * DAY_US + 1)))
        holds += [_has(*codes, record, owner, moment_us) for codes in self.must_have]
        holds += [~_has(*codes, record, owner, moment_us) for codes in self.must_not_have]
        is_held = np.array(holds, dtype=bool).reshape(len(holds), len(owner))
        return len(holds), np.asarray(np.cumprod(is_held, axis=0).sum(axis=0))


def _time_since(first_us: Ints, moment_us: Ints) -> Ints:
    """(I,) time from a moment that is known, and not later, to each index; −1 elsewhere."""
    known = (first_us != STATIC) & (first_us <= moment_us)
    return np.where(known, moment_us - np.where(known, first_us, 0), -1)


def eligibility_steps(rules: EligibilityConfig | None) -> tuple[str, ...]:
    """The criteria in words, one attrition step each, in the order in which they are applied."""
    path = Path(__file__).with_name("templates") / "eligibility.txt.jinja"
    return () if rules is None else tuple(lines_of(path, r=rules))


def _has(
    rule: HistoryCode, matcher: CodeMatcher, record: Record, owner: Ints, moment_us: Ints
) -> Bools:
    """Which indexes have `count` such events in `[index - within, index]`; codes without a time are ever."""
    subject, time_us = record.subject, record.events.time_us
    chosen = matcher.events(record.events)
    rows = np.flatnonzero(chosen & (time_us != STATIC))
    count, _ = count_at_or_before(subject[rows], time_us[rows], owner, moment_us)
    if rule.within is not None:
        start_us = moment_us - round(rule.within * DAY_US)
        count -= count_at_or_before(subject[rows], time_us[rows], owner, start_us - 1)[0]
    else:
        timeless = subject[chosen & (time_us == STATIC)]
        count += np.bincount(timeless, minlength=len(record.subject_id))[owner]
    return np.asarray(count >= rule.count)


# ---- observation: whose index lies in a time under observation -------------------------------------------------------


def are_observed(record: Record, ends: Bools, begins: Bools, owner: Ints, moment_us: Ints) -> Bools:
    """Which indexes lie in a time under observation, whatever comes later.

    Ends without any start are marks: somebody is under observation until the last of them. A period goes from a start
    to the next end, both instants included, or on if none follows; an end before any start ends a period that began
    before the record. Where the start or the index is a date, the day decides.

    Args:
        record: The shard.
        ends: (n,) timed events that end such a time.
        begins: (n,) timed events that begin one.
        owner: (I,) subject row of each index.
        moment_us: (I,) the indexes.

    Returns:
        (I,) bool; True for whoever has neither.
    """
    time_us, n_subjects = record.events.time_us, len(record.subject_id)
    has_end, has_start = (
        np.bincount(record.subject[rows], minlength=n_subjects)[owner] > 0
        for rows in (ends, begins)
    )
    end_us = next_of(record.subject[ends], time_us[ends], owner, moment_us)[1]
    start_us = next_of(record.subject[begins], time_us[begins], owner, moment_us)[1]
    is_date = (start_us % DAY_US == DAY_US - SECOND_US) | (moment_us % DAY_US == 0)
    begins_now = (start_us == moment_us) | (is_date & (start_us // DAY_US == moment_us // DAY_US))

    rows = np.flatnonzero(ends | begins)
    columns = np.stack([record.subject[rows], time_us[rows], begins[rows]])
    subject, at_us, is_start = np.unique(columns, axis=1)
    # an end and a start at one instant are a period of a day, or two that touch: what held before holds on
    is_second = ~opens_run(subject, at_us)
    alone = ~(is_second | np.append(is_second[1:], False))
    subject, at_us, is_start = subject[alone], at_us[alone], is_start[alone]
    before, first = count_at_or_before(subject, at_us + 1 - is_start, owner, moment_us)
    last = np.append(is_start, 0)[first + before - 1] == 1
    ends_next = (np.append(subject, -1)[first] == owner) & (np.append(is_start, 1)[first] == 0)
    is_inside = np.where(before > 0, last, ends_next) | begins_now
    return np.asarray(np.where(has_start, is_inside, ~has_end | (end_us != NEVER)))
