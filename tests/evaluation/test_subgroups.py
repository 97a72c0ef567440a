"""People, not rows: one frequent visitor is one person; one main place; who was never observed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ehrsequencing.config import load_study
from ehrsequencing.core.disclosure import enough_people
from ehrsequencing.evaluation.comparison import Comparison, draw_subjects, main_place
from ehrsequencing.evaluation.context import Context, input_rates
from ehrsequencing.evaluation.curves import cells, decision_rows, incidence_rows, ratio_rows, smooth_rows
from ehrsequencing.evaluation.estimates import over_time_rows
from ehrsequencing.evaluation.population import Population, at_risk, unobserved_tenths
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.evaluation.subgroups import NOT_RECORDED, cohort_table, groups_of_rows, subgroup_rows
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.results.redaction import redact_rows
from helpers.audit import hospital_rows, make_set
from helpers.comparison import CAUSES, HORIZONS, metric_table, world
from helpers.meds import DAY_US, Row
from helpers.visits import one_row_each, timelines_of
from reference.r_oracles import risk_rows


def at_index(people: int, rows_each: int, *, resamples: int = 0) -> Comparison:
    """A landmark of a task with every index."""
    return world(0, people, rows_each=rows_each, resamples=resamples)


def test_six_people_with_a_hundred_rows_have_no_curve() -> None:
    scope = at_index(6, 100)
    assert (scope.cause == 1).sum() > 100
    assert list(cells(scope, CAUSES)) == []
    assert decision_rows(scope, CAUSES, models=["right"], thresholds=[0.1]) == []
    assert smooth_rows(scope, CAUSES, models=["right"], seed=0)[0] == []
    assert all(row["groups"] == [] for row in incidence_rows(scope, CAUSES, model="right", horizon_days=600.0))
    told = at_risk(scope, CAUSES)
    assert (told["subjects"], told["evaluated"]) == (6, [6, 6])
    assert max(told["events"]["outcome"]) <= 6


def test_ratios_hold_each_event_in_its_part_of_time_and_tenth_of_risk() -> None:
    """Constant hazards of 1 to 5 in 1,000 days, doubled in truth from day 100 on: O/E by counting day by day."""
    draw, n = np.random.default_rng(0), 20_000
    rate = draw.choice(np.arange(1, 6) / 1000, n)
    first, then = draw.exponential(1 / rate), 100 + draw.exponential(0.5 / rate)
    event, leaves = np.where(first < 100, first, then), draw.uniform(0, 400, n)
    rows = one_row_each(
        n,
        row_offsets=np.arange(0, n + 1, 2),
        duration_days=np.minimum(event, leaves),
        cause=(event <= leaves).astype(np.int64),
    )
    knots = np.array([50.0, 100.0, 200.0])
    risk = 1 - np.exp(-rate[:, None, None] * knots)
    found = ratio_rows(risk, knots, rows, ends_days=knots[1:], start_days=0.0)
    assert [(row["until_days"], row["tenth"]) for row in found] == [(d, t) for d in (100.0, 200.0) for t in range(1, 6)]
    for row in found:
        own, (begin, end) = rate == row["tenth"] / 1000, (row["from_days"], row["until_days"])
        had = own & (rows.cause == 1) & (rows.duration_days > begin) & (rows.duration_days <= end)
        days = np.clip(rows.duration_days[own], begin, end) - begin
        assert row["oe"] == pytest.approx(had.sum() / (row["tenth"] / 1000 * days.sum()))
        assert row["oe"] == pytest.approx(1 if end == 100 else 2, rel=0.25)
        assert row["events"] == len(set((np.arange(n) // 2)[had]))
        assert row["n"] == len(set((np.arange(n) // 2)[own & (rows.duration_days > begin)]))
    first = {"duration_days": rows.duration_days[:500], "cause": rows.cause[:500]}
    some = one_row_each(500, row_offsets=np.arange(0, 501, 2), **first)
    few = ratio_rows(risk[:500], knots, some, ends_days=knots[1:], start_days=0.0)
    told = [(row["oe"] is not None, enough_people(row["events"], row["n"])) for row in few]
    assert set(told) == {(True, True), (False, False)}


def test_what_no_resample_can_vary_has_no_interval() -> None:
    """Fifteen people are flagged and all had the event: no certainty of a PPV of 1."""
    scope = world(1, 300, resamples=60)
    flagged = np.flatnonzero((scope.cause == 1) & (scope.duration_days <= HORIZONS[0]))[:15]
    risk = np.full_like(scope.risk["right"], 0.1)
    risk[flagged] = 0.9
    (row, *_) = decision_rows(replace(scope, risk={"a": risk}), CAUSES, models=["a"], thresholds=[0.5])
    assert (row["ppv"], row["ppv_low"], row["ppv_high"]) == ([1.0], [None], [None])
    assert 0 < row["sensitivity_low"][0] < row["sensitivity"][0] < row["sensitivity_high"][0] < 1
    assert 0 < row["flagged_low"][0] < row["flagged"][0] < row["flagged_high"][0] < 1


def test_table_1_counts_people_with_several_indexes_once(tmp_path: Path) -> None:
    rows = hospital_rows()
    rows += [Row(row.subject, row.time + 300 * DAY_US, "INDEX") for row in rows if row.code == "INDEX" and row.time]
    prepared = Prepared(make_set(tmp_path, rows, index={"code": "INDEX", "which": "every"}))
    at_index = prepared.records("hospital", "train").at_landmark(0.0)
    people = len(np.unique(prepared.rows("hospital", "train").subject[at_index]))
    assert people < len(at_index)
    source = Evaluated(
        name="nothing is predicted here",
        predictor=None,  # type: ignore[arg-type]
        where="",
        task=prepared.task("hospital"),
        study=load_study(),
        vocabulary=prepared.vocabulary,
        config={},
    )
    population = replace(Population.of_split(prepared, source.task, "held_out"), is_simulated=True)
    table = cohort_table(Context(source, population, prepared), 0.0)
    assert table["columns"] == ["train", "tuning", "held-out"]
    assert dict(table["rows"])["subjects"][0] == f"{people:,}"
    assert cohort_table(Context(source, population, None), 0.0) is None


def test_counts_and_bands_are_those_of_people() -> None:
    """Four copies of each row change no band and no count."""
    once = world(1, 300, resamples=60)
    copies = np.repeat(np.arange(len(once)), 4)
    four = replace(
        once,
        subject=once.subject[copies],
        duration_days=once.duration_days[copies],
        cause=once.cause[copies],
        risk={name: risk[copies] for name, risk in once.risk.items()},
    )
    for draw in (
        lambda scope: incidence_rows(scope, CAUSES, model="right", horizon_days=600.0),
        lambda scope: smooth_rows(scope, CAUSES, models=["right"], seed=0)[0][:2],
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
    both = replace(grid, risk=risks)
    rows = over_time_rows(both, CAUSES, days[-1:], fine=both)
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
    # a horizon that the task names is that of every headline, reached or not
    assert main_place([early, late], "right", 200.0) == (0.0, 200.0)
    short = replace(early, potential_days=np.full(400, 100.0))
    assert main_place([short], "right", 600.0) == (0.0, 600.0)


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


# ---- subgroups and rates of the inputs, by plain loops and by hand ---------------------------------------------------


def test_groups_by_hand() -> None:
    codes = ("GENDER//F", "GENDER//M", "RACE//A", "RACE//B", "SMOKER", "TRIAL", "[D]Chest pain")
    none = np.zeros(0)
    vocabulary = Vocabulary(
        (), codes, np.zeros(len(codes), bool), none.reshape(0, 129), none, none, load_study(None, []).values
    )
    static = [
        ["GENDER//F", "RACE//A", "TRIAL"],
        ["GENDER//M", "SMOKER", "TRIAL", "[D]Chest pain"],
        ["GENDER//F", "RACE//B", "TRIAL", "[D]Chest pain"],
        ["GENDER//F", "RACE//A", "RACE//B", "SMOKER", "[UNK]", "TRIAL"],
    ]
    timelines = replace(
        timelines_of([()] * len(static)),
        static_codes=np.array([vocabulary.index.get(code, 1) for own in static for code in own], dtype=np.int32),
        static_offsets=np.cumsum([0, *map(len, static)]),
    )
    records = TaskRecords(timelines, one_row_each(4, age_years=np.array([42.0, 49.9, 50.0, np.nan])))
    every = np.arange(4)
    groups = groups_of_rows(records, vocabulary, chosen=every)
    assert {name: levels.tolist() for name, levels in groups.items()} == {
        "age": ["40-49", "40-49", "50-59", "unknown"],
        "sex": ["F", "M", "F", "F"],
        "RACE": ["A", NOT_RECORDED, "B", "A"],
        "SMOKER": ["no", "yes", "no", "yes"],
        "[D]Chest pain": ["no", "yes", "yes", "no"],
    }  # TRIAL, which everybody is in, is no group
    some = groups_of_rows(records, vocabulary, chosen=np.array([3, 0, 0]))
    assert {name: levels.tolist() for name, levels in some.items()} == {
        "age": ["unknown", "40-49", "40-49"],
        "SMOKER": ["yes", "no", "no"],
    }


def test_a_subgroup_is_judged_by_its_own_rows() -> None:
    rng = np.random.default_rng(0)
    n, horizons = 600, np.array([30.0, 60.0])
    group = np.where(np.arange(n) % 3 == 0, "a", "b")
    duration = np.ceil(rng.exponential(np.where(group == "a", 40, 90)))
    cause = rng.integers(0, 3, n)
    risk = rng.uniform(0.01, 0.45, (n, 2, 2)).cumsum(axis=2)
    risk /= np.maximum(risk.sum(axis=1, keepdims=True), 1.0)
    scope = Comparison(0.0, np.arange(n), duration, cause, horizons, {"m": risk}, draw_subjects(n, 50, 0))
    rows = subgroup_rows(scope, {"kind": group}, ["x", "y"], model="m")
    assert len(rows) == 2 * 2 * 2
    whole = metric_table(duration, cause, risk, horizons)
    for row in rows:
        inside = group == row["level"]
        e, h = ["x", "y"].index(row["cause"]), horizons.tolist().index(row["horizon_days"])
        table = metric_table(duration[inside], cause[inside], risk[inside], horizons)
        assert row["n"] == inside.sum()
        assert row["events"] == int(((cause == e + 1) & (duration <= horizons[h]) & inside).sum())
        for name in ("auc", "brier", "oe"):
            assert row[name]["value"] == pytest.approx(table[name][e, h])
            assert row[name]["value"] != pytest.approx(whole[name][e, h])
            assert row[name]["low"] <= row[name]["value"] <= row[name]["high"]


def test_input_rates_are_those_of_plain_loops(prepared: Prepared) -> None:
    records = prepared.records("simulated", "tuning")
    timelines, rows = records.timelines, records.rows
    codes = np.array(timelines.codes)
    codes[::17] = 1  # some are unknown
    records, known = TaskRecords(replace(timelines, codes=codes), rows), list[int]()
    having = [s for s in range(len(timelines)) if rows.row_offsets[s] < rows.row_offsets[s + 1]]
    for s in having:  # the codes of the visits before the subject's last prediction time
        first = timelines.subject_offsets[s]
        until = first + rows.visits_before[rows.row_offsets[s + 1] - 1]
        known += codes[timelines.visit_offsets[first] : timelines.visit_offsets[until]].tolist()
    expected = {
        "subjects": len(having),
        "prediction_times": len(rows),
        "unknown_token_rate": np.mean([code < prepared.vocabulary.n_unknown for code in known]),
        "unknown_age_rate": float(np.isnan(rows.age_years).mean()),
    }
    found = input_rates(records, prepared.vocabulary)
    aged = ~np.isnan(rows.age_years)
    sides = [len(set(rows.subject[side].tolist())) for side in (~aged, aged)]
    assert found.pop("people")["unknown_age_rate"] == sides
    assert found == pytest.approx(expected)
    assert 0 < expected["unknown_token_rate"] < 0.2


# ---- groups of people are compared with the largest one, on the same resamples, unless few people would be told ------


def rows_of(sizes: dict[str, int]) -> list[dict]:
    """Rows of `subgroups` of the people of `risk_rows` in groups of these sizes, one after another."""
    people = risk_rows()
    scope = Comparison(
        0.0,
        np.arange(500),
        people.time.to_numpy(),
        people.cause.to_numpy(),
        np.array([365.0]),
        {"ours": np.stack([people.a, (1 - people.a) * 0.2], axis=1)[:, :, None]},
        draw_subjects(500, 100, 0),
    )
    levels = np.repeat(list(sizes), list(sizes.values()))
    return subgroup_rows(scope, {"group": levels}, ["event", "other"], model="ours")


def test_a_difference_is_paired_and_to_the_largest_group() -> None:
    large, small = (row for row in rows_of({"small": 180, "large": 320}) if row["cause"] == "event")
    assert large["level"] == "large"
    assert "auc_difference" not in large
    for name in ("oe", "auc", "brier"):
        gap = small[f"{name}_difference"]
        assert gap["value"] == pytest.approx(small[name]["value"] - large[name]["value"])
        assert gap["low"] < gap["value"] < gap["high"]
    widths = [(row["auc"]["high"] - row["auc"]["low"]) ** 2 for row in (small, large)]
    gap = small["auc_difference"]
    assert (gap["high"] - gap["low"]) ** 2 == pytest.approx(sum(widths), rel=0.6)


def test_no_difference_tells_the_metric_of_few_people() -> None:
    rows = rows_of({"large": 480, "few": 20})
    few = next(row for row in rows if row["level"] == "few" and row["cause"] == "event")
    assert few["auc_difference"]["value"] is None
    told = redact_rows({"rows": rows}, is_simulated=False)["rows"]
    hidden = [row for row in told if row.get("hidden")]
    assert hidden
    assert all(row["auc_difference"] is None for row in hidden if "auc_difference" in row)
