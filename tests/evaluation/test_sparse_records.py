"""Records that say little: no births, one visit each, one code, no static codes. Every command must still work."""

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.command_line import ehrseq
from helpers.meds import DAY_US, YEAR_US, Row, us, write_meds

TASK = """name: t
index: {first_visit: true}
outcome: {out: OUT}
censoring: {code: END}
horizons: [90d, 1y]
landmarks: [0d]
"""
TINY = ("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.min_steps=2")
QUICK = ("evaluation.bootstrap=10", "evaluation.explained_subjects=20")
THOROUGH = ("--baselines", "all", "evaluation.censoring=cox", *QUICK)


def sparse_records(*, births: bool, visits: int, content: bool) -> tuple[list[Row], dict[int, str]]:
    """240 subjects; `content` gives them sex, a telling code, a lab and a constant number, else one code is all."""
    rng, rows, splits = np.random.default_rng(0), [], {}
    for subject in range(1, 241):
        splits[subject] = ("train", "train", "tuning", "held_out")[subject % 4]
        sick, start = rng.random() < 0.4, us("2015-01-01") + int(rng.integers(0, 300)) * DAY_US
        if births:
            rows.append(Row(subject, start - int(rng.integers(20, 80)) * YEAR_US, "MEDS_BIRTH"))
        if content:
            rows.append(Row(subject, None, "SEX//F" if rng.random() < 0.5 else "SEX//M"))
        for number in range(int(rng.integers(1, visits + 1))):
            time = start + number * 40 * DAY_US
            rows.append(Row(subject, time, "SEEN"))
            if content:
                rows += [Row(subject, time, "SICK" if sick else "WELL"), Row(subject, time, "CONSTANT", 5.0)]
                rows.append(Row(subject, time, "LAB", float(rng.normal() + sick)))
        if rng.random() < (0.7 if sick else 0.3):
            rows.append(Row(subject, start + int(visits * 40 + rng.integers(1, 400)) * DAY_US, "OUT"))
        rows.append(Row(subject, start + int(visits * 40 + 500 + rng.integers(0, 300)) * DAY_US, "END"))
    return rows, splits


@pytest.mark.parametrize(
    ("births", "visits", "content"),
    [
        pytest.param(False, 2, True, marks=pytest.mark.slow, id="no births"),
        pytest.param(True, 1, True, marks=pytest.mark.slow, id="one visit each"),
        pytest.param(False, 1, False, id="no births, one visit, one code, no sex"),
    ],
)
def test_records_that_say_little_are_evaluated(births: bool, visits: int, content: bool, tmp_path: Path) -> None:
    """The slow cases lack one thing each; the quick one shows that records which lack all of them are evaluated."""
    rows, splits = sparse_records(births=births, visits=visits, content=content)
    data, prepared, run = write_meds(tmp_path / "meds", rows, splits=splits), tmp_path / "set", tmp_path / "run"
    (tmp_path / "task.yaml").write_text(TASK)
    for arguments in (
        ("prepare", data, "--out", prepared, "--task", tmp_path / "task.yaml"),
        ("train", prepared, "--out", run, *TINY),
        ("evaluate", run, *THOROUGH),
        ("evaluate", run, "--data", data, "--baselines", "fast", *QUICK),
    ):
        done = ehrseq(*arguments)
        assert done.exit_code == 0, (arguments[0], done.output, done.exception)
    metrics = json.loads((run / "metrics-individual.json").read_text())
    assert {"boosted visits", "flat BEHRT", "landmark Cox", "age + sex"} <= set(metrics["models"])
    found = {(m["model"], m["metric"]) for m in metrics["metrics"] if m["value"] is not None}
    assert {(model, metric) for model in metrics["models"] for metric in ("brier", "oe", "ipa")} <= found
    unknown = metrics["inputs"]["by_split"]["held_out"]["unknown_age_rate"]
    assert unknown == (0.0 if births else 1.0)
    assert "boosted visits" in (run / "report-details.html").read_text()
