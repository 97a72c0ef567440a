"""The report as a browser lays it out: nothing wider than the screen, nothing refused, every section visible."""

import functools
import html
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.reporting.report import render
from helpers.metrics_json import ORACLE, WIDE, complete, example

WIDTHS = (375, 1100)  # a telephone, a desk
# Measured in frames of exactly these widths, since a window cannot be narrower than 500. Only `details` may be closed;
# only what lies in a box that scrolls by itself may reach beyond the frame.
MEASURE = """<!doctype html><title>measure</title><pre id="out"></pre>
<script>
const found = {};
function measure(width, page) {
  const scrolls = (node) => node !== page.body && (getComputedStyle(node).overflowX !== "visible"
    || scrolls(node.parentElement));
  const past = [...page.body.querySelectorAll("*")].filter((node) => !node.closest("svg")
    && node.getBoundingClientRect().right > width + 1 && !scrolls(node));
  const flat = [...page.querySelectorAll("section, figure svg")].filter((node) =>
    !node.closest("details:not([open])") && node.getBoundingClientRect().height < 20);
  found[width] = {
    width: page.documentElement.scrollWidth, height: page.documentElement.scrollHeight,
    past: past.map((node) => node.tagName + "." + node.className).slice(0, 5), flat: flat.length,
    sections: page.querySelectorAll("section").length,
  };
  document.getElementById("out").textContent = JSON.stringify(found);
}
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px; border: 0`;
  frame.onload = () => measure(width, frame.contentDocument);
  frame.src = "report.html";
  document.body.append(frame);
}
</script>
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
    )
    if not found:
        pytest.skip("needs a browser: apt-get install chromium")
    return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the loopback address at which it can be read."""
    folder = tmp_path / "page"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def laid_out(browser: str, served: tuple[Path, str], report: str) -> tuple[dict[str, Any], list[str]]:
    """What the browser measured at each width, and what it complained about."""
    folder, address = served
    (folder / "report.html").write_text(report)
    (folder / "measure.html").write_text(MEASURE.replace("WIDTHS", str([*WIDTHS])))
    (folder / "home").mkdir(exist_ok=True)
    command = [
        browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--window-size=1400,1000", f"--user-data-dir={folder / 'home'}", "--enable-logging=stderr",
        "--virtual-time-budget=20000", "--dump-dom", f"{address}/measure.html",
    ]  # fmt: skip
    if os.geteuid() == 0:  # its sandbox refuses to run as root; the page is ours
        command.insert(1, "--no-sandbox")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"HOME": str(folder)})
    found = re.search(r'<pre id="out">(.+?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr[-2000:]
    measured: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert set(measured) == {str(width) for width in WIDTHS}
    return measured, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


KINDS = {
    "plain": lambda: example(),
    "everything, two causes": lambda: complete(**WIDE),
    "a simulation's": lambda: complete(oracle=ORACLE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_fits_the_screen(browser: str, served: tuple[Path, str], kind: str) -> None:
    measured, complaints = laid_out(browser, served, render(KINDS[kind]()))
    for width in WIDTHS:
        found = measured[str(width)]
        assert found["past"] == []
        assert found["width"] <= width
        assert found["flat"] == 0  # no section and no figure collapsed
        assert found["sections"] >= 15
        assert found["height"] > 3000
    assert complaints == []


MUTANTS = {
    "a table that does not scroll": (
        "</main>",
        "<table><tr><td><p style='width: 1300px'>wide</p></td></tr></table></main>",
    ),
    "a figure of a fixed width": ("</main>", "<div style='width: 1200px; height: 30px'></div></main>"),
    "a script": ("</main>", "<script>1</script></main>"),
    "a picture from elsewhere": ("</main>", "<img src='picture.png' alt=''></main>"),
    "a collapsed section": ("</main>", "<section></section></main>"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_page_is_seen(browser: str, served: tuple[Path, str], mutant: str) -> None:
    before, after = MUTANTS[mutant]
    report = render(example())
    assert report.count(before) == 1
    measured, complaints = laid_out(browser, served, report.replace(before, after))
    narrow = measured["375"]
    assert narrow["width"] > 375 or narrow["past"] or narrow["flat"] or complaints
