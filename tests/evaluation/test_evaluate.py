"""Evaluation: the oracle against plain loops, the protocol at landmarks, and a run that stays valid."""

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.api.compare import compare
from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig, load_study, load_task
from ehrsequencing.core import outputs
from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import sha256
from ehrsequencing.evaluation import rivals
from ehrsequencing.evaluation.comparison import ORACLE, OURS
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.external import validate
from ehrsequencing.evaluation.oracle import Truth
from ehrsequencing.evaluation.repeated_splits import repeated_splits
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.prediction import run as runs
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.command_line import ehrseq
from helpers.comparison import metric_table
from helpers.disclosure import as_real
from helpers.meds import DAY_US, Row, us, write_meds
from helpers.rows import nll_of_rows, risk_of_rows
from helpers.training import NetworkTrainer as Trainer

QUICK = EvaluationConfig(baselines="none", bootstrap=20)


def test_oracle_nll_is_that_of_plain_loops(sim_data: Path, sim_prepared: Path) -> None:
    prepared = Prepared(sim_prepared)
    records = prepared.records("simulated", "held_out")
    rows = records.rows
    causes = prepared.task("simulated").causes
    found = Truth.read(sim_data, records, causes=causes).nll(rows)
    hazards: dict[tuple[int, int, str], list[tuple[float, float, float]]] = {}
    table = pq.read_table(sim_data / "truth_hazards.parquet")
    moments = table["prediction_time"].cast(pa.int64()).to_pylist()
    for line, moment in zip(table.drop_columns(["prediction_time"]).to_pylist(), moments, strict=True):
        key = (line["subject_id"], moment, line["cause"])
        hazards.setdefault(key, []).append((line["start_days"], line["stop_days"], line["hazard"]))
    checked = 0
    for r in range(0, len(rows), 5):
        key = (int(records.subject_id[r]), int(rows.prediction_us[r]))
        if (*key, causes[0]) not in hazards:  # a landmark that the simulation was not asked about
            assert np.isnan(found[r])
            continue
        nll, duration = 0.0, float(rows.duration_days[r])
        for e, cause in enumerate(causes, start=1):
            bins = sorted(hazards[*key, cause])
            for number, (start, stop, hazard) in enumerate(bins):
                stop = np.inf if number == len(bins) - 1 else stop
                nll += hazard * max(0.0, min(duration, stop) - start)
                if rows.cause[r] == e and start <= duration < stop:
                    nll -= np.log(hazard)
        assert found[r] == pytest.approx(nll, rel=1e-9)
        checked += 1
    assert checked > 20


def test_landmark_metrics_are_those_of_the_queries_at_risk(sim_run: Path) -> None:
    result = evaluate(sim_run, settings=QUICK)
    run = Run(sim_run)
    prepared = Prepared(Path(run.manifest["prepared"]))
    records = prepared.records("simulated", "held_out")
    rows = records.rows
    risk = risk_of_rows(run.model, records, horizons_days=run.task.horizons).astype(float)
    found = {(m["landmark_days"], m["cause"], m["horizon_days"], m["metric"]): m for m in result["metrics"]}
    for landmark in run.task.landmarks:
        at = np.flatnonzero(rows.at_landmark(landmark))
        table = metric_table(rows.duration_days[at], rows.cause[at].astype(int), risk[at], run.task.horizons)
        for e, cause in enumerate(run.task.causes):
            for h, horizon in enumerate(run.task.horizons):
                for name in ("c", "brier"):
                    row, value = found[landmark, cause, horizon, name], table[name][e, h]
                    assert (row["value"] is None) == bool(np.isnan(value) or row["reason"] == TOO_FEW)
                    if row["value"] is not None:
                        assert row["value"] == pytest.approx(value, abs=1e-5)
                        assert row["low"] is None or row["low"] <= row["high"]
    nll = nll_of_rows(run.model, records)
    first = found[0.0, run.task.causes[0], None, "nll"]["value"]
    assert first == pytest.approx(nll[rows.at_landmark(0.0)].mean())
    assert result["models"] == [OURS]


def test_the_visit_head_is_refused_in_one_line(sim_data: Path, tiny_study: StudyConfig, tmp_path: Path) -> None:
    task = load_task(sim_data / "task.yaml").model_copy(update={"competing": {}, "name": "visits"})
    prepare(sim_data, tmp_path / "set", study=tiny_study, tasks=[task])
    study = load_study(
        None, ["model.dim=16", "model.heads=2", "model.layers=1", "model.head=visit", "training.epochs=2"]
    )
    Trainer(Prepared(tmp_path / "set"), "visits", tmp_path / "run", study=study).fit()
    for judge in (evaluate, partial(validate, data=sim_data), partial(repeated_splits, splits=2)):
        with pytest.raises(EhrseqError, match=r"model\.head=horizon"):
            judge(tmp_path / "run", settings=QUICK)


def test_the_truth_stands_beside_the_run(sim_data: Path, tiny_study: StudyConfig, tmp_path: Path) -> None:
    """On the simulation's own task every prediction time has a truth: one more model, and a rival nowhere."""
    prepare(sim_data, tmp_path / "set", study=tiny_study, tasks=[load_task(sim_data / "task.yaml")])
    Trainer(Prepared(tmp_path / "set"), "simulated", tmp_path / "run", study=tiny_study).fit()
    result = evaluate(tmp_path / "run", settings=QUICK.model_copy(update={"bootstrap": 0}))
    assert result["models"] == [OURS, ORACLE]
    assert result["differences"] == []
    oracle = result["oracle"]
    assert oracle["nll_difference"] == pytest.approx(oracle["nll_model"] - oracle["nll_oracle"])
    assert oracle["nll_z"] == pytest.approx(-oracle["nll_difference"] / oracle["nll_difference_se"])
    values = {row["metric"]: row["value"] for row in result["metrics"] if row["model"] == ORACLE}
    assert set(values) >= {"c", "ipa", "oe", "nll"}
    assert oracle["nll_oracle"] < oracle["nll_model"]


def test_another_prepared_set_is_refused(
    sim_run: Path, sim_data: Path, tiny_study: StudyConfig, tmp_path: Path
) -> None:
    other = load_task(sim_data / "task.yaml").model_copy(update={"landmarks": (0.0, 30.0)})
    prepare(sim_data, tmp_path / "set", study=tiny_study, tasks=[other])
    with pytest.raises(EhrseqError, match="not what this run was trained on"):
        evaluate(sim_run, prepared=tmp_path / "set", settings=QUICK)
    with pytest.raises(EhrseqError, match="moved"):
        evaluate(sim_run, prepared=tmp_path / "nowhere", settings=QUICK)


TASK = """name: t
index: {first_visit: true}
outcome: {out: OUT}
censoring: {code: END}
horizons: [90d, 1y]
landmarks: [0d]
"""
TINY = (
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=1",
    "training.min_steps=2",
    "training.distillation=0",
    "training.blend=false",
)
CHEAP = ("evaluation.bootstrap=10",)


def test_records_that_say_little_are_evaluated(tmp_path: Path) -> None:
    """No birth, no sex, one visit with one code: records which lack all of these are evaluated."""
    rng, rows, splits = np.random.default_rng(0), list[Row](), dict[int, str]()
    for subject in range(1, 241):
        splits[subject] = ("train", "train", "tuning", "held_out")[subject % 4]
        start = us("2015-01-01") + int(rng.integers(0, 300)) * DAY_US
        days = {"SEEN": 0, "OUT": int(rng.integers(41, 440)), "END": int(rng.integers(540, 840))}
        rows += [Row(subject, start + day * DAY_US, code) for code, day in days.items() if code != "OUT" or subject % 2]
    data, prepared, run = write_meds(tmp_path / "meds", rows, splits=splits), tmp_path / "set", tmp_path / "run"
    (tmp_path / "task.yaml").write_text(TASK)
    for arguments in (
        ("prepare", data, "--out", prepared, "--task", tmp_path / "task.yaml"),
        ("train", prepared, "--out", run, *TINY),
        ("evaluate", run, *CHEAP),
        ("evaluate", run, "--data", data, *CHEAP),
    ):
        done = ehrseq(*arguments)
        assert done.exit_code == 0, (arguments[0], done.output, done.exception)
    metrics = json.loads((run / "metrics-individual.json").read_text())
    assert {"boosted visits", "landmark Cox", "age + sex"} <= set(metrics["models"])
    found = {(m["model"], m["metric"]) for m in metrics["metrics"] if m["value"] is not None}
    assert {(model, metric) for model in metrics["models"] for metric in ("brier", "oe", "ipa")} <= found
    assert metrics["inputs"]["by_split"]["held_out"]["unknown_age_rate"] == 1.0
    assert "boosted visits" in (run / "report-details.html").read_text()


def test_baselines_are_fitted_to_everybody_whoever_is_judged(
    sim_run: Path, sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--split train` with `evaluation.subjects` judges a sample; the rivals had all training people, as it had."""
    run, store = Run(shutil.copytree(sim_run, tmp_path / "run")), Prepared(sim_prepared)
    settings = QUICK.model_copy(update={"subjects": 50})
    seen: list[FittingData] = []
    monkeypatch.setattr(rivals, "fit_baselines", lambda kind, data, **more: seen.append(data) or [])
    for split in ("train", "tuning"):
        evaluate(run.folder, split=split, settings=settings)
        for name, found in (("train", seen[-1].train), ("tuning", seen[-1].tuning)):
            assert len(found) == len(store.records(run.task.name, name))


# ---- `compare` prints what `evaluate` prints of the same people, and the recalibration too ---------------------------


SETTINGS = EvaluationConfig(baselines="none", bootstrap=0)
KEY = ("landmark_days", "cause", "horizon_days", "metric")


def at_landmarks(rows: Any, model: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {
        tuple(row[k] for k in KEY): {k: v for k, v in row.items() if k != "model"}
        for row in rows
        if row["model"] == model and row["landmark_days"] is not None
    }


def test_compared_runs_have_the_numbers_that_evaluate_gives_of_people(
    sim_data: Path, sim_task: TaskConfig, tiny_study: StudyConfig, tmp_path: Path
) -> None:
    """Blanking, indices of their own clock, and another grid and vocabulary of the second run."""
    asked = {"index": {"code": sim_task.index.code, "which": "every"}, "blanking": 20.0, "recurrent": True}
    task = TaskConfig.model_validate(
        {**sim_task.model_dump(exclude_none=True), **asked, "horizons": ["90d", "1y"], "main": None}
    )
    for name, fewest, bins in (("one", 1, 12), ("two", 30, 7)):
        study = tiny_study.model_copy(
            update={
                "vocabulary": tiny_study.vocabulary.model_copy(update={"min_subjects": fewest}),
                "training": tiny_study.training.model_copy(update={"grid_bins": bins, "blend": False}),
            }
        )
        prepare(sim_data, tmp_path / f"{name}-set", study=study, tasks=[task])
        Trainer(Prepared(as_real(tmp_path / f"{name}-set")), task.name, tmp_path / name, study=study).fit()
    found = compare([tmp_path / "one", tmp_path / "two"], bootstrap=0, progress=False)
    hidden = 0
    for name in ("one", "two"):
        evaluate(tmp_path / name, settings=SETTINGS)
        told = read_result(tmp_path / name)
        theirs, ours = at_landmarks(told["metrics"], "ehrsequencing"), at_landmarks(found.result["metrics"], name)
        assert {key[3] for key in ours} >= {"c", "oe", "nll", "ibs"}
        for key, row in ours.items():
            assert row == pytest.approx(theirs[key], abs=1.1e-3, nan_ok=True), key
        hidden += sum(bool(row.get("hidden")) for row in ours.values())
        assert found.subjects == told["data"]["subjects"]["held_out"]
    assert hidden
    assert found.table().frame.index.tolist() == ["one", "two"]


def test_training_people_are_counted_as_people_beside_a_simulation(
    sim_run: Path, sim_data: Path, tmp_path: Path
) -> None:
    """Whose counts they are decides, not which data is evaluated."""
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    result, folder = validate(run, sim_data, out=tmp_path / "out", settings=SETTINGS)
    assert result["data"]["simulated"] is False
    told = json.loads((folder / "metrics.json").read_text())
    exact, shown = result["events"]["train"], told["events"]["train"]
    assert shown != exact
    assert all(count == "<11" or count % 5 == 0 for count in shown.values())
    assert told["trajectories"] == []


# ---- `ehrseq evaluate` opens its run once, and reads each file of the network once to hash it ------------------------


def test_evaluate_opens_the_run_once(sim_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was evaluated before."""
    run = shutil.copytree(sim_run, tmp_path / "run")
    command = ("evaluate", run, "--baselines", "none", "evaluation.bootstrap=0")
    opened, hashed = list[Path](), Counter[str]()
    init = runs.Run.__init__

    def counted_init(self: runs.Run, folder: Path | str) -> None:
        opened.append(Path(folder))
        init(self, folder)

    def counted_hash(path: Path) -> str:
        hashed[path.name] += path.parent == run
        return sha256(path)

    monkeypatch.setattr(runs.Run, "__init__", counted_init)
    for module in (outputs, runs):
        monkeypatch.setattr(module, "sha256", counted_hash)
    for times in (1, 2):
        done = ehrseq(*command)
        assert done.exit_code == 0, done.output
        assert opened == [run] * times
        assert {name: hashed[name] for name in outputs.RUN_NEEDS} == dict.fromkeys(outputs.RUN_NEEDS, times)
