"""The report as a browser lays it out: on a desk, on a telephone and on paper."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.reporting.report import ANSWER, DETAILS, render
from helpers.browser import grave_violations
from helpers.recorded import bare, recorded, simulation

INCH = 96  # pixels
MARGIN = 2 * 12 / 25.4  # inches: the page's own, left and right
PAPER = {"Letter": 8.5, "A4": 210 / 25.4}  # width in inches
# What is laid out wrongly. Only what lies in a box that scrolls by itself may reach beyond the page's width.
MEASURE = """(width) => {
  const shown = (node) => !node.closest("details:not([open]) > :not(summary)");
  const scrolls = (node) => node !== document.body
    && (getComputedStyle(node).overflowX !== "visible" || scrolls(node.parentElement));
  const nodes = [...document.body.querySelectorAll("*")].filter((node) => !node.closest("svg") && shown(node));
  const name = (node) => `${node.tagName}.${node.className.baseVal ?? node.className}`;
  const boxes = [];  // every line of text, every figure
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || parent.closest("svg, nav.top") || !shown(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects()) boxes.push([parent, box]);
  }
  const figures = [...document.querySelectorAll("svg.fig")].filter(shown);
  for (const figure of figures) boxes.push([figure, figure.getBoundingClientRect()]);
  const over = [];
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, b] = [boxes[i][1], boxes[j][1]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 4) over.push([boxes[i][0].textContent.slice(0, 40), boxes[j][0].textContent.slice(0, 40)]);
  }
  const tables = [...document.querySelectorAll(".answer-page .scroll")];
  const cut = tables.filter((box) => box.scrollWidth > box.clientWidth + 1);
  const sizes = figures.flatMap((figure) => [...figure.querySelectorAll("text")].map((text) =>
    parseFloat(getComputedStyle(text).fontSize) * figure.getBoundingClientRect().width / figure.viewBox.baseVal.width));
  return {
    past: nodes.filter((one) => one.getBoundingClientRect().right > width + 1 && !scrolls(one)).map(name).slice(0, 5),
    wide: document.documentElement.scrollWidth, over: over.slice(0, 5), cut: cut.map((box) => box.ariaLabel),
    flat: [...document.querySelectorAll("section")].filter((node) => node.getBoundingClientRect().height < 60).length,
    text: Math.min(...sizes), open: document.querySelectorAll("details[open]").length,
  };
}"""
RIGHT = {"past": [], "over": [], "cut": [], "flat": 0, "open": 0}


def fitting(metrics: dict[str, Any]) -> dict[str, Any]:
    """Without what a telephone shows too small or cut: operating points, differences in NLL, incidence."""
    for row in metrics["decision"]:
        del row["ppv"]
    gaps = [row for row in metrics["differences"] if row["metric"] != "nll"]
    return metrics | {"differences": gaps, "incidence": []}


KINDS = {"a simulation": fitting(simulation()), "everything, two causes": fitting(recorded("wide"))}
SCREENS = (390, 1400)


@pytest.fixture
def complaints() -> list[str]:
    """What the page complains of in the console."""
    return []


@pytest.fixture
def tab(browser: Any, complaints: list[str]) -> Iterator[Any]:
    with browser.new_context() as context:
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        yield opened


def show(tab: Any, page: str, folder: Path) -> None:
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    tab.goto(path.as_uri())


def laid_out(tab: Any, width: int) -> dict[str, Any]:
    """What is wrong with the page that is shown, at a width."""
    tab.set_viewport_size({"width": width, "height": 900})
    found: dict[str, Any] = tab.evaluate(MEASURE, width)
    return found


@pytest.mark.parametrize("file", [ANSWER, DETAILS])
@pytest.mark.parametrize("kind", KINDS)
def test_the_report_fits_the_screen_and_asks_for_nothing(
    tab: Any, complaints: list[str], tmp_path: Path, kind: str, file: str
) -> None:
    show(tab, render(KINDS[kind], file), tmp_path)
    for width in SCREENS:
        found = laid_out(tab, width)
        assert found | RIGHT == found
        assert found["wide"] <= width
        assert found["text"] >= 10
    assert complaints == []


@pytest.mark.parametrize(("kind", "paper"), list(zip(KINDS, PAPER, strict=True)))
def test_nothing_overlaps_on_paper_and_the_answer_begins_on_the_first_page(
    tab: Any, tmp_path: Path, kind: str, paper: str
) -> None:
    show(tab, render(KINDS[kind], ANSWER), tmp_path)
    tab.emulate_media(media="print")
    found = laid_out(tab, int(INCH * (PAPER[paper] - MARGIN)))
    assert found | RIGHT == found
    pages = pieces_of_text(tab.pdf(format=paper, prefer_css_page_size=False))
    assert len(pages) <= 8
    assert pages[0] > 0.3 * max(pages)
    whole = tab.content()
    tab.set_content(re.sub(r"@page \{.*\}", "", whole))  # without the line at the foot of each page
    bare = pieces_of_text(tab.pdf(format=paper, prefer_css_page_size=False))
    assert "counter(page)" in whole
    assert sum(pages) > sum(bare) + len(pages)
    assert pages[-1] > 0.02 * max(pages)


def pieces_of_text(pdf: bytes) -> list[int]:
    """How many pieces of text each page of a PDF has."""
    objects = dict(re.findall(rb"(?ms)^(\d+) 0 obj\n(.*?)\nendobj", pdf))
    found = []
    for page in objects.values():
        if re.search(rb"/Type /Page\b", page):
            number = re.search(rb"/Contents (\d+) 0 R", page)
            stream = objects[number[1]].partition(b"stream\n")[2].rpartition(b"\nendstream")[0]
            found.append(len(re.findall(rb"T[jJ]\b", zlib.decompress(stream))))
    return found


MUTANTS = {
    "a table that is cut": ("</main>", "<div class=scroll><p style='width: 900px'>wide</p></div></main>"),
    "a figure of a fixed width": ("</main>", "<div style='width: 1200px; height: 30px'></div></main>"),
    "a collapsed section": ("</main>", "<section></section></main>"),
    "text upon text": ("</main>", "<p>first</p><p style='margin-top: -30px'>second</p></main>"),
    "small letters": ("</style>", "svg.fig { font-size: 9px }</style>"),
}


def test_a_broken_page_is_seen(tab: Any, complaints: list[str], tmp_path: Path) -> None:
    page = render(bare(recorded()), ANSWER)
    for mutant, (before, after) in MUTANTS.items():
        show(tab, page.replace(before, after, 1), tmp_path)
        found = laid_out(tab, SCREENS[0])
        assert found | RIGHT != found or found["wide"] > SCREENS[0] or found["text"] < 10, mutant
    for foreign in ("<script>1</script>", "<img src='picture.png' alt=''>"):
        complaints.clear()
        show(tab, page.replace("</main>", foreign), tmp_path)
        assert complaints, foreign


def grave(browser: Any, page: str, *, width: int = 1400, dark: bool = False) -> set[str]:
    look = {"viewport": {"width": width, "height": 1500}, "color_scheme": "dark" if dark else "light"}
    with browser.new_context(**look, bypass_csp=True) as context:
        shown = context.new_page()
        shown.set_content(page)
        return grave_violations(shown)


@pytest.mark.slow
@pytest.mark.parametrize("page", [ANSWER, DETAILS])
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (500, True)])
def test_axe_finds_nothing_serious(browser: Any, page: str, width: int, dark: bool) -> None:
    assert grave(browser, render(recorded("wide"), page), width=width, dark=dark) == set()


@pytest.mark.slow
def test_axe_sees_a_text_too_pale_to_read(browser: Any) -> None:
    broken = render(recorded(), ANSWER).replace("--ink-2: #4a525c", "--ink-2: #c2c8cf")
    assert "color-contrast" in grave(browser, broken)
