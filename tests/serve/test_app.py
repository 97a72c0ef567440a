"""The explorer from the server: the same page as the file, and how a browser gets the token."""

import html
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from ehrsequencing.explorer import ExplorerSettings, collect, page
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.serve import security as service
from ehrsequencing.serve.predictor import Limits, Predictor
from ehrsequencing.serve.security import Access
from helpers.serve import HOOK, ROW, TOKEN, Client, running, small_limits


@pytest.fixture(scope="module")
def explorer_html(sim_run: Path, sim_data: Path) -> str:
    return page(collect(NewRecords(Run(sim_run), sim_data), ExplorerSettings(subjects=30)))


def test_a_browser_gets_the_page_with_a_cookie(sim_run: Path, explorer_html: str) -> None:
    with running(Predictor(Run(sim_run)), Access(token=TOKEN), explorer_html) as client:
        assert client.ask("GET", "/").status == 401
        assert client.ask("GET", "/?token=wrong").status == 401
        assert client.ask("GET", "/version?token=correct%20horse%20battery%20staple").status == 401
        moved = client.ask("GET", "/?token=correct%20horse%20battery%20staple")
        assert (moved.status, moved.headers["location"]) == (303, "/")
        cookie = moved.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        served = client.ask("GET", "/", headers={"Cookie": cookie.split(";")[0]})
        assert served.body.decode() == explorer_html
        assert "default-src 'none'" in html.unescape(explorer_html)
        assert "connect-src" not in html.unescape(explorer_html)  # the page may ask nobody
        # the page's own policy does the rest
        assert served.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert client.ask("POST", "/edit", {"patient": 0}, {"Authorization": f"Bearer {TOKEN}"}).status == 404


@pytest.mark.slow
def test_the_command_shows_the_explorer(sim_run: Path, sim_data: Path) -> None:
    words = [sys.executable, "-m", "ehrsequencing", "serve", sim_run, sim_data, "--port", "0", "--no-what-if"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            port = int(server.stdout.readline().split(" (")[0].rpartition(":")[2])
            shown = Client(port).ask("GET", "/")
        finally:
            server.terminate()
    assert shown.status == 200
    assert "What if it had not been recorded?" in shown.body.decode()


# ---- what the server bounds ------------------------------------------------------------------------------------------


PATIENT = {"resourceType": "Patient", "id": "a", "birthDate": "1950-01-01"}


def hook(*entries: Any, **more: Any) -> dict[str, Any]:
    bundle = {"resourceType": "Bundle", "entry": list(entries)}
    return {"hook": "patient-view", "hookInstance": "7", "context": more, "prefetch": {"patient": PATIENT, "x": bundle}}


def condition(**more: Any) -> dict[str, Any]:
    dated = {"recordedDate": "2020-01-01", "code": {"coding": [{"code": "x"}]}}
    return {"resource": {"resourceType": "Condition", "subject": {"reference": "Patient/a"}, **dated, **more}}


@contextmanager
def connected(client: Client, sent: bytes, *, buffer: int | None = None) -> Iterator[socket.socket]:
    """A connection on which something was sent."""
    with socket.socket() as plain:
        plain.settimeout(20)
        if buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        plain.connect(("127.0.0.1", client.port))
        plain.sendall(sent)
        yield plain


def posted(body: bytes, *, declared: int | None = None) -> bytes:
    """A request for /predict, whose body may end before its declared length."""
    length = len(body) if declared is None else declared
    return f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode() + body


def until(holds: Any) -> None:
    """Wait until something holds."""
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never holds")


class Blocked:
    """A server whose model answers nobody until `go` is set."""

    def __init__(self, run: Path, monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
        self.predictor = Predictor(Run(run), limits=small_limits(**limits))
        self.go, self.begun = threading.Event(), list[int]()
        answer = self.predictor.answer

        def slow(*given: Any, **more: Any) -> Any:
            self.begun.append(len(given[0]))
            self.go.wait(20)
            return answer(*given, **more)

        monkeypatch.setattr(self.predictor, "answer", slow)


BODIES = {
    "entries": hook(*[{}] * 200),
    "resources": hook(*[condition()] * 60),
    "codings of one resource": hook(condition(code={"coding": [{"code": str(n)} for n in range(200)]})),
    "lists": hook(condition(note=[[]] * 1300)),
    "numbers": hook(condition(note=[7] * 1300)),
    "a context": hook(deep=[{"a": 1}] * 200),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_of_many_values_is_refused_before_one_is_made(
    body: dict[str, Any], sim_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []

    class Counted(TypeAdapter[Any]):
        def validate_json(self, *given: Any, **settings: Any) -> Any:
            parsed.append(len(given[0]))
            return super().validate_json(*given, **settings)

    monkeypatch.setattr(service, "TypeAdapter", Counted)
    with running(Predictor(Run(sim_run), limits=small_limits())) as client:
        reply = client.ask("POST", HOOK, body)
        assert (reply.status, reply.json["where"], parsed) == (413, "body", [])
        assert client.ask("POST", HOOK, hook(condition())).status == 200
        assert len(parsed) == 1


def test_a_record_of_many_resources_is_within_the_default_limits(client: Client) -> None:
    code = {"coding": [{"system": "http://loinc.org", "code": "1"}], "text": "a, b"}
    result = {"resourceType": "Observation", "status": "final", "effectiveDateTime": "2020-01-01", "code": code}
    result |= {"subject": {"reference": "Patient/a"}, "valueQuantity": {"value": 1.5, "unit": "mg"}}
    assert client.ask("POST", HOOK, hook(*[{"resource": result}] * 4000)).status == 200
    assert client.ask("POST", HOOK, hook(*[{"resource": result}] * 9000)).status == 413


def test_no_body_is_read_while_the_queue_is_full(sim_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(sim_run, monkeypatch, waiting=0, seconds=10.0)
    body = json.dumps({"rows": [ROW]}).encode()
    with running(blocked.predictor) as client, connected(client, posted(body)) as first:
        until(lambda: blocked.begun)
        with connected(client, posted(b"{", declared=10_000)) as second:
            assert b" 503 " in second.recv(1000)
        blocked.go.set()
        assert b" 200 " in first.recv(1000)


def test_too_many_waiting_requests_are_told_to_come_back(sim_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(sim_run, monkeypatch, waiting=1, seconds=1.0)
    with running(blocked.predictor) as client, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: client.ask("POST", "/predict", {"rows": [ROW]}), range(4)))
        assert client.ask("GET", "/health").status == 200  # the model is busy, the server is not
        blocked.go.set()
    assert [reply.status for reply in replies] == [503] * 4
    assert {reply.json["detail"] for reply in replies} == {"the server is busy", "the answer took too long"}
    assert "retry-after" in [name for reply in replies for name in reply.headers]


def test_who_leaves_the_queue_starts_no_work(sim_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(sim_run, monkeypatch, seconds=10.0)
    one, two = (json.dumps({"rows": [ROW] * rows}).encode() for rows in (1, 2))
    with running(blocked.predictor) as client, ExitStack() as stack:
        first = stack.enter_context(connected(client, posted(one)))
        until(lambda: blocked.begun)
        for place in range(5):
            with connected(client, posted(two)):
                until(lambda wanted=2 + place: client.service.model.waiting == wanted)
        blocked.go.set()
        assert b" 200 " in first.recv(1000)
        until(lambda: client.service.model.waiting == 0)
        assert client.ask("POST", "/predict", {"rows": [ROW] * 3}).status == 200
    assert blocked.begun == [1, 3]


def test_unfinished_bodies_share_a_budget(sim_run: Path) -> None:
    predictor = Predictor(Run(sim_run), limits=small_limits(held_bytes=30_000, seconds=20.0))
    part = posted(b" " * 12_000, declared=15_000)
    with running(predictor) as client:
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(connected(client, part))
            third = stack.enter_context(connected(client, part))
            assert b" 503 " in third.recv(1000)
            assert client.ask("GET", "/health").status == 200
        until(lambda: client.ask("POST", "/predict", {"rows": [ROW]}).status == 200)
        # one body alone may be larger than the budget
    with running(Predictor(Run(sim_run), limits=small_limits(held_bytes=10))) as client:
        assert client.ask("POST", "/predict", {"rows": [ROW]}).status == 200


def test_who_does_not_read_an_answer_is_cut_off(sim_run: Path) -> None:
    page, limits = "x" * 20_000_000, Limits(seconds=1.0)
    asked = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(Predictor(Run(sim_run), limits=limits), explorer=page) as client:
        with connected(client, asked, buffer=4096) as slow:
            time.sleep(2.5)  # longer than it may take to read it
            read = 0
            try:
                while part := slow.recv(1 << 16):
                    read += len(part)
            except ConnectionResetError:
                pass
            assert read < len(page)
        assert len(client.ask("GET", "/").body) == len(page)
