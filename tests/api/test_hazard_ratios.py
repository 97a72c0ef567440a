"""Hazard ratios that can be printed: those of R on the same rows, whether from a frame, a table or records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ehrsequencing as eh
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.core.errors import EhrseqError
from reference.r_oracles import FILE, flat_rows

R = json.loads(FILE.read_text(encoding="utf-8"))["cox"]
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
    check(eh.cox(flat_rows(), start="start", cause=cause, ties=ties, **NAMED), R["table"][ties][cause])


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_a_run_on_pbc2_gives_the_numbers_of_r(pbc2: TrainedRun, ties: Any) -> None:
    of = pbc2.cox(["bili", "age", "sex", "albumin"], log=["bili"], units={"age": 10}, ties=ties)
    check(of, R["pbc2"][ties]["death"])
    assert of.index.tolist() == ["log LAB//serBilir", "age per 10", "GENDER: male vs female", "LAB//albumin"]
    check(
        pbc2.cox(["LAB//serBilir", "chol"], cause="transplant", log=["LAB//serBilir"], ties=ties),
        R["pbc2"][ties]["transplant"],
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
