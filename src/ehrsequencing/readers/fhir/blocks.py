"""Resources → rows, block by block: counts each resource under its type, and resolves references to Medications."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.fhir.codes import Coded, Find
from ehrsequencing.readers.fhir.elements import kind_of, referred, text
from ehrsequencing.readers.fhir.mapping import EVENTS, NAMED, Row, named_codes, rows_of
from ehrsequencing.readers.fhir.table import rows_table
from ehrsequencing.readers.import_report import ImportReport, TableCounts

UNTYPED = "unreadable"  # the table under which JSON without a resource type, and what is no JSON, is counted
_ESSENTIAL = ("Patient", "Encounter", "Condition", "Observation")  # an import that loses all of these is refused
Named = Mapping[str, tuple[Coded, ...]]  # TYPE/ID of a Medication or Device → its codes


def named_in(resource: Any) -> Iterator[tuple[str, tuple[Coded, ...]]]:
    """The entry of `Named` of a resource, if it is one that others refer to and has an id and codes."""
    kind, name = kind_of(resource), text(resource, "id")
    if kind in NAMED and name is not None:
        codes = named_codes(resource)
        if codes:
            yield f"{kind}/{name}", codes


def finder(*named: Named) -> Find:
    """A function that finds the codes of a reference; a URN is looked up as each type."""

    def find(reference: str) -> tuple[Coded, ...]:
        found = referred(reference)
        if found is None:
            return ()
        kinds = NAMED if found[0] is None else (found[0],)
        return next((known[k] for known in named for kind in kinds if (k := f"{kind}/{found[1]}") in known), ())

    return find


class Blocks:
    """Turns resources into rows, and counts them in the report.

    Attributes:
        find: Codes of a Medication or Device by reference.
    """

    def __init__(self, report: ImportReport, book: CodeBook, find: Find) -> None:
        self.report, self.book, self.find = report, book, find
        self._file: str | None = None
        self._begun: set[str] = set()

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
            times = spec.times if spec is not None else ("period.start",)
            counts.columns |= {"no_person": subject, "unknown_person": subject, "no_time": " or ".join(times)}
            counts.columns |= {"no_code": " or ".join(spec.concepts)} if spec is not None else {}
        return counts

    def rows(self, resources: Iterable[Any]) -> pa.Table:
        """The rows of a block of resources."""
        mapped: list[Row] = []
        sources: list[int] = []
        skipped: dict[str, list[int]] = {}
        for resource in resources:
            kind = kind_of(resource) or UNTYPED
            source = self.take(kind)
            found = rows_of(resource, self.find) if isinstance(resource, dict) else "no_type"
            if isinstance(found, str):
                skipped.setdefault(found, []).append(source)
            else:
                mapped += found
                sources += [source] * len(found)
        for reason, numbers in skipped.items():
            self.drop(reason, numbers)
        return rows_table(mapped, sources, self.report.counts, self.book)

    def take(self, kind: str) -> int:
        """The number of the next resource of a type."""
        return int(self.counts(kind).take(1)[0])

    def drop(self, reason: str, numbers: list[int]) -> None:
        """Count resources that make no row."""
        self.report.row_counts.drop(reason, np.asarray(numbers, dtype=np.int64))
        if reason == "not_done":
            self.report.counts[reason] += len(numbers)
