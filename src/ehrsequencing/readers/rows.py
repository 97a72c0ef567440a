"""What a reader gives to the writer: rows of a few columns, ids of patients, and what it knows of the codes."""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ehrsequencing.core.arrays import Bools, Ints, Ints32
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.records.events import DAY_US, PERIOD_END, PERIOD_START, SECOND_US

__all__ = ["Role"]

SUBJECT_IDS = "metadata/subject_ids.parquet"
END_SUFFIX = "//END"  # the end of a visit or stay has the code of its start with this suffix
PART_SUFFIX = "//PART"  # a part of a stay of the same class, as a stay on a second ward
NO_TIME = np.iinfo(np.int64).min
UNENDED = np.iinfo(np.int64).max - DAY_US  # the end of what has not ended
# what ids, codes and words of the sources mean
TERMS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("terms.toml").read_text("utf-8"))
_MANY = 1 << 62  # combinations that a number of 8 bytes can tell apart


class Role(IntEnum):
    """What a row is. The cleaning rules depend on it."""

    EVENT = 0  # happened at `time`
    PERSON = 1  # this subject exists; born at `time`; makes no row where that is unknown
    STATIC = 2  # true without a time (sex)
    DEATH = 3  # at `time`, or between `time` and `end`; without a time: this subject has died
    VISIT = 4  # an encounter from `time` to `end`; other rows refer to it by `encounter_id`
    SPAN = 5  # anything else that starts and ends (a stay on a ward)
    OBSERVED = 6  # a period under observation, with the code `PERIOD_START`
    REPORTED = 7  # began between `time` and `end`, and was reported in its visit: when it became known is not said
    NAMED_VISIT = 8  # only the id of an encounter, and its `time` and `end` where these are known; makes no row
    BEGUN = 9  # as `REPORTED`, but without a time it is no row
    BILLED = 10  # as `BEGUN`, and written after the end of its visit, whatever day it names
    ISSUED = 11  # a result that became available at `time`: of its encounter only until that ends


class Left(IntEnum):
    """How a stay ended, as its source says."""

    ALIVE = 0  # in another way than those below
    DIED = 1
    STILL = 2  # it has not: the `end` is the day until which the source saw the person inside
    MOVED = 3  # to another hospital of acute care


def rows_schema(encounter: pa.DataType) -> pa.Schema:
    """Columns of a reader's rows.

    A time at exactly midnight means a date without a time of day. Rows without a subject, code or (where they need
    one) time are allowed; the writer drops and counts them.
    """
    return pa.schema(
        {
            "subject_id": pa.int64(),
            "role": pa.int8(),
            "time": pa.timestamp("us"),
            "end": pa.timestamp("us"),
            "code": pa.string(),  # or a dictionary of texts, where the reader has one
            "numeric_value": pa.float32(),
            "text_value": pa.large_string(),
            "encounter_id": encounter,
            # whether a visit is of an inpatient, emergency, observation or intensive-care class
            "acute": pa.bool_(),
            # whether it is a hospital stay of acute care, which may be a part of an episode of care
            "inpatient": pa.bool_(),
            "site": pa.string(),  # where a visit was
            "left": pa.int8(),  # how a visit ended, a number of `Left`; null where the source does not say
            "source": pa.int64(),  # the number of the source's row, from `TableCounts.take`
        }
    )


def make_rows(
    role: Role, base: Mapping[str, Any], code: Any, keep: Any = None, **columns: Any
) -> pa.Table:
    """Rows for the writer.

    Args:
        role: Of all of them.
        base: Columns that all rows of a block have: subject_id and source, maybe encounter_id.
        code: One for all, or (n,) codes; None for no code.
        keep: (n,) which rows of the block there are; default: all.
        columns: Others of `rows_schema`.
    """
    n = len(base["source"])
    code = pa.array([code] * n, pa.string()) if code is None or isinstance(code, str) else code
    roles = pa.array(np.full(n, int(role), dtype=np.int8))
    made = pa.table({**base, "role": roles, "code": code, **columns})
    return made if keep is None else made.filter(keep)


# ---- times -------------------------------------------------------------------------------------


def is_date(time_us: Ints) -> Bools:
    """(n,) whether a time is a date without a time of day."""
    return np.asarray((time_us % DAY_US == 0) & (time_us != NO_TIME))


def end_of_day(time_us: Ints) -> Ints:
    """The times, with midnight moved to the last second of the day."""
    return np.where(is_date(time_us), time_us + DAY_US - SECOND_US, time_us)


def day_of(time_us: Ints) -> Ints:
    """Midnight of the day of each time."""
    return time_us - time_us % DAY_US


@dataclass(frozen=True, eq=False)
class VisitSpans:
    """When each visit began and ended; the last is for rows without a visit, and for what is not known.

    Several rows of a visit have one span, from the earliest start to the latest end.
    """

    start_us: Ints  # (v + 1,) `NO_TIME` where it is not known
    end_us: Ints  # (v + 1,) without a valid end, the end of the day on which it starts
    until_us: Ints  # (v + 1,) the end of the day after its last day; `UNENDED` without a valid end, since it may go on


UNUSABLE = -1  # the role of a row that cannot be used
_UNCODED = (Role.NAMED_VISIT,)  # roles that need no code
_UNDATED = (Role.PERSON, Role.STATIC, Role.DEATH, Role.NAMED_VISIT)  # and no time


def conformed(rows: pa.Table, schema: pa.Schema, report: ImportReport) -> pa.Table:
    """A reader's rows with all columns of the schema, their codes clean and of a dictionary.

    Rows without a subject or, where their role needs them, a code and a time are counted, and get the role `UNUSABLE`.
    """
    columns: dict[str, Any] = {}
    for name in schema.names:
        column = rows[name] if name in rows.column_names else pa.nulls(len(rows), pa.null())
        columns[name] = (
            column if name == "code" else column.cast(schema.field(name).type, safe=False)
        )
    code = encoded(columns["code"])
    clean = clean_codes(code.dictionary)
    fixed = pc.not_equal(clean, code.dictionary).take(code.indices)
    report.count("fixed_code", fixed)
    blank = pc.equal(clean, "").take(code.indices)
    number = pc.if_else(blank, pa.scalar(None, code.indices.type), code.indices)
    rows = pa.table({**columns, "code": pa.DictionaryArray.from_arrays(number, clean)})
    role, source = rows["role"].to_numpy(), rows["source"].to_numpy()
    may_lack_time = np.isin(role, _UNDATED)
    may_lack_time |= (role == Role.REPORTED) & np.asarray(rows["encounter_id"].is_valid())
    left, lost = np.ones(len(rows), dtype=bool), dict[str, Bools]()
    for reason, bad in {
        "no_person": np.asarray(rows["subject_id"].is_null()),
        "no_code": np.asarray(number.is_null()) & ~np.isin(role, _UNCODED),
        "no_time": np.asarray(rows["time"].is_null()) & ~may_lack_time,
    }.items():
        lost[reason] = left & bad
        left &= ~bad
    for reason, chosen in lost.items():  # a row of the source that left another row is not dropped
        whose = rows["subject_id"].filter(pa.array(chosen)).drop_null()
        report.counts[reason] += int(chosen.sum())
        report.note(reason, whose.to_numpy())
        gone = pa.array(source[chosen])
        made = pc.is_in(pa.array(source), value_set=gone).to_numpy(zero_copy_only=False) & left
        report.mark(reason, np.setdiff1d(source[chosen], source[made]))
    usable = np.where(left, role, UNUSABLE).astype(np.int8)
    return rows.set_column(schema.get_field_index("role"), "role", pa.array(usable))


# ---- values as numbers -------------------------------------------------------------------------


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as places among its distinct values; one that is of a dictionary stays as it is."""
    if not pa.types.is_dictionary(column.type):
        return column.combine_chunks().dictionary_encode()
    column = column.unify_dictionaries() if column.num_chunks > 1 else column
    return column.combine_chunks()


def places(column: pa.DictionaryArray) -> Ints:
    """(n,) place of each value in the dictionary, -1 for null."""
    number = pc.fill_null(column.indices, -1)
    return np.asarray(number.to_numpy(zero_copy_only=False), dtype=np.int64)


def packed(columns: Sequence[Ints]) -> Ints:
    """(n,) one number for the numbers of some columns, none below 0, in the order of these.

    >>> packed([np.array([2, 0, 2]), np.array([5, 9, 5])]).tolist()
    [25, 9, 25]
    """
    number, kinds = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        if kinds * size > _MANY:  # ranks have the same order
            number, column = (np.unique(x, return_inverse=True)[1] for x in (number, column))
            kinds, size = len(number) + 1, len(number) + 1
        number = number * size + column
        kinds *= size
    return number


def combinations(columns: Mapping[str, pa.ChunkedArray]) -> tuple[pa.Table, Ints32]:
    """The distinct combinations of the values of some columns, and (n,) the place of each row's combination.

    >>> few, place = combinations({"a": pa.chunked_array([[1, 1, None]]), "b": pa.chunked_array([["x", "x", "y"]])})
    >>> few.to_pylist(), place.tolist()
    ([{'a': 1, 'b': 'x'}, {'a': None, 'b': 'y'}], [0, 0, 1])
    """
    number = packed([places(encoded(column)) + 1 for column in columns.values()])
    place = pa.array(number).dictionary_encode()
    at = place.indices.to_numpy()
    first = np.empty(len(place.dictionary), dtype=np.int64)
    first[at[::-1]] = np.arange(len(at))[::-1]  # the last write is the first row
    return pa.table({name: column.take(pa.array(first)) for name, column in columns.items()}), at


# ---- order -------------------------------------------------------------------------------------


def taken(column: pa.Array, row: Ints) -> pa.Array:
    """Some rows of a column, in the order given; quick for one without any value."""
    if column.null_count == len(column):
        return pa.nulls(len(row), column.type)
    return column.take(pa.array(row))


def used_codes(texts: pa.Array, number: Ints) -> tuple[pa.Array, Ints]:
    """The sorted distinct codes that are used, and (n,) the place of each row's code among them.

    Args:
        texts: (c,) codes.
        number: (n,) place among them; c more where the row is the end of what has that code.
    """
    ends = pc.binary_join_element_wise(texts, pa.scalar(END_SUFFIX), "")
    ends = pc.if_else(pc.equal(texts, PERIOD_START), PERIOD_END, ends)
    codes = pa.concat_arrays([texts, ends])
    used = np.flatnonzero(np.bincount(number, minlength=len(codes)))
    names = pc.unique(codes.take(pa.array(used)))
    names = names.take(pc.sort_indices(names))
    rank = np.zeros(len(codes), dtype=np.int64)
    rank[used] = pc.index_in(codes.take(pa.array(used)), names).to_numpy()
    return names, rank[number]


def ordered_rows(
    keys: tuple[Ints, Ints, Ints],
    columns: dict[str, pa.Array],
    row: Ints,
    preferred: tuple[Ints, Bools, Bools],
) -> Ints:
    """(k,) the rows in their order, each of several equal rows once: one sort of packed integers, another for ties.

    Args:
        keys: (n,) ranks of subjects, times in microseconds, ranks of codes.
        columns: (m,) value, text and encounter of the rows that these rows were made of; null comes last.
        row: (n,) which of the m rows each row was made of.
        preferred: (n,) what decides which of equal rows is kept, the lowest, the last column first. The last says whose
            encounter was removed: such a row equals any other that differs from it in the encounter only.
    """
    subject, time_us, code = keys
    is_timed = time_us != NO_TIME
    first = int(time_us[is_timed].min(initial=UNENDED))
    since = np.where(is_timed, time_us - first, 0)
    unit = 1 if (since % SECOND_US).any() else SECOND_US
    number = packed([subject, np.where(is_timed, since // unit + 1, 0), code])
    order = np.argsort(number)
    same = number[order][1:] == number[order][:-1]
    tied = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
    ties = order[tied]
    value, text, encounter = (ranks(column.take(row[ties])) for column in columns.values())
    content = packed([number[ties], value, text])
    source, dated, lost = (column[ties] for column in preferred)
    inner = np.lexsort((source, dated, lost, encounter, content))
    order[tied] = ties[inner]
    content, encounter, lost = content[inner], encounter[inner], lost[inner]
    repeats = content[1:] == content[:-1]
    repeats &= (encounter[1:] == encounter[:-1]) | lost[1:]
    return np.delete(order, tied[1:][repeats])


def ranks(column: pa.Array) -> Ints:
    """(n,) the place of each value among the sorted distinct ones, and null last."""
    rank = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(rank, dtype=np.int64)


# ---- codes -------------------------------------------------------------------------------------


def joined(*parts: Any) -> pa.ChunkedArray:
    """Texts with // between them; null where one is null."""
    return pc.binary_join_element_wise(*parts, "//")


def clean_codes(code: pa.ChunkedArray | pa.Array) -> Any:
    """Codes without line breaks, NULs, runs of blanks and outer blanks, which MEDS readers refuse."""
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(code, r"[\s\x00]+", " "))


class CodeFacts(NamedTuple):
    """A code's entry in `codes.parquet`."""

    description: str | None = None
    parents: tuple[str, ...] = ()


class CodeBook:
    """Descriptions and parents of the codes read so far.

    Attributes:
        facts: Of each code the first description in alphabetical order, so that the order of rows does not matter, and
            its parent.
    """

    def __init__(self) -> None:
        self.facts: dict[str, CodeFacts] = {}

    def add(self, code: Any, description: Any = None, parent: Any = None) -> None:
        """Take the (n,) codes of some rows with their descriptions and parents, null where unknown."""
        nothing = pa.nulls(len(code), pa.string())
        facts = {"description": description, "parent": parent}
        given = {name: nothing if column is None else column for name, column in facts.items()}
        table = pa.table({"code": code, **given}).filter(pc.is_valid(code))
        least = [(name, "min") for name in facts]
        for row in table.group_by("code", use_threads=False).aggregate(least).to_pylist():
            before = self.facts.get(row["code"], CodeFacts())
            texts = [text for text in (before.description, row["description_min"]) if text]
            parents = (row["parent_min"],) if row["parent_min"] else before.parents
            self.facts[row["code"]] = CodeFacts(min(texts, default=None), parents)


# ---- ids of patients ---------------------------------------------------------------------------


def subject_ids(names: pa.ChunkedArray) -> pa.Array:
    """The first 63 bits of the SHA-256 of each name, so that a patient has the same id in every export.

    >>> subject_ids(pa.chunked_array([["a", "a", None]])).to_pylist()
    [7299139317422481125, 7299139317422481125, None]
    """
    few = encoded(names)
    digests = [hashlib.sha256(name.encode()).digest() for name in few.dictionary.to_pylist()]
    hashes = [int.from_bytes(digest[:8], "big") >> 1 for digest in digests]
    return pa.array(hashes, pa.int64()).take(few.indices)


def write_subject_names(names: Sequence[pa.Array], folder: Path) -> None:
    """Write the patients' names in a source beside their ids, to `metadata/subject_ids.parquet`."""
    few = pc.unique(pa.chunked_array(names, pa.string())).drop_null()
    table = pa.table({"subject_id": subject_ids(pa.chunked_array([few])), "source_id": few})
    pq.write_table(table.sort_by("subject_id"), folder / SUBJECT_IDS)
