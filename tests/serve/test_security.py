"""Hosts, origins, tokens, sizes and times; and errors that say nothing of what was sent."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import TypeAdapter

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.run import Run
from ehrsequencing.serve import security as service
from ehrsequencing.serve.predictor import Limits, Predictor
from ehrsequencing.serve.schemas import PROBLEM_TYPE
from ehrsequencing.serve.security import Access, access_to
from helpers.command_line import ehrseq
from helpers.serve import HOOK, ROW, TOKEN, Client, Reply, running, small_limits

PRIVATE = "ZEBRA-4711"
HEAD = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"


@pytest.fixture(scope="module")
def guarded(sim_run: Path) -> Iterator[Client]:
    """A server with a token and small limits."""
    with running(Predictor(Run(sim_run), limits=small_limits()), Access(token=TOKEN)) as found:
        yield found


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def is_problem(reply: Reply, status: int) -> bool:
    """Whether an answer is a JSON problem with the status and the request's id."""
    body = reply.json
    own = body["request_id"] == reply.headers["x-request-id"]
    return reply.status == body["status"] == status and own and reply.headers["content-type"] == PROBLEM_TYPE


# ---- who may ask -----------------------------------------------------------------------------------------------------


def test_only_own_host_names_are_answered(client: Client) -> None:
    hosts = {
        200: ("localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:80"),
        400: ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::2]", "["),
    }
    for status, names in hosts.items():
        for host in names:
            assert client.ask("GET", "/health", headers={"Host": host}).status == status, host


def test_pages_of_other_sites_are_refused(client: Client) -> None:
    origins = {
        200: ("http://localhost:8000", "https://127.0.0.1"),
        403: ("null", "http://evil.example", "http://localhost/evil", "localhost", "file://localhost"),
    }
    asked = [(status, {"Origin": origin}) for status, known in origins.items() for origin in known]
    for status, headers in [*asked, (403, {"Sec-Fetch-Site": "cross-site"}), (200, {"Sec-Fetch-Site": "none"})]:
        reply = client.ask("GET", "/health", headers=headers)
        assert reply.status == status, headers
        assert not [name for name in reply.headers if name.startswith("access-control")]


NAMES = st.sampled_from(["127.0.0.1", "localhost", "[::1]", "evil", *".:[]@/", "80", "local", "host", ""])


@given(st.lists(NAMES, max_size=4).map("".join))
def test_no_origin_but_the_listed_hosts_is_known(host: str) -> None:
    name = host[: host.find("]") + 1] if host.startswith("[") else host.split(":")[0]
    known = name in ("127.0.0.1", "localhost", "[::1]") and "/" not in host
    assert Access().knows_origin(f"http://{host}") == known


def test_every_path_but_health_needs_the_token(guarded: Client) -> None:
    for path in ("/version", "/openapi.json", "/cds-services", "/nowhere"):
        assert is_problem(guarded.ask("GET", path), 401)
        assert guarded.ask("GET", path, headers=bearer()).status in (200, 404)
    assert guarded.ask("GET", "/health").status == 200
    assert guarded.ask("GET", "/version", headers={"Cookie": f'ehrseq_token="{TOKEN}"'}).status == 200
    for wrong in ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
        assert guarded.ask("GET", "/version", headers=bearer(wrong)).status == 401


@given(st.text())
def test_no_other_text_is_the_token(text: str) -> None:
    assert Access(token=TOKEN).knows_token(text) == (text == TOKEN)


def test_listening_beyond_this_machine_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.4", "ehr.example"):
        with pytest.raises(EhrseqError, match="without a token"):
            access_to(host, token=None)
        assert access_to(host, token=TOKEN).token == TOKEN
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert access_to(host, token=None).token is None
    with pytest.raises(EhrseqError, match="shorter than 16"):
        access_to("127.0.0.1", token="short")
    assert access_to("127.0.0.1", token=None, names=["EHR.example:443"]).knows_origin("https://ehr.example")


def test_the_command_refuses_to_listen_to_all_without_a_token(sim_run: Path, sim_data: Path) -> None:
    done = ehrseq("serve", str(sim_run), str(sim_data), "--host", "0.0.0.0", "--port", "0")
    assert done.exit_code == 2
    assert "EHRSEQ_TOKEN" in done.output


# ---- how much ----------------------------------------------------------------------------------------------------


def days(n: int) -> list[dict[str, Any]]:
    return [{"time": f"20{k // 28:02}-01-{k % 28 + 1:02}", "code": "ENROLLMENT"} for k in range(n)]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({"rows": days(51)}, 413, "rows"),
        ({"rows": days(11)}, 413, "rows"),
        ({"rows": days(10)}, 200, None),
        ({"rows": days(3), "horizons_days": [*range(1, 66)]}, 422, "body.horizons_days"),
        ({"rows": days(3), "horizons_days": [1e9]}, 422, "horizons_days"),
        ({"rows": days(2), "at": "2020-02-30"}, 422, "at"),
        ({"rows": []}, 422, "body.rows"),
        ({"rows": [ROW | {"subject_id": 1}, ROW | {"subject_id": 2}]}, 422, "rows"),
        ({"rows": [{"time": None, "code": "SEX//M"}]}, 422, "rows"),
        (b'{"rows":[{"code":"\\ud800"}]}', 422, "body"),
        ({"rows": [{}] * 40}, 422, "body.rows.0.code"),  # the first error ends the reading
        (b"[" * 900, 422, "body"),
        (b"", 422, "body"),
    ],
)
def test_limits_and_shapes(guarded: Client, body: Any, status: int, where: str | None) -> None:
    reply = guarded.ask("POST", "/predict", body, bearer())
    assert reply.status == status, reply.body
    assert status == 200 or is_problem(reply, status)
    assert where is None or reply.json["where"].startswith(where)


def test_a_large_body_is_refused_before_it_is_read(guarded: Client) -> None:
    assert is_problem(guarded.ask("POST", "/predict", b" " * 20_001, bearer()), 413)
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=5) as plain:  # only says that it is large
        plain.sendall(f"{HEAD}Content-Length: 999999\r\n\r\n".encode())
        assert b" 413 " in plain.recv(1000)


def test_a_body_that_has_no_length_is_counted_and_a_slow_one_is_given_up(guarded: Client) -> None:
    head = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as plain:
        plain.sendall(head.encode() + b"5000\r\n" + b" " * 0x5000 + b"\r\n")
        assert b" 413 " in plain.recv(1000)
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as plain:
        plain.sendall(head.encode() + b"2\r\n[1\r\n")
        assert b" 408 " in plain.recv(1000)


def test_connections_that_ask_nothing_are_closed(sim_run: Path) -> None:
    limits = Limits(idle_seconds=0.3)  # type: ignore[arg-type]
    with running(Predictor(Run(sim_run), limits=limits)) as client:
        for sent in (b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "):
            with socket.create_connection(("127.0.0.1", client.port), timeout=5) as idle:
                idle.sendall(sent)
                assert idle.recv(10) == b""
        assert client.ask("GET", "/health").status == 200
        assert client.ask("GET", "/").body == client.ask("GET", "/patient").body
        patient = {"resourceType": "Patient", "id": "\ud800"}
        request = {"hook": "patient-view", "hookInstance": "7", "context": {}, "prefetch": {"patient": patient}}
        assert is_problem(client.ask("POST", HOOK, request), 422)


# ---- what errors say ---------------------------------------------------------------------------------------------


BAD: list[Any] = [
    {"rows": [{"time": PRIVATE, "code": "A"}]},
    {"rows": [{"code": {"a": PRIVATE}}]},
    {"rows": [ROW], PRIVATE: 1},
    {"rows": [ROW | {"numeric_value": PRIVATE}]},
    {"rows": [ROW], "at": PRIVATE},
    {"rows": [ROW | {"code": PRIVATE + "\n"}]},
    {"rows": [ROW | {"code": PRIVATE + "\x00"}]},
    {"rows": PRIVATE},
    {"rows": [ROW | {"subject_id": PRIVATE}]},
    {"rows": [ROW | {"time": f"2020-01-01T00:00:00Z{PRIVATE}"}]},
    {"rows": [{"time": None, "code": PRIVATE}]},
    json.dumps({"rows": [PRIVATE]}).encode()[:-3],
    json.dumps(PRIVATE).encode(),
    b'{"rows": [{"code": "\\ud800' + PRIVATE.encode() + b'"}]}',
    {
        "rows": [
            *(ROW | {"code": "MEDS_BIRTH", "time": day} for day in ("2020-01-01", "1999-01-01")),
            ROW | {"code": PRIVATE},
        ]
    },
]


@pytest.mark.parametrize("body", BAD)
def test_errors_hold_nothing_of_the_request(client: Client, body: Any, capfd: Any, caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        for path in ("/predict", HOOK):
            reply = client.ask("POST", path, body)
            assert is_problem(reply, reply.status)
            assert 400 <= reply.status < 500
            assert PRIVATE not in reply.body.decode()
    captured = capfd.readouterr()
    assert PRIVATE not in captured.out + captured.err + caplog.text


ODD_TEXT = st.text(st.characters(), max_size=12) | st.sampled_from(["MEDS_BIRTH", "2020-01-01", "Bundle", "Patient"])
NAMED = ["rows", "code", "time", "at", "until", "numeric_value", "resourceType", "entry", "resource", "id"]
KEYS = st.sampled_from(NAMED)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | ODD_TEXT, inner, max_size=5),
    max_leaves=12,
)
BODIES = (
    st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(lambda value: json.dumps({"rows": [ROW, value]}).encode(), JSON)
)


@settings(max_examples=60)
@given(path=st.sampled_from(["/predict", HOOK, "/nowhere"]), body=BODIES)
def test_no_bytes_are_an_unexpected_error(client: Client, path: str, body: bytes) -> None:
    """Lone surrogates (`json.dumps` escapes them), bytes that are no text, and JSON of any shape."""
    reply = client.ask("POST", path, body)
    assert reply.status < 500, reply.body
    assert reply.status == 200 or is_problem(reply, reply.status)


@pytest.mark.parametrize("path", ["/predict", HOOK])
def test_health_answers_while_a_body_is_parsed(sim_run: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The parser waits until /health has answered: one that held up the server would wait for ever."""
    parses, healthy = threading.Event(), threading.Event()

    class Waiting(TypeAdapter[Any]):
        def validate_json(self, *given: Any, **settings: Any) -> Any:
            parses.set()
            assert healthy.wait(60)
            return super().validate_json(*given, **settings)

    monkeypatch.setattr(service, "TypeAdapter", Waiting)
    with running(Predictor(Run(sim_run))) as client, ThreadPoolExecutor(1) as sender:
        reply = sender.submit(client.ask, "POST", path, {"rows": [ROW]}, timeout=90)
        assert parses.wait(60)
        assert client.ask("GET", "/health", timeout=30).status == 200
        healthy.set()
        assert reply.result().status in (200, 422)


def test_an_unexpected_error_is_a_problem_too_and_logs_nothing(
    sim_run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    predictor = Predictor(Run(sim_run))

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError(f"of {PRIVATE}")

    monkeypatch.setattr(predictor, "answer", broken)
    with running(predictor) as client:
        reply = client.ask("POST", "/predict", {"rows": [ROW]})
        assert is_problem(reply, 500)
        assert client.ask("GET", "/health").status == 200
    captured = capfd.readouterr()
    assert PRIVATE not in reply.body.decode() + captured.out + captured.err


def test_nothing_of_a_request_is_left_in_memory_or_on_disk(
    sim_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Codes are remembered for speed, so those that a request brings must be forgotten."""
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in sim_run.rglob("*")}
    predictor = Predictor(Run(sim_run))
    with running(predictor) as client:
        assert client.ask("POST", "/predict", {"rows": [ROW, ROW | {"code": PRIVATE}]}).status == 200
    assert "ids" not in vars(predictor.run.vocabulary)
    assert list(tmp_path.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in sim_run.rglob("*")} == before
