"""One invented hospital told as OMOP, FHIR, Synthea and a flat table gives one cohort, which plain loops count too."""

import datetime as dt
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.command_line import ehrseq
from helpers.fhir import LOINC, RXNORM, SNOMED, Resource, concept, of, refer, write_ndjson
from helpers.meds import stored_subjects
from helpers.omop import Tables, write_csv

pytest.importorskip("ibis", reason="needs the extra omop")

VISITS = ("visits.by=encounter", "visits.column=encounter_id")
TASK = """
name: sepsis
index:     {first_visit: true}
outcome:   {sepsis_or_so: "SNOMED//91302008"}
competing: {death_before_it: MEDS_DEATH}
censoring: {dataset_end: true}
horizons:  [180d, 2y]
"""
CVX, EPOCH = "http://hl7.org/fhir/sid/cvx", dt.datetime(1970, 1, 1)
LAST = dt.datetime(2020, 6, 1, 12)  # the last thing that happens to anybody: the end of the data set


class Fact(NamedTuple):
    """Something that became known in an encounter, or near it."""

    kind: str  # a key of KINDS
    known: dt.datetime
    began: dt.datetime | None = None  # of what began long before
    value: float | None = None

    @property
    def code(self) -> str:
        return "//".join(KINDS[self.kind][1:])


class Encounter(NamedTuple):
    """One stay: its day and hours, and what was found."""

    number: int
    start: dt.datetime
    end: dt.datetime
    facts: tuple[Fact, ...]


class Patient(NamedTuple):
    """One person of an invented hospital."""

    number: int
    sex: str
    born: dt.date
    died: dt.date | None
    encounters: tuple[Encounter, ...]


KINDS = {  # kind → OMOP's concept, vocabulary, code
    "sepsis": (132797, "SNOMED", "91302008"),
    "diabetes": (201826, "SNOMED", "44054006"),
    "procedure": (4198190, "SNOMED", "80146002"),
    "drug": (1112807, "RxNorm", "1191"),
    "vaccine": (40213154, "CVX", "140"),
    "crp": (3020460, "LOINC", "1988-5"),
}
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


def hospital(patients: int = 90) -> list[Patient]:
    """People whose encounters, facts and ends are drawn; nothing at midnight sharp, which would mean a whole day.

    One stay in four begins before the one before it has ended.
    """
    rng, number, out = random.Random(3), 0, []
    for who in range(1, patients + 1):
        day, stays = dt.datetime(2015, 1, 1, 8, 17) + dt.timedelta(days=rng.randrange(600)), list[Encounter]()
        for visit in range(rng.randrange(2, 6)):
            number += 1
            if stays and rng.random() < 0.25:
                before = stays[-1]
                hours = rng.randrange(int((before.end - before.start) / HOUR) + 1)
                day = before.start + hours * HOUR + dt.timedelta(minutes=number % 29 + 1)
            end = day + dt.timedelta(hours=rng.randrange(1, 90), minutes=number % 23)
            stays.append(Encounter(number, day, end, tuple(facts(rng, day, end, first=visit == 0))))
            day = max(e.end for e in stays).replace(hour=8) + dt.timedelta(days=rng.randrange(20, 250))
        died = (day + dt.timedelta(days=30)).date() if rng.random() < 0.4 else None
        out.append(Patient(who, rng.choice("MF"), dt.date(1930 + who % 60, 3, 1 + who % 28), died, tuple(stays)))
    last = Encounter(number + 1, LAST - 4 * HOUR, LAST, (Fact("crp", LAST - 4 * HOUR, value=5.0),))
    return [*out, Patient(0, "F", dt.date(1950, 1, 1), None, (last,))]


def facts(rng: random.Random, start: dt.datetime, end: dt.datetime, *, first: bool) -> Iterator[Fact]:
    """What is found in a stay; some of it began long before, and some labs were taken before or after it."""

    def inside() -> dt.datetime:
        return start + (end - start) * rng.random() // dt.timedelta(minutes=1) * dt.timedelta(minutes=1) + ODD

    def before() -> dt.datetime:
        return start - dt.timedelta(days=rng.randrange(400, 3000), minutes=1)

    yield Fact("crp", start, value=round(rng.uniform(1, 200), 1))
    if rng.random() < 0.3:
        yield Fact("crp", start - 5 * HOUR, value=2.5)  # before admission: of the stay
    if rng.random() < 0.3:
        yield Fact("crp", end + 4 * DAY, value=3.5)  # a follow-up: not of the stay
    if not first and rng.random() < 0.25:
        yield Fact("sepsis", inside())
    if rng.random() < 0.4:
        yield Fact("diabetes", rng.choice([inside(), end]), before())
    if rng.random() < 0.4:
        yield Fact("procedure", inside())
    if rng.random() < 0.5:
        yield Fact("drug", inside(), rng.choice([None, before()]))
    if rng.random() < 0.4:
        yield Fact("vaccine", inside(), rng.choice([None, before()]))


ODD = dt.timedelta(seconds=7)


def told_of(people: Sequence[Patient], *kinds: str) -> list[tuple[Patient, Encounter, Fact]]:
    return [(p, e, fact) for p in people for e in p.encounters for fact in e.facts if fact.kind in kinds]


def as_omop(people: Sequence[Patient], folder: Path) -> Path:
    """The hospital as tables of OMOP's CDM."""
    stays = [(p, e) for p in people for e in p.encounters]
    concepts = [(8507, "Gender", "M"), (8532, "Gender", "F"), (9201, "Visit", "IP"), (8751, "UCUM", "mg/L")]

    def rows(stem: str, date: str, *kinds: str) -> list[dict[str, Any]]:
        return [
            {
                "person_id": p.number,
                f"{stem}_concept_id": KINDS[f.kind][0],
                f"{date}_datetime": f.known,
                "visit_occurrence_id": e.number,
            }
            | ({"value_as_number": f.value, "unit_concept_id": 8751} if f.value is not None else {})
            for p, e, f in told_of(people, *kinds)
        ]

    tables: Tables = {
        "person": [
            {"person_id": p.number, "gender_concept_id": 8507 if p.sex == "M" else 8532, "birth_datetime": p.born}
            for p in people
        ],
        "visit_occurrence": [
            {
                "visit_occurrence_id": e.number,
                "person_id": p.number,
                "visit_concept_id": 9201,
                "visit_start_datetime": e.start,
                "visit_end_datetime": e.end,
            }
            for p, e in stays
        ],
        "condition_occurrence": rows("condition", "condition_start", "sepsis", "diabetes"),
        "procedure_occurrence": rows("procedure", "procedure", "procedure"),
        "drug_exposure": rows("drug", "drug_exposure_start", "drug", "vaccine"),
        "measurement": rows("measurement", "measurement", "crp"),
        "death": [{"person_id": p.number, "death_date": p.died} for p in people if p.died],
        "concept": [
            {"concept_id": i, "concept_name": f"{v} {c}", "vocabulary_id": v, "concept_code": c}
            for i, v, c in [*concepts, *KINDS.values()]
        ],
    }
    return write_csv(tables, folder)


def as_synthea(people: Sequence[Patient], folder: Path) -> Path:
    """The hospital as Synthea exports it."""
    stays = [(p, e) for p in people for e in p.encounters]

    def rows(date: str, *kinds: str) -> list[dict[str, Any]]:
        return [
            {
                date: _utc(f.known),
                "PATIENT": f"patient-{p.number}",
                "ENCOUNTER": f"stay-{e.number}",
                "CODE": KINDS[f.kind][2],
                "DESCRIPTION": f.kind,
            }
            | ({"VALUE": f.value, "UNITS": "mg/L", "TYPE": "numeric"} if f.value is not None else {})
            for p, e, f in told_of(people, *kinds)
        ]

    tables: dict[str, list[dict[str, Any]]] = {
        "patients": [
            {"Id": f"patient-{p.number}", "BIRTHDATE": p.born, "DEATHDATE": p.died or "", "GENDER": p.sex}
            for p in people
        ],
        "encounters": [
            {
                "Id": f"stay-{e.number}",
                "START": _utc(e.start),
                "STOP": _utc(e.end),
                "PATIENT": f"patient-{p.number}",
                "ENCOUNTERCLASS": "inpatient",
                "CODE": "185347001",
                "DESCRIPTION": "Encounter for problem",
            }
            for p, e in stays
        ],
        "conditions": rows("START", "sepsis", "diabetes"),
        "procedures": rows("START", "procedure"),
        "medications": rows("START", "drug"),
        "immunizations": rows("DATE", "vaccine"),
        "observations": rows("DATE", "crp"),
    }
    return write_csv(tables, folder)


def as_fhir(people: Sequence[Patient], folder: Path) -> Path:
    """The hospital as a FHIR server exports it."""
    resources = []
    for p in people:
        who, sex = refer("Patient", f"patient-{p.number}", "urn"), "male" if p.sex == "M" else "female"
        died = str(p.died) if p.died else None
        resources.append(
            of("Patient", id=f"patient-{p.number}", birthDate=str(p.born), deceasedDateTime=died, gender=sex)
        )
        for e in p.encounters:
            resources.append(
                of(
                    "Encounter",
                    id=f"stay-{e.number}",
                    subject=who,
                    type=[concept("185347001")],
                    class_={"code": "IMP"},
                    period={"start": _utc(e.start), "end": _utc(e.end)},
                )
            )
            resources += [fhir_fact(fact, who, e) for fact in e.facts]
    return write_ndjson(resources, folder)


def fhir_fact(fact: Fact, who: Resource, e: Encounter) -> Resource:
    """A fact; what began long before says so, and says when it was recorded only if that was before the discharge."""
    known, base = _utc(fact.known), {"subject": who, "encounter": refer("Encounter", f"stay-{e.number}")}
    began = _utc(fact.began or fact.known)
    recorded = known if fact.began is not None and fact.known < e.end else None
    code = concept(KINDS[fact.kind][2], {"CVX": CVX, "RxNorm": RXNORM, "LOINC": LOINC}.get(KINDS[fact.kind][1], SNOMED))
    if fact.kind == "crp":
        value = {"value": fact.value, "unit": "mg/L"}
        return of("Observation", **base, effectiveDateTime=known, code=code, valueQuantity=value)
    if fact.kind == "procedure":
        return of("Procedure", **base, performedDateTime=known, code=code)
    if fact.kind == "vaccine":
        base = {"patient": who, "encounter": base["encounter"]}
        return of("Immunization", **base, occurrenceDateTime=began, recorded=recorded, vaccineCode=code)
    if fact.kind == "drug" and fact.began is None:
        return of("MedicationRequest", **base, authoredOn=known, medicationCodeableConcept=code)
    if fact.kind == "drug":
        base = {"subject": who, "context": base["encounter"], "medicationCodeableConcept": code}
        return of("MedicationStatement", **base, effectivePeriod={"start": began}, dateAsserted=recorded)
    return of("Condition", **base, onsetDateTime=began, recordedDate=recorded, code=code)


MAP = """
subject: patient
time: time
encounter: {id: stay, start: admitted, end: discharged}
birth: born
death: died
static: {sex: GENDER}
events:
  - {code: ADMISSION, code_from: kind_of_stay, time: admitted}
  - {code: DISCHARGE, code_from: kind_of_stay, time: discharged}
  - {code_from: lab, value: value, unit: mg/L}
  - {code_from: code}
"""


def as_csv(people: Sequence[Patient], folder: Path) -> Path:
    """The hospital as one flat table, with its map beside it."""
    rows = [
        {
            "patient": f"patient-{p.number}",
            "born": p.born,
            "died": p.died,
            "sex": p.sex,
            "stay": f"stay-{e.number}",
            "kind_of_stay": "inpatient",
            "admitted": e.start,
            "discharged": e.end,
            "time": f.known,
            "lab": f.code if f.value is not None else "",
            "value": f.value,
            "code": "" if f.value is not None else f.code,
        }
        for p, e, f in told_of(people, *KINDS)
    ]
    write_csv({"hospital": rows}, folder)
    (folder / "map.yaml").write_text(MAP)
    return folder / "hospital.csv"


def _utc(time: dt.datetime) -> str:
    return f"{time.isoformat()}Z"


def done(*words: object) -> str:
    result = ehrseq(*words)
    assert result.exit_code == 0, result.output
    return result.output


Span = tuple[dt.datetime, dt.datetime]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Overlapping spans as one."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif not out or (start, end) != out[-1]:
            out.append((start, end))
    return out


def visits_of(patient: Patient) -> list[Span]:
    """Start and end of each visit by encounter, by plain loops: facts far from their stay join what holds them."""
    spans, loose = [], []
    for e in patient.encounters:
        near = [f.known for f in e.facts if e.start - DAY < f.known < e.end + DAY]
        spans.append((min([e.start, *near]), max([e.end, *near])))
        loose += [f.known for f in e.facts if f.known not in near]
    stays = merged(spans)
    loose = [time for time in loose if not any(start <= time <= end for start, end in stays)]
    days = [[time for time in loose if time.date() == day] for day in {time.date() for time in loose}]
    return merged([*stays, *((min(times), max(times)) for times in days)])


def expected(people: Sequence[Patient]) -> list[tuple[float, int]]:
    """Days and cause of every prediction time, by plain loops: at the end of each visit while nothing is known."""
    out = []
    for patient in people:
        dead = None if patient.died is None else dt.datetime.combine(patient.died, dt.time(23, 59, 59))
        visits = [end for _, end in visits_of(patient)]
        sepsis = sorted(f.known for e in patient.encounters for f in e.facts if f.kind == "sepsis")
        if sepsis and sepsis[0] <= visits[0]:
            continue  # before the index
        ends = [(t, 1) for t in sepsis[:1]] + ([(dead, 2)] if dead else []) + [(LAST, 0)]
        end, cause = min(ends, key=lambda pair: pair[0])
        out += [((end - known).total_seconds() / 86_400, cause) for known in visits if known < end]
    return sorted((round(days, 6), cause) for days, cause in out)


WRITERS: dict[str, Callable[[Sequence[Patient], Path], Path]] = {
    "omop": as_omop,
    "synthea": as_synthea,
    "fhir": as_fhir,
    "csv": as_csv,
}


def prepared_set(kind: str, people: Sequence[Patient], folder: Path) -> dict[str, Any]:
    """The cohort of one form of the hospital, and its visits: start, end, and the codes that all forms have."""
    folder.mkdir()
    (folder / "task.yaml").write_text(TASK)
    meds, prepared, source = folder / "meds", folder / "prepared", WRITERS[kind](people, folder / "source")
    table_map = ["--map", source.parent / "map.yaml"] if kind == "csv" else []
    done("import", kind, source, *table_map, meds)
    done("prepare", meds, "--task", folder / "task.yaml", "--out", prepared, *VISITS, "vocabulary.min_subjects=1")
    cohort = pq.read_table(prepared / "tasks" / "sepsis" / "cohort.parquet").drop_columns(["subject_id", "split"])
    labels = zip(cohort["duration_days"].to_pylist(), cohort["cause"].to_pylist(), strict=True)
    shared = {fact.code for _, _, fact in told_of(people, *KINDS) if fact.value is None} | {"LOINC//1988-5//mg/L"}
    visits = [
        (start, end, [name for name, _ in codes if name in shared])
        for subject in stored_subjects(prepared).values()
        for start, end, codes in zip(subject.start_us, subject.end_us, subject.codes, strict=True)
    ]
    rows = pa.concat_tables([pq.read_table(path) for path in sorted((meds / "data").rglob("*.parquet"))])
    return {
        "cohort": sorted(map(repr, cohort.to_pylist())),
        "labels": sorted((round(days, 6), cause) for days, cause in labels),
        "visits": sorted(visits),
        "labs": sorted(v for v in rows["numeric_value"].to_pylist() if v is not None),
    }


def test_omop_fhir_synthea_and_a_flat_table_give_the_same_cohort_and_visits(tmp_path: Path) -> None:
    people = hospital(30)
    sets = {kind: prepared_set(kind, people, tmp_path / kind) for kind in WRITERS}
    plain = sorted(span for patient in people for span in visits_of(patient))
    found = [tuple(EPOCH + dt.timedelta(microseconds=us) for us in visit[:2]) for visit in sets["omop"]["visits"]]
    assert found == plain
    stays = [[(e.start, e.end) for e in patient.encounters] for patient in people]
    assert sum(map(len, map(merged, stays))) < sum(map(len, stays)) - 10  # some overlap
    assert sets["omop"]["labels"] == expected(people)
    assert len(expected(people)) > 50
    for kind, made in sets.items():
        assert made == sets["omop"], kind
