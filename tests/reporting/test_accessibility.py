"""Both pages by axe-core: nothing serious in light or dark, on a desk or on a telephone."""

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.reporting.report import ANSWER, DETAILS, render
from helpers.metrics_json import WIDE, complete

pytestmark = pytest.mark.slow
GRAVE = ("serious", "critical")
RUN = """<script>axe.run(document, {resultTypes: ["violations"]}).then((found) => {
  const out = document.createElement("pre");
  out.id = "axe";
  out.textContent = JSON.stringify(found.violations.map((v) => ({id: v.id, impact: v.impact, node: v.nodes[0].html})));
  document.body.replaceChildren(out);
});</script>"""


def axe() -> str:
    """The script of axe-core: of the package axe-playwright-python, or the file that AXE_JS names."""
    spec = importlib.util.find_spec("axe_playwright_python")
    path = Path(os.environ.get("AXE_JS", ""))
    if spec is not None and spec.submodule_search_locations:
        path = Path(spec.submodule_search_locations[0]) / "axe.min.js"
    if not path.is_file():
        pytest.skip("needs axe-core: pip install axe-playwright-python, or name axe.min.js in AXE_JS")
    return path.read_text(encoding="utf-8")


def violations(page: str, folder: Path, *, width: int, dark: bool) -> list[dict[str, Any]]:
    """What axe-core complains about; the page's policy, which forbids scripts, is taken out of the copy."""
    script = axe()
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), "")
    if not browser:
        pytest.skip("needs a browser: apt-get install chromium")
    page, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert count == 1
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script>{RUN}</body>"), encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        f"--user-data-dir={folder / 'home'}", f"--window-size={width},1500", "--virtual-time-budget=60000",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []), "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = re.search(r'<pre id="axe">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr[-2000:]
    told: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return told


@pytest.mark.parametrize("page", [ANSWER, DETAILS])
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (500, True)])
def test_axe_finds_nothing_serious(page: str, width: int, dark: bool, tmp_path: Path) -> None:
    found = violations(render(complete(**WIDE), page), tmp_path, width=width, dark=dark)
    assert [row for row in found if row["impact"] in GRAVE] == []


def test_axe_sees_a_text_too_pale_to_read(tmp_path: Path) -> None:
    broken = render(complete(), ANSWER).replace("--ink-2: #4a525c", "--ink-2: #c2c8cf")
    assert "color-contrast" in {row["id"] for row in violations(broken, tmp_path, width=1400, dark=False)}
