"""From a hospital's tables to a report by the commands of docs/data.md: import, check, prepare, train, evaluate."""

import csv
import datetime as dt
import html
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from helpers.command_line import ehrseq
from helpers.fhir import LOINC, concept, of, refer, write_ndjson
from helpers.omop import Tables, write_csv

pytest.importorskip("ibis", reason="needs the extra omop")

TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=2", "training.min_steps=4")
VISITS = ("visits.by=encounter", "visits.column=encounter_id")
TASK = """
name: sepsis
index:     {first_visit: true}
outcome:   {sepsis_or_so: "SNOMED//91302008"}
competing: {death_before_it: MEDS_DEATH}
censoring: {dataset_end: true}
horizons:  [180d, 2y]
"""
LAST = dt.datetime(2020, 6, 1, 12)  # the last thing that happens to anybody: the end of the data set


class Encounter(NamedTuple):
    """One stay: its day and hours, a lab and whether sepsis was found."""

    number: int
    start: dt.datetime
    end: dt.datetime
    crp: float
    sepsis: bool


class Patient(NamedTuple):
    """One person of an invented hospital."""

    number: int
    sex: str
    born: dt.date
    died: dt.date | None
    encounters: tuple[Encounter, ...]


def hospital(patients: int = 90) -> list[Patient]:
    """People whose encounters, labs and ends are drawn; nothing at midnight sharp, which would mean a whole day."""
    rng, number, out = random.Random(3), 0, []
    for who in range(1, patients + 1):
        day, stays = dt.datetime(2015, 1, 1, 8, 17) + dt.timedelta(days=rng.randrange(600)), []
        for visit in range(rng.randrange(2, 6)):
            number += 1
            end = day + dt.timedelta(hours=rng.randrange(1, 90))
            stays.append(Encounter(number, day, end, round(rng.uniform(1, 200), 1), visit > 0 and rng.random() < 0.25))
            day = end.replace(hour=8) + dt.timedelta(days=rng.randrange(20, 250))
        died = (day + dt.timedelta(days=30)).date() if rng.random() < 0.4 else None
        out.append(Patient(who, rng.choice("MF"), dt.date(1930 + who % 60, 3, 1 + who % 28), died, tuple(stays)))
    last = Encounter(number + 1, LAST - dt.timedelta(hours=4), LAST, 5.0, False)
    return [*out, Patient(0, "F", dt.date(1950, 1, 1), None, (last,))]


def as_omop(people: Sequence[Patient], folder: Path) -> Path:
    """The hospital as tables of OMOP's CDM."""
    stays = [(p, e) for p in people for e in p.encounters]
    concepts = [
        (8507, "Gender", "M"), (8532, "Gender", "F"), (9201, "Visit", "IP"), (132797, "SNOMED", "91302008"),
        (3020460, "LOINC", "1988-5"), (8751, "UCUM", "mg/L"),
    ]  # fmt: skip
    tables: Tables = {
        "person": [
            {"person_id": p.number, "gender_concept_id": 8507 if p.sex == "M" else 8532, "birth_datetime": p.born}
            for p in people
        ],
        "visit_occurrence": [
            {"visit_occurrence_id": e.number, "person_id": p.number, "visit_concept_id": 9201,
             "visit_start_datetime": e.start, "visit_end_datetime": e.end}
            for p, e in stays
        ],
        "condition_occurrence": [
            {"person_id": p.number, "condition_concept_id": 132797, "condition_start_datetime": e.start,
             "visit_occurrence_id": e.number}
            for p, e in stays if e.sepsis
        ],
        "measurement": [
            {"person_id": p.number, "measurement_concept_id": 3020460, "measurement_datetime": e.start,
             "value_as_number": e.crp, "unit_concept_id": 8751, "visit_occurrence_id": e.number}
            for p, e in stays
        ],
        "death": [{"person_id": p.number, "death_date": p.died} for p in people if p.died],
        "concept": [
            {"concept_id": i, "concept_name": f"{v} {c}", "vocabulary_id": v, "concept_code": c}
            for i, v, c in concepts
        ],
    }  # fmt: skip
    return write_csv(tables, folder)


def as_synthea(people: Sequence[Patient], folder: Path) -> Path:
    """The hospital as Synthea exports it."""
    stays = [(p, e) for p in people for e in p.encounters]
    tables: dict[str, list[dict[str, Any]]] = {
        "patients": [
            {"Id": f"patient-{p.number}", "BIRTHDATE": p.born, "DEATHDATE": p.died or "", "GENDER": p.sex}
            for p in people
        ],
        "encounters": [
            {"Id": f"stay-{e.number}", "START": _utc(e.start), "STOP": _utc(e.end), "PATIENT": f"patient-{p.number}",
             "ENCOUNTERCLASS": "inpatient", "CODE": "185347001", "DESCRIPTION": "Encounter for problem"}
            for p, e in stays
        ],
        "conditions": [
            {"START": _utc(e.start), "STOP": "", "PATIENT": f"patient-{p.number}", "ENCOUNTER": f"stay-{e.number}",
             "CODE": "91302008", "DESCRIPTION": "Sepsis"}
            for p, e in stays if e.sepsis
        ],
        "observations": [
            {"DATE": _utc(e.start), "PATIENT": f"patient-{p.number}", "ENCOUNTER": f"stay-{e.number}",
             "CODE": "1988-5", "DESCRIPTION": "CRP", "VALUE": e.crp, "UNITS": "mg/L", "TYPE": "numeric"}
            for p, e in stays
        ],
    }  # fmt: skip
    folder.mkdir(parents=True)
    for name, rows in tables.items():
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


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
            where = refer("Encounter", f"stay-{e.number}")
            resources += [
                of("Encounter", id=f"stay-{e.number}", subject=who, type=[concept("185347001")],
                   class_={"code": "IMP"}, period={"start": _utc(e.start), "end": _utc(e.end)}),
                of("Observation", subject=who, encounter=where, effectiveDateTime=_utc(e.start),
                   code=concept("1988-5", LOINC), valueQuantity={"value": e.crp, "unit": "mg/L"}),
            ]  # fmt: skip
            if e.sepsis:
                found = concept("91302008", display="Sepsis")
                resources.append(of("Condition", subject=who, encounter=where, onsetDateTime=_utc(e.start), code=found))
    return write_ndjson(resources, folder)


def _utc(time: dt.datetime) -> str:
    return f"{time.isoformat()}Z"


def done(*words: object) -> str:
    result = ehrseq(*words)
    assert result.exit_code == 0, result.output
    return result.output


def to_report(kind: str, source: Path, folder: Path, task: str) -> tuple[dict[str, Any], str]:
    """The whole way by commands; the metrics, and the text of the report."""
    (folder / "task.yaml").write_text(task)
    meds, prepared, run = (folder / name for name in ("meds", "prepared", "run"))
    done("import", kind, source, meds)
    assert "prediction times" in done("check", meds, "--task", folder / "task.yaml", *VISITS)
    done("prepare", meds, "--task", folder / "task.yaml", "--out", prepared, *VISITS, "vocabulary.min_subjects=3")
    done("train", prepared, "--out", run, *TINY)
    done("evaluate", run, "--baselines", "none", "evaluation.bootstrap=10", "evaluation.explained_subjects=20")
    page = html.unescape((run / "report-details.html").read_text())
    return json.loads((run / "metrics-individual.json").read_text()), page


def expected(people: Sequence[Patient]) -> list[tuple[float, int]]:
    """Days and cause of every prediction time, by plain loops: at the end of each encounter while nothing is known."""
    out = []
    for patient in people:
        dead = None if patient.died is None else dt.datetime.combine(patient.died, dt.time(23, 59, 59))
        first = patient.encounters[0].end
        sepsis = [e.start for e in patient.encounters if e.sepsis]
        ends = [(t, 1) for t in sepsis[:1]] + ([(dead, 2)] if dead else []) + [(LAST, 0)]
        end, cause = min(ends, key=lambda pair: pair[0])
        out += [((end - e.end).total_seconds() / 86_400, cause) for e in patient.encounters if first <= e.end < end]
    return sorted((round(days, 6), cause) for days, cause in out)


WRITERS: dict[str, Callable[[Sequence[Patient], Path], Path]] = {
    "omop": as_omop,
    "synthea": as_synthea,
    "fhir": as_fhir,
}


@pytest.mark.parametrize("kind", ["omop", pytest.param("synthea", marks=pytest.mark.slow)])
def test_one_hospital_told_in_two_ways_gives_the_same_cohort_and_a_report(kind: str, tmp_path: Path) -> None:
    """Of Synthea a quick test shows the same cohort and visits (`test_omop_fhir_and_synthea_…`), without a report."""
    people = hospital()
    metrics, report = to_report(kind, WRITERS[kind](people, tmp_path / "source"), tmp_path, TASK)
    cohort = pq.read_table(tmp_path / "prepared" / "tasks" / "sepsis" / "cohort.parquet")
    labels = zip(cohort["duration_days"].to_pylist(), cohort["cause"].to_pylist(), strict=True)
    assert sorted((round(days, 6), cause) for days, cause in labels) == expected(people)
    assert metrics["causes"] == ["sepsis_or_so", "death_before_it"]
    assert {row["cause"] for row in metrics["metrics"]} >= {"sepsis_or_so", "death_before_it"}
    assert sum(metrics["data"]["subjects"].values()) == metrics["attrition"][-1]["subjects"]
    for words in ("sepsis_or_so", "death_before_it", "SNOMED//91302008", f"imported from {kind}"):
        assert words in report
    vocabulary = json.loads((tmp_path / "run" / "vocabulary.json").read_text())["tokens"]
    assert "LOINC//1988-5//mg/L" in vocabulary
    assert "patient-" not in report + json.dumps(metrics)


def prepared_sets(people: Sequence[Patient], folder: Path) -> dict[str, dict[str, Any]]:
    """For each form of the hospital, its cohort and its visits without the subjects' ids."""
    (folder / "task.yaml").write_text(TASK)
    sets = {}
    for kind, write in WRITERS.items():
        meds, prepared = folder / kind / "meds", folder / kind / "prepared"
        done("import", kind, write(people, folder / kind / "source"), meds)
        done("prepare", meds, "--task", folder / "task.yaml", "--out", prepared, *VISITS, "vocabulary.min_subjects=1")
        cohort = pq.read_table(prepared / "tasks" / "sepsis" / "cohort.parquet").drop_columns(["subject_id", "split"])
        rows = pa.concat_tables(pq.read_table(path) for path in sorted((meds / "data").rglob("*.parquet")))
        stays = rows.filter(pc.is_valid(rows["encounter_id"])).group_by(["time", "encounter_id"]).aggregate([])
        sets[kind] = {
            "cohort": sorted(map(repr, cohort.to_pylist())),
            "visits": sorted(map(str, stays["time"].to_pylist())),
            "labs": sorted(v for v in rows["numeric_value"].to_pylist() if v is not None),
        }
    return sets


def test_omop_fhir_and_synthea_give_the_same_cohort_and_visits(tmp_path: Path) -> None:
    sets = prepared_sets(hospital(40), tmp_path)
    assert len(sets["omop"]["cohort"]) > 50
    assert sets["fhir"] == sets["synthea"] == sets["omop"]


REAL = {
    "mimic4_demo_omop": ("omop", "index: {first_visit: true}\noutcome: {death_of_all_causes: MEDS_DEATH}\n", 100),
    "synthea_csv_unmc": (
        "synthea",
        "index: {first_visit: true}\noutcome: {sinusitis_again: SNOMED//444814009}\ncompeting: {death: MEDS_DEATH}\n",
        111,
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_real_tables_go_all_the_way_to_a_report(name: str, real_data: Path, tmp_path: Path) -> None:
    kind, task, subjects = REAL[name]
    task = f"name: t\n{task}horizons: [180d]\n"
    metrics, report = to_report(kind, real_data / name, tmp_path, task)
    assert metrics["attrition"][0]["subjects"] == subjects
    assert metrics["causes"][0] in report
    assert sum(part[metrics["causes"][0]] for part in metrics["events"].values()) > 0
