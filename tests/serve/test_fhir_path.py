"""`POST /fhir` and CDS Hooks: the answers of `/predict` on the mapped rows, in shapes that FHIR R4 defines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fhir.resources.R4B.bundle import Bundle
from fhir.resources.R4B.riskassessment import RiskAssessment

from ehrsequencing.config.task import IndexConfig
from ehrsequencing.prediction.run import Run
from ehrsequencing.readers.fhir import read_bundle
from ehrsequencing.serve.predictor import Predictor
from helpers.serve import Client, as_json, curves, running

PATIENT = {"resourceType": "Patient", "id": "p-1", "birthDate": "1950-03-01", "gender": "male"}
ABOUT = {"subject": {"reference": "Patient/p-1"}, "encounter": {"reference": "Encounter/e-1"}}
HOOK = "/cds-services/ehrsequencing-risk"


def concept(code: str) -> dict[str, Any]:
    """A code of the simulator as a code system of the hospital's own."""
    kind, _, own = code.partition("//")
    return {"coding": [{"system": f"http://hospital.example/{kind}", "code": own}]}


def bundle_of(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": one} for one in resources]}


def procedure(code: str, status: str, when: str) -> dict[str, Any]:
    own = concept(f"PROC//{code}")
    return {"resourceType": "Procedure", "status": status, "code": own, "performedDateTime": when, **ABOUT}


@pytest.fixture(scope="module")
def bundle() -> dict[str, Any]:
    visit = {
        "resourceType": "Encounter", "id": "e-1", "status": "finished", "class": {"code": "AMB"},
        "period": {"start": "2020-01-02T10:00:00", "end": "2020-01-02T11:00:00"}, "subject": ABOUT["subject"],
    }  # fmt: skip
    events = [
        {"resourceType": "Condition", "code": concept("DX//A00"), "onsetDateTime": "2020-01-02", **ABOUT},
        {"resourceType": "Condition", "code": concept("DX//NOBODY"), "onsetDateTime": "2020-01-02", **ABOUT},
        procedure("ORDER_C", "completed", "2021-05"),
        procedure("ORDER_A", "entered-in-error", "2021"),
        {
            "resourceType": "Observation", "status": "final", "code": concept("LAB//HBA1C"),
            "effectiveDateTime": "2021-06-01T08:00:00", "valueQuantity": {"value": 7.2}, **ABOUT,
        },
        {"resourceType": "Location", "id": "l-1"},
    ]  # fmt: skip
    return bundle_of(PATIENT, visit, *events)


@pytest.fixture(scope="module")
def fhir_client(sim_run: Path) -> Iterator[Client]:
    """The run asked about anybody's first visit: its own index is a code that no FHIR resource has."""
    run = Run(sim_run)
    run.task = run.task.model_copy(update={"index": IndexConfig(first_visit=True)})
    with running(Predictor(run)) as found:
        yield found


def assessments(found: Any) -> list[dict[str, Any]]:
    resources = [entry["resource"] for entry in found["entry"]]
    return [one for one in resources if one["resourceType"] == "RiskAssessment"]


def test_the_risks_are_those_of_the_mapped_rows(fhir_client: Client, bundle: dict[str, Any]) -> None:
    rows = [as_json(row) for row in read_bundle(bundle)[0].to_pylist()]
    assert {"DX//A00", "PROC//ORDER_C", "GENDER//M", "MEDS_BIRTH"} <= {row["code"] for row in rows}
    expected = fhir_client.ask("POST", "/predict", {"rows": rows})
    reply = fhir_client.ask("POST", "/fhir", bundle, {"Content-Type": "application/fhir+json"})
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/fhir+json"
    risks = [one["prediction"][0]["probabilityDecimal"] / 100 for one in assessments(reply.json)]
    np.testing.assert_allclose(np.reshape(risks, curves(expected)[0].shape), curves(expected)[0], atol=1e-6)
    first = assessments(reply.json)[0]
    assert first["subject"] == {"reference": "Patient/p-1"}
    assert first["occurrenceDateTime"] == expected.json["predictions"][0]["time"][:10]
    days = [one["prediction"][0]["whenRange"]["high"]["value"] for one in assessments(reply.json)]
    assert days == expected.json["horizons_days"] * 2


def test_the_answer_is_valid_fhir_and_a_wrong_one_would_not_be(fhir_client: Client, bundle: dict[str, Any]) -> None:
    found = fhir_client.ask("POST", "/fhir", bundle).json
    Bundle.model_validate(found)
    for one in assessments(found):
        RiskAssessment.model_validate(one)
        assert 0 <= one["prediction"][0]["probabilityDecimal"] <= 100
    broken = {name: value for name, value in assessments(found)[0].items() if name != "subject"}
    with pytest.raises(ValueError, match="subject"):
        RiskAssessment.model_validate(broken)
    with pytest.raises(ValueError, match="occurrenceDateTime"):
        RiskAssessment.model_validate(assessments(found)[0] | {"occurrenceDateTime": "2021-06-01T08:00:00"})


def test_what_was_not_used_is_told(fhir_client: Client, bundle: dict[str, Any]) -> None:
    found = fhir_client.ask("POST", "/fhir", bundle).json
    remarks = next(e["resource"] for e in found["entry"] if e["resource"]["resourceType"] == "OperationOutcome")
    text = " | ".join(issue["diagnostics"] for issue in remarks["issue"])
    assert "1 of Procedure, 1 of others" in text
    assert "5 of 7 rows have a code that the run does not know" in text  # 2 are of the encounter


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"resourceType": "Patient", "id": "p-1"}, "is no FHIR Bundle"),
        (bundle_of(), "holds no Patient"),
        (bundle_of(PATIENT, PATIENT | {"id": "p-2"}), "more than one Patient"),
        (bundle_of(PATIENT | {"id": None}), "no Patient"),
        ({"resourceType": "Bundle", "entry": 7}, "holds no Patient"),
        (bundle_of(PATIENT), "no row"),
    ],
)
def test_what_cannot_be_read_is_a_problem(fhir_client: Client, body: dict[str, Any], what: str) -> None:
    reply = fhir_client.ask("POST", "/fhir", body)
    assert reply.status == 422
    assert what in reply.json["detail"]


def test_deep_nesting_is_a_problem(fhir_client: Client) -> None:
    deep = b'{"resourceType": "Bundle", "entry": [{"fullUrl": "urn:uuid:1", "resource": '
    deep += b'{"resourceType": "Patient", "id": "2", "x": '
    for depth in (200, 900, 100_000):
        reply = fhir_client.ask("POST", "/fhir", deep + b"[" * depth + b"]" * depth + b"}}]}")
        assert 400 <= reply.status < 500


def test_the_hook_is_discovered_and_answers_with_a_card(fhir_client: Client, bundle: dict[str, Any]) -> None:
    service = fhir_client.ask("GET", "/cds-services").json["services"][0]
    assert (service["hook"], f"/cds-services/{service['id']}") == ("patient-view", HOOK)
    prefetch = {"patient": PATIENT, "conditions": bundle_of(*(e["resource"] for e in bundle["entry"][1:]))}
    assert set(prefetch) <= set(service["prefetch"])
    request = {"hook": "patient-view", "hookInstance": "7", "context": {"patientId": "p-1"}, "prefetch": prefetch}
    (card,) = fhir_client.ask("POST", HOOK, request).json["cards"]
    assert card["indicator"] == "info"
    assert len(card["summary"]) <= 140
    risk = assessments(fhir_client.ask("POST", "/fhir", bundle).json)[3]["prediction"][0]["probabilityDecimal"]
    assert f"{risk:.2g} %" in card["summary"]
    assert "not the effect of a treatment" in card["detail"]
    missing = fhir_client.ask("POST", HOOK, request | {"prefetch": {"conditions": bundle}})
    assert (missing.status, missing.json["where"]) == (412, "prefetch.patient")


FAILED = {"resourceType": "OperationOutcome", "issue": [{"severity": "error", "code": "timeout"}]}
PARTS = {  # what an EHR sends as one part of the record → what the card says is missing
    "a query that failed": (FAILED, "could not be fetched"),
    "a bundle that says that a query failed": (bundle_of(FAILED), "could not be fetched"),
    "a further page": (
        {**bundle_of(), "link": [{"relation": "next", "url": "https://a.example/2"}]},
        "has further pages",
    ),
    "fewer than the total": ({**bundle_of(), "type": "searchset", "total": 3}, "holds 0 of 3 resources"),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_partial_record_gets_no_risk(case: str, fhir_client: Client, bundle: dict[str, Any]) -> None:
    part, says = PARTS[case]
    prefetch = {"patient": PATIENT, "conditions": bundle, "observations": part}
    request = {"hook": "patient-view", "hookInstance": "7", "context": {"patientId": "p-1"}, "prefetch": prefetch}
    (card,) = fhir_client.ask("POST", HOOK, request).json["cards"]
    assert (card["indicator"], "%" in card["detail"]) == ("warning", False)
    assert f"- observations: {says}" in card["detail"]
    if part["resourceType"] == "Bundle":
        whole = {**part, "entry": [*bundle["entry"], *part["entry"]]}
        refused = fhir_client.ask("POST", "/fhir", {**whole, "total": 30} if "total" in part else whole)
        assert (refused.status, "only a part of a record" in str(refused.json)) == (422, True)


def test_another_patient_than_that_of_the_context_gets_no_risk(fhir_client: Client, bundle: dict[str, Any]) -> None:
    prefetch = {"patient": PATIENT, "conditions": bundle}
    for context, indicator in (("p-2", "warning"), ("Patient/p-1", "info")):
        request = {"hook": "patient-view", "hookInstance": "7", "context": {"patientId": context}, "prefetch": prefetch}
        (card,) = fhir_client.ask("POST", HOOK, request).json["cards"]
        assert card["indicator"] == indicator
