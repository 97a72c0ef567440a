"""One patient at the desk: the page in Chromium, `/explain` beside `run.explain`, and what is never listed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ehrsequencing as eh
from ehrsequencing.prediction.run import Run
from ehrsequencing.serve.pages import MOST_CODES, form_of, frequent_codes
from ehrsequencing.serve.predictor import Predictor
from helpers.browser import grave_violations
from helpers.command_line import ehrseq
from helpers.meds import Row, us, write_meds
from helpers.serve import Client, running
from helpers.settings import TINY

DAY = "2026-11-28"


@pytest.fixture(scope="module")
def own_run(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `sim_run`, from the command: it holds what its training people were like."""
    out = tmp_path_factory.mktemp("desk") / "run"
    ehrseq("train", sim_prepared, "--out", out, *TINY)
    return out


@pytest.fixture(scope="module")
def desk(own_run: Path, sim_data: Path) -> Iterator[Client]:
    with running(Predictor(Run(own_run), sim_data)) as client:
        yield client


@pytest.fixture
def shown(browser: Any, desk: Client) -> Iterator[Any]:
    """The page, with the bodies that it sent; it asks this server only and complains of nothing."""
    # axe-core is a script from elsewhere
    opened = browser.new_context(viewport={"width": 390, "height": 844}, bypass_csp=True).new_page()
    opened.sent, complaints, home = list[Any](), list[str](), f"http://127.0.0.1:{desk.port}"
    opened.on("request", lambda request: opened.sent.append((request.url.removeprefix(home), request.post_data)))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(f"{home}/patient")
    ready(opened)
    yield opened
    assert {path for path, _ in opened.sent} <= {"/patient", "/predict", "/explain"}
    assert complaints == []
    opened.context.close()


def ready(shown: Any) -> None:
    shown.wait_for_selector("body[data-state=ready]", timeout=60_000)


def risk(shown: Any) -> float:
    return float(shown.get_attribute("#sentence", "data-risk"))


def test_what_is_typed_moves_the_risk_to_that_of_predict(shown: Any, own_run: Path, tmp_path: Path) -> None:
    assert shown.inner_text("#sentence").startswith("Type an age, a number or a code")
    assert shown.inner_text("#moved") == ""
    assert [path for path, _ in shown.sent] == ["/patient"], "an empty form asks nobody"
    shown.fill("#age", "20")
    ready(shown)
    shown.wait_for_function("document.querySelector('#sentence').textContent.startsWith('Risk of')")
    before = risk(shown)
    shown.fill("#age", "")
    shown.select_option("#horizon", label="1 year")
    shown.fill("#day", DAY)
    shown.focus("#age")
    for words in ("71", "Tab", "ArrowDown", "Tab", "Tab"):  # age, sex, the day of time zero; by keys alone
        shown.keyboard.press(words) if len(words) > 2 else shown.keyboard.type(words)
    shown.focus("#Numbers1")
    shown.keyboard.type("95.5")
    shown.wait_for_selector("body[data-state=waiting]")
    ready(shown)
    assert risk(shown) != before
    marker = shown.locator("label[for=Numbers1]").inner_text().split("\n")[0]
    assert marker.split("usually")[0].strip() in shown.inner_text("#moved")

    (body,) = [json.loads(body) for path, body in shown.sent if path == "/predict"][-1:]
    codes = {row["code"]: row for row in body["rows"]}
    assert {"MEDS_BIRTH", "ENROLLMENT"} <= codes.keys()
    assert {"SEX//F", "SEX//M"} & codes.keys()
    assert [row["time"] for row in body["rows"] if row["numeric_value"] == 95.5] == [DAY]
    sent = [Row(1, row["time"] and us(row["time"]), row["code"], row["numeric_value"]) for row in body["rows"]]
    one = write_meds(tmp_path / "one", sent)
    found = eh.load(own_run).predict(one, at=DAY, horizons=["1y"], progress=False)
    assert f"Risk of outcome within 1 year: {100 * risk(shown):.2g}%" in shown.inner_text("#sentence")
    assert risk(shown) == pytest.approx(found["outcome_1y"].item(), abs=1e-6)


def test_a_code_and_its_day_are_reached_by_the_keyboard(shown: Any) -> None:
    shown.fill("#day", DAY)
    shown.focus("#Codes1")
    shown.keyboard.press("Space")
    ready(shown)
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.id") == "Codes1-day", "the day of a code that is ticked comes next"
    label = shown.evaluate("document.activeElement.ariaLabel")
    assert label.startswith("Day of ")
    shown.fill("#Codes1-day", "2027-01-01")
    ready(shown)
    assert "this is not possible" in shown.inner_text("#sentence"), "after the day of the prediction"
    shown.fill("#Codes1-day", "2025-01-01")
    ready(shown)
    shown.wait_for_function("document.querySelector('#sentence').textContent.startsWith('Risk of')")
    shown.click("button[type=reset]")
    ready(shown)
    assert not shown.is_checked("#Codes1")


def test_a_record_unlike_the_training_peoples_is_said_so(shown: Any) -> None:
    shown.fill("#Numbers1", "100000")
    ready(shown)
    shown.wait_for_function("document.querySelector('#unlike').textContent.includes('outside the 1st to 99th')")


def test_what_is_typed_and_not_used_is_said_with_its_number(shown: Any) -> None:
    """A number of before the birth that follows from the age: its row is dropped."""
    shown.fill("#day", DAY)
    shown.fill("#age", "30")
    shown.fill("#Numbers1", "90")
    shown.fill("#Numbers1-day", "2020-01-01")
    ready(shown)
    shown.wait_for_function("document.querySelector('#sentence').textContent.startsWith('Risk of')")
    assert shown.is_hidden("#fixed"), shown.inner_text("#fixed")
    shown.fill("#age", "3")
    shown.fill("#Numbers1-day", "2010-01-01")
    ready(shown)
    shown.wait_for_function("document.querySelector('#fixed').textContent.includes('rows before birth were dropped')")
    shown.click("button[type=reset]")
    shown.wait_for_selector("#fixed", state="hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_whole_and_a_reader_reads_it(shown: Any, scheme: str) -> None:
    shown.emulate_media(color_scheme=scheme)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    assert grave_violations(shown) == set()
    names = "[...document.querySelectorAll('input, select')].filter((one) => !one.labels.length && !one.ariaLabel)"
    assert shown.evaluate(f"{names}.length") == 0


def test_explain_is_that_of_the_run(
    desk: Client, sim_rows: dict[int, list[dict[str, Any]]], own_run: Path, sim_data: Path
) -> None:
    asked = eh.load(own_run).predict(sim_data, progress=False)["subject_id"].tolist()
    living = [s for s in asked if "MEDS_DEATH" not in {row["code"] for row in sim_rows[s]}]
    subject = next(s for s in living if len(sim_rows[s]) < 100)
    until = max(row["time"] for rows in sim_rows.values() for row in rows if row["time"])  # where the data ends
    reply = desk.ask("POST", "/explain", {"rows": sim_rows[subject], "cause": "death", "until": until}).json
    why = eh.load(own_run).explain(sim_data, subject=subject, cause="death", kind="code", progress=False)
    expected = why.set_index("code")["change_in_risk"]
    assert {one["code"] for one in reply["moved"]} == set(expected.index)
    for one in reply["moved"]:
        assert one["change"] == pytest.approx(expected[one["code"]], abs=1e-6)
    assert desk.ask("POST", "/explain", {"rows": sim_rows[subject], "cause": "nobody"}).status == 422
    rows = [{"time": f"{2000 + k // 12}-{k % 12 + 1:02}-01", "code": "ENROLLMENT"} for k in range(101)]
    assert desk.ask("POST", "/explain", {"rows": rows}).status == 413


def test_codes_of_few_people_are_not_listed(own_run: Path) -> None:
    run = Run(own_run)
    assert run.study.vocabulary.min_subjects == 5
    known = dict(zip(run.vocabulary.codes, run.vocabulary.share.tolist(), strict=True))
    assert any(share == 0 for share in known.values()), "the run knows codes of fewer than a tenth of the people"
    people = run.training_people
    listed = frequent_codes(run)
    assert listed == sorted(listed, key=lambda code: (-people["codes"].get(code, [0])[0], -known[code], code))
    assert all(known[code] * people["people"] >= 11 for code in listed)
    assert len(form_of(Predictor(run))["items"]) <= MOST_CODES
    nobody = replace(run.vocabulary, share=np.zeros(0))
    vars(run).update(vocabulary=nobody, training_people=None)
    assert frequent_codes(run) == [], "nothing says how many people have a code"
