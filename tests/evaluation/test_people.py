"""People, not rows: one frequent visitor is one person; one main place; who was never observed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.api.paper import cohort_table
from ehrsequencing.evaluation.comparison import Comparison, main_place
from ehrsequencing.evaluation.curves import calibration_rows, cells, decision_rows, incidence_rows, smooth_rows
from ehrsequencing.evaluation.estimates import over_time_rows
from ehrsequencing.evaluation.follow_up import at_risk, unobserved_tenths
from ehrsequencing.records.prepared import Prepared
from helpers.audit import hospital_rows, make_set
from helpers.comparison import CAUSES, HORIZONS, world
from helpers.meds import DAY_US, Row


def at_index(people: int, rows_each: int, *, resamples: int = 0) -> Comparison:
    """A landmark of a task with every index."""
    return world(0, people, rows_each=rows_each, resamples=resamples)


def test_six_people_with_a_hundred_rows_have_no_curve() -> None:
    scope = at_index(6, 100)
    assert (scope.cause == 1).sum() > 100
    assert list(cells(scope, CAUSES)) == []
    assert calibration_rows(scope, CAUSES, models=["right"]) == []
    assert decision_rows(scope, CAUSES, models=["right"], thresholds=[0.1]) == []
    assert smooth_rows(scope, CAUSES, models=["right"], seed=0)[0] == []
    assert all(row["groups"] == [] for row in incidence_rows(scope, CAUSES, model="right", horizon_days=600.0))
    told = at_risk(scope, CAUSES)
    assert (told["subjects"], told["evaluated"]) == (6, [6, 6])
    assert max(told["events"]["outcome"]) <= 6


def test_table_1_counts_people_with_several_indexes_once(tmp_path: Path) -> None:
    rows = hospital_rows()
    rows += [Row(row.subject, row.time + 300 * DAY_US, "INDEX") for row in rows if row.code == "INDEX" and row.time]
    prepared = Prepared(make_set(tmp_path, rows, index={"code": "INDEX", "which": "every"}))
    at_index = prepared.records("hospital", "train").at_landmark(0.0)
    people = len(np.unique(prepared.rows("hospital", "train").subject[at_index]))
    assert people < len(at_index)
    table = cohort_table(prepared, "hospital", landmark=0.0, is_simulated=True).frame
    assert table.loc["subjects", "train"] == f"{people:,}"


def test_counts_and_bands_are_those_of_people() -> None:
    """Four copies of each row change no band and no count."""
    once = world(1, 300, resamples=60)
    copies = np.repeat(np.arange(len(once)), 4)
    four = replace(
        once, subject=once.subject[copies], duration_days=once.duration_days[copies], cause=once.cause[copies],
        risk={name: risk[copies] for name, risk in once.risk.items()},
    )  # fmt: skip
    for draw in (
        lambda scope: incidence_rows(scope, CAUSES, model="right", horizon_days=600.0),
        lambda scope: calibration_rows(scope, CAUSES, models=["right"])[:2],
    ):
        for one, other in zip(draw(once), draw(four), strict=True):
            left, right = (row.get("groups", [row]) for row in (one, other))
            assert left
            for a, b in zip(left, right, strict=True):
                for name in ("n", "low", "high", "observed"):
                    assert a[name] == pytest.approx(b[name])
                assert a.get("at_risk") == b.get("at_risk")
    (decided,) = {
        tuple(row["above"]) for row in decision_rows(four, CAUSES[:1], models=["right"], thresholds=[0.2])[:1]
    }
    assert decided == (int((once.risk["right"][:, 0, 0] >= 0.2).sum()),)


def test_right_risks_stay_under_the_chance_of_the_aalen_johansen_error_and_wrong_ones_do_not() -> None:
    days = np.linspace(50.0, 600.0, 12)
    grid = world(5, 1500, resamples=100, horizons=days)
    risks = {"right": grid.risk["right"], "off": np.clip(1.3 * grid.risk["right"], 0, 1)}
    rows = over_time_rows(replace(grid, risk=risks), CAUSES, days[-1:], strongest=["right", "off"])
    found = {(row["model"], row["metric"]): row["value"] for row in rows if row["cause"] == "outcome"}
    assert found["right", "aj"] < found["right", "aj_null"] < 0.05
    assert found["off", "aj"] > found["off", "aj_null"]
    assert found["off", "aj"] == pytest.approx(0.3 * risks["right"][:, 0].mean(), abs=0.03)


def test_the_main_place_has_most_events_among_those_who_could_be_followed() -> None:
    early, late = world(2, 400), replace(world(3, 100), landmark_days=365.25)
    assert main_place([early, late], "right") == (0.0, 600.0)
    # follow-up ends by design before 600 days for most, so that the shorter horizon has more
    short = replace(early, potential_days=np.where(np.arange(400) < 350, 300.0, np.inf))
    assert main_place([short, late], "right")[1] == 200.0
    everywhere = replace(early, landmark_days=None)
    assert main_place([everywhere], "right") == (None, 600.0)


def test_whoever_was_never_observed_is_warned_of() -> None:
    scope = world(4, 1000)
    ages = np.linspace(40, 80, 1000)
    old = ages > 74
    ended = np.where(old, np.minimum(scope.duration_days, 100.0), scope.duration_days)
    cause = np.where(old & (scope.duration_days > 100), 0, scope.cause)
    unseen = replace(scope, duration_days=ended, cause=cause)
    records = OfAges(ages)
    assert unobserved_tenths(scope, records) == []
    found = unobserved_tenths(unseen, records)
    assert len(found) == 2
    assert "censoring: {age: 80y}" in found[0]
    # once the task names the end, those who could not be followed are left out
    named = replace(unseen, potential_days=np.where(old, 100.0, np.inf))
    assert unobserved_tenths(named, records) == []
    assert [len(part) for part in named.parts()] == [int((~old).sum())]
    assert float(HORIZONS[0]) > 100


class OfAges:
    """Prediction times at the index of people of some ages."""

    def __init__(self, ages: np.ndarray) -> None:
        self.age_years, self.rows = ages, self

    def at_landmark(self, landmark_days: float) -> np.ndarray:
        return np.arange(len(self.age_years))
