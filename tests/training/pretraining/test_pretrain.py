"""`ehrseq pretrain` and `ehrseq train --init` from end to end, on a small simulation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from ehrsequencing.audit.data import AuditData
from ehrsequencing.audit.people import pretraining
from ehrsequencing.cli.app import app
from ehrsequencing.config import OutcomesConfig, TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.repeated_splits import repeated_splits
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.training.pretraining import pretrain as pretrain_room
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.pretraining.targets import excluded_targets
from ehrsequencing.training.run_folder import subjects_digest
from ehrsequencing.training.transfer import Pretrained
from helpers.training import Interrupted, NetworkTrainer as Trainer, raise_at

TINY = (
    *("model.dim=16", "model.heads=2", "model.layers=1", "training.epochs=1", "training.min_steps=4"),
    "training.checkpoint_seconds=0",
)


@pytest.fixture(scope="module")
def pretrained(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "model"
    found = CliRunner().invoke(app, ["pretrain", str(sim_prepared), "--out", str(out), "--task", "simulated", *TINY])
    assert found.exit_code == 0, found.output
    assert "slightly optimistic" in found.output
    return out


def pretrain(prepared: Path, out: Path, *settings: str, task: str | None = "simulated", **given: Any) -> None:
    study = load_study(None, [*TINY, *settings])
    Pretrainer(Prepared(prepared), out, study=study, task_name=task).fit(**given)


def start(prepared: Path, source: Path, *settings: str) -> Trainer:
    """A training that starts from the model, before its first step."""
    study = load_study(None, [*TINY[3:], *settings])
    return Trainer(Prepared(prepared), "simulated", prepared / "nowhere", study=study, init=Pretrained(source))


def test_the_manifest_says_who_was_seen_and_what_was_excluded(pretrained: Path, sim_prepared: Path) -> None:
    manifest = json.loads((pretrained / "manifest.json").read_text())
    prepared = Prepared(sim_prepared)
    assert manifest["subjects"]["train"] == subjects_digest(np.flip(prepared.timelines("train").subject_id))
    assert "DX//OUTCOME" in manifest["excluded_targets"]["outcome"]
    assert not any("DX//A00" in names for names in manifest["excluded_targets"].values())


class WithoutHeldOut(Prepared):
    """A prepared set whose held-out subjects nobody can look at."""

    def timelines(self, split: str) -> Timelines:
        assert split != "held_out"
        return super().timelines(split)

    def rows(self, task: str, split: str) -> TaskRows:
        assert split != "held_out"
        return super().rows(task, split)


def test_no_held_out_subject_is_read(pretrained: Path, sim_prepared: Path, tmp_path: Path) -> None:
    study = load_study(None, TINY)
    Pretrainer(WithoutHeldOut(sim_prepared), tmp_path / "model", study=study, task_name="simulated").fit()
    name = "model.safetensors"
    assert (tmp_path / "model" / name).read_bytes() == (pretrained / name).read_bytes()


@pytest.mark.slow
def test_an_interrupted_pretraining_ends_with_the_same_bytes(
    pretrained: Path, sim_prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    with pytest.raises(Interrupted):
        pretrain(sim_prepared, out, on_progress=raise_at(3))
    pretrain(sim_prepared, out, resume=True)
    assert (out / "model.safetensors").read_bytes() == (pretrained / "model.safetensors").read_bytes()
    pretrain(sim_prepared, out, resume=True)  # finished: nothing happens
    with pytest.raises(EhrseqError, match="other settings"):
        pretrain(sim_prepared, out, "pretraining.objectives=masked_codes", resume=True)


def test_a_training_starts_with_the_weights_and_settings_of_the_model(pretrained: Path, sim_prepared: Path) -> None:
    theirs = load_file(pretrained / "model.safetensors")
    trainer = start(sim_prepared, pretrained, "training.seed=1")  # what is not copied is drawn anew
    ours = dict(trainer.model.named_parameters())
    assert trainer.config.dim == 16
    never = {name for name in theirs if name.startswith("head.") or name.endswith("query")}
    tables = {"code_embedding.table.weight", "code_embedding.value_table.weight"}
    assert all(torch.equal(ours[name], theirs[name]) for name in set(theirs) - never - tables)
    summaries = torch.tensor([one.summary >= 0 for one in trainer.prepared.vocabulary.made])
    rows = ours["code_embedding.table.weight"]
    codes = len(rows) - len(summaries)
    assert torch.equal(rows[:codes], theirs["code_embedding.table.weight"][:codes])
    assert not torch.equal(rows[codes:][summaries], theirs["code_embedding.table.weight"][codes:][summaries])


def test_frozen_weights_stay_and_the_rest_learns(pretrained: Path, sim_prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["train", str(sim_prepared), "--init", str(pretrained), "transfer.mode=frozen", "--out", str(out)]
    found = CliRunner().invoke(app, [*arguments, *TINY[3:], "training.recalibration=0"])
    assert found.exit_code == 0, found.output
    assert "starts from" in found.output
    theirs, ours = load_file(pretrained / "model.safetensors"), load_file(out / "model.safetensors")
    moved = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert "head.W2.weight" in moved
    copied = {"timeline.layers.0.qkv.weight", "timeline.layers.0.attention_norm.weight", "visit_encoder.pooling.q"}
    assert not copied & moved
    codes = Pretrained(pretrained).vocabulary.n_unknown
    assert torch.equal(ours["code_embedding.table.weight"][:codes], theirs["code_embedding.table.weight"][:codes])
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["init"]["overlap"]["name"]["share"] == 1.0
    assert manifest["init"]["transfer"]["mode"] == "frozen"


def test_what_cannot_be_pretrained_is_refused(sim_prepared: Path, sim_run: Path, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match="would see what it should guess"):
        pretrain(sim_prepared, tmp_path / "a", "model.attention=bidirectional")
    with pytest.raises(EhrseqError, match="should be 'masked_codes' or 'time_to_code'"):
        load_study(None, ["pretraining.objectives=[guessing]"])
    with pytest.raises(EhrseqError, match="no model to start from"):
        Pretrained(sim_prepared)
    assert Pretrained(sim_run).is_run


# ---- for a task with many outcomes: none of them is a target, and the audit says so ----------------------------------


MANY = (
    *("model.dim=16", "model.heads=2", "model.layers=1", "training.grid_bins=4"),
    *("training.epochs=1", "training.min_steps=2", "training.masked_codes=0", "training.recalibration=0"),
)


@pytest.fixture(scope="module")
def asked(sim_data: Path, sim_task: TaskConfig, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Every A is an outcome; in the second task everything is."""
    out = tmp_path_factory.mktemp("many") / "set"
    some, every = (OutcomesConfig(codes=(codes,), min_subjects=10) for codes in ("DX//A*", "*"))
    tasks = [sim_task.model_copy(update={"outcomes": some})]
    tasks += [sim_task.model_copy(update={"name": "everything", "outcomes": every})]
    prepare(sim_data, out, study=load_study(None), tasks=tasks)
    return Prepared(out)


def pretrain_many(asked: Prepared, out: Path, *settings: str, task: str | None = "simulated") -> Path:
    Pretrainer(asked, out, study=load_study(None, [*MANY, *settings]), task_name=task).fit()
    return out


def train(asked: Prepared, out: Path, init: Path) -> Path:
    given = [setting for setting in MANY if not setting.startswith("model.")]
    study = load_study(None, given)
    Trainer(asked, "simulated", out, study=study, init=Pretrained(init)).fit()
    return out


def audited(run: Path, asked: Prepared) -> Any:
    return AuditData(Run(run), asked, split="held_out", subjects=5, seed=0)


@pytest.fixture(scope="module")
def source(asked: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain_many(asked, tmp_path_factory.mktemp("many") / "source", "pretraining.objectives=[time_to_code]")


def test_no_outcome_is_a_target_and_the_audit_follows_the_chain(asked: Prepared, source: Path, tmp_path: Path) -> None:
    outcomes = asked.outcomes("simulated")
    assert len(outcomes) > 3
    left_out = Pretrained(source).manifest["excluded_targets"]
    assert set(outcomes) <= set(left_out["outcomes"])
    first = train(asked, tmp_path / "first", source)
    second = train(asked, tmp_path / "second", first)
    for run in (first, second):
        assert pretraining(audited(run, asked)).verdict == "passed"
    assert Run(second).manifest["init"]["init"]["objectives"]
    with pytest.raises(EhrseqError, match="hold out subjects whom it saw"):
        repeated_splits(first, splits=2)


@pytest.mark.parametrize("mutant", ["its own outcome alone", "nothing"])
def test_a_pretraining_that_predicts_outcomes_is_found(
    mutant: str, asked: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exclusion as it once was: outcomes beside the task's own were targets."""
    if mutant == "nothing":
        source = pretrain_many(asked, tmp_path / "source", task=None)
    else:
        none = np.zeros(0, dtype=np.int64)
        monkeypatch.setattr(
            pretrain_room, "excluded_targets", lambda *a, **k: excluded_targets(*a, **k) | {"outcomes": none}
        )
        source = pretrain_many(asked, tmp_path / "source")
    second = train(asked, tmp_path / "second", train(asked, tmp_path / "first", source))
    found = pretraining(audited(second, asked))
    assert found.verdict == "warning"
    assert f"the run's {len(asked.outcomes('simulated'))} outcomes" in found.reason


def test_where_every_code_is_an_outcome_pretraining_is_refused(asked: Prepared, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"of its outcomes and their relatives.*leave out --task"):
        pretrain_many(asked, tmp_path / "none", task="everything")
