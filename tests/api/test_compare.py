"""Any models on plain arrays: the numbers of riskRegression's Score, and what stands beside them."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from reference.r_oracles import FILE, risk_rows

R = json.loads(FILE.read_text(encoding="utf-8"))["score"]
HORIZON = 365.0


def compared(rows: pd.DataFrame, cause: Any = None, **options: Any) -> Any:
    given = {"bootstrap": 0, "horizon": HORIZON} | options
    return eh.compare_risks({"a": rows.a, "b": rows.b}, rows.time, rows.cause if cause is None else cause, **given)


@pytest.mark.parametrize("kind", ["competing", "single"])
def test_the_numbers_are_those_of_score(kind: str) -> None:
    rows = risk_rows()
    found = compared(rows, rows.cause if kind == "competing" else rows.cause == 1).metrics
    for metric in ("auc", "brier", "ipa"):
        np.testing.assert_allclose(found[found.metric == metric].value, R[kind][metric], atol=1e-8)
    c = eh.metrics.concordance(rows.time, rows.cause, rows.a, horizon=HORIZON)
    if kind == "competing":
        assert found[(found.metric == "c") & (found.model == "a")].value.iloc[0] == pytest.approx(c)


def test_somebody_censored_at_the_horizon_is_event_free_there() -> None:
    """Score leaves such people out: its definition parts from ours here only."""
    rows = risk_rows()
    at = rows.assign(time=rows.time.where(rows.index != rows.index[rows.cause == 0][0], HORIZON))
    later = at.assign(time=at.time.where(at.time != HORIZON, HORIZON + 1e-6))
    columns = ["model", "metric", "value"]
    pd.testing.assert_frame_equal(compared(at).metrics[columns], compared(later).metrics[columns])


def test_calibration_in_the_large_is_that_of_aalen_and_johansen() -> None:
    rows = risk_rows()
    found = compared(rows).metrics.set_index(["model", "metric"]).value
    observed = eh.metrics.cumulative_incidence(rows.time, rows.cause, at=[HORIZON])[0]
    assert found["a", "aj"] == pytest.approx(abs(rows.a.mean() - observed))
    assert abs(found["a", "oe"] - 1) < 0.1
    every = np.stack([rows.a, (1 - rows.a) * 0.2], axis=1)
    own = eh.compare_risks({"a": every}, rows.time, rows.cause, horizon="365d", bootstrap=0).metrics
    oe = eh.metrics.observed_over_expected(rows.time, rows.cause, rows.a, horizon=HORIZON)
    assert own[own.metric == "oe"].value.iloc[0] == pytest.approx(oe)


def test_intervals_resample_people_and_differences_are_paired() -> None:
    rows = risk_rows()
    plain = compared(rows, bootstrap=100)
    twice = pd.concat([rows, rows])
    clustered = compared(twice, bootstrap=100, subject=np.r_[np.arange(500), np.arange(500)])
    apart = compared(twice, bootstrap=100)

    def width(found: Any, table: str = "metrics") -> float:
        row = getattr(found, table).query("metric == 'auc'").iloc[0]
        return float(row.high - row.low)

    assert width(clustered) == pytest.approx(width(plain), rel=0.1)
    assert width(apart) < 0.85 * width(plain)
    assert width(plain, "differences") < width(plain)
    assert plain.differences.against.unique().tolist() == ["b"]


def test_operating_points_are_those_of_a_table_of_four() -> None:
    rows = risk_rows().query("time > 365 or cause > 0")  # nobody is censored before the horizon
    points = compared(rows, thresholds=[0.2, 0.5]).operating_points().query("model == 'a'").set_index("threshold")
    event = (rows.cause == 1) & (rows.time <= HORIZON)
    for threshold, row in points.iterrows():
        flagged = rows.a >= threshold
        assert row.flagged == pytest.approx(flagged.mean())
        assert row.sensitivity == pytest.approx(flagged[event].mean())
        assert row.ppv == pytest.approx(event[flagged].mean())
        assert row.number_needed == pytest.approx(1 / event[flagged].mean())
        benefit = (flagged & event).mean() - (flagged & ~event).mean() * threshold / (1 - threshold)
        assert row.net_benefit == pytest.approx(benefit)


def test_pictures_and_tables(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    found = compared(risk_rows(), bootstrap=30)
    curve = found.calibration()
    assert curve.model.unique().tolist() == ["a", "b"]
    ax = found.plot_calibration()
    assert len(ax.patches) == 10  # the histogram of the first model's risks
    assert max(bar.get_height() for bar in ax.patches) == pytest.approx(0.15 * ax.get_ylim()[1], rel=1e-6)
    ax = found.plot_decision_curve()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b", "act on everyone"]
    assert "tabular" in found.to_latex()
    assert repr(found).startswith("Accuracy of each model for event by 365d")
    assert found.subgroups().empty
    with pytest.raises(EhrseqError, match="no curves by risk group"):
        found.plot_incidence()
    with pytest.raises(AttributeError, match=r"use ev\.calibration"):
        getattr(found, "calibration_curve")  # noqa: B009


@pytest.mark.parametrize(
    ("risks", "message"),
    [
        ({"short": [0.1]}, "short: does not fit the times .give one risk a row"),
        ({"wide": np.full((500, 3), 0.1)}, "wide: does not fit the times"),
        ({"percent": np.full(500, 40.0)}, "outside 0 to 1"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(risks: Any, message: str) -> None:
    rows = risk_rows()
    with pytest.raises(EhrseqError, match=message):
        eh.compare_risks(risks, rows.time, rows.cause, horizon=HORIZON, bootstrap=0)
