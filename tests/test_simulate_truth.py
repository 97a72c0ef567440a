"""The truth against closed forms, a day-by-day twin that counts events, and the records themselves."""

import math
from collections import defaultdict
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.simulate.courses import Courses, simulate_courses
from ehrsequencing.simulate.dataset import split_of
from ehrsequencing.simulate.process import Lives, Process
from ehrsequencing.simulate.truth import Curves, grid_days, horizons, true_curves

YEAR = 365.25
NO_EFFECTS = dict.fromkeys(
    (
        *("age_effect", "death_age_effect", "sex_effect", "death_sex_effect"),
        *("chronic_effect", "pair_effect", "gap_effect", "lab_effect"),
    ),
    0.0,
)


def states_of(config: SimulationConfig, subjects: int, seed: int = 0) -> tuple[Process, Courses, Lives]:
    """Life courses and the states at their prediction times."""
    process = Process(config)
    courses = simulate_courses(process, np.random.default_rng(seed), subjects)
    return process, courses, courses.visits.take(courses.is_at_risk)


# --- Closed forms -----------------------------------------------------------------------------------------------------


def test_constant_hazards_have_their_closed_form() -> None:
    """Without effects or visits: nothing until midnight, then F_e(u) = λ_e/λ · (1 − exp(−λ (u − midnight)))."""
    config = SimulationConfig(
        **NO_EFFECTS, visits_per_year=0, truth_futures=4, outcome_per_year=0.2, death_per_year=0.1
    )
    process, _, lives = states_of(config, 50)
    fraction = np.random.default_rng(1).random(len(lives.day))
    edges = grid_days(7)
    curves = true_curves(process, lives, day_fraction=fraction, edges_days=edges, rng=np.random.default_rng(2))
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
    config = SimulationConfig(
        **NO_EFFECTS,
        visits_per_year=20,
        visit_rate_spread=0,
        outcome_per_year=0.2,
        death_per_year=0,
        truth_futures=1000,
    )
    process, _, lives = states_of(config, 8)
    lives, fraction, edges = lives.take(np.arange(20)), np.full(20, 0.25), np.array([0.0, 0.5, 30.75, 365.75])
    curves = true_curves(process, lives, day_fraction=fraction, edges_days=edges, rng=np.random.default_rng(0))
    chance, hazard = 1 - math.exp(-20 / YEAR), 0.2 / YEAR
    survival = (chance + (1 - chance) * math.exp(-hazard)) ** np.array([0, 0, 30, 365])
    np.testing.assert_allclose(curves.survival, np.tile(survival, (20, 1)), atol=5e-4)
    np.testing.assert_allclose(curves.survival.mean(axis=0), survival, atol=3e-5)
    np.testing.assert_array_equal(curves.incidence[1], 0)


@given(st.floats(0.5, 40))
def test_the_grid_holds_the_horizons_and_every_possible_duration(years: float) -> None:
    edges = grid_days(years)
    assert edges[0] == 0
    assert edges[-1] == years * YEAR
    assert (np.diff(edges) > 0).all()
    assert set(horizons(years).values()) <= set(edges)
    assert all(days < years * YEAR for days in horizons(years).values())


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2)), min_size=1, max_size=8))
def test_binned_hazards_give_back_the_incidences(gains: list[tuple[float, float]]) -> None:
    """Integrating the constant hazards by SCIENCE.md §3 returns the curves they were made from, zeros included."""
    edges = np.concatenate([[0.0], np.cumsum(np.arange(1.0, len(gains) + 1))])
    survival, incidence = [1.0], [(0.0, 0.0)]
    for first, second in gains:  # shares of the survivors
        incidence.append((incidence[-1][0] + survival[-1] * first, incidence[-1][1] + survival[-1] * second))
        survival.append(survival[-1] * (1 - first - second))
    wanted = np.array(incidence).T[:, None]
    hazards = Curves(np.array([survival]), wanted, wanted).hazards_per_day(edges)
    np.testing.assert_allclose(integrate(hazards, edges), wanted, atol=1e-9)


def integrate(hazards: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """F_e at the edges from constant hazards per bin: (causes, rows, bins) → (causes, rows, edges)."""
    total = hazards.sum(axis=0)
    at_end = np.exp(-np.cumsum(total * np.diff(edges), axis=-1))
    at_start = np.concatenate([np.ones_like(at_end[:, :1]), at_end[:, :-1]], axis=-1)
    gained = hazards / np.where(total > 0, total, 1) * (at_start - at_end)
    return np.concatenate([np.zeros_like(gained[:, :, :1]), np.cumsum(gained, axis=-1)], axis=-1)


# --- A twin that counts events ---------------------------------------------------------------------------------------


def count_events(
    config: SimulationConfig, lives: Lives, row: int, *, fraction: float, until: float, copies: int
) -> np.ndarray:
    """Live one subject's future day by day, many times; return when and from what each copy's follow-up ended.

    Written from the definitions alone (the docstring of `ehrsequencing.simulate.process`). Returns (2, copies): days
    since p of the first event, inf for none by `until`; and its cause, 1 or 2.
    """
    rng, one = np.random.default_rng(row), lives.take(np.array([row]))
    mean = 1 - math.exp(-config.visits_per_year / YEAR)
    size = (1 - mean) / (mean * config.visit_rate_spread**2) - 1
    seen, days = one.chance_visits[0], one.chance_days[0]
    chance = rng.beta(mean * size + seen, (1 - mean) * size + days - seen, copies)
    base, death_base = one.steady[:, 0]
    start = int(one.day[0])
    age_at_visit = np.full(copies, (one.age_days[0] + start) / YEAR)
    last_visit, gap = np.full(copies, start), np.full(copies, one.gap_days[0])
    score, pairs, lab = (
        np.full(copies, one.pair_score[0]),
        np.full(copies, int(one.pairs[0])),
        np.full(copies, one.lab[0]),
    )
    centre = np.concatenate(
        [[0], np.cumsum(np.log(np.cosh(config.pair_effect * config.pair_memory ** np.arange(2000.0))))]
    )
    ended, cause = np.full(copies, np.inf), np.zeros(copies)
    for day in range(start + 1, start + math.ceil(until + fraction) + 1):
        outcome = base + config.age_effect * (age_at_visit - 60) / 10 + config.pair_effect * score - centre[pairs]
        outcome += config.gap_effect * (gap < config.gap_days) + config.lab_effect * lab
        rates = np.exp([outcome, death_base + config.death_age_effect * (age_at_visit - 60) / 10])
        visit = rng.random(copies) < chance
        wait = rng.standard_exponential(copies) / rates.sum(axis=0)
        strikes = ~visit & (wait < 1) & np.isinf(ended)
        ended[strikes] = day - start - fraction + wait[strikes]
        cause[strikes] = np.where(rng.random(copies) < rates[0] / rates.sum(axis=0), 1, 2)[strikes]
        gap = np.where(visit, day - last_visit, gap)
        last_visit = np.where(visit, day, last_visit)
        age_at_visit = np.where(visit, (one.age_days[0] + day) / YEAR, age_at_visit)
        pair = visit & (rng.random(copies) < config.pair_visit_share)
        score = np.where(pair, config.pair_memory * score + rng.choice([-1, 1], copies), score)
        pairs = pairs + pair
        measured = visit & (rng.random(copies) < config.lab_visit_share)
        innovation = math.sqrt(1 - config.lab_memory**2) * rng.standard_normal(copies)
        lab = np.where(measured, config.lab_memory * lab + innovation, lab)
    return np.stack([ended, cause])


def test_truth_is_what_a_day_by_day_twin_counts() -> None:
    """Everything on, rates high, six states: within 3 standard errors at three horizons and for both causes."""
    config = SimulationConfig(
        outcome_per_year=0.15, death_per_year=0.1, visits_per_year=6, visit_rate_spread=0.8, truth_futures=2048
    )
    process, _, lives = states_of(config, 40)
    rows = np.linspace(0, len(lives.day) - 1, 6).astype(int)
    fraction, copies = 0.6, 6000
    edges = np.array([0.0, 30.0, 200.0, 500.3])
    curves = true_curves(
        process, lives.take(rows), day_fraction=np.full(6, fraction), edges_days=edges, rng=np.random.default_rng(5)
    )
    z = []
    for k, row in enumerate(rows):
        ended, cause = count_events(config, lives, row, fraction=fraction, until=edges[-1], copies=copies)
        for g in (1, 2, 3):
            for e in (0, 1):
                truth = curves.incidence[e, k, g]
                counted = ((ended <= edges[g]) & (cause == e + 1)).mean()
                se = math.hypot(curves.incidence_se[e, k, g], math.sqrt(truth * (1 - truth) / copies))
                z.append((counted - truth) / se)
    assert np.abs(z).max() < 3
    assert len(z) == 36
    # What the last visit says, taken to hold for ever, is no truth: the twin tells the two apart.
    frozen = process.hazards_per_day(lives.take(rows))
    plug_in = frozen[0] / frozen.sum(axis=0) * (1 - np.exp(-frozen.sum(axis=0) * (500.3 - 0.4)))
    assert np.abs(plug_in - curves.incidence[0, :, 3]).max() > 10 * math.sqrt(0.25 / copies)


def test_the_standard_error_is_honest() -> None:
    """Over repetitions with other futures, risks scatter as `incidence_se` says."""
    process, _, lives = states_of(SimulationConfig(truth_futures=32), 30)
    lives = lives.take(np.arange(0, len(lives.day), 8))
    edges = np.array([0.0, 90.0, 1826.25])
    repeats = [
        true_curves(
            process, lives, day_fraction=np.full(len(lives.day), 0.5), edges_days=edges, rng=np.random.default_rng(seed)
        )
        for seed in range(60)
    ]
    scatter = np.stack([curves.incidence for curves in repeats]).var(axis=0, ddof=1)[:, :, 1:]
    claimed = np.stack([curves.incidence_se for curves in repeats])[:, :, :, 1:] ** 2
    np.testing.assert_allclose(np.sqrt(scatter.mean(axis=1) / claimed.mean(axis=(0, 2))), 1, atol=0.12)


# --- The truth of a population ----------------------------------------------------------------------------------------


def aalen_johansen(duration: np.ndarray, cause: np.ndarray, horizon: float) -> tuple[float, float]:
    """Incidence of cause 1 by the horizon and a generous standard error, by a plain loop over event times."""
    survival, incidence = 1.0, 0.0
    for time in np.unique(duration[(cause > 0) & (duration <= horizon)]):
        at_risk = (duration >= time).sum()
        now = duration == time
        incidence += survival * (now & (cause == 1)).sum() / at_risk
        survival *= 1 - (now & (cause > 0)).sum() / at_risk
    return incidence, math.sqrt(incidence * (1 - incidence) / (duration >= min(horizon, duration.max())).sum())


Population = tuple[Courses, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def population() -> Population:
    """Courses, the at-risk visits and their true curves: default mechanisms, few futures (their noise averages out)."""
    process, courses, lives = states_of(SimulationConfig(truth_futures=16), 6000, seed=9)
    edges = np.array([0.0, 90.0, YEAR, 2 * YEAR, 5 * YEAR])
    fraction = np.full(len(lives.day), 0.5)
    curves = true_curves(process, lives, day_fraction=fraction, edges_days=edges, rng=np.random.default_rng(3))
    return courses, np.flatnonzero(courses.is_at_risk), edges, curves.incidence[0]


def outcomes(courses: Courses, visits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Duration from noon of each visit's day, and cause."""
    subject = courses.subject[visits]
    ends = np.stack([courses.outcome_days, courses.death_days, courses.censoring_day])[:, subject]
    return ends.min(axis=0) - courses.visits.day[visits] - 0.5, (ends.argmin(axis=0) + 1) % 3


def test_mean_true_risk_at_enrolment_is_the_aalen_johansen_incidence(population: Population) -> None:
    courses, visits, edges, risk = population
    first = courses.is_enrolment[visits]
    duration, cause = outcomes(courses, visits[first])
    for g in range(1, len(edges)):
        incidence, se = aalen_johansen(duration, cause, edges[g])
        assert abs(risk[first, g].mean() - incidence) < 3 * se
        assert se < 0.15 * incidence


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


# --- The files --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("truth") / "all"
    simulate(out, subjects=300, seed=5, truth="all", config=SimulationConfig(truth_futures=8))
    return out


def brute_prediction_times(out: Path) -> list[tuple[int, datetime]]:
    """Index and ends of later day-visits while p < min(T, C), by SCIENCE.md §2 from raw rows and the task file."""
    task = yaml.safe_load((out / "task.yaml").read_text())
    assert task["landmarks"] == ["0d"]
    index_code, censoring = task["index"]["code"], task["censoring"]["code"]
    causes = [*task["outcome"].values(), *task["competing"].values()]
    records = defaultdict(list)
    for shard in (out / "data").glob("*/*.parquet"):
        for row in pq.read_table(shard).to_pylist():
            if row["time"] is not None:
                records[row["subject_id"]].append((row["time"], row["code"]))
    found = []
    for subject, rows in sorted(records.items()):
        index = min(time for time, code in rows if code == index_code)
        end = min(time for time, code in rows if code in causes or code == censoring)
        last_of_day: dict[date, datetime] = {}
        for time, code in rows:
            if code not in {"MEDS_BIRTH", "MEDS_DEATH", censoring}:
                last_of_day[time.date()] = max(last_of_day.get(time.date(), time), time)
        ends = {time for time in last_of_day.values() if time > index}
        found += [(subject, time) for time in sorted({index} | ends) if time < end]
    return found


def test_truth_rows_are_exactly_the_prediction_times(data: Path) -> None:
    truth = pq.read_table(data / "truth.parquet")
    rows = list(zip(truth["subject_id"].to_pylist(), truth["prediction_time"].to_pylist(), strict=True))
    assert list(dict.fromkeys(rows)) == brute_prediction_times(data)
    assert len(rows) == 8 * len(set(rows))  # two causes, four horizons
    assert truth["cause"].to_pylist() == (["outcome"] * 4 + ["death"] * 4) * len(set(rows))
    assert truth["horizon_days"].to_pylist() == [90, YEAR, 2 * YEAR, 5 * YEAR] * 2 * len(set(rows))


def test_truth_files_have_the_declared_columns(data: Path) -> None:
    prediction = {"subject_id": "int64", "prediction_time": "timestamp[us]", "cause": "string"}
    risks = {field.name: str(field.type) for field in pq.read_schema(data / "truth.parquet")}
    assert risks == {**prediction, "horizon_days": "double", "risk": "float", "risk_se": "float"}
    hazards = {field.name: str(field.type) for field in pq.read_schema(data / "truth_hazards.parquet")}
    assert hazards == {**prediction, "start_days": "double", "stop_days": "double", "hazard": "double"}


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


def test_no_possible_duration_lies_beyond_the_hazards(data: Path) -> None:
    stop = max(pq.read_table(data / "truth_hazards.parquet")["stop_days"].to_pylist())
    truth = pq.read_table(data / "truth.parquet")
    last = {}
    for shard in (data / "data").glob("*/*.parquet"):
        table = pq.read_table(shard)
        for subject, time in zip(table["subject_id"].to_pylist(), table["time"].to_pylist(), strict=True):
            last[subject] = time or datetime.min
    durations = (
        last[subject] - time
        for subject, time in zip(truth["subject_id"].to_pylist(), truth["prediction_time"].to_pylist(), strict=True)
    )
    assert max(durations) < timedelta(days=stop)


def test_by_default_only_the_held_out_have_a_truth(data: Path, tmp_path: Path) -> None:
    config = SimulationConfig(truth_futures=8, follow_up_max_years=5)
    simulate(tmp_path / "out", subjects=300, seed=5, config=config)
    truth = pq.read_table(tmp_path / "out" / "truth.parquet")
    held_out = {int(subject) for subject in np.flatnonzero(split_of(np.arange(1, 301)) == 2) + 1}
    assert set(truth["subject_id"].to_pylist()) == held_out
    # No subject is followed beyond five years, so that no such horizon is asked for.
    assert set(truth["horizon_days"].to_pylist()) == {90, YEAR, 2 * YEAR}
    assert yaml.safe_load((tmp_path / "out" / "task.yaml").read_text())["horizons"] == ["90d", "1y", "2y"]
