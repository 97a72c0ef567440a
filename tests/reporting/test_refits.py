"""What a reviewer asks about refits: how many settings were tried, and whether another training would say the same."""

import html
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.evaluation.context import QUESTIONS
from ehrsequencing.reporting.report import render
from helpers.command_line import ehrseq
from helpers.metrics_json import complete
from helpers.report_page import Page
from helpers.report_words import checklist


def text_of(metrics: dict[str, Any]) -> str:
    return html.unescape(Page(render(metrics)).text)


@pytest.mark.parametrize("trials", [0, 1, 1234])
def test_told_tuning_trials_are_in_the_card_and_the_checklist(trials: int) -> None:
    metrics = complete()
    metrics["checks"]["tuning_trials"] = trials
    text = text_of(metrics)
    assert f"Tuning trials {trials:,} " in text
    assert "Tuning trials (12c) in this report" in text
    assert f": {len(QUESTIONS)} to be filled in by the authors" in text
    assert "NOT PROVIDED" not in text


@pytest.mark.parametrize("checks", [None, {"tuning_trials": None}, {}])
def test_untold_tuning_trials_are_for_people_to_provide(checks: dict[str, Any] | None) -> None:
    metrics = complete()
    metrics["checks"] = checks
    text = text_of(metrics)
    assert "Tuning trials not told" in text
    assert " open: ".join(checklist().trials_item) in text
    assert "Tuning trials (12c) in this report" not in text
    assert f": {len(QUESTIONS) + 1} to be filled in by the authors" in text


def test_people_without_a_record_before_the_prediction_are_counted() -> None:
    metrics = complete()
    n = next(row["subjects"] for row in metrics["at_risk"] if row["landmark_days"] == 0)
    row = {"landmark_days": 0.0, "subjects": n, "without_record_before": n // 2, "first_record_later": 3}
    metrics["records_before"] = [row, {**row, "landmark_days": 365.25, "without_record_before": 0}]
    text = (
        text_of(metrics).split("Subjects who have no record before the prediction")[1].split("Counts from 1 to 10")[0]
    )
    assert "immortal time" in text
    assert "at the index" in text
    assert "1 year after" not in text
    assert f"at the index {shareable_count(n // 2)} <11" in text
    metrics["records_before"] = None
    assert "immortal time" not in text_of(metrics)


@pytest.mark.slow
def test_trials_are_told_when_the_run_is_judged(sim_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(sim_run, run)
    for given, told in ((["evaluation.tuning_trials=27"], 27), ([], None)):
        done = ehrseq("evaluate", run, "--baselines", "none", "evaluation.bootstrap=0", *given)
        assert done.exit_code == 0, done.output
        assert json.loads((run / "metrics.json").read_text())["checks"]["tuning_trials"] == told
        page = (run / "report-details.html").read_text()
        assert ("not told (evaluation.tuning_trials=N" in page) == (told is None)
    assert ehrseq("evaluate", run, "evaluation.tuning_trials=-1").exit_code == 2
