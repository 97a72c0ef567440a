"""The explorer's page in Chromium, opened as a file: controls, keys, policy, accessibility, hostile data."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.explorer.codes import Explorer
from ehrsequencing.explorer.page import page
from helpers.browser import grave_violations, probed
from helpers.explorer_page import read_page

SMALLEST = """Math.min(...[...document.querySelectorAll("svg.fig text, .change span")].map((text) => {
  const svg = text.closest("svg"), scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  return scale * parseFloat(getComputedStyle(text).fontSize);
}))"""  # pixels

Opener = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Opens a page from a file; at the end nothing was requested and nothing was complained about."""
    contexts, asked, complaints = [], [], []

    def opener(text: str, *, width: int = 1280, dark: bool = False) -> Any:
        path = tmp_path / f"{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        viewport = {"width": width, "height": 1000}
        contexts.append(browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light"))
        shown = contexts[-1].new_page()
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("console", lambda message: complaints.append(message.text))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.goto(path.as_uri())
        shown.wait_for_selector("body[data-state=ready]", timeout=120_000)
        return shown

    yield opener
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith("file://")] == []
    assert len(asked) == len(contexts)
    assert complaints == []


def text_of(shown: Any, selector: str) -> str:
    return str(shown.locator(selector).first.inner_text())


def test_a_patient_is_shown_and_a_code_is_struck(open_page: Opener, explorer_page: str) -> None:
    shown = open_page(explorer_page)
    assert "30 of 30 patients" in text_of(shown, "#count")
    assert "predicted risk of" in text_of(shown, "#sentence")
    shown.keyboard.press("x")
    assert " without." in text_of(shown, "#edit")
    assert not {"false", "null", "undefined"} & set(text_of(shown, "#edit").split())
    assert shown.locator("#curves .edit-mark").count() == len(read_page(explorer_page).about["horizons_days"])
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("x")
    assert shown.locator("#targets tr.struck").count() == 2
    assert "This adds what each does alone" in text_of(shown, "#edit")
    shown.keyboard.press("u")
    shown.keyboard.press("u")
    assert "Choose a code" in text_of(shown, "#edit")


def test_the_first_patient_is_in_sight_and_an_empty_search_is_said(open_page: Opener, explorer_page: str) -> None:
    shown = open_page(explorer_page)
    row = shown.locator("#rows .row[aria-selected=true]")
    assert row.locator("b").inner_text() in text_of(shown, "#name")
    outer, inner = shown.locator("#list").bounding_box(), row.bounding_box()
    assert outer["y"] <= inner["y"] <= outer["y"] + outer["height"] - inner["height"]
    shown.fill("#search", "no such code")
    assert text_of(shown, "#count") == "No patient has “no such code” in the name or the record"


LABELS = """() => [...document.querySelectorAll("svg.fig")].flatMap((figure) => {
  const texts = [...figure.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  return texts.flatMap(([a, p], k) => texts.slice(k + 1).filter(([b, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
    && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4)
    .map(([b]) => `${a} | ${b}`));
})"""


def test_labels_do_not_collide(open_page: Opener, explorer_page: str) -> None:
    shown = open_page(explorer_page)
    for _ in range(12):
        assert shown.evaluate(LABELS) == []
        shown.keyboard.press("j")


STRUCK = """() => {
  const figure = document.querySelector("#timeline svg"), box = (one) => one.getBoundingClientRect();
  const rows = [...figure.querySelectorAll("line.grid")].map(box);
  const columns = [...figure.querySelectorAll("line.happened, line.ended, line.now")].map(box);
  const inside = (low, at, high) => low + 1 < at && at < high - 1;
  const texts = [...figure.querySelectorAll("text.muted, text.value")].map((one) => [one, box(one)]);
  return texts.filter(([one, b]) =>
    columns.some((line) => inside(b.left, line.left, b.right) && line.top < b.bottom)
    || (one.matches(".muted") && rows.some((line) => inside(b.top, line.top, b.bottom))))
    .map(([one]) => one.textContent);
}"""


@pytest.mark.parametrize("width", [390, 1400])
def test_the_timeline_is_whole_and_no_line_goes_through_its_words(
    width: int, open_page: Opener, explorer_page: str
) -> None:
    shown, futures = open_page(explorer_page, width=width), 0
    for _ in range(8):
        for key in ["ArrowLeft"] * 4:
            shown.keyboard.press(key)
            assert shown.evaluate(STRUCK) == []
            futures += shown.locator("#timeline text.muted", has_text="the future").count()
        assert shown.evaluate("document.querySelector('#timeline svg').getBoundingClientRect().right") <= width
        shown.keyboard.press("j")
    assert futures


# ---- slow: everything else ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_control_works(open_page: Opener, explorer_page: str) -> None:
    shown = open_page(explorer_page)

    def changes(selector: str, act: Callable[[], Any]) -> None:
        before = shown.locator(selector).inner_html()
        act()
        shown.wait_for_timeout(60)
        assert shown.locator(selector).inner_html() != before, selector

    for selector, act in [
        ("#sentence", lambda: shown.select_option("#cause", "1")),
        ("#sentence", lambda: shown.select_option("#horizon", "0")),
        ("#histogram", lambda: shown.select_option("#moment", "1")),
        ("#sentence", lambda: shown.select_option("#cause", "0")),
        ("#histogram", lambda: shown.select_option("#moment", "0")),
        ("#rows", lambda: shown.click("[data-order=patient]")),
        ("#rows", lambda: shown.click("[data-order=change]")),
        ("#rows", lambda: shown.click("[data-order=surprise]")),
        ("#rows", lambda: shown.click("[data-order=risk]")),
        ("#name", lambda: shown.click("#rows .row >> nth=4")),
        ("#targets", lambda: shown.click("[data-kind=visits]")),
        ("#targets", lambda: shown.click("[data-kind=codes]")),
        ("#targets", lambda: shown.fill("#filter", "LAB")),
        ("#targets", lambda: shown.fill("#filter", "")),
        ("#edit", lambda: shown.click("#targets .strike >> nth=1")),
        ("#edit", lambda: shown.click("#undo")),
        ("#edit", lambda: shown.click("#targets .strike >> nth=0")),
        ("#edit", lambda: shown.click("#clear")),
        ("#rows", lambda: shown.fill("#search", "P03")),
        ("#rows", lambda: shown.fill("#search", "")),
    ]:
        changes(selector, act)
    box = shown.locator("#histogram svg").bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 60, steps=4)
    shown.mouse.up()
    assert float(shown.input_value("#low")) > 0
    changes("#rows", lambda: shown.click("#unbrush"))
    changes("#histogram", lambda: shown.locator("#histogram summary").click())
    assert shown.locator("#histogram table tbody tr").count() > 1
    shown.click("#help-open")
    assert shown.locator("#help").is_visible()
    shown.click("#help-close")
    shown.locator("#time").focus()
    if shown.locator("#time").is_enabled():
        changes("#time-words", lambda: shown.keyboard.press("ArrowLeft"))


@pytest.mark.slow
def test_the_keyboard_is_enough(open_page: Opener, explorer_page: str) -> None:
    shown = open_page(explorer_page)
    long = shown.evaluate("[...document.querySelectorAll('#rows .row')].length")
    for _ in range(long):  # a patient with several prediction times
        if int(shown.get_attribute("#time", "max") or 0) > 0:
            break
        shown.keyboard.press("j")
    before = text_of(shown, "#time-words")
    shown.keyboard.press("ArrowLeft")
    assert text_of(shown, "#time-words") != before
    shown.keyboard.press("ArrowRight")
    assert text_of(shown, "#time-words") == before
    shown.keyboard.press("ArrowDown")
    assert shown.evaluate("document.activeElement.className") == "strike"
    shown.keyboard.press("x")
    assert shown.locator("#targets tr.struck").count() == 1
    shown.keyboard.press("u")
    assert shown.locator("#targets tr.struck").count() == 0
    shown.keyboard.press("/")
    assert shown.evaluate("document.activeElement.id") == "search"
    shown.keyboard.type("x/?u")  # letters typed into a field are letters
    assert shown.input_value("#search") == "x/?u"
    shown.fill("#search", "")
    shown.keyboard.press("Escape")
    shown.keyboard.press("Shift+?")
    assert shown.locator("#help").is_visible()
    shown.keyboard.press("Escape")
    name = text_of(shown, "#name")
    shown.locator("#list").focus()
    shown.keyboard.press("ArrowDown")
    assert text_of(shown, "#name") != name


@pytest.mark.slow
def test_the_script_reads_two_hundred_removals_as_they_were_computed(open_page: Opener, explorer: Explorer) -> None:
    with probed():
        shown = open_page(page(explorer))
    removals, removed, chance = explorer.removals, explorer.removed, np.random.default_rng(1)
    assert removed is not None
    rows = explorer.gathered.patients.row_offsets
    for edit in chance.choice(len(removals), 200, replace=False).tolist():
        patient = int(np.searchsorted(removals.edit_offsets, edit, side="right")) - 1
        at, stop = removals.answer_offsets[edit : edit + 2].tolist()
        answer = int(chance.integers(at, stop))
        row = int(rows[patient] + removals.first_row[edit] + answer - at)
        found = shown.evaluate("([p, t, r]) => probe.removedRisk(p, t, r)", [patient, int(removals.target[edit]), row])
        assert np.abs(np.array(found) - removed[answer]).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (800, True), (390, True)])
def test_the_page_fits_and_axe_finds_nothing_serious(browser: Any, explorer_page: str, width: int, dark: bool) -> None:
    look = {"viewport": {"width": width, "height": 1000}, "color_scheme": "dark" if dark else "light"}
    with browser.new_context(**look, bypass_csp=True) as context:
        shown = context.new_page()
        shown.set_content(explorer_page)
        shown.wait_for_selector("body[data-state=ready]")
        shown.keyboard.press("x")
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.evaluate(SMALLEST) >= 10
        assert grave_violations(shown) == set()
