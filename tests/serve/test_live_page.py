"""The explorer from the server: the page, its free edits, and how a browser gets the token."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.explain import Edit, edited_risks
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.serve.predictor import Predictor
from ehrsequencing.serve.security import Access
from ehrsequencing.serve.service import LivePage, live_page
from helpers.browser import probed
from helpers.serve import Client, running

TOKEN = "correct horse battery staple"


@pytest.fixture(scope="module")
def live(sim_run: Path, sim_data: Path) -> LivePage:
    return live_page(NewRecords(Run(sim_run), sim_data), what_if=False)


@pytest.fixture(scope="module")
def page_client(live: LivePage) -> Iterator[Client]:
    with running(Predictor(live.explorer.run), Access(token=TOKEN), live) as found:
        yield found


def test_a_browser_gets_the_page_with_a_cookie(page_client: Client) -> None:
    assert page_client.ask("GET", "/").status == 401
    assert page_client.ask("GET", "/?token=wrong").status == 401
    assert page_client.ask("GET", "/version?token=correct%20horse%20battery%20staple").status == 401
    moved = page_client.ask("GET", "/?token=correct%20horse%20battery%20staple")
    assert (moved.status, moved.headers["location"]) == (303, "/")
    cookie = moved.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    page = page_client.ask("GET", "/", headers={"Cookie": cookie.split(";")[0]})
    assert page.status == 200
    text = html.unescape(page.body.decode())
    assert "connect-src 'self'" in text
    assert "default-src 'none'" in text
    assert page.headers["content-security-policy"] == "frame-ancestors 'none'"  # the page's own policy does the rest


def test_free_edits_are_exact_deletions(page_client: Client, live: LivePage) -> None:
    headers, run = {"Authorization": f"Bearer {TOKEN}"}, live.explorer.run
    moved = 0.0
    for patient in range(6):
        record, own = live.records[patient], live.explorer.codes_of(patient)
        shown, codes = next(iter(own.items()))
        visits = [0] if record.n_visits > 1 else []
        reply = page_client.ask("POST", "/edit", {"patient": patient, "codes": [shown], "visits": visits}, headers)
        edit = Edit(codes=frozenset(codes), visits=frozenset(visits))
        expected = edited_risks(run, record, [edit])[0]
        np.testing.assert_allclose(reply.json["risk"], expected, atol=1e-6)
        plain = page_client.ask("POST", "/edit", {"patient": patient}, headers)
        moved = max(moved, float(np.abs(np.array(plain.json["risk"]) - expected).max()))
    assert moved > 1e-4  # striking something changes something


@pytest.mark.parametrize(
    "body",
    [{"patient": 10**6}, {"patient": 0, "codes": [10**6]}, {"patient": 0, "visits": [10**6]}, {"patient": -1},
     {"patient": 0, "codes": [1] * 1001}, {"patient": 0, "more": 1}],
)  # fmt: skip
def test_edits_of_what_is_not_there_are_problems(page_client: Client, body: dict[str, object]) -> None:
    reply = page_client.ask("POST", "/edit", body, {"Authorization": f"Bearer {TOKEN}"})
    assert reply.status == 422
    assert reply.json["detail"]


@pytest.fixture
def shown(browser: Any, sim_run: Path, sim_data: Path) -> Iterator[tuple[Any, LivePage]]:
    """The page in Chromium, from a running server without a token; it may ask nobody else, and complain of nothing."""
    with probed():
        live = live_page(NewRecords(Run(sim_run), sim_data), what_if=False)
    with running(Predictor(live.explorer.run), Access(), live) as client:
        opened, asked, complaints = browser.new_page(), list[str](), list[str]()
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        home = f"http://127.0.0.1:{client.port}/"
        opened.goto(home)
        opened.wait_for_selector("body[data-state=ready]", timeout=120_000)
        yield opened, live
        assert {url.removeprefix(home) for url in asked} <= {"", "edit", "favicon.ico"}
        assert [text for text in complaints if "favicon" not in text] == []


@pytest.mark.slow
def test_two_hundred_free_edits_in_the_page_are_exact_deletions(shown: tuple[Any, LivePage]) -> None:
    """The answers that the page shows, for random sets of codes and visits, beside deletion in Python."""
    opened, live = shown
    chance, n_shown, worst, moved = np.random.default_rng(3), len(live.explorer.shown.names), 0.0, 0.0
    for _ in range(200):
        patient = int(chance.integers(len(live.records)))
        record, own = live.records[patient], live.explorer.codes_of(patient)
        codes = chance.choice(list(own), min(len(own), int(chance.integers(1, 4))), replace=False).tolist()
        visits = chance.choice(
            record.n_visits, min(record.n_visits - 1, int(chance.integers(3))), replace=False
        ).tolist()
        targets = [*codes, *(n_shown + visit for visit in visits)]
        found = opened.evaluate(
            """async ([patient, targets]) => {
              probe.selectPatient(patient);
              probe.state.struck = new Set(targets);
              probe.refreshEdit();
              while (!probe.live.risk && !probe.live.failed) await new Promise((done) => setTimeout(done, 5));
              return probe.live.risk;
            }""",
            [patient, targets],
        )
        names = frozenset(name for code in codes for name in own[code])
        plain, expected = edited_risks(live.explorer.run, record, [Edit(), Edit(codes=names, visits=frozenset(visits))])
        worst = max(worst, float(np.abs(np.array(found) - expected).max()))
        moved = max(moved, float(np.abs(plain - expected).max()))
    assert moved > 1e-3
    assert worst < 1e-6
