"""Pretraining for a task with many outcomes: none of them is a target, and the audit says so, through a chain too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ehrsequencing.audit.data import AuditData
from ehrsequencing.audit.people import pretraining
from ehrsequencing.config import OutcomesConfig, TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.repeated_splits import repeated_splits
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.pretraining import pretrain as pretrain_room
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.pretraining.targets import excluded_targets
from ehrsequencing.training.transfer import Pretrained
from helpers.training import NetworkTrainer as Trainer

TINY = (
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


def pretrain(asked: Prepared, out: Path, *settings: str, task: str | None = "simulated") -> Path:
    Pretrainer(asked, out, study=load_study(None, [*TINY, *settings]), task_name=task).fit()
    return out


def train(asked: Prepared, out: Path, init: Path) -> Path:
    given = [setting for setting in TINY if not setting.startswith("model.")]
    study = load_study(None, given)
    Trainer(asked, "simulated", out, study=study, init=Pretrained(init)).fit()
    return out


def audited(run: Path, asked: Prepared) -> Any:
    return AuditData(Run(run), asked, split="held_out", subjects=5, seed=0)


@pytest.fixture(scope="module")
def source(asked: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(asked, tmp_path_factory.mktemp("many") / "source", "pretraining.objectives=[time_to_code]")


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
        source = pretrain(asked, tmp_path / "source", task=None)
    else:
        none = np.zeros(0, dtype=np.int64)
        monkeypatch.setattr(
            pretrain_room, "excluded_targets", lambda *a, **k: excluded_targets(*a, **k) | {"outcomes": none}
        )
        source = pretrain(asked, tmp_path / "source")
    second = train(asked, tmp_path / "second", train(asked, tmp_path / "first", source))
    found = pretraining(audited(second, asked))
    assert found.verdict == "warning"
    assert f"the run's {len(asked.outcomes('simulated'))} outcomes" in found.reason


def test_where_every_code_is_an_outcome_pretraining_is_refused(asked: Prepared, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"of its outcomes and their relatives.*leave out --task"):
        pretrain(asked, tmp_path / "none", task="everything")
