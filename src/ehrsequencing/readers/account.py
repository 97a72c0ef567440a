"""Where every row of a source went: rows in, rows out, and rows dropped for each table, column and reason."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ehrsequencing.arrays import Bools, Ints
from ehrsequencing.errors import EhrseqError

WARN_SHARE = 0.05  # of a table's rows, or of a column's dates, that may be lost in silence
_TABLE_BITS = 40  # a row's number is table · 2⁴⁰ + its place in the table
REASONS = {
    "malformed_line": "a stray quote, or another number of fields than the header",
    "no_person": "no readable person id",
    "unknown_person": "the table of persons lacks the person",
    "no_time": "no readable date",
    "no_code": "no code",
    "two_births": "a further birth of the same person: the earliest counts",
    "two_deaths": "a further death of the same person: the earliest counts",
    "nobody": "the person has no row but a birth and what never changes",
    "duplicates": "says the same as another row",
    "overlapping_periods": "merged into another observation period",
}
_KEPT_ELSEWHERE = {"duplicates", "overlapping_periods"}  # what these rows say is in the output


def distinct(numbers: Ints) -> Ints:
    """The sorted distinct numbers; several times faster than NumPy's own where most of them differ."""
    ordered = np.sort(numbers)
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered


def among(numbers: Ints, ordered: Ints) -> Bools:
    """(n,) which of some numbers are among sorted ones."""
    if not len(ordered):
        return np.zeros(len(numbers), dtype=bool)
    at = np.searchsorted(ordered, numbers)
    at[at == len(ordered)] = 0
    return np.asarray(ordered[at] == numbers)


@dataclass
class _Dropped:
    rows: int = 0
    first: int | None = None  # place in the table of the first of them


@dataclass
class TableAccount:
    """The account of one table.

    Attributes:
        name: The table.
        number: Its number among the tables.
        columns: Reason → the column concerned.
        parts: Place in the table at which each file begins, and the file; no name for a table of a database.
        read: Rows that could be parsed.
        kept: Rows that made a row of the output.
        malformed: File → rows that could not be parsed, and the first of their lines.
        dropped: Reason → how many, and the first.
        unreadable: Column → cells that are no date, and cells that are filled.
    """

    name: str
    number: int
    columns: dict[str, str] = field(default_factory=dict)
    parts: list[tuple[int, str | None]] = field(default_factory=list)
    read: int = 0
    kept: int = 0
    malformed: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    dropped: dict[str, _Dropped] = field(default_factory=dict)
    unreadable: dict[str, tuple[int, int]] = field(default_factory=dict)

    def begin(self, file: str | None) -> None:
        """The rows that follow are of this file."""
        self.parts.append((self.read, file))

    def take(self, rows: int) -> Ints:
        """(rows,) numbers for the rows that follow."""
        first = (self.number << _TABLE_BITS) + self.read
        self.read += rows
        return np.arange(first, first + rows, dtype=np.int64)

    def lose_lines(self, file: str, rows: int, line: int | None) -> None:
        """Count rows of a file that could not be parsed."""
        if rows:
            self.malformed[file] = (rows, line)

    @property
    def rows_in(self) -> int:
        """Rows that the table holds, whether they could be parsed or not."""
        return self.read + sum(rows for rows, _ in self.malformed.values())

    @property
    def lost(self) -> int:
        """Rows in whose content is not in the output."""
        gone = sum(d.rows for reason, d in self.dropped.items() if reason not in _KEPT_ELSEWHERE)
        return gone + sum(rows for rows, _ in self.malformed.values())

    def as_json(self) -> dict[str, Any]:
        """The account for the report; an example names a file and a row or line, never what stands there."""
        dropped = [
            {"reason": "malformed_line", "column": None, "rows": rows, "example": {"file": file, "line": line}}
            for file, (rows, line) in sorted(self.malformed.items())
        ]
        dropped += [
            {"reason": reason, "column": self.columns.get(reason), "rows": d.rows, "example": self._example(d.first)}
            for reason, d in sorted(self.dropped.items())
        ]
        out = {"rows_in": self.rows_in, "rows_out": self.kept, "dropped": dropped}
        cells = {name: {"unreadable": bad, "filled": n} for name, (bad, n) in sorted(self.unreadable.items()) if bad}
        return out | ({"dates": cells} if cells else {})

    def _example(self, place: int | None) -> dict[str, Any] | None:
        """File and row of a place in the table; rows are counted from 1, without the header and what was malformed."""
        if place is None:
            return None
        start, file = self.parts[bisect_right([start for start, _ in self.parts], place) - 1]
        return None if file is None else {"file": file, "row": place - start + 1}

    def lines(self) -> list[str]:
        """The account for a terminal: only what was dropped."""
        out = []
        for entry in self.as_json()["dropped"]:
            example = entry["example"]
            kind = "line" if example and "line" in example else "row"
            where = f"; first: {example['file']}, {kind} {example[kind]}" if example and example[kind] else ""
            column = f"{entry['column']}: " if entry["column"] else ""
            share = f"{entry['rows']:,} of {self.rows_in:,} rows"
            out.append(f"dropped from {self.name}: {share} ({column}{REASONS[entry['reason']]}{where})")
        for name, (bad, n) in sorted(self.unreadable.items()):
            out += [f"not read in {self.name}: {bad:,} of {n:,} dates of {name}"] if bad else []
        return out

    def warnings(self) -> list[str]:
        """What an analyst has to look at before going on."""
        out = []
        if self.rows_in and self.lost > WARN_SHARE * self.rows_in:
            worst = max(self._reasons().items(), key=lambda item: item[1])[0]
            share = f"{self.lost:,} of {self.rows_in:,} rows of {self.name} ({self.lost / self.rows_in:.1%})"
            out.append(f"{share} were dropped, most of them because: {REASONS[worst]}")
        for name, (bad, n) in sorted(self.unreadable.items()):
            if bad > WARN_SHARE * n:
                out.append(f"{bad:,} of {n:,} dates in column {name} of {self.name} ({bad / n:.1%}) cannot be read")
        return out

    def check(self) -> None:
        """Refuse a table of which nothing is left.

        Raises:
            EhrseqError: Every row of it was lost.
        """
        if not self.rows_in or self.lost < self.rows_in:
            return
        worst = max(self._reasons().items(), key=lambda item: item[1])[0]
        example = next((e["example"] for e in self.as_json()["dropped"] if e["reason"] == worst), None)
        column = f"column {self.columns[worst]}: " if worst in self.columns else ""
        where = example["file"] if example else f"table {self.name}"
        fix = "correct the table, or leave it out of the source"
        raise EhrseqError(
            f"all {self.rows_in:,} rows would be dropped ({column}{REASONS[worst]})", where=where, fix=fix
        )

    def _reasons(self) -> Counter[str]:
        found = Counter({reason: d.rows for reason, d in self.dropped.items() if reason not in _KEPT_ELSEWHERE})
        found["malformed_line"] += sum(rows for rows, _ in self.malformed.values())
        return found


class Account:
    """The accounts of all tables, by their names."""

    def __init__(self) -> None:
        self.tables: dict[str, TableAccount] = {}

    def table(self, name: str) -> TableAccount:
        """The account of a table, opened at its first mention."""
        return self.tables.setdefault(name, TableAccount(name, len(self.tables)))

    def drop(self, reason: str, sources: Ints) -> None:
        """Count rows, each of them once, that made no row of the output."""
        for table, places in self._by_table(sources):
            entry = table.dropped.setdefault(reason, _Dropped())
            entry.rows += len(places)
            entry.first = int(places[0]) if entry.first is None else min(entry.first, int(places[0]))

    def keep(self, sources: Ints) -> None:
        """Count rows, each of them once, that made a row of the output."""
        for table, places in self._by_table(sources):
            table.kept += len(places)

    def _by_table(self, sources: Ints) -> list[tuple[TableAccount, Ints]]:
        """Tables and the sorted places of these rows in them."""
        sources = distinct(sources)
        edges = np.searchsorted(sources, np.arange(len(self.tables) + 1) << _TABLE_BITS)
        parts = [sources[low:high] & ((1 << _TABLE_BITS) - 1) for low, high in pairwise(edges.tolist())]
        return [(t, places) for t, places in zip(self.tables.values(), parts, strict=True) if len(places)]
