"""The truth against closed forms, the population and the records themselves."""

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from ehrsequencing.config import load_study, load_task, read_settings, validated
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepare import prepare
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.simulate.dataset import split_of
from ehrsequencing.simulate.lives import Evidence, Lives
from ehrsequencing.simulate.process import Process
from ehrsequencing.simulate.records import Courses, simulate_courses
from ehrsequencing.simulate.truth import grid_days, true_curves
from helpers.simulate import busy_world

YEAR = 365.25
NO_EFFECTS = dict.fromkeys(
    (
        *("age_effect", "death_age_effect", "sex_effect", "death_sex_effect"),
        *("chronic_effect", "pair_effect", "gap_effect", "order_effect", "decay_effect", "lab_effect"),
    ),
    0.0,
)


def states_of(config: SimulationConfig, subjects: int, seed: int = 0) -> tuple[Process, Courses, Lives, Evidence]:
    """Life courses, the states at their prediction times, and what is known of the hidden."""
    process = Process(config)
    courses = simulate_courses(process, np.random.default_rng(seed), subjects)
    return process, courses, courses.visits.take(courses.is_at_risk), courses.evidence.take(courses.is_at_risk)


def test_constant_hazards_have_their_closed_form() -> None:
    """Without effects or visits: nothing until midnight, then F_e(u) = λ_e/λ · (1 − exp(−λ (u − midnight)))."""
    config = busy_world(**NO_EFFECTS, visits_per_year=0, truth_futures=4, outcome_per_year=0.2, death_per_year=0.1)
    process, _, lives, evidence = states_of(config, 50)
    fraction = np.random.default_rng(1).random(len(lives.day))
    edges = grid_days(7)
    curves = true_curves(
        process, lives, evidence, day_fraction=fraction, edges_days=edges, rng=np.random.default_rng(2)
    )
    exposed = np.maximum(edges - (1 - fraction[:, None]), 0)
    survival = np.exp(-0.3 / YEAR * exposed)
    np.testing.assert_allclose(curves.survival, survival, atol=1e-12)
    np.testing.assert_allclose(curves.incidence, np.stack([2 / 3 * (1 - survival), 1 / 3 * (1 - survival)]), atol=1e-12)
    np.testing.assert_allclose(curves.incidence_se, 0, atol=1e-12)
    hazards = curves.hazards_per_day(edges)
    np.testing.assert_allclose(
        hazards[:, :, 1:], np.array([0.2, 0.1])[:, None, None] / YEAR * np.ones_like(hazards)[:, :, 1:]
    )
    np.testing.assert_allclose(hazards[0, :, 0], 0.2 / YEAR * (6 + fraction) / 7)


def test_quiet_visit_days_have_their_closed_form() -> None:
    """With a known chance π of a visit, each day is survived with probability π + (1 − π) exp(−λ)."""
    config = busy_world(
        **NO_EFFECTS,
        visits_per_year=20,
        visit_rate_spread=0,
        stay_visit_share=0,
        outcome_per_year=0.2,
        death_per_year=0,
        truth_futures=1000,
    )
    process, _, lives, evidence = states_of(config, 8)
    lives, evidence = lives.take(np.arange(20)), evidence.take(np.arange(20))
    fraction, edges = np.full(20, 0.25), np.array([0.0, 0.5, 30.75, 365.75])
    curves = true_curves(
        process, lives, evidence, day_fraction=fraction, edges_days=edges, rng=np.random.default_rng(0)
    )
    chance, hazard = 1 - math.exp(-20 / YEAR), 0.2 / YEAR
    survival = (chance + (1 - chance) * math.exp(-hazard)) ** np.array([0, 0, 30, 365])
    np.testing.assert_allclose(curves.survival, np.tile(survival, (20, 1)), atol=5e-4)
    np.testing.assert_allclose(curves.survival.mean(axis=0), survival, atol=3e-5)
    np.testing.assert_array_equal(curves.incidence[1], 0)


@pytest.mark.parametrize("mutant", [False, True])
def test_a_known_future_of_halving_hazards_has_its_closed_form(mutant: bool) -> None:
    """No visits to come: the acute effect halves after 10, 20 and 30 days, and is gone after 40."""
    config = busy_world(
        **{**NO_EFFECTS, "decay_effect": 2.0},
        visits_per_year=0,
        decay_half_life_days=10,
        outcome_per_year=2,
        death_per_year=0,
        truth_futures=4,
        acute_visit_share=1,
    )
    process, courses, _, _ = states_of(config, 50)
    first = courses.visits.take(courses.visits.day == 0)
    first = replace(first, enrolment_day=np.zeros(50), visit_rate=np.zeros(50))
    edges = np.array([0.0, 5, 11, 15, 21, 31, 41, 60]) + 0.5
    edges[0] = 0
    curves = true_curves(
        process, first, Evidence.none(50), day_fraction=np.full(50, 0.5), edges_days=edges, rng=np.random.default_rng(0)
    )
    hours = np.concatenate([np.zeros(12), np.repeat([2, 1, 0.5, 0.25, 0], np.array([10, 10, 10, 10, 60]) * 24)])
    hazard = np.exp(hours) * 2 / YEAR / 24
    hazard[:12] = 0  # the rest of the visit's day
    if mutant:  # an effect as of the last visit
        hazard[12:] = np.exp(2) * 2 / YEAR / 24
    survival = np.exp(-np.concatenate([[0], np.cumsum(hazard)]))[np.round(edges * 24).astype(int)]
    worst = np.abs(curves.survival - survival).max()
    assert (worst > 0.1) if mutant else (worst < 1e-12)


def integrate(hazards: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """F_e at the edges from constant hazards per bin: (causes, rows, bins) → (causes, rows, edges)."""
    total = hazards.sum(axis=0)
    at_end = np.exp(-np.cumsum(total * np.diff(edges), axis=-1))
    at_start = np.concatenate([np.ones_like(at_end[:, :1]), at_end[:, :-1]], axis=-1)
    gained = hazards / np.where(total > 0, total, 1) * (at_start - at_end)
    return np.concatenate([np.zeros_like(gained[:, :, :1]), np.cumsum(gained, axis=-1)], axis=-1)


def test_the_standard_error_is_honest() -> None:
    """Over repetitions with other futures, risks scatter as `incidence_se` says."""
    process, _, lives, evidence = states_of(busy_world(truth_futures=32, frailty_spread=0.5), 30)
    lives, evidence = lives.take(np.arange(0, len(lives.day), 8)), evidence.take(np.arange(0, len(lives.day), 8))
    fraction = np.full(len(lives.day), 0.5)
    edges = np.array([0.0, 90.0, 1826.25])
    repeats = [
        true_curves(process, lives, evidence, day_fraction=fraction, edges_days=edges, rng=np.random.default_rng(seed))
        for seed in range(40)
    ]
    scatter = np.stack([curves.incidence for curves in repeats]).var(axis=0, ddof=1)[:, :, 1:]
    claimed = np.stack([curves.incidence_se for curves in repeats])[:, :, :, 1:] ** 2
    np.testing.assert_allclose(np.sqrt(scatter.mean(axis=1) / claimed.mean(axis=(0, 2))), 1, atol=0.15)


Population = tuple[Courses, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def population() -> Population:
    """Courses, the at-risk visits and their true curves: default mechanisms, few futures (their noise averages out)."""
    process, courses, lives, evidence = states_of(busy_world(truth_futures=8), 3500, seed=9)
    edges = np.array([0.0, 90.0, YEAR, 2 * YEAR, 5 * YEAR])
    fraction = np.full(len(lives.day), 0.5)
    curves = true_curves(
        process, lives, evidence, day_fraction=fraction, edges_days=edges, rng=np.random.default_rng(3)
    )
    return courses, np.flatnonzero(courses.is_at_risk), edges, curves.incidence[0]


def outcomes(courses: Courses, visits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Duration from noon of each visit's day, and cause."""
    subject = courses.subject[visits]
    ends = np.stack([courses.outcome_days, courses.death_days, courses.censoring_day])[:, subject]
    return ends.min(axis=0) - courses.visits.day[visits] - 0.5, (ends.argmin(axis=0) + 1) % 3


@pytest.mark.parametrize("mutant", ["", "stale", "shuffled"])
def test_the_truth_is_calibrated_at_every_level_of_risk(population: Population, mutant: str) -> None:
    """Fifths of true one-year risk at visits followed for a year: observed = expected; not so for spoilt truths."""
    courses, visits, edges, risk = population
    _, enrolled = np.unique(courses.subject[visits], return_index=True)
    year = risk[:, list(edges).index(YEAR)]
    if mutant == "stale":  # each subject's risk at enrolment, for ever
        year = np.repeat(year[enrolled], np.diff(np.append(enrolled, len(year))))
    if mutant == "shuffled":
        year = np.random.default_rng(0).permutation(year)
    duration, cause = outcomes(courses, visits)
    # Whether a year is observed depends on censoring alone.
    observed = courses.censoring_day[courses.subject[visits]] - courses.visits.day[visits] > YEAR + 1
    event = (duration <= YEAR) & (cause == 1)
    worst = 0.0
    for group in np.array_split(np.flatnonzero(observed)[np.argsort(year[observed], kind="stable")], 5):
        by_subject = np.bincount(courses.subject[visits[group]], weights=event[group] - year[group])
        worst = max(worst, abs(by_subject.sum()) / np.sqrt((by_subject**2).sum()))
    assert (worst > 5) if mutant else (worst < 3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("truth") / "all"
    simulate(out, subjects=300, seed=5, truth="all", config=busy_world(truth_futures=8))
    return out


def test_hazards_integrate_to_the_risks(data: Path) -> None:
    truth, table = pq.read_table(data / "truth.parquet"), pq.read_table(data / "truth_hazards.parquet")
    edges = grid_days(7)
    shape = (-1, 2, len(edges) - 1)
    hazards = table["hazard"].to_numpy().reshape(shape)
    np.testing.assert_array_equal(
        table["start_days"].to_numpy().reshape(shape), np.broadcast_to(edges[:-1], hazards.shape)
    )
    np.testing.assert_array_equal(
        table["stop_days"].to_numpy().reshape(shape), np.broadcast_to(edges[1:], hazards.shape)
    )
    incidence = integrate(hazards.swapaxes(0, 1), edges)[:, :, np.searchsorted(edges, [90, YEAR, 2 * YEAR, 5 * YEAR])]
    np.testing.assert_allclose(incidence.swapaxes(0, 1).ravel(), truth["risk"].to_numpy(), atol=1e-6)
    assert table["subject_id"].to_pylist()[:: shape[-1]] == truth["subject_id"].to_pylist()[::4]
    assert table["cause"].to_pylist()[:: shape[-1]] == truth["cause"].to_pylist()[::4]
    assert (truth["risk_se"].to_numpy() >= 0).all()


def cohort_of(data: Path, out: Path, *overrides: str) -> pa.Table:
    """What `prepare` makes of the simulation's own task."""
    prepare(data, out, study=load_study(None, list(overrides)), tasks=[load_task(data / "task.yaml")])
    return pq.read_table(out / "tasks" / "simulated" / "cohort.parquet").sort_by(
        [("subject_id", "ascending"), ("prediction_time", "ascending")]
    )


def times_of(table: pa.Table) -> set[tuple[int, datetime]]:
    return set(zip(table["subject_id"].to_pylist(), table["prediction_time"].to_pylist(), strict=True))


def test_prepare_asks_for_exactly_the_truth(tmp_path: Path) -> None:
    """By day, every prediction time has its truth; by encounter, all but the ends of days of admission are asked."""
    out = tmp_path / "out"
    simulate(out, subjects=300, seed=2, truth="all", config=busy_world(truth_futures=4, stay_visit_share=0.3))
    truth = times_of(pq.read_table(out / "truth.parquet"))
    by_day = cohort_of(out, tmp_path / "by day")
    assert len(by_day) == len(truth)
    assert times_of(by_day) == truth
    open_days, closed_days = set(), set()
    for shard in (out / "data").glob("*/*.parquet"):
        for row in pq.read_table(shard).to_pylist():
            if row["code"].startswith("STAY//"):
                (open_days if row["code"] == "STAY//ADMISSION" else closed_days).add(
                    (row["subject_id"], row["time"].date())
                )
    admissions = {(subject, time) for subject, time in truth if (subject, time.date()) in open_days - closed_days}
    by_encounter = times_of(cohort_of(out, tmp_path / "by encounter", "visits.by=encounter"))
    assert by_encounter == truth - admissions
    assert len(admissions) > 100


def test_by_default_only_the_held_out_have_a_truth(data: Path, tmp_path: Path) -> None:
    config = busy_world(truth_futures=8, follow_up_max_years=5)
    simulate(tmp_path / "out", subjects=300, seed=5, config=config)
    truth = pq.read_table(tmp_path / "out" / "truth.parquet")
    held_out = {int(subject) for subject in np.flatnonzero(split_of(np.arange(1, 301)) == 2) + 1}
    assert set(truth["subject_id"].to_pylist()) == held_out
    # No subject is followed beyond five years, so that no such horizon is asked for.
    assert set(truth["horizon_days"].to_pylist()) == {90, YEAR, 2 * YEAR}
    assert yaml.safe_load((tmp_path / "out" / "task.yaml").read_text())["horizons"] == ["90d", "1y", "2y"]


# ---- the knobs: what is no number is refused by name, and zero is a world like any other -----------------------------


KNOBS = {name: field for name, field in SimulationConfig.model_fields.items() if field.annotation is not bool}
QUICK = {"truth_futures": 4, "follow_up_min_years": 2.0, "follow_up_max_years": 3.0}


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
@pytest.mark.parametrize("knob", KNOBS)
def test_what_is_no_number_is_refused_by_name(knob: str, value: str) -> None:
    with pytest.raises(EhrseqError, match=f"settings: {knob}: .*finite number"):
        validated(SimulationConfig, read_settings(None, [f"{knob}={value}"]), where="settings")


EFFECTS = [(knob, end) for knob in KNOBS if knob.endswith("_effect") for end in ("ge", "le")]


@pytest.mark.parametrize(
    ("effect", "end"), [pytest.param(*one, marks=[pytest.mark.slow] * (n % 5 > 0)) for n, one in enumerate(EFFECTS)]
)
def test_the_largest_effects_overflow_nowhere_and_larger_ones_are_refused(
    effect: str, end: str, tmp_path: Path
) -> None:
    """Warnings are errors here: an overflow would be one."""
    bound = next(getattr(at, end) for at in KNOBS[effect].metadata if hasattr(at, end))
    with pytest.raises(ValidationError, match=effect):
        SimulationConfig.model_validate({effect: 1.001 * bound})
    config = SimulationConfig.model_validate({**QUICK, effect: bound})
    simulate(tmp_path / "out", subjects=20, seed=0, truth="all", config=config)
    assert np.isfinite(pq.read_table(tmp_path / "out" / "truth.parquet")["risk"].to_numpy()).all()
