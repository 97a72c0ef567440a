"""Training: determinism, interruption, refusals, and that it learns."""

import itertools
import json
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st

from ehrsequencing.audit.audit import audit
from ehrsequencing.batches.loader import prefetched
from ehrsequencing.config import StudyConfig, TrainingConfig, load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import read_manifest
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.simulate import simulate
from ehrsequencing.training import loop, plan
from ehrsequencing.training.checkpoints import TrainingState
from ehrsequencing.training.loop import CODE_EFFECTS_DECAY, FREE_BINS_DECAY, Losses, average, make_optimizer
from ehrsequencing.training.objectives import HazardsObjective
from ehrsequencing.training.run_folder import BEGUN
from helpers.audit import broken_set, load, save
from helpers.rows import nll_of_rows
from helpers.simulate import busy_world
from helpers.training import (
    TINY,
    Interrupted,
    NetworkTrainer as Trainer,
    losses,
    raise_at,
    train,
    weights,
)


@pytest.fixture(scope="module")
def reference(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference") / "run"
    train(sim_prepared, out)
    return out


def test_same_seed_same_bytes_and_another_seed_other_bytes(sim_prepared: Path, reference: Path, tmp_path: Path) -> None:
    train(sim_prepared, tmp_path / "again")
    assert weights(tmp_path / "again") == weights(reference)
    assert losses(tmp_path / "again") == losses(reference)
    train(sim_prepared, tmp_path / "other", "training.seed=1")
    assert weights(tmp_path / "other") != weights(reference)


@pytest.mark.parametrize("stop_at", [3, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 11))])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    sim_prepared: Path, reference: Path, tmp_path: Path, stop_at: int
) -> None:
    trainer = Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, TINY))
    with pytest.raises(Interrupted):
        trainer.fit(on_progress=raise_at(stop_at))
    torch.rand(stop_at)  # whatever else has used the random numbers meanwhile
    train(sim_prepared, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(reference)
    assert losses(tmp_path / "run") == losses(reference)


def test_a_finished_run_resumes_to_nothing_and_changed_settings_are_refused(
    sim_prepared: Path, reference: Path, tmp_path: Path
) -> None:
    before = weights(reference)
    train(sim_prepared, reference, resume=True)
    assert weights(reference) == before
    for name, value in {"learning_rate": 0.1, "epochs": 9, "patience": 9}.items():  # 8 epochs are not 2
        with pytest.raises(EhrseqError, match=rf"other settings \(what differs: training\.{name}\) .*--out"):
            train(sim_prepared, reference, f"training.{name}={value}", resume=True)
    train(sim_prepared, reference, "training.checkpoint_seconds=3", resume=True)  # decides nothing
    assert weights(reference) == before
    with pytest.raises(EhrseqError, match="not empty"):
        train(sim_prepared, reference)
    stopped = Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, TINY))
    with pytest.raises(Interrupted):
        stopped.fit(on_progress=raise_at(5))
    with pytest.raises(EhrseqError, match=r"other settings \(what differs: model\.dropout\)"):
        train(sim_prepared, tmp_path / "run", "model.dropout=0.3", resume=True)
    more = ("training.patience=9", "evaluation.bootstrap=7")  # an interrupted run may go on with them
    train(sim_prepared, tmp_path / "run", *more, resume=True)
    train(sim_prepared, tmp_path / "run", *more, resume=True)
    with pytest.raises(EhrseqError, match=r"what differs: training\.patience, evaluation\.bootstrap"):
        train(sim_prepared, tmp_path / "run", resume=True)


def test_a_damaged_checkpoint_is_an_error(sim_prepared: Path, tmp_path: Path) -> None:
    trainer = Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, TINY))
    with pytest.raises(Interrupted):
        trainer.fit(on_progress=raise_at(10))
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    data = bytearray((checkpoint / "state.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (checkpoint / "state.safetensors").write_bytes(bytes(data))
    with pytest.raises(EhrseqError, match="damaged"):
        train(sim_prepared, tmp_path / "run", resume=True)


def test_a_full_disk_is_one_error_and_keeps_the_last_checkpoint(
    sim_prepared: Path, reference: Path, tmp_path: Path
) -> None:
    """The system itself refuses to write more than a few bytes to a file, once there is a checkpoint."""
    trainer = Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, TINY))
    checkpoints, before = tmp_path / "run" / "checkpoints", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk(_: object) -> None:
        if list(checkpoints.glob("step-*")):
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    try:
        with pytest.raises(EhrseqError, match="cannot be written"):
            trainer.fit(on_progress=fill_the_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (last,) = checkpoints.glob("step-*")
    read_manifest(last, what="a checkpoint")
    assert {path.name for path in checkpoints.iterdir()} == {BEGUN, last.name}
    train(sim_prepared, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(reference)


def test_a_run_knows_the_data_that_it_was_trained_on(sim_prepared: Path, reference: Path, tmp_path: Path) -> None:
    """A prepared set with the same vocabulary and labels, and other values."""

    def change(folder: Path) -> None:
        save(folder / "visits" / "tuning", "values", load(folder / "visits" / "tuning", "values")[::-1])

    prepared, part = broken_set(sim_prepared, tmp_path / "other", change), "values"
    with pytest.raises(EhrseqError, match=rf"not what this run was trained on \(what differs: {part}\)"):
        evaluate(reference, prepared=prepared)
    with pytest.raises(EhrseqError, match=rf"not what this run was trained on \(what differs: {part}\)"):
        audit(reference, prepared=prepared)
    with pytest.raises(EhrseqError, match=rf"finished run made with other data \(what differs: {part}\)"):
        train(prepared, reference, resume=True)
    stopped = Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, TINY))
    with pytest.raises(Interrupted):
        stopped.fit(on_progress=raise_at(1))
    with pytest.raises(EhrseqError, match=rf"was started with other data \(what differs: {part}\)"):
        train(prepared, tmp_path / "run", resume=True)
    moved = Path(shutil.copytree(sim_prepared, tmp_path / "moved"))
    train(moved, reference, resume=True)  # the same data elsewhere is the same data


@pytest.mark.parametrize(("seconds", "expected"), [(0, 5), (3, 1)])
def test_no_checkpoint_is_made_soon_after_another(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: int
) -> None:
    """Six steps, a second each: a checkpoint waits for the seconds that were asked for."""
    clock = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    study = load_study(None, [*TINY, f"training.checkpoint_seconds={seconds}"])
    trainer = Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=study)
    saved: set[str] = set()
    stop = raise_at(5)

    def second_passes(progress: object) -> None:
        clock[0] += 1.0
        saved.update(path.name for path in (tmp_path / "run").glob("checkpoints/step-*"))
        stop(progress)

    with pytest.raises(Interrupted):
        trainer.fit(on_progress=second_passes)
    assert len(saved) == expected


def test_it_learns_more_than_the_cohorts_own_hazards(tiny_study: StudyConfig, tmp_path: Path) -> None:
    plain = busy_world(
        outcome_per_year=0.1,
        chronic_conditions=2,
        chronic_prevalence=0.4,
        chronic_effect=2.0,
        pair_effect=0.0,
        truth_futures=4,
    )
    simulate(tmp_path / "data", subjects=600, seed=1, config=plain)
    task = load_task(tmp_path / "data" / "task.yaml")
    prepare(tmp_path / "data", tmp_path / "set", study=tiny_study, tasks=[task])
    study = load_study(None, ["model.size=small", "training.epochs=12", "training.warmup_steps=10"])
    trainer = Trainer(Prepared(tmp_path / "set"), "simulated", tmp_path / "run", study=study)
    start = trainer.objective.tuning_nll(trainer.model)
    trainer.fit()
    history = losses(tmp_path / "run")
    assert min(tuning for _, tuning in history) < start - 0.05
    assert history[-1][0] < history[0][0]


def test_averaged_weights_follow_their_recursion() -> None:
    model, averaged = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    expected = averaged.weight.detach().clone()
    for step in (*range(1, 20), 10**6):
        torch.nn.init.normal_(model.weight)
        decay = min(0.9999, (1 + step) / (4 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
        average(averaged, model, step=step)
    torch.testing.assert_close(averaged.weight.detach(), expected)


def with_code_effects(run: Path) -> SurvivalModel:
    return build_model(Run(run).model.config.model_copy(update={"code_effects": True}))


def test_weight_decay_spares_embeddings_norms_and_biases(sim_run: Path) -> None:
    model = with_code_effects(sim_run)
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    by_name = {name: decay[id(p)] for name, p in model.named_parameters()}
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    free = {name for name in linear if name in ("head.W2.weight", "wide_head.weight")}
    curves = {name for name in by_name if name.endswith(".curves")}
    assert len(free) == len(curves) > 0
    assert {name for name, one in by_name.items() if one == 0.5} == (linear - free) | curves
    assert {name for name, one in by_name.items() if one == 0.5 * FREE_BINS_DECAY} == free  # what no curve can be
    assert by_name["code_effects.effect"] == 0.5 * CODE_EFFECTS_DECAY
    assert all("bias" not in name and "norm" not in name for name, one in by_name.items() if one)
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))


@pytest.mark.parametrize(("steps_per_epoch", "expected"), [(150, 0.5), (300, 0.5), (1200, 0.125)])
def test_weights_forget_over_as_many_epochs_whatever_their_steps(
    sim_run: Path, steps_per_epoch: float, expected: float
) -> None:
    settings = TrainingConfig(weight_decay=0.5)
    optimizer = make_optimizer(with_code_effects(sim_run), settings, steps_per_epoch=steps_per_epoch)
    factors = [0.0, 1.0, CODE_EFFECTS_DECAY, FREE_BINS_DECAY]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [expected * one for one in factors]


@pytest.mark.parametrize(("warm_epochs", "epochs"), [(2.5, 4)])
def test_patience_starts_when_the_warm_up_is_over(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_epochs: float, epochs: int
) -> None:
    """With a tuning NLL that only rises, epoch 1 is the best; two stale epochs, those of the warm-up aside, end it."""
    rising = itertools.count()
    monkeypatch.setattr(HazardsObjective, "tuning_nll", lambda self, model, *others: float(next(rising)))
    store = Prepared(sim_prepared)
    sample = Trainer(store, "simulated", tmp_path / "sample", study=load_study(None, list(TINY)))
    steps = len(sample.loader.shuffled(0, seed=0, visit_budget=sample.training.visit_budget))
    settings = [*TINY, "training.epochs=9", "training.patience=2", f"training.warmup_steps={int(warm_epochs * steps)}"]
    Trainer(store, "simulated", tmp_path / "run", study=load_study(None, settings)).fit()
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert len(history) == epochs
    assert [row["best"] for row in history] == [True] + [False] * (epochs - 1)


@pytest.mark.parametrize(
    ("nlls", "best"),
    [((2.0, 1.5, 1.4996, 1.4992), 4), ((2.0, 1.5, 1.5, 1.6), 2)],  # of equals the earlier
)
def test_of_equal_epochs_the_earlier_is_kept(
    sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nlls: tuple[float, ...], best: int
) -> None:
    given = iter(nlls)
    monkeypatch.setattr(HazardsObjective, "tuning_nll", lambda self, model, *others: next(given))
    settings = [*TINY, f"training.epochs={len(nlls)}", "training.recalibration=0"]
    Trainer(Prepared(sim_prepared), "simulated", tmp_path / "run", study=load_study(None, settings)).fit()
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert max(row["epoch"] for row in rows if row["best"]) == best


def test_the_early_stop_sees_every_prediction_time(sim_prepared: Path, tmp_path: Path) -> None:
    store = Prepared(sim_prepared)
    settings = [*TINY, "training.epochs=1", "training.recalibration=0"]
    Trainer(store, "simulated", tmp_path / "run", study=load_study(None, settings)).fit()
    (row,) = (json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines())
    nll = nll_of_rows(Run(tmp_path / "run").model, store.records("simulated", "tuning"))
    assert row["tuning_nll"] == pytest.approx(nll.mean(), 1e-5)


def test_defaults_follow_from_the_events_of_the_cohort(sim_prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Prepared(sim_prepared)
    rows = store.records("simulated", "train").rows
    by_hand = {int(s) for s, cause in zip(rows.subject, rows.cause, strict=True) if cause == 1}
    assert plan.subjects_with_event(rows) == len(by_hand) > 20
    study = load_study(None, ["model.dropout=0.1"])
    monkeypatch.setattr(plan, "FEW_EVENTS", len(by_hand) + 1)
    few = plan.study_for_cohort(study, store.task("simulated"), store.records("simulated", "train"))
    model = few.model
    assert (model.size, model.dim, model.dropout, model.code_dropout, model.wide_head) == ("small", 64, 0.1, 0.0, True)
    assert (model.table_dim, few.training.distillation) == (0, 0.0)  # a fifth of the simulated codes carry a number

    def decided(study: StudyConfig) -> tuple[bool, bool]:
        given = store, store.task("simulated"), store.records("simulated", "train"), study.training
        config = plan.resolve_model(study.model, *given)
        return config.query_follows_visit, config.code_effects

    assert decided(few) == (True, True)  # a query of codes alone holds none of what the visit before it held
    assert decided(study) == (True, False)  # many events teach a network additive effects, too
    monkeypatch.setattr(plan, "are_measurements", lambda values: len(values) > 0)
    assert decided(few) == (False, False)
    few = plan.study_for_cohort(study, store.task("simulated"), store.records("simulated", "train"))
    assert (few.model.code_dropout, few.model.table_dim, few.training.distillation) == (0.3, 128, 0.5)
    monkeypatch.setattr(plan, "FEW_EVENTS", len(by_hand))
    assert plan.study_for_cohort(study, store.task("simulated"), store.records("simulated", "train")) == study


@given(
    parts=st.fixed_dictionaries(
        {"architecture": st.sampled_from(["hierarchical", "flat"]), "head": st.sampled_from(["horizon", "visit"])},
        optional={"age_bin_years": st.just(0), "size": st.just("large")},
    )
)
def test_a_cohorts_defaults_fit_every_combination_of_parts(parts: dict[str, object]) -> None:
    """They change nothing that was given."""
    model = plan.with_defaults(StudyConfig.model_validate({"model": parts}), plan.OF_FEW_EVENTS).model
    assert parts.items() <= model.model_dump().items()


# ---- batches made ahead in another thread, and losses read late, as on a GPU -----------------------------------------


def test_an_error_in_the_other_thread_arrives_and_leaves_no_thread() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise EhrseqError("is broken", where="here", fix="fix it")

    before = threading.active_count()
    with pytest.raises(EhrseqError, match="is broken"):
        list(prefetched(items()))
    for stream in (prefetched(iter(range(9))), prefetched(iter(range(9)))):
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator
    assert threading.active_count() == before


@pytest.mark.parametrize("every", [1, 4])
def test_losses_add_up_whenever_they_are_read(every: int) -> None:
    state, losses = TrainingState(), Losses(torch.device("cpu"), scale=3.0, where="run")
    losses.every = every
    values = torch.rand(10)
    for number, value in enumerate(values, start=1):
        state.global_step = number
        losses.add(state, value, rows=2)
        assert state.row_count == 2 * (number - number % every)
    losses.read(state)
    expected = 0.0
    for value in values:
        expected += value.item() * 3.0
    assert (state.loss_sum, state.row_count) == (expected, 20)
    losses.read(state)
    assert state.row_count == 20


@pytest.mark.parametrize("every", [1, 4])
def test_a_loss_that_is_not_finite_is_named_by_its_step(every: int) -> None:
    state, losses = TrainingState(), Losses(torch.device("cpu"), scale=3.0, where="run")
    losses.every = every

    def count_to(last: int) -> None:
        for number in range(1, last + 1):
            state.global_step = number
            losses.add(state, torch.tensor(float("nan") if number >= 6 else 1.0), rows=1)

    with pytest.raises(EhrseqError, match="not finite at step 6"):
        count_to(8)
