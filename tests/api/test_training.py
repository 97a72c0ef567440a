"""A loss of one's own, a run of one's own loop, callbacks, vectors, and comparisons over seeds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ehrsequencing as eh
from ehrsequencing.api import study as room
from ehrsequencing.api.study import ablate
from ehrsequencing.api.training import train
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.report import ANSWER
from helpers.command_line import refused
from helpers.settings import TINY

MODEL = {"dim": 16, "heads": 2, "layers": 1}
SHORT: dict[str, Any] = {"model": MODEL, "epochs": 2, "min_steps": 3, "seed": 0, "progress": False}
ALONE = {"blend": False, "distillation": 0.0, "masked_codes": 0.0}


def doubled(model: Any, batch: eh.VisitBatch) -> torch.Tensor:
    return 2 * model.loss(batch)


def fresh_model(data: Any) -> eh.HierarchicalBEHRTForSurvival:
    torch.manual_seed(0)
    config = eh.ModelConfig(vocab_size=len(data.vocabulary), causes=2, edges_days=(365.25, 730.5), **MODEL)
    model = eh.HierarchicalBEHRTForSurvival(config)
    model.start_at_rates(next(data.batches("train", visit_budget=10**6)))
    return model


def test_a_loss_of_ones_own_decides_the_training_and_is_noted(here: Path, tmp_path: Path) -> None:
    data, rows = eh.load("prepared"), list[dict[str, Any]]()
    run = eh.fit(data, out=tmp_path / "own", loss=doubled, callbacks=[rows.append], **SHORT)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert set(rows[0]) == {"epoch", "train_loss", "tuning_loss", "best", "member"}
    assert run.history.tuning_loss.tolist() == [row["tuning_loss"] for row in rows]
    assert {"train_loss", "tuning_nll"} <= set(run.history.columns)
    # what is trained is the loss as it is given: about twice the NLL of the same prediction times
    assert 1.5 < run.history.tuning_loss[0] / run.history.tuning_nll[0] < 2.5
    assert run.blend is None
    assert run.study.training.masked_codes == 0.0
    noted = run.manifest["loss"]
    assert noted["name"] == "doubled"
    assert len(noted["source"]) == 16
    assert "with the loss doubled" in Run(run.folder).trained
    plain = eh.fit(data, out=tmp_path / "plain", training=ALONE, **SHORT)
    assert not plain.trained
    assert set(plain.manifest["made_of"]) == set(run.manifest["made_of"]) - {"loss.name", "loss.source"}
    # another function under the same name is another training, and nothing goes on by itself
    with pytest.raises(EhrseqError, match=r"the code of the loss may have changed since .*resume=True"):
        eh.fit(data, out=tmp_path / "own", loss=doubled, **SHORT)
    changed = lambda model, batch: 3 * model.loss(batch)  # noqa: E731
    with pytest.raises(EhrseqError, match=r"what differs: loss\.name, loss\.source"):
        eh.fit(data, out=tmp_path / "own", loss=changed, resume=True, **SHORT)


@pytest.mark.parametrize(
    ("loss", "answer"),
    [
        (lambda out, batch: out.sum(), "AttributeError: a model has no attribute 'sum'"),
        (lambda batch: 0, "TypeError"),
        (lambda model, batch: model.nll(batch), "grad can be implicitly created only for scalar outputs"),
        (lambda model, batch: torch.ones(()), "does not require grad"),
        (lambda model, batch: 1.0, "'float' object has no attribute 'backward'"),
    ],
)
def test_a_loss_that_fails_does_so_on_one_batch_before_anything_is_written(
    loss: Any, answer: str, here: Path, tmp_path: Path
) -> None:
    form = r"loss\(model, batch\): failed on the first batch, .*write def loss\(model, batch\)"
    with pytest.raises(EhrseqError, match=form) as caught:
        eh.fit("prepared", out=tmp_path / "own", loss=loss, training={"blend": True}, **SHORT)
    assert answer in str(caught.value)
    assert list((tmp_path / "own").glob("**/*.json")) == []


def test_a_loss_takes_no_teacher_and_an_ensemble_takes_the_loss(here: Path, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"training\.distillation would do nothing beside a loss"):
        eh.fit("prepared", out=tmp_path / "own", loss=doubled, distillation=0.5, **SHORT)
    both = eh.fit("prepared", out=tmp_path / "both", loss=doubled, members=2, **{**SHORT, "epochs": 1})
    assert both.history.member.tolist() == [1, 2]
    assert (both.history.tuning_loss > both.history.tuning_nll).all()


@pytest.mark.parametrize("callback", [lambda: None, lambda epoch, logs: None, lambda **named: None, 3])
def test_a_callback_is_a_function_of_one_row(callback: Any, here: Path, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"one argument, the row of an epoch .*row\['tuning_nll'\]"):
        eh.fit("prepared", out=tmp_path / "own", callbacks=[callback], training=ALONE, **SHORT)


def test_a_run_of_ones_own_loop_is_a_run_like_any_other(here: Path, tmp_path: Path) -> None:
    data = eh.load("prepared")
    model = fresh_model(data).train()
    run = eh.save_run(model, data, out=tmp_path / "outside")
    assert model.training, "saving changed the author's model"
    assert {"reference.json", "people.json"} <= run.manifest["files"].keys()
    assert run.manifest["trained"] == "outside"
    batch = next(data.batches("held_out"))
    again = eh.load(tmp_path / "outside").model
    torch.testing.assert_close(again.risk(batch, [365.25]), run.model.risk(batch, horizons_days=[365.25]))
    assert run.predict("meds").shape == (400, 9)
    assert len(run.explain("meds", subject=1)) > 0
    ev = eh.evaluate(run, bootstrap=20, baselines="none", progress=False)
    assert "in a loop of its authors" in (run.folder / ANSWER).read_text(encoding="utf-8")
    assert "Random seed" not in (run.folder / "report-details.html").read_text(encoding="utf-8")
    assert ev.metrics.value.notna().any()
    checks = eh.audit(run, subjects=10, progress=False)
    assert (checks.verdict != "leak").all()
    assert len(run.history) == 0


def test_a_model_of_another_shape_makes_no_run(here: Path, tmp_path: Path) -> None:
    data, config = eh.load("prepared"), {"vocab_size": 9, "causes": 1, "edges_days": (365.25,), **MODEL}
    wrong = eh.HierarchicalBEHRTForSurvival(eh.ModelConfig(**config))
    with pytest.raises(
        EhrseqError, match=r"ModelConfig\(vocab_size=\d+, causes=2, edges_days=\(365\.25, 730\.5\), …\)"
    ):
        eh.save_run(wrong, data, out=tmp_path / "wrong")
    with pytest.raises(EhrseqError, match=r"got Linear .*eh\.score"):
        eh.save_run(torch.nn.Linear(2, 2), data, out=tmp_path / "wrong")  # type: ignore[arg-type]
    assert not (tmp_path / "wrong").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    with pytest.raises(EhrseqError, match="is not empty"):
        eh.save_run(fresh_model(data), data, out=tmp_path / "used")


def test_vectors_of_patients_and_of_visits_are_the_states_behind_the_risks(here: Path) -> None:
    run = eh.load("runs/hf")
    patients, visits = run.embed("meds"), run.embed("meds", at="all")
    assert patients.shape == (400, 16)
    assert len(visits) == len(run.predict("meds", at="all"))
    last = visits.groupby("subject_id").tail(1)
    assert patients.index.equals(last.index)
    np.testing.assert_allclose(patients.to_numpy(), last.to_numpy(), atol=1e-5)
    records = run.prepared().records("hf", "held_out")
    with pytest.raises(AttributeError, match=r"use run\.embed"):
        _ = run.embeddings
    assert len(records) <= len(visits)


def test_a_comparison_puts_seeds_together_and_prints_few_lines(here: Path, tmp_path: Path) -> None:
    data = eh.load("prepared")
    runs = []
    for seed in (0, 1):
        for encoder in ("mean", "max"):
            place = tmp_path / f"{encoder}-{seed}"
            own = {**SHORT, "model": {**MODEL, "visit_encoder": encoder}, "seed": seed, "epochs": 1}
            runs.append(eh.fit(data, out=place, training=ALONE, **own))
    found = eh.compare(runs, bootstrap=0, progress=False)
    assert found.by_settings.index.tolist() == ["model.visit_encoder=mean", "model.visit_encoder=max"]
    assert found.by_settings["c", "count"].tolist() == [2, 2]
    c = found.metrics.query("metric == 'c' and cause == 'hf' and horizon == '2y' and landmark == '0d'")
    means = c[c.model.str.startswith("mean")].value
    assert found.by_settings.loc["model.visit_encoder=mean", ("c", "mean")] == pytest.approx(means.mean())
    assert found.by_settings.loc["model.visit_encoder=mean", ("c", "std")] == pytest.approx(means.std())
    assert "2 × model.visit_encoder=mean: c " in repr(found)
    assert " ± " in repr(found)
    assert len(repr(found).splitlines()) <= 30
    alike = eh.compare([runs[0], runs[0]], bootstrap=0, progress=False)
    assert alike.by_settings.index.tolist() == ["settings alike"]
    one = eh.compare(runs[:2], bootstrap=0, progress=False)
    assert "nan" not in repr(one)
    # named groups, and differences paired over seeds: by hand
    named = eh.compare({"mean of codes": runs[::2], "largest": runs[:0:-2]}, bootstrap=0, progress=False)
    assert named.by_settings.index.tolist() == ["mean of codes", "largest"]
    values = [c[c.model == name].value.iloc[0] for name in ("mean-0", "mean-1", "max-0", "max-1")]
    gaps = np.array(values[:2]) - np.array(values[2:])
    row = named.paired.loc[("largest", "c")]
    assert (row.pairs, row["mean"]) == (2, pytest.approx(gaps.mean()))
    half = 12.706204736 * gaps.std(ddof=1) / 2**0.5  # Student's t with one degree of freedom
    assert [row.low, row.high] == pytest.approx([gaps.mean() - half, gaps.mean() + half])
    assert "2 × mean of codes & " in named.means().to_latex()
    with pytest.raises(EhrseqError, match="two runs or more"):
        eh.compare({"mine": runs[0]}, bootstrap=0, progress=False)


def test_a_training_that_learnt_nothing_says_so(here: Path, tmp_path: Path) -> None:
    data = eh.load("prepared")
    untrained = eh.save_run(fresh_model(data), data, out=tmp_path / "untrained")
    assert "learned nothing that shows" in repr(untrained)
    assert eh.save_run(eh.load("runs/hf").model, data, out=tmp_path / "again").manifest["trained"] == "outside"
    heard: list[str] = []
    short = {"model": MODEL, "training": {**ALONE, "epochs": 1, "min_steps": 1}}
    for name, own in {"short": short, "trees": {"training": {"network": False}}}.items():
        study = StudyConfig.model_validate(own)
        train(data, tmp_path / name, study=study, progress=False, say=heard.append)
        assert eh.load(tmp_path / name).manifest["learned"] == (name == "trees")
    assert ["learned nothing" in line for line in heard].count(True) == 1


@pytest.mark.slow
def test_a_training_that_its_length_stops_is_said(here: Path, tmp_path: Path) -> None:
    run = eh.fit("prepared", out=tmp_path / "short", training=ALONE, **{**SHORT, "epochs": 1})
    assert run.history.best.tolist()[-1]
    ev = eh.evaluate(run, bootstrap=0, baselines="none", report=False, progress=False)
    assert any("stopped after 1 epochs, before the model had learnt" in text for text in ev.result["warnings"])


@pytest.mark.slow
def test_the_horizon_that_the_task_names_is_asked_about_everywhere(here: Path, tmp_path: Path) -> None:
    task = {**eh.load("runs/hf").task.model_dump(mode="json", exclude_none=True), "main": "1y", "name": "hf"}
    data = eh.prepare("meds", task, out=tmp_path / "prepared", progress=False)
    run = eh.fit(data, out=tmp_path / "run", training=ALONE, **{**SHORT, "epochs": 1})
    assert run.main_horizon == 365.25
    ev = eh.evaluate(run, bootstrap=0, baselines="none", progress=False)
    assert ev.result["main"]["horizon_days"] == 365.25
    assert ev.plot_calibration().get_title(loc="left") == "hf by 1y"
    assert "within 1 year" in (run.folder / ANSWER).read_text(encoding="utf-8")
    asked = run.explain("meds", subject=1, horizon="1y")
    assert run.explain("meds", subject=1).equals(asked)
    run.explore("meds", tmp_path / "explorer.html", subjects=10, what_if=False, progress=False)
    assert '"main":0' in (tmp_path / "explorer.html").read_text(encoding="utf-8").replace(" ", "")
    # without a name: what the evaluation found, also where a risk is explained
    other = eh.load("runs/hf")
    assert other.main_horizon == other.evaluation.result["main"]["horizon_days"]


# ---- `compare --ablate`: the same people and seeds, each value by networks alone, kept where it was stopped ----------


QUICK = (*TINY, "training.epochs=1")


def test_values_are_compared_over_seeds_and_people_and_finished_runs_are_kept(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = Prepared(sim_prepared), tmp_path / "ablation"
    asked: dict[str, Any] = {"out": out, "seeds": 2, "overrides": QUICK, "progress": False}
    found = ablate(store, "model.visit_encoder", ["mean", "attention"], **asked)
    folders = [out / value / f"seed-{seed}" for value in ("mean", "attention") for seed in range(2)]
    for folder, row in zip(folders, found.runs(), strict=True):
        run = Run(folder)
        assert (row["group"], row["seed"]) == (run.study.model.visit_encoder, run.study.training.seed)
        assert folder == out / row["group"] / f"seed-{row['seed']}"
        assert (run.study.training.blend, run.study.training.distillation) == (False, 0.0)
    nll = np.reshape([row["nll"] for row in found.runs()], (2, 2))
    assert found.by_settings["nll", "mean"].to_numpy() == pytest.approx(nll.mean(axis=1))
    assert found.paired.loc[("attention", "nll"), "mean"] == pytest.approx((nll[0] - nll[1]).mean())
    assert json.loads((out / "ablation.json").read_text())["runs"] == found.runs()

    trained: list[Path] = []
    fit = room.fit
    monkeypatch.setattr(room, "fit", lambda plan, folder, **more: trained.append(folder) or fit(plan, folder, **more))
    again = ablate(store, "model.visit_encoder", ["mean", "attention"], **asked)
    assert len(trained) == 4  # each is asked, and none is trained again
    assert again.runs() == found.runs()
    with pytest.raises(EhrseqError, match="other settings"):
        ablate(store, "model.visit_encoder", ["mean", "sum"], **asked | {"overrides": TINY})


def test_what_cannot_be_compared_is_refused(sim_prepared: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    same = ("training.seed=1,2", "training.blend=true,false", "training.distillation=0,0.5", "visits.by=day,window")
    for asked in ("model.visit_encoder=mean", "model.visit_encoder=mean,mean", "model.dropout=0,0.0", *same):
        assert "two different values or more" in refused("compare", str(sim_prepared), "--ablate", asked, "--out", out)
    assert "one setting" in refused("compare", str(sim_prepared), "--ablate", "model.visit_encoder", "--out", out)
    for setting, values in (
        ("position", "learned,nowhere"),
        ("age_bin_years", "5,-1"),
        ("attention", "causal,bidirectional"),
    ):
        asked = f"model.{setting}={values}"
        assert setting in refused("compare", str(sim_prepared), "--ablate", asked, "--out", out)
    assert not Path(out).exists()  # nothing was trained before
    assert "colour" in refused("compare", str(sim_prepared), "--ablate", "model.colour=red,blue", "--out", out)
    assert "need --out" in refused("compare", str(sim_prepared), "--ablate", "model.position=none,learned")
    assert "--ablate" in refused("compare", str(sim_prepared), str(sim_prepared), "--seeds", "3")
