"""Resources → rows, block by block: every resource counted under its type, and every cell that is read."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.cells import parse_times
from ehrsequencing.readers.cleaning_rules import END_SUFFIX, clean_rows, usable_rows
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.fhir.elements import (
    Entry,
    at_server,
    entries_of,
    kind_of,
    referred,
    text,
)
from ehrsequencing.readers.fhir.mapping import (
    BILLS,
    EVENTS,
    UNCODED,
    Row,
    conditions_of,
    rows_of,
)
from ehrsequencing.readers.fhir.survey import Survey, refuse_other_release, survey
from ehrsequencing.readers.import_report import ImportReport, TableCounts
from ehrsequencing.readers.rows import Role, rows_schema
from ehrsequencing.readers.subject_ids import subject_ids

UNTYPED = "unreadable"  # the table under which JSON without a resource type, and what is no JSON, is counted
# an import that loses all of these is refused
_ESSENTIAL = ("Patient", "Encounter", "Condition", "Observation")
_MONTH, _YEAR = r"^(\d{4})-(\d{2})$", r"^(\d{4})$"
_UTC, _OFFSET = r"(Z|[+-]00:?00)$", r"T.*([+-]\d{2}:?\d{2})$"
_TYPES = {"role": pa.int8(), "number": pa.float64()}
_EARLY = pa.array([int(Role.VISIT), int(Role.PERSON)], pa.int8())
_DAY = pa.scalar(86_400_000_000, pa.duration("us"))
_DATES = {  # elements that hold the time of a row, by type and role
    ("Patient", Role.PERSON): "birthDate",
    ("Patient", Role.DEATH): "deceasedDateTime",
    ("Encounter", Role.VISIT): "period.start",
}


class Blocks:
    """Turns the entries of a source into rows, and counts them in the report.

    Args:
        report: Where everything is counted.
        book: Where descriptions and parents of the codes are gathered.
        found: A finished survey of the same entries in the same order.
        zone: Clock of the instants that are written in UTC; default: UTC.
    """

    def __init__(
        self, report: ImportReport, book: CodeBook, found: Survey, zone: tzinfo | None = None
    ) -> None:
        self.report, self.book, self._survey, self._zone = report, book, found, zone
        self.patients = set[str]()  # ids of the records that count
        self._done = 0  # entries
        self._file: str | None = None
        self._begun: set[str] = set()
        self._clocks = Counter[str]()  # instants in UTC, and with the offset of a place
        # hashes of the Conditions' ids; and of each reference of a bill: bill, hash of the id, is there a row
        self._conditions: list[Ints] = []
        self._referred: list[tuple[Ints, Ints, Bools]] = []

    def begin(self, file: str | None) -> None:
        """Say that the resources that follow are of this file; None keeps its name out of the report."""
        self._file, self._begun = file, set()

    def counts(self, kind: str) -> TableCounts:
        """The counts of a type of resource."""
        counts = self.report.row_counts.table(kind)
        if kind not in self._begun:
            self._begun.add(kind)
            counts.begin(self._file)
            counts.essential = kind in _ESSENTIAL
            spec = EVENTS.get(kind)
            subject = spec.subject if spec is not None else "id" if kind == "Patient" else "subject"
            counts.columns |= {
                "no_person": subject,
                "unknown_person": subject,
                "no_time": _time_elements(kind),
            }
            counts.columns |= {"no_code": " or ".join(spec.concepts)} if spec is not None else {}
        return counts

    def rows(self, entries: Sequence[Entry]) -> pa.Table:
        """The rows of a block of entries."""
        older, withdrawn = self._survey.lost(self._done, len(entries))
        self._done += len(entries)
        mapped: list[Row] = []
        sources: list[int] = []
        kinds: list[str] = []
        skipped: dict[str, list[int]] = {}
        conditions: list[str] = []
        bills: list[tuple[int, str, bool]] = []
        for i, entry in enumerate(entries):
            if entry.deleted is not None:
                continue
            resource = entry.resource
            if self._survey.several:
                resource = at_server(resource, entry.server)
            kind = kind_of(resource) or UNTYPED
            source = int(self.counts(kind).take(1)[0])
            if older[i] or withdrawn[i]:
                skipped.setdefault("older_version" if older[i] else "withdrawn", []).append(source)
                continue
            found = (
                rows_of(resource, self._survey.known, self.report.counts)
                if isinstance(resource, dict)
                else "no_type"
            )
            name = text(resource, "id") if kind in ("Condition", "Patient") else None
            if kind == "Condition" and name is not None:
                conditions.append(name)
            elif kind == "Patient" and name is not None and found != "replaced":
                self.patients.add(name)
            elsewhere = conditions_of(resource) if kind in BILLS and found != "not_done" else []
            bills += [
                (source, _condition_id(reference), found != "no_diagnosis")
                for reference in elsewhere
            ]
            if elsewhere and found == "no_diagnosis":
                pass  # `finish` finds out whether these Conditions are there
            elif isinstance(found, str):
                skipped.setdefault(found, []).append(source)
            else:
                mapped += found
                sources += [source] * len(found)
                kinds += [kind] * len(found)
        for reason, numbers in skipped.items():
            self._drop(reason, numbers)
        self._conditions.append(_hashes(conditions))
        bill, names, has_rows = zip(*bills, strict=True) if bills else ((), (), ())
        self._referred.append(
            (np.array(bill, dtype=np.int64), _hashes(names), np.array(has_rows, dtype=bool))
        )
        return self._table(mapped, np.array(sources, np.int64), np.array(kinds, dtype=str))

    def _drop(self, reason: str, numbers: list[int]) -> None:
        """Count resources that make no row."""
        self.report.row_counts.drop(reason, np.asarray(numbers, dtype=np.int64))
        if reason in ("not_done", "no_result", "older_version", "withdrawn", "replaced"):
            self.report.counts[reason] += len(numbers)

    def finish(self) -> None:
        """Count what is known after the last block: bills without rows, and clocks of two kinds."""
        if self._clocks["utc"] and self._clocks["local"] and self._zone is None:
            self.report.cautions.append(
                f"{self._clocks['utc']:,} times are in UTC and {self._clocks['local']:,} have the "
                "clock of a place: name the hospital's zone, as in import.time_zone=Europe/Berlin"
            )
        if not self._referred:
            return
        bill, condition, has_rows = (
            np.concatenate(column) for column in zip(*self._referred, strict=True)
        )
        is_lost = ~np.isin(condition, np.concatenate(self._conditions))
        self.report.counts["lost_diagnosis"] += int(is_lost.sum())
        lost, others = np.unique(bill[~has_rows & is_lost]), np.unique(bill[~has_rows])
        self._drop("lost_diagnosis", lost.tolist())
        self._drop("no_diagnosis", np.setdiff1d(others, lost).tolist())

    # ---- rows as the writer wants them --------------------------------------------------------

    def _table(self, mapped: Sequence[Row], sources: Ints, kinds: Any) -> pa.Table:
        """Mapped rows as `rows_schema` wants them."""
        columns = zip(*mapped, strict=True) if mapped else [() for _ in Row._fields]
        rows = {
            name: pa.array(c, _TYPES.get(name, pa.string()))
            for name, c in zip(Row._fields, columns, strict=True)
        }
        self._describe(rows)
        role, time, end = self._known_times(rows, sources, kinds)
        self._count_values(rows["cell"], kinds)
        table = pa.table(
            {
                "subject_id": subject_ids(pa.chunked_array([rows["subject"]])),
                "role": role,
                "time": time,
                "end": end,
                "code": rows["code"],
                "numeric_value": rows["number"],
                "text_value": rows["text"],
                "encounter_id": rows["encounter"],
                "source": pa.array(sources, pa.int64()),
            }
        )
        undated = pc.and_(pc.equal(role, int(Role.DEATH)), pc.is_null(table["time"]))
        self.report.counts["undated_death"] += pc.sum(undated).as_py() or 0
        return table.filter(pc.invert(undated))

    def _describe(self, rows: dict[str, pa.Array]) -> None:
        """Descriptions and parents of the codes, and the stays as parents of their ends."""
        self.book.add(rows["code"], rows["description"], rows["parent"])
        stays = rows["code"].filter(pc.equal(rows["role"], int(Role.VISIT)))
        ends = pc.binary_join_element_wise(stays, pa.scalar(END_SUFFIX), "")
        self.book.add(ends, pa.nulls(len(ends), pa.string()), stays)
        self.report.counts["uncoded"] += pc.sum(pc.starts_with(rows["code"], UNCODED)).as_py() or 0

    def _known_times(
        self, rows: dict[str, pa.Array], sources: Ints, kinds: Any
    ) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Role, time and end of each row. What was recorded later than it began has the time of its recording.

        Without that time it keeps its role `REPORTED`, since only its visit tells when it became known.
        """
        role, counts = rows["role"], self.report.counts
        reported = pc.equal(role, int(Role.REPORTED))
        early = pc.or_(pc.is_in(role, value_set=_EARLY), reported)
        began, unsure = self._times(rows["time"], early)
        recorded, recorded_unsure = self._times(rows["recorded"], pa.scalar(False))
        end, end_unsure = self._times(rows["end"], pa.scalar(False))
        first = np.r_[True, sources[1:] != sources[:-1]][: len(sources)]
        self._count_times(rows, {"time": began, "recorded": recorded, "end": end}, first, kinds)
        later = pc.greater_equal(recorded, pc.floor_temporal(began, unit="day"))
        dated = pc.and_(pc.is_valid(recorded), pc.fill_null(later, True))
        used = pc.or_(pc.if_else(dated, recorded_unsure, unsure), end_unsure)
        counts["partial_date"] += pc.sum(used).as_py() or 0
        span = pc.and_(pc.and_(reported, unsure), pc.invert(dated))
        if pc.any(span).as_py():
            end = pc.if_else(span, self._times(rows["time"], pa.scalar(False))[0], end)
        role = pc.if_else(dated, pa.scalar(int(Role.EVENT), pa.int8()), role)
        return role, pc.if_else(dated, recorded, began), end

    def _times(self, written: pa.Array, early: Any) -> tuple[pa.Array, pa.Array]:
        """Times of FHIR as timestamps, and which lack the day: these become the last day that they may mean.

        By the last day the event was certainly known, as by the end of a day for an event of that day. Those that are
        `early` become the first day. Instants become the clock that their offset tells.
        """
        written = pc.utf8_trim_whitespace(written)
        is_month, is_year = (
            pc.fill_null(pc.match_substring_regex(written, p), False) for p in (_MONTH, _YEAR)
        )
        partial = pc.or_(is_month, is_year)
        if not pc.any(partial).as_py():
            return self._parsed(written), partial
        first = pc.replace_substring_regex(
            pc.replace_substring_regex(written, _MONTH, r"\1-\2-01"), _YEAR, r"\1-01-01"
        )
        last = pc.replace_substring_regex(written, _YEAR, r"\1-12-31")
        time = self._parsed(pc.if_else(early, first, pc.if_else(is_month, first, last)))
        late_month = pc.and_(is_month, pc.invert(early))
        next_month = pc.ceil_temporal(time, 1, unit="month", ceil_is_strictly_greater=True)
        return pc.if_else(late_month, pc.subtract(next_month, _DAY), time), partial

    def _parsed(self, written: pa.Array) -> pa.Array:
        return parse_times(pa.chunked_array([written]), zone=self._zone, as_written=True)

    # ---- the account of the cells -------------------------------------------------------------

    def _count_times(
        self, rows: dict[str, pa.Array], read: dict[str, pa.Array], first: Bools, kinds: Any
    ) -> None:
        """Count the cells with times, once a resource."""
        role = rows["role"].to_numpy()
        for name in ("time", "recorded", "end"):
            text_ = rows[name]
            self._clocks["utc"] += _matches(text_, _UTC)
            self._clocks["local"] += _matches(text_, _OFFSET) - _matches(text_, r"T.*[+-]00:?00$")
        for kind in np.unique(kinds[first]).tolist():
            own = kinds == kind
            if kind in EVENTS:
                self._count(kind, _time_elements(kind), rows["time"], read["time"], own & first)
                if EVENTS[kind].recorded:
                    element = " or ".join(EVENTS[kind].recorded)
                    self._count(kind, element, rows["recorded"], read["recorded"], own & first)
            for (type_, role_), element in _DATES.items():
                if type_ == kind:
                    chosen = own & (role == role_)
                    self._count(kind, element, rows["time"], read["time"], chosen)
                    if role_ == Role.VISIT:
                        self._count(kind, "period.end", rows["end"], read["end"], chosen)

    def _count(
        self, kind: str, element: str, written: pa.Array, read: pa.Array, chosen: Bools
    ) -> None:
        filled = np.asarray(pc.fill_null(pc.not_equal(written, ""), False))[chosen]
        values = np.asarray(read.is_valid())[chosen]
        self.counts(kind).count_cells(
            element, int(chosen.sum()), int(filled.sum()), int(values.sum())
        )

    def _count_values(self, cell: pa.Array, kinds: Any) -> None:
        """Count the cells with the values of Observations and of their components."""
        if cell.null_count == len(cell):
            return
        found = Counter(zip(kinds.tolist(), cell.to_pylist(), strict=True))
        for kind in np.unique(kinds).tolist():
            values, empty, unread = (found[kind, name] for name in ("values", "empty", "unread"))
            if values + empty + unread:
                total = values + empty + unread
                self.counts(kind).count_cells("value", total, values + unread, values)


def read_bundle(
    bundle: Any, zone: tzinfo | None = None, *, where: str = "bundle"
) -> tuple[pa.Table, ImportReport]:
    """The MEDS rows of a bundle, of a list of resources, or of a single resource, in memory.

    Args:
        bundle: JSON as Python reads it. It must hold the Patient, since events of an unknown person are dropped.
        zone: Clock of the instants that are written in UTC; default: UTC.
        where: What to call the bundle in an error.

    Returns:
        Rows with subject_id, time, code, numeric_value, text_value and encounter_id, sorted as MEDS wants them, and the
        report of what was dropped and why. The subject id is that of an import: a hash of the patient's id.

    Raises:
        EhrseqError: It holds another release of FHIR than R4.
    """
    report, entries = ImportReport("fhir"), list(entries_of(bundle))
    for entry in entries:
        refuse_other_release(entry.resource, where=where)
    blocks = Blocks(report, CodeBook(), survey(entries), zone)
    blocks.begin(None)
    schema = rows_schema(pa.string())
    rows, usable = usable_rows(blocks.rows(entries), schema, report)
    blocks.finish()
    return clean_rows(rows.filter(pa.array(usable)), report.counts, report.row_counts), report


def _time_elements(kind: str) -> str:
    """The elements that may hold the time of a resource."""
    spec = EVENTS.get(kind)
    return " or ".join((*spec.times, *spec.recorded)) if spec is not None else "period.start"


def _condition_id(reference: str) -> str:
    """The id of the Condition that a reference names; for what is no such reference a text that is no id."""
    found = referred(reference)
    return found[1] if found is not None and found[0] in (None, "Condition") else "#"


def _hashes(names: Iterable[str]) -> Ints:
    return np.asarray(subject_ids(pa.chunked_array([pa.array(names, pa.string())])), dtype=np.int64)


def _matches(written: pa.Array, pattern: str) -> int:
    return int(pc.sum(pc.match_substring_regex(written, pattern)).as_py() or 0)
