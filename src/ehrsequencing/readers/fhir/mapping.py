"""What becomes of each FHIR resource: one table, and one pure function that reads a resource by it.

`rows_of` is all there is to know about the mapping. It needs no file and no database: a service that receives one
patient's bundle uses it as `ehrseq import fhir` does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.fhir.elements import (
    Coded,
    Find,
    Resource,
    coded_as,
    codings,
    days_of,
    kind_of,
    named_codes,
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

_PAIRS = (
    ("valueRatio.numerator", ":", "valueRatio.denominator"),
    ("valueRange.low", "-", "valueRange.high"),
)
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


class Value(NamedTuple):
    """The value of an Observation."""

    cell: str  # as in `Row`
    number: float | None = None
    text: str | None = None
    suffix: Coded | None = (
        None  # what follows the code: the unit of a number, a coded value, a yes or no
    )


@dataclass
class Known:
    """What resources say of others; names are TYPE/ID."""

    # name of a Medication or Device → its codes
    codes: dict[str, tuple[Coded, ...]] = field(default_factory=dict)
    # name of a Condition → id of the encounter that names it as its diagnosis or reason
    stays: dict[str, str] = field(default_factory=dict)
    # id of a patient's record → id of the record that replaces it
    merged: dict[str, str] = field(default_factory=dict)
    # sorted hashes of the ids of all Conditions that count, whatever their server
    conditions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def find(self, reference: str) -> tuple[Coded, ...]:
        """The codes that a reference leads to; a URN is looked up as each type."""
        kind, name = referred(reference) or ("", "")
        kinds = NAMED if kind is None else (kind,)
        names = (f"{kind}/{name}" for kind in kinds)
        return next((self.codes[name] for name in names if name in self.codes), ())

    def has_condition(self, reference: str) -> bool:
        """Whether a reference leads to a Condition of the source."""
        kind, name = referred(reference) or ("", "")
        key = hash(name.rpartition("~")[2])
        at = int(np.searchsorted(self.conditions, key))
        is_there = at < len(self.conditions) and int(self.conditions[at]) == key
        return kind in (None, "Condition") and is_there


@dataclass(frozen=True)
class EventResource:
    """A resource that becomes one row for each of its codes, at one time. Paths are as `walk` takes them."""

    concepts: tuple[str, ...]  # CodeableConcepts, Codings, or references to a Medication or Device
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
_DIAGNOSES = EventResource(
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
    "Procedure": EventResource(
        ("code", "focalDevice.manipulated"), ("performedDateTime", "performedPeriod.start")
    ),
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
    "DeviceUseStatement": EventResource(
        ("device",), ("timingDateTime", "timingPeriod.start"), recorded=("recordedOn",)
    ),
    "Claim": _DIAGNOSES,
    "ExplanationOfBenefit": _DIAGNOSES,
}
NAMED = ("Medication", "Device")  # resources that others refer to; they have no time of their own
READ = ("Patient", "Encounter", *EVENTS, *NAMED)
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
    if kind == "Patient":
        return "replaced" if text(resource, "id") in known.merged else _patient(resource, counts)
    if kind in NAMED:
        return "looked_up"
    if kind not in READ:
        return "not_read"
    if did_not_happen(resource):
        return "not_done"
    if kind == "Encounter":
        return _encounter(resource, known, counts)
    if EVENTS[kind] is _DIAGNOSES:
        return _bill(resource, known, counts)
    if kind == "Observation":
        return _observation(resource, known, counts)
    find = _find_inside(resource, known)
    codes = _codes(resource, kind, find)
    return _coded_rows(_base(resource, kind, known, counts), codes)


def did_not_happen(resource: Resource) -> bool:
    """Whether a resource says of itself that it is wrong, or that nothing happened."""
    if resource.get("doNotPerform") is True:
        return True
    for path, values in _DID_NOT_HAPPEN.items():
        if path.partition(".")[0] in resource and not values.isdisjoint(texts(resource, path)):
            return True
    return False


def _inside(resource: Resource) -> dict[str, Resource]:
    """The resources inside a resource by their references."""
    return {f"#{item['id']}": item for item in walk(resource, "contained") if text(item, "id")}


def _find_inside(resource: Resource, known: Known) -> Find:
    """`known.find` that also looks into the resources inside this one."""
    inside = {name: named_codes(item) for name, item in _inside(resource).items()}
    return lambda reference: inside.get(reference) or known.find(reference)


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
    partial = None
    for path in paths:
        for time in texts(resource, path):
            if len(time) > len("2011-05"):
                return time
            partial = partial or time
    return partial


def _subject(resource: Resource, path: str, known: Known) -> str | None:
    """The id of the patient's record that counts."""
    subject = referred_id(resource, path, "Patient")
    return known.merged.get(subject, subject) if subject is not None else None


def _encounter_of(resource: Resource, kind: str, known: Known) -> str | None:
    """The id of a resource's encounter: its own reference, else that of an encounter to it.

    A reference that leads nowhere stays as it is written, so that the writer counts it.
    """
    path = EVENTS[kind].encounter
    found = referred_id(resource, path, "Encounter")
    found = found or known.stays.get(f"{kind}/{text(resource, 'id')}")
    return found or text(resource, f"{path}.reference")


def _base(resource: Resource, kind: str, known: Known, counts: RuleCounts) -> Row:
    """A row of a resource of `EVENTS`, without its code.

    By the last day that a date may mean an event was certainly known. What was reported has both days. What has an
    encounter and no date was known by the encounter's end: it is `REPORTED` without a time.
    """
    spec = EVENTS[kind]
    subject = _subject(resource, spec.subject, known)
    encounter = _encounter_of(resource, kind, known)
    first, last = days_of(_time_of(resource, spec.times))
    recorded_first, recorded = days_of(_time_of(resource, spec.recorded))
    is_partial = first != last if recorded is None else recorded_first != recorded
    counts["partial_date"] += is_partial
    if spec.recorded:
        end = last if last != first else None
        return Row(
            Role.REPORTED, subject, first, None, end=end, encounter=encounter, recorded=recorded
        )
    is_undated = last is None and encounter is not None
    role = Role.REPORTED if is_undated else Role.EVENT
    return Row(role, subject, last, None, encounter=encounter)


# ---- the types of resources ----------------------------------------------------------------------


def _patient(resource: Resource, counts: RuleCounts) -> Iterator[Row]:
    """Birth, death, and what never changes."""
    subject = text(resource, "id")
    first_born, last_born = days_of(text(resource, "birthDate"))
    first_died, died = days_of(text(resource, "deceasedDateTime"))
    counts["partial_date"] += (first_born != last_born) + (first_died != died)
    yield Row(Role.PERSON, subject, first_born, BIRTH)
    if died is not None or resource.get("deceasedBoolean") is True:
        yield Row(Role.DEATH, subject, died, DEATH)
    sex = _SEX.get((text(resource, "gender") or "").lower())
    if sex is not None:
        yield Row(Role.STATIC, subject, None, f"GENDER//{sex}")
    for extension in walk(resource, "extension"):
        url = text(extension, "url") or ""
        if url not in (f"{_US_CORE}race", f"{_US_CORE}ethnicity"):
            continue
        name = url.removeprefix(_US_CORE).upper()
        for coding in walk(extension, "extension.valueCoding"):
            code = text(coding, "code")
            made = f"{name}//{code}" if code else None
            yield Row(Role.STATIC, subject, None, made, text(coding, "display"))


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


def _bill(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """The diagnoses of a bill: its own, and those of Conditions inside it; a Condition elsewhere is read there."""
    kind, inside = kind_of(resource) or "", _inside(resource)
    references = texts(resource, "diagnosis.diagnosisReference.reference")
    lost = sum(name not in inside and not known.has_condition(name) for name in references)
    counts["lost_diagnosis"] += lost
    found = [inside[name] for name in references if name in inside]
    concepts = list(walk(resource, _DIAGNOSES.concepts[0]))
    concepts += [item.get("code") for item in found if not did_not_happen(item)]
    if not concepts:
        return "lost_diagnosis" if lost else "no_diagnosis"
    codes = coded_as(concepts, known.find, uncoded=UNCODED + kind.upper())
    return _coded_rows(_base(resource, kind, known, counts), codes)


def _observation(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
    """The results of an Observation: those of its components, and its own if it has one or no component."""
    parts = [part for part in walk(resource, "component") if isinstance(part, dict)]
    if not parts or _has_value(resource):
        parts.insert(0, dict(resource))
    results = [one for one in parts if _has_value(one) or one.get("dataAbsentReason") is None]
    if not results:
        return "no_result"
    counts["no_result"] += len(parts) - len(results)
    base = _base(resource, "Observation", known, counts)
    rows = []
    for part in results:
        value = _value_of(part)
        counts["bound"] += text(part, "valueQuantity.comparator") is not None
        made = _coded_rows(base, _codes(part, "Observation", known.find))
        made[0] = made[0]._replace(cell=value.cell)
        rows += [_valued(row, value) for row in made]
    return rows


# ---- values --------------------------------------------------------------------------------------


def _has_value(part: Resource) -> bool:
    return any(name.startswith("value") and value is not None for name, value in part.items())


def _value_of(part: Resource) -> Value:
    """The value of an Observation or a component.

    A bound, a ratio, a range and what is no number stay as text: <5, 1:128, 3-5.
    """
    if not _has_value(part):
        return Value("empty")
    quantity, words = part.get("valueQuantity"), text(part, "valueString")
    if isinstance(quantity, dict):
        return _value_of_quantity(quantity)
    coded, boolean = codings(part.get("valueCodeableConcept")), part.get("valueBoolean")
    if coded:
        return Value("values", text=words, suffix=coded[0])
    if isinstance(boolean, bool):
        word = str(boolean).lower()
        return Value("values", text=words, suffix=Coded(word, word))
    number = number_of(part.get("valueInteger"))
    if number is not None:
        return Value("values", number)
    for first, mark, second in _PAIRS:
        ends = [next(iter(walk(part, f"{path}.value")), "") for path in (first, second)]
        if ends != ["", ""]:
            return Value("unread", text=mark.join(map(str, ends)))
    words = words or text(part, "valueCodeableConcept.text")
    return Value("unread" if words is None else "values", text=words)


def _value_of_quantity(quantity: Resource) -> Value:
    written, comparator = quantity.get("value"), text(quantity, "comparator")
    number = number_of(written)
    if number is not None and comparator is None:
        unit = text(quantity, "code") or text(quantity, "unit")
        return Value("values", number, suffix=Coded(unit) if unit is not None else None)
    if written is None:
        return Value("empty")
    is_plain = isinstance(written, str | int | float)
    return Value("unread", text=f"{comparator or ''}{written}" if is_plain else None)


def _valued(row: Row, value: Value) -> Row:
    """A row with its value; without it where its code's meaning is unknown."""
    if row.code is None or row.code.startswith(UNCODED):
        return row
    row = row._replace(number=value.number, text=value.text)
    if value.suffix is None:
        return row
    meaning = ": ".join(filter(None, (row.description, value.suffix.description))) or None
    return row._replace(
        code=f"{row.code}//{value.suffix.code}", description=meaning, parent=row.code
    )
