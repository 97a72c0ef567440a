"""CDS Hooks: a card with the answers of `/predict` on the mapped rows, or with what is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config.task import IndexConfig
from ehrsequencing.prediction.run import Run
from ehrsequencing.readers.fhir import read_bundle
from ehrsequencing.serve.predictor import Predictor
from helpers.serve import Client, Reply, as_json, running

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


def ask(client: Client, prefetch: dict[str, Any], patient: str = "p-1") -> Reply:
    request = {"hook": "patient-view", "hookInstance": "7", "context": {"patientId": patient}, "prefetch": prefetch}
    return client.ask("POST", HOOK, request)


def test_the_hook_is_discovered_and_answers_with_the_risks_of_the_mapped_rows(
    fhir_client: Client, bundle: dict[str, Any]
) -> None:
    service = fhir_client.ask("GET", "/cds-services").json["services"][0]
    assert (service["hook"], f"/cds-services/{service['id']}") == ("patient-view", HOOK)
    prefetch = {"patient": PATIENT, "conditions": bundle_of(*(e["resource"] for e in bundle["entry"][1:]))}
    assert set(prefetch) <= set(service["prefetch"])
    (card,) = ask(fhir_client, prefetch).json["cards"]
    assert card["indicator"] == "info"
    assert len(card["summary"]) <= 140
    rows = [as_json(row) for row in read_bundle(bundle)[0].to_pylist()]
    assert {"DX//A00", "PROC//ORDER_C", "GENDER//M", "MEDS_BIRTH"} <= {row["code"] for row in rows}
    expected = fhir_client.ask("POST", "/predict", {"rows": rows}).json
    for cause, risks in expected["predictions"][0]["risk"].items():
        assert f"| {cause} | " + " | ".join(f"{100 * risk:.2g} %" for risk in risks) + " |" in card["detail"]
    assert f"{100 * expected['predictions'][0]['risk'][expected['causes'][0]][-1]:.2g} %" in card["summary"]
    assert "5 of 7 rows have a code that the model does not know" in card["detail"]  # 2 are of the encounter
    assert "not the effect of a treatment" in card["detail"]
    missing = ask(fhir_client, {"conditions": bundle})
    assert (missing.status, missing.json["where"]) == (412, "prefetch.patient")


def test_feedback_is_counted_by_outcome_and_nothing_else_of_it(fhir_client: Client) -> None:
    told = {"card": "7", "outcome": "accepted", "outcomeTimestamp": "2026-01-02T03:04:05Z"}
    dismissed = {**told, "outcome": "overridden", "overrideReason": {"userComment": "canary"}}
    assert fhir_client.ask("POST", f"{HOOK}/feedback", {"feedback": [told, dismissed, dismissed]}).status == 200
    assert fhir_client.ask("POST", f"{HOOK}/feedback", {"feedback": [{**told, "outcome": "kept"}]}).status == 422
    counts = fhir_client.ask("GET", "/metrics").body.decode()
    assert 'ehrseq_feedback_total{outcome="accepted"} 1.0' in counts
    assert 'ehrseq_feedback_total{outcome="overridden"} 2.0' in counts
    assert "canary" not in counts


@pytest.mark.parametrize(
    ("prefetch", "what"),
    [
        ({"patient": {"resourceType": "Patient", "id": None}}, "holds no Patient"),
        ({"patient": {"resourceType": "Bundle", "entry": 7}}, "holds no Patient"),
        ({"patient": PATIENT, "others": PATIENT | {"id": "p-2"}}, "more than one Patient"),
        ({"patient": PATIENT}, "no row"),
    ],
)
def test_what_cannot_be_read_is_a_problem(fhir_client: Client, prefetch: dict[str, Any], what: str) -> None:
    request = {"hook": "patient-view", "hookInstance": "7", "context": {}, "prefetch": prefetch}
    reply = fhir_client.ask("POST", HOOK, request)
    assert (reply.status, what in reply.json["detail"]) == (422, True)


def test_deep_nesting_is_a_problem(fhir_client: Client) -> None:
    deep = b'{"hook": "patient-view", "hookInstance": "7", "context": {}, "prefetch": {"patient": '
    deep += b'{"resourceType": "Patient", "id": "2", "x": '
    for depth in (200, 900, 100_000):
        reply = fhir_client.ask("POST", HOOK, deep + b"[" * depth + b"]" * depth + b"}}}")
        assert 400 <= reply.status < 500


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
    (card,) = ask(fhir_client, {"patient": PATIENT, "conditions": bundle, "observations": part}).json["cards"]
    assert (card["indicator"], "%" in card["detail"]) == ("warning", False)
    assert f"- observations: {says}" in card["detail"]


def test_another_patient_than_that_of_the_context_gets_no_risk(fhir_client: Client, bundle: dict[str, Any]) -> None:
    prefetch = {"patient": PATIENT, "conditions": bundle}
    for context, indicator in (("p-2", "warning"), ("Patient/p-1", "info")):
        (card,) = ask(fhir_client, prefetch, context).json["cards"]
        assert card["indicator"] == indicator
