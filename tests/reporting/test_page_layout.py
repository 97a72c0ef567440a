"""The report as a browser lays it out: on a desk, on a telephone and on paper."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.reporting.report import ANSWER, DETAILS, render
from helpers.browser import a_browser
from helpers.metrics_json import ORACLE, WIDE, complete, example

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
KINDS = {"plain": example(), "everything, two causes": complete(**WIDE), "a simulation": complete(oracle=ORACLE)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with a_browser() as opened:
        yield opened


def laid_out(browser: Any, page: str, folder: Path, *, width: float, media: str = "screen") -> dict[str, Any]:
    """What is wrong with a page of a width; it must ask for nothing and complain of nothing."""
    path, complaints = folder / "page.html", []
    path.write_text(page, encoding="utf-8")
    context = browser.new_context(viewport={"width": int(width), "height": 900})
    shown = context.new_page()
    shown.on("console", lambda message: complaints.append(message.text))
    shown.emulate_media(media=media)
    shown.goto(path.as_uri())
    found: dict[str, Any] = shown.evaluate(MEASURE, int(width))
    context.close()
    assert complaints == []
    return found


@pytest.mark.parametrize("file", [ANSWER, DETAILS])
@pytest.mark.parametrize("kind", KINDS)
def test_the_report_fits_the_screen(browser: Any, tmp_path: Path, kind: str, file: str) -> None:
    page = render(KINDS[kind], file)
    for width in (390, 1400):
        found = laid_out(browser, page, tmp_path, width=width)
        assert found | RIGHT == found
        assert found["wide"] <= width
        assert found["text"] >= 10


@pytest.mark.parametrize("paper", PAPER)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_overlaps_on_paper_and_the_answer_begins_on_the_first_page(
    browser: Any, tmp_path: Path, kind: str, paper: str
) -> None:
    page = render(KINDS[kind], ANSWER)
    found = laid_out(browser, page, tmp_path, width=INCH * (PAPER[paper] - MARGIN), media="print")
    assert found | RIGHT == found
    pages = printed(browser, page, tmp_path, paper)
    assert len(pages) <= 8
    assert pages[0] > 0.3 * max(pages)
    assert pages[-1] > 0.02 * max(pages)


def printed(browser: Any, page: str, folder: Path, paper: str) -> list[int]:
    """How many pieces of text each page of the PDF has."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    shown = browser.new_page()
    shown.goto(path.as_uri())
    pdf = shown.pdf(format=paper, prefer_css_page_size=False)
    shown.close()
    objects = dict(re.findall(rb"(?ms)^(\d+) 0 obj\n(.*?)\nendobj", pdf))
    pages = [one for one in objects.values() if re.search(rb"/Type /Page\b", one)]
    found = []
    for one in pages:
        number = re.search(rb"/Contents (\d+) 0 R", one)
        assert number is not None
        stream = objects[number[1]].partition(b"stream\n")[2].rpartition(b"\nendstream")[0]
        found.append(len(re.findall(rb"T[jJ]\b", zlib.decompress(stream))))
    return found


MUTANTS = {
    "a table that is cut": ("</main>", "<div class=scroll><p style='width: 900px'>wide</p></div></main>"),
    "a figure of a fixed width": ("</main>", "<div style='width: 1200px; height: 30px'></div></main>"),
    "a collapsed section": ("</main>", "<section></section></main>"),
    "text upon text": ("</main>", "<p>first</p><p style='margin-top: -30px'>second</p></main>"),
    "small letters": ("</style>", "svg.fig { font-size: 9px }</style>"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_page_is_seen(browser: Any, tmp_path: Path, mutant: str) -> None:
    before, after = MUTANTS[mutant]
    page = render(complete(**WIDE), ANSWER)
    assert before in page
    found = laid_out(browser, page.replace(before, after, 1), tmp_path, width=390)
    assert found | RIGHT != found or found["wide"] > 390 or found["text"] < 10


def test_a_script_and_a_picture_from_elsewhere_are_refused(browser: Any, tmp_path: Path) -> None:
    for more in ("<script>1</script>", "<img src='picture.png' alt=''>"):
        with pytest.raises(AssertionError):
            laid_out(browser, render(example(), ANSWER).replace("</main>", more), tmp_path, width=390)
