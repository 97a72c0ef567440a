"""A blend is a run: out of fold, saved and read again, resumed to the byte, and blind to the future."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from ehrsequencing.api.training import train
from ehrsequencing.audit import predictions
from ehrsequencing.audit.data import AuditData
from ehrsequencing.cli.train import kept_epochs
from ehrsequencing.config import EvaluationConfig, StudyConfig, load_study
from ehrsequencing.core.arrays import hash_u64
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json, write_json
from ehrsequencing.evaluation.comparison import NETWORK, OURS
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.evaluation.score import score
from ehrsequencing.metrics.hazards import cumulative_incidence
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.prediction.predict import predict
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors import blend as room, fitting_data as features, history
from ehrsequencing.predictors.blend import (
    ARRAYS_FILE,
    BLEND_FILE,
    Blend,
    BlendWeights,
    blended_hazards,
    fit_weights,
    folds_of,
)
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import LandmarkCox
from ehrsequencing.predictors.fit import FOLDS
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.history import FeatureSpec, history_features
from ehrsequencing.predictors.network import Network
from ehrsequencing.predictors.recalibration import Labels, fit_recalibration
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training import plan as planning
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.transfer import Pretrained
from helpers.settings import TINY
from helpers.training import Interrupted, raise_at

SETTINGS = (*TINY, "training.epochs=1", "training.blend=true", "evaluation.bootstrap=0")
pytestmark = pytest.mark.usefixtures("quick_training")


@pytest.fixture(scope="module")
def study() -> StudyConfig:
    return load_study(None, SETTINGS)


@pytest.fixture(scope="module")
def run(prepared: Prepared, study: StudyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("blend") / "run"
    assert train(prepared, out, study=study, task="simulated", progress=False)  # as `fit` and `ehrseq train` do
    assert not (out / "checkpoints").exists()
    return out


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_bytes(
    run: Path, prepared: Prepared, study: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plan = tmp_path / "run", Plan.of(prepared, "simulated", study)
    with pytest.raises(Interrupted):
        fit(plan, out, on_progress=raise_at(3))
    with pytest.raises(EhrseqError, match="interrupted"):
        Run(out)
    other = load_study(None, [*SETTINGS, "training.seed=3"])
    with pytest.raises(EhrseqError, match="other settings"):
        fit(Plan.of(prepared, "simulated", other), out, resume=True)
    fit(plan, out, resume=True)
    for name in (BLEND_FILE, ARRAYS_FILE, "model.safetensors", "config.yaml"):
        assert (out / name).read_bytes() == (run / name).read_bytes(), name
    monkeypatch.setattr(BoostedVisits, "fit", None)
    fit(plan, out, resume=True)  # finished: nothing is done


def test_weights_are_those_of_out_of_fold_answers_and_of_tuning_people(
    run: Path, prepared: Prepared, study: StudyConfig, tmp_path: Path
) -> None:
    """By hand: trees and Cox by what they say of people they have not seen, the network beside the two by tuning."""
    plan, blend = Plan.of(prepared, "simulated", study), Run(run).blend
    assert blend is not None
    data, tuning = plan.fitting_data(), plan.tuning
    labels, rows = Labels.of(plan.train.rows, np.arange(len(plan.train))), plan.train.rows
    unseen = [np.zeros((len(plan.train), *data.cohort_hazards().shape)) for _ in range(2)]
    for fold in folds_of(np.diff(rows.row_offsets), folds=room.FOLDS, seed=data.seed):
        others, own = data.without(fold), np.isin(rows.subject, fold)
        for hazards, part in zip(unseen, (BoostedVisits.fit(others), LandmarkCox(others)), strict=True):
            hazards[own] = part.all_hazards(plan.train.take(fold))
    of_two = fit_weights(unseen, data.edges_days, labels)
    np.testing.assert_allclose(blend.stacked.weights.value, of_two.value, atol=1e-5)
    seen = [part.all_hazards(plan.train) for part in blend.stacked.parts]  # the mutant: by fits that know them
    assert np.abs(fit_weights(seen, data.edges_days, labels).value - of_two.value).max() > 0.01

    def last_step(hazards: np.ndarray, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        of, prior_sd = Labels.of(tuning.rows, rows), plan.study.training.recalibration
        fitted = fit_recalibration(np.log(hazards[rows]), data.edges_days, of, prior_sd=prior_sd)
        return lambda other: np.exp(fitted.intercept + fitted.slope * np.log(other))

    study = load_study(None, [*SETTINGS, "training.recalibration=0"])
    fit(Plan.of(prepared, "simulated", study), tmp_path / "plain")
    plain = Run(tmp_path / "plain").blend  # the same network before its last step
    assert plain is not None
    raw = [part.all_hazards(tuning) for part in (plain.parts[0], blend.stacked)]
    whole = [last_step(hazards, np.arange(len(tuning)))(hazards) for hazards in raw]
    for part, hazards in zip(blend.parts, whole, strict=True):
        np.testing.assert_allclose(part.all_hazards(tuning), hazards, rtol=1e-4)
    crossed = [hazards.copy() for hazards in raw]
    for fold in folds_of(np.diff(tuning.rows.row_offsets), folds=FOLDS, seed=data.seed):
        own = np.isin(tuning.rows.subject, fold)
        for hazards, of_all in zip(crossed, raw, strict=True):
            hazards[own] = last_step(of_all, np.flatnonzero(~own))(of_all[own])

    def weights_of(hazards: list[np.ndarray]) -> np.ndarray:
        return fit_weights(hazards, data.edges_days, Labels.of(tuning.rows, np.arange(len(tuning)))).value

    np.testing.assert_allclose(blend.weights.value, weights_of(crossed), atol=1e-4)
    assert np.abs(weights_of(whole) - weights_of(crossed)).max() > 4e-4  # the mutant: steps that saw their own subject


def test_trees_and_cox_answer_alone(run: Path, prepared: Prepared, sim_data: Path, tmp_path: Path) -> None:
    study, out = load_study(None, [*SETTINGS, "training.blend=null", "training.network=false"]), tmp_path / "run"
    fit(Plan.of(prepared, "simulated", study), out)
    alone, tuning = Run(out), prepared.records("simulated", "tuning")
    assert not (out / "model.safetensors").exists()
    assert alone.manifest["network"] is False
    assert alone.predictor.name == "trees and Cox"
    whole = Run(run).blend
    assert whole is not None
    np.testing.assert_array_equal(alone.predictor.all_hazards(tuning), whole.parts[1].all_hazards(tuning))
    for ours, theirs in zip(alone.blend.parts, whole.shares[0][1:], strict=True):
        np.testing.assert_array_equal(ours.all_hazards(tuning), theirs.all_hazards(tuning))
    assert alone.predictor.nll(tuning).mean() < alone.blend.nll(tuning).mean()  # recalibrated on them
    predict(out, sim_data, tmp_path / "risks.csv")
    result = evaluate(out, settings=EvaluationConfig(baselines="none", bootstrap=0))
    assert result["models"] == [OURS, "boosted visits", "landmark Cox"]
    beside = evaluate(out, settings=EvaluationConfig(bootstrap=0))
    assert beside["strongest"] in ("boosted visits", "landmark Cox")
    assert "trees and Cox" not in beside["models"]  # it would be compared with itself
    with pytest.raises(EhrseqError, match="has no network"):
        _ = alone.model
    with pytest.raises(EhrseqError, match="nothing starts from one"):
        Plan.of(prepared, "simulated", study, init=Pretrained(run))


def test_a_saved_blend_answers_as_it_was_fitted(run: Path, prepared: Prepared, tmp_path: Path) -> None:
    made, records = Run(run), prepared.records("simulated", "held_out")
    data = FittingData(
        made.task,
        made.vocabulary,
        prepared.records("simulated", "train"),
        prepared.records("simulated", "tuning"),
        made.model.config.edges_days,
    )
    own, of_two = (
        BlendWeights(*(np.array(value) for _ in range(3)))
        for value in ([[0.5, 0.5], [0.1, 0.9]], [[0.6, 0.4], [0.2, 0.8]])
    )
    network, step = Network(made.model), (np.full((2, 1), 0.3), np.full((2, 1), 0.8))
    stacked = Blend([BoostedVisits.fit(data), LandmarkCox(data)], of_two, name="trees and Cox")
    fitted = Blend([network, stacked.recalibrated(*step)], own)
    fitted.save(tmp_path)
    again = Blend.load(tmp_path, network)
    before, after = (blend.all_hazards(records) for blend in (fitted, again))
    np.testing.assert_array_equal(before, after)
    parts = [part.all_hazards(records) for part in (*fitted.parts, *fitted.shares[0])]
    assert all(np.abs(np.log(part) - np.log(before)).max() > 0.01 for part in parts)  # each part counts
    assert made.blend is not None
    np.testing.assert_array_equal(
        made.blend.stacked.parts[0].all_hazards(records), again.stacked.parts[0].all_hazards(records)
    )
    assert not [path for path in run.iterdir() if path.suffix in (".pkl", ".pickle", ".joblib")]


def test_a_blend_of_2_0_is_read(run: Path, prepared: Prepared, tmp_path: Path) -> None:
    """It has one weight for each of the network, trees and Cox, and no last step of the two."""
    made, records = Run(run), prepared.records("simulated", "held_out")
    for name in (BLEND_FILE, ARRAYS_FILE):
        shutil.copy(run / name, tmp_path / name)
    arrays = {name: array for name, array in load_file(run / ARRAYS_FILE).items() if not name.startswith("correction")}
    save_file(arrays, tmp_path / ARRAYS_FILE)
    each = np.array([[0.5, 0.3, 0.2], [0.0, 0.2, 0.8]])
    text = read_json(run / BLEND_FILE)
    del text["stacked"]
    text["weights"] = dict.fromkeys(("value", "low", "high"), each.tolist())
    write_json(tmp_path / BLEND_FILE, text)
    read = Blend.load(tmp_path, Network(made.model))
    parts = [part.all_hazards(records) for part in read.shares[0]]
    np.testing.assert_allclose(read.shares[1].value, each)
    np.testing.assert_allclose(read.all_hazards(records), blended_hazards(parts, each, read.edges_days), rtol=1e-9)


RANGES = tuple(f"cox.{name}" for name in ("design.fill", "design.low", "design.high", "mean", "scale"))


def told_of_few(folder: Path, prepared: Prepared, columns: list[FeatureSpec], *names: str) -> int:
    """The adversary: numbers in the files of a blend that are feature values of 1 to 4 training subjects."""
    train = prepared.records("simulated", "train")
    every, subject = np.arange(len(train)), np.asarray(train.rows.subject)
    holders: dict[float, set[int]] = {}
    for spec in columns:
        history = history_features(train, chosen=every, columns=spec).astype(np.float64)
        for values in (history, np.log1p(np.maximum(history, 0.0))):
            for who, row in zip(subject.tolist(), values.tolist(), strict=True):
                for value in row:
                    holders.setdefault(value, set()).add(who)
    arrays = load_file(folder / ARRAYS_FILE)
    own = np.concatenate([arrays[name].ravel() for name in names])
    return sum(0 < len(holders.get(float(value), ())) < 5 for value in np.unique(own[np.isfinite(own)]))


def test_no_stored_number_is_that_of_few_people(
    run: Path, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, train = Run(run), prepared.records("simulated", "train")
    assert made.blend is not None
    columns = [part.columns for part in made.blend.stacked.parts]
    assert told_of_few(run, prepared, columns, "boosted.cuts", *RANGES) == 0

    def again(**broken: Any) -> tuple[Blend, Path]:
        data = FittingData(
            made.task, made.vocabulary, train, prepared.records("simulated", "tuning"), made.blend.edges_days, **broken
        )
        stacked = Blend([BoostedVisits.fit(data), LandmarkCox(data)], made.blend.stacked.weights)
        other = Blend([made.blend.parts[0], stacked], made.blend.weights)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        other.save(folder)
        return other, folder

    assert told_of_few(again(enough=1)[1], prepared, columns, "boosted.cuts", *RANGES) > 5  # those of single people

    def plain_cuts(values: Any, owner: Any, **given: Any) -> Any:
        known = np.unique(values[~np.isnan(values)])
        return np.unique(np.quantile(known, np.linspace(0, 1, 64)[1:-1], method="nearest")) if len(known) else known

    def extremes(values: Any, owner: Any, **given: Any) -> Any:
        known = values[~np.isnan(values)]
        return (float(known.min()), float(np.median(known)), float(known.max())) if len(known) else None

    monkeypatch.setattr(features, "feature_cuts", plain_cuts)
    monkeypatch.setattr(features, "feature_range", extremes)
    _, folder = again()
    assert told_of_few(folder, prepared, columns, "boosted.cuts") > 20
    assert told_of_few(folder, prepared, columns, *RANGES) > 5


def test_members_and_recalibration_reach_the_risks_through_the_blend(run: Path, prepared: Prepared) -> None:
    pair, records = Run(run), prepared.records("simulated", "held_out")
    one, twin = Run(run).model, Run(run).model
    with torch.no_grad():
        for weights in twin.parameters():
            weights.mul_(1.3)
    pair.model = Ensemble(one.config.model_copy(update={"members": 2}))
    pair.model.members = nn.ModuleList([one, twin])
    days, blend = list(pair.task.horizons), pair.blend
    assert blend is not None
    risk, of_members = blend.risk_of_members(records, days)
    np.testing.assert_allclose(blend.risk(records, days), risk, atol=1e-7)
    other = blend.parts[1].all_hazards(records)

    def by_hand(model: Any, a: Any = 0.0, b: Any = 1.0) -> np.ndarray:
        parts = [Network(model).all_hazards(records), other]
        blended = blended_hazards(parts, blend.weights.value, blend.edges_days)
        corrected = np.exp(np.reshape(a, (-1, 1)) + np.reshape(b, (-1, 1)) * np.log(blended))
        return cumulative_incidence(corrected, blend.edges_days, np.array(days))

    np.testing.assert_allclose(risk, by_hand(pair.model), atol=1e-6)
    for of_member, model in zip(of_members, (one, twin), strict=True):
        np.testing.assert_allclose(of_member, by_hand(model), atol=1e-6)

    a, b = np.array([0.3, -0.1]), np.array([0.8, 1.2])
    corrected = Run(run).predictor.recalibrated(a, b).risk(records, days)
    np.testing.assert_allclose(corrected, by_hand(one, a, b), atol=1e-6)


def test_evaluate_judges_the_blend_and_not_its_network(
    run: Path, sim_data: Path, sim_prepared: Path, tmp_path: Path
) -> None:
    """Every row of `evaluate` is that of the risks which `predict` writes, and none that of the network alone."""
    shutil.copytree(run, tmp_path / "run")
    settings = EvaluationConfig(baselines="none", bootstrap=0)
    result = evaluate(tmp_path / "run", settings=settings)
    assert result["models"] == [OURS, NETWORK, "boosted visits", "landmark Cox"]  # each part has a row, fitted or not
    gaps = {(row["model"], row["metric"]) for row in result["differences"]}
    assert {(part, metric) for part in result["models"][1:] for metric in ("c", "ipa", "nll")} <= gaps
    assert result["strongest"] is None
    predict(run, sim_data, tmp_path / "blend.parquet")
    task, asked = Run(run).task, StudyConfig(evaluation=settings)
    scored, _ = score(tmp_path / "blend.parquet", sim_data, task, study=asked, prepared=sim_prepared)

    def values(found: dict[str, Any], model: str, metrics: tuple[str, ...]) -> dict[tuple[Any, ...], float]:
        return {
            tuple(row[name] for name in ("landmark_days", "cause", "horizon_days", "metric")): row["value"]
            for row in found["metrics"]
            if row["model"] == model and row["metric"] in metrics and row["value"] is not None
        }

    kinds = ("c", "auc", "brier", "ipa")  # O/E of a file is that of hazards between its horizons
    ours, theirs, alone = values(result, OURS, kinds), values(scored, "blend", kinds), values(result, NETWORK, kinds)
    assert set(ours) == set(theirs) == set(alone)
    assert {key[3] for key in ours} == set(kinds)
    np.testing.assert_allclose([*ours.values()], [theirs[key] for key in ours], rtol=1e-5)
    for kind in kinds:
        assert max(abs(ours[key] - alone[key]) for key in ours if key[3] == kind) > 1e-4, kind
    nll, nll_alone = (values(result, model, ("nll",)) for model in (OURS, NETWORK))
    assert set(nll) == set(nll_alone) != set()
    assert all(abs(nll[key] - nll_alone[key]) > 1e-3 for key in nll)


def test_what_a_training_says_of_its_blend_are_the_weights(run: Path) -> None:
    blend, manifest = Run(run).blend, read_json(run / "manifest.json")
    assert blend is not None
    told = manifest["blend"]["weight_of_network"]
    assert told == dict(zip(Run(run).task.causes, blend.weights.value[:, 0].tolist(), strict=True))
    lines, _ = kept_epochs(run)
    assert [line for line in lines if line.startswith("blend for ")] == [
        f"blend for {cause}: network {100 * one:.0f} %, trees and Cox {100 - 100 * one:.0f} %"
        for cause, one in told.items()
    ]
    assert "tuning_nll" not in manifest["blend"]  # people who chose everything prove nothing


def test_a_planted_leak_of_the_history_features_is_found(
    run: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network sees no future in both; only the features of trees and regressions do in the second."""
    data = AuditData(Run(run), prepared, split="held_out", subjects=30, seed=0)
    assert predictions.future_perturbation(data).verdict == "passed"
    plain = history._records_until

    def leaking(records: Any, chosen: Any) -> Any:
        part, subject, visits = plain(records, chosen)
        return part, subject, np.minimum(visits + 1, np.diff(part.subject_offsets)[subject])

    monkeypatch.setattr(history, "_records_until", leaking)
    assert predictions.future_perturbation(data).verdict == "leak"
    assert predictions.answers(data, data.asked).shape[1] == 2 * len(data.task.causes) * (
        len(Run(run).blend.edges_days) + 1
    )


@pytest.mark.parametrize(
    ("array", "other"),
    [
        ("cox.design.used", lambda old, _: old * 0 + 10**6),
        ("boosted.trees.0.feature", lambda old, used: old * 0 + used + 1),  # one behind the part of time
        ("boosted.trees.0.right", lambda old, _: old * 0 + old.shape[1]),
        ("boosted.trees.0.left", lambda old, _: old * 0),  # back to the root, for ever
    ],
)
def test_a_part_that_names_columns_or_nodes_that_there_are_not_is_refused(
    run: Path, tmp_path: Path, array: str, other: Callable[[Any, int], Any]
) -> None:
    for name in (BLEND_FILE, ARRAYS_FILE):
        shutil.copy(run / name, tmp_path / name)
    arrays, trained = load_file(tmp_path / ARRAYS_FILE), Run(run)
    assert trained.blend is not None
    changed = other(arrays[array], len(trained.blend.stacked.parts[0].used))
    save_file({**arrays, array: changed}, tmp_path / ARRAYS_FILE)
    with pytest.raises(EhrseqError, match=f"{array} names what there is not"):
        Blend.load(tmp_path, Network(trained.model))


def test_a_blend_is_the_default_where_one_is_possible(
    run: Path, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def said(text: str) -> None:
        if "query" not in text:
            told.append(text)

    def made(*settings: str, init: Pretrained | None = None) -> Plan:
        study = load_study(None, [*TINY, "training.blend=null", *settings])
        return Plan.of(prepared, "simulated", study, init=init, say=said)

    assert made().study.training.blend is True
    assert made("training.blend=false").study.training.blend is False
    assert told == []
    told.clear()
    alone = made(init=Pretrained(run))
    monkeypatch.setattr(planning, "FEWEST_EVENTS", 10**6)
    assert {plan.study.training.blend for plan in (alone, made())} == {False}
    for text, reason in zip(told, ("may have seen", "fewer than"), strict=True):
        assert text.startswith("training the network alone, without a blend: ")
        assert reason in text


def test_what_a_blend_cannot_do_is_refused(run: Path, prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match="visit head"):
        Plan.of(prepared, "simulated", load_study(None, [*SETTINGS, "model.head=visit"]))
    with pytest.raises(EhrseqError, match="may have seen the people"):
        Plan.of(prepared, "simulated", load_study(None, SETTINGS), init=Pretrained(run))
    assert folds_of(np.array([1, 0, 2, 1]), folds=2, seed=1)[0].tolist() != []


def test_new_settings_of_values_leave_the_vocabulary_of_a_run_of_2_0_as_it_is(run: Path) -> None:
    vocabulary = Run(run).vocabulary
    settings = vocabulary.settings.model_dump()
    assert settings["missing"] == ()
    before = replace(vocabulary, settings=vocabulary.settings.model_copy(update={"missing": (), "units": "as_written"}))
    assert before.digest == vocabulary.digest
    assert (
        replace(vocabulary, settings=before.settings.model_copy(update={"missing": (9999.0,)})).digest != before.digest
    )
    arrays = [
        hash_u64(a.view(np.uint64)).sum().item() for a in (vocabulary.knots.ravel(), vocabulary.mean, vocabulary.sd)
    ]
    of_2_0 = {name: one for name, one in settings.items() if name not in ("missing", "units")}
    numeric = np.flatnonzero(vocabulary.has_numbers).tolist()
    assert vocabulary.digest == digest([vocabulary.kinds, vocabulary.codes, numeric, arrays, of_2_0])
