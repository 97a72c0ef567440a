"""A new metric is one record: with it alone, evaluation, report and terminal compute, compare and print the metric."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.estimates import difference_rows, metric_rows, scope_estimates
from ehrsequencing.evaluation.population import at_risk
from ehrsequencing.metrics.discrimination import cumulative_dynamic_auc
from ehrsequencing.metrics.outcomes import Metric
from ehrsequencing.metrics.registry import METRICS, register
from ehrsequencing.reporting.report import render
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.reporting.wording import interval, number
from helpers.comparison import CAUSES, HORIZONS, world
from helpers.recorded import MODELS, bare, recorded

SOMERS = Metric(
    key="somers",
    name="Somers",
    meaning="2 AUC − 1: 1 ranks without an error, 0 is a coin",
    of=lambda rows: 2 * cumulative_dynamic_auc(rows) - 1,
    better=1,
    compared=True,
    margin=0.04,
)


@pytest.fixture
def somers() -> Iterator[Metric]:
    register(SOMERS)
    yield SOMERS
    del METRICS["somers"]


def test_one_record_brings_a_metric_everywhere(somers: Metric) -> None:
    scope = world(0, 300, resamples=20)
    scope = replace(scope, risk={MODELS[0]: scope.risk["right"], MODELS[1]: scope.risk["dull"]})
    estimates = scope_estimates(scope, CAUSES)
    result = bare(recorded()) | {
        "causes": list(CAUSES),
        "horizons_days": HORIZONS.tolist(),
        "main": {"landmark_days": 0.0, "horizon_days": float(HORIZONS[-1])},
        "at_risk": [at_risk(scope, CAUSES)],
        "smooth_calibration": [],
        "models": list(scope.risk),
        "strongest": MODELS[1],
        "metrics": metric_rows(scope, estimates),
        "differences": difference_rows(scope, estimates, ours=MODELS[0], rivals=MODELS[1:2]),
    }
    key = ("model", "landmark_days", "cause", "horizon_days")
    ours = {tuple(row[k] for k in key): row for row in result["metrics"] if row["metric"] == "somers"}
    auc = {tuple(row[k] for k in key): row for row in result["metrics"] if row["metric"] == "auc"}
    assert ours.keys() == auc.keys()
    with_interval = [place for place, row in ours.items() if row["low"] is not None]
    assert with_interval
    for place in with_interval:
        assert ours[place]["value"] == pytest.approx(2 * auc[place]["value"] - 1)
    gaps = {tuple(row[k] for k in key): row for row in result["differences"] if row["metric"] == "somers"}
    place = next(place for place in with_interval if place[0] == result["models"][0])
    rival = (result["strongest"], *place[1:])
    assert gaps[rival]["value"] == pytest.approx(ours[place]["value"] - ours[rival]["value"])
    assert gaps[rival]["low"] <= gaps[rival]["value"] <= gaps[rival]["high"]
    page, lines = render(result), "\n".join(metric_lines(result))
    assert f'title="{somers.meaning}">Somers</th>' in page
    assert f"<dt>Somers</dt><dd>{somers.meaning}</dd>" in page
    landmark, horizon = Scores(result).main()
    told = ours[result["models"][0], landmark, result["causes"][0], horizon]  # the one in the terminal
    value, around = number(told["value"], ".3f"), interval(told["low"], told["high"], ".3f")
    assert "Somers" in lines
    assert f"{value} ({around})" in lines
    assert value in page
    assert around in page


def test_a_key_is_taken_once_and_a_comparison_needs_a_direction(somers: Metric) -> None:
    with pytest.raises(EhrseqError, match="key of another metric"):
        register(somers)
    with pytest.raises(EhrseqError, match="without a direction"):
        Metric(key="x", name="X", meaning="", of=lambda rows: np.zeros(1), compared=True)
    with pytest.raises(EhrseqError, match="has no function"):
        Metric(key="x", name="X", meaning="")
