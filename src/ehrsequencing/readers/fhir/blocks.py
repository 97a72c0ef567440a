"""Resources → rows, block by block: counts each resource under its type, and resolves references.

Those to Medications and Devices must be known before. Of those from bills to Conditions only the number matters that
lead nowhere, which `Blocks.finish` counts.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.fhir.codes import Coded, Find
from ehrsequencing.readers.fhir.elements import kind_of, referred, text
from ehrsequencing.readers.fhir.mapping import (
    BILLS,
    EVENTS,
    NAMED,
    Row,
    conditions_of,
    named_codes,
    rows_of,
)
from ehrsequencing.readers.fhir.table import rows_table
from ehrsequencing.readers.import_report import ImportReport, TableCounts, among, distinct
from ehrsequencing.readers.subject_ids import subject_ids

UNTYPED = "unreadable"  # the table under which JSON without a resource type, and what is no JSON, is counted
# an import that loses all of these is refused
_ESSENTIAL = (
    "Patient",
    "Encounter",
    "Condition",
    "Observation",
)
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
        return next(
            (known[k] for known in named for kind in kinds if (k := f"{kind}/{found[1]}") in known),
            (),
        )

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
        self._conditions: list[Ints] = []  # hashes of the ids of the Conditions, block by block
        self._referred: list[
            tuple[Ints, Ints, Bools]
        ] = []  # of each reference: bill, hash of the id, is there a row

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
            times = (*spec.times, *spec.recorded) if spec is not None else ("period.start",)
            counts.columns |= {
                "no_person": subject,
                "unknown_person": subject,
                "no_time": " or ".join(times),
            }
            counts.columns |= {"no_code": " or ".join(spec.concepts)} if spec is not None else {}
        return counts

    def rows(self, resources: Iterable[Any]) -> pa.Table:
        """The rows of a block of resources."""
        mapped: list[Row] = []
        sources: list[int] = []
        skipped: dict[str, list[int]] = {}
        conditions: list[str] = []
        referred_: list[tuple[int, str, bool]] = []
        for resource in resources:
            kind = kind_of(resource) or UNTYPED
            source = self.take(kind)
            found = (
                rows_of(resource, self.find, self.report.counts)
                if isinstance(resource, dict)
                else "no_type"
            )
            if kind == "Condition" and (name := text(resource, "id")) is not None:
                conditions.append(name)
            elsewhere = conditions_of(resource) if kind in BILLS and found != "not_done" else []
            referred_ += [
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
        for reason, numbers in skipped.items():
            self.drop(reason, numbers)
        self._conditions.append(_hashes(conditions))
        bills, names, has_rows = zip(*referred_, strict=True) if referred_ else ((), (), ())
        self._referred.append(
            (np.array(bills, dtype=np.int64), _hashes(names), np.array(has_rows, dtype=bool))
        )
        return rows_table(mapped, sources, self.report.counts, self.book)

    def take(self, kind: str) -> int:
        """The number of the next resource of a type."""
        return int(self.counts(kind).take(1)[0])

    def drop(self, reason: str, numbers: list[int]) -> None:
        """Count resources that make no row."""
        self.report.row_counts.drop(reason, np.asarray(numbers, dtype=np.int64))
        if reason in ("not_done", "no_result"):
            self.report.counts[reason] += len(numbers)

    def finish(self) -> None:
        """Count the bills without rows, after the last block: is each Condition that they refer to in the source?"""
        if not self._referred:
            return
        bill, condition, has_rows = (
            np.concatenate(column) for column in zip(*self._referred, strict=True)
        )
        is_lost = ~among(condition, distinct(np.concatenate(self._conditions)))
        self.report.counts["lost_diagnosis"] += int(is_lost.sum())
        lost, others = distinct(bill[~has_rows & is_lost]), distinct(bill[~has_rows])
        self.drop("lost_diagnosis", lost.tolist())
        self.drop("no_diagnosis", others[~among(others, lost)].tolist())


def _condition_id(reference: str) -> str:
    """The id of the Condition that a reference names; for what is no such reference a text that is no id."""
    found = referred(reference)
    return found[1] if found is not None and found[0] in (None, "Condition") else "#"


def _hashes(names: Iterable[str]) -> Ints:
    return np.asarray(subject_ids(pa.chunked_array([pa.array(names, pa.string())])), dtype=np.int64)
