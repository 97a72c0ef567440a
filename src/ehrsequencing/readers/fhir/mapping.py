"""What becomes of each FHIR resource: one table, and one pure function that reads a resource by it.

`rows_of` is all there is to know about the mapping. It needs no file and no database: a service that receives one
patient's bundle uses it as `ehrseq import fhir` does.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ehrsequencing.readers.fhir.elements import (
    Coded,
    Find,
    Resource,
    coded_as,
    codings,
    days_of,
    kind_of,
    number_of,
    referred,
    referred_id,
    text,
    texts,
    walk,
)
from ehrsequencing.readers.import_report import RuleCounts
from ehrsequencing.readers.rows import Role
from ehrsequencing.records.events import BIRTH, DEATH

UNCODED = "FHIR//0//"  # the code of a concept with a text only is this and the resource's type


class Row(NamedTuple):
    """One row for the MEDS writer, with its times still as text. `None` for whatever the resource lacks."""

    role: Role
    subject: str | None
    time: str | None
    code: str | None
    description: str | None = None
    parent: str | None = None  # the code without unit or value
    end: str | None = None
    number: float | None = None
    text: str | None = None
    encounter: str | None = None
    recorded: str | None = None  # of role `REPORTED`: when what began at `time` was recorded
    # what became of the cell with its value: values, empty or unread; None where it is counted elsewhere
    cell: str | None = None


@dataclass(frozen=True)
class Known:
    """What resources say of others."""

    # id of a Medication → its codes
    codes: dict[str, tuple[Coded, ...]] = field(default_factory=dict)
    # Condition/ID → id of the encounter that names it as its diagnosis or reason
    stays: dict[str, str] = field(default_factory=dict)
    # id of a patient's record → id of the record that replaces it
    merged: dict[str, str] = field(default_factory=dict)

    def find(self, reference: str) -> tuple[Coded, ...]:
        """The codes that a reference to a Medication leads to."""
        kind, name = referred(reference) or ("", "")
        return self.codes.get(name, ()) if kind in (None, "Medication") else ()

    def record(self, name: str) -> str:
        """The id of the record that replaces a patient's, also by way of others; its own where they form a circle.

        >>> known = Known(merged={"a": "b", "b": "c", "x": "y", "y": "x"})
        >>> known.record("a"), known.record("c"), known.record("x")
        ('c', 'c', 'x')
        """
        met: set[str] = set()
        while name in self.merged and name not in met:
            met.add(name)
            name = self.merged[name]
        return name


@dataclass(frozen=True)
class EventResource:
    """A resource that becomes one row for each of its codes, at one time. Paths are as `walk` takes them."""

    concepts: tuple[str, ...]  # CodeableConcepts, Codings, or references to a Medication
    times: tuple[str, ...]  # the first with a day counts, else the first with a month or year
    subject: str = "subject"
    encounter: str = "encounter"
    recorded: tuple[str, ...] = ()  # when that became known which may have begun long before


_MEDICATION = ("medicationCodeableConcept", "medicationReference")
_RESULT_TIMES = (
    "effectiveDateTime",
    "effectiveInstant",
    "effectivePeriod.end",
    "effectivePeriod.start",
    "issued",
)
_BILL = EventResource(
    ("diagnosis.diagnosisCodeableConcept",),
    # a diagnosis of a bill is known by the end of the stay
    ("billablePeriod.end", "billablePeriod.start", "created"),
    subject="patient",
    encounter="item.encounter",
)
EVENTS = {
    "Condition": EventResource(
        ("code",), ("onsetDateTime", "onsetPeriod.start"), recorded=("recordedDate",)
    ),
    "Procedure": EventResource(("code",), ("performedDateTime", "performedPeriod.start")),
    "Observation": EventResource(("code",), _RESULT_TIMES),
    "DiagnosticReport": EventResource(("code", "conclusionCode"), _RESULT_TIMES),
    "MedicationRequest": EventResource(_MEDICATION, ("authoredOn",)),
    "MedicationStatement": EventResource(
        _MEDICATION,
        ("effectiveDateTime", "effectivePeriod.start"),
        encounter="context",
        recorded=("dateAsserted",),
    ),
    "MedicationAdministration": EventResource(
        _MEDICATION, ("effectiveDateTime", "effectivePeriod.start"), encounter="context"
    ),
    "MedicationDispense": EventResource(
        _MEDICATION, ("whenHandedOver", "whenPrepared"), encounter="context"
    ),
    "Immunization": EventResource(
        ("vaccineCode",), ("occurrenceDateTime",), subject="patient", recorded=("recorded",)
    ),
    "AllergyIntolerance": EventResource(
        ("code",),
        ("onsetDateTime", "onsetPeriod.start"),
        subject="patient",
        recorded=("recordedDate",),
    ),
    "ImagingStudy": EventResource(("modality", "series.modality", "procedureCode"), ("started",)),
    "Claim": _BILL,
    "ExplanationOfBenefit": _BILL,
}
READ = ("Patient", "Encounter", "Medication", *EVENTS)
_DID_NOT_HAPPEN = {  # element → values of a resource that is wrong, or about something that did not happen
    "status": {
        "entered-in-error",
        "not-done",
        "not-taken",
        "cancelled",
        "planned",
        "preparation",
        "draft",
        "intended",
        "registered",  # there is no result yet
    },
    "verificationStatus.coding.code": {"entered-in-error", "refuted"},
    "use": {"preauthorization", "predetermination"},
    "intent": {"proposal", "plan", "option"},
}
_SEX = {"male": "M", "female": "F", "other": "other"}
_ENCOUNTER_CLASSES = {  # of HL7's ActCode, named as Synthea's CSV export names them
    "AMB": "ambulatory",
    "EMER": "emergency",
    "FLD": "field",
    "HH": "home",
    "IMP": "inpatient",
    "ACUTE": "inpatient",
    "NONAC": "inpatient",
    "OBSENC": "observation",
    "SS": "shortstay",
    "VR": "virtual",
}
_US_CORE = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-"


def rows_of(resource: Resource, known: Known, counts: RuleCounts) -> Iterable[Row] | str:
    """The rows of a resource.

    Args:
        resource: JSON of one resource, with any defects.
        known: What other resources say.
        counts: Where the rules of `import_report.RULES` are counted that a part of a resource needs.

    Returns:
        Rows, of which the writer drops those without subject, time or code; or else the reason, a key of
        `import_report.REASONS`, why the resource has none.
    """
    kind = kind_of(resource)
    if kind is None:
        return "no_type"
    if kind not in READ:
        return "not_read"
    if kind == "Medication":
        return "looked_up"
    if resource.get("doNotPerform") is True or any(
        path.partition(".")[0] in resource and not values.isdisjoint(texts(resource, path))
        for path, values in _DID_NOT_HAPPEN.items()
    ):
        return "not_done"
    read = {"Patient": _patient, "Encounter": _encounter, "Observation": _observation}
    return read.get(kind, _event)(resource, known, counts)


def _codes(part: Resource, kind: str, find: Find) -> list[Coded]:
    """The codes of a resource of `EVENTS`, or of a component of it."""
    concepts = [concept for path in EVENTS[kind].concepts for concept in walk(part, path)]
    return coded_as(concepts, find, uncoded=UNCODED + kind.upper())


def _coded_rows(base: Row, codes: Iterable[Coded]) -> list[Row]:
    """A row for each code; one without a code where there is none, so that it is counted."""
    rows = [base._replace(code=coded.code, description=coded.description) for coded in codes]
    return rows or [base]


# ---- when and whose ------------------------------------------------------------------------------


def _time_of(resource: Resource, paths: tuple[str, ...]) -> str | None:
    """The first time with a day among these elements, else the first with a month or a year."""
    found = [time for path in paths for time in texts(resource, path)]
    return next((time for time in found if len(time) > len("2011-05")), found[0] if found else None)


def _subject(resource: Resource, path: str, known: Known) -> str | None:
    """The id of the patient's record that counts."""
    subject = referred_id(resource, path, "Patient")
    return known.record(subject) if subject is not None else None


def _base(resource: Resource, kind: str, known: Known, counts: RuleCounts) -> Row:
    """A row of a resource of `EVENTS`, without its code.

    By the last day that a date may mean an event was certainly known. What was reported has both days. What has an
    encounter and no date was known by the encounter's end: it is `REPORTED` without a time. A reference to an encounter
    that leads nowhere stays as it is written, so that the writer counts it.
    """
    spec = EVENTS[kind]
    subject = _subject(resource, spec.subject, known)
    encounter = (
        referred_id(resource, spec.encounter, "Encounter")
        or known.stays.get(f"{kind}/{text(resource, 'id')}")
        or text(resource, f"{spec.encounter}.reference")
    )
    first, last = days_of(_time_of(resource, spec.times))
    recorded_first, recorded = days_of(_time_of(resource, spec.recorded))
    counts["partial_date"] += first != last if recorded is None else recorded_first != recorded
    if spec.recorded:
        end = last if last != first else None
        return Row(
            Role.REPORTED, subject, first, None, end=end, encounter=encounter, recorded=recorded
        )
    is_undated = last is None and encounter is not None
    role = Role.REPORTED if is_undated else Role.EVENT
    return Row(role, subject, last, None, encounter=encounter)


# ---- the types of resources ----------------------------------------------------------------------


def _patient(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """Birth, death, and what never changes."""
    subject = text(resource, "id")
    if subject is not None and known.record(subject) != subject:
        return "replaced"
    first_born, last_born = days_of(text(resource, "birthDate"))
    first_died, died = days_of(text(resource, "deceasedDateTime"))
    counts["partial_date"] += (first_born != last_born) + (first_died != died)
    rows = [Row(Role.PERSON, subject, first_born, BIRTH)]
    if died is not None or resource.get("deceasedBoolean") is True:
        rows.append(Row(Role.DEATH, subject, died, DEATH))
    sex = _SEX.get((text(resource, "gender") or "").lower())
    if sex is not None:
        rows.append(Row(Role.STATIC, subject, None, f"GENDER//{sex}"))
    for extension in walk(resource, "extension"):
        url = text(extension, "url") or ""
        if url not in (f"{_US_CORE}race", f"{_US_CORE}ethnicity"):
            continue
        name = url.removeprefix(_US_CORE).upper()
        for coding in walk(extension, "extension.valueCoding"):
            code = text(coding, "code")
            made = f"{name}//{code}" if code else None
            rows.append(Row(Role.STATIC, subject, None, made, text(coding, "display")))
    return rows


def _encounter(resource: Resource, known: Known, counts: RuleCounts) -> list[Row]:
    """The stay, and its types as events at its start."""
    subject, encounter = _subject(resource, "subject", known), text(resource, "id")
    first, last = days_of(text(resource, "period.start"))
    first_end, end = days_of(text(resource, "period.end"))
    counts["partial_date"] += (first != last) + (first_end != end)
    written = text(resource, "class.code") or text(resource, "class.coding.code")
    kind = _ENCOUNTER_CLASSES.get(written.upper(), written.lower()) if written else "unknown"
    visit = Row(Role.VISIT, subject, first, f"ENCOUNTER//{kind}", end=end, encounter=encounter)
    types = coded_as(walk(resource, "type"), known.find, uncoded=f"{UNCODED}ENCOUNTER")
    event = Row(Role.EVENT, subject, last, None, encounter=encounter)
    return [visit, *(_coded_rows(event, types) if types else [])]


def _event(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """The codes of a resource at its time. A medication may lie inside it."""
    kind = kind_of(resource) or ""
    inside = {
        f"#{item['id']}": codings(item.get("code"))
        for item in walk(resource, "contained")
        if text(item, "id")
    }
    if EVENTS[kind] is _BILL and not walk(resource, _BILL.concepts[0]):
        return "no_diagnosis"
    codes = _codes(resource, kind, lambda name: inside.get(name) or known.find(name))
    return _coded_rows(_base(resource, kind, known, counts), codes)


def _observation(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """The results of an Observation: those of its components, and its own if it has one or no component."""
    parts = [part for part in walk(resource, "component") if isinstance(part, dict)]
    if not parts or _value(resource)[1] is not None:
        parts.insert(0, dict(resource))
    results = [
        one for one in parts if _value(one)[1] is not None or one.get("dataAbsentReason") is None
    ]
    if not results:
        return "no_result"
    counts["no_result"] += len(parts) - len(results)
    base, found = _base(resource, "Observation", known, counts), []
    for part in results:
        counts["bound"] += text(part, "valueQuantity.comparator") is not None
        rows = _coded_rows(base, _codes(part, "Observation", known.find))
        found.append(_valued(rows[0], part))  # the cell with the value is counted once
        found += [_valued(row, part)._replace(cell=None) for row in rows[1:]]
    return found


# ---- values --------------------------------------------------------------------------------------


def _value(part: Resource) -> tuple[str, Any]:
    """The value of an Observation or a component, and the element that holds it; None without one."""
    for name, value in part.items():
        if name.startswith("value") and value is not None:
            return name, value
    return "", None


def _valued(row: Row, part: Resource) -> Row:
    """A row with the value of an Observation or a component: CODE//UNIT for a number, CODE//VALUE for a coded value.

    What cannot be read stays as text. A code of unknown meaning gets no value.
    """
    name, value = _value(part)
    if name == "valueQuantity" and isinstance(value, dict):
        made = _with_quantity(row, value)
    else:
        made = _with_other(row, name, value)
    is_known = row.code is not None and not row.code.startswith(UNCODED)
    return made if is_known else row._replace(cell=made.cell)


def _with_quantity(row: Row, quantity: Resource) -> Row:
    """A bound is no number: <5."""
    written, comparator = quantity.get("value"), text(quantity, "comparator")
    number, unit = number_of(written), text(quantity, "code") or text(quantity, "unit")
    if written is None:
        return row._replace(cell="empty")
    if number is None or comparator is not None:
        return row._replace(cell="unread", text=f"{comparator or ''}{written}")
    row = row._replace(cell="values", number=number)
    return row if unit is None else row._replace(code=f"{row.code}//{unit}", parent=row.code)


def _with_other(row: Row, name: str, value: Any) -> Row:
    """A ratio, a range and a date are kept as they are written."""
    coded = codings(value) if name == "valueCodeableConcept" else ()
    words = text(value, "text") if name == "valueCodeableConcept" else None
    if isinstance(value, bool):
        coded = (Coded(str(value).lower(), str(value).lower()),)
    elif name == "valueString" and isinstance(value, str):
        words = value.strip()
    if coded:
        meaning = ": ".join(filter(None, (row.description, coded[0].description))) or None
        code = f"{row.code}//{coded[0].code}"
        return row._replace(cell="values", code=code, description=meaning, parent=row.code)
    number = number_of(value) if name == "valueInteger" else None
    if number is not None or words:
        return row._replace(cell="values", number=number, text=words)
    if value is None:
        return row._replace(cell="empty")
    return row._replace(cell="unread", text=value if isinstance(value, str) else json.dumps(value))
