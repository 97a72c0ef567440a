"""`POST /predict`: the answers of `ehrseq predict`, whatever the order of rows and whoever asks at the same time."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ehrsequencing.prediction.predict import predict
from helpers.serve import Client, curves
from helpers.settings import EXAMPLES

Rows = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def expected(
    sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[dict[str, Any]]]:
    """What `ehrseq predict` says of each subject."""
    out = tmp_path_factory.mktemp("predicted") / "risks.parquet"
    predict(sim_run, sim_data, out)
    found: Rows = {}
    for row in pq.read_table(out).to_pylist():
        found.setdefault(row["subject_id"], []).append(row)
    return found


def test_the_answers_are_those_of_predict(client: Client, sim_rows: Rows, expected: Rows) -> None:
    until = max(row["time"] for own in sim_rows.values() for row in own if row["time"])
    living = [s for s in sorted(expected) if all(row["code"] != "MEDS_DEATH" for row in sim_rows[s])]
    some = random.Random(0).sample(living, 25)
    assert max(len(sim_rows[s]) for s in some) > 50
    for subject in some:
        reply = client.ask("POST", "/predict", {"rows": sim_rows[subject], "at": "all", "until": until})
        found = reply.json
        assert reply.status == 200, found
        times = list(dict.fromkeys(row["prediction_time"].isoformat() for row in expected[subject]))
        assert [one["time"] for one in found["predictions"]] == times
        wanted = [row["risk"] for row in expected[subject]]  # by prediction time, cause and horizon
        np.testing.assert_allclose(curves(reply).ravel(), wanted, atol=1e-6)


def test_the_order_of_rows_does_not_matter_and_the_last_time_is_the_last_of_all(client: Client, sim_rows: Rows) -> None:
    rows = max(sim_rows.values(), key=len)
    shuffled = random.Random(1).sample(rows, len(rows))
    every = client.ask("POST", "/predict", {"rows": rows, "at": "all"})
    last = client.ask("POST", "/predict", {"rows": shuffled})
    assert len(every.json["predictions"]) > 5
    np.testing.assert_allclose(curves(last)[0], curves(every)[-1], atol=1e-6)
    assert last.json["record"]["rows"] == len(rows)


def test_whoever_asks_at_the_same_time_changes_nothing(client: Client, sim_rows: Rows) -> None:
    """Each request keeps its own answer and its own error."""
    some = sorted(sim_rows)[:16]
    bodies: list[Any] = [{"rows": sim_rows[s], "horizons_days": [30 + k % 3]} for k, s in enumerate(some)]
    bodies[7] = {"rows": [{"time": None, "code": "SEX//M"}]}
    alone = [client.ask("POST", "/predict", body) for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda body: client.ask("POST", "/predict", body), bodies))
    assert [r.status for r in together] == [r.status for r in alone]
    assert together[7].status == 422
    for one, other in zip(alone, together, strict=True):
        if one.status == 200:
            np.testing.assert_allclose(curves(one), curves(other), atol=1e-6)


def test_a_moment_that_is_asked_for_sees_nothing_that_comes_later(client: Client, sim_rows: Rows) -> None:
    rows = max(sim_rows.values(), key=len)
    moments = client.ask("POST", "/predict", {"rows": rows, "at": "all"}).json["predictions"]
    asked = datetime.fromisoformat(moments[len(moments) * 3 // 4]["time"]) + timedelta(days=1)
    day = asked.date().isoformat()
    known = [row for row in rows if row["time"] is None or row["time"] <= f"{day}T00:00:00"]
    assert len(known) < len(rows)
    whole = client.ask("POST", "/predict", {"rows": rows, "at": day})
    cut = client.ask("POST", "/predict", {"rows": known, "at": day})
    assert whole.json["predictions"][0]["time"] == f"{day}T00:00:00"
    np.testing.assert_allclose(curves(whole), curves(cut), atol=1e-6)
    fewer = [row for k, row in enumerate(known) if k % 2 or row["code"] == "ENROLLMENT"]
    shorter = client.ask("POST", "/predict", {"rows": fewer, "at": day})
    assert np.abs(curves(shorter) - curves(cut)).max() > 1e-5  # the comparison can fail


def test_unknown_codes_are_counted_and_told(client: Client, sim_rows: Rows) -> None:
    rows = [row for row in max(sim_rows.values(), key=len) if row["code"] != "END_OF_FOLLOWUP"][:12]
    plain = client.ask("POST", "/predict", {"rows": rows}).json
    assert plain["record"]["unknown_rows"] == 0
    assert plain["warnings"] == []
    strange = [{"time": "2100-01-01", "code": f"STRANGE//{k % 3}"} for k in range(40)]
    found = client.ask("POST", "/predict", {"rows": rows + strange[:40:2]}).json
    assert (found["record"]["unknown_rows"], found["record"]["unknown_codes"]) == (3, 3)  # 17 rows repeat others
    assert found["record"]["fixes"]["duplicates"] == 17


def test_every_door_counts_what_it_drops(client: Client, sim_rows: Rows) -> None:
    rows = [row for row in max(sim_rows.values(), key=len) if row["code"] != "END_OF_FOLLOWUP"][:12]
    dropped = [{"time": "1850-02-03", "code": "LAB//OTHER"}, {"time": "2020-02-03", "code": "L", "numeric_value": 1e39}]
    for path in ("/predict", "/explain"):
        assert client.ask("POST", path, {"rows": rows}).json["record"]["fixes"] == {}, path
        fixes = client.ask("POST", path, {"rows": [*rows, *dropped]}).json["record"]["fixes"]
        assert (fixes["bad_year"], fixes["bad_value"]) == (1, 1), path


def test_a_record_without_a_prediction_time_is_told_why(client: Client, sim_rows: Rows) -> None:
    rows = [row for row in max(sim_rows.values(), key=len) if row["code"] != "ENROLLMENT"]
    reply = client.ask("POST", "/predict", {"rows": rows})
    assert (reply.status, reply.json["predictions"]) == (200, [])
    assert reply.json["why_none"] == "the subject is not one with an index"


@pytest.mark.parametrize("died", ["2031-05-01T08:00:00", "2011-05-01", None])
def test_a_patient_who_has_died_gets_no_risk(client: Client, sim_rows: Rows, died: str | None) -> None:
    """Whether the death lies after the newest visit, before it, or has no date."""
    rows = [row for row in max(sim_rows.values(), key=len) if row["code"] not in ("MEDS_DEATH", "END_OF_FOLLOWUP")]
    assert client.ask("POST", "/predict", {"rows": rows}).json["predictions"]
    dead = [*rows, {"time": died, "code": "MEDS_DEATH"}]
    for at in ("last", "all", "2032-01-01"):
        found = client.ask("POST", "/predict", {"rows": dead, "at": at}).json
        assert (found["predictions"], found["why_none"]) == ([], "the patient has died")


def test_a_day_before_the_death_is_answered_as_of_then(client: Client, sim_rows: Rows) -> None:
    rows = [row for row in max(sim_rows.values(), key=len) if row["code"] not in ("MEDS_DEATH", "END_OF_FOLLOWUP")]
    day = client.ask("POST", "/predict", {"rows": rows}).json["predictions"][0]["time"][:10]
    asked = {"at": day, "horizons_days": [30]}
    dead = [*rows, {"time": "2031-05-01", "code": "MEDS_DEATH"}]
    alive, later = (client.ask("POST", "/predict", {"rows": some, **asked}) for some in (rows, dead))
    np.testing.assert_array_equal(curves(alive), curves(later))


REQUESTS = 1 if EXAMPLES < 200 else 200  # to each operation that takes a body, valid and not
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


def test_requests_of_the_description_never_fail(client: Client) -> None:
    """A few of each operation, valid ones and others; two thousand in all with `make test-all`."""
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/predict", "/cds-services", "/version"}
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


NO_TIMES = (20240101, 1.5, True, "20240101", "1704067200", "", "2024", "2024-02-30", "-2024-01-01", "12024-01-01")


@pytest.mark.parametrize("time", [*NO_TIMES, "2024-01-01Z", "2024-01-01T10:00:00+01:00", "2024-01-01T25:00"])
def test_what_is_no_clock_time_is_one_clear_error(client: Client, time: object) -> None:
    reply = client.ask("POST", "/predict", {"rows": [{"time": time, "code": "ENROLLMENT"}]})
    assert (reply.status, reply.json["where"]) == (422, "body.rows.0.time")
    assert reply.json["detail"] == "is no clock time without a zone"
    assert reply.json["fix"] == "write it as 2024-03-01 or 2024-03-01T09:30:00"


@pytest.mark.parametrize("time", ["2024-01-01", "2024-01-01 10:00", "2024-01-01T10:00:00.1234567"])
def test_clock_times_are_read(client: Client, time: str) -> None:
    assert client.ask("POST", "/predict", {"rows": [{"time": time, "code": "ENROLLMENT"}]}).status == 200
