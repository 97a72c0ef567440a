"""FHIR → MEDS: beside a plain reader in loops, over messy records, in every form of file, every resource counted."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from ehrsequencing.readers.fhir import import_fhir, read_bundle, survey as fhir_files
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.rows import subject_ids
from helpers.command_line import ehrseq, refused
from helpers.fhir import LOINC, RESOURCES, RXNORM, US_RACE, bundle, concept, of, refer, write_bundles, write_ndjson
from reference.plain_fhir import plain_rows

WHITE = {"url": "ombCategory", "valueCoding": {"code": "2106-3", "display": "White"}}
ANNA, STAY = refer("Patient", "anna"), refer("Encounter", "s1")
PEOPLE = [
    of(
        "Patient",
        id="anna",
        gender="female",
        birthDate="1950-03-01",
        deceasedDateTime="2012-07-01T10:00:00+02:00",
        extension=[{"url": US_RACE, "extension": [WHITE]}],
    ),
    of("Patient", id="ben", gender="male", birthDate="1960"),
]
CARE = [
    of(
        "Encounter",
        id="s1",
        subject=ANNA,
        status="finished",
        class_={"code": "IMP"},
        type=[concept("32485007")],
        period={"start": "2011-05-03T08:00:00Z", "end": "2011-05-03T18:00:00Z"},
    ),
    of("Condition", subject=ANNA, encounter=STAY, onsetDateTime="2011-05-03", code=concept("44054006")),
    of(
        "Condition",
        subject=ANNA,
        encounter=STAY,
        onsetDateTime="2009",
        recordedDate="2011-05-03T09:00:00Z",
        code=concept("38341003"),
    ),
    of(
        "Procedure",
        subject=ANNA,
        encounter=STAY,
        performedPeriod={"start": "2011-05-03T10:00:00Z"},
        code=concept("80146002"),
    ),
    of(
        "Observation",
        subject=ANNA,
        encounter=STAY,
        effectiveDateTime="2011-05-03T11:00:00Z",
        code=concept("4548-4", LOINC, "HbA1c"),
        valueQuantity={"value": 7.25, "unit": "percent", "code": "%"},
    ),
    of(
        "Observation",
        subject=ANNA,
        issued="2011-05-03T11:30:00Z",
        code=concept("85354-9", LOINC),
        component=[
            {"code": concept("8480-6", LOINC), "valueQuantity": {"value": 120, "unit": "mm[Hg]"}},
            {"code": concept("8462-4", LOINC), "valueQuantity": {"value": 80, "unit": "mm[Hg]"}},
        ],
    ),
    of(
        "Observation",
        subject=ANNA,
        effectiveDateTime="2011-06-01T09:00:00Z",
        code=concept("72166-2", LOINC, "Smoking"),
        valueCodeableConcept=concept("266919005", display="Never smoked"),
    ),
    of("Medication", id="m1", code=concept("314076", RXNORM, "lisinopril")),
    of(
        "MedicationRequest",
        subject=ANNA,
        authoredOn="2011-06-01T09:05:00Z",
        medicationReference=refer("Medication", "m1"),
    ),
    of(
        "MedicationStatement",
        subject=refer("Patient", "ben"),
        effectivePeriod={"start": "2011-07"},
        medicationCodeableConcept=concept("1191", RXNORM),
    ),
    of(
        "MedicationAdministration",
        subject=ANNA,
        context=STAY,
        effectiveDateTime="2011-05-03T12:00:00Z",
        medicationCodeableConcept=concept("1191", RXNORM),
    ),
    of(
        "Immunization",
        patient=ANNA,
        occurrenceDateTime="2011-10-01T09:00:00Z",
        vaccineCode=concept("140", "http://hl7.org/fhir/sid/cvx"),
    ),
    of("AllergyIntolerance", patient=refer("Patient", "ben"), recordedDate="2011-08-01", code=concept("2191", RXNORM)),
    of(
        "DiagnosticReport",
        subject=ANNA,
        effectiveDateTime="2011-05-03T13:00:00Z",
        code=concept("58410-2", LOINC),
        conclusionCode=[concept("271737000")],
    ),
    of(
        "Claim",
        patient=ANNA,
        created="2011-05-20",
        billablePeriod={"start": "2011-05-03", "end": "2011-05-04"},
        diagnosis=[{"diagnosisCodeableConcept": concept("E11.9", "http://hl7.org/fhir/sid/icd-10-cm")}],
        item=[{"encounter": [STAY]}],
    ),
    of("ExplanationOfBenefit", patient=ANNA, created="2011-05-20"),
    of(
        "ImagingStudy",
        subject=ANNA,
        started="2011-05-03T15:00:00Z",
        series=[{"modality": {"system": "http://dicom.nema.org/resources/ontology/DCM", "code": "CT"}}],
    ),
    of("CarePlan", subject=ANNA),
]
RECORDS = [*PEOPLE, *CARE]


def as_set(rows: pa.Table, names: list[str]) -> set[Any]:
    """MEDS rows as the plain reader gives them, with the patients' names."""
    ids = dict(zip(subject_ids(pa.chunked_array([names], pa.string())).to_pylist(), names, strict=True))
    columns = ("time", "code", "numeric_value", "text_value", "encounter_id")
    found = [(ids[row["subject_id"]], *(row[c] for c in columns)) for row in rows.to_pylist()]
    assert len(found) == len(set(found))
    return set(found)


def names(resources: list[Any]) -> list[str]:
    return sorted({r["id"] for r in resources if r["resourceType"] == "Patient" and "id" in r})


def data(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted((out / "data").rglob("*.parquet")))


def check_counts(resources: list[Any], report: ImportReport) -> None:
    """Every resource is in the report once: as kept, or as dropped for a reason."""
    tables = report.tables
    inside = [part for r in resources for part in r.get("contained", []) if part["resourceType"] != "Medication"]
    there = Counter(r["resourceType"] for r in [*resources, *inside])
    assert {name: t.rows_in for name, t in tables.items()} == there
    for table in tables.values():
        assert table.kept + sum(table.dropped.values()) == table.rows_in


@settings(max_examples=60)
@given(RESOURCES)
def test_messy_records_are_read_as_the_plain_reader_reads_them_and_none_is_lost(resources: list[Any]) -> None:
    rows, report = read_bundle(bundle(resources))
    # a mark of a stay without an end needs all rows of the stay
    own = rows.filter(pc.invert(pc.starts_with(rows["code"], "STAY_OPEN")))
    assert as_set(own, names(resources)) == plain_rows(resources)
    check_counts(resources, report)


def test_every_type_of_resource_becomes_its_rows(tmp_path: Path) -> None:
    report = import_fhir(write_ndjson(RECORDS, tmp_path / "fhir"), tmp_path / "meds")
    found = as_set(data(tmp_path / "meds"), names(RECORDS))
    assert found == plain_rows(RECORDS)
    check_counts(RECORDS, report)
    by_code = {code: (time, number, stay) for who, time, code, number, _, stay in found if who == "anna"}
    assert by_code["SNOMED//44054006"][0].isoformat() == "2011-05-03T18:00:00"  # a day: the end of its stay
    assert by_code["SNOMED//38341003"][0].isoformat() == "2011-05-03T09:00:00"  # recorded, not remembered
    assert by_code["ICD10CM//E11.9"][0].isoformat() == "2011-05-04T23:59:59"  # the end of what is billed
    assert by_code["MEDS_DEATH"][0].isoformat() == "2012-07-01T10:00:00"
    assert by_code["LOINC//4548-4//%"][1:] == (7.25, "s1")
    assert {"LOINC//8480-6//mm[Hg]", "LOINC//72166-2//SNOMED//266919005", "RxNorm//314076", "RACE//2106-3"} <= {
        *by_code
    }
    assert {"DICOM//CT", "CVX//140", "SNOMED//271737000", "ENCOUNTER//inpatient//END"} <= {*by_code}
    assert "LOINC//85354-9" not in by_code  # its components say it
    assert {t.name for t in report.tables.values() if "not_read" in t.dropped} == {"CarePlan"}
    codes = {row["code"]: row for row in pq.read_table(tmp_path / "meds/metadata/codes.parquet").to_pylist()}
    assert codes["LOINC//72166-2//SNOMED//266919005"]["description"] == "Smoking: Never smoked"
    assert codes["LOINC//4548-4//%"]["parent_codes"] == ["LOINC//4548-4"]
    assert codes["ENCOUNTER//inpatient//END"]["parent_codes"] == ["ENCOUNTER//inpatient"]


STAY_ENDS = "2011-05-03 18:00:00"
KNOWN = {  # what a Condition of the stay on 3 May 2011 from 08:00 to 18:00 says → when known, and is it of the stay
    "onset years before": ({"onsetDateTime": "2009-03-01T10:00:00Z"}, STAY_ENDS, True),
    "onset on the evening before": ({"onsetDateTime": "2011-05-02T20:00:00Z"}, STAY_ENDS, True),
    "onset in the month": ({"onsetDateTime": "2011-05"}, STAY_ENDS, True),
    "onset in the year": ({"onsetDateTime": "2011"}, STAY_ENDS, True),
    "onset on the day": ({"onsetDateTime": "2011-05-03"}, STAY_ENDS, True),
    "onset in the stay": ({"onsetPeriod": {"start": "2011-05-03T10:00:00Z"}}, "2011-05-03 10:00:00", True),
    "recorded in the stay": (
        {"onsetDateTime": "2009-03-01", "recordedDate": "2011-05-03T09:00:00Z"},
        "2011-05-03 09:00:00",
        True,
    ),
    "recorded long after": (
        {"onsetDateTime": "2011-05-03", "recordedDate": "2012-01-01T10:00:00Z"},
        "2012-01-01 10:00:00",
        False,
    ),
    "recorded in a later month": (
        {"onsetDateTime": "2011-05-03", "recordedDate": "2011-06"},
        "2011-06-30 23:59:59",
        False,
    ),
    "recorded before the onset": (
        {"onsetDateTime": "2011-05-03T10:00:00Z", "recordedDate": "2011-05-01"},
        "2011-05-03 10:00:00",
        True,
    ),
    "only recorded": ({"recordedDate": "2011-05-03T09:30:00Z"}, "2011-05-03 09:30:00", True),
}


def known(told: dict[str, Any], stay: Any = STAY) -> list[tuple[str, bool]]:
    """Time of a Condition, and whether it is of the stay."""
    rows, _ = read_bundle([*PEOPLE, CARE[0], of("Condition", subject=ANNA, encounter=stay, code=concept("1"), **told)])
    return [(str(r["time"]), r["encounter_id"] == "s1") for r in rows.to_pylist() if r["code"] == "SNOMED//1"]


@pytest.mark.parametrize("case", KNOWN)
def test_a_condition_stands_at_the_time_at_which_it_was_known(case: str) -> None:
    told, time, is_of_stay = KNOWN[case]
    assert known(told) == [(time, is_of_stay)]


def test_without_a_stay_in_the_export_a_condition_stands_at_its_onset() -> None:
    for stay in (None, refer("Encounter", "elsewhere")):
        assert known({"onsetDateTime": "2009"}, stay) == [("2009-12-31 23:59:59", False)]


@pytest.mark.parametrize(
    ("kind", "began", "recorded", "code"),
    [
        ("AllergyIntolerance", "onsetDateTime", "recordedDate", "code"),
        ("Immunization", "occurrenceDateTime", "recorded", "vaccineCode"),
        ("MedicationStatement", "effectiveDateTime", "dateAsserted", "medicationCodeableConcept"),
    ],
)
def test_other_reports_of_the_past_are_dated_in_the_same_way(kind: str, began: str, recorded: str, code: str) -> None:
    link = {"context" if kind.startswith("Medication") else "encounter": STAY, code: concept("1")}
    who = {"subject": ANNA} if kind.startswith("Medication") else {"patient": ANNA}
    for told, time in (({}, STAY_ENDS), ({recorded: "2011-05-03T09:00:00Z"}, "2011-05-03 09:00:00")):
        rows, _ = read_bundle([*PEOPLE, CARE[0], of(kind, **who, **link, **{began: "1990-02-01"}, **told)])
        found = [(str(r["time"]), r["encounter_id"]) for r in rows.to_pylist() if r["code"] == "SNOMED//1"]
        assert found == [(time, "s1")]


def bill(*references: str, **more: Any) -> dict[str, Any]:
    diagnosis = [
        {"diagnosisReference": {"reference": reference, "display": "Anna Surname"}} for reference in references
    ]
    return of("Claim", patient=ANNA, created="2011-05-20", diagnosis=diagnosis or None, **more)


def test_bills_without_a_diagnosis_of_their_own_are_counted(tmp_path: Path) -> None:
    own = bill(contained=[of("Condition", id="c", code=concept("73211009"))])
    own["diagnosis"] = [{"diagnosisCodeableConcept": concept("E11.9", "http://hl7.org/fhir/sid/icd-10-cm")}]
    records = [*PEOPLE, own, bill("#c"), bill("Condition/there"), bill()]
    rows, report = read_bundle(records)
    billed = {r["code"] for r in rows.to_pylist() if str(r["time"]) == "2011-05-20 23:59:59"}
    assert billed >= {"ICD10CM//E11.9", "SNOMED//73211009"}
    assert report.tables["Claim"].dropped["no_diagnosis"] == 3
    check_counts(records, report)
    result = ehrseq("import", "fhir", write_ndjson(records, tmp_path / "fhir"), tmp_path / "meds")
    assert "dropped from Claim: 3 of 4 rows (a bill without a diagnosis of its own" in result.output
    assert "Surname" not in result.output


def test_results_that_are_absent_make_no_rows_and_bounds_are_counted() -> None:
    absent, crp = {"text": "not performed"}, concept("1988-5", LOINC)
    low = {"value": 5, "comparator": "<", "unit": "mg/L"}
    base = {"subject": ANNA, "effectiveDateTime": "2011-06-01T09:00:00Z", "code": crp}
    parts = [
        {"code": concept("8480-6", LOINC), "dataAbsentReason": absent},
        {"code": concept("8462-4", LOINC), "valueQuantity": {"value": 80}},
    ]
    records = [
        *PEOPLE,
        of("Observation", **base, status="registered"),
        of("Observation", **base, dataAbsentReason=absent),
        of("Observation", **base, component=parts[:1]),
        of("Observation", **base, valueQuantity=low),
        of("Observation", **{**base, "code": concept("85354-9", LOINC)}, component=parts, dataAbsentReason=absent),
        of("DiagnosticReport", **base, status="registered"),
    ]
    rows, report = read_bundle(records)
    found = {(r["code"], r["numeric_value"]) for r in rows.to_pylist() if str(r["time"]).startswith("2011-06")}
    assert found == {("LOINC//1988-5", None), ("LOINC//8462-4", 80.0)}
    lost = report.tables["Observation"].dropped
    assert lost == {"not_done": 1, "no_result": 2}
    assert {name: report.counts[name] for name in ("not_done", "no_result", "bound")} == {
        "not_done": 2,
        "no_result": 3,
        "bound": 1,
    }
    check_counts(records, report)


def files(out: Path) -> dict[str, bytes]:
    """Every file of a data set but its report, which counts files and rows."""
    made = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    return {name: data for name, data in made.items() if "report" not in name and "manifest" not in name}


def every_form(folder: Path) -> dict[str, dict[str, bytes]]:
    """The same records imported from every form of file."""
    forms = {
        "bulk": write_ndjson(RECORDS, folder / "bulk"),
        "gz": write_ndjson(RECORDS, folder / "gz", gz=True),
        "mixed": write_ndjson(RECORDS[::-1], folder / "mixed", by_type=False),
        "bundle": write_bundles(RECORDS, folder / "bundle"),
        "urls": write_bundles(RECORDS, folder / "urls", full_urls=True),
    }
    lines = folder / "lines"
    lines.mkdir()
    (lines / "all.json.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, RECORDS)).encode()))
    (lines / "export.txt").write_text("not FHIR")
    for form, source in {**forms, "lines": lines}.items():
        import_fhir(source, folder / "meds" / form)
    return {form: files(folder / "meds" / form) for form in (*forms, "lines")}


def test_every_form_of_file_gives_the_same_bytes(tmp_path: Path) -> None:
    made = every_form(tmp_path)
    for form, found in made.items():
        assert found == made["bulk"], form
    text = (tmp_path / "meds/bundle/metadata/import_report.json").read_text()
    assert "Surname" not in text  # bundles are often named after their patient


def test_lines_that_are_no_json_and_unknown_types_are_counted(tmp_path: Path) -> None:
    source = write_ndjson(RECORDS, tmp_path / "fhir")
    with open(source / "Condition.ndjson", "a") as file:
        file.write('{bad\n[1, 2]\n{"resourceType": "Condition"} tail\n\n"text"\n{"a": 1}\n')
    result = ehrseq("import", "fhir", source, tmp_path / "meds")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "meds/metadata/import_report.json").read_text())
    lost = {entry["reason"]: entry["rows"] for entry in report["rows"]["unreadable"]["dropped"]}
    assert lost == {"malformed_line": 2, "no_type": 3}
    assert report["rows"]["Condition"]["rows_in"] == 2
    assert "resources of other types, not read: CarePlan 1" in result.output
    assert "anna" not in result.output + json.dumps(report)


def test_a_line_that_is_too_long_is_counted_in_parts_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fhir_files, "LONGEST_LINE", 2_000)
    huge = json.dumps({"resourceType": "DocumentReference", "text": "x" * 9_000})
    lines = [json.dumps(r) for r in RECORDS]
    (tmp_path / "fhir").mkdir()
    (tmp_path / "fhir" / "all.ndjson").write_text("\ufeff" + "\n\n".join([lines[0], huge, *lines[1:], huge]))
    report = import_fhir(tmp_path / "fhir", tmp_path / "meds")
    unreadable = report.tables["unreadable"]
    assert (unreadable.dropped["malformed_line"], unreadable.bad_line) == (10, {"file": "all.ndjson", "line": 3})
    assert as_set(data(tmp_path / "meds"), names(RECORDS)) == plain_rows(RECORDS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, b"", "holds no .ndjson and no .json file"),
        ("Ann_Name.json", b'{"resourceType": "Bundle"', "file 1 of 1 in order of their names: cannot be read"),
        ("Ann_Name.json.gz", gzip.compress(b"{}", mtime=0)[:-9], "file 1 of 1 in order of their names: cannot be read"),
        (
            "Patient.ndjson.gz",
            gzip.compress(b'{"resourceType": "Patient"}\n' * 99, mtime=0)[:-30],
            "check that the file is whole",
        ),
        (
            "Patient.ndjson",
            b'{"resourceType": "Patient", "id": "anna"}\n',
            "the person has no row with a time other than the birth",
        ),
        ("Patient.ndjson", b'{"resourceType": "Patient"}\n', "all 1 rows would be dropped"),
        ("visit.json", b'{"_type": "COMPOSITION", "content": []}', "of openEHR save the answer to an AQL query as CSV"),
    ],
)
def test_sources_that_cannot_be_read_are_refused_in_one_line(
    name: str | None, content: bytes, message: str, tmp_path: Path
) -> None:
    source = tmp_path / "fhir"
    source.mkdir()
    if name is not None:
        (source / name).write_bytes(content)
    error = refused("import", "fhir", source, tmp_path / "meds")
    assert message in error
    assert "Ann" not in error
    assert not (tmp_path / "meds").exists()


@pytest.mark.parametrize("value", [None, 7, "text", [], [7, None], {}, {"reference": 5}, {"coding": "x"}, [[{}]], True])
def test_an_element_of_any_type_is_no_error(value: object) -> None:
    elements_ = {name for r in RECORDS for name in r} - {"resourceType"}
    broken = [{**r, name: value} for r in RECORDS for name in elements_ if name in r]
    broken = [
        r for r in broken if r.get("gender") != "male" or r.get("id") == "ben"
    ]  # one id for two people is refused
    rows, report = read_bundle([*PEOPLE, *broken])
    assert report.tables["Condition"].rows_in > 0
    assert len(rows) > 0
    rows, report = read_bundle({"resourceType": "Bundle", "entry": [*({"resource": r} for r in RECORDS), value]})
    assert as_set(rows, names(RECORDS)) == plain_rows(RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["bundles", "ndjson"])
def test_sixty_patients_are_read_as_the_plain_reader_reads_them(part: str, real_data: Path, tmp_path: Path) -> None:
    source, resources = real_data / "pysynthea_fhir" / part, []
    for path in sorted(source.glob("*.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        documents = [json.loads(text)] if part == "bundles" else map(json.loads, text.splitlines())
        for document in documents:
            resources += [e["resource"] for e in document["entry"]] if part == "bundles" else [document]
    report = import_fhir(source, tmp_path / "meds")
    plain = {
        (*row[:3], None if row[3] is None else float(np.float32(row[3])), *row[4:]) for row in plain_rows(resources)
    }
    read = as_set(data(tmp_path / "meds"), names(resources))
    marks = {row for row in read if row[2].startswith("STAY_")}  # which the plain reader does not write
    assert len(marks) == (part == "bundles")
    assert not (read - marks) ^ plain  # a diff of all rows would take minutes
    check_counts(resources, report)
    assert len(plain) > 30_000
