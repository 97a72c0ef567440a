"""What stands beside the metrics (subgroups, inputs, checks), and whom a run is judged on."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest

from ehrsequencing.config import EvaluationConfig, StudyConfig, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation import rivals as rivals_module
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.evaluation.context import Context
from ehrsequencing.evaluation.evaluate import Evaluation, evaluate
from ehrsequencing.evaluation.population import Population
from ehrsequencing.evaluation.rivals import Evaluated, fit_rivals
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.fit import AgeAndSex, Fitted, MarginalIncidence
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.results.redaction import redact
from ehrsequencing.results.result_types import Exact, Shared
from helpers.comparison import metric_table
from helpers.rows import risk_of_rows
from helpers.training import NetworkTrainer as Trainer


def faults(value: Any, kind: Any, *, count: Any = int, where: str = "result") -> Iterator[str]:
    """What differs, as in `result.metrics[3].low: is no float`.

    Args:
        value: Content of a file.
        kind: A TypedDict, or the type of a part of one.
        count: What a count of people is.
        where: The place in words.
    """
    kind = count if isinstance(kind, TypeVar) else kind
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (UnionType, Union):
        of_each = [list(faults(value, one, count=count, where=where)) for one in inner]
        yield from min(of_each, key=len)
    elif is_typeddict(origin):
        keys = set(value) if isinstance(value, dict) else set()
        needed, known = origin.__required_keys__, origin.__optional_keys__
        yield from (f"{where}: lacks {key}" for key in needed - keys)
        yield from (f"{where}: has {key}" for key in keys - needed - known)
        for key, type_ in get_type_hints(origin).items():
            if key in keys:
                yield from faults(value[key], type_, count=count, where=f"{where}.{key}")
    elif origin in (list, dict) and isinstance(value, origin):
        for place, one in enumerate(value) if origin is list else value.items():
            yield from faults(one, inner[-1], count=count, where=f"{where}[{place}]")
    elif kind is not Any and not _is(value, origin):
        yield f"{where}: is a {type(value).__name__}, no {origin.__name__}"


def _is(value: Any, kind: type) -> bool:
    """As mypy has it: an int is a float; but no truth is a number."""
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))


# ---- the tests ------------------------------------------------------------------------------------------------------

QUICK = EvaluationConfig(baselines="none", bootstrap=20)
PLAIN = EvaluationConfig(baselines="none", bootstrap=0)


@pytest.fixture(scope="module")
def run(sim_run: Path) -> Run:
    return Run(sim_run)


@pytest.fixture
def cheap_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two baselines that cost nothing; the boosting is tested elsewhere."""

    def fit(kind: str, data: FittingData, **others: Any) -> list[Any]:
        assert kind == "fast"
        models = AgeAndSex(data), MarginalIncidence(data)
        return [Fitted(model, nll) for model, nll in zip(models, (1.5, 2.5), strict=True)]

    monkeypatch.setattr(rivals_module, "fit_baselines", fit)


def test_metrics_json_holds_what_the_report_is_promised(sim_run: Path, cheap_baselines: None) -> None:
    result = evaluate(sim_run, settings=EvaluationConfig(baselines="fast", bootstrap=4))
    json.dumps(result, allow_nan=False)
    causes, horizons, landmarks = result["causes"], result["horizons_days"], result["landmarks_days"]
    assert result["external"] is result["repeated_splits"] is None
    strongest = result["models"][1]
    assert "Aalen–Johansen" in result["models"]
    found = {(m["model"], m["landmark_days"], m["cause"], m["horizon_days"], m["metric"]) for m in result["metrics"]}
    every = ("c", "auc", "brier", "ipa", "oe", "intercept", "slope")
    assert found.issuperset(itertools.product(result["models"], landmarks, causes, horizons, every))
    some = ("ici", "e50", "e90", "ici_null", "ks", "ks_p")
    assert found.issuperset(itertools.product((OURS, strongest), landmarks[:1], causes[:1], horizons[:1], some))
    assert strongest == result["strongest"] == "age + sex"
    assert result["baselines"] == [
        {"model": "age + sex", "tuning_nll": 1.5},
        {"model": "Aalen–Johansen", "tuning_nll": 2.5},
    ]
    nll = {(m["model"], m["landmark_days"]): m["value"] for m in result["metrics"] if m["metric"] == "nll"}
    gaps = {(m["model"], m["landmark_days"]): m for m in result["differences"] if m["metric"] == "nll"}
    assert set(gaps) == {(rival, at) for rival in result["models"][1:3] for at in [*landmarks, None]}
    assert {name for name, _ in nll} >= {OURS, *result["models"][1:3]}
    for (rival, at), gap in gaps.items():
        assert gap["value"] == pytest.approx(nll[OURS, at] - nll[rival, at], abs=1e-9)
        assert (gap["low"] is None) == (gap["reason"] is not None)
        assert gap["low"] is None or gap["low"] <= gap["value"] <= gap["high"]
    assert len({gap["reason"] for gap in gaps.values()}) <= 2
    rivals = {row["model"] for row in result["differences"]}
    assert rivals == set(result["models"]) - {OURS, "true hazards"}
    for name in ("smooth_calibration", "decision"):
        assert {row["model"] for row in result[name]} == {OURS, strongest}
        for row in result[name]:
            assert len({len(value) for value in row.values() if isinstance(value, list)}) == 1
    assert {row["group"] for row in result["subgroups"]} >= {"age", "sex"}
    by_group: Counter[Any] = Counter()
    for row in result["subgroups"]:
        by_group[row["landmark_days"], row["group"], row["cause"], row["horizon_days"]] += row["n"]
    at_risk = {row["landmark_days"]: row["subjects"] for row in result["at_risk"]}
    assert all(total == at_risk[at] for (at, *_), total in by_group.items())  # every row is in one level
    assert set(result["inputs"]["by_split"]) == {"train", "tuning", "held_out"}
    assert [row["landmark_days"] for row in result["follow_up"]] == landmarks
    assert len(result["smallest_g"]) == (len(landmarks) + 1) * len(horizons)
    assert list(faults(result, Exact)) == []
    shared = redact({**result, "data": {**result["data"], "simulated": False}})  # as if they were people
    assert shared.pop("individual")
    assert list(faults(shared, Shared, count=int | str)) == []


def test_a_horizon_beyond_the_follow_up_is_refused_in_words(sim_run: Path, prepared: Prepared) -> None:
    run = Run(sim_run)
    run.task = run.task.model_copy(update={"horizons": (365.25, 20000.0), "main": None})
    judged = Population.of_split(prepared, run.task, "held_out")
    result = Evaluation(run, judged, prepared=prepared, settings=PLAIN).result()
    told = [text for text in result["warnings"] if "20000d" in text]
    assert any("predicted 1y after the index: that horizon is refused" in text for text in told)
    assert not any("before 1y" in text for text in result["warnings"])
    values = {
        (m["horizon_days"], m["metric"]): m["value"]
        for m in result["metrics"]
        if (m["landmark_days"], m["cause"]) == (0, run.task.causes[0])
    }
    for metric in ("c", "auc", "brier", "ipa", "oe", "slope", "ici"):
        assert values[20000.0, metric] is None
    assert values[365.25, "brier"] is not None
    late = [row for row in result["decision"] if row["horizon_days"] == 20000.0]
    assert late
    assert all(value is None for row in late for value in row["net_benefit"])


def test_a_split_that_is_none_and_training_subjects_that_are_gone(run: Run, prepared: Prepared) -> None:
    with pytest.raises(EhrseqError, match="no split"):
        Population.of_split(prepared, run.task, "validation")
    judged = Population.of_split(prepared, run.task, "held_out")
    with pytest.raises(EhrseqError, match="need the training subjects"):
        Evaluation(run, judged, prepared=None, settings=QUICK, train_censoring=True)


def test_censoring_weights_of_the_training_subjects_at_risk(run: Run, prepared: Prepared) -> None:
    from ehrsequencing.metrics.censoring import censoring_survival

    judged = Population.of_split(prepared, run.task, "held_out")
    rows = Evaluation(run, judged, prepared=prepared, settings=PLAIN, train_censoring=True).tables()[0]
    found = {(m["model"], m["landmark_days"], m["cause"], m["horizon_days"], m["metric"]): m["value"] for m in rows}
    held_out, train = prepared.records("simulated", "held_out").rows, prepared.records("simulated", "train").rows
    risk = risk_of_rows(run.model, judged.records, horizons_days=run.task.horizons).astype(float)
    landmark = run.task.landmarks[1]
    here, there = held_out.at_landmark(landmark), train.at_landmark(landmark)
    g = censoring_survival(np.asarray(train.duration_days)[there], np.asarray(train.cause)[there])
    outcome = np.asarray(held_out.duration_days)[here], np.asarray(held_out.cause)[here].astype(int)
    table = metric_table(*outcome, risk[here], run.task.horizons, censoring=g)
    own = metric_table(*outcome, risk[here], run.task.horizons)
    for h, horizon in enumerate(run.task.horizons):
        value = found[OURS, landmark, run.task.causes[0], horizon, "brier"]
        assert value == pytest.approx(table["brier"][0, h], rel=1e-5)
        assert value != pytest.approx(own["brier"][0, h], rel=1e-5)  # the mutant that ignores the wish


def test_risks_are_given_no_event_in_the_blanking_period(
    sim_data: Path, tiny_study: StudyConfig, tmp_path: Path, cheap_baselines: None
) -> None:
    task = load_task(sim_data / "task.yaml").model_copy(update={"blanking": 60.0})
    prepare(sim_data, tmp_path / "set", study=tiny_study, tasks=[task])
    store = Prepared(tmp_path / "set")
    Trainer(store, task.name, tmp_path / "run", study=tiny_study).fit()
    run = Run(tmp_path / "run")
    judged = Population.of_split(store, run.task, "held_out")
    assert (np.asarray(judged.records.rows.duration_days) > 60).all()
    settings = EvaluationConfig(baselines="fast", bootstrap=0)
    rivals = fit_rivals(Evaluated.of_run(run), store, settings)
    found = Evaluation(run, judged, prepared=store, settings=settings, fitted=rivals).tables()[0]
    at = judged.records.rows.at_landmark(0.0)
    horizons = run.task.horizons
    f = risk_of_rows(run.model, judged.records, horizons_days=[60.0, *horizons])[at].astype(float)
    alive = 1 - f[:, :, :1].sum(axis=1, keepdims=True)
    outcome = np.asarray(judged.records.rows.duration_days)[at], np.asarray(judged.records.rows.cause)[at].astype(int)
    right = metric_table(*outcome, (f[:, :, 1:] - f[:, :, :1]) / alive, horizons)
    wrong = metric_table(*outcome, f[:, :, 1:], horizons)
    for h, horizon in enumerate(horizons):
        (row,) = [
            m
            for m in found
            if (m["model"], m["landmark_days"], m["cause"], m["horizon_days"], m["metric"])
            == (OURS, 0.0, run.task.causes[0], horizon, "brier")
        ]
        assert row["value"] == pytest.approx(right["brier"][0, h], rel=1e-4)
        assert row["value"] != pytest.approx(wrong["brier"][0, h], rel=1e-3)
    # What everybody has is fitted on rows without an event in these 60 days; whatever asks from 0 on would be too high.
    rivals = [
        m["value"]
        for m in found
        if (m["landmark_days"], m["cause"], m["metric"]) == (0.0, run.task.causes[0], "oe") and m["model"] != OURS
    ]
    assert len(rivals) >= 4
    assert all(0.5 < value < 2 for value in rivals)


def test_events_of_the_frame_are_those_of_the_attrition(run: Run, prepared: Prepared) -> None:
    facts = Context(Evaluated.of_run(run), Population.of_split(prepared, run.task, "tuning"), prepared)
    frame = facts.frame()
    splits = prepared.attrition(run.task.name)["splits"]
    assert frame["events"] == {name: part["events"] for name, part in splits.items()}
    assert frame["data"]["visits"]["train"] == len(prepared.timelines("train").start_us)
    assert frame["split"] == "tuning"
    checks = facts.checks(trials=3)
    assert (checks["seeds"], checks["members"], checks["tuning_trials"]) == ([run.study.training.seed], 1, 3)
    assert frame["recalibrated_in_training"] is True
