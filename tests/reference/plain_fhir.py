"""A slow and plain FHIR reader: one resource after another, in loops, straight from the tables of docs/data.md.

It shares no code with the product. Patients keep their names, and a row is
(patient, time, code, number, text, encounter). It reads what the tests draw, and not every defect that may occur.
"""

import datetime as dt
from collections.abc import Iterable
from typing import Any

SYSTEMS = {
    "http://snomed.info/sct": "SNOMED",
    "http://loinc.org": "LOINC",
    "http://www.nlm.nih.gov/research/umls/rxnorm": "RxNorm",
    "http://hl7.org/fhir/sid/cvx": "CVX",
    "http://hl7.org/fhir/sid/icd-10-cm": "ICD10CM",
    "http://dicom.nema.org/resources/ontology/DCM": "DICOM",
}
CLASSES = {"AMB": "ambulatory", "IMP": "inpatient", "EMER": "emergency", "HH": "home", "VR": "virtual"}
TIMES = {
    "Condition": ["onsetDateTime", "onsetPeriod.start"],
    "Procedure": ["performedDateTime", "performedPeriod.start"],
    "Observation": ["effectiveDateTime", "effectiveInstant", "effectivePeriod.end", "effectivePeriod.start", "issued"],
    "DiagnosticReport": [
        "effectiveDateTime",
        "effectiveInstant",
        "effectivePeriod.end",
        "effectivePeriod.start",
        "issued",
    ],
    "MedicationRequest": ["authoredOn"],
    "MedicationStatement": ["effectiveDateTime", "effectivePeriod.start"],
    "MedicationAdministration": ["effectiveDateTime", "effectivePeriod.start"],
    "Immunization": ["occurrenceDateTime"],
    "AllergyIntolerance": ["onsetDateTime", "onsetPeriod.start"],
    "ImagingStudy": ["started"],
    "Claim": ["billablePeriod.end", "billablePeriod.start", "created"],
    "ExplanationOfBenefit": ["billablePeriod.end", "billablePeriod.start", "created"],
}
RECORDED = {  # when that became known which may have begun before
    "Condition": "recordedDate",
    "MedicationStatement": "dateAsserted",
    "Immunization": "recorded",
    "AllergyIntolerance": "recordedDate",
}
BY_PATIENT = ("Immunization", "AllergyIntolerance", "Claim", "ExplanationOfBenefit")
BY_CONTEXT = ("MedicationStatement", "MedicationAdministration")
RESULTS = ("Observation", "DiagnosticReport")
WRONG = (
    "entered-in-error",
    "not-done",
    "not-taken",
    "cancelled",
    "planned",
    "preparation",
    "draft",
    "intended",
    "registered",
)
SECOND, DAY = dt.timedelta(seconds=1), dt.timedelta(days=1)
Stay = tuple[dt.datetime, dt.datetime, bool]  # start, end, and whether an end is known
Row = tuple[str, dt.datetime | None, str, float | None, str | None, str | None]


def when(written: str | None, *, early: bool = False) -> dt.datetime | None:
    """The clock as it is written, to the second; the first or the last day of a month or year."""
    if written is None:
        return None
    try:
        if len(written) == 4:
            return dt.datetime(int(written), 1, 1) if early else dt.datetime(int(written), 12, 31)
        if len(written) == 7:
            year, month = map(int, written.split("-"))
            first = dt.datetime(year, month, 1)
            return first if early else (first + 31 * DAY).replace(day=1) - DAY
        time = dt.datetime.fromisoformat(written)
    except ValueError:
        return None
    return time.replace(microsecond=0, tzinfo=None)


def end_of_day(time: dt.datetime) -> dt.datetime:
    """Midnight means that only the day is known."""
    return time + DAY - SECOND if time.time() == dt.time(0) else time


def known_at(time: dt.datetime, span: Stay | None) -> dt.datetime:
    """A day becomes its end, or the end of the stay where that is earlier on it."""
    if time.time() != dt.time(0):
        return time
    inside = span is not None and span[0] < time + DAY and span[1] >= time
    return min(end_of_day(time), span[1]) if span is not None and inside else end_of_day(time)


def reported_at(resource: dict[str, Any], began: str | None, span: Stay | None) -> dt.datetime | None:
    """When something became known that may have begun long before: when it was recorded, else in its stay."""
    first, last = when(began, early=True), when(began)
    recorded = when(at(resource, RECORDED[resource["resourceType"]]))
    if recorded is not None and (first is None or recorded.date() >= first.date()):
        return recorded
    if first is None or last is None or span is None:
        return last
    return span[1] if end_of_day(first) < span[0] or first <= span[1] < last else last


def issued_at(resource: dict[str, Any], time: dt.datetime | None) -> dt.datetime | None:
    """When a result was issued, if that is later than the result, by 90 days at most."""
    issued = when(resource.get("issued")) if resource["resourceType"] in RESULTS else None
    if issued is None or time is None:
        return issued
    is_later = issued >= time or (issued.time() == dt.time(0) and issued.date() >= time.date())
    return issued if is_later and issued - time <= 90 * DAY else None


def opened(resources: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The resources, and the Conditions inside bills, which have person and time of their bill."""
    for r in resources:
        yield r
        for part in r.get("contained", []) if "patient" in r or r["resourceType"] == "Claim" else []:
            yield {**part, "id": None, "subject": r.get("patient"), "recordedDate": r.get("created")}


def fits(time: dt.datetime, span: Stay | None) -> bool:
    """Whether something at this time may belong to the stay: at most one day before or after its days."""
    if span is None:
        return False
    return time.date() >= span[0].date() - DAY and (not span[2] or time.date() <= span[1].date() + DAY)


def target(reference: dict[str, Any] | None, kind: str) -> str | None:
    """The id that a reference names, if it is of that type."""
    text = (reference or {}).get("reference", "")
    if text.startswith("urn:uuid:"):
        return text[9:] or None
    parts = text.split("/_history/")[0].split("/")
    return parts[-1] if len(parts) > 1 and parts[-2] == kind else None


def codes(concept: dict[str, Any] | None) -> list[str]:
    """The codes of a CodeableConcept: those of known systems, else all."""
    known, other = [], []
    for coding in (concept or {}).get("coding", []):
        if "code" in coding:
            system = coding.get("system")
            name = SYSTEMS.get(system) or ("FHIR" if system is None else system.rstrip("/").split("/")[-1])
            (known if system in SYSTEMS else other).append(f"{name}//{coding['code']}")
    return list(dict.fromkeys(known or other))


def concepts(resource: dict[str, Any], named: dict[str, list[str]]) -> list[str]:
    """The codes of a resource, by its type."""
    kind = resource["resourceType"]
    if kind in ("Claim", "ExplanationOfBenefit"):
        found = [c for d in resource["diagnosis"] for c in codes(d.get("diagnosisCodeableConcept"))]
    elif kind == "ImagingStudy":
        modalities = [*resource.get("modality", []), *(s["modality"] for s in resource.get("series", []))]
        found = [c for m in modalities for c in codes({"coding": [m]})]
        found += [c for concept in resource.get("procedureCode", []) for c in codes(concept)]
    elif "medicationReference" in resource:
        reference = resource["medicationReference"]
        inside = {f"#{r['id']}": codes(r.get("code")) for r in resource.get("contained", [])}
        found = inside.get(reference["reference"]) or named.get(target(reference, "Medication") or "", [])
    elif kind.startswith("Medication"):
        found = codes(resource.get("medicationCodeableConcept"))
    else:
        found = codes(resource.get("vaccineCode" if kind == "Immunization" else "code"))
        found += [c for concept in resource.get("conclusionCode", []) for c in codes(concept)]
    return list(dict.fromkeys(found))


def newest(resources: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each type and id the last resource; those without an id all."""
    last = {(r["resourceType"], r["id"]): i for i, r in enumerate(resources) if "id" in r}
    return [r for i, r in enumerate(resources) if "id" not in r or last[r["resourceType"], r["id"]] == i]


def valued(code: str, part: dict[str, Any]) -> tuple[str, float | None, str | None]:
    """Code, number and text of an Observation or a component."""
    if "valueQuantity" in part:
        quantity = part["valueQuantity"]
        if "comparator" in quantity:
            return code, None, f"{quantity['comparator']}{quantity['value']}"
        unit = quantity.get("code") or quantity.get("unit")
        return (f"{code}//{unit}" if unit else code), float(quantity["value"]), None
    if codes(part.get("valueCodeableConcept")):
        return f"{code}//{codes(part['valueCodeableConcept'])[0]}", None, None
    if "valueBoolean" in part:
        return f"{code}//{str(part['valueBoolean']).lower()}", None, None
    if "valueInteger" in part:
        return code, float(part["valueInteger"]), None
    text = part.get("valueString") or part.get("valueDateTime")
    return code, None, text or part.get("valueCodeableConcept", {}).get("text")


def at(resource: dict[str, Any], path: str) -> str | None:
    """The text at a path."""
    value: Any = resource
    for name in path.split("."):
        value = value.get(name, {})
    return value or None


def plain_rows(resources: Iterable[dict[str, Any]]) -> set[Row]:
    """All MEDS rows."""
    resources = [r for r in newest(list(resources)) if r.get("status") not in WRONG]
    named = {}
    for r in resources:
        if r["resourceType"] == "Medication" and "id" in r:
            named[r["id"]] = codes(r.get("code"))
    people: dict[str, list[dict[str, Any]]] = {}
    for r in resources:
        if r["resourceType"] == "Patient" and "id" in r:
            people.setdefault(r["id"], []).append(r)
    stays, rows = visits(resources, people)
    for r in opened(resources):
        kind = r["resourceType"]
        if kind not in TIMES or (kind in ("Claim", "ExplanationOfBenefit") and "diagnosis" not in r):
            continue
        patient = target(r.get("patient" if kind in BY_PATIENT else "subject"), "Patient")
        link = r.get("context") if kind in BY_CONTEXT else r.get("encounter")
        link = next(iter(r.get("item", [{}])[0].get("encounter", [None])), None) if "item" in r else link
        stay = target(link, "Encounter")
        found = [t for path in TIMES[kind] if (t := at(r, path))]
        written = next((t for t in found if len(t) > 7), found[0] if found else None)
        span = stays.get((patient, stay))
        time = reported_at(r, written, span) if kind in RECORDED else when(written)
        if span is not None and not found and not (kind in RECORDED and at(r, RECORDED[kind])):
            time = span[1]  # without a date it was known by the end of its stay
        issued = issued_at(r, time)
        time = time if issued is None else issued
        if patient not in people or time is None:
            continue
        is_after = issued is not None and span is not None and span[2] and time > span[1]
        stay, span = (stay, span) if fits(time, span) and not is_after else (None, None)
        time = known_at(time, span)
        parts = r.get("component", []) if kind == "Observation" else []
        own = not parts or any(name.startswith("value") for name in r)
        for part in [*([r] if own else []), *parts]:
            if "dataAbsentReason" in part and not any(name.startswith("value") for name in part):
                continue
            for code in concepts({"resourceType": kind, **part}, named):
                values = valued(code, part) if kind == "Observation" else (code, None, None)
                rows.add((patient, time, *values, stay if span else None))
            one = part.get("medicationCodeableConcept") or part.get("vaccineCode") or part.get("code") or {}
            diagnoses = [d.get("diagnosisCodeableConcept") or {} for d in part.get("diagnosis", [])]
            if any("text" in concept and not codes(concept) for concept in [one, *diagnoses]):
                rows.add((patient, time, f"FHIR//0//{kind.upper()}", None, None, stay if span else None))
    alive = {row[0] for row in rows if row[1] is not None and row[2] != "MEDS_BIRTH"}
    return {row for row in rows if row[0] in alive}


def visits(
    resources: list[dict[str, Any]], people: dict[str, list[dict[str, Any]]]
) -> tuple[dict[tuple[str, str | None], Stay], set[Row]]:
    """Spans of the stays, and the rows of persons and stays."""
    stays, rows = {}, set[Row]()
    for name, told in people.items():
        born = [time for person in told if (time := when(person.get("birthDate"), early=True))]
        died = [end_of_day(time) for person in told if (time := when(person.get("deceasedDateTime")))]
        rows |= {(name, min(born), "MEDS_BIRTH", None, None, None)} if born else set()
        rows |= {(name, min(died), "MEDS_DEATH", None, None, None)} if died else set()
        for person in told:
            sex = {"male": "M", "female": "F", "other": "other"}.get(person.get("gender", ""))
            rows |= {(name, None, f"GENDER//{sex}", None, None, None)} if sex else set()
            for extension in person.get("extension", []):
                kind = extension["url"].rpartition("us-core-")[2].upper()
                for part in extension.get("extension", []) if kind in ("RACE", "ETHNICITY") else []:
                    if "valueCoding" in part:
                        rows.add((name, None, f"{kind}//{part['valueCoding']['code']}", None, None, None))
    for r in resources:
        if r["resourceType"] != "Encounter":
            continue
        patient, stay = target(r.get("subject"), "Patient"), r.get("id")
        start, end = when(at(r, "period.start"), early=True), when(at(r, "period.end"))
        if patient not in people or start is None:
            continue
        kind = r.get("class", {}).get("code", "unknown")
        code = f"ENCOUNTER//{CLASSES.get(kind, kind.lower())}"
        rows.add((patient, start, code, None, None, stay))
        stop = end_of_day(end) if end else None
        ended = stop is not None and stop >= start
        if stop is not None and ended:
            rows.add((patient, stop, f"{code}//END", None, None, stay))
        else:
            stop = end_of_day(start.replace(hour=0, minute=0, second=0))
        if stay is not None:
            before = stays.get((patient, stay), (start, stop, ended))
            stays[patient, stay] = (min(start, before[0]), max(stop, before[1]), ended or before[2])
    for r in resources:  # again, now that every stay is known
        patient, stay = target(r.get("subject"), "Patient"), r.get("id")
        start = when(at(r, "period.start"))
        if r["resourceType"] != "Encounter" or patient not in people or start is None:
            continue
        span = stays.get((patient, stay))
        stay, span = (stay, span) if span is None or fits(start, span) else (None, None)
        moment = known_at(start, span)
        for concept in r.get("type", []):
            rows |= {(patient, moment, c, None, None, stay) for c in codes(concept)}
    return stays, rows
