"""The simulated records: valid MEDS, a function of the seed alone, and all that sets a hazard written in them."""

import json
from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from meds import schema as meds
from pydantic import ValidationError

from ehrsequencing.errors import EhrseqError
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.simulate.codes import CodeTable
from ehrsequencing.simulate.courses import Courses, simulate_courses
from ehrsequencing.simulate.dataset import SPLITS, split_of
from ehrsequencing.simulate.process import NEVER_DAYS, Lives, Process, VisitDraws
from ehrsequencing.simulate.records import BLOCK, simulate_block

Row = tuple[Any, str, float | None]  # time (None: static), code, value
QUICK = SimulationConfig(truth_futures=4)


def shards(out: Path) -> list[Path]:
    return sorted((out / "data").glob("*/*.parquet"))


def rows_by_subject(out: Path, *, known: int | None = None) -> dict[int, list[Row]]:
    """(time, code, value) rows of every subject, in file order."""
    found: dict[int, list[Row]] = defaultdict(list)
    for shard in shards(out):
        table = pq.read_table(shard)
        columns = (table[name].to_pylist() for name in ("subject_id", "time", "code", "numeric_value"))
        for subject_id, time, code, value in zip(*columns, strict=True):
            if known is None or subject_id <= known:
                found[subject_id].append((time, code, value))
    return dict(found)


def courses_of(subjects: int, seed: int = 7, **knobs: float) -> tuple[Process, Courses]:
    process = Process(SimulationConfig(**knobs))
    return process, simulate_courses(process, np.random.default_rng(seed), subjects)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "made" / "with parents"
    simulate(out, subjects=600, seed=3, config=QUICK)
    return out


# --- MEDS -------------------------------------------------------------------------------------------------------------


def test_the_files_are_valid_meds(data: Path) -> None:
    for shard in shards(data):
        meds.DataSchema.validate(pq.read_table(shard))
    splits = pq.read_table(data / meds.subject_splits_filepath)
    meds.SubjectSplitSchema.validate(splits)
    codes = pq.read_table(data / meds.code_metadata_filepath)
    meds.CodeMetadataSchema.validate(codes)
    card = json.loads((data / meds.dataset_metadata_filepath).read_text())
    meds.DatasetMetadataSchema.validate(card)
    assert card["meds_version"].startswith("0.4")

    where = {
        subject: shard for shard in shards(data) for subject in set(pq.read_table(shard)["subject_id"].to_pylist())
    }
    assert sorted(where) == list(range(1, 601))
    assert {s: where[s].parent.name for s in where} == dict(
        zip(splits["subject_id"].to_pylist(), splits["split"].to_pylist(), strict=True)
    )
    listed = codes["code"].to_pylist()
    assert len(set(listed)) == len(listed)
    assert {code for rows in rows_by_subject(data).values() for _, code, _ in rows} <= set(listed)


def test_nothing_but_the_files_that_others_read(data: Path) -> None:
    files = {path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()}
    assert files == {
        *(f"data/{split}/0.parquet" for split in SPLITS),
        *(f"metadata/{name}" for name in ("subject_splits.parquet", "codes.parquet", "dataset.json")),
        *("truth.parquet", "truth_hazards.parquet", "task.yaml"),
    }


def test_subjects_are_contiguous_sorted_and_without_repeats(data: Path) -> None:
    for shard in shards(data):
        ids = pq.read_table(shard)["subject_id"].to_numpy()
        assert (np.diff(ids) >= 0).all()
    for rows in rows_by_subject(data).values():
        times = [time for time, _, _ in rows]
        static = sum(time is None for time in times)
        assert static == 1
        assert times[0] is None
        assert times[1:] == sorted(times[1:])
        assert len({(time, code) for time, code, _ in rows}) == len(rows)


def test_a_record_begins_with_birth_and_ends_with_death_or_the_end_of_follow_up(data: Path) -> None:
    for rows in rows_by_subject(data).values():
        codes = [code for _, code, _ in rows]
        assert codes[1] == "MEDS_BIRTH"
        assert codes[-1] in {"MEDS_DEATH", "END_OF_FOLLOWUP"}
        assert sum(code in {"MEDS_DEATH", "END_OF_FOLLOWUP"} for code in codes) == 1
        assert codes.count("ENROLLMENT") == 1
        assert codes.count("DX//OUTCOME") <= 1
        enrolled = rows[codes.index("ENROLLMENT")][0]
        same_day = [time for time, _, _ in rows[1:] if time.date() == enrolled.date()]
        assert enrolled == max(same_day)
        if "DX//OUTCOME" in codes:
            assert rows[codes.index("DX//OUTCOME")][0] > enrolled


def test_visits_are_days_that_often_last(data: Path) -> None:
    lasting, momentary = 0, 0
    for rows in rows_by_subject(data).values():
        days = defaultdict(set)
        struck = {time.date() for time, code, _ in rows if code in {"DX//OUTCOME", "MEDS_DEATH"}}
        for time, code, _ in rows[2:]:
            if code not in {"END_OF_FOLLOWUP", "MEDS_DEATH"}:
                days[time.date()].add(time)
        for day in struck:  # nothing strikes on a day with a visit
            assert len(days.get(day, [0])) == 1
        lasting += sum(len(times) > 1 for times in days.values())
        momentary += sum(len(times) == 1 for times in days.values())
    assert lasting > momentary > 0


# --- The seed decides -------------------------------------------------------------------------------------------------


def test_same_seed_same_bytes_and_another_seed_others(data: Path, tmp_path: Path) -> None:
    simulate(tmp_path / "again", subjects=600, seed=3, config=QUICK)
    files = [path.relative_to(data) for path in data.rglob("*") if path.is_file()]
    assert all((data / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)
    simulate(tmp_path / "other", subjects=600, seed=4, config=QUICK)
    shard = Path("data/train/0.parquet")
    assert (data / shard).read_bytes() != (tmp_path / "other" / shard).read_bytes()


def test_a_subject_depends_neither_on_the_number_of_others_nor_on_the_shards(data: Path, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer"
    subjects = BLOCK + 44
    simulate(fewer, subjects=subjects, seed=3, config=QUICK, shard_subjects=37)
    assert rows_by_subject(fewer) == rows_by_subject(data, known=subjects)
    sizes = [len(set(pq.read_table(shard)["subject_id"].to_pylist())) for shard in shards(fewer)]
    assert max(sizes) == 37
    assert sum(sizes) == subjects
    assert len(list((fewer / "data" / "train").iterdir())) > 3


def test_splits_are_about_70_15_15_and_do_not_depend_on_the_seed() -> None:
    shares = np.bincount(split_of(np.arange(1, 100_001)), minlength=3) / 100_000
    np.testing.assert_allclose(shares, [0.70, 0.15, 0.15], atol=0.005)


def test_progress_counts_up_to_all(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    simulate(tmp_path / "out", subjects=300, seed=0, config=QUICK, progress=lambda *counts: told.append(counts))
    assert told == [(256, 300), (300, 300)]


# --- Refusals and interruptions ---------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(EhrseqError, match="not an empty folder"):
        simulate(tmp_path, subjects=5, seed=0)
    with pytest.raises(EhrseqError, match="not an empty folder"):
        simulate(tmp_path / "mine.txt", subjects=5, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("wrong", [{"subjects": 0}, {"seed": -1}, {"shard_subjects": 0}])
def test_senseless_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(EhrseqError, match=next(iter(wrong))):
        simulate(tmp_path / "out", **{"subjects": 5, "seed": 0, **wrong})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interruption_leaves_nothing_half_written(tmp_path: Path, error: BaseException) -> None:
    def stop(done: int, total: int) -> None:
        raise error

    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "new"):
        with pytest.raises((KeyboardInterrupt, EhrseqError)):
            simulate(out, subjects=5, seed=0, config=QUICK, progress=stop)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_single_subject_is_enough(tmp_path: Path) -> None:
    simulate(tmp_path / "out", subjects=1, seed=0, config=QUICK)
    assert list(rows_by_subject(tmp_path / "out")) == [1]
    assert pq.read_table(tmp_path / "out" / "truth.parquet").num_rows == 0  # subject 1 is not held out


def test_settings_are_frozen_strict_and_checked() -> None:
    with pytest.raises(ValidationError, match="extra"):
        SimulationConfig.model_validate({"par_effect": 1.0})
    with pytest.raises(ValidationError, match="frozen"):
        SimulationConfig().pair_effect = 0.0  # type: ignore[misc]
    with pytest.raises(ValidationError, match="above"):
        SimulationConfig(follow_up_min_years=9)


# --- The mechanisms ---------------------------------------------------------------------------------------------------


def one_life(**state: float) -> Lives:
    """A woman of sixty on the day of a visit long after the one before, without pairs or a marker worth naming."""
    floats = {
        "age_days": 60 * 365.25,
        "visit_chance": 0.01,
        "enrolment_day": 0,
        "chance_days": 0,
        "chance_visits": 0,
        "day": 0,
        "gap_days": 500,
        "pair_score": 0,
        "lab": 0,
    }
    flags = {"has_pair": False, "matched": False, "has_lab": False}
    values = {name: np.array([state.get(name, value)], dtype=float) for name, value in floats.items()}
    return Lives(
        steady=np.log(np.array([[0.036525], [0.0036525]]) / 365.25),
        pairs=np.array([int(state.get("pairs", 0))]),
        **values,
        **{name: np.array([value]) for name, value in flags.items()},
    )


@pytest.mark.parametrize(
    ("knob", "state", "ratio"),
    [
        ("age_effect", {"age_days": 70 * 365.25}, np.exp(0.7)),
        ("age_effect", {"day": 5 * 365.25}, np.exp(0.35)),  # age as of the last visit
        ("gap_effect", {"gap_days": 59}, np.exp(0.7)),
        ("gap_effect", {"gap_days": 60}, 1.0),
        ("lab_effect", {"lab": -2.0}, np.exp(-1.4)),
        ("pair_effect", {"pairs": 1, "pair_score": 1}, np.exp(0.7) / np.cosh(0.7)),
        ("pair_effect", {"pairs": 1, "pair_score": -1}, np.exp(-0.7) / np.cosh(0.7)),
        # A matched pair, then a mismatched one: the older counts half.
        ("pair_effect", {"pairs": 2, "pair_score": -0.5}, np.exp(-0.35) / np.cosh(0.7) / np.cosh(0.35)),
    ],
)
def test_a_mechanism_moves_the_outcome_by_its_knob_and_zero_switches_it_off(
    knob: str, state: dict[str, float], ratio: float
) -> None:
    off = dict.fromkeys(["age_effect", "death_age_effect", "gap_effect", "lab_effect", "pair_effect"], 0.0)
    for effect, expected in ((0.7, ratio), (0.0, 1.0)):
        process = Process(SimulationConfig(**{**off, knob: effect, "pair_memory": 0.5}))
        plain, moved = process.hazards_per_day(one_life()), process.hazards_per_day(one_life(**state))
        np.testing.assert_allclose(plain, [[1e-4], [1e-5]], rtol=1e-12)
        np.testing.assert_allclose(moved / plain, [[expected], [1.0]], rtol=1e-12)


def test_who_a_subject_is_moves_the_hazards_by_its_knob() -> None:
    def hazards(*, male: bool, age_years: float, chronic: list[bool], **knobs: float) -> np.ndarray:
        process = Process(SimulationConfig(pair_visit_share=0, lab_effect=0, chronic_conditions=3, **knobs))
        lives = process.begin(
            np.random.default_rng(0),
            age_days=np.array([age_years * 365.25]),
            male=np.array([male]),
            chronic=np.array([chronic]),
            enrolment_day=np.zeros(1),
        )
        return process.hazards_per_day(lives)[:, 0]

    knobs = {
        "sex_effect": 0.2,
        "death_sex_effect": 0.3,
        "chronic_effect": 0.4,
        "age_effect": 0.1,
        "death_age_effect": 0.5,
    }
    plain = hazards(male=False, age_years=60, chronic=[False] * 3, **knobs)
    np.testing.assert_allclose(plain * 365.25, [0.035, 0.012])
    moved = hazards(male=True, age_years=50, chronic=[True, False, True], **knobs)
    # Conditions 1 and 3 of 3 have 2 · 1/4 and 2 · 3/4 times the knob.
    np.testing.assert_allclose(moved / plain, np.exp([0.2 + 0.4 * (0.5 + 1.5) - 0.1, 0.3 - 0.5]))
    off = hazards(male=True, age_years=50, chronic=[True, False, True], **dict.fromkeys(knobs, 0.0))
    np.testing.assert_allclose(off, plain)


def test_rates_and_shares_of_zero_leave_their_thing_out() -> None:
    def codes_of(**knobs: float) -> set[str]:
        config = SimulationConfig(**knobs)
        block = simulate_block(Process(config), CodeTable(config), seed=0, block=0, subjects=BLOCK)
        return set(block.events["code"].to_pylist())

    def prefixes(codes: set[str]) -> set[str]:
        return {code.rstrip("0123456789") for code in codes}

    everything = prefixes(codes_of())
    assert {"DX//A", "RX//B", "DX//CHRONIC", "MEDS_DEATH", "LAB//MARKER"} <= everything
    assert everything - prefixes(codes_of(pair_visit_share=0)) == {"DX//A", "RX//B"}
    assert everything - prefixes(codes_of(chronic_prevalence=0)) == {"DX//CHRONIC"}
    assert everything - prefixes(codes_of(chronic_conditions=0)) == {"DX//CHRONIC"}
    assert everything - prefixes(codes_of(death_per_year=0)) == {"MEDS_DEATH"}
    _, courses = courses_of(300, drop_out_per_year=0)
    full = courses.first_day + courses.censoring_day == 18_262  # 2020-01-01
    assert full.all()
    _, courses = courses_of(300)
    assert 0.7 < (courses.first_day + courses.censoring_day == 18_262).mean() < 0.95
    _, courses = courses_of(300, visits_per_year=0)
    assert set(np.bincount(courses.subject)) <= {1, 2}
    assert (courses.visits.day == np.where(courses.visits.day > 0, courses.visits.enrolment_day, 0)).all()
    _, courses = courses_of(300, history_max_years=0)
    assert (courses.is_enrolment == (courses.visits.day == 0)).all()
    _, courses = courses_of(300, lab_visit_share=0)
    assert (courses.visits.has_lab == (courses.visits.day == 0)).all()
    _, courses = courses_of(300, visit_rate_spread=0)
    assert len(set(courses.visits.visit_chance)) == 1


def test_background_codes_follow_zipf() -> None:
    for exponent in (0.0, 1.0):
        config = SimulationConfig(background_codes=20, background_per_visit=1, background_zipf=exponent)
        block = simulate_block(Process(config), CodeTable(config), seed=0, block=0, subjects=BLOCK)
        codes = [code[-4:] for code in block.events["code"].to_pylist() if "//N" in code]
        counts = np.array([codes.count(f"{b:04d}") for b in range(20)])
        expected = np.arange(1, 21.0) ** -exponent
        expected *= counts.sum() / expected.sum()
        assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-squared with 19 degrees of freedom: p = .001


def test_the_marker_stays_standard_normal_and_remembers() -> None:
    _, courses = courses_of(4000)
    visits, first = courses.visits, courses.visits.day == 0
    for values in (visits.lab[first], visits.lab[visits.has_lab & ~first]):
        assert abs(values.mean()) < 4 / np.sqrt(len(values) / 5)  # neighbours correlate
        assert abs(values.std() - 1) < 0.05
    follows = np.flatnonzero(visits.has_lab[1:] & ~first[1:])
    assert abs(np.corrcoef(visits.lab[follows], visits.lab[follows + 1])[0, 1] - 0.8) < 0.02


def test_every_hazard_can_be_read_off_the_record() -> None:
    """A plain loop over raw rows recovers each prediction time's state, hence its hazards; nothing later is needed."""
    config = SimulationConfig()
    process = Process(config)
    block = simulate_block(process, CodeTable(config), seed=11, block=2, subjects=40)
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in block.events.to_pylist():
        rows[row["subject_id"]].append(row)
    asked = block.prediction_times
    true = process.hazards_per_day(asked.lives)
    for r in range(len(asked.subject_id)):
        p = np.datetime64(int(asked.time_us[r]), "us").item()
        record = rows[int(asked.subject_id[r])]
        codes = [row["code"] for row in record if row["time"] is None or row["time"] <= p]
        birth = next(row["time"] for row in record if row["code"] == "MEDS_BIRTH")
        days: dict[date, set[str]] = defaultdict(set)
        marker = 0.0
        for row in record:
            if row["time"] is not None and row["code"] != "MEDS_BIRTH" and row["time"] <= p:
                days[row["time"].date()].add(row["code"])
                if row["code"] == "LAB//MARKER":
                    marker = (row["numeric_value"] - 100) / 15
        sizes = []  # signs of the pairs, newest first
        for day in sorted(days, reverse=True):
            a = [code[-2:] for code in days[day] if code.startswith("DX//A")]
            b = [code[-2:] for code in days[day] if code.startswith("RX//B")]
            if a:
                assert len(a) == len(b) == 1
                sizes.append(1 if a == b else -1)
        gap = (p.date() - max([d for d in days if d < p.date()], default=p.date() - timedelta(10**5))).days
        age = (p.date() - birth.date()).days / 365.25
        male = "SEX//M" in codes
        chronic = {int(code[-2:]) for code in codes if code.startswith("DX//CHRONIC")}
        outcome = np.log(0.035 / 365.25) + 0.35 * (age - 60) / 10 + 0.2 * male + 0.6 * (gap < 60) + 0.3 * marker
        outcome += sum(0.5 * 2 * (c + 1) / 9 for c in chronic)
        outcome += sum(0.8**m * s - np.log(np.cosh(0.8**m)) for m, s in enumerate(sizes))
        death = np.log(0.012 / 365.25) + 0.6 * (age - 60) / 10 + 0.3 * male
        np.testing.assert_allclose(np.log(true[:, r]), [outcome, death], atol=2e-6)  # the marker is a 32-bit float
    assert len(asked.subject_id) > 300


def test_visits_come_each_day_with_the_subjects_own_chance() -> None:
    """Geometric gaps: mean 1/π, and P(gap > k) = (1 − π)^k; the appointment cuts only the gap that it ends."""
    process = Process(SimulationConfig(visit_rate_spread=0))
    n, rng = 40_000, np.random.default_rng(0)
    lives = one_life().take(np.zeros(n, dtype=int))
    gaps = process.next_visit(lives, VisitDraws.fresh(rng, n)).gap_days
    for days in (0, 1, 30, 100, 300):
        expected = 0.99**days
        assert abs((gaps > days).mean() - expected) <= 4 * np.sqrt(expected * (1 - expected) / n)
    appointment = one_life(enrolment_day=100).take(np.zeros(n, dtype=int))
    moved = process.next_visit(appointment, VisitDraws.fresh(np.random.default_rng(0), n))
    np.testing.assert_array_equal(moved.gap_days, np.minimum(gaps, 100))
    # On the day of the appointment chance said nothing.
    np.testing.assert_array_equal(moved.chance_visits, gaps < 100)
    np.testing.assert_array_equal(moved.chance_days, np.minimum(gaps, 99))


def test_no_chance_of_a_visit_means_none() -> None:
    lives = Process(SimulationConfig(visits_per_year=0)).next_visit(
        one_life(visit_chance=0.0), VisitDraws.fresh(np.random.default_rng(0), 1)
    )
    assert lives.gap_days[0] == NEVER_DAYS


@pytest.mark.parametrize("mutant", [False, True])
def test_the_hidden_visit_chance_is_drawn_from_its_posterior(mutant: bool) -> None:
    """Among lives with like records, drawn chances have the mean of the true ones; draws from the prior do not."""
    process, courses = courses_of(20_000, visit_rate_spread=0.6)
    lives = courses.visits.take(courses.is_at_risk)
    lives = lives.take(np.arange(0, len(lives.day), 7))
    rng = np.random.default_rng(1)
    if mutant:
        drawn = process._draw_visit_chance(rng, visits=0 * lives.day, days=0 * lives.day)
    else:
        drawn = process.forget_hidden(lives, rng).visit_chance
    shown = lives.chance_visits / (lives.chance_days + 100)
    worst = 0.0
    for group in np.array_split(np.argsort(shown), 5):
        difference = drawn[group] - lives.visit_chance[group]
        worst = max(worst, abs(difference.mean() / difference.std() * np.sqrt(len(group))))
    assert (worst > 20) if mutant else (worst < 5)  # rows of one subject correlate


# --- A bag of codes tells nothing ------------------------------------------------------------------------------------


def excess(courses: Courses, which: np.ndarray) -> float:
    """(O − E) / √E of outcomes in the stretches after some at-risk visits, E from the rate over all of them."""
    at_risk, visits = courses.is_at_risk, courses.visits
    follow_up_end = np.minimum(courses.censoring_day, courses.death_days)[courses.subject]
    same = np.append(courses.subject[1:] == courses.subject[:-1], False)
    until = np.where(same, np.append(visits.day[1:], 0), follow_up_end)
    outcome = courses.outcome_days[courses.subject]
    struck = at_risk & (outcome < until)
    exposure = np.where(at_risk, np.minimum(outcome, until) - visits.day - 1, 0)
    expected = struck.sum() / exposure.sum() * exposure[which].sum()
    return float((struck[which].sum() - expected) / np.sqrt(expected))


@pytest.fixture(scope="module")
def only_pairs() -> tuple[Process, Courses]:
    effects = ("age_effect", "chronic_effect", "gap_effect", "lab_effect", "sex_effect")
    return courses_of(20_000, pairs=6, **dict.fromkeys(effects, 0))


def test_single_codes_tell_nothing_but_matching_does(only_pairs: tuple[Process, Courses]) -> None:
    courses = only_pairs[1]
    visits, rng = courses.visits, np.random.default_rng(0)
    a = rng.integers(6, size=len(visits.day))
    b = np.where(visits.matched, a, (a + rng.integers(1, 6, size=len(a))) % 6)
    for k in range(6):
        assert abs(excess(courses, visits.has_pair & (a == k))) < 3.5
        assert abs(excess(courses, visits.has_pair & (b == k))) < 3.5
    # The same statistic sees what there is to see.
    assert excess(courses, visits.matched) > 15
    assert excess(courses, visits.has_pair & ~visits.matched) < -15


@pytest.mark.parametrize("mutant", [False, True])
def test_the_number_of_pairs_tells_nothing_but_would_without_its_centre(
    only_pairs: tuple[Process, Courses], mutant: bool
) -> None:
    process, courses = only_pairs
    if mutant:
        process = Process(process.config)
        process._pair_centre = np.zeros_like(process._pair_centre)
        courses = simulate_courses(process, np.random.default_rng(7), 20_000)
    pairs = courses.visits.pairs
    worst = max(abs(excess(courses, which)) for which in (courses.visits.has_pair, pairs <= 1, pairs >= 4, pairs >= 8))
    assert (worst > 5) if mutant else (worst < 3.5)


# --- Calibration of the defaults -------------------------------------------------------------------------------------


def test_default_cohort_has_the_intended_shape() -> None:
    _, courses = courses_of(4000)
    end = np.minimum(np.minimum(courses.outcome_days, courses.death_days), courses.censoring_day)
    assert 0.20 < (end == courses.outcome_days).mean() < 0.35
    assert 0.05 < (end == courses.death_days).mean() < 0.10
    after_enrolment = np.bincount(courses.subject[courses.is_at_risk], minlength=4000) - 1
    assert 10 <= np.median(after_enrolment) <= 12


def test_a_failed_run_can_be_run_again(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        simulate(out, subjects=5, seed=0, config=QUICK, progress=fail)
    simulate(out, subjects=5, seed=0, config=QUICK)
    assert len(rows_by_subject(out)) == 5
