"""FHIR: records of one person, bills that replace others, and numbers in ratios and ranges."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.fhir import import_fhir, read_bundle
from ehrsequencing.readers.fhir.known import Record, join_records
from helpers.command_line import ehrseq
from helpers.fhir import LOINC, Resource, bundle, concept, of, refer

ICD = "http://hl7.org/fhir/sid/icd-10-cm"


def patient(name: str, number: str | None = None, birth: str | None = "1950-03-01", **more: Any) -> Resource:
    numbered = {"identifier": [{"type": concept("MR"), "system": "urn:h", "value": number}]} if number else {}
    return of("Patient", id=name, birthDate=birth, gender="female", **numbered, **more)


def stay(who: str) -> Resource:
    period = {"start": "2018-01-01T10:00:00Z", "end": "2018-01-05T12:00:00Z"}
    return of("Encounter", id=f"e-{who}", subject=refer("Patient", who), class_={"code": "IMP"}, period=period)


def people(*resources: Resource) -> tuple[int, Any]:
    rows, report = read_bundle(
        [*resources, *(stay(one["id"]) for one in resources if one["resourceType"] == "Patient")]
    )
    return len(set(rows["subject_id"].to_pylist())), report.counts


def person(level: str, *names: str) -> Resource:
    links = [{"target": refer("Patient", name), "assurance": level} for name in names]
    return of("Person", id="p", link=links)


def linked(to: Resource, type_: str = "seealso") -> list[Resource]:
    return [{"other": to, "type": type_}]


ONE: dict[str, list[Resource]] = {
    "seealso": [patient("a", link=linked(refer("Patient", "b"))), patient("b")],
    "refer": [patient("a", link=linked(refer("Patient", "b"), "refer")), patient("b")],
    "a person": [patient("a"), patient("b"), person("level3", "a", "b")],
    "one record number": [patient("a", "17"), patient("b", "17")],
}
TWO: dict[str, list[Resource]] = {
    "a relative": [patient("a", link=linked(refer("RelatedPerson", "b"))), patient("b")],
    "a person, maybe": [patient("a"), patient("b"), person("level2", "a", "b")],
    "a number, and another birth": [patient("a", "17"), patient("b", "17", "1980-01-01")],
    "a number, and no birth": [patient("a", "17", None), patient("b", "17", None)],
    "a placeholder": [patient("a", "9999"), patient("b", "9999")],
}


@pytest.mark.parametrize(
    ("records", "n"), [*((r, 1) for r in ONE.values()), *((r, 2) for r in TWO.values())], ids=[*ONE, *TWO]
)
def test_linked_records_are_one_person(records: list[Resource], n: int) -> None:
    assert people(*records)[0] == n
    assert people(*records)[1]["two_births"] == 0


def test_a_number_that_many_share_joins_nobody_and_is_said() -> None:
    n, counts = people(*(patient(name, "17") for name in "abcd"))
    assert (n, counts["shared_number"]) == (4, 4)


def test_a_chain_of_many_records_is_one_person_and_is_said() -> None:
    records = dict.fromkeys("abcdefg", Record("1950", "male", ()))
    merged, _, counts = join_records(records, [(a, b, "seealso") for a, b in zip("abcdef", "bcdefg", strict=True)])
    assert set(merged.values()) == {"a"}
    assert counts == {"linked_many": 1, "shared_number": 0}


def bill(name: str, code: str, days: tuple[int, int] = (2, 5), **more: Any) -> Resource:
    period = {"start": f"2018-01-0{days[0]}", "end": f"2018-01-0{days[1]}"}
    diagnosis = [{"diagnosisCodeableConcept": concept(code, ICD)}]
    named = {"patient": refer("Patient", "a"), "billablePeriod": period, "diagnosis": diagnosis} | more
    return of("ExplanationOfBenefit", id=name, status="active", **named)


def follows(name: str, relation: str = "prior") -> list[Resource]:
    return [{"claim": refer("ExplanationOfBenefit", name), "relationship": concept(relation)}]


def frequency(digit: str) -> list[Resource]:
    return [{"category": concept("typeofbill"), "code": concept(f"011{digit}")}]


BILLS: dict[str, tuple[list[Resource], set[str]]] = {
    "an adjustment": ([bill("1", "I21.4"), bill("2", "R07.9", related=follows("1"))], {"R07.9"}),
    "replaced by": ([bill("1", "I21.4", related=follows("2", "replacedby")), bill("2", "R07.9")], {"R07.9"}),
    "by its type": (
        [
            bill("1", "I21.4", created="2018-02-01"),
            bill("2", "R07.9", created="2018-03-01", supportingInfo=frequency("7")),
        ],
        {"R07.9"},
    ),
    "a void": (
        [bill("1", "I21.4"), bill("2", "I21.4", related=follows("1"), supportingInfo=frequency("8"))],
        set(),
    ),
    "a chain": (
        [bill("1", "I21.4"), bill("2", "I20", related=follows("1")), bill("3", "R07.9", related=follows("2"))],
        {"R07.9"},
    ),
    "a later period": ([bill("1", "I21.4"), bill("2", "R07.9", (6, 9), related=follows("1"))], {"I21.4", "R07.9"}),
    "another provider": (
        [bill("1", "I21.4", provider=refer("Organization", "x")), bill("2", "R07.9", related=follows("1"))],
        {"I21.4", "R07.9"},
    ),
    "no relation": ([bill("1", "I21.4"), bill("2", "R07.9")], {"I21.4", "R07.9"}),
}


@pytest.mark.parametrize(("bills", "codes"), BILLS.values(), ids=BILLS)
def test_a_bill_counts_unless_another_replaces_it(bills: list[Resource], codes: set[str]) -> None:
    for order in (bills, bills[::-1]):
        rows, _ = read_bundle([patient("a"), stay("a"), *order])
        found = {code.removeprefix("ICD10CM//") for code in rows["code"].to_pylist() if code.startswith("ICD")}
        assert found == codes


def quantity(value: float, unit: str | None = None, **more: Any) -> Resource:
    return {"value": value, **({"unit": unit} if unit else {}), **more}


RATIOS: dict[str, tuple[Resource, tuple[str, float | None, str | None]]] = {
    "a titre": ({"valueRatio": {"numerator": quantity(1), "denominator": quantity(128)}}, ("{titer}", 128, None)),
    "a ratio with units": (
        {"valueRatio": {"numerator": quantity(30, "mg"), "denominator": quantity(2, "mmol")}},
        ("mg/mmol", 15, None),
    ),
    "a range of one": ({"valueRange": {"low": quantity(3, "mm"), "high": quantity(3, "mm")}}, ("mm", 3, None)),
    "an open range": ({"valueRange": {"low": quantity(3, "mm")}}, ("", None, ">=3")),
    "a range": (
        {"valueRange": {"low": quantity(3), "high": quantity(5)}},
        ("", None, '{"low": {"value": 3}, "high": {"value": 5}}'),
    ),
}


@pytest.mark.parametrize(("value", "made"), RATIOS.values(), ids=RATIOS)
def test_ratios_and_ranges_are_numbers_where_that_is_safe(
    value: Resource, made: tuple[str, float | None, str | None]
) -> None:
    given = of(
        "Observation",
        id="o",
        status="final",
        subject=refer("Patient", "a"),
        code=concept("5-5", LOINC),
        effectiveDateTime="2018-01-02T10:00:00Z",
        **value,
    )
    rows = read_bundle([patient("a"), given])[0].to_pylist()
    row = next(row for row in rows if row["code"].startswith("LOINC"))
    unit, number, text = made
    assert row["code"] == "LOINC//5-5" + (f"//{unit}" if unit else "")
    assert (row["numeric_value"], row["text_value"]) == (number, text)


# ---- FHIR resources are identities: versions, deletions, merges, servers, releases; and when things became known -----


ANNA = of("Patient", id="anna", birthDate="1950-03-01")
STAY = of(
    "Encounter",
    id="s1",
    subject=refer("Patient", "anna"),
    class_={"code": "IMP"},
    period={"start": "2018-01-01T10:00:00Z", "end": "2018-01-05T12:00:00Z"},
)
END = datetime(2018, 1, 5, 12)


def lab(value: Any, name: str | None = "o1", when: str = "2018-01-02T08:00:00Z", **more: Any) -> Resource:
    quantity = value if isinstance(value, dict) else {"valueQuantity": {"value": value}}
    return of(
        "Observation",
        id=name,
        subject=refer("Patient", "anna"),
        effectiveDateTime=when,
        code=concept("2345-7", LOINC),
        **quantity,
        **more,
    )


def condition(**more: Any) -> Resource:
    return of("Condition", id="c1", subject=refer("Patient", "anna"), code=concept("38341003"), **more)


def version(number: int) -> dict[str, str]:
    return {"versionId": str(number), "lastUpdated": f"2019-01-{number:02d}T00:00:00Z"}


def read(*resources: Any) -> tuple[list[dict[str, Any]], Any]:
    rows, report = read_bundle(list(resources))
    return rows.to_pylist(), report


def values(rows: list[dict[str, Any]]) -> list[float | None]:
    return [row["numeric_value"] for row in rows if row["code"].startswith("LOINC//2345-7")]


def history(*entries: Any) -> Resource:
    return {"resourceType": "Bundle", "type": "history", "entry": list(entries)}


DELETE = {"request": {"method": "DELETE", "url": "Observation/o1"}}
DELETED = {"resourceType": "Bundle", "type": "transaction", "entry": [DELETE]}


@pytest.mark.parametrize(
    ("told", "kept", "reasons"),
    [
        ([lab(50, meta=version(2)), lab(500, meta=version(1))], [50.0], {"older_version": 1}),
        ([lab(50, meta={"versionId": "9"}), lab(500, meta={"versionId": "10"})], [500.0], {"older_version": 1}),
        ([lab(50), lab(500)], [500.0], {"older_version": 1}),
        (
            [lab(50, meta=version(1)), lab(5, meta=version(2), status="entered-in-error")],
            [],
            {"older_version": 1, "not_done": 1},
        ),
        ([lab(50), DELETED], [], {"withdrawn": 1}),
        (
            [
                lab(50),
                history(
                    {**DELETE, "response": {"lastModified": "2019-01-03T00:00:00Z"}},
                    {"resource": lab(40, meta=version(1))},
                ),
            ],
            [],
            {"withdrawn": 2},
        ),
        ([history({"resource": lab(500)}, {"resource": lab(50)})], [500.0], {"older_version": 1}),
        ([lab(50, None), lab(500, None)], [50.0, 500.0], {}),
    ],
)
def test_the_newest_version_of_a_resource_counts(told: list[Any], kept: list[float], reasons: dict[str, int]) -> None:
    rows, report = read(ANNA, STAY, *told)
    assert values(rows) == kept
    counts = report.tables["Observation"]
    assert counts.dropped == reasons
    assert counts.kept + sum(reasons.values()) == counts.rows_in


@pytest.mark.parametrize("kind", ["replaced-by", "replaces", "seealso"])
def test_a_replaced_record_is_merged_into_the_other(kind: str) -> None:
    linked = {"anna": "ben"} if kind == "replaces" else {"ben": "anna"}
    people = {name: of("Patient", id=name, birthDate="1950") for name in ("anna", "ben")}
    for name, other in linked.items():
        people[name]["link"] = [{"other": refer("Patient", other), "type": kind}]
    his = lab(7, "o2") | {"subject": refer("Patient", "ben")}
    rows, report = read(*people.values(), STAY, lab(5), his)
    assert len({row["subject_id"] for row in rows}) == 1
    assert (report.counts["replaced"], report.counts["linked"]) == ((0, 1) if kind == "seealso" else (1, 0))
    assert len(values(rows)) == 2


def test_one_id_at_two_servers_is_refused_and_a_second_version_is_none() -> None:
    def record(server: str, value: float) -> list[Any]:
        made = [ANNA, STAY, lab(value)]
        entries = [{"fullUrl": f"{server}/{r['resourceType']}/{r['id']}", "resource": r} for r in made]
        return [{"resourceType": "Bundle", "type": "searchset", "entry": entries}]

    one = "https://a.example/fhir"
    with pytest.raises(EhrseqError, match="two servers"):
        read(*record(one, 5), *record("https://b.example/fhir", 6))
    assert values(read(*record(one, 5), *record(one, 6))[0]) == [6.0]


@pytest.mark.parametrize("path", ["diagnosis", "reasonReference", "encounter"])
@pytest.mark.parametrize("onset", ["2010-05-01", None])
def test_a_condition_is_known_by_the_end_of_its_encounter_whoever_names_the_other(path: str, onset: str | None) -> None:
    told = refer("Condition", "c1")
    links = {"diagnosis": [{"condition": told}], "reasonReference": [told]}
    later = of(
        "Encounter",
        id="s2",
        subject=refer("Patient", "anna"),
        diagnosis=[{"condition": told}],
        period={"start": "2020-01-01T10:00:00Z", "end": "2020-01-02T10:00:00Z"},
    )
    own = {"encounter": refer("Encounter", "s1")} if path == "encounter" else {}
    stay = {**STAY, path: links[path]} if path in links else STAY
    rows, report = read(ANNA, later, stay, condition(onsetDateTime=onset, **own))
    (row,) = [row for row in rows if row["code"] == "SNOMED//38341003"]
    assert (row["time"], row["encounter_id"]) == (END, "s1")
    assert report.counts["began_before" if onset else "undated"] == 1


@pytest.mark.parametrize(
    "resource",
    [
        of("Procedure", subject=refer("Patient", "anna"), encounter=refer("Encounter", "s1"), code=concept("7")),
        of(
            "MedicationDispense",
            subject=refer("Patient", "anna"),
            context=refer("Encounter", "s1"),
            medicationCodeableConcept=concept("7"),
        ),
    ],
)
def test_what_has_an_encounter_and_no_date_stands_at_its_end(resource: Resource) -> None:
    rows, _ = read(ANNA, STAY, resource)
    assert [row["time"] for row in rows if row["code"] == "SNOMED//7"] == [END]
    lost, report = read(ANNA, STAY, json.loads(json.dumps(resource).replace("Encounter/s1", "Encounter/s9")))
    assert not [row for row in lost if row["code"] == "SNOMED//7"]
    assert report.tables[resource["resourceType"]].lost["no_time"] == 1


@pytest.mark.parametrize(
    ("foreign", "release"),
    [
        (condition(verificationStatus="confirmed"), "STU3"),
        (condition(assertedDate="2018-01-02"), "STU3"),
        (condition(dateRecorded="2018-01-02"), "DSTU2"),
        (of("MedicationOrder", id="m"), "DSTU2"),
        ({**STAY, "class": [concept("IMP")]}, "R5"),
        (of("MedicationRequest", medication={"concept": concept("7")}), "R5"),
    ],
)
def test_other_releases_than_r4_are_refused_by_name(foreign: Resource, release: str, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=f"holds FHIR {release}, and only R4"):
        read(ANNA, foreign)
    (tmp_path / "Ann_Name.json").write_text(json.dumps(bundle([ANNA, STAY, foreign])))
    done = ehrseq("import", "fhir", tmp_path / "Ann_Name.json", tmp_path / "meds")
    assert done.exit_code == 2
    assert release in done.output
    assert read(ANNA, STAY, condition(verificationStatus=concept("confirmed")))[0]


VALUES: list[tuple[dict[str, Any], float | None, str | None, str]] = [
    ({"valueQuantity": {"value": 5.4}}, 5.4, None, "values"),
    ({"valueQuantity": {"value": "5.4"}}, 5.4, None, "values"),
    ({"valueQuantity": {"value": "5,4"}}, None, "5,4", "unread"),
    ({"valueQuantity": {"value": 5, "comparator": "<"}}, None, "<5", "unread"),
    ({"valueQuantity": {"unit": "mg"}}, None, None, "empty"),
    (
        {"valueRatio": {"numerator": {"value": 1}, "denominator": {"value": 128}}},
        128.0,
        None,
        "values",
    ),
    (
        {"valueRange": {"low": {"value": 3}, "high": {"value": 5}}},
        None,
        '{"low": {"value": 3}, "high": {"value": 5}}',
        "unread",
    ),
    ({"valueString": "clear"}, None, "clear", "values"),
    ({"valueInteger": "x"}, None, "x", "unread"),
    ({"valueDateTime": "2018-01-02"}, None, "2018-01-02", "unread"),
    ({"valueDateTime": "2018-01-03"}, None, "2018-01-03", "unread"),
    ({}, None, None, "empty"),
]


@pytest.mark.parametrize(("told", "number", "text", "cell"), VALUES)
def test_every_value_is_read_or_counted(told: Any, number: float | None, text: str | None, cell: str) -> None:
    rows, report = read(ANNA, STAY, lab(told))
    (row,) = [row for row in rows if row["code"].startswith("LOINC//2345-7")]
    assert row["numeric_value"] == pytest.approx(number) if number else row["numeric_value"] is None
    assert row["text_value"] == text
    found = vars(report.tables["Observation"].cells["value"])
    assert found == {"values": 0, "empty": 0, "unread": 0} | {cell: 1}


def test_results_that_differ_only_in_what_cannot_be_read_are_not_repeats() -> None:
    rows, _ = read(ANNA, STAY, *(lab(told, None) for told, *_ in VALUES[2:11]))
    assert len(values(rows)) == 9


def test_instants_keep_the_clock_that_they_show(tmp_path: Path) -> None:
    """A day filled in as local midnight is that day, and no evening of the day before."""
    dead = {**ANNA, "deceasedDateTime": "2018-03-02"}
    here = lab(5, when="2018-03-02T21:00:00-05:00")
    day = condition(recordedDate="2018-03-01T00:00:00+01:00")
    rows, _ = read(dead, STAY, here, day)
    times = {row["code"]: row["time"] for row in rows}
    assert times["LOINC//2345-7"] == datetime(2018, 3, 2, 21) < times["MEDS_DEATH"]
    assert times["SNOMED//38341003"].date() == datetime(2018, 3, 1).date()
    source = tmp_path / "all.ndjson"
    source.write_text("\n".join(map(json.dumps, [dead, STAY, here])))
    report = import_fhir(source, tmp_path / "one")
    assert any("import.time_zone" in warning for warning in report.warnings())
    report = import_fhir(source, tmp_path / "two", settings=ImportConfig(time_zone="Europe/Berlin"))
    assert not report.warnings()
    rows = [r for p in (tmp_path / "two/data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
    assert {row["time"] for row in rows if row["code"] == "ENCOUNTER//inpatient"} == {datetime(2018, 1, 1, 11)}
