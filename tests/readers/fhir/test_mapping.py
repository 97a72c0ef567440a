"""FHIR: what a resource says about itself counts: when it was known, what it is a part of, and what did not happen."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.fhir import import_fhir, read_bundle
from ehrsequencing.readers.fhir.known import Known
from ehrsequencing.readers.fhir.mapping import rows_of
from ehrsequencing.readers.rows import Left
from helpers.command_line import refused
from helpers.fhir import LOINC, RXNORM, Resource, concept, of, refer

ANNA = of("Patient", id="anna", birthDate="1950-03-01", gender="female")
NULL, ABSENT = "http://terminology.hl7.org/CodeSystem/v3-NullFlavor", "http://hl7.org/fhir/data-absent-reason"
GM = "http://fhir.de/CodeSystem/bfarm/icd-10-gm"


def stay(name: str = "s1", days: tuple[int, int] = (1, 5), class_: str = "IMP", **more: Any) -> Resource:
    period = {"start": f"2018-01-0{days[0]}T10:00:00Z", "end": f"2018-01-0{days[1]}T12:00:00Z"}
    return of("Encounter", id=name, subject=refer("Patient", "anna"), class_={"code": class_}, period=period, **more)


def lab(when: str = "2018-01-02T08:00:00Z", **more: Any) -> Resource:
    named = {"subject": refer("Patient", "anna"), "code": concept("2345-7", LOINC), **more}
    return of("Observation", effectiveDateTime=when, **named)


def condition(**more: Any) -> Resource:
    named = {"subject": refer("Patient", "anna"), "code": concept("38341003"), **more}
    return of("Condition", **named)


def read(*resources: Resource, **how: Any) -> tuple[list[dict[str, Any]], Any]:
    rows, report = read_bundle([ANNA, *resources], **how)
    return rows.to_pylist(), report


def times(rows: Sequence[dict[str, Any]], code: str) -> list[datetime]:
    return [row["time"] for row in rows if row["code"].startswith(code)]


@pytest.mark.parametrize(
    ("when", "issued", "known"),
    [
        ("2018-01-02T08:00:00Z", "2018-01-04T16:30:00Z", datetime(2018, 1, 4, 16, 30)),
        ("2018-01-02T08:00:00Z", "2018-01-01T16:30:00Z", datetime(2018, 1, 2, 8)),
        ("2018-01-02", "2018-01-02T09:00:00Z", datetime(2018, 1, 2, 9)),
        ("2018-01-02T08:00:00Z", "2018-06-01T09:00:00Z", datetime(2018, 1, 2, 8)),
        ("yesterday", "2018-01-02T09:00:00Z", datetime(2018, 1, 2, 9)),
    ],
)
@pytest.mark.parametrize("kind", ["Observation", "DiagnosticReport"])
def test_a_result_is_known_when_it_is_issued(when: str, issued: str, known: datetime, kind: str) -> None:
    result = {**lab(when, issued=issued), "resourceType": kind}
    rows, report = read(stay(), result)
    assert times(rows, "LOINC") == [known]
    assert report.counts["late_issue"] == (issued > "2018-05")
    if kind == "Observation" and when != "yesterday":
        rows, _ = read(stay(), result, known="earliest")
        assert times(rows, "LOINC")[0] <= datetime(2018, 1, 2, 23, 59, 59)


def test_a_result_issued_after_its_stay_or_death_belongs_to_neither() -> None:
    late = lab(issued="2018-01-05T16:00:00Z", encounter=refer("Encounter", "s1"))
    rows, _ = read(stay(), late)
    assert [row["encounter_id"] for row in rows if row["code"].startswith("LOINC")] == [None]
    dead = {**ANNA, "deceasedDateTime": "2018-01-05T12:00:00Z"}
    rows, report = read(dead, stay(), late, lab())
    assert times(rows, "LOINC") == [datetime(2018, 1, 2, 8)]
    assert report.tables["Observation"].dropped == {"issued_after_death": 1}


def test_many_results_of_one_day_of_issue_name_the_setting(tmp_path: Path) -> None:
    source = tmp_path / "all.ndjson"
    results = [lab(f"2018-01-{day:02d}T08:00:00Z", issued="2018-02-01T00:00:00.5Z") for day in range(1, 25)]
    source.write_text("\n".join(map(json.dumps, [ANNA, stay(), *results])))
    report = import_fhir(source, tmp_path / "one")
    assert any("import.known=earliest" in warning for warning in report.warnings())
    report = import_fhir(source, tmp_path / "two", settings=ImportConfig(known="earliest"))
    assert not report.warnings()
    card = json.loads((tmp_path / "two/metadata/dataset.json").read_text())
    assert card["ehrseq_import"]["known"] == "earliest"


@pytest.mark.parametrize("kind", ["condition", "allergyintolerance"])
def test_an_assertion_dates_a_condition(kind: str) -> None:
    url = f"http://hl7.org/fhir/StructureDefinition/{kind}-assertedDate"
    asserted = [{"url": "http://other"}, {"url": url, "valueDateTime": "2018-01-03T10:00:00Z"}]
    named = condition(onsetDateTime="2010-05-01", extension=asserted)
    if kind != "condition":
        named = {**named, "resourceType": "AllergyIntolerance", "patient": refer("Patient", "anna")}
    assert times(read(named)[0], "SNOMED") == [datetime(2018, 1, 3, 10)]
    recorded = {**named, "recordedDate": "2018-01-04T10:00:00Z"}
    assert times(read(recorded)[0], "SNOMED") == [datetime(2018, 1, 4, 10)]
    assert times(read(recorded, known="earliest")[0], "SNOMED") == [datetime(2010, 5, 1, 23, 59, 59)]


FOCUS = [refer("Patient", "child")]


@pytest.mark.parametrize(
    ("resources", "codes"),
    [
        ([condition(recordedDate="2018-01-02", verificationStatus={"text": "Refuted"})], []),
        (
            [condition(recordedDate="2018-01-02", verificationStatus={"text": "provisional"})],
            ["SNOMED//38341003//provisional"],
        ),
        ([lab(focus=FOCUS, contained=[lab()])], []),
    ],
    ids=["refuted in words", "provisional in words", "inside of another's"],
)
def test_statements_that_do_not_count_in_other_places(resources: list[Resource], codes: list[str]) -> None:
    rows, _ = read(stay(), *resources)
    assert [row["code"] for row in rows if row["code"].startswith(("SNOMED", "LOINC"))] == codes


def test_parts_of_a_stay_are_no_stays_but_those_of_another_class_are() -> None:
    whole, ward = refer("Encounter", "s1"), refer("Encounter", "ward")
    parts = [
        stay("ward", (1, 2), partOf=whole),
        stay("room", (1, 1), partOf=ward),
        stay("er", (1, 1), "EMER", partOf=whole),
        stay("lost", (3, 4), partOf=refer("Encounter", "elsewhere")),
        stay("x", (6, 7), partOf=refer("Encounter", "y")),
        stay("y", (6, 7), partOf=refer("Encounter", "x")),
        stay("self", (8, 9), partOf=refer("Encounter", "self")),
        stay("gone", (3, 4), status="entered-in-error"),
        stay("left", (3, 4), partOf=refer("Encounter", "gone")),
    ]
    told = condition(onsetDateTime="2010-01-01", encounter=ward)
    rows, _ = read(stay(), *parts, told)
    starts = {row["encounter_id"]: row["code"] for row in rows if not row["code"].endswith("//END")}
    inpatient = "ENCOUNTER//inpatient"
    assert starts.pop("ward") in (f"{inpatient}//PART", "SNOMED//38341003")
    assert starts.pop("room") == f"{inpatient}//PART"
    assert starts.pop("er") == "ENCOUNTER//emergency"
    assert {name for name, code in starts.items() if code == inpatient} == {"s1", "lost", "x", "y", "self", "left"}
    assert len(times(rows, f"{inpatient}//PART//END")) == 2
    assert times(rows, "SNOMED") == [datetime(2018, 1, 2, 12)]


@pytest.mark.parametrize(
    ("coding", "left"),
    [
        *((code, Left.DIED) for code in ("exp", "20", "371828006", "DEAD/EXPIRED")),
        *((code, Left.ALIVE) for code in ("home", "01", "rehab", "psy", "snf", "Skilled nursing facility", "hosp")),
        *((code, Left.MOVED) for code in ("other-hcf", "02", "Transfer to acute care hospital")),
        *((code, Left.STILL) for code in ("30", "Still patient")),
        ("oth", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("holder", ["hospitalization", "admission"])
def test_a_discharge_says_how_a_stay_ended(coding: str | None, left: Left | None, holder: str) -> None:
    said = {holder: {"dischargeDisposition": {"coding": [{"code": coding}]}}} if coding else {}
    found = rows_of({**stay(), **said}, Known(), read()[1].counts)
    assert not isinstance(found, str)
    row = next(iter(found))
    assert (row.acute, row.left) == (True, left)


def test_resources_inside_another_one_are_read_or_counted() -> None:
    inside = [lab("", id="r1", subject=None, valueInteger=5), of("Specimen", id="s"), condition(id="c", subject=None)]
    held = {"subject": refer("Patient", "anna"), "contained": inside, "encounter": refer("Encounter", "s1")}
    reports = [
        of(
            "DiagnosticReport",
            id=name,
            code=concept("24323-8", LOINC),
            **held,
            effectiveDateTime=f"2018-01-0{day}T08:00:00Z",
            issued=f"2018-01-0{day}T09:00:00Z",
        )
        for day, name in ((2, "one"), (3, "two"))
    ]
    rows, report = read(stay(), *reports)
    assert times(rows, "LOINC//2345-7") == [datetime(2018, 1, 2, 9), datetime(2018, 1, 3, 9)]
    assert times(rows, "SNOMED") == [datetime(2018, 1, 2, 9), datetime(2018, 1, 3, 9)]
    assert {row["encounter_id"] for row in rows if row["code"].startswith("LOINC")} == {"s1"}
    assert report.tables["Specimen"].dropped == {"not_read": 2}
    rows, report = read(stay(), *({**one, "status": "entered-in-error"} for one in reports))
    assert not times(rows, "LOINC")
    assert report.tables["Observation"].dropped == {"not_done": 2}


def ruled_out(certainty: str) -> Resource:
    url = "http://fhir.de/StructureDefinition/icd-10-gm-diagnosesicherheit"
    said = [{"url": "http://other"}, {"url": url, "valueCoding": {"code": certainty}}]
    return {"coding": [{"system": GM, "code": "I50.1", "extension": said}]}


def test_what_was_ruled_out_or_declined_did_not_happen() -> None:
    when = {"recordedDate": "2018-01-02T10:00:00Z"}
    given = of(
        "MedicationDispense",
        subject=refer("Patient", "anna"),
        whenPrepared="2018-01-02T10:00:00Z",
        medicationCodeableConcept=concept("1", RXNORM),
        status="declined",
    )
    bill = of(
        "Claim",
        patient=refer("Patient", "anna"),
        created="2018-01-03",
        diagnosis=[{"diagnosisCodeableConcept": ruled_out(one)} for one in "AG"],
    )
    absent = condition(verificationStatus=concept("410516002"), **when)
    rows, report = read(*(condition(code=ruled_out(one), **when) for one in "GAV"), absent, given, bill)
    codes = [row["code"] for row in rows if row["code"].startswith("ICD10GM")]
    assert sorted(codes) == ["ICD10GM//I50.1"] * 2 + ["ICD10GM//I50.1//provisional"]
    assert not times(rows, "RxNorm")
    assert report.counts["not_done"] == 3


@pytest.mark.parametrize("system", [NULL, ABSENT, "urn:oid:2.16.840.1.113883.5.1008"])
def test_a_code_of_absence_is_no_code(system: str) -> None:
    when = {"recordedDate": "2018-01-02T10:00:00Z"}
    beside = {"coding": [*concept("UNK", system)["coding"], *concept("E11.9", GM)["coding"]]}
    rows, report = read(
        condition(code=concept("UNK", system), **when),
        condition(code=beside, **when),
        lab(valueCodeableConcept=concept("UNK", system)),
        stay(class_="IMP"),
    )
    codes = {row["code"] for row in rows}
    assert {"FHIR//0//CONDITION", "ICD10GM//E11.9"} <= codes
    assert not any("UNK" in code or code.startswith("LOINC") for code in codes)
    assert (report.counts["no_result"], report.counts["uncoded"]) == (1, 1)


def test_unknown_modifiers_leave_a_resource_out_and_are_named() -> None:
    modified = {"modifierExtension": [{"url": "http://h.example/not", "valueBoolean": True}]}
    part = {"code": concept("8480-6", LOINC), "valueInteger": 5, **modified}
    rows, report = read({**stay(), **modified}, {**lab(valueInteger=5), **modified}, lab(component=[part]))
    assert times(rows, "ENCOUNTER//inpatient")
    assert not times(rows, "LOINC")
    assert report.counts["modified"] == 2
    assert any("http://h.example/not" in warning for warning in report.warnings())


def test_a_copy_with_a_part_of_the_elements_replaces_no_whole_resource() -> None:
    def version(day: int, **more: Any) -> Resource:
        return {"meta": {"lastUpdated": f"2019-01-0{day}T00:00:00Z", **more}, "id": "o1"}

    tag = {"tag": [{"code": "SUBSETTED"}]}
    rows, report = read({**lab(valueInteger=5), **version(1)}, {**lab(), **version(2, **tag)})
    assert [row["numeric_value"] for row in rows if row["code"].startswith("LOINC")] == [5.0]
    assert report.tables["Observation"].dropped == {"subsetted": 1}
    assert any(warning.startswith("1 resources have a newer copy") for warning in report.warnings())
    rows, report = read({**lab(valueInteger=5), **version(2)}, {**lab(), **version(2, **tag)})
    assert not report.warnings()
    assert len(times(read({**lab(), **version(2, **tag)})[0], "LOINC")) == 1


@pytest.mark.parametrize(("updated", "kept"), [(None, 0), ("2019-02-01T00:00:00Z", 0), ("2018-02-01T00:00:00Z", 1)])
def test_the_list_of_deletions_of_a_bulk_export_is_applied(updated: str | None, kept: int, tmp_path: Path) -> None:
    there = {**lab(id="o1"), "meta": {"lastUpdated": "2019-01-01T00:00:00Z"}}
    entry = {"request": {"method": "DELETE", "url": "https://a.example/fhir/Observation/o1"}}
    deleted = {"resourceType": "Bundle", "type": "transaction", "entry": [entry], "meta": {"lastUpdated": updated}}
    (tmp_path / "fhir/deleted").mkdir(parents=True)
    (tmp_path / "fhir/all.ndjson").write_text("\n".join(map(json.dumps, [ANNA, stay(), there])))
    (tmp_path / "fhir/deleted/1.ndjson").write_text(json.dumps(deleted))
    report = import_fhir(tmp_path / "fhir", tmp_path / "meds")
    assert report.tables["Observation"].kept == kept
    conditional = {"request": {"method": "DELETE", "url": "Observation?identifier=5"}}
    assert read(stay(), {**deleted, "entry": [conditional]})[1].tables["unreadable"].dropped == {"no_type": 1}


def test_a_medication_without_a_code_is_named_by_its_ingredients() -> None:
    drug = of("Medication", id="m", ingredient=[{"itemCodeableConcept": concept(one, RXNORM)} for one in "12"])
    given = of("MedicationAdministration", subject=refer("Patient", "anna"), effectiveDateTime="2018-01-02T10:00:00Z")
    inside = {**given, "medicationReference": {"reference": "#m"}, "contained": [drug]}
    for resources in ([drug, {**given, "medicationReference": refer("Medication", "m")}], [inside]):
        assert {row["code"] for row in read(*resources)[0]} >= {"RxNorm//1", "RxNorm//2"}


def test_one_id_of_two_people_is_refused(tmp_path: Path) -> None:
    other = of("Patient", id="anna", birthDate="1980-01-01", gender="male")
    for name, patient in (("a", ANNA), ("b", other)):
        (tmp_path / f"fhir/{name}").mkdir(parents=True)
        (tmp_path / f"fhir/{name}/all.ndjson").write_text("\n".join(map(json.dumps, [patient, stay()])))
    error = refused("import", "fhir", tmp_path / "fhir", tmp_path / "meds")
    assert "a/all.ndjson" in error
    assert "b/all.ndjson" in error
    assert "1980" not in error
    with pytest.raises(EhrseqError, match="two people"):
        read(other)
    assert read({**ANNA, "gender": "male"})
    assert read({**ANNA, "birthDate": "1951"})


def at(base: str, *resources: Resource) -> str:
    """Resources a line, whose references name the server."""
    return "\n".join(json.dumps(one).replace('"Patient/anna', f'"{base}/Patient/anna') for one in resources)


@pytest.mark.parametrize("files", [1, 2])
def test_one_id_at_two_servers_in_one_folder_is_refused(tmp_path: Path, files: int) -> None:
    """A line of a Patient names no server, and which of the two it is of nobody can tell."""
    lines = [json.dumps(ANNA), *(at(f"https://{name}.example/fhir", stay()) for name in "ab")]
    for number in range(files):
        (tmp_path / f"{number}.ndjson").write_text("\n".join(lines[number::files]))
    assert "two servers" in refused("import", "fhir", tmp_path, tmp_path.with_name("meds"))
    with pytest.raises(EhrseqError, match="two servers"):
        read_bundle([json.loads(line) for line in lines])


def test_references_by_identifier_are_named(tmp_path: Path) -> None:
    (tmp_path / "all.ndjson").write_text(
        "\n".join(
            map(
                json.dumps,
                [ANNA, stay(), condition(subject={"identifier": {"system": "http://h.example", "value": "7"}})],
            )
        )
    )
    assert "identifier" in refused("import", "fhir", tmp_path / "all.ndjson", tmp_path / "meds")


@pytest.mark.parametrize(("days", "warned"), [(0, False), (2, False), (20, True), (39, False), (40, False)])
def test_days_beside_clocks_are_a_warning_by_resource(days: int, warned: bool) -> None:
    """A converter that drops clocks leaves days beside clocks: of labs, while conditions have days alone."""
    labs = [lab("2018-01-02" if i < days else f"2018-01-02T08:{i:02}:00Z", id=f"o{i}", value=i) for i in range(40)]
    _, report = read(*labs, *(condition(id=f"c{i}", recordedDate=f"2018-02-{i + 1:02}") for i in range(9)))
    told = [text for text in report.warnings() if "no clock" in text]
    assert len(told) == warned
    assert all(f"{days} of 40 rows of Observation" in text for text in told)
