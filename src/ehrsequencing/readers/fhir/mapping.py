"""What becomes of each FHIR resource: one table, and one pure function that reads a resource by it.

`rows_of` is all there is to know about the mapping. It needs no file and no database: a service that receives one
patient's bundle uses it as `ehrseq import fhir` does (see `memory.py`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ehrsequencing.readers.fhir.codes import Coded, Find, coded_as, codings
from ehrsequencing.readers.fhir.elements import (
    Resource,
    kind_of,
    referred,
    referred_id,
    text,
    texts,
    walk,
)
from ehrsequencing.readers.import_report import RuleCounts
from ehrsequencing.readers.rows import Role
from ehrsequencing.records.events import BIRTH, DEATH

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
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
    """What one resource says of others; names are TYPE/ID."""

    # name of a Medication or Device → its codes
    codes: Mapping[str, tuple[Coded, ...]] = field(default_factory=dict)
    # name of a Condition → id of the encounter that names it as its diagnosis or reason
    stays: Mapping[str, str] = field(default_factory=dict)
    # id of a patient's record → id of the record that replaces it
    merged: Mapping[str, str] = field(default_factory=dict)

    def find(self, reference: str) -> tuple[Coded, ...]:
        """The codes that a reference leads to; a URN is looked up as each type."""
        found = referred(reference)
        if found is None:
            return ()
        kinds = NAMED if found[0] is None else (found[0],)
        names = (f"{kind}/{found[1]}" for kind in kinds)
        return next((self.codes[name] for name in names if name in self.codes), ())


@dataclass(frozen=True)
class EventResource:
    """A resource that becomes one row for each of its codes, at one time. Paths are as `walk` takes them."""

    concepts: tuple[str, ...]  # CodeableConcepts, Codings, or references to a Medication or Device
    times: tuple[str, ...]  # the first with a day counts, else the first with a month or year
    subject: str = "subject"
    encounter: tuple[str, ...] = ("encounter",)
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
    (
        "billablePeriod.end",
        "billablePeriod.start",
        "created",
    ),
    subject="patient",
    encounter=("item.encounter",),
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
        encounter=("context",),
        recorded=("dateAsserted",),
    ),
    "MedicationAdministration": EventResource(
        _MEDICATION, ("effectiveDateTime", "effectivePeriod.start"), encounter=("context",)
    ),
    "MedicationDispense": EventResource(
        _MEDICATION, ("whenHandedOver", "whenPrepared"), encounter=("context",)
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
BILLS = ("Claim", "ExplanationOfBenefit")
NAMED = ("Medication", "Device")  # resources that others refer to; they have no time of their own
READ = ("Patient", "Encounter", *EVENTS, *NAMED)
_NOT_DONE = (
    "entered-in-error",
    "not-done",
    "not-taken",
    "cancelled",
    "planned",
    "preparation",
    "draft",
    "intended",
)
_NO_RESULT_YET = ("registered",)
_DID_NOT_HAPPEN = {  # element → values of a resource that is wrong, or about something that did not happen
    "status": {*_NOT_DONE, *_NO_RESULT_YET},
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


def rows_of(resource: Resource, known: Known, counts: RuleCounts) -> list[Row] | str:
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
        return "replaced" if text(resource, "id") in known.merged else list(_patient(resource))
    if kind in NAMED:
        return "looked_up"
    if kind != "Encounter" and kind not in EVENTS:
        return "not_read"
    if did_not_happen(resource):
        return "not_done"
    if kind == "Encounter":
        return list(_encounter(resource, known))
    if EVENTS[kind] is _DIAGNOSES:
        return list(_bill(resource, kind, known)) or "no_diagnosis"
    if kind == "Observation" and _is_without_result(resource):
        return "no_result"
    return list(_events(resource, kind, known, counts))


def did_not_happen(resource: Resource) -> bool:
    """Whether a resource says of itself that it is wrong, or that nothing happened."""
    if resource.get("doNotPerform") is True:
        return True
    told = [
        (path, values)
        for path, values in _DID_NOT_HAPPEN.items()
        if path.partition(".")[0] in resource
    ]
    return any(value in values for path, values in told for value in texts(resource, path))


def named_codes(resource: Resource) -> tuple[Coded, ...]:
    """The codes of a Medication or a Device: a device's type, else the identifier of its model."""
    if kind_of(resource) == "Medication":
        return codings(resource.get("code"))
    model = text(resource, "udiCarrier.deviceIdentifier")
    return codings(resource.get("type")) or ((Coded(f"UDI//{model}"),) if model else ())


def _with_contained(resource: Resource, find: Find) -> Find:
    """`find` that also looks into the resources inside this one."""
    inside = {
        f"#{item['id']}": named_codes(item)
        for item in walk(resource, "contained")
        if text(item, "id")
    }
    return (lambda reference: inside.get(reference) or find(reference)) if inside else find


def day_first(resource: Resource, paths: tuple[str, ...]) -> str | None:
    """The first time with a day among these elements, else the first with a month or a year."""
    found = [time for path in paths for time in texts(resource, path)]
    return next((time for time in found if len(time) > len("2011-05")), found[0] if found else None)


def _patient(resource: Resource) -> Iterator[Row]:
    """Birth, death, and what never changes."""
    subject = text(resource, "id")
    yield Row(Role.PERSON, subject, text(resource, "birthDate"), BIRTH)
    died = text(resource, "deceasedDateTime")
    if died is not None or resource.get("deceasedBoolean") is True:
        yield Row(Role.DEATH, subject, died, DEATH)
    sex = _SEX.get((text(resource, "gender") or "").lower())
    if sex is not None:
        yield Row(Role.STATIC, subject, None, f"GENDER//{sex}")
    for extension in walk(resource, "extension"):
        url = text(extension, "url") or ""
        if url in (f"{_US_CORE}race", f"{_US_CORE}ethnicity"):
            for coding in walk(extension, "extension.valueCoding"):
                name = url.removeprefix(_US_CORE).upper()
                code = text(coding, "code")
                yield Row(
                    Role.STATIC,
                    subject,
                    None,
                    f"{name}//{code}" if code else None,
                    text(coding, "display"),
                )


def _subject(resource: Resource, path: str, known: Known) -> str | None:
    """The id of the patient's record that counts."""
    subject = referred_id(resource, path, "Patient")
    return known.merged.get(subject, subject) if subject is not None else None


def _encounter(resource: Resource, known: Known) -> Iterator[Row]:
    """The stay, and its types as events at its start."""
    subject, encounter = _subject(resource, "subject", known), text(resource, "id")
    start, end = text(resource, "period.start"), text(resource, "period.end")
    written = text(resource, "class.code") or text(resource, "class.coding.code")
    kind = _ENCOUNTER_CLASSES.get(written.upper(), written.lower()) if written else "unknown"
    yield Row(Role.VISIT, subject, start, f"ENCOUNTER//{kind}", end=end, encounter=encounter)
    for coded in coded_as(resource, ("type",), known.find, uncoded=f"{UNCODED}ENCOUNTER"):
        yield Row(Role.EVENT, subject, start, coded.code, coded.description, encounter=encounter)


def _base(resource: Resource, kind: str, known: Known) -> Row:
    """A row of a resource of `EVENTS`, without its code.

    What has an encounter and no date was known by the encounter's end: it is `REPORTED` without a time.
    """
    spec = EVENTS[kind]
    subject = _subject(resource, spec.subject, known)
    began, recorded = day_first(resource, spec.times), day_first(resource, spec.recorded)
    encounter = _encounter_of(resource, kind, known)
    is_undated = began is None and recorded is None and encounter is not None
    role = Role.REPORTED if spec.recorded or is_undated else Role.EVENT
    return Row(role, subject, began, None, encounter=encounter, recorded=recorded)


def _encounter_of(resource: Resource, kind: str, known: Known) -> str | None:
    """The id of a resource's encounter: its own reference, else that of an encounter to it.

    A reference that leads nowhere stays as it is written, so that the writer counts it.
    """
    for path in EVENTS[kind].encounter:
        found = referred_id(resource, path, "Encounter")
        if found is not None:
            return found
    linked = known.stays.get(f"{kind}/{text(resource, 'id')}")
    written = (
        text(reference, "reference")
        for path in EVENTS[kind].encounter
        for reference in walk(resource, path)
    )
    return linked or next(filter(None, written), None)


def _bill(resource: Resource, kind: str, known: Known) -> Iterator[Row]:
    """The diagnoses of a bill: its own, and those of Conditions inside it."""
    inside = {f"#{item['id']}": item for item in walk(resource, "contained") if text(item, "id")}
    found = [
        inside.get(reference)
        for reference in texts(resource, "diagnosis.diagnosisReference.reference")
    ]
    own = [item for item in found if item is not None and not did_not_happen(item)]
    diagnoses = {
        "own": list(walk(resource, _DIAGNOSES.concepts[0])),
        "contained": [item.get("code") for item in own],
    }
    if any(diagnoses.values()):
        uncoded = UNCODED + kind.upper()
        base = _base(resource, kind, known)
        for coded in coded_as(
            diagnoses, tuple(diagnoses), lambda reference: (), uncoded=uncoded
        ) or [Coded("")]:
            yield base._replace(code=coded.code or None, description=coded.description)


def conditions_of(resource: Resource) -> list[str]:
    """The references of a bill to Conditions; one that is inside the bill is left out, if it is there."""
    inside = {f"#{item['id']}" for item in walk(resource, "contained") if text(item, "id")}
    return [
        found
        for found in texts(resource, "diagnosis.diagnosisReference.reference")
        if found not in inside
    ]


def _events(resource: Resource, kind: str, known: Known, counts: RuleCounts) -> Iterator[Row]:
    """The rows of a resource of `EVENTS`; one without a code where it has none, so that it is counted."""
    spec, base, uncoded = EVENTS[kind], _base(resource, kind, known), UNCODED + kind.upper()
    find = _with_contained(resource, known.find)
    parts = (
        [part for part in walk(resource, "component") if isinstance(part, dict)]
        if kind == "Observation"
        else []
    )
    whole = [resource] if not parts or has_value(resource) else []
    results = [part for part in parts if not _lacks_value(part)]
    counts["no_result"] += len(parts) - len(results)
    for part in [*whole, *results]:
        codes = coded_as(part, spec.concepts, find, uncoded=uncoded) or [Coded("")]
        number, written, cell = _value(part) if kind == "Observation" else (None, None, None)
        counts["bound"] += _is_bound(part)
        for coded in codes:
            row = base._replace(code=coded.code or None, description=coded.description, cell=cell)
            valued = kind == "Observation" and coded.code not in ("", uncoded)
            yield _valued(row, part, number, written) if valued else row
            cell = None


def _is_without_result(observation: Resource) -> bool:
    """Whether an Observation says that its value is absent, and has no component with a result."""
    parts = [part for part in walk(observation, "component") if isinstance(part, dict)]
    if parts and not has_value(observation):
        return all(map(_lacks_value, parts))
    return _lacks_value(observation)


def _lacks_value(part: Resource) -> bool:
    """Whether an Observation or a component of it says that its value is absent."""
    return part.get("dataAbsentReason") is not None and not has_value(part)


def has_value(part: Resource) -> bool:
    """Whether an Observation or a component of it has a value."""
    return any(name.startswith("value") and value is not None for name, value in part.items())


def _is_bound(part: Resource) -> bool:
    """Whether a value is a bound, such as <5."""
    return text(part, "valueQuantity.comparator") is not None


def _value(part: Resource) -> tuple[float | None, str | None, str]:
    """The number and the text of an Observation or a component, and what became of the cell.

    A bound, a ratio, a range and what is no number stay as text: <5, 1:128, 3-5.
    """
    if not has_value(part):
        return None, None, "empty"
    quantity = part.get("valueQuantity")
    if isinstance(quantity, dict):
        written = quantity.get("value")
        number = _number(written)
        if number is not None and not _is_bound(part):
            return number, None, "values"
        if written is None:
            return None, None, "empty"
        shown = f"{text(quantity, 'comparator') or ''}{written}"
        return None, shown if isinstance(written, str | int | float) else None, "unread"
    if "valueInteger" in part:
        number = _number(part["valueInteger"])
        return number, None, "unread" if number is None else "values"
    for name, ends, mark in (
        ("valueRatio", ("numerator", "denominator"), ":"),
        ("valueRange", ("low", "high"), "-"),
    ):
        if name in part:
            found = (next(walk(part, f"{name}.{end}.value"), "") for end in ends)
            return None, mark.join(map(str, found)), "unread"
    coded = codings(part.get("valueCodeableConcept"))
    words = text(part, "valueString") or text(part, "valueCodeableConcept.text")
    if coded or isinstance(part.get("valueBoolean"), bool):
        return None, text(part, "valueString"), "values"
    return None, words, "unread" if words is None else "values"


def _valued(row: Row, part: Resource, number: float | None, written: str | None) -> Row:
    """A row with its value: CODE//UNIT for a number with a unit, CODE//VALUE for a coded value; text stays text."""
    suffix, meaning = None, None
    coded = codings(part.get("valueCodeableConcept"))
    if number is not None:
        quantity = part.get("valueQuantity")
        suffix = text(quantity, "code") or text(quantity, "unit")
    elif coded:
        suffix, meaning = coded[0]
    elif isinstance(part.get("valueBoolean"), bool):
        suffix = meaning = str(part["valueBoolean"]).lower()
    row = row._replace(number=number, text=written)
    if suffix is None:
        return row
    described = ": ".join(filter(None, (row.description, meaning))) or None
    return row._replace(code=f"{row.code}//{suffix}", description=described, parent=row.code)


def _number(value: Any) -> float | None:
    """A number as float, also one that was written as text; beyond the range of a float it is infinite."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
