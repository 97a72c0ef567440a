"""The league: features know only the past, formulas are those of the package, and foreign models get a score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from bench.accuracy import (
    _league_features as features,
    _league_tables as tables,
    _league_tasks as tasks,
    league,
    real as bench,
)
from bench.accuracy.contenders import exchange
from bench.truth._contributions import Contributions, pair_of
from ehrsequencing.predictors.from_file import nll_through
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.simulate import SimulationConfig, simulate

#: More interpreters with foreign packages, as for `--python`: paths with a colon between them.
PYTHONS = [Path(text) for text in os.environ.get("LEAGUE_PYTHONS", "").split(":") if text]
CODES = ("MEDS_BIRTH", "GENDER//F", "A", "B", "LAB")
COLUMNS = features.Columns(static=(1,), codes=(2, 3, 4), numeric=(4,))
DAY = 86_400_000_000
Array = NDArray[Any]


def made_events(rows: list[tuple[int, int | None, int, float]]) -> Any:
    """Events from (subject, day or None, code, number)."""
    time = [features.NO_TIME if day is None else day * DAY for _, day, _, _ in rows]
    subject, code, number = (np.array([row[i] for row in rows]) for i in (0, 2, 3))
    order = np.lexsort((np.array(time), subject))
    return features.Events(subject[order], np.array(time)[order], code[order], number[order].astype(float), CODES)


def slowly(rows: list[tuple[int, int | None, int, float]], subject: int, day: int, index: int) -> list[float]:
    """The features of one row, straight from the table in the module's text."""
    mine = sorted(
        (row for row in rows if row[0] == subject and row[1] is not None and row[1] <= day), key=lambda row: row[1]
    )
    born = [row[1] for row in mine if row[2] == 0]
    seen = [row for row in mine if row[2] != 0]
    days = [row[1] for row in seen]
    none = float("nan")
    out = [
        (day - born[-1]) / 365.25 if born else none,
        day - index,
        day - days[0] if days else none,
        day - days[-1] if days else none,
        len(seen),
        len(set(days)),
    ]
    out.append(float(any(row[0] == subject and row[1] is None and row[2] == 1 for row in rows)))
    for code in (2, 3, 4):
        at = [row[1] for row in seen if row[2] == code]
        out += [len(at), day - at[-1] if at else none]
    numbers = [row[3] for row in seen if row[2] == 4 and not np.isnan(row[3])]
    if not numbers:
        return [*out, *[none] * 5]
    return [*out, numbers[-1], float(np.mean(numbers)), min(numbers), max(numbers), numbers[0]]


@st.composite
def drawn_rows(draw: st.DrawFn) -> list[tuple[int, int | None, int, float]]:
    """Events of two subjects; a subject's numbers of one day are alike, since their order is not told."""
    rows: list[tuple[int, int | None, int, float]] = [(subject, 0, 0, np.nan) for subject in (1, 2)]
    for subject, day, code in draw(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 12), st.integers(2, 4)))):
        rows.append((subject, day, code, float((7 * day + subject) % 5) if code == 4 else np.nan))
    return [*rows, (1, None, 1, np.nan)]


@settings(max_examples=40, deadline=None)
@given(rows=drawn_rows(), day=st.integers(0, 13))
def test_the_feature_table_is_that_of_a_slow_reference(
    rows: list[tuple[int, int | None, int, float]], day: int
) -> None:
    ids, at = np.array([2, 1]), np.full(2, day * DAY)
    found = features.feature_table(made_events(rows), ids, at, np.zeros(2), columns=COLUMNS)
    wanted = [slowly(rows, subject, day, 0) for subject in (2, 1)]
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-6)


def answers(rows: list[tuple[int, int | None, int, float]], day: int) -> tuple[Array, list[list[list[str]]]]:
    """What a foreign model is given of both subjects."""
    events, ids, at = made_events(rows), np.array([1, 2]), np.full(2, day * DAY)
    table = features.feature_table(events, ids, at, np.zeros(2), columns=COLUMNS)
    bins = features.Bins({4: np.array([1.0, 2.0])})
    return table, features.visits(events, ids, at, age_years=table[:, 0], bins=bins, window_days=1.0)


def require_blind_to_the_future() -> None:
    """No answer changes with the events after the prediction time; one does with an event at it."""
    past = [(1, 0, 0, np.nan), (1, 3, 4, 2.0), (1, 5, 2, np.nan), (2, 0, 0, np.nan), (1, None, 1, np.nan)]
    future = [(1, 6, 2, np.nan), (1, 6, 4, 9.0), (2, 7, 3, np.nan)]
    known, with_future = answers(past, 5), answers([*past, *future], 5)
    np.testing.assert_array_equal(known[0], with_future[0])
    assert known[1] == with_future[1]
    at_once = answers([*past, (1, 5, 4, 3.0)], 5)
    assert not np.array_equal(known[0], at_once[0], equal_nan=True)
    assert known[1] != at_once[1]


def test_foreign_models_are_given_nothing_of_the_future() -> None:
    require_blind_to_the_future()


@pytest.mark.parametrize("days", [1, 1000], ids=["a day", "everything"])
def test_a_feature_table_that_peeks_is_seen(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., Any] = features.known_events
    monkeypatch.setattr(features, "known_events", lambda events, ids, at: honest(events, ids, at + days * DAY))
    with pytest.raises(AssertionError):
        require_blind_to_the_future()


def test_the_contenders_formulas_are_those_of_the_package() -> None:
    rng = np.random.default_rng(0)
    days = np.array([100.0, 250.0, 700.0, 1000.0])
    steps = rng.uniform(0.01, 0.3, size=(50, 2, 4))
    risk = exchange.incidences(np.cumsum(steps, axis=2))
    survival = 1 - risk.sum(axis=1)
    np.testing.assert_allclose(survival, np.exp(-np.cumsum(steps.sum(axis=1), axis=1)))
    np.testing.assert_allclose(risk[:, :, 0], (1 - survival[:, :1]) * steps[:, :, 0] / steps[:, :, 0].sum(1)[:, None])
    duration, cause = rng.uniform(1, 1500, 50), rng.integers(0, 3, 50)
    zeros = np.zeros(50, dtype=np.int64)
    rows = TaskRows(
        **{name: zeros for name in TaskRows.__dataclass_fields__}
        | {
            "duration_days": duration,
            "cause": cause.astype(np.int8),
            "entry_days": np.zeros(50),
            "row_offsets": np.arange(51),
        }
    )
    wanted = nll_through(risk, days, rows).mean()
    assert exchange.nll_through(risk, days, duration, cause) == pytest.approx(wanted)


def test_the_cohorts_hazard_by_hand() -> None:
    """Of four subjects one has the first cause on day 2, one is censored on day 3, one has the second on day 5."""
    found = exchange.cohort_hazard(
        np.array([2.0, 3.0, 5.0, 9.0]), np.array([1, 0, 2, 0]), causes=2, grid_days=np.array([1.0, 2.0, 5.0, 9.0])
    )
    np.testing.assert_allclose(found, [[0, 1 / 4, 1 / 4, 1 / 4], [0, 0, 1 / 2, 1 / 2]])


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """A tiny simulated task, without a model."""
    made = tasks.Place("sim_pairs", tmp_path, tmp_path / "out", 20_000, subjects=240)
    knobs = {**dict(made.one.world), "outcome_per_year": 0.3, "truth_futures": 4}
    simulate(made.records, subjects=240, seed=1, config=SimulationConfig.model_validate(knobs))
    return made


def run_and_print(place: Any, model: str) -> str:
    if tasks.python_with(tasks.FOREIGN[model].imports, PYTHONS) is None:
        pytest.skip(f"no Python here or in LEAGUE_PYTHONS has {tasks.FOREIGN[model].imports}")
    league.run_cell(place, model, PYTHONS, trial_seconds=0.0)
    facts = json.loads((place.folder / model / "facts.json").read_text())
    assert facts["trials"] == 1
    return str(tables.page_text([tables.score_place(place)], date="today"))


@pytest.mark.slow
def test_a_foreign_model_gets_a_score_and_no_label_of_those_it_is_scored_on(place: Any, tmp_path: Path) -> None:
    text = run_and_print(place, "cox")
    assert "| lifelines Cox (strongest rival) | 1 | 1/6 |" in text
    assert "| sim_pairs | not run |" in text  # none of ours
    assert "| *true hazards* |" in text
    with np.load(place.folder / "cox" / "question.npz") as question:
        assert {name for name in question if name.startswith("held_out")} == {
            "held_out.features",
            "held_out.subject_id",
            "held_out.prediction_us",
        }
    page = tmp_path / "page.md"
    page.write_text(f"before{league.BEGIN}old{league.END}after")
    league.write_page(page, text)
    assert page.read_text() == f"before{league.BEGIN}\n{text}\n{league.END}after"


def test_a_hundredth_of_the_cohort_keeps_every_likelihood_finite(place: Any) -> None:
    prepared, task = place.prepared(), place.question
    train, tuning, held_out = (tasks.LandmarkRows.of(prepared, task, split) for split in tasks.SPLITS)
    days = tasks.knots_days(train.column("duration_days"), train.column("cause"), task.horizons)
    count = len(tuning.chosen) + len(held_out.chosen)
    risk = np.full((count, len(task.causes), len(days)), 0.49999, np.float32)  # all is over at the first knot
    folder = place.folder / "cox"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"risk": risk.reshape(-1)}), folder / "predictions.parquet")
    unmixed = tables.nll_through(
        risk[: len(tuning.chosen)].astype(float),
        days,
        tuning.column("duration_days"),
        tuning.column("cause").astype(int),
    )
    losses = tables.mix_with_cohort(place, {"cox": {"is_curve": True}})
    mixed = pq.read_table(folder / "mixed.parquet")["risk"].to_numpy().reshape(risk.shape)
    causes = np.bincount(train.column("cause").astype(int), minlength=3)[1:]
    cohort = (mixed - 0.99 * risk) / 0.01
    assert unmixed == np.inf
    assert np.isfinite(losses["cox"])
    assert (np.diff(cohort, axis=2) > 0).all()
    np.testing.assert_allclose(cohort[:, 0] / cohort[:, 1], causes[0] / causes[1], rtol=1e-3)
    assert np.ptp(cohort, axis=0).max() == 0


@pytest.mark.slow
def test_one_training_of_ours_gives_five_models_scored_as_the_run_answers(place: Any) -> None:
    quick = tasks.Place("sim_pairs", place.data, place.out, place.seed, subjects=240, more=("training.epochs=1",))
    league.run_cell(quick, "blend", [], trial_seconds=0.0)
    scored = tables.score_place(quick)
    assert set(scored.facts) == set(tasks.OURS)
    values = {model: scored.value(model, "nll") for model in tasks.OURS}
    assert len(set(values.values())) == 5
    assert all(np.isfinite(list(values.values())))
    answers = tables.Answered([scored])
    assert answers.gap("blend", "stacked", "nll")[0] == pytest.approx(values["blend"] - values["stacked"])


def test_divisions_of_real_people_share_them_and_simulated_ones_do_not(tmp_path: Path) -> None:
    half_widths = {}
    for task in ("sim_default", "pbc2"):
        each = []
        for number, nll in enumerate([1.0, 2.0, 4.0]):
            division = tasks.Place(task, Path("../shared/data"), tmp_path, 20_000 + number)
            landmark, _ = division.one.shown_days
            cause = "death" if task == "pbc2" else "outcome"
            facts = {"is_curve": True, "subjects": {"train": 60, "tuning": 20, "held_out": 20}}
            rows = [
                {"model": tasks.NAMES[model], "metric": "nll", "landmark_days": landmark, "horizon_days": None}
                | {"cause": cause, "value": value}
                for model, value in (("blend", nll), ("cox", 0.0))
            ]
            each.append(tables.Scored(division, {"blend": facts, "cox": facts}, rows))
        with pytest.MonkeyPatch.context() as patch:
            question = type("Question", (), {"causes": (cause,)})
            patch.setattr(tasks.Place, "question", property(lambda self, question=question: question))
            mean, low, high = tables.Answered(each).gap("blend", "cox", "nll")
        assert mean == pytest.approx(7 / 3)
        half_widths[task] = (high - low) / 2
    t2, variance = 4.30265, np.var([1.0, 2.0, 4.0], ddof=1)
    assert half_widths["sim_default"] == pytest.approx(t2 * np.sqrt(variance / 3), rel=1e-5)
    assert half_widths["pbc2"] == pytest.approx(t2 * np.sqrt(variance * (1 / 3 + 20 / 80)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["forest", "boosting", "xgboost", "pyhealth"])
def test_every_foreign_model_gets_a_score(place: Any, model: str) -> None:
    text = run_and_print(place, model)
    line = next(line for line in text.splitlines() if line.startswith(f"| {tasks.NAMES[model]}"))
    assert "not run" not in line


# ---- bench real: means over the same cells, and trials without held-out numbers --------------------------------------


OURS, COX, TREES = "ehrsequencing", "landmark Cox", "boosted visits"


def row(
    model: str,
    metric: str,
    value: float | None,
    horizon: float | None = 365.25,
    landmark: float | None = 0.0,
    cause: str = "death",
) -> dict[str, Any]:
    place = {"landmark_days": landmark, "cause": cause, "horizon_days": horizon}
    return {"model": model, "metric": metric, "value": value, **place}


def split(seed: int, *, ours: float, cox: float, trees: float) -> dict[str, Any]:
    """A split's rows in which Cox has the lowest tuning NLL, and the trees the lowest on held-out subjects."""
    rows = []
    for model, value in ((OURS, ours), (COX, cox), (TREES, trees)):
        rows += [row(model, "nll", 2 - value, None), row(model, "nll", 99.0, None, landmark=None)]
        rows += [row(model, "c", value), row(model, "c", value + 0.1, 730.5), row(model, "c", 0.1, cause="transplant")]
        rows += [row(model, "oe", 1.2), row(model, "oe", 1.0, 730.5)]
    rows += [row("Aalen–Johansen", "oe", 1.5), row("Aalen–Johansen", "oe", 1.5, 730.5)]
    rows += [
        row(OURS, "c", 0.9, landmark=365.25),
        row(COX, "c", None, landmark=365.25),
        row(TREES, "c", 0.9, landmark=365.25),
    ]
    return {
        "seed": seed,
        "train_subjects": 80,
        "held_out_subjects": 20,
        "metrics": rows,
        "tuning_nll": {OURS: 1.5, TREES: 1.4, COX: 1.3},
    }


SPLITS = [split(20_000, ours=0.7, cox=0.6, trees=0.8), split(20_001, ours=0.8, cox=0.75, trees=0.85)]


def test_a_cell_counts_where_every_model_has_it_and_only_of_the_outcome() -> None:
    found = bench.values_of(SPLITS[0])
    assert found[OURS, "c"] == pytest.approx((0.7 + 0.8) / 2)  # not the landmark at which Cox is undefined
    assert found[COX, "c"] == pytest.approx(0.65)
    assert found[OURS, "nll"] == pytest.approx(1.3)  # at landmarks only
    assert bench.values_of(SPLITS[0], 730.5)[OURS, "oe"] == 1.0
    assert (OURS, "nll") not in bench.values_of(SPLITS[0], 730.5)


def test_a_difference_is_better_by_the_direction_of_its_metric() -> None:
    assert bench.verdict("nll", (-0.1, -0.2, -0.05)) == bench.verdict("c", (0.1, 0.05, 0.2)) == "better"
    assert bench.verdict("nll", (0.1, 0.05, 0.2)) == bench.verdict("ipa", (-0.1, -0.2, -0.05)) == "worse"


# ---- true contributions of codes, from the record alone, are what the simulator's own state says ---------------------


def test_a_single_pair_adds_its_own_term() -> None:
    config = SimulationConfig(pair_effect=2.0)
    truth = Contributions(config)
    none = [np.full(2, np.nan)]
    for other, sign in (("RX//B07", 1.0), ("RX//B08", -1.0)):
        (pair,) = truth.of([["DX//A07", other]], none, [0.0])
        assert pair.log_hazard == pytest.approx(2.0 * sign - np.log(np.cosh(2.0)))
    assert pair_of(["DX//A07", "DX//N0001"]) is None
