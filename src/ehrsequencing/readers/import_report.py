"""The account of an import: what became of each row and each cell of the source, rules applied, and warnings.

Readers and cleaning rules count into an `ImportReport`; `ehrseq import` prints it and writes it to
`metadata/import_report.json`. It names files, columns, rows and lines, and never holds a patient's value.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.disclosure import count_text
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.account import unequal

WARN_SHARE = 0.05  # warn if more of a table's rows, or of a column's cells, are lost
# of all diagnoses, beyond which an unconfirmed status is a system's default
MOST_UNSURE = 0.5
UNSURE = (
    "{:,} of {:,} {} have the status {}: they are no confirmed diagnoses; if it is your system's default, set "
    "import.provisional=confirmed"
)
_TABLE_BITS = 40  # the number of a row is table · 2⁴⁰ + its position in the table
# Of a row that made several rows of ours, the last reason in this order counts.
REASONS = {
    "malformed_line": "a stray quote, or another number of fields than the header",
    "no_type": "no resource type",
    "not_read": "resources of this type are not read",
    "not_done": "it says that it is wrong, did not happen, or was ruled out",
    "no_result": "it says that its result is absent",
    "modified": "an extension that is not read may change its meaning (modifierExtension)",
    "older_version": "a newer version of the same resource is there",
    "subsetted": "a copy that lacks some elements (SUBSETTED), beside the whole resource",
    "withdrawn": "the source says that it was deleted",
    "replaced": "the record of a patient that another record replaces",
    "of_another": "it is about somebody or something else than its subject (`focus`)",
    "adjusted": "a bill that a later bill replaces or voids",
    "no_diagnosis": "a bill without a diagnosis of its own: Conditions that it refers to are read themselves",
    "looked_up": "read where another resource refers to it",
    "no_person": "the person id is missing or cannot be read (in FHIR, an `identifier` alone cannot be followed)",
    "no_code": "no code",
    "no_time": "no readable date",
    "duplicates": "equals another row",
    "overlapping_periods": "merged into another observation period",
    "two_deaths": "a further death of the same person: the earliest counts",
    "vaguer_death": "a death without a day: a more precise one of the same person counts",
    "two_births": "a further birth of the same person: the earliest counts",
    "open_end": "a death in the far future: it means that nobody has died yet",
    "issued_after_death": "a result that was issued after the death of its person",
    "nobody": "the person has no row with a time other than the birth",
    "unknown_person": "the person is not in the table of persons",
}
FATES = {
    reason: number for number, reason in enumerate(REASONS, start=1)
}  # of rows, in `TableCounts.fates`
_KEPT = len(REASONS) + 1
# The content of these rows is in the output, or belongs to no record of events.
_NOT_LOST = {
    "vaguer_death",
    "duplicates",
    "overlapping_periods",
    "not_read",
    "not_done",
    "no_result",
    "no_diagnosis",
    "looked_up",
    "older_version",
    "subsetted",
    "issued_after_death",
    "of_another",
    "adjusted",
    "withdrawn",
    "replaced",
    "open_end",
}
RULES = {
    "malformed_line": "lines with a stray quote or another number of fields than the header were dropped",
    "no_person": "the person id is missing or cannot be read (in FHIR, an `identifier` alone cannot be followed)",
    "unknown_person": "rows of persons that are not in the table of persons were dropped",
    "no_time": "rows without a readable date were dropped",
    "no_code": "rows without a code were dropped",
    "unmapped": "rows whose concept is 0 or missing were kept as OMOP//0//DOMAIN, without their number",
    "uncoded": "concepts without a code, or with null flavours, were kept as FHIR//0//TYPE: their text may hold a name",
    "partial_date": "dates without a day were put at the end of their month or year, births and stays at its start",
    "not_done": "resources that say that they are wrong, did not happen or were ruled out were left out",
    "no_result": "results that are absent, with a reason, were left out",
    "bound": "values that are a bound, such as <5, were kept as text, without a number",
    "modified": "resources, or components of them, with an unknown modifier extension were left out",
    "late_issue": "results whose issue lies over 90 days after them stand at their own time",
    "subsetted": "copies of resources that lack some elements were left out beside the whole ones",
    "older_version": "resources of which a newer version is there were left out",
    "withdrawn": "resources that the source says were deleted were left out",
    "provisional": "diagnoses that are not confirmed (differential, provisional …) got the ending //provisional",
    "of_another": "results that are about somebody or something else than their subject (`focus`) were left out",
    "adjusted": "bills that a later bill replaces or voids were left out",
    "linked": "patients' records were joined with others that their source links: one person",
    "linked_many": "persons have more than five linked records: check that these are no different people",
    "shared_number": "patients' records share a record number with another, and may be one person: not joined",
    "replaced": "patients' records were merged into the record that replaces them",
    "undated": "conditions, procedures and the like without a date were put at the end of their visit",
    "fixed_code": "line breaks and runs of blanks in codes became one blank",
    "duplicates": "rows that repeat another row exactly were dropped",
    "dangling_encounter": "rows whose visit does not exist for that person were kept without it",
    "outside_visit": "rows more than a day before or after their visit were kept without it, or they would stretch it",
    "began_before": "conditions and reports without a recording date began before their visit: put at its end",
    "billed": "bills of a stay of more than a day were put at its end, because they are written then",
    "part": "parts of a stay of the same class as the stay got the ending //PART: they are no stays of their own",
    "date_only": "dates without a time were put at the end of their day, or of their visit where that is earlier",
    "unclosed_stay": "of the stays without an end have no row in the 30 days before the draw: nobody closed them",
    "open_stay": "stays have no end: their source says that the person was still there, or gives none",
    "moved": "stays went on in another hospital within a day, as their destination says: one episode of care",
    "transferred": "stays ended with a move to another hospital of which there is no record: no discharge",
    "interim_bill": "bills of a stay that went on were joined with the next one of that site",
    "short_gap": "stays began at another site within a day of a stay's end that names no hospital: not joined",
    "end_before_start": "ends that lie before their start were dropped",
    "open_end": "ends and deaths in the far future were dropped: they mean that nothing had ended yet",
    "two_births": "persons with several births got the earliest",
    "births_apart": "ids have births more than a year apart: each may be two people",
    "two_sexes": "ids have both sexes: each may be two people",
    "death_at_discharge": "deaths known by their day were put at the end of the stay that ended on that day",
    "stated_death": "persons have no recorded death and a stay that ended by death: they died at its end",
    "two_deaths": "persons with several deaths got the earliest",
    "vague_death": "deaths known by their year or month gave way to a more precise one of that time",
    "death_conflict": "persons have deaths that contradict one another: the earliest counts",
    "no_birth": "persons have no date of birth: their age is unknown",
    "overlapping_periods": "observation periods that overlap or touch were merged",
    "none_code": "codes are the text None",
    "far_day": "moments more than a day away from the date of their row lost their clock: the date counts",
    "near_day": "moments on the day before or after the date of their row were kept",
    "no_number": "values that are no number were dropped, their code kept",
    "unlisted": "texts that the map's `codes` does not list made no event",
    "undated_death": "persons have died at an unknown time: a row MEDS_DEATH without a time says so",
    "nobody": "persons without any row with a time, besides their birth, were left out",
}
_MIXED = (
    "births_apart",
    "two_sexes",
    "death_conflict",
    "undated_death",
    "linked_many",
    "shared_number",
)  # rules that an analyst should know of
EVERYBODY, DEAD = "everybody", "dead"  # whom the rules touch is held against these people
# rules that mend a defect of the source; the others touch long records most, and these are of people who died
_OF_DEFECTS = {
    "no_time",
    "no_code",
    "nobody",
    "no_birth",
    "births_apart",
    "two_sexes",
    "end_before_start",
    "dangling_encounter",
    "outside_visit",
    "unclosed_stay",
}
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
    # a file's first position; None for a database
    parts: list[tuple[int, str | None]] = field(default_factory=list)
    fates: bytearray = field(default_factory=bytearray)  # of each row
    bad_line: dict[str, Any] | None = None  # file and line of the first row that cannot be parsed
    cells: dict[str, Cells] = field(default_factory=dict)  # by column, those that are used
    far_days: Counter[str] = field(default_factory=Counter)  # moments days away from their date
    days: int = 0  # rows with a date and no clock
    clocks: int = 0  # rows with a clock
    rules: "RuleCounts" = field(default_factory=Counter)  # of the whole import

    def begin(self, file: str | None) -> None:
        """Say that the rows that follow are of this file."""
        self.parts.append((self.rows_in, file))

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
        return self.fates.count(_KEPT)

    @property
    def dropped(self) -> dict[str, int]:
        """Reason → rows."""
        rows_by_reason = {reason: self.fates.count(fate) for reason, fate in sorted(FATES.items())}
        return {reason: rows for reason, rows in rows_by_reason.items() if rows}

    @property
    def lost(self) -> Counter[str]:
        """Reason → rows whose content is not in the output."""
        return Counter({name: n for name, n in self.dropped.items() if name not in _NOT_LOST})

    def _example(self, reason: str) -> dict[str, object] | None:
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
                "example": self._example(reason),
            }
            for reason, rows in self.dropped.items()
        ]
        counted = {"rows_in": self.rows_in, "rows_out": self.kept, "dropped": dropped}
        cells = {name: vars(count) for name, count in sorted(self.cells.items())}
        return counted | ({"cells": cells} if cells else {})

    def lines(self) -> list[str]:
        """What was dropped, as lines for a terminal; types that are not read are told in another line."""
        out = []
        for reason, rows in self.dropped.items():
            if reason == "not_read":
                continue
            column = f"{self.columns[reason]}: " if reason in self.columns else ""
            place = [*(self._example(reason) or {}).items()]
            first = "; first: {0[1]}, {1[0]} {1[1]}".format(*place) if place else ""
            share = f"{rows:,} of {self.rows_in:,} rows"
            out.append(f"dropped from {self.name}: {share} ({column}{REASONS[reason]}{first})")
        for name, count in sorted(self.cells.items()):
            if count.unread:
                out.append(
                    f"not read in {self.name}: {count.unread:,} of {count.filled:,} values of {name}"
                )
        return out

    def warnings(self) -> list[str]:
        """What an analyst should check before using the data."""
        out, lost = [], self.lost
        dated = self.days + self.clocks
        if WARN_SHARE * dated < self.days < (1 - WARN_SHARE) * dated:
            out.append(
                f"{self.days:,} of {dated:,} rows of {self.name} ({self.days / dated:.1%}) have a day and no clock, "
                "where the others have one, and stand at the end of their day. If a converter dropped their clocks, as "
                "those of C-CDA and HL7 do with a time without an offset from UTC, write the offset before it runs"
            )
        total = lost.total()
        if total > WARN_SHARE * self.rows_in:
            rows = f"{total:,} of {self.rows_in:,} rows of {self.name} ({total / self.rows_in:.1%})"
            why = REASONS[lost.most_common(1)[0][0]]
            out.append(f"{rows} were dropped, most of them because: {why}")
        for name, count in sorted(self.cells.items()):
            if count.unread > WARN_SHARE * count.filled:
                more = ", or are no key of the map's codes" if self.rules["unlisted"] else ""
                out.append(
                    f"{count.unread:,} of {count.filled:,} values in column {name} of {self.name} "
                    f"({count.unread / count.filled:.1%}) cannot be read{more}"
                )
            if self.far_days[name] > WARN_SHARE * count.filled:
                out.append(
                    f"{self.far_days[name]:,} of {count.filled:,} values in column {name} of {self.name} "
                    "lie days away from the date of their row, which was used"
                )
        return out

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

    def keep(self, sources: Ints) -> None:
        """Say that these rows of the source made a row of the output."""
        self._mark(_KEPT, sources)

    def lose(self, reason: str, sources: Ints) -> None:
        """Say that these rows made a row that was dropped; one that is kept elsewhere stays kept."""
        self._mark(FATES[reason], sources)

    def _mark(self, fate: int, sources: Ints) -> None:
        table, position = sources >> _TABLE_BITS, sources & ((1 << _TABLE_BITS) - 1)
        tables = list(self.tables.values())
        for number in np.flatnonzero(np.bincount(table)).tolist():
            fates, at = np.frombuffer(tables[number].fates, np.uint8), position[table == number]
            fates[at] = np.maximum(fates[at], fate)

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
        mixed = [f"{self.counts[name]:,} {RULES[name]}" for name in _MIXED if self.counts[name]]
        lines = [line for table in self.tables.values() for line in table.warnings()]
        return self.cautions + mixed + self._unequal() + lines

    def _unequal(self) -> list[str]:
        """Warnings of rules that touch another share of the people who died than of the others."""
        people, out = self.people(), list[str]()
        n, dead = people.pop(EVERYBODY, (0, 0))
        for name in sorted(people.keys() & _OF_DEFECTS):
            touched, died = people[name]
            some, whole = (died, touched - died), (dead, n - dead)
            if unequal(some, whole):
                out.append(
                    f"one rule acts unequally, on {count_text(some[0])} of {count_text(whole[0])} people who died and "
                    f"on {count_text(some[1])} of {count_text(whole[1])} others ({RULES[name]}): check these rows, or "
                    "risks may be wrong"
                )
        return out

    def lines(self) -> list[str]:
        """The report for a terminal."""
        tables = self.tables.values()
        unread = {t.name: t.dropped["not_read"] for t in tables if "not_read" in t.dropped}
        lists = {
            "read": [f"{table.name} {table.rows_in:,}" for table in tables],
            "missing tables": self.missing,
            "resources of other types, not read": [f"{name} {n:,}" for name, n in unread.items()],
        }
        out = [f"{what}: {', '.join(names)}" for what, names in lists.items() if names]
        out += [line for table in tables for line in table.lines()]
        people = self.people()
        n, dead = people.get(EVERYBODY, (0, 0))
        out.append(
            f"people: {n:,} before all rules, {self.subjects:,} after; deaths: {dead:,} before, {self.deaths:,} after"
        )
        for name, count in sorted(self.counts.items()):
            touched = people.get(name)
            of = "" if touched is None else f" ({touched[0]:,} people, {touched[1]:,} of whom died)"
            out += [f"rule: {count:,} {RULES[name]}{of}"] if count else []
        out += [f"note: {note}" for note in self.notes]
        return [*out, f"wrote {self.rows:,} rows, {self.subjects:,} subjects, {self.codes:,} codes"]
