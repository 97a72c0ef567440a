"""The explorer from the server: the same page as the file, and how a browser gets the token."""

import html
import subprocess
import sys
from pathlib import Path

import pytest

from ehrsequencing.explorer import ExplorerSettings, collect, page
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.serve.predictor import Predictor
from ehrsequencing.serve.security import Access
from helpers.serve import Client, running

TOKEN = "correct horse battery staple"


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
