"""FHIR resources for tests: small ones by hand, messy ones drawn, and the files and bundles that hold them."""

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Resource = dict[str, Any]
SNOMED, LOINC, RXNORM = "http://snomed.info/sct", "http://loinc.org", "http://www.nlm.nih.gov/research/umls/rxnorm"
US_RACE = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-race"


def concept(code: str, system: str | None = SNOMED, display: str | None = None) -> Resource:
    """A CodeableConcept with one coding."""
    coding = {"system": system, "code": code, "display": display}
    return {"coding": [{name: value for name, value in coding.items() if value is not None}]}


def of(kind: str, **elements: Any) -> Resource:
    """A resource without its absent elements; `class_` is `class`."""
    named = {name.rstrip("_"): value for name, value in elements.items() if value is not None}
    return {"resourceType": kind, **named}


def refer(kind: str, name: str, form: str = "relative") -> Resource:
    """A reference in one of the forms that servers write."""
    forms = {
        "relative": f"{kind}/{name}",
        "absolute": f"https://example.org/fhir/{kind}/{name}",
        "version": f"{kind}/{name}/_history/3",
        "urn": f"urn:uuid:{name}",
    }
    return {"reference": forms[form]}


# What clocks write, what people remember, and what is no date.
TIMES = st.sampled_from(
    [
        "2011",
        "2011-05",
        "2012-02",
        "2011-05-03",
        "2011-05-03T00:00:00Z",
        "2011-05-03T10:11:12Z",
        "2012-02-29",
        "2011-05-03T10:11:12.987654+02:00",
        "2011-05-03T00:30:00-05:00",
        "2011-02-30",
        "03/05/2011",
        "yesterday",
        "",
    ]
)
PEOPLE, STAYS = ("anna", "ben", "0"), ("s1", "s2", "s3")
_maybe = st.one_of


def _references(kind: str, names: Sequence[str]) -> st.SearchStrategy[Resource | None]:
    known = st.builds(refer, st.just(kind), st.sampled_from(names), st.sampled_from(["relative", "absolute", "urn"]))
    odd = st.sampled_from(
        [refer("Group", "g"), refer(kind, "nobody"), {"display": "somebody"}, {"reference": "#inside"}]
    )
    return _maybe(known, known, known, known, odd, st.none())


_CONCEPTS = st.sampled_from(
    [
        concept("44054006", display="Diabetes"),
        concept("E11.9", "http://hl7.org/fhir/sid/icd-10-cm"),
        concept("x", None),
        {"coding": [*concept("44054006")["coding"], *concept("local-7", "http://h.example/CodeSystem/labs")["coding"]]},
        concept("77", "http://h.example/CodeSystem/labs/"),
        {"text": "only words"},
        {},
        None,
    ]
)
_STATUS = st.sampled_from(
    [None, "final", "final", "completed", "entered-in-error", "not-done", "cancelled", "registered"]
)
_VALUES = st.sampled_from(
    [
        {},
        {"valueQuantity": {"value": 7.5, "unit": "percent", "code": "%"}},
        {"dataAbsentReason": {"text": "lost"}},
        {"valueQuantity": {"value": 3, "comparator": "<"}},
        {"valueCodeableConcept": concept("266919005")},
        {"valueCodeableConcept": {"text": "never"}},
        {"valueString": "a word"},
        {"valueBoolean": True},
        {"valueInteger": 4},
        {"valueDateTime": "2011-05-03"},
    ]
)
_STAY = _references("Encounter", STAYS)
_SUBJECT = _references("Patient", PEOPLE)


@st.composite
def _patients(draw: st.DrawFn) -> Resource:
    return of(
        "Patient",
        id=draw(st.sampled_from([*PEOPLE, None])),
        birthDate=draw(st.sampled_from(["1950-03-01", "1961", None])),
    )


@st.composite
def _encounters(draw: st.DrawFn) -> Resource:
    period = {"start": draw(TIMES), "end": draw(TIMES)}
    return of(
        "Encounter",
        id=draw(st.sampled_from(STAYS)),
        subject=draw(_SUBJECT),
        status=draw(_STATUS),
        period=period,
        class_={"code": draw(st.sampled_from(["AMB", "IMP", "odd"]))},
        type=[concept("185345009")],
    )


@st.composite
def _observations(draw: st.DrawFn) -> Resource:
    parts = draw(
        st.lists(st.builds(lambda c, v: {"code": c, **v}, st.just(concept("8480-6", LOINC)), _VALUES), max_size=2)
    )
    made = of(
        "Observation",
        subject=draw(_SUBJECT),
        encounter=draw(_STAY),
        status=draw(_STATUS),
        code=draw(_CONCEPTS),
        effectiveDateTime=draw(TIMES),
        issued=draw(TIMES),
        component=parts or None,
    )
    return made | draw(_VALUES)


@st.composite
def _medications(draw: st.DrawFn) -> Resource:
    made = of(
        "MedicationRequest", subject=draw(_SUBJECT), encounter=draw(_STAY), status=draw(_STATUS), authoredOn=draw(TIMES)
    )
    inside = {"resourceType": "Medication", "id": "m", "code": concept("314076", RXNORM)}
    how = draw(st.sampled_from(["inline", "contained", "reference", "dangling"]))
    return (
        made
        | {
            "inline": {"medicationCodeableConcept": concept("314076", RXNORM)},
            "contained": {"medicationReference": {"reference": "#m"}, "contained": [inside]},
            "reference": {"medicationReference": refer("Medication", "m1")},
            "dangling": {"medicationReference": refer("Medication", "m9")},
        }[how]
    )


def _dated(kind: str, subject: str, time: str, code: str, recorded: str = "issued") -> st.SearchStrategy[Resource]:
    return st.builds(
        lambda who, where, when, later, what, status: of(
            kind, status=status, **{subject: who, "encounter": where, time: when, recorded: later, code: what}
        ),
        _SUBJECT,
        _STAY,
        TIMES,
        st.none() | TIMES,
        _CONCEPTS,
        _STATUS,
    )


@st.composite
def _claims(draw: st.DrawFn) -> Resource:
    """Bills whose diagnosis is their own, that of a Condition inside, or of one elsewhere."""
    what = draw(_CONCEPTS)
    inside = [of("Condition", id="c", code=concept("38341003"))] if draw(st.booleans()) else None
    how = draw(st.sampled_from(["own", "own", "#c", "Condition/7", "none"]))
    referred = {"diagnosisReference": {"reference": how, "display": "Anna's"}}
    told = {"own": {"diagnosisCodeableConcept": what} if what else None, "none": None}.get(how, referred)
    return of(
        "Claim", patient=draw(_SUBJECT), created=draw(TIMES), contained=inside, diagnosis=[told] if told else None
    )


_OTHERS = st.sampled_from(
    [of("Basic"), of("CarePlan", id="c"), of("Medication", id="m1", code=concept("1191", RXNORM))]
)
RESOURCES = st.lists(
    st.one_of(
        _patients(),
        _encounters(),
        _observations(),
        _medications(),
        _claims(),
        _OTHERS,
        _dated("Condition", "subject", "onsetDateTime", "code", "recordedDate"),
        _dated("Immunization", "patient", "occurrenceDateTime", "vaccineCode", "recorded"),
        _dated("DiagnosticReport", "subject", "effectiveDateTime", "code"),
    ),
    max_size=12,
).map(lambda drawn: [of("Patient", id="anna", birthDate="1950-03-01", gender="female"), *drawn])


def bundle(resources: Sequence[Resource], *, full_urls: bool = False) -> Resource:
    """A bundle; with `full_urls`, references go by URNs that differ from the ids, as in transactions."""
    if not full_urls:
        return {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": r} for r in resources]}
    urls = {f"{r['resourceType']}/{r['id']}": f"urn:uuid:{i:08d}" for i, r in enumerate(resources) if "id" in r}
    text = json.dumps(resources)
    for name, url in urls.items():
        text = text.replace(f'"reference": "{name}"', f'"reference": "{url}"')
    entries = [{"fullUrl": urls.get(f"{r['resourceType']}/{r.get('id')}"), "resource": r} for r in json.loads(text)]
    return {"resourceType": "Bundle", "type": "transaction", "entry": entries}


def write_ndjson(resources: Sequence[Resource], folder: Path, *, by_type: bool = True, gz: bool = False) -> Path:
    """A bulk export: one file for each type, or one for all."""
    files = defaultdict(list)
    for resource in resources:
        files[resource["resourceType"] if by_type else "all"].append(json.dumps(resource))
    folder.mkdir(parents=True)
    for name, lines in files.items():
        data = ("\n".join(lines) + "\n").encode()
        (folder / f"{name}.ndjson{'.gz' if gz else ''}").write_bytes(gzip.compress(data) if gz else data)
    return folder


def write_bundles(resources: Sequence[Resource], folder: Path, **how: bool) -> Path:
    """One bundle with everything, printed over many lines."""
    folder.mkdir(parents=True)
    (folder / "Anna_Surname.json").write_text(json.dumps(bundle(resources, **how), indent=1))
    return folder
