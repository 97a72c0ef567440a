"""CDS Hooks: a card with the answers of `/predict` on the mapped rows, or with what is missing."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config.task import IndexConfig
from ehrsequencing.prediction.run import Run
from ehrsequencing.readers.fhir import read_bundle
from ehrsequencing.serve.predictor import Predictor
from helpers.serve import HOOK, Client, Reply, as_json, running

PATIENT = {"resourceType": "Patient", "id": "p-1", "birthDate": "1950-03-01", "gender": "male"}
ABOUT = {"subject": {"reference": "Patient/p-1"}, "encounter": {"reference": "Encounter/e-1"}}
TODAY = [datetime(2021, 7, 1, 12)]  # of the server's clock, 30 days after the newest visit


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
        "resourceType": "Encounter",
        "id": "e-1",
        "status": "finished",
        "class": {"code": "AMB"},
        "period": {"start": "2020-01-02T10:00:00", "end": "2020-01-02T11:00:00"},
        "subject": ABOUT["subject"],
    }
    events = [
        {"resourceType": "Condition", "code": concept("DX//A00"), "onsetDateTime": "2020-01-02", **ABOUT},
        {"resourceType": "Condition", "code": concept("DX//NOBODY"), "onsetDateTime": "2020-01-02", **ABOUT},
        procedure("ORDER_C", "completed", "2021-05"),
        procedure("ORDER_A", "entered-in-error", "2021"),
        {
            "resourceType": "Observation",
            "status": "final",
            "code": concept("LAB//HBA1C"),
            "effectiveDateTime": "2021-06-01T08:00:00",
            "valueQuantity": {"value": 7.2},
            **ABOUT,
        },
        {"resourceType": "Location", "id": "l-1"},
    ]
    return bundle_of(PATIENT, visit, *events)


@pytest.fixture(scope="module")
def fhir_client(sim_run: Path) -> Iterator[Client]:
    """The run asked about anybody's first visit: its own index is a code that no FHIR resource has."""
    run = Run(sim_run)
    run.task = run.task.model_copy(update={"index": IndexConfig(first_visit=True)})
    with running(Predictor(run), clock=lambda: TODAY[0]) as found:
        yield found


def ask(client: Client, prefetch: dict[str, Any], patient: str = "p-1") -> Reply:
    request = {"hook": "patient-view", "hookInstance": "7", "context": {"patientId": patient}, "prefetch": prefetch}
    return client.ask("POST", HOOK, request)


def test_the_hook_is_discovered_and_answers_with_the_risks_of_the_mapped_rows(
    fhir_client: Client, bundle: dict[str, Any]
) -> None:
    service = fhir_client.ask("GET", "/cds-services").json["services"][0]
    assert (service["hook"], f"/cds-services/{service['id']}") == ("patient-view", HOOK)
    assert all(asked.endswith("&_count=1000") for name, asked in service["prefetch"].items() if name != "patient")
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


@pytest.fixture
def on_day() -> Iterator[Callable[[str], None]]:
    """Sets the server's clock for one test."""
    before = TODAY[0]
    yield lambda day: TODAY.__setitem__(0, datetime.fromisoformat(day))
    TODAY[0] = before


def card_of(client: Client, *resources: dict[str, Any], patient: dict[str, Any] = PATIENT) -> dict[str, Any]:
    (card,) = ask(client, {"patient": patient, "encounters": bundle_of(*resources)}).json["cards"]
    return card


def visit(start: str, *, status: str = "finished") -> dict[str, Any]:
    period = {"start": f"{start}T10:00:00", "end": f"{start}T11:00:00"}
    kind = {"resourceType": "Encounter", "id": f"e-{start}", "class": {"code": "AMB"}, "subject": ABOUT["subject"]}
    return {**kind, "status": status, "period": period}


@pytest.mark.parametrize(
    ("today", "ago"),
    [
        ("2021-06-01T12:00", "2021-06-01 (today)"),
        ("2021-06-02T09:00", "2021-06-01 (yesterday)"),
        ("2021-07-01T12:00", "2021-06-01 (30 days ago)"),
        ("2021-06-01T09:00", "2021-06-01 (today)"),
    ],
)
def test_a_card_says_from_which_day_its_risk_counts(
    today: str, ago: str, fhir_client: Client, on_day: Callable[[str], None]
) -> None:
    on_day(today)
    card = card_of(fhir_client, visit("2020-01-02"), visit("2021-06-01"))
    assert f"counted from {ago}: " in card["summary"]
    assert f"The risks count from {ago}." in card["detail"]


def test_a_horizon_that_has_passed_is_not_shown(fhir_client: Client, on_day: Callable[[str], None]) -> None:
    on_day("2021-06-15")
    every = card_of(fhir_client, visit("2021-06-01"))
    on_day("2021-09-15")  # 106 days later
    later = card_of(fhir_client, visit("2021-06-01"))
    assert "| by 90d |" in every["detail"]
    assert "by 90d" not in later["detail"]
    row = next(line for line in every["detail"].splitlines() if line.startswith("| outcome |"))
    assert "| outcome |" + row.split("|", 3)[3] in later["detail"]


@pytest.mark.parametrize("today", ["2022-06-02T12:00", "2034-01-01"])
def test_an_old_record_gets_the_date_and_no_risk(
    today: str, fhir_client: Client, on_day: Callable[[str], None]
) -> None:
    on_day(today)
    card = card_of(fhir_client, visit("2021-06-01"))
    assert card["summary"] == "No predicted risk: the newest prediction is of 2021-06-01"
    assert "%" not in card["detail"]


def test_a_booked_visit_does_not_make_a_record_new(fhir_client: Client, on_day: Callable[[str], None]) -> None:
    on_day("2022-07-01")
    card = card_of(fhir_client, visit("2021-06-01"), visit("2022-08-01"))
    assert card["summary"].startswith("No predicted risk")
    on_day("2021-07-01")
    booked = card_of(fhir_client, visit("2021-06-01"), visit("2021-08-01"))
    assert "2021-06-01" in booked["summary"]
    assert "(entries of later days than tomorrow)." in booked["detail"]
    undated = card_of(fhir_client, visit("2021-06-01"), visit("in June"))
    assert "Not used as sent: 1 (no readable date)." in undated["detail"]


@pytest.mark.parametrize(
    "death",
    [
        {"deceasedDateTime": "2021-06-08T08:00:00Z"},
        {"deceasedDateTime": "2021-06-01"},
        {"deceasedBoolean": True},
        {"deceasedDateTime": "2020-05-01"},
        {"deceasedDateTime": "in June"},
    ],
)
def test_a_patient_who_has_died_gets_no_risk(death: dict[str, Any], fhir_client: Client) -> None:
    alive = card_of(fhir_client, visit("2021-06-01"), patient=PATIENT | {"deceasedBoolean": False})
    assert alive["summary"].startswith("Risk of")
    card = card_of(fhir_client, visit("2021-06-01"), patient=PATIENT | death)
    assert card["summary"] == "No predicted risk: the patient has died"
    assert "%" not in card["detail"]


def test_another_patient_than_that_of_the_context_gets_no_risk(fhir_client: Client, bundle: dict[str, Any]) -> None:
    prefetch = {"patient": PATIENT, "conditions": bundle}
    for context, indicator in (("p-2", "warning"), ("Patient/p-1", "info")):
        (card,) = ask(fhir_client, prefetch, context).json["cards"]
        assert card["indicator"] == indicator
