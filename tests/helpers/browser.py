"""A headless Chromium, and pages of the explorer that a test may ask from inside."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

NAMES = "removedRisk"
PROBE = f"\nglobalThis.probe = {{ {NAMES} }};"


@contextmanager
def a_browser() -> Iterator[Any]:
    """Debian's Chromium under Playwright; the test skips where one of them is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), "")
    if not path:
        pytest.skip("needs a browser: apt-get install chromium")
    with sync_api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


def grave_violations(shown: Any) -> set[str]:
    """What axe-core finds serious or critical on a page that is shown in a context with `bypass_csp=True`."""
    axe = pytest.importorskip("axe_playwright_python", reason="needs pip install axe-playwright-python")
    shown.add_script_tag(content=(Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = shown.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return {row["id"] for row in found["violations"] if row["impact"] in ("serious", "critical")}


@contextmanager
def probed() -> Iterator[None]:
    """Pages made inside have `globalThis.probe`, with which a test asks the page's own functions."""
    read_text = Path.read_text

    def with_probe(path: Path, encoding: str | None = None) -> str:
        return read_text(path, encoding) + (PROBE if path.name == "main.js" else "")

    with mock.patch.object(Path, "read_text", with_probe):
        yield
