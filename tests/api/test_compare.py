"""Any models on plain arrays: the numbers of riskRegression's Score, and what stands beside them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.core.errors import EhrseqError
from reference.r_oracles import FILE, flat_rows, risk_rows

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


# ---- hazard ratios that can be printed: those of R on the same rows, whether from a frame, a table or records --------


COX = json.loads(FILE.read_text(encoding="utf-8"))["cox"]
NAMED: dict[str, Any] = {
    "subject": "id",
    "time": "stop",
    "event": {"status": {1: "status_1", 2: "status_2"}},
    "covariates": ["age", "marker", "sex"],
    "units": {"age": 10},
    "log": ["marker"],
}
SMALL: dict[str, Any] = {
    "model": {"dim": 16, "heads": 2, "layers": 1},
    "training": {"epochs": 1, "min_steps": 2, "distillation": 0.0, "blend": False},
}


def check(table: pd.DataFrame, oracle: dict[str, list[float]]) -> None:
    for name in ("coef", "se", "robust_se"):
        np.testing.assert_allclose(table[name], oracle[name], atol=1e-6)
    tests = [*table.p_proportional, table.attrs["p_proportional"]]
    np.testing.assert_allclose(tests, oracle["p_proportional"], atol=1e-4)


def trained(data: Path, task: Any, out: Path) -> TrainedRun:
    return eh.fit(
        eh.prepare(data, task, out=out / "prepared", progress=False), out=out / "run", **SMALL, progress=False
    )


@pytest.fixture(scope="module")
def pbc2(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    task = Path(__file__).parents[2] / "examples" / "tasks" / "pbc2.yaml"
    return trained(real_data / "pbc2_meds", task, tmp_path_factory.mktemp("pbc2"))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("cause", ["status_1", "status_2"])
def test_a_frame_alone_gives_the_numbers_of_r(ties: Any, cause: str) -> None:
    check(eh.cox(flat_rows(), start="start", cause=cause, ties=ties, **NAMED), COX["table"][ties][cause])


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_a_run_on_pbc2_gives_the_numbers_of_r(pbc2: TrainedRun, ties: Any) -> None:
    of = pbc2.cox(["bili", "age", "sex", "albumin"], log=["bili"], units={"age": 10}, ties=ties)
    check(of, COX["pbc2"][ties]["death"])
    assert of.index.tolist() == ["log LAB//serBilir", "age per 10", "GENDER: male vs female", "LAB//albumin"]
    check(
        pbc2.cox(["LAB//serBilir", "chol"], cause="transplant", log=["LAB//serBilir"], ties=ties),
        COX["pbc2"][ties]["transplant"],
    )


def test_a_table_of_visits_its_dates_and_its_run_say_the_same(tmp_path: Path) -> None:
    """What is known at a visit counts until the next: as start–stop rows, as dates, and through records."""
    rows = flat_rows()
    ends = rows.groupby("id").tail(1).assign(start=lambda frame: frame["stop"], marker=np.nan)
    visits = pd.concat([rows.assign(status=0), ends]).sort_values(["id", "start"]).reset_index(drop=True)
    visits.loc[visits.index % 5 == 1, "marker"] = np.nan  # the value before it counts
    named = NAMED | {"time": "start"}
    table = eh.cox(visits, **named)
    start = visits.groupby("id")["start"].transform("min")
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(visits["start"] - start, unit="D")
    by_date = eh.cox(visits.assign(date=day), **named | {"time": "date"})
    clock = visits.assign(since=visits["start"] - start)
    filled = clock.assign(marker=clock.groupby("id")["marker"].ffill(), stop=clock.groupby("id")["since"].shift(-1))
    filled["status"] = filled.groupby("id")["status"].shift(-1)
    rows_of = eh.cox(filled.dropna(subset=["stop", "marker"]), start="since", **NAMED)
    pd.testing.assert_frame_equal(rows_of, by_date)
    assert not np.allclose(table.coef, by_date.coef)  # another clock: its own days
    arguments = {"subject": "id", "time": "since", "event": NAMED["event"], "age": "age", "horizons": ["10d"]}
    data, task = eh.from_table(clock.drop(columns=["start", "stop"]), out=tmp_path / "data", **arguments)
    run = trained(data, task, tmp_path)
    of_run = run.cox(["age", "marker", "sex"], units={"age": 10}, log=["marker"])
    assert of_run.index.tolist() == by_date.index.tolist()
    numbers = ["coef", "se", "robust_se", "p_proportional"]
    # a birth has a day, so that ages are a day off at most, and numbers of MEDS have seven digits
    np.testing.assert_allclose(of_run[numbers], by_date[numbers], atol=2e-3)
    table = run.cox(["marker"])
    moved = data.rename(tmp_path / "moved")
    with pytest.raises(EhrseqError, match=r"the records have moved .name them with data="):
        run.cox(["marker"])
    pd.testing.assert_frame_equal(run.cox(["marker"], data=moved), table)
    with pytest.raises(EhrseqError, match="holds other records"):
        run.cox(["marker"], data=eh.read_meds(moved).iloc[:-1])


def test_one_row_a_person_is_a_plain_cox_regression() -> None:
    rows = flat_rows().groupby("id").tail(1).assign(time=lambda frame: frame["stop"] - frame["start"])
    one = eh.cox(rows, **NAMED | {"time": "time"})
    same = eh.cox(rows.assign(zero=0), start="zero", **NAMED | {"time": "time"})
    pd.testing.assert_frame_equal(one, same)
    assert one.attrs["subjects"] == 150
    assert one.attrs["events"] == int((rows["status"] == 1).sum())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"covariates": ["one"], "log": (), "units": None}, "one: is the same in all rows"),
        ({"covariates": ["ages"]}, "no column 'ages' .*name one of age"),
        ({"units": {"years": 10}}, "there is no covariate 'years' .*use one of age, marker, sex"),
        ({"log": ["sez"]}, "there is no covariate 'sez'"),
        ({"cause": "death"}, "there is no cause 'death' .*status_1, status_2"),
        ({"ties": "exact"}, "there is no tie rule 'exact' .*efron, breslow"),
        (
            {"log": ["zero"], "covariates": ["zero"], "units": None},
            "zero: has infinite values, or logarithms of values of 0",
        ),
        ({"covariates": ["age", "twice"], "log": ()}, "no finite maximum .*follow from others"),
        ({"covariates": ["happens"], "log": (), "units": None}, "no finite maximum"),
    ],
)
def test_what_cannot_be_fitted_is_answered_by_its_name(wrong: dict[str, Any], message: str) -> None:
    rows = flat_rows()
    frame = rows.assign(
        zero=np.arange(len(rows)) % 2 * 1.0, one="x", twice=2 * rows["age"], happens=(rows["status"] == 1).astype(int)
    )
    with pytest.raises(EhrseqError, match=message):
        eh.cox(frame, start="start", **NAMED | wrong)


def test_a_name_that_several_codes_have_is_answered_by_them(here: Path) -> None:
    run = eh.load("runs/hf")
    with pytest.raises(EhrseqError, match=r"'a' names \d+ codes .*name one of "):
        run.cox(["a"])
    with pytest.raises(EhrseqError, match="there is no code 'troponin'"):
        run.cox(["age", "troponin"])
