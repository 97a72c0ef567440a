"""Training: `fit`, `pretrain`, `save_run`, and what they share with the commands."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from ehrsequencing.api.data import is_path, study_of
from ehrsequencing.api.progress import Callback, print_line, training_bar
from ehrsequencing.config import (
    ModelSettings,
    Settings,
    StudyConfig,
    TrainingConfig,
    refuse_changes,
    refuse_unused,
    validated,
)
from ehrsequencing.config.base import visit_encoder
from ehrsequencing.core.errors import EhrseqError, refuse_idle
from ehrsequencing.core.files import refuse_overlap
from ehrsequencing.core.outputs import (
    PRETRAINED,
    RUN,
    UNFINISHED_PRETRAINING,
    UNFINISHED_RUN,
    Kind,
    remove_existing,
)
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.results.result_types import Origin
from ehrsequencing.training import fit as training, run_folder
from ehrsequencing.training.plan import Plan, shape_of_inputs
from ehrsequencing.training.processes import ALONE

if TYPE_CHECKING:  # torch is imported where a network is made, a run where one is returned
    from ehrsequencing.api.run import TrainedRun
    from ehrsequencing.models.base import SurvivalModel
    from ehrsequencing.training.objectives import LossFunction

# a loss of one's own is learned by the network alone, unless these are given
_NOTHING_ELSE = {"blend": False, "distillation": 0.0, "masked_codes": 0.0}
_WITHOUT_NETWORK = {"network", "grid_bins", "recalibration"}  # of training: what trees and Cox use


@overload
def fit(
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    seeds: None = None,
    **settings: Any,
) -> "TrainedRun": ...
@overload
def fit(
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    seeds: int | Sequence[int],
    **settings: Any,
) -> "list[TrainedRun]": ...
def fit(
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    seed: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] | None = None,
    init: str | os.PathLike[str] | None = None,
    transfer: str | Mapping[str, Any] | None = None,
    loss: "LossFunction | None" = None,
    callbacks: Sequence[Callback] = (),
    resume: bool | None = None,
    overwrite: bool = False,
    progress: bool = True,
    **others: Any,
) -> "TrainedRun | list[TrainedRun]":
    """Fit a model, with early stopping on the tuning split.

    A new model starts at the training subjects' own rates: before the first step everybody's risk is about the observed
    incidence, so that training only has to learn who is above and who is below it.

    Args:
        data: What `prepare` gave, or its folder.
        out: Folder of the run.
        task: Name of the task; the only one by default.
        model: Settings of the model, as in `{"size": "small", "visit_encoder": "attention"}`.
        training: Settings of training, as in `{"epochs": 30, "members": 5}`.
        evaluation: Settings that `evaluate` takes from the run.
        seed: Seed of the training.
        seeds: Of several trainings, as in `3` (the seeds 0, 1, 2) or `[7, 8]`, in folders `seed-0` … of `out`.
        init: A model to start from: a run, or its folder, that `pretrain` or `fit` made (docs/pretraining.md).
        transfer: With `init`: `full` or `frozen`, or settings, as in `{"mode": "frozen"}`.
        loss: A loss of your own, `loss(model, batch)`, in the place of the likelihood: a scalar tensor. The network
            learns it alone, without trees, Cox and masked codes, unless `training` asks for them; its mean over the
            tuning batches decides when to stop. The run notes its name and the hash of its source.
        callbacks: Functions that are called after each epoch with its row, as in
            `{"epoch": 1, "train_nll": 2.1, "tuning_nll": 2.0, "best": True, "member": 1}`; with a loss of your own
            `train_loss` and `tuning_loss`.
        resume: Whether to go on with an interrupted run of the same settings and data in `out`, or to load it if it is
            complete. Default: yes, unless the model or its loss is your own, whose code may have changed.
        overwrite: Whether an earlier run in `out` that nobody has changed is replaced.
        progress: Whether to show a bar, and a line for each epoch.
        others: Settings of training by their own names, as in `epochs=30, device="cpu"`.

    Returns:
        The run; with `seeds` a list, as `compare` takes it.

    Raises:
        EhrseqError: A setting is unknown, there is too little to train on, the loss fails on one batch, or `out` holds
            another run.

    Example:
        >>> import ehrsequencing as eh
        >>> small = {"dim": 16, "heads": 2, "layers": 1}
        >>> run = eh.fit("prepared", out="runs/small", model=small, epochs=1, blend=False, seed=0, progress=False)
        >>> len(run.history)
        1
    """
    if not isinstance(model, Mapping | Settings | None):
        raise EhrseqError(
            f"expected settings, as in {{'size': 'small'}}, got {type(model).__name__}",
            where="fit, model",
            fix="declare a part of your own by @eh.visit_encoder('mine'), or train a model in your "
            "own loop and write eh.save_run(model, data, out=…)",
        )
    several = seeds if seeds is not None else None if isinstance(seed, int) else seed
    if several is not None:
        alike: dict[str, Any] = {"model": model, "training": training, "evaluation": evaluation}
        alike |= {"init": init, "transfer": transfer, "callbacks": callbacks, "resume": resume}
        alike |= {"loss": loss, "overwrite": overwrite, "task": task, "progress": progress}
        return [
            fit(data, out=Path(out) / f"seed-{one}", seed=one, **alike, **others)
            for one in (range(several) if isinstance(several, int) else several)
        ]
    own = {name: others.pop(name) for name in list(others) if name in TrainingConfig.model_fields}
    own |= {} if seed is None else {"seed": seed}
    refuse_unused(others, "train")
    refuse_idle({name: name in (training or {}) for name in own}, "twice", where="fit")
    alone = {} if loss is None else _NOTHING_ELSE
    settings: dict[str, Any] = {
        **others,
        "model": dict(model or {}),
        "evaluation": dict(evaluation or {}),
    }
    settings["training"] = {**alone, **(training or {}), **own}
    if transfer is not None:
        if init is None:
            raise EhrseqError(
                "transfer needs init", where="fit", fix="name the model to start from"
            )
        settings["transfer"] = {"mode": transfer} if isinstance(transfer, str) else dict(transfer)
    study = validated(StudyConfig, settings, where="fit")
    refuse_idle(
        {"training.distillation": study.training.distillation > 0},
        "beside a loss of your own",
        where="fit",
        when=loss is not None,
    )
    refuse_of_network(study, {"loss": loss, "callbacks": callbacks or None}, where="fit")
    if resume is None:
        resume = not overwrite and _may_resume(study, Path(out), loss)
    store = _prepared(data)
    source = None if init is None else Path(getattr(init, "folder", init))
    train(
        store,
        Path(out),
        study=study,
        task=task,
        init=source,
        loss=loss,
        callbacks=callbacks,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
        say=print_line if progress else lambda _: None,
    )
    from ehrsequencing.api.run import TrainedRun

    return TrainedRun(Path(out))


def refuse_of_network(
    study: StudyConfig, more: Mapping[str, object] = MappingProxyType({}), *, where: str
) -> None:
    """Refuse settings and arguments that a network alone has, where a study trains none."""
    of_training = study.training.model_fields_set - _WITHOUT_NETWORK
    names = [f"model.{name}" for name in sorted(study.model.model_fields_set)]
    names += [f"training.{name}" for name in sorted(of_training)]
    given = dict.fromkeys(names, True) | dict(more)
    refuse_idle(given, "without a network", where=where, when=not study.training.network)


def train(
    prepared: Prepared,
    out: Path,
    *,
    study: StudyConfig,
    task: str | None = None,
    init: Path | None = None,
    loss: "LossFunction | None" = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    on_start: Callable[[Origin | None], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Train a run, alone or as one of several processes of torchrun; `fit` and `ehrseq train` call it.

    Args:
        prepared: The prepared set.
        out: Folder of the run.
        study: All settings.
        task: Name of the task; the only one by default.
        init: Folder of a model to start from.
        loss: In the place of the likelihood.
        callbacks: Called with the row of each epoch, by the first process.
        resume: Whether to go on after an interruption.
        overwrite: Whether an earlier run there that nobody has changed is removed.
        progress: Whether to show a bar, and a line for each epoch.
        on_start: Called with what the weights start from, before the first step.
        say: Called by the first process with remarks.

    Returns:
        Whether this process is the first one, which prints.
    """
    with ExitStack() as stack:
        processes = ALONE
        if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from ehrsequencing.training.torchrun import joined_processes

            processes = stack.enter_context(joined_processes())
        is_first = processes.is_first
        if is_first and overwrite:
            _make_room(prepared, out, RUN, resume=resume)
        if is_first:
            stack.enter_context(run_folder.alone_in(out))  # before the work begins
        source = trainer = None
        if init is not None:
            from ehrsequencing.training.transfer import Pretrained

            source = Pretrained(init)
        tell = say if is_first else lambda _: None
        name = task or prepared.only_task()
        plan = replace(Plan.of(prepared, name, study, init=source, say=tell), loss=loss)
        if loss is not None:
            from ehrsequencing.training.train import Trainer

            # made here, so that a loss that fails does so before trees are grown and a folder is made
            trainer = Trainer(plan, processes)
        word = "NLL" if loss is None else "loss"
        each = callbacks if is_first else ()
        report = stack.enter_context(
            training_bar(word=word, show=progress and is_first, callbacks=each)
        )
        training.fit(
            plan,
            out,
            resume=resume,
            trainer=trainer,
            processes=processes,
            on_start=on_start if is_first else lambda _: None,
            on_progress=report,
            say=tell,
        )
        return is_first


def _prepared(data: Prepared | str | os.PathLike[str]) -> Prepared:
    """A prepared set, given as such or by its folder."""
    if isinstance(data, Prepared):
        return data
    if not is_path(data):
        fix = "give what eh.prepare made, or its folder"
        raise EhrseqError(
            f"expected a prepared set, got {type(data).__name__}", where="data", fix=fix
        )
    if (Path(data) / "data").is_dir():
        raise EhrseqError(
            "holds records that are not prepared",
            where=str(data),
            fix="write eh.fit(eh.prepare(data, task='task.yaml', out='prepared'), out=…), or use eh.run",
        )
    return Prepared(Path(data))


def _make_room(prepared: Prepared, out: Path, kind: Kind, *, resume: bool) -> None:
    """Remove an earlier model that nobody has changed, finished or interrupted, for a training that starts again.

    Raises:
        EhrseqError: The output is of another kind, has been changed or overlaps the prepared set.
    """
    if resume:
        raise EhrseqError(
            "--resume goes on with what --overwrite removes",
            where=str(out),
            fix="leave out one of them",
        )
    refuse_overlap(out, prepared.folder)
    run_folder.remove_unfinished(out, UNFINISHED_RUN if kind is RUN else UNFINISHED_PRETRAINING)
    remove_existing(out, kind)


def _may_resume(study: StudyConfig, out: Path, loss: "LossFunction | None") -> bool:
    """Whether to go on with what the folder holds, where nothing was said.

    Raises:
        EhrseqError: It holds something, and a part of the model or its loss is declared outside of this package.
    """
    name = study.model.visit_encoder
    is_own = name not in visit_encoder.modules or loss is not None
    if is_own and out.is_dir() and any(out.iterdir()):
        part = f"visit_encoder={name}" if loss is None else "the loss"
        raise EhrseqError(
            f"is not empty, and the code of {part} may have changed since",
            where=str(out),
            fix="name another folder, or say resume=True",
        )
    return not is_own


def pretrain(
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    study: StudyConfig | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    **sections: Any,
) -> dict[str, Any]:
    """Fit a model to records without labels, with early stopping on the tuning split.

    Args:
        data: A prepared set, or its folder.
        out: Folder of the pretrained model, for `ehrseq train --init`.
        task: A task of the set, whose outcome, relatives and near-synonyms are then no targets.
        study: All settings in one, in the place of sections; its task is not used.
        resume: Continue after an interruption.
        overwrite: Whether an earlier model there that nobody has changed is removed.
        progress: Whether to show a bar, and a line for each epoch.
        sections: Settings, as in `model={"size": "small"}`, `training={"epochs": 20}`,
            `pretraining={"objectives": ["masked_codes"]}`.

    Returns:
        What was measured on the tuning split (the content of `pretraining.json`): for each objective its loss in
        nats beside that of frequencies, and the gain with its interval.

    Raises:
        EhrseqError: A setting is unknown, the data cannot be used, or `out` holds something else.
    """
    from ehrsequencing.training.pretraining.pretrain import Pretrainer

    folder, prepared = Path(out), _prepared(data)
    settings = study_of(study, sections, where="pretrain")
    refuse_changes(settings, prepared.study, "pretrain", file=None, by=prepared.folder)
    if overwrite:
        _make_room(prepared, folder, PRETRAINED, resume=resume)
    with run_folder.alone_in(folder):  # before the work begins
        pretrainer = Pretrainer(prepared, folder, study=settings, task_name=task)
        with training_bar("pretraining", word="loss", show=progress) as report:
            return pretrainer.fit(resume=resume, on_progress=report)


def save_run(
    model: "SurvivalModel",
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
) -> "TrainedRun":
    """Make a run of a model that was trained in a loop of your own, for report, audit, compare, explain and service.

    Args:
        model: A model of the prepared set, as of `HierarchicalBEHRTForSurvival(config)`.
        data: The prepared set that it was trained on, or its folder; its held-out split is for the evaluation.
        out: Folder to make.
        task: Name of the task; the only one by default.

    Returns:
        The run, with the weights as they are: nothing is recalibrated. Its manifest says that it was trained outside.

    Raises:
        EhrseqError: The model is of another class or another shape than the data needs, or `out` holds something.

    Example:
        >>> import ehrsequencing as eh
        >>> data = eh.load("prepared")
        >>> config = eh.ModelConfig(vocab_size=len(data.vocabulary), size="small", causes=2, edges_days=(365.25, 730.5))
        >>> run = eh.save_run(eh.HierarchicalBEHRTForSurvival(config), data, out="runs/untrained")
        >>> run.manifest["trained"]
        'outside'
    """
    from ehrsequencing.api.run import TrainedRun
    from ehrsequencing.models.base import SurvivalModel
    from ehrsequencing.training.train import Trained

    if not isinstance(model, SurvivalModel):
        raise EhrseqError(
            f"expected a model of ehrsequencing, got {type(model).__name__}",
            where="save_run",
            fix="build eh.HierarchicalBEHRTForSurvival(config), or give the risks to eh.score",
        )
    prepared = _prepared(data)
    asked = prepared.task(task or prepared.only_task())
    config, last = model.config, asked.horizons[-1]
    needed = shape_of_inputs(config, prepared).model_dump()
    needed |= {"causes": len(asked.causes), "outcomes": len(prepared.outcomes(asked.name))}
    chosen = ("edges_days", "members", "query_follows_visit", "code_effects")
    needed |= {name: getattr(config, name) for name in chosen}
    if config.head == "horizon" and max(config.edges_days, default=0) < last:
        needed["edges_days"] = (*config.edges_days, last)
    wrong = {name: value for name, value in needed.items() if getattr(config, name) != value}
    if wrong:
        raise EhrseqError(
            "the model does not fit data and task",
            where="save_run",
            fix=f"build it with ModelConfig({', '.join(f'{k}={v!r}' for k, v in wrong.items())}, …)",
        )
    study = prepared.study.model_copy(
        update={
            "task": asked,
            "model": ModelSettings.model_validate(
                config.model_dump(include={*ModelSettings.model_fields})
            ),
            "training": TrainingConfig(blend=False, members=config.members),
        }
    )
    train, tuning = (prepared.outcome_records(asked.name, split) for split in ("train", "tuning"))
    plan = Plan(prepared, asked, config, study, train, tuning)
    # a copy: the model stays on its device, and in training or not
    trained = Trained(copy.deepcopy(model).cpu(), [], {"trained": "outside"})
    with run_folder.hold_folder(Path(out), prepared, asked.name, plan.made_of, resume=False):
        training.write_run(plan, Path(out), trained, {})
    return TrainedRun(Path(out))
