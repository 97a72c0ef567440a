"""FHIR: records of one person, bills that replace others, and numbers in ratios and ranges."""

from typing import Any

import pytest

from ehrsequencing.readers.fhir import read_bundle
from ehrsequencing.readers.fhir.known import Record, join_records
from helpers.fhir import LOINC, Resource, concept, of, refer

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


VALUES: dict[str, tuple[Resource, tuple[str, float | None, str | None]]] = {
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


@pytest.mark.parametrize(("value", "made"), VALUES.values(), ids=VALUES)
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
