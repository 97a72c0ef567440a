"""`ehrseq score`: a file of a run's risks gets the numbers of `evaluate`; what does not fit is refused or counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from lifelines import CoxPHFitter

from ehrsequencing.baselines.forest import CompetingForest
from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.evaluation.comparison import NETWORK, ORACLE
from ehrsequencing.evaluation.evaluate import Evaluation
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.evaluation.score import score
from ehrsequencing.evaluation.through_risks import hazards_through, nll_through, risk_through
from ehrsequencing.evaluation.trained_baselines import LSTM
from ehrsequencing.predict import predict
from ehrsequencing.records.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.run import Run
from helpers.command_line import ehrseq, refused

SETTINGS = EvaluationConfig(bootstrap=5, subgroups=("sex",))
NO_RIVALS = ("evaluation.baselines=none", "evaluation.bootstrap=0")
KEY = ["subject_id", "prediction_time", "cause", "horizon_days"]


@pytest.fixture(scope="module")
def task(sim_prepared: Path) -> TaskConfig:
    return Prepared(sim_prepared).task("simulated")


@pytest.fixture(scope="module")
def small_task(task: TaskConfig) -> TaskConfig:
    """One landmark and horizon, so that a page is drawn fast."""
    return task.model_copy(update={"landmarks": (0.0,), "horizons": task.horizons[1:2]})


@pytest.fixture(scope="module")
def task_file(small_task: TaskConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "task.yaml"
    path.write_text(yaml.safe_dump(small_task.model_dump(mode="json", exclude_none=True)))
    return path


@pytest.fixture(scope="module")
def predicted(sim_run: Path, sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predicted") / "ours.parquet"
    predict(sim_run, sim_data, out)
    return out


@pytest.fixture(scope="module")
def frame(predicted: Path, sim_prepared: Path) -> pd.DataFrame:
    """The predictions for the held-out cohort, as a table to change."""
    cohort = pd.read_parquet(sim_prepared / "tasks" / "simulated" / "cohort.parquet")
    held_out = cohort[cohort["split"] == "held_out"][KEY[:2]]
    return pd.read_parquet(predicted).merge(held_out, on=KEY[:2])


Score = Callable[..., dict[str, Any]]


@pytest.fixture
def scored(sim_data: Path, sim_prepared: Path, task: TaskConfig, tmp_path: Path) -> Score:
    """Score a table, without baselines and resamples."""

    def run(table: pd.DataFrame, **options: Any) -> dict[str, Any]:
        path = tmp_path / "p.parquet"
        table.to_parquet(path)
        quick = StudyConfig(evaluation=EvaluationConfig(baselines="none", bootstrap=0))
        given = {"study": quick, "prepared": sim_prepared, **options}
        return score(path, sim_data, given.pop("task", task), **given)[0]

    return run


def by_key(rows: list[dict[str, Any]], ours: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = ("model", "landmark_days", "cause", "horizon_days", "metric")
    return {tuple("ours" if row[n] == ours else row[n] for n in names): row for row in rows}


# ---- the same numbers as evaluate ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_of_our_risks_gets_the_numbers_of_evaluate(
    sim_run: Path, sim_data: Path, task: TaskConfig, predicted: Path, tmp_path: Path, tiny_study: StudyConfig
) -> None:
    """Cohort, labels, splits and baselines are made anew from the records; nothing of the run is read."""
    run = Run(sim_run)
    prepared = run.prepared()
    population = Population.of_split(prepared, run.task, "held_out")
    expected = Evaluation(run, population, prepared=prepared, settings=SETTINGS).result()
    study = tiny_study.model_copy(update={"evaluation": SETTINGS})
    found, folder = score(predicted, sim_data, task, study=study, out=tmp_path / "out", name="ours")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "metrics.json"]
    assert json.loads((folder / "metrics.json").read_text()) == found
    assert found["strongest"] == expected["strongest"] is not None
    assert found["baselines"] == expected["baselines"]
    assert found["models"] == ["ours", *expected["models"][1:]]
    left_out = {"nll", "ibs"}  # three horizons say too little of the curve between them
    for part in ("metrics", "differences"):
        ours, theirs = by_key(found[part], "ours"), by_key(expected[part], "ehrsequencing")
        assert not {key for key in ours if key[4] in left_out}
        same = {key: row for key, row in theirs.items() if key[4] not in left_out}
        assert set(ours) == set(same)
        assert {"c", "auc", "brier", "ipa"} <= {key[4] for key in ours}
        for key, row in same.items():
            assert (ours[key]["subjects"], ours[key]["events"]) == (row["subjects"], row["events"])
            for name in ("value", "low", "high"):
                assert (ours[key][name] is None) == (row[name] is None), key
                assert row[name] is None or ours[key][name] == pytest.approx(row[name], abs=1e-6, rel=1e-6), key
    for part in ("calibration", "smooth_calibration", "decision", "subgroups", "risk_distribution"):
        assert len(found[part]) == len(expected[part]) > 0
    assert "left out: they need the risks of 5 or more horizons" in " ".join(found["warnings"])
    truth = by_key(expected["oracle"]["differences"], ORACLE)
    mine = by_key(found["oracle"]["differences"], ORACLE)
    assert all(mine[key]["value"] == pytest.approx(row["value"], abs=1e-6) for key, row in truth.items())
    rmse = [[row["rmse"] for row in one["oracle"]["risks"]] for one in (found, expected)]
    np.testing.assert_allclose(*rmse, atol=1e-6)


def test_a_table_gets_the_numbers_of_its_file(
    frame: pd.DataFrame, scored: Score, task: TaskConfig, sim_data: Path, sim_prepared: Path, tmp_path: Path
) -> None:
    from_file = by_key(scored(frame)["metrics"], "p")
    quick = StudyConfig(evaluation=EvaluationConfig(baselines="none", bootstrap=0))
    given: dict[str, Any] = {"study": quick, "prepared": str(sim_prepared), "name": "p"}
    tables = (pa.Table.from_pandas(frame), {name: frame[name].to_numpy() for name in frame})  # a frame: the docstring
    for number, table in enumerate(tables):
        found, folder = score(table, str(sim_data), task, out=tmp_path / str(number), **given)
        assert by_key(found["metrics"], "p") == from_file
        assert folder == tmp_path / str(number)
    with pytest.raises(EhrseqError, match="no place"):
        score(frame, sim_data, task, **given)
    for broken, message in ((frame.drop(columns="risk"), "has no column 'risk'"), (3, "are no table")):
        with pytest.raises(EhrseqError, match=message):
            score(broken, sim_data, task, out=tmp_path / "broken", **given)
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("baselines", ["none", pytest.param("fast", marks=pytest.mark.slow)])
def test_a_file_with_every_edge_of_the_grid_has_the_likelihood_of_the_run(
    sim_run: Path, sim_data: Path, sim_prepared: Path, task: TaskConfig, tmp_path: Path, baselines: Any
) -> None:
    run, store = Run(sim_run), Prepared(sim_prepared)
    edges = np.array(run.study.model.edges_days)
    predict(sim_run, sim_data, tmp_path / "fine.csv.gz", horizons_days=edges.tolist())
    settings = SETTINGS.model_copy(update={"baselines": baselines})
    study = StudyConfig(evaluation=settings)
    found, _ = score(tmp_path / "fine.csv.gz", sim_data, task, study=study, prepared=sim_prepared)
    records = store.records("simulated", "held_out")
    rows, source = records.rows, RunRisks(run)
    expected = nll_through(source.risk(records, edges), edges, rows)
    nll = by_key(found["metrics"], "fine")[("ours", None, task.causes[0], None, "nll")]
    assert nll["value"] == pytest.approx(expected.mean(), abs=1e-5)
    within = rows.duration_days <= edges[-1]  # elsewhere the follow-up is cut
    np.testing.assert_allclose(expected[within], source.nll(records)[within], atol=2e-3)
    without = set(found["models"]) - {row["model"] for row in found["metrics"] if row["metric"] == "nll"}
    assert without == {name for name in found["models"] if f"{name} has no NLL" in " ".join(found["warnings"])}
    assert without <= {"Aalen–Johansen"}  # a curve with steps: flat where nobody in training had the event
    assert any(row["metric"] == "ibs" for row in found["metrics"])
    assert "follow-up cut at" in " ".join(found["warnings"])
    if baselines == "fast":
        gap = by_key(found["differences"], "-")[(found["strongest"], None, task.causes[0], None, "nll")]
        assert gap["low"] < gap["value"] < gap["high"]


# ---- the curve through the risks -------------------------------------------------------------------------------------


def test_the_curve_through_risks_of_constant_hazards_is_theirs() -> None:
    """An oracle: risks of known piecewise-constant hazards at their own edges give the hazards back."""
    rng = np.random.default_rng(3)
    knots, hazards = np.array([10.0, 30.0, 80.0, 100.0]), rng.uniform(1e-4, 1e-2, (50, 2, 4))
    risk = cumulative_incidence(hazards, knots[:-1].tolist(), knots)
    np.testing.assert_allclose(hazards_through(risk, knots), hazards, rtol=1e-8)
    days = np.array([3.0, 10.0, 55.0, 99.0])
    between = cumulative_incidence(hazards, knots[:-1].tolist(), days)
    np.testing.assert_allclose(risk_through(risk, knots, days), between, rtol=1e-8)
    given = cumulative_incidence(hazards, knots[:-1].tolist(), knots, start_days=5.0)
    np.testing.assert_allclose(hazards_through(given, knots, start_days=5.0), hazards, rtol=1e-8)
    later = cumulative_incidence(hazards, knots[:-1].tolist(), days, start_days=5.0)
    np.testing.assert_allclose(risk_through(given, knots, days, start_days=5.0), later, rtol=1e-8)
    assert not later[:, :, 0].any()


class Labels:
    def __init__(self, duration_days: list[float], cause: list[int]) -> None:
        self.duration_days, self.cause = np.array(duration_days), np.array(cause, dtype=np.int8)
        self.entry_days = np.zeros(len(cause), dtype=np.float32)


def test_a_curve_through_certain_events_stays_defined() -> None:
    """Risks that sum to 1 from a knot on: the curve ends there, and is no NaN on the days after it."""
    risk, knots = np.array([[[0.5, 0.75, 0.75], [0.25, 0.25, 0.25]]]), np.array([10.0, 20.0, 30.0])
    found = risk_through(risk, knots, np.array([10.0, 15.0, 20.0, 25.0, 30.0]))
    np.testing.assert_allclose(found[0, :, [0, 2, 3, 4]].T, risk[0][:, [0, 1, 1, 2]], atol=1e-9)
    assert (np.diff(found, axis=2) >= 0).all()


def test_the_likelihood_by_hand_ends_at_the_last_knot() -> None:
    """One cause, F(10) = 0.2 and F(20) = 0.5: hazards −log(0.8)/10 and −log(0.5/0.8)/10."""
    risk, knots = np.tile([0.2, 0.5], (4, 1, 1)), np.array([10.0, 20.0])
    rows: Any = Labels([5.0, 15.0, 99.0, 99.0], [1, 1, 0, 1])
    first, second = -np.log(0.8) / 10, -np.log(0.5 / 0.8) / 10
    event = [5 * first - np.log(first), 10 * first + 5 * second - np.log(second)]
    np.testing.assert_allclose(nll_through(risk, knots, rows), [*event, -np.log(0.5), -np.log(0.5)])
    labels = {name: getattr(rows, name) for name in ("duration_days", "cause", "entry_days")}
    uncut = horizon_nll(hazards_through(risk, knots), [10.0], **labels)
    assert uncut[3] != pytest.approx(-np.log(0.5))  # a mutant: a curve that goes on beyond what is known
    flat: Any = Labels([15.0], [1])
    assert nll_through(np.array([[[0.2, 0.2]]]), knots, flat) == np.inf
    assert nll_through(np.array([[[0.2, 1.0]]]), knots, Labels([25.0], [0])) == np.inf  # type: ignore[arg-type]


# ---- a model of somebody else ----------------------------------------------------------------------------------------


def test_a_cox_model_of_another_library_is_scored(
    sim_data: Path, sim_prepared: Path, small_task: TaskConfig, task_file: Path, tmp_path: Path
) -> None:
    """lifelines, one cause-specific model a cause, on age and visits so far; predictions at the landmarks alone."""
    store, parts = Prepared(sim_prepared), {}
    for split in ("train", "held_out"):
        records = store.records("simulated", split)
        at = np.flatnonzero(np.any([records.rows.at_landmark(days) for days in small_task.landmarks], axis=0))
        rows = records.rows
        parts[split] = pd.DataFrame({
            "subject_id": records.subject_id[at], "us": np.asarray(rows.prediction_us)[at],
            "age": np.nan_to_num(rows.age_years[at], nan=50.0) / 10, "visits": np.log1p(rows.visits_before[at]),
            "duration": rows.duration_days[at], "cause": rows.cause[at],
        })  # fmt: skip
    train, asked = parts["train"], parts["held_out"]
    grid, features = np.arange(1.0, small_task.horizons[-1] + 1, 7.0), ["age", "visits"]
    grid = np.unique(np.r_[grid, small_task.horizons])
    steps = []
    for number in range(1, len(small_task.causes) + 1):
        table = train[[*features, "duration"]].assign(event=train["cause"] == number)
        fit = CoxPHFitter(penalizer=0.1).fit(table, "duration", "event")
        hazard = fit.predict_cumulative_hazard(asked[features], times=grid).to_numpy().T
        steps.append(np.diff(hazard, axis=1, prepend=0.0))
    total = np.sum(steps, axis=0)
    survival = np.exp(-(np.cumsum(total, axis=1) - total))
    lines = [
        [who, pd.Timestamp(us, unit="us"), cause, days, r]
        for step, cause in zip(steps, small_task.causes, strict=True)
        for days in small_task.horizons
        for who, us, r in zip(
            asked["subject_id"], asked["us"], (survival * step)[:, grid <= days].sum(axis=1), strict=True
        )
    ]
    path = tmp_path / "cox.csv"
    pd.DataFrame(lines, columns=[*KEY, "risk"]).to_csv(path, index=False)
    done = ehrseq(
        "score", path, sim_data, "--task", task_file, "--name", "lifelines Cox", "--baselines", "none",
        "evaluation.bootstrap=10",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    folder = tmp_path / "cox-score"
    result = json.loads((folder / "metrics.json").read_text())
    assert result["models"][0] == "lifelines Cox"
    assert "prediction times have no prediction: only landmarks are evaluated" in done.stderr
    assert {row["landmark_days"] for row in result["metrics"]} == set(small_task.landmarks)
    c = by_key(result["metrics"], "lifelines Cox")[("ours", 0.0, small_task.causes[0], small_task.horizons[-1], "c")]
    assert 0.4 < c["value"] < 1
    assert result["data"]["prediction_times"]["held_out"] == len(asked)
    page = (folder / "report-details.html").read_text()
    assert "lifelines Cox" in page
    assert "Predictions of another model" in page
    assert "Not possible: the audit" in page
    assert "lifelines Cox" in done.stdout
    assert metric_lines(result)[0] in done.stdout


# ---- what is refused, and what is counted ----------------------------------------------------------------------------


def first(table: pd.DataFrame, column: str) -> Any:
    return table[column].iloc[0]


def without_cause(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["cause"] != first(table, "cause")]


def without_horizon(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["horizon_days"] != first(table, "horizon_days")]


REFUSED: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "column": (lambda t: t.drop(columns="risk"), "has no column 'risk'"),
    "type": (lambda t: t.assign(subject_id="someone"), "column 'subject_id' has type"),
    "empty": (lambda t: t.assign(horizon_days=np.nan), "have no horizon_days"),
    "zone": (lambda t: t.assign(prediction_time=t["prediction_time"].dt.tz_localize("UTC")), "has a time zone"),
    "percent": (lambda t: t.assign(risk=100 * t["risk"]), "risks are outside 0..1"),
    "nan": (lambda t: t.assign(risk=t["risk"].mask(t.index == 3)), "1 rows have no risk"),
    "negative": (lambda t: t.assign(risk=t["risk"].mask(t.index == 3, -0.1)), "1 risks are outside 0..1"),
    "twice": (lambda t: pd.concat([t, t.head(2)]), "2 rows have the subject, prediction time, cause and horizon"),
    "a cell": (lambda t: t.drop(index=5), "1 prediction times lack the risk of some cause"),
    "cause": (without_cause, "has no risk of"),
    "horizon": (without_horizon, "has no risk within"),
    "negative horizon": (lambda t: pd.concat([t, t.head(1).assign(horizon_days=-3.0)]), "not numbers of days after"),
    "start": (lambda t: t.assign(start_days=7.0), "its risks are given no event for 7d"),
    "starts": (lambda t: t.assign(start_days=np.arange(len(t)) % 2.0), "has 2 different start_days"),
    "nobody": (lambda t: t.assign(subject_id=-1 - t["subject_id"]), "has no prediction for anybody of the cohort"),
    "one missing": (
        lambda t: t[t["subject_id"] != first(t, "subject_id")],
        "at risk 0d after the index have no",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_evaluated_is_refused(frame: pd.DataFrame, scored: Score, case: str, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    with pytest.raises(EhrseqError) as error:
        scored(change(frame))
    assert words in str(error.value)
    assert not (tmp_path / "p-score").exists()


def test_blanking_needs_risks_that_are_given_it(frame: pd.DataFrame, scored: Score, task: TaskConfig) -> None:
    later = task.model_copy(update={"blanking": 10.0})
    with pytest.raises(EhrseqError, match=r"task.blanking differs"):
        scored(frame, task=later)
    with pytest.raises(EhrseqError, match="does not tell from when its risks count"):
        scored(frame.drop(columns="start_days"), task=later, prepared=None)


def test_names_and_files_that_do_not_fit_are_refused(
    frame: pd.DataFrame, scored: Score, sim_data: Path, task_file: Path, tmp_path: Path
) -> None:
    for name in (ORACLE, NETWORK, LSTM, CompetingForest.name):
        with pytest.raises(EhrseqError, match="name of another model"):
            scored(frame, name=name)
    with pytest.raises(EhrseqError, match="is no split"):
        scored(frame, split="test")
    assert "does not end in a format" in refused("score", tmp_path / "p.txt", sim_data, "--task", task_file)
    assert "cannot be read" in refused("score", tmp_path / "none.csv", sim_data, "--task", task_file)
    (tmp_path / "no.parquet").write_text("subject_id")
    assert "cannot be read as Parquet" in refused("score", tmp_path / "no.parquet", sim_data, "--task", task_file)


def test_what_is_ignored_is_counted(frame: pd.DataFrame, scored: Score, predicted: Path) -> None:
    plain = scored(frame)
    extra = frame.head(40).assign(cause="unheard of")
    found = scored(pd.concat([frame, extra]).sample(frac=1, random_state=1))  # in any order
    assert "40 rows of 1 causes that the task does not have are ignored." in found["warnings"]
    assert found["metrics"] == [{**row} for row in plain["metrics"]]
    everybody = scored(pd.read_parquet(predicted))
    told = " ".join(everybody["warnings"])
    assert "of the file are of the train split: ignored." in told
    assert "of the file are not in the cohort" in told
    assert everybody["metrics"] == plain["metrics"]


def test_risks_that_are_no_incidences_have_no_likelihood(frame: pd.DataFrame, scored: Score, task: TaskConfig) -> None:
    early = frame[frame["horizon_days"] == task.horizons[0]]
    falling = pd.concat([frame, *(early.assign(horizon_days=float(days)) for days in (1, 2, 3))])
    fine = falling.assign(risk=falling["risk"] * np.minimum(falling["horizon_days"] / task.horizons[0], 1))
    assert any(row["metric"] == "nll" for row in scored(fine)["metrics"])
    bad = fine.assign(risk=np.where(fine["horizon_days"] == 1, 0.3, fine["risk"]))
    found = scored(bad)
    assert any("a risk falls with the horizon" in text for text in found["warnings"])
    assert not any(row["metric"] in ("nll", "ibs") for row in found["metrics"])
    found = scored(fine.assign(risk=np.minimum(0.4 + 0.3 * fine["horizon_days"] / task.horizons[-1], 0.7)))
    assert any("risks sum to over 1" in text for text in found["warnings"])
    assert not any(row["metric"] in ("nll", "ibs") for row in found["metrics"])
    flat = scored(fine.assign(risk=0.2))
    assert any("predicted curve is flat" in text for text in flat["warnings"])
    assert not any(row["metric"] == "nll" for row in flat["metrics"])


def test_a_landmark_without_predictions_is_left_out(
    frame: pd.DataFrame, scored: Score, sim_prepared: Path, task: TaskConfig
) -> None:
    cohort = pd.read_parquet(sim_prepared / "tasks" / "simulated" / "cohort.parquet")
    at_index = cohort[(cohort["prediction_time"] == cohort["index_time"]) & (cohort["kind"] == "query")]
    found = scored(frame.merge(at_index[KEY[:2]], on=KEY[:2]))
    assert {row["landmark_days"] for row in found["metrics"]} == {0.0}
    assert "The file has no prediction 1y after the index: it is left out." in found["warnings"]
    assert not any(text.startswith("Nobody was at risk") for text in found["warnings"])
    with pytest.raises(EhrseqError, match="has no prediction at any landmark"):
        scored(frame.merge(cohort[cohort["kind"] == "visit"][KEY[:2]], on=KEY[:2]))


def test_the_command_prepares_and_removes_the_set(
    predicted: Path, sim_data: Path, task_file: Path, tmp_path: Path
) -> None:
    arguments = ("score", predicted, sim_data, "--task", task_file, "--out", tmp_path / "out", *NO_RIVALS)
    done = ehrseq(*arguments, "--name", "theirs")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "manifest.json", "metrics.json", "report-details.html", "report.html",
    ]  # fmt: skip
    assert ehrseq(*arguments).exit_code == 0  # replaces its own output
    (tmp_path / "out" / "mine.txt").write_text("")
    assert "which ehrseq did not write" in refused(*arguments)
    assert "belongs to" in refused(*arguments[:-2], "model.dim=3")


def test_real_people_get_two_files(
    frame: pd.DataFrame, sim_data: Path, small_task: TaskConfig, tmp_path: Path, monkeypatch: Any
) -> None:
    for module in ("context", "evaluate"):
        monkeypatch.setattr(f"ehrsequencing.evaluation.{module}.is_simulation", lambda data: False)
    frame.to_parquet(tmp_path / "p.parquet")
    study = StudyConfig(evaluation=EvaluationConfig(baselines="none", bootstrap=20))
    result, folder = score(tmp_path / "p.parquet", sim_data, small_task, study=study)
    individual = folder / "metrics-individual.json"
    assert individual.stat().st_mode & 0o777 == 0o600
    told = json.loads((folder / "metrics.json").read_text())
    assert told["score"] == result["score"]
    assert told["trajectories"] == told["calibration"] == []
    assert json.loads(individual.read_text())["calibration"]


# ---- several files together ------------------------------------------------------------------------------------------


def test_files_beside_each_other_get_their_own_numbers_and_the_difference(
    frame: pd.DataFrame, scored: Score, task: TaskConfig, tmp_path: Path
) -> None:
    """The second file has the metrics that it would have alone; the difference is the first's metric minus it."""
    other, path = frame.assign(risk=frame["risk"] ** 1.5), tmp_path / "other.parquet"
    other.to_parquet(path)
    alone = by_key(scored(other, name="other")["metrics"], "other")
    result = scored(frame, name="mine", beside={"other": path})
    together = {key[1:]: row for key, row in by_key(result["metrics"], "").items() if key[0] == "other"}
    own = {key[1:]: row for key, row in by_key(result["metrics"], "").items() if key[0] == "mine"}
    compared = [key for key in together if ("ours", *key) in alone and together[key]["value"] is not None]
    assert {"c", "ipa"} <= {key[-1] for key in compared}
    for key in compared:
        assert together[key]["value"] == pytest.approx(alone["ours", *key]["value"], abs=1e-9), key
    gaps = [row for row in result["differences"] if row["model"] == "other" and row["value"] is not None]
    assert gaps
    for row in gaps:
        key = tuple(row[name] for name in ("landmark_days", "cause", "horizon_days", "metric"))
        assert row["value"] == pytest.approx(own[key]["value"] - together[key]["value"], abs=1e-9)


def test_a_file_beside_another_must_answer_the_same_prediction_times(
    frame: pd.DataFrame, scored: Score, tmp_path: Path
) -> None:
    fewer, path = frame[frame["subject_id"] != first(frame, "subject_id")], tmp_path / "fewer.parquet"
    fewer.to_parquet(path)
    with pytest.raises(EhrseqError, match="evaluated prediction times"):
        scored(frame, beside={"fewer": path})
    with pytest.raises(EhrseqError, match="name of another model"):
        scored(frame, name="fewer", beside={"fewer": path})
