"""Both pages by axe-core: nothing serious in light or dark, on a desk or on a telephone."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.reporting.report import ANSWER, DETAILS, render
from helpers.metrics_json import WIDE, complete

pytestmark = pytest.mark.slow
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core: of the package axe-playwright-python, or the file that AXE_JS names."""
    spec = importlib.util.find_spec("axe_playwright_python")
    path = Path(os.environ.get("AXE_JS", ""))
    if spec is not None and spec.submodule_search_locations:
        path = Path(spec.submodule_search_locations[0]) / "axe.min.js"
    if not path.is_file():
        pytest.skip("needs axe-core: pip install axe-playwright-python, or name axe.min.js in AXE_JS")
    return path.read_text(encoding="utf-8")


def violations(browser: Any, axe: str, page: str, *, width: int = 1400, dark: bool = False) -> dict[str, str]:
    """Rule → how grave, of what axe-core complains about; the page's policy, which forbids scripts, is passed by."""
    look = {"viewport": {"width": width, "height": 1500}, "color_scheme": "dark" if dark else "light"}
    with browser.new_context(**look, bypass_csp=True) as context:
        shown = context.new_page()
        shown.set_content(page)
        shown.add_script_tag(content=axe)
        found = shown.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return {row["id"]: row["impact"] for row in found["violations"]}


@pytest.mark.parametrize("page", [ANSWER, DETAILS])
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (500, True)])
def test_axe_finds_nothing_serious(browser: Any, axe: str, page: str, width: int, dark: bool) -> None:
    found = violations(browser, axe, render(complete(**WIDE), page), width=width, dark=dark)
    assert not [rule for rule, impact in found.items() if impact in GRAVE]


def test_axe_sees_a_text_too_pale_to_read(browser: Any, axe: str) -> None:
    page = render(complete(), ANSWER)
    broken = page.replace("--ink-2: #4a525c", "--ink-2: #c2c8cf")
    assert broken != page
    assert "color-contrast" in violations(browser, axe, broken)
