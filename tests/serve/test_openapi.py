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
from helpers.settings import EXAMPLES

REQUESTS = 1 if EXAMPLES < 200 else 200  # to each operation that takes a body, valid and not
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def open_client(sim_run: Path, sim_data: Path) -> Iterator[Client]:
    """A server with the explorer's page, whose free edits are part of the API."""
    live = live_page(NewRecords(Run(sim_run), sim_data), what_if=False)
    with running(Predictor(live.explorer.run), live=live) as found:
        yield found


def test_requests_of_the_description_never_fail(open_client: Client) -> None:
    """A few of each operation, valid ones and others; two thousand in all with `make test-all`."""
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{open_client.port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/predict", "/fhir", "/edit", "/cds-services", "/version"}
    for operation in operations:
        takes_a_body = operation.method.upper() == "POST"
        for mode in schemathesis.GenerationMode:
            if takes_a_body or not mode.is_negative:
                send(operation.as_strategy(generation_mode=mode), REQUESTS if takes_a_body else 2)


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
