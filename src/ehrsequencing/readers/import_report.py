"""The account of an import: what became of each row and each cell of the source, rules applied, and warnings.

Readers and cleaning rules count into an `ImportReport`; `ehrseq import` prints it and writes it to
`metadata/import_report.json`. It names files, columns, rows and lines, and never holds a patient's value.
"""

import tomllib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.account import unequal
from ehrsequencing.records.words import lines_of

WARN_SHARE = 0.05  # warn if more of a table's rows, or of a column's cells, are lost
# of all diagnoses, beyond which an unconfirmed status is a system's default
MOST_UNSURE = 0.5
UNSURE = (
    "{:,} of {:,} {} have the status {}: they are no confirmed diagnoses; if it is your system's default, set "
    "import.provisional=confirmed"
)
_TABLE_BITS = 40  # the number of a row is table · 2⁴⁰ + its position in the table
_TEXTS = tomllib.loads(Path(__file__).with_name("rules.toml").read_text("utf-8"))
REASONS: dict[str, str] = _TEXTS["reasons"]
RULES: dict[str, str] = _TEXTS["rules"]
KEPT = "kept"
# what became of a row, by its number in `TableCounts.fates`: of several the highest counts
FATES = {fate: number for number, fate in enumerate([*REASONS, KEPT], start=1)}
_KINDS: dict[str, list[str]] = _TEXTS["kinds"]
EVERYBODY, DEAD = "everybody", "dead"  # whom the rules touch is held against these people
RuleCounts = Counter[str]  # how often each rule of RULES was applied


@dataclass
class Cells:
    """What became of the cells of one column: cells in = values + empty + unread."""

    values: int = 0
    empty: int = 0  # null or blank
    unread: int = 0  # filled, and not what the column should hold

    @property
    def filled(self) -> int:
        """Cells that hold something."""
        return self.values + self.unread


@dataclass
class TableCounts:
    """The fate of each row of one table; values, empty and unread cells of its columns."""

    name: str
    number: int  # among the tables
    essential: bool = True  # whether the import is refused if every row is lost
    columns: dict[str, str] = field(default_factory=dict)  # reason → the column concerned
    # columns without which the table says nothing: the import is refused if no cell can be read
    required: set[str] = field(default_factory=set)
    # position of each file's first row, and its name; None for a database
    parts: list[tuple[int, str | None]] = field(default_factory=list)
    fates: bytearray = field(default_factory=bytearray)  # of each row
    bad_line: dict[str, Any] | None = None  # file and line of the first row that cannot be parsed
    cells: dict[str, Cells] = field(default_factory=dict)  # by column, those that are used
    far_days: Counter[str] = field(default_factory=Counter)  # moments days away from their date
    days: int = 0  # rows with a date and no clock
    clocks: int = 0  # rows with a clock
    rules: "RuleCounts" = field(default_factory=Counter)  # of the whole import

    def take(self, rows: int) -> Ints:
        """(rows,) numbers for the rows that follow: the column `source` of a reader's rows."""
        first = (self.number << _TABLE_BITS) + self.rows_in
        self.fates.extend(bytes(rows))
        return np.arange(first, first + rows, dtype=np.int64)

    def lose_lines(self, file: str, rows: int, line: int | None) -> None:
        """Count rows of a file that could not be parsed, the first of them on `line`."""
        self.fates.extend(bytes([FATES["malformed_line"]]) * rows)
        if rows and self.bad_line is None:
            self.bad_line = {"file": file, "line": line}

    def count_cells(self, column: str, cells: int, filled: int, values: int) -> None:
        """Count the cells of some rows of a column, of which so many are filled and were read."""
        count = self.cells.setdefault(column, Cells())
        count.values += values
        count.empty += cells - filled
        count.unread += filled - values

    @property
    def rows_in(self) -> int:
        """Rows of the table."""
        return len(self.fates)

    @property
    def kept(self) -> int:
        """Rows that made a row of the output."""
        return self.fates.count(FATES[KEPT])

    @property
    def dropped(self) -> dict[str, int]:
        """Reason → rows."""
        rows_by_reason = {reason: self.fates.count(FATES[reason]) for reason in sorted(REASONS)}
        return {reason: rows for reason, rows in rows_by_reason.items() if rows}

    @property
    def lost(self) -> Counter[str]:
        """Reason → rows whose content is not in the output."""
        return Counter(
            {name: n for name, n in self.dropped.items() if name not in _KINDS["not_lost"]}
        )

    def example(self, reason: str) -> dict[str, object] | None:
        """File and row or line of the first row that was dropped for a reason, never its content."""
        if reason == "malformed_line":
            return self.bad_line
        first = self.fates.find(FATES[reason])
        start, file = self.parts[bisect_right([at for at, _ in self.parts], first) - 1]
        return None if file is None else {"file": file, "row": first - start + 1}

    def as_json(self) -> dict[str, object]:
        """The counts for the report."""
        dropped = [
            {
                "reason": reason,
                "column": self.columns.get(reason),
                "rows": rows,
                "example": self.example(reason),
            }
            for reason, rows in self.dropped.items()
        ]
        counted = {"rows_in": self.rows_in, "rows_out": self.kept, "dropped": dropped}
        cells = {name: vars(count) for name, count in sorted(self.cells.items())}
        return counted | ({"cells": cells} if cells else {})

    def check(self) -> None:
        """Refuse a table of which nothing is left, or a required column of which no cell can be read.

        Raises:
            EhrseqError: Every row was lost, or every filled cell of a required column.
        """
        where = next((file for _, file in self.parts if file is not None), f"table {self.name}")
        for name in sorted(self.required & self.cells.keys()):
            unread = self.cells[name].unread
            if unread and not self.cells[name].values:
                raise EhrseqError(
                    f"none of the {unread:,} cells of column {name} can be read",
                    where=where,
                    fix="write dates as yyyy-mm-dd, numbers in digits with the decimal mark of the map, and the keys "
                    "of its codes as the table writes its cells",
                )
        lost = self.lost
        if self.essential and lost.total() == self.rows_in > 0:
            worst = lost.most_common(1)[0][0]
            column = f"column {self.columns[worst]}: " if worst in self.columns else ""
            raise EhrseqError(
                f"all {self.rows_in:,} rows would be dropped ({column}{REASONS[worst]})",
                where=where,
                fix="correct the table, or leave it out of the source",
            )


@dataclass(repr=False)
class ImportReport:
    """The report of one import. It prints itself."""

    source: str  # name of the source format
    missing: list[str] = field(default_factory=list)  # known tables that the source lacks
    notes: list[str] = field(default_factory=list)  # what else the analyst should know
    cautions: list[str] = field(default_factory=list)  # warnings besides those about lost rows
    counts: RuleCounts = field(default_factory=Counter)
    # rule → ids of the people whose rows it touched, some at a time
    whose: dict[str, list[Ints]] = field(default_factory=dict)
    # beginnings, in lower case, of static codes that hold a sex
    sexes: set[str] = field(default_factory=lambda: {"sex", "gender"})
    tables: dict[str, TableCounts] = field(default_factory=dict)
    rows: int = 0  # written, as the three below
    subjects: int = 0
    deaths: int = 0  # people whose death was written
    codes: int = 0
    shards: int = 0

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def table(self, name: str) -> TableCounts:
        """The counts of a table, which begin with its first mention."""
        return self.tables.setdefault(name, TableCounts(name, len(self.tables), rules=self.counts))

    def count(self, rule: str, mask: Any) -> None:
        """Count the rows to which a rule was applied: those that are true; null is not."""
        self.counts[rule] += pc.sum(mask).as_py() or 0

    def apply(self, rule: str, subject_ids: Ints) -> None:
        """Count rows to which a rule was applied, by the ids of their people."""
        self.counts[rule] += len(subject_ids)
        self.note(rule, subject_ids)

    def note(self, rule: str, subject_ids: Ints) -> None:
        """Note people whom a rule touched."""
        if len(subject_ids):
            self.whose.setdefault(rule, []).append(np.unique(subject_ids))

    def people(self) -> dict[str, tuple[int, int]]:
        """Rule → the people whom it touched, and those of them who died."""
        ids = {name: np.unique(np.concatenate(parts)) for name, parts in self.whose.items()}
        dead = ids.get(DEAD, np.zeros(0, np.int64))
        everybody = ids.get(EVERYBODY, dead)
        known = {name: own[np.isin(own, everybody)] for name, own in ids.items()}
        return {name: (len(own), int(np.isin(own, dead).sum())) for name, own in known.items()}

    def count_clocks(self, sources: Ints, is_day: Bools) -> None:
        """Say of rows with a time whether it is a day without a clock; several of one source row count once."""
        sources, first = np.unique(sources, return_index=True)
        number = sources >> _TABLE_BITS
        for table in self.tables.values():
            own = is_day[first][number == table.number]
            table.days += int(own.sum())
            table.clocks += int((~own).sum())

    def mark(self, fate: str, sources: Ints) -> None:
        """Say what became of these rows of the source, a key of `FATES`; one that is kept elsewhere stays kept."""
        table, position = sources >> _TABLE_BITS, sources & ((1 << _TABLE_BITS) - 1)
        tables = list(self.tables.values())
        for number in np.flatnonzero(np.bincount(table)).tolist():
            fates, at = np.frombuffer(tables[number].fates, np.uint8), position[table == number]
            fates[at] = np.maximum(fates[at], FATES[fate])

    def as_json(self) -> dict[str, object]:
        """The report for `metadata/import_report.json`."""
        people = self.people()
        before = people.get(EVERYBODY, (0, 0))
        return {
            "source": self.source,
            "tables": {name: table.rows_in for name, table in self.tables.items()},
            "missing": self.missing,
            "rows": {name: table.as_json() for name, table in self.tables.items()},
            "written": {n: getattr(self, n) for n in ("subjects", "rows", "codes", "shards")},
            "people": {"before": before[0], "after": self.subjects},
            "deaths": {"before": before[1], "after": self.deaths},
            "rules": {
                name: {
                    "rows": n,
                    "rule": RULES[name],
                    **dict(zip(("people", "deaths"), people.get(name, ()), strict=False)),
                }
                for name, n in sorted(self.counts.items())
                if n
            },
            "notes": self.notes,
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """What an analyst should check before using the data."""
        people, unequal_rules = self.people(), list[tuple[Any, ...]]()
        n, dead = people.pop(EVERYBODY, (0, 0))
        for name in sorted(people.keys() & _KINDS["of_defects"]):
            touched, died = people[name]
            some, whole = (died, touched - died), (dead, n - dead)
            if unequal(some, whole):
                unequal_rules.append((name, some, whole))
        return self._lines("warnings.txt.jinja", unequal_rules=unequal_rules, kinds=_KINDS)

    def lines(self) -> list[str]:
        """The report for a terminal."""
        tables, people = self.tables.values(), self.people()
        dropped = [(table, table.dropped.get("not_read", 0)) for table in tables]
        return self._lines(
            "import_report.txt.jinja",
            read=[(table, table.rows_in) for table in tables],
            unread=[(table, rows) for table, rows in dropped if rows],
            people=people,
            before=people.get(EVERYBODY, (0, 0)),
        )

    def _lines(self, template: str, **values: Any) -> list[str]:
        path, tables = Path(__file__).with_name("templates") / template, self.tables.values()
        texts = {"reasons": REASONS, "rules": RULES, "WARN_SHARE": WARN_SHARE}
        return lines_of(path, r=self, tables=tables, **texts, **values)
