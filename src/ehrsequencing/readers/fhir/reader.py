"""`ehrseq import fhir`: every resource of a FHIR export to the MEDS writer; and a bundle → rows in memory.

Every resource is counted under its type, and every cell that is read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta, tzinfo
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import parse_times
from ehrsequencing.readers.cleaning_rules import cleaned
from ehrsequencing.readers.fhir.elements import (
    Entry,
    certainty_of,
    entries_of,
    kind_of,
    texts,
    walk,
)
from ehrsequencing.readers.fhir.known import UNCODED, Known, Row
from ehrsequencing.readers.fhir.mapping import EVENTS, rows_inside, rows_of
from ehrsequencing.readers.fhir.survey import LOST, OTHER_RELEASES, fhir_files, survey
from ehrsequencing.readers.import_report import (
    FATES,
    MOST_UNSURE,
    RULES,
    UNSURE,
    WARN_SHARE,
    ImportReport,
    TableCounts,
)
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import (
    END_SUFFIX,
    UNUSABLE,
    CodeBook,
    Role,
    conformed,
    rows_schema,
    subject_ids,
    write_subject_names,
)
from ehrsequencing.records.words import lines_of

BLOCK = 5_000  # rows that are Python objects at once
UNTYPED = "unreadable"  # the table under which JSON without a resource type, and what is no JSON, is counted
# types of which an import must read some: one that loses all of them is refused
_ESSENTIAL = ("Patient", "Encounter", "Condition", "Observation")
_CLOCKS = {"utc": r"T.*(Z|[+-]00:?00)$", "local": r"T.*[+-](0[1-9]|1\d|00:?[1-9])"}
_COLUMNS = ("kind", "source", *Row._fields)
_TYPES = {
    "role": pa.int8(),
    "number": pa.float64(),
    "source": pa.int64(),
    "acute": pa.bool_(),
    "inpatient": pa.bool_(),
    "left": pa.int8(),
}
# a result issued so much later comes from an archive or a migration
_LATEST_ISSUE = pa.scalar(timedelta(days=90))
_FEW_ISSUED = 20
_EVENT, _ISSUED = (pa.scalar(int(role), pa.int8()) for role in (Role.EVENT, Role.ISSUED))
# what becomes of a resource, and of those inside it too
_SHARED = ("not_done", "modified", "of_another", "adjusted", *LOST[1:])

# type and role of a row → its times → the elements that hold them
_ELEMENTS: dict[tuple[str, Role], dict[str, str]] = {
    ("Patient", Role.PERSON): {"time": "birthDate"},
    ("Patient", Role.DEATH): {"time": "deceasedDateTime"},
    ("Encounter", Role.VISIT): {"time": "period.start", "end": "period.end"},
    **{
        (kind, role): {
            "time": " or ".join((*spec.times, *spec.recorded)),
            **({"recorded": " or ".join(known)} if (known := spec.recorded or spec.issued) else {}),
        }
        for kind, spec in EVENTS.items()
        for role in (Role.EVENT, Role.REPORTED)
    },
}


@reader(
    "fhir",
    help="FHIR R4: bulk export or bundles.",
    source="Folder of .ndjson and .json files, plain or gz, or one such file",
)
def import_fhir(source: str, job: Import) -> None:
    """Read every resource whose type has a mapping, and count the others; see `Reader` and `mapping.py`.

    The files are read twice: only a first look tells which version of a resource counts, and which encounter a
    Condition belongs to.
    """
    path = Path(source)
    files = fhir_files(path)
    with job.writer(path, encounter=pa.string()) as writer:
        sources = ((file.where, file.entries()) for file in files)
        is_sure = job.settings.provisional == "confirmed"
        surveyed = survey(sources, known=job.settings.known, confirmed=is_sure)
        blocks = Blocks(job.report, surveyed, job.zone)
        for number in job.files(len(files)):
            file = files[number]
            name = file.path.name if file.is_lines else None
            for rows in blocks.tables(file.entries(), where=file.where, file=name):
                writer.add(rows)
            if file.bad_lines:
                table = job.report.table(UNTYPED)
                table.essential = False
                table.lose_lines(file.path.name, len(file.bad_lines), file.bad_lines[0])
                job.report.counts["malformed_line"] += len(file.bad_lines)
        blocks.finish()
        write_subject_names(blocks.names, writer.folder)
        writer.code_facts = lambda seen: blocks.book.facts


def read_bundle(
    bundle: Any,
    zone: tzinfo | None = None,
    *,
    known: Literal["latest", "earliest"] = "latest",
    provisional: Literal["apart", "confirmed"] = "apart",
    where: str = "bundle",
) -> tuple[pa.Table, ImportReport]:
    """The MEDS rows of a bundle, of a list of resources, or of a single resource, in memory.

    Args:
        bundle: JSON as Python reads it. It must hold the Patient, since events of an unknown person are dropped.
        zone: Clock of the instants that are written in UTC; default: UTC.
        known: As `import.known`.
        provisional: As `import.provisional`.
        where: What to call the bundle in an error.

    Returns:
        Rows with subject_id, time, code, numeric_value, text_value and encounter_id, sorted as MEDS wants them, and the
        report of what was dropped and why. The subject id is that of an import: a hash of the patient's id.

    Raises:
        EhrseqError: It holds another release of FHIR than R4.
    """
    report, entries = ImportReport("fhir"), list(entries_of(bundle))
    surveyed = survey([(where, entries)], known=known, confirmed=provisional == "confirmed")
    blocks = Blocks(report, surveyed, zone)
    rows = pa.concat_tables(blocks.tables(entries, where=where))
    blocks.finish()
    rows = conformed(rows, rows_schema(pa.string()), report)
    rows = cleaned(rows.filter(pc.not_equal(rows["role"], UNUSABLE)), report)
    return rows.set_column(2, "code", rows["code"].cast(pa.string())), report


# ---- resources → rows ----------------------------------------------------------------------------


class Blocks:
    """Turns the entries of a source into rows, and counts them in the report.

    Args:
        report: Where everything is counted.
        known: The `survey` of the same entries in the same order.
        zone: Clock of the instants that are written in UTC; default: UTC.

    Attributes:
        book: Descriptions and parents of the codes.
        names: Ids of the patients.
    """

    def __init__(self, report: ImportReport, known: Known, zone: tzinfo | None) -> None:
        self.report, self.book, self.names = report, CodeBook(), list[pa.Array]()
        self._known, self._zone = known, zone
        self._place = 0  # of the next entry
        self._clocks = Counter[str]()  # instants in UTC, and with the offset of a place
        self._unsure = Counter[str]()  # statuses of Conditions that are not confirmed
        self._modifiers = Counter[str]()  # URLs of extensions of Patient and Encounter
        # results by the day of their issue; under None those issued on their own day
        self._issued = Counter[Any]()

    def tables(
        self, entries: Iterable[Entry], *, where: str, file: str | None = None
    ) -> Iterator[pa.Table]:
        """The rows of the entries of a file, as `rows_schema` wants them, some thousand at a time.

        Args:
            entries: The next ones of the source.
            where: What to call the file in an error.
            file: Its name for the report; None keeps it out.

        Raises:
            EhrseqError: An entry is of another release of FHIR than R4.
        """
        self._where, self._file = where, file
        self._begun = set[str]()  # types of resources met in the file
        rows: list[tuple[Any, ...]] = []
        for entry in entries:
            rows += self._rows_of(entry)
            if len(rows) >= BLOCK:
                yield self._table(rows)
                rows = []
        yield self._table(rows)

    def finish(self) -> None:
        """Warn of clocks of two kinds, and of elements that may not mean what they seem to."""
        self.report.counts.update(self._known.counts)
        status, unsure = max(self._unsure.items(), key=lambda one: one[1], default=("", 0))
        days = [n for day, n in self._issued.items() if day is not None]
        self.report.cautions += lines_of(
            Path(__file__).parents[1] / "templates" / "fhir.txt.jinja",
            known=self._known,
            status=status,
            unsure=unsure,
            conditions=self._counts("Condition").rows_in if unsure else 0,
            late=self.report.counts["late_issue"],
            issued=self._issued.total(),
            most=max(days, default=0),
            modifiers=self._modifiers,
            clocks=self._clocks,
            zone=self._zone,
            FEW=_FEW_ISSUED,
            MOST_UNSURE=MOST_UNSURE,
            UNSURE=UNSURE,
            WARN_SHARE=WARN_SHARE,
        )

    def _rows_of(self, entry: Entry) -> list[tuple[Any, ...]]:
        """The rows of an entry as tuples of `_COLUMNS`; one without rows is counted."""
        lost = LOST[self._known.lost[self._place]]
        self._place += 1
        if not entry.is_there:
            return []
        resource = entry.resource
        kind = kind_of(resource) or ""
        for path, (release, type_) in OTHER_RELEASES.get(kind, {}).items():
            if any(isinstance(value, type_) for value in walk(resource, path)):
                raise EhrseqError(
                    f"holds FHIR {release}, and only R4 is read (it writes {kind}.{path.partition('.')[0]} so)",
                    where=self._where,
                    fix="export it as R4, or convert it to R4",
                )
        outcome = lost or rows_of(resource, self._known, self.report.counts)
        rows = self._counted(resource, outcome)
        if not isinstance(resource, dict) or "contained" not in resource:
            return rows
        for part, inside in rows_inside(resource, self._known, self.report.counts):
            rows += self._counted(part, outcome if outcome in _SHARED else inside)
        return rows

    def _counted(self, resource: Any, outcome: Iterable[Row] | str) -> list[tuple[Any, ...]]:
        """The rows of a resource with its type and number; one without rows is counted."""
        kind = kind_of(resource) or ""
        kind = kind if kind.isalpha() else UNTYPED  # other texts are not shown
        if kind == "Condition" and certainty_of(resource) == "provisional":
            self._unsure.update(texts(resource, "verificationStatus.coding.code")[:1])
        counts = self._counts(kind)
        if isinstance(outcome, str):
            counts.fates.append(FATES[outcome])
            self.report.counts[outcome] += outcome in RULES
            return []
        if kind in ("Patient", "Encounter"):
            self._modifiers.update(texts(resource, "modifierExtension.url"))
        source = int(counts.take(1)[0])
        return [(kind, source, *row) for row in outcome]

    def _counts(self, kind: str) -> TableCounts:
        """The counts of a type of resource."""
        counts = self.report.table(kind)
        if kind in self._begun:
            return counts
        self._begun.add(kind)
        counts.parts.append((counts.rows_in, self._file))
        counts.essential = kind in _ESSENTIAL
        return counts

    def _table(self, mapped: list[tuple[Any, ...]]) -> pa.Table:
        """Mapped rows as `rows_schema` wants them."""
        columns = zip(*mapped, strict=True) if mapped else [()] * len(_COLUMNS)
        rows = {
            name: pa.array(column, _TYPES.get(name, pa.string()))
            for name, column in zip(_COLUMNS, columns, strict=True)
        }
        role, code = rows["role"], rows["code"]
        time, recorded, end = (self._times(rows[name]) for name in ("time", "recorded", "end"))
        self._count_cells(rows, {"time": time, "recorded": recorded, "end": end})
        # what was recorded later than it began has the time of its recording, and is no report without one
        day, recorded_day = (pc.floor_temporal(one, unit="day") for one in (time, recorded))
        is_result = pc.equal(role, int(Role.EVENT))
        is_late = pc.and_(is_result, pc.greater(recorded, pc.add(time, _LATEST_ISSUE)))
        self.report.count("late_issue", is_late)
        is_clock = pc.and_(is_result, pc.not_equal(recorded, recorded_day))
        is_later = pc.greater_equal(recorded, pc.if_else(is_clock, time, day))
        is_dated = pc.and_(pc.is_valid(recorded), pc.fill_null(is_later, True))
        is_dated = pc.and_(is_dated, pc.invert(pc.fill_null(is_late, False)))
        is_issued = pc.and_(is_result, pc.is_valid(recorded))
        other_day = pc.if_else(pc.greater(recorded_day, day), recorded_day, None)
        self._issued.update(other_day.filter(is_issued).to_pylist())
        self.book.add(code, rows["description"], rows["parent"])
        stays = code.filter(pc.equal(role, int(Role.VISIT)))
        ends = pc.binary_join_element_wise(stays, pa.scalar(END_SUFFIX), "")
        self.book.add(ends, parent=stays)
        people = rows["subject"].filter(pc.equal(role, int(Role.PERSON)))
        self.names.append(pc.unique(people))
        return pa.table(
            {
                "subject_id": subject_ids(pa.chunked_array([rows["subject"]])),
                "role": pc.if_else(is_dated, pc.if_else(is_result, _ISSUED, _EVENT), role),
                "time": pc.if_else(is_dated, recorded, time),
                "end": end,
                "code": code,
                "numeric_value": rows["number"],
                "text_value": rows["text"],
                "encounter_id": rows["encounter"],
                **{name: rows[name] for name in ("acute", "inpatient", "site", "left")},
                "source": rows["source"],
            }
        )

    def _times(self, written: pa.Array) -> pa.Array:
        """Times with the clock that they show; those in UTC have that of the zone."""
        for clock, pattern in _CLOCKS.items():
            matches = pc.match_substring_regex(written, pattern)
            self._clocks[clock] += pc.sum(matches).as_py() or 0
        return parse_times(pa.chunked_array([written]), zone=self._zone, as_written=True)

    def _count_cells(self, rows: dict[str, pa.Array], read: dict[str, pa.Array]) -> None:
        """Count the cells with times, once a resource; those with values of Observations; and texts without a code."""
        role, source = np.asarray(rows["role"]), np.asarray(rows["source"])
        first = np.r_[True, (source[1:] != source[:-1]) | (role[1:] != role[:-1])][: len(source)]
        table = {"kind": rows["kind"], "role": rows["role"]}
        for name, times in read.items():
            table |= {f"{name} filled": pc.is_valid(rows[name]), f"{name} read": pc.is_valid(times)}
        groups = pa.table(table).filter(pa.array(first)).group_by(["kind", "role"])
        sums = [(name, "sum") for name in [*table][2:]]
        for group in groups.aggregate([*sums, ([], "count_all")]).to_pylist():
            counts, n = self._counts(group["kind"]), group["count_all"]
            for name, element in _ELEMENTS.get((group["kind"], group["role"]), {}).items():
                filled, values = group[f"{name} filled_sum"], group[f"{name} read_sum"]
                counts.count_cells(element, n, filled, values)
        cells = Counter(rows["cell"].drop_null().to_pylist())
        if cells:
            filled, values = cells["values"] + cells["unread"], cells["values"]
            self._counts("Observation").count_cells("value", cells.total(), filled, values)
        uncoded = pc.sum(pc.starts_with(rows["code"], UNCODED)).as_py()
        self.report.counts["uncoded"] += uncoded or 0
