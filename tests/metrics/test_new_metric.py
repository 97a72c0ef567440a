"""A new metric is one record: with it alone, evaluation, report and terminal compute, compare and print the metric."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.metrics.discrimination import cumulative_dynamic_auc
from ehrsequencing.metrics.outcomes import Metric
from ehrsequencing.metrics.registry import METRICS, register
from ehrsequencing.reporting.report import render
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.reporting.wording import number

GINI = Metric(
    key="gini", name="Gini", meaning="2 AUC − 1: 1 ranks without an error, 0 is a coin",
    of=lambda rows: 2 * cumulative_dynamic_auc(rows) - 1, better=1, compared=True, margin=0.04,
)  # fmt: skip


@pytest.fixture
def gini() -> Iterator[Metric]:
    register(GINI)
    yield GINI
    del METRICS["gini"]


def test_one_record_brings_a_metric_everywhere(gini: Metric, sim_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sim_run, tmp_path / "run"))
    result = evaluate(
        run,
        split="train",
        settings=EvaluationConfig(explained_subjects=0, baselines="fast", bootstrap=20, subgroups=()),
    )
    key = ("model", "landmark_days", "cause", "horizon_days")
    ours = {tuple(row[k] for k in key): row for row in result["metrics"] if row["metric"] == "gini"}
    auc = {tuple(row[k] for k in key): row for row in result["metrics"] if row["metric"] == "auc"}
    assert ours.keys() == auc.keys()
    with_interval = [place for place, row in ours.items() if row["low"] is not None]
    assert with_interval
    for place in with_interval:
        for limit in ("value", "low", "high"):
            assert ours[place][limit] == pytest.approx(2 * auc[place][limit] - 1)
    gaps = {tuple(row[k] for k in key): row for row in result["differences"] if row["metric"] == "gini"}
    place = next(place for place in with_interval if place[0] == result["models"][0])
    rival = (result["strongest"], *place[1:])
    assert gaps[rival]["value"] == pytest.approx(ours[place]["value"] - ours[rival]["value"])
    assert gaps[rival]["low"] <= gaps[rival]["value"] <= gaps[rival]["high"]
    page, lines = render(result), "\n".join(metric_lines(result))
    assert f'title="{gini.meaning}">Gini</th>' in page
    assert f"<dt>Gini</dt><dd>{gini.meaning}</dd>" in page
    landmark, horizon = Scores(result).main()
    told = ours[result["models"][0], landmark, result["causes"][0], horizon]  # the one in the terminal
    for text in (page, lines):
        assert "Gini" in text
        assert number(told["value"], ".3f") in text
    limits = f"{number(told['low'], '.3f')} to {number(told['high'], '.3f')}"
    assert limits in page
    assert f"({limits})" in lines


def test_a_key_is_taken_once_and_a_comparison_needs_a_direction(gini: Metric) -> None:
    with pytest.raises(EhrseqError, match="key of another metric"):
        register(gini)
    with pytest.raises(EhrseqError, match="without a direction"):
        Metric(key="x", name="X", meaning="", of=lambda rows: np.zeros(1), compared=True)
    with pytest.raises(EhrseqError, match="has no function"):
        Metric(key="x", name="X", meaning="")
