"""Any flat table → MEDS, by a map that says what its columns mean (`config/table_map.py`)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ehrsequencing.config.base import UNIT_DAYS
from ehrsequencing.config.importing import (
    Elapsed,
    EventMap,
    TableMap,
    When,
    is_date,
    load_table_map,
)
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import Block, parse_numbers, parse_times
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.csv_files import CsvFile, check_content, read_blocks, read_csv_lines
from ehrsequencing.readers.date_order import DateColumn, DateCounts, count_dates
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import Role
from ehrsequencing.readers.subject_ids import SubjectNames, subject_ids
from ehrsequencing.records.events import BIRTH, DAY_US, DEATH, SECOND_US

BLOCK_ROWS = 100_000
_NUMBER_ID = r"^(0|-?[1-9]\d{0,17})$"  # a number as it is written in one way only: not 0012
_LONGEST_DAYS = 3_000_000
_MARKS = {",": "comma", ".": "point"}
_NULL = pa.scalar(None, pa.string())


@reader(
    "csv",
    help="Any flat table.",
    source="CSV, CSV.gz or Parquet file with a header",
    needs_map=True,
)
def import_csv(source: str, job: Import) -> None:
    """Read one table by the map that the settings name; see `Reader`."""
    table_map, path = load_table_map(job.settings.map), Path(source)
    table = _open(path, table_map)
    with job.writer(path, encounter=pa.string()) as writer:
        book, names = CodeBook(), SubjectNames()
        writer.code_facts = lambda seen: book.facts
        for counts in job.tables([path.name.partition(".")[0].lower()]):
            survey = _survey(table, table_map, counts, job)
            for batch in table.blocks(table_map.columns()):
                block = _Block(batch, survey, counts, job)
                if not survey.whole_ids:
                    names.add(block.text(table_map.subject))
                writer.add(_rows(table_map, block, book))
        if not survey.whole_ids:
            names.write(writer.folder)


@dataclass(frozen=True)
class _Table:
    """A CSV or Parquet file as blocks of text."""

    path: Path
    header: tuple[str, ...]
    csv: CsvFile | None  # None for Parquet
    missing: tuple[str, ...]
    # columns of Parquet that are numbers already, in lower case
    typed: frozenset[str] = frozenset()

    def blocks(
        self, wanted: Sequence[str], rejected: Counter[str] | None = None
    ) -> Iterator[pa.Table]:
        """Blocks of some columns; blank cells and those that mean "missing" are null."""
        if self.csv is not None:
            yield from read_blocks(self.csv, wanted, rejected, missing=("", *self.missing))
            return
        try:
            file = pq.ParquetFile(self.path)
            names = {name.lower(): name for name in file.schema_arrow.names}
            for batch in file.iter_batches(
                BLOCK_ROWS, columns=[names[name.lower()] for name in wanted]
            ):
                block = pa.Table.from_batches([batch])
                yield pa.table(
                    {name: _as_text(block[names[name.lower()]], self.missing) for name in wanted}
                )
        except (pa.ArrowException, OSError) as error:
            raise EhrseqError(
                "cannot be read", where=str(self.path), fix="check that the file is whole"
            ) from error


def _as_text(column: pa.ChunkedArray, missing: Sequence[str]) -> pa.ChunkedArray:
    """A column of any type as text: times in UTC, NaN and blank text as null."""
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    text = column.cast(pa.string())
    return pc.if_else(pc.is_in(text, value_set=pa.array(["", *missing])), _NULL, text)


def _open(path: Path, table_map: TableMap) -> _Table:
    """The file, after a look at its header.

    Raises:
        EhrseqError: It is not there, or lacks a column of the map.
    """
    if not path.is_file():
        raise EhrseqError("is not a file", where=str(path), fix="name a CSV or Parquet file")
    typed: frozenset[str] = frozenset()
    if path.suffix.lower() == ".parquet":
        check_content(path)
        try:
            schema = pq.read_schema(path)
            header, csv = tuple(name.lower() for name in schema.names), None
            typed = frozenset(f.name.lower() for f in schema if not _is_text(f.type))
        except (pa.ArrowException, OSError) as error:
            raise EhrseqError(
                "cannot be read", where=str(path), fix="check that the file is whole"
            ) from error
    else:
        csv = read_csv_lines(path, delimiters=",\t;|")
        header = csv.header
    for name in table_map.columns():
        if name.lower() not in header:
            near = get_close_matches(name.lower(), header, n=2, cutoff=0.6)
            fix = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"its columns are {', '.join(header)}"
            )
            raise EhrseqError(
                f"has no column {name!r}, which the map names", where=str(path), fix=fix
            )
    return _Table(path, header, csv, table_map.missing, typed)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


@dataclass(frozen=True)
class _Survey:
    """What a first pass over the table has shown."""

    dates: dict[str, DateColumn]
    # every subject is the whole number that it looks like, and stays as it is
    whole_ids: bool
    decimal: Mapping[str, str]  # column of numbers → its decimal mark
    whole_days: frozenset[
        str
    ]  # columns of elapsed time that hold whole days only: dates, no clocks


def _survey(table: _Table, table_map: TableMap, counts: TableCounts, job: Import) -> _Survey:
    """Find out how dates are written and whether ids are whole numbers; count rows that cannot be parsed."""
    columns, rejected, parsed, odd_ids = table_map.date_columns(), Counter[str](), 0, 0
    totals = {name: DateCounts() for name in columns}
    elapsed = {when.column: when.unit for when in table_map.whens() if isinstance(when, Elapsed)}
    numbers = {name: _Numbers(elapsed.get(name)) for name in table_map.number_columns()}
    decimal = {name: "." if name.lower() in table.typed else table_map.decimal for name in numbers}
    for batch in table.blocks([*dict.fromkeys([table_map.subject, *columns, *numbers])], rejected):
        parsed += len(batch)
        for name, found in numbers.items():
            found.add(batch[name], decimal[name])
        totals = {name: dated + count_dates(batch[name]) for name, dated in totals.items()}
        ids = pc.utf8_trim_whitespace(batch[table_map.subject].drop_null())
        odd_ids += pc.sum(pc.invert(pc.match_substring_regex(ids, _NUMBER_ID))).as_py() or 0
    if table.csv is not None:
        lost = table.csv.rows_in(parsed, rejected.total()) - parsed
        job.report.lose_lines(
            counts, table.path.name, lost, table.csv.uneven_line if rejected else table.csv.odd_line
        )
    counts.begin(table.path.name)
    dates = job.date_columns(totals, where=str(table.path))
    counts.columns |= {"no_person": table_map.subject}
    counts.required |= {table_map.subject}
    for when in (table_map.time, *(event.time for event in table_map.events)):
        named = [when.since, when.before] if isinstance(when, Elapsed) else [when]
        counts.required |= {name for name in named if name is not None and name in totals}
    for name, found in numbers.items():
        _check_numbers(found, decimal[name], f"{table.path}, column {name}", job)
    whole_days = frozenset(name for name in elapsed if not numbers[name].clocks)
    return _Survey(dates, whole_ids=odd_ids == 0, decimal=decimal, whole_days=whole_days)


@dataclass
class _Numbers:
    """What the cells of a column of numbers hold."""

    unit: str | None = None  # of elapsed time
    filled: int = 0
    bad: int = 0  # are no numbers
    other: int = 0  # of these: are numbers with the other decimal mark
    clocks: int = 0  # elapsed times that are no whole days

    def add(self, cells: pa.ChunkedArray, decimal: str) -> None:
        """Count the cells of a block."""
        numbers = parse_numbers(cells, decimal)
        bad = pc.and_(pc.is_valid(cells), pc.is_null(numbers))
        if self.unit is not None:
            days = pc.multiply(numbers, UNIT_DAYS[self.unit])
            self.clocks += pc.sum(pc.not_equal(pc.floor(days), days)).as_py() or 0
        self.filled += len(cells) - cells.null_count
        self.bad += pc.sum(bad).as_py() or 0
        other = parse_numbers(cells.filter(bad), "." if decimal == "," else ",")
        self.other += len(other) - other.null_count


def _check_numbers(found: _Numbers, decimal: str, where: str, job: Import) -> None:
    """Refuse a column without any number, and note one whose numbers have another decimal mark.

    Raises:
        EhrseqError: No cell holds a number.
    """
    mark = "," if decimal == "." else "."
    write = f"write `decimal: '{mark}'` in the map if its numbers have a decimal {_MARKS[mark]}"
    if found.filled and found.bad == found.filled:
        fix = "read a column of texts by code_from in place of value, or name another column"
        raise EhrseqError(
            f"none of its {found.filled:,} values is a number",
            where=where,
            fix=write if found.other else fix,
        )
    if found.other:
        what = f"a {_MARKS[mark]} keeps {found.other:,} of {found.filled:,} values from being read"
        job.report.notes.append(f"{where}: {what}; {write}")


class _Block(Block):
    """A block of the table, read by what its survey has shown."""

    def __init__(self, batch: pa.Table, survey: _Survey, counts: TableCounts, job: Import) -> None:
        super().__init__(batch, counts, dates=survey.dates, decimal=survey.decimal)
        self.whole_ids, self.whole_days = survey.whole_ids, survey.whole_days
        self.rules = job.report.counts
        self._elapsed_seen: list[Elapsed] = []

    def subjects(self, column: str) -> pa.ChunkedArray:
        """Subject ids."""
        if self.whole_ids:
            return self.whole(column)
        return pa.chunked_array([subject_ids(self.text(column))])

    def moments(self, when: When) -> pa.ChunkedArray:
        """The time of each row."""
        if isinstance(when, Elapsed):
            return self._elapsed(when)
        if is_date(when):
            fixed = parse_times(pa.chunked_array([pa.array([when] * len(self), pa.string())]))
            return pa.chunked_array([fixed])
        return self.times(when)

    def _elapsed(self, when: Elapsed) -> pa.ChunkedArray:
        """Origin plus or minus the column, to the second.

        Where the column holds clocks, midnight becomes a second later, or it would mean a day.
        """
        origin = self.moments(when.since or when.before or "")
        days = self.numbers(when.column).to_numpy().astype(np.float64) * UNIT_DAYS[when.unit]
        good = np.abs(days) < _LONGEST_DAYS  # False for NaN
        if when.before is not None:  # an age below 0 would be a birth in the future
            good &= days >= 0
        bad = int((~good & ~np.isnan(days)).sum())
        if bad and when not in self._elapsed_seen:
            self.counts.uncount_values(when.column, bad)
        self._elapsed_seen.append(when)
        seconds = np.trunc(np.where(good, days, 0) * (DAY_US // SECOND_US)).astype(np.int64)
        start = np.asarray(pc.fill_null(origin.cast(pa.int64()), 0))
        us = start + seconds * (SECOND_US if when.since is not None else -SECOND_US)
        if when.column not in self.whole_days:
            us += np.where(us % DAY_US == 0, SECOND_US, 0)
        moments = pa.array(us, mask=~good | np.asarray(origin.is_null())).cast(pa.timestamp("us"))
        return pa.chunked_array([moments])


def _rows(table_map: TableMap, block: _Block, book: CodeBook) -> pa.Table:
    """Persons, births, deaths, static codes, events and the encounters' ids of a block."""
    subject, n = block.subjects(table_map.subject), len(block)
    base = {"subject_id": subject, "source": block.source}

    def rows(role: Role, code: Any, keep: Any = None, **columns: Any) -> pa.Table:
        codes = pa.array([code] * n, pa.string()) if code is None or isinstance(code, str) else code
        made = pa.table(
            {
                **base,
                "role": pa.array(np.full(n, int(role), dtype=np.int8)),
                "code": codes,
                **columns,
            }
        )
        return made if keep is None else made.filter(keep)

    parts = [
        rows(
            Role.PERSON,
            BIRTH,
            **({"time": block.moments(table_map.birth)} if table_map.birth else {}),
        )
    ]
    if table_map.death:
        time = block.moments(table_map.death)
        parts.append(rows(Role.DEATH, DEATH, pc.is_valid(time), time=time))
    for column, beginning in table_map.static.items():
        code = pc.binary_join_element_wise(pa.scalar(beginning), block.text(column), "//")
        parts.append(rows(Role.STATIC, code, pc.is_valid(code)))
    encounter: dict[str, Any] = {}
    if table_map.encounter is not None:
        encounter = {"encounter_id": block.text(table_map.encounter.id)}
        there = pc.and_(pc.is_valid(encounter["encounter_id"]), pc.is_valid(subject))
        parts.append(rows(Role.NAMED_VISIT, None, there, **encounter, **_span(table_map, block)))
    for event in table_map.events:
        code, keep, number = _event(event, block, book)
        role = pc.if_else(
            pc.equal(pc.fill_null(code, ""), DEATH), int(Role.DEATH), int(Role.EVENT)
        ).cast(pa.int8())
        time = block.moments(event.time or table_map.time or "")
        stay = {} if isinstance(event.time, str) and is_date(event.time) else encounter
        made = rows(Role.EVENT, code, time=time, numeric_value=number, **stay)
        parts.append(
            made.set_column(made.schema.get_field_index("role"), "role", role).filter(keep)
        )
    return pa.concat_tables(parts, promote_options="default")


def _span(table_map: TableMap, block: _Block) -> dict[str, pa.Array]:
    """When the encounter of each row was: as the map says, else on the day of the row's time."""
    stay = table_map.encounter
    if stay is not None and stay.start is not None:
        ends = {"end": block.moments(stay.end)} if stay.end is not None else {}
        return {"time": block.moments(stay.start), **ends}
    if table_map.time is None:
        return {}
    time = block.moments(table_map.time)
    return {"time": time, "end": pc.floor_temporal(time, unit="day")}


def _event(
    event: EventMap, block: _Block, book: CodeBook
) -> tuple[pa.ChunkedArray, Any, pa.ChunkedArray]:
    """The code of an event in each row, in which rows it is there, and its number."""
    n = len(block)
    nothing = pa.chunked_array([pa.nulls(n, pa.string())])
    code = pa.chunked_array([pa.array([event.code] * n, pa.string())])
    keep = pa.chunked_array([pa.array(np.ones(n, dtype=bool))])
    if event.code_from is not None:
        written = block.text(event.code_from)
        keep = pc.is_valid(written)
        code = (
            pc.binary_join_element_wise(code, written, "//") if event.code is not None else written
        )
        if event.codes:
            known = pa.array(list(event.codes))
            code = pa.chunked_array([pa.array([*event.codes.values()])]).take(
                pc.index_in(written, value_set=known)
            )
            block.rules["unlisted"] += pc.sum(pc.and_(keep, pc.is_null(code))).as_py() or 0
            keep = pc.is_valid(code)
    if event.value is None:
        return code, keep, nothing.cast(pa.float64())
    number = block.numbers(event.value)
    keep = pc.and_(keep, pc.is_valid(block.rows[event.value]))
    block.rules["no_number"] += pc.sum(pc.and_(keep, pc.is_null(number))).as_py() or 0
    unit = pa.chunked_array([pa.array([event.unit] * n, pa.string())])
    unit = block.text(event.unit_from) if event.unit_from is not None else unit
    united = pc.if_else(pc.is_valid(number), pc.binary_join_element_wise(code, unit, "//"), _NULL)
    book.add(united, nothing, code)
    return pc.coalesce(united, code), keep, number
