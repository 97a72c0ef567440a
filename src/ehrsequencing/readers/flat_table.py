"""Any flat table → MEDS, by a map that says what its columns mean (`config/importing.py`)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.config.importing import (
    Elapsed,
    EventMap,
    TableMap,
    When,
    is_date,
    load_table_map,
)
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import UNIT_DAYS
from ehrsequencing.readers.cells import (
    NO_TEXT,
    WHOLE_TEXT,
    Block,
    key_places,
    parse_times,
    refuse_scientific,
    shapes,
    whole_text,
)
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.readers.meds_writer import MedsWriter
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import (
    CodeBook,
    Left,
    Role,
    joined,
    make_rows,
    subject_ids,
    write_subject_names,
)
from ehrsequencing.readers.table_files import SourceTable, encoding_of, open_table
from ehrsequencing.records.events import BIRTH, DAY_US, DEATH, SECOND_US
from ehrsequencing.records.parquet_rows import is_text

# numbers that all are written in one way: not 0012, and 12.0 not beside 12
_NUMBER_IDS = (r"^(0|-?[1-9]\d{0,17})$", r"^(0|-?[1-9]\d{0,17})\.0$")
_OTHER_MARK = {".": r"^\s*-?\d+,(\d\d?|\d{4,})\s*$", ",": r"^\s*-?0+\.\d+\s*$"}  # no thousands
_MONTH = {"month": 30.4375}  # days, a twelfth of a year
# an event that ends a stay, by death where it says how
_DISCHARGE = r"(^|[/_])DISCHARGE(//.*(?i:died|dead|death|deceased|expired).*)?$"
_LONGEST_DAYS = 3_000_000
MOST_UNREAD = 0.1  # share of the cells of a column of dates that may be unreadable


Times = dict[When | None, pa.ChunkedArray]


@reader(
    "csv",
    help="Any flat table.",
    source="CSV, CSV.gz or Parquet file with a header; or the folder of the map's files",
    needs_map=True,
)
def import_csv(source: str, job: Import) -> None:
    """Read one table, or the files of a folder, by the map that the settings name; see `Reader`."""
    maps, path = load_table_map(job.settings.map), Path(source)
    is_single = [*maps] == [""]
    if not (path.is_file() if is_single else path.is_dir()):
        fix = "name a CSV or Parquet file" if is_single else "name the folder of the map's files"
        raise EhrseqError(f"is not a {'file' if is_single else 'folder'}", where=source, fix=fix)
    files = [_open(path / name, one, job) for name, one in maps.items()]
    stems = [(one.table.file or "").partition(".")[0].lower() for one in files]
    with job.writer(path if is_single else None, encounter=pa.string()) as writer:
        book, tables = CodeBook(), dict[str, _File]()
        writer.code_facts = lambda seen: book.facts
        for stem, one in zip(stems, files, strict=True):
            name = stem if stems.count(stem) == 1 else str(one.table.file)
            tables[name] = one
            one.survey(job.report.table(name), job)
        is_number = all(one.id_forms for one in files)
        for counts in job.tables([*tables]):
            tables[counts.name].read(counts, writer, book, job, is_number)
        cautions, people = job.report.cautions, list[pa.Array]()
        for one in files:
            cautions += one.cautions()
            people.append(pc.unique(pa.chunked_array(one.people, pa.string())).drop_null())
        # keys that are written in another way are those of strangers
        for place, (one, own) in enumerate(zip(files, people, strict=True)):
            others = pa.chunked_array([*people[:place], *people[place + 1 :]], pa.string())
            alone = len(own) - (pc.sum(pc.is_in(own, others)).as_py() or 0)
            if len(files) > 1 and alone > 0.5 * len(own):
                cautions.append(
                    f"{alone:,} of {len(own):,} people of {one.table.file} are in no other file: check that "
                    f"{one.map.subject} is written as elsewhere"
                )
        if nones := job.report.counts["none_code"]:
            job.report.notes.append(
                f"{nones:,} codes are None: list it under missing in the map if it means nothing"
            )
        if not is_number:
            write_subject_names([ids for one in files for ids in one.people], writer.folder)


def _open(path: Path, table_map: TableMap, job: Import) -> "_File":
    """Look at a file: its encoding, its header and the columns of its map."""
    if not path.is_file():
        raise EhrseqError("is not a file", where=str(path), fix="correct its name under files")
    encoding = table_map.encoding or encoding_of(path)
    if encoding != "utf-8" and table_map.encoding is None:
        with path.open("rb") as file:
            is_excel = b";" in file.readline()
        if not is_excel:
            raise EhrseqError(
                "is no UTF-8",
                where=str(path),
                fix="name its encoding in the map, as in encoding: cp1252, or save it as UTF-8",
            )
        job.report.notes.append(f"{path.name} is no UTF-8, and was read as Latin-1 (windows-1252)")
    table = open_table(path, missing=table_map.missing, encoding=encoding)
    table.check(*([name] for name in table_map.columns()))
    return _File(table, table_map)


@dataclass(eq=False)
class _File:
    """A table of the source, its map, and what a first pass over it shows."""

    table: SourceTable
    map: TableMap
    dates: dict[str, str] = field(default_factory=dict)  # as of `Block`
    people: list[pa.Array] = field(default_factory=list)  # the keys of its subjects
    # how every subject may be written: as the whole number that it is, and that it stays
    id_forms: Sequence[str] = _NUMBER_IDS
    # columns of elapsed time that hold parts of days: clocks, no dates
    clocks: set[str] = field(default_factory=set)
    # columns of codes with a cell that is no whole number
    mixed: set[str] = field(default_factory=set)
    # columns of numbers that seem to have another decimal mark than the map says
    other_marks: set[str] = field(default_factory=set)
    # columns of dates whose cells show a clock, and how many midnights each column of dates has
    show_clock: set[str] = field(default_factory=set)
    midnights: Counter[str] = field(default_factory=Counter)

    def survey(self, counts: TableCounts, job: Import) -> None:
        """The first pass, and which columns are needed."""
        table_map = self.map
        # rows without a readable subject are counted as `no_person`
        counts.columns["no_person"] = table_map.subject
        counts.required |= {table_map.subject, *table_map.number_columns(), *table_map.keys()}
        columns = (table_map.id_columns(), table_map.number_columns(), table_map.code_columns())
        self.dates = job.survey(
            [self.table],
            counts,
            table_map.date_columns(),
            self.look,
            [name for group in columns for name in group],
            decimal=table_map.decimal,
            written=table_map.dates,
        )

    def look(self, block: Block) -> None:
        """Look at a block."""
        ids, table_map = block.name(self.map.subject), self.map
        self.id_forms = [
            form
            for form in self.id_forms
            if pc.all(pc.match_substring_regex(ids, form)).as_py() is not False
        ]
        for name in table_map.id_columns():
            refuse_scientific(block, name)
        for name in table_map.number_columns():
            cells, other = block.rows[name], _OTHER_MARK[table_map.decimal]
            if is_text(cells.type) and pc.any(pc.match_substring_regex(cells, other)).as_py():
                self.other_marks.add(name)
        for when in table_map.whens():
            if isinstance(when, Elapsed):
                days = pc.multiply(block.numbers(when.column), (UNIT_DAYS | _MONTH)[when.unit])
                if pc.any(pc.not_equal(pc.floor(days), days)).as_py():
                    self.clocks.add(when.column)
        for name in table_map.code_columns():
            is_whole = pc.match_substring_regex(whole_text(block.text(name)), WHOLE_TEXT)
            if pc.all(is_whole).as_py() is False:
                self.mixed.add(name)

    def read(
        self, counts: TableCounts, writer: MedsWriter, book: CodeBook, job: Import, is_number: bool
    ) -> None:
        """The second pass; `is_number`: whether all ids of the source are whole numbers.

        Raises:
            EhrseqError: Cells of a column of dates are lost: a tenth of them, or one of a birth, a death or an end. The
                message has the forms of two cells, never a cell.
        """
        table_map, odd = self.map, dict[str, list[str]]()  # column → forms of cells that are lost
        kinds = {name: name in table_map.date_columns() for name in table_map.strict_columns()}
        columns = table_map.columns()
        for block in job.blocks(
            [self.table], counts, columns, self.dates, decimal=table_map.decimal
        ):
            ids = block.name(table_map.subject)
            self.people.append(pc.unique(ids))
            who = block.whole(table_map.subject) if is_number else subject_ids(ids)
            times: Times = {
                when: self.times(when, block) for when in dict.fromkeys(table_map.whens())
            }
            for name in set(table_map.date_columns()) & set(times) - {table_map.birth}:
                # what is taken for a date, although the column may show a clock
                cells, are_dates = block.rows[name], _at_midnight(times[name])
                self.midnights[name] += pc.sum(are_dates).as_py() or 0
                is_clock = pc.invert(are_dates)
                shows = pc.match_substring(cells, ":") if is_text(cells.type) else is_clock
                if pc.any(shows).as_py():
                    self.show_clock.add(name)
            for name, keys in table_map.keys().items():
                lost = key_places(block.text(name), keys).null_count
                counts.count_cells(name, 0, 0, block.text(name).null_count - lost)
            base = {"subject_id": who, "source": block.source}
            writer.add(self.rows(block, base, times, book, job))
            for name, is_date_ in kinds.items():
                values = block.times(name) if is_date_ else block.numbers(name)
                if is_text(block.rows[name].type) and len(odd.get(name, ())) < 2:
                    odd.setdefault(name, []).extend(shapes(block.text(name), values))
        for name, is_date_ in kinds.items():
            cells, is_sure = counts.cells[name], name in table_map.sure_columns()
            if cells.unread > (0 if is_sure else MOST_UNREAD * cells.filled):
                look = " and ".join(dict.fromkeys(odd.get(name, ["another kind of value"])))
                raise EhrseqError(
                    f"{cells.unread:,} of {cells.filled:,} cells of column {name} cannot be read as "
                    f"{'dates' if is_date_ else 'numbers'}; they look like {look}",
                    where=self.table.where,
                    fix="say in the map how dates are written, as in dates: '%d-%b-%y' for 03-Feb-15, or list what "
                    "means nothing, as in missing: [unknown]",
                )

    def cautions(self) -> list[str]:
        """What to check: clocks of 00:00 that were taken for dates, numbers with a decimal comma."""
        wrong = {
            ".": "3,5, which were not read: add decimal: ',' to the map",
            ",": "0.125, which were not read, and reads 1.125 as 1125: check its decimal mark",
        }[self.map.decimal]
        marks = [f"column {name} has numbers such as {wrong}" for name in sorted(self.other_marks)]
        return marks + [
            f"column {name}: 00:00 counts as a date, known at the end of the day, in {count:,} of its cells; "
            f"if it is a time of day there, add midnight: [{name}] to the map"
            for name, count in sorted(self.midnights.items())
            if count and name in self.show_clock
        ]

    def times(self, when: When, block: Block) -> pa.ChunkedArray:
        """(n,) the time that a part of the map means in each row.

        An elapsed time is origin plus or minus the column, to the second. Where the column holds clocks, midnight is a
        clock too.
        """
        if isinstance(when, str) and is_date(when):
            return parse_times(pa.chunked_array([pa.array([when] * len(block), pa.string())]))
        if isinstance(when, str):
            times = block.times(when)
            return _with_a_clock(times) if when in self.map.midnight else times
        origin = self.times(when.since or when.before or "", block)
        each = (UNIT_DAYS | _MONTH)[when.unit]
        days = block.numbers(when.column).to_numpy().astype(np.float64) * each
        good = np.abs(days) < _LONGEST_DAYS  # False for NaN
        if when.before is not None:  # an age below 0 would be a birth in the future
            good &= days >= 0
        block.counts.count_cells(when.column, 0, 0, -int((~good & ~np.isnan(days)).sum()))
        seconds = np.trunc(np.where(good, days, 0) * (DAY_US // SECOND_US)).astype(np.int64)
        start = np.asarray(pc.fill_null(origin.cast(pa.int64()), 0))
        us = start + seconds * (SECOND_US if when.since is not None else -SECOND_US)
        moments = pa.array(us, mask=~good | np.asarray(origin.is_null())).cast(pa.timestamp("us"))
        times = pa.chunked_array([moments])
        return _with_a_clock(times) if when.column in self.clocks else times

    def codes(self, block: Block, name: str) -> pa.ChunkedArray:
        """(n,) a column of codes as text, the same from CSV and Parquet: 250.0 is 250 where all are whole numbers."""
        text = block.text(name)
        if name not in self.mixed:
            return whole_text(text)
        decimals = ".0" if pa.types.is_floating(block.rows[name].type) else ""
        return pc.replace_substring_regex(text, r"^(-?\d+)$", rf"\1{decimals}")

    def rows(
        self, block: Block, base: dict[str, Any], times: Times, book: CodeBook, job: Import
    ) -> pa.Table:
        """Persons, births, deaths, static codes, events and the encounters' ids of a block."""
        table_map, encounter = self.map, self.map.encounter
        birth = {"time": times[table_map.birth]} if table_map.birth else {}
        parts = [make_rows(Role.PERSON, base, BIRTH, **birth)]
        if table_map.death:
            time = times[table_map.death]
            parts.append(make_rows(Role.DEATH, base, DEATH, pc.is_valid(time), time=time))
        for column, beginning in table_map.static.items():
            code = joined(pa.scalar(beginning), self.codes(block, column))
            job.report.count("none_code", pc.equal(block.text(column), "None"))
            parts.append(make_rows(Role.STATIC, base, code, pc.is_valid(code)))
        stay, has_start = base, encounter is not None and encounter.start is not None
        if encounter is not None:
            stay = {**base, "encounter_id": block.name(encounter.id)}
            there = pc.and_(pc.is_valid(stay["encounter_id"]), pc.is_valid(base["subject_id"]))
            span = dict[str, pa.ChunkedArray]()
            if has_start:
                span["time"] = times[encounter.start]
                span |= {"end": times[encounter.end]} if encounter.end is not None else {}
            elif table_map.time is not None:  # on the day of the row's time
                span["time"] = times[table_map.time]
                span["end"] = pc.floor_temporal(span["time"], unit="day")
            parts.append(make_rows(Role.NAMED_VISIT, stay, None, there, **span))
        for event in table_map.events:
            code, keep, number = self.event(event, block, book, job)
            time = times[event.time or table_map.time]
            fixed = isinstance(event.time, str) and is_date(event.time)
            values = {"time": time, "numeric_value": number}
            is_death = pc.fill_null(pc.equal(code, DEATH), False)
            if table_map.death:
                ends = pc.match_substring(code, "DISCHARGE")
                values["acute"] = pc.and_(ends, pc.match_substring_regex(code, _DISCHARGE))
                is_other = pc.xor(ends, values["acute"])
                values["left"] = pc.if_else(is_other, int(Left.ALIVE), None).cast(pa.int8())
            # a code with a time of its own may lie before the encounter that wrote it down
            is_report = event.code_from is not None and event.value is None
            is_report &= event.time is not None and has_start
            is_report &= job.settings.known == "latest"
            usual = Role.BEGUN if is_report else Role.EVENT
            for role, chosen in ((Role.DEATH, is_death), (usual, pc.invert(is_death))):
                chosen = pc.and_(keep, chosen)
                if role is Role.DEATH and event.code_from is None:  # it is in every row
                    chosen = pc.and_(chosen, pc.is_valid(time))
                parts.append(make_rows(role, base if fixed else stay, code, chosen, **values))
        return pa.concat_tables(parts, promote_options="default")

    def event(
        self, event: EventMap, block: Block, book: CodeBook, job: Import
    ) -> tuple[pa.ChunkedArray, Any, pa.ChunkedArray]:
        """The code of an event in each row, in which rows it is there, and its number."""
        n = len(block)
        code = pa.chunked_array([pa.array([event.code] * n, pa.string())])
        keep = pa.chunked_array([pa.array(np.ones(n, dtype=bool))])
        if event.code_from is not None:
            written = self.codes(block, event.code_from)
            job.report.count("none_code", pc.equal(written, "None"))
            keep = pc.is_valid(written)
            code = joined(code, written) if event.code is not None else written
            if event.codes:
                place = key_places(block.text(event.code_from), [*event.codes])
                code = pa.chunked_array([pa.array([*event.codes.values()])]).take(place)
                job.report.count("unlisted", pc.and_(keep, pc.is_null(code)))
                keep = pc.is_valid(code)
        if event.value is None:
            return code, keep, pa.chunked_array([pa.nulls(n, pa.float64())])
        number = block.numbers(event.value)
        is_filled = pc.is_valid(number)
        if is_text(block.rows[event.value].type):
            is_filled = pc.is_valid(block.name(event.value))
        keep = pc.and_(keep, is_filled)
        job.report.count("no_number", pc.and_(keep, pc.is_null(number)))
        unit = pa.chunked_array([pa.array([event.unit] * n, pa.string())])
        unit = block.name(event.unit_from) if event.unit_from is not None else unit
        united = pc.if_else(pc.is_valid(number), joined(code, unit), NO_TEXT)
        if united.null_count < n:  # of thousands of events most may have no unit
            book.add(united, parent=code)
        return pc.coalesce(united, code), keep, number


def _with_a_clock(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times with midnight a second later, or it would mean a day."""
    later = pc.multiply(_at_midnight(times).cast(pa.int64()), SECOND_US)
    return pc.add(times.cast(pa.int64()), later).cast(pa.timestamp("us"))


def _at_midnight(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """(n,) whether a time is exactly 00:00; null where there is none."""
    us = times.cast(pa.int64())
    return pc.equal(pc.multiply(pc.divide(us, DAY_US), DAY_US), us)
