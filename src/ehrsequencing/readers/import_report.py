"""What an import read, dropped and wrote: rows of each table by reason, rules applied, and warnings.

Readers and cleaning rules count into an `ImportReport`; `ehrseq import` prints it and writes it to
`metadata/import_report.json`. It names files, columns, rows and lines, and never holds a patient's value.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError

WARN_SHARE = 0.05  # warn if more of a table's rows, or of a column's dates, are lost
_TABLE_BITS = 40  # the number of a row is table · 2⁴⁰ + its position in the table
REASONS = {
    "malformed_line": "a stray quote, or another number of fields than the header",
    "no_person": "no readable person id",
    "unknown_person": "the person is not in the table of persons",
    "no_time": "no readable date",
    "no_code": "no code",
    "no_type": "no resource type",
    "not_read": "resources of this type are not read",
    "not_done": "its status says that it is wrong, or did not happen",
    "no_result": "it says that its result is absent",
    "older_version": "a newer version of the same resource is there",
    "withdrawn": "the source says that it was deleted",
    "replaced": "the record of a patient that another record replaces",
    "no_diagnosis": "a bill without a diagnosis of its own: Conditions that it refers to are read themselves",
    "looked_up": "read where another resource refers to it",
    "two_births": "a further birth of the same person: the earliest counts",
    "two_deaths": "a further death of the same person: the earliest counts",
    "open_end": "a death in the far future: it means that nobody has died yet",
    "nobody": "the person has no row with a time other than the birth",
    "duplicates": "equals another row",
    "overlapping_periods": "merged into another observation period",
}
# The content of these rows is in the output, or belongs to no record of events.
_NOT_LOST = {
    "duplicates",
    "overlapping_periods",
    "not_read",
    "not_done",
    "no_result",
    "no_diagnosis",
    "looked_up",
    "older_version",
    "withdrawn",
    "replaced",
    "open_end",
}
RULES = {
    "malformed_line": "lines with a stray quote or another number of fields than the header were dropped",
    "no_person": "rows without a readable person id were dropped",
    "unknown_person": "rows of persons that are not in the table of persons were dropped",
    "no_time": "rows without a readable date were dropped",
    "no_code": "rows without a code were dropped",
    "unmapped": "rows whose concept is 0 or missing were kept as OMOP//0//DOMAIN, without their number",
    "uncoded": "concepts with a text and no coding were kept as FHIR//0//TYPE: the text may hold a name",
    "partial_date": "dates without a day were put at the end of their month or year, births and stays at its start",
    "not_done": "resources whose status says that they are wrong or did not happen were left out",
    "no_result": "results that are absent, with a reason, were left out",
    "bound": "values that are a bound, such as <5, were kept as text, without a number",
    "older_version": "resources of which a newer version is there were left out",
    "withdrawn": "resources that the source says were deleted were left out",
    "replaced": "patients' records were merged into the record that replaces them",
    "undated": "conditions, procedures and the like without a date were put at the end of their visit",
    "fixed_code": "line breaks and runs of blanks in codes became one blank",
    "duplicates": "rows that repeat another row exactly were dropped",
    "dangling_encounter": "rows whose visit does not exist for that person were kept without it",
    "outside_visit": "rows more than a day before or after their visit were kept without it, or they would stretch it",
    "began_before": "conditions and reports without a recording date began before their visit: put at its end",
    "date_only": "dates without a time were put at the end of their day, or of their visit where that is earlier",
    "end_before_start": "ends that lie before their start were dropped",
    "open_end": "ends and deaths in the far future were dropped: they mean that nothing had ended yet",
    "two_births": "persons with several births got the earliest",
    "two_deaths": "persons with several deaths got the earliest",
    "no_birth": "persons have no date of birth: their age is unknown",
    "overlapping_periods": "observation periods that overlap or touch were merged",
    "no_number": "values that are no number were dropped, their code kept",
    "unlisted": "texts that the map's `codes` does not list made no event",
    "undated_death": "persons have died at an unknown time: they have no death",
    "negative_ids": "persons have a negative id, which is kept",
    "nobody": "persons without any row with a time, besides their birth, were left out",
}
RuleCounts = Counter[str]  # how often each rule of RULES was applied


def distinct(numbers: Ints) -> Ints:
    """The sorted distinct numbers; several times faster than NumPy's own where most of them differ."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers
    ordered = np.sort(numbers)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered


def among(numbers: Ints, ordered: Ints) -> Bools:
    """(n,) whether each number is among the sorted ones."""
    if not len(ordered):
        return np.zeros(len(numbers), dtype=bool)
    at = np.searchsorted(ordered, numbers)
    at[at == len(ordered)] = 0
    return np.asarray(ordered[at] == numbers)


@dataclass
class Cells:
    """What became of the cells of one column: cells in = values + empty + unread."""

    values: int = 0
    empty: int = 0  # null or blank
    unread: int = 0  # filled, and not what the column should hold

    @property
    def filled(self) -> int:
        """Cells that hold anything."""
        return self.values + self.unread

    def as_json(self) -> dict[str, int]:
        """The counts for the report."""
        return {"values": self.values, "empty": self.empty, "unread": self.unread}


@dataclass
class TableCounts:
    """Rows in, rows out and rows dropped of one table; values, empty and unread cells of its columns."""

    name: str
    number: int  # among the tables
    essential: bool = True  # whether the import is refused if every row is lost
    columns: dict[str, str] = field(default_factory=dict)  # reason → the column concerned
    # a file's first position; None for a database
    parts: list[tuple[int, str | None]] = field(default_factory=list)
    read: int = 0  # rows that could be parsed
    kept: int = 0  # rows that made a row of the output
    # file → rows not parsed, first line
    malformed: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    # reason → rows, position of the first
    dropped: dict[str, tuple[int, int]] = field(default_factory=dict)
    cells: dict[str, Cells] = field(default_factory=dict)  # by column, those that are used
    # columns without which the table says nothing: the import is refused if no cell can be read
    required: set[str] = field(default_factory=set)

    def begin(self, file: str | None) -> None:
        """Say that the rows that follow are of this file."""
        self.parts.append((self.read, file))

    def take(self, rows: int) -> Ints:
        """(rows,) numbers for the rows that follow: the column `source` of a reader's rows."""
        first = (self.number << _TABLE_BITS) + self.read
        self.read += rows
        return np.arange(first, first + rows, dtype=np.int64)

    def count_cells(self, column: str, cells: int, filled: int, values: int) -> None:
        """Count the cells of some rows of a column, of which so many are filled and were read."""
        found = self.cells.setdefault(column, Cells())
        found.values += values
        found.empty += cells - filled
        found.unread += filled - values

    def uncount_values(self, column: str, values: int) -> None:
        """Say that so many values of a column could not be read after all."""
        self.cells[column].values -= values
        self.cells[column].unread += values

    @property
    def rows_in(self) -> int:
        """Rows that the table holds, whether they could be parsed or not."""
        return self.read + sum(rows for rows, _ in self.malformed.values())

    @property
    def lost(self) -> Counter[str]:
        """Reason → rows whose content is not in the output."""
        found = Counter(
            {reason: rows for reason, (rows, _) in self.dropped.items() if reason not in _NOT_LOST}
        )
        found["malformed_line"] += sum(rows for rows, _ in self.malformed.values())
        return found

    def as_json(self) -> dict[str, Any]:
        """The counts for the report; an example names a file and a row or line, never its content."""
        dropped = [
            {
                "reason": "malformed_line",
                "column": None,
                "rows": rows,
                "example": {"file": file, "line": line},
            }
            for file, (rows, line) in sorted(self.malformed.items())
        ]
        dropped += [
            {
                "reason": reason,
                "column": self.columns.get(reason),
                "rows": rows,
                "example": self._example(first),
            }
            for reason, (rows, first) in sorted(self.dropped.items())
        ]
        cells = {name: found.as_json() for name, found in sorted(self.cells.items())}
        return {
            "rows_in": self.rows_in,
            "rows_out": self.kept,
            "dropped": dropped,
            **({"cells": cells} if cells else {}),
        }

    def _example(self, position: int) -> dict[str, Any] | None:
        """File and row of a position; rows are counted from 1, without the header and malformed lines."""
        start, file = self.parts[bisect_right([start for start, _ in self.parts], position) - 1]
        return None if file is None else {"file": file, "row": position - start + 1}

    def lines(self) -> list[str]:
        """What was dropped, as lines for a terminal."""
        out = []
        for entry in self.as_json()["dropped"]:
            if entry["reason"] == "not_read":
                continue  # in one line for all tables
            example = entry["example"]
            kind = "line" if example and "line" in example else "row"
            where = (
                f"; first: {example['file']}, {kind} {example[kind]}"
                if example and example[kind]
                else ""
            )
            column = f"{entry['column']}: " if entry["column"] else ""
            share = f"{entry['rows']:,} of {self.rows_in:,} rows"
            out.append(
                f"dropped from {self.name}: {share} ({column}{REASONS[entry['reason']]}{where})"
            )
        out += [
            f"not read in {self.name}: {found.unread:,} of {found.filled:,} values of {name}"
            for name, found in sorted(self.cells.items())
            if found.unread
        ]
        return out

    def warnings(self) -> list[str]:
        """What an analyst should check before using the data."""
        out, lost = [], self.lost
        total = lost.total()
        if self.rows_in and total > WARN_SHARE * self.rows_in:
            share = (
                f"{total:,} of {self.rows_in:,} rows of {self.name} ({total / self.rows_in:.1%})"
            )
            out.append(
                f"{share} were dropped, most of them because: {REASONS[lost.most_common(1)[0][0]]}"
            )
        for name, found in sorted(self.cells.items()):
            if found.unread > WARN_SHARE * found.filled:
                cells = (
                    f"{found.unread:,} of {found.filled:,} values in column {name} of {self.name}"
                )
                out.append(f"{cells} ({found.unread / found.filled:.1%}) cannot be read")
        return out

    def check(self) -> None:
        """Refuse a table of which nothing is left, or a required column of which no cell can be read.

        Raises:
            EhrseqError: Every row was lost, or every filled cell of a required column.
        """
        for name in sorted(self.required & self.cells.keys()):
            found = self.cells[name]
            if found.unread and not found.values:
                what = f"none of the {found.filled:,} cells of column {name} can be read"
                fix = "write dates as yyyy-mm-dd, clocks with 24 hours, and numbers in digits"
                file = next((file for _, file in self.parts if file is not None), None)
                raise EhrseqError(what, where=file or f"table {self.name}", fix=fix)
        lost = self.lost
        if not self.essential or not self.rows_in or lost.total() < self.rows_in:
            return
        worst = lost.most_common(1)[0][0]
        example = next(
            (e["example"] for e in self.as_json()["dropped"] if e["reason"] == worst), None
        )
        column = f"column {self.columns[worst]}: " if worst in self.columns else ""
        what = f"all {self.rows_in:,} rows would be dropped ({column}{REASONS[worst]})"
        where = example["file"] if example else f"table {self.name}"
        raise EhrseqError(what, where=where, fix="correct the table, or leave it out of the source")


class RowCounts:
    """The counts of all tables, by name."""

    def __init__(self) -> None:
        self.tables: dict[str, TableCounts] = {}

    def table(self, name: str) -> TableCounts:
        """The counts of a table, which begin with its first mention."""
        return self.tables.setdefault(name, TableCounts(name, len(self.tables)))

    def drop(self, reason: str, sources: Ints) -> None:
        """Count rows, each of them once, that made no row of the output."""
        for table, positions in self._by_table(sources):
            first = int(positions[0])
            rows, before = table.dropped.get(reason, (0, first))
            table.dropped[reason] = rows + len(positions), min(before, first)

    def keep(self, sources: Ints) -> None:
        """Count rows, each of them once, that made a row of the output."""
        for table, positions in self._by_table(sources):
            table.kept += len(positions)

    def _by_table(self, sources: Ints) -> list[tuple[TableCounts, Ints]]:
        """Tables, and the sorted positions of these rows in them."""
        sources = distinct(sources)
        edges = np.searchsorted(sources, np.arange(len(self.tables) + 1) << _TABLE_BITS)
        parts = [
            sources[low:high] & ((1 << _TABLE_BITS) - 1) for low, high in pairwise(edges.tolist())
        ]
        return [
            (t, positions)
            for t, positions in zip(self.tables.values(), parts, strict=True)
            if len(positions)
        ]


@dataclass
class ImportReport:
    """The report of one import."""

    source: str  # name of the source format
    tables: dict[str, int] = field(default_factory=dict)  # rows read of each table
    missing: list[str] = field(default_factory=list)  # known tables that the source lacks
    notes: list[str] = field(default_factory=list)  # what else the analyst should know
    cautions: list[str] = field(default_factory=list)  # warnings besides those about lost rows
    counts: RuleCounts = field(default_factory=Counter)
    row_counts: RowCounts = field(default_factory=RowCounts)
    rows: int = 0  # written, as the three below
    subjects: int = 0
    codes: int = 0
    shards: int = 0

    def lose_lines(self, table: TableCounts, file: str, rows: int, line: int | None) -> None:
        """Count rows of a file that could not be parsed, the first of them on `line`."""
        self.counts["malformed_line"] += rows
        if rows:
            table.malformed[file] = (rows, line)

    def as_json(self) -> dict[str, Any]:
        """The report for `metadata/import_report.json`."""
        return {
            "source": self.source,
            "tables": self.tables,
            "missing": self.missing,
            "rows": {name: table.as_json() for name, table in self.row_counts.tables.items()},
            "written": {
                "subjects": self.subjects,
                "rows": self.rows,
                "codes": self.codes,
                "shards": self.shards,
            },
            "rules": {
                name: {"rows": n, "rule": RULES[name]}
                for name, n in sorted(self.counts.items())
                if n
            },
            "notes": self.notes,
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """What an analyst should check before using the data."""
        return self.cautions + [
            line for table in self.row_counts.tables.values() for line in table.warnings()
        ]

    def lines(self) -> list[str]:
        """The report for a terminal."""
        out = [f"read: {', '.join(f'{name} {rows:,}' for name, rows in self.tables.items())}"]
        out += [f"missing tables: {', '.join(self.missing)}"] if self.missing else []
        tables = self.row_counts.tables
        unread = [
            f"{name} {t.dropped['not_read'][0]:,}"
            for name, t in tables.items()
            if "not_read" in t.dropped
        ]
        out += [f"resources of other types, not read: {', '.join(unread)}"] if unread else []
        out += [line for table in tables.values() for line in table.lines()]
        out += [f"rule: {n:,} {RULES[name]}" for name, n in sorted(self.counts.items()) if n]
        out += [f"note: {note}" for note in self.notes]
        return [*out, f"wrote {self.rows:,} rows, {self.subjects:,} subjects, {self.codes:,} codes"]
