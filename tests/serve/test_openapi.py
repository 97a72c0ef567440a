"""The service against its own OpenAPI description: requests that schemathesis makes, valid or not, never fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.serve.page import live_page
from ehrsequencing.serve.predictor import Predictor
from helpers.serve import Client, running

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def open_client(sim_run: Path, sim_data: Path) -> Iterator[Client]:
    """A server with the explorer's page, whose free edits are part of the API."""
    live = live_page(NewRecords(Run(sim_run), sim_data), what_if=False)
    with running(Predictor(live.explorer.run), live=live) as found:
        yield found


def check(client: Client, requests: int) -> None:
    """Send so many requests, spread over all operations, and check every answer."""
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/predict", "/fhir", "/edit", "/cds-services", "/version"}
    posts = [operation for operation in operations if operation.method.upper() == "POST"]
    each = requests // (len(posts) * 2)
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            if operation not in posts and mode.is_negative:
                continue
            send(operation.as_strategy(generation_mode=mode), each if operation in posts else 2)


def send(cases: st.SearchStrategy[schemathesis.Case], number: int) -> None:
    """Draw so many requests, send them and check the answers."""

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    ask()


def test_a_sample_of_requests(open_client: Client) -> None:
    check(open_client, 12)


@pytest.mark.slow
def test_two_thousand_requests(open_client: Client) -> None:
    check(open_client, 2_000)
