"""Training: `fit` and `pretrain`, and what they share with the commands."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ehrsequencing.api.data import study_of
from ehrsequencing.api.progress import print_line, training_bar
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.config import StudyConfig, settings_named, validated
from ehrsequencing.config.base import visit_encoder
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import refuse_overlap
from ehrsequencing.core.outputs import (
    PRETRAINED,
    RUN,
    UNFINISHED_PRETRAINING,
    UNFINISHED_RUN,
    Kind,
    remove_existing,
)
from ehrsequencing.core.signals import keep_freed_memory
from ehrsequencing.prediction.reference import write_people, write_reference
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training import fit as training
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.processes import joined_processes
from ehrsequencing.training.run_folder import alone_in, remove_unfinished
from ehrsequencing.training.transfer import Pretrained


def fit(
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    seed: int | None = None,
    init: str | os.PathLike[str] | None = None,
    transfer: str | Mapping[str, Any] | None = None,
    resume: bool | None = None,
    progress: bool = True,
    **others: Any,
) -> TrainedRun:
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
        init: Folder of a model to start from, that `pretrain` or `fit` made (docs/pretraining.md).
        transfer: With `init`: `full` or `frozen`, or settings, as in `{"mode": "frozen"}`.
        resume: Whether to go on with an interrupted run of the same settings and data in `out`, or to load it if it is
            complete. Default: yes, unless the model has a part of your own, whose code may have changed.
        progress: Whether to show a bar, and a line for each epoch.
        others: None; a setting by its bare name gets an error that says where it belongs.

    Returns:
        The run.

    Raises:
        EhrseqError: A setting is unknown, there is too little to train on, or `out` holds another run.

    Example:
        >>> import ehrsequencing as eh
        >>> small = {"dim": 16, "heads": 2, "layers": 1}
        >>> quick = {"epochs": 1, "blend": False, "distillation": 0}
        >>> run = eh.fit("prepared", out="runs/small", model=small, training=quick, seed=0, progress=False)
        >>> len(run.history)
        1
    """
    keep_freed_memory()
    for name in others:
        near = [one.partition(".") for one in settings_named(StudyConfig, name)]
        fix = " or ".join(f"{section}={{{name!r}: …}}" for section, _, _ in near)
        raise EhrseqError(
            f"unknown argument {name!r}",
            where="fit",
            fix=f"write {fix or 'model={…} or training={…}'}",
        )
    settings: dict[str, Any] = {"model": dict(model or {}), "training": dict(training or {})}
    if seed is not None:
        settings["training"]["seed"] = seed
    settings["evaluation"] = dict(evaluation or {})
    if transfer is not None:
        if init is None:
            raise EhrseqError(
                "transfer needs init", where="fit", fix="name the model to start from"
            )
        settings["transfer"] = {"mode": transfer} if isinstance(transfer, str) else dict(transfer)
    study = validated(StudyConfig, settings, where="fit")
    go_on = _may_resume(study, Path(out)) if resume is None else resume
    store = _prepared(data)
    source = None if init is None else Path(init)
    train(
        store,
        Path(out),
        study=study,
        task=task,
        init=source,
        resume=go_on,
        progress=progress,
        say=print_line if progress else lambda _: None,
    )
    return TrainedRun(Path(out))


def train(
    prepared: Prepared,
    out: Path,
    *,
    study: StudyConfig,
    task: str | None = None,
    init: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    on_start: Callable[[Mapping[str, Any] | None], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Train a run, alone or as one of several processes of torchrun; `fit` and `ehrseq train` call it.

    Args:
        prepared: The prepared set.
        out: Folder of the run.
        study: All settings.
        task: Name of the task; the only one by default.
        init: Folder of a model to start from.
        resume: Whether to go on after an interruption.
        overwrite: Whether an earlier run there that nobody has changed is removed.
        progress: Whether to show a bar, and a line for each epoch.
        on_start: Called with what the weights start from, before the first step.
        say: Called by the first process with remarks.

    Returns:
        Whether this process is the first one, which prints.
    """
    with ExitStack() as stack:
        processes = stack.enter_context(joined_processes())
        if overwrite and processes.is_first:
            _make_room(prepared, out, RUN, resume=resume)
        if processes.is_first:
            stack.enter_context(alone_in(out))  # before the work begins
        source = None if init is None else Pretrained(init)
        name = task or prepared.only_task()
        is_first = processes.is_first
        tell = say if is_first else lambda _: None
        plan = Plan.of(prepared, name, study, init=source, say=tell)
        report = stack.enter_context(training_bar(show=progress and is_first))
        training.fit(
            plan,
            out,
            resume=resume,
            processes=processes,
            on_start=on_start if is_first else lambda _: None,
            on_progress=report,
            say=tell,
        )
        if is_first:
            write_reference(out)
            write_people(out, prepared)
        return is_first


def _prepared(data: Prepared | str | os.PathLike[str]) -> Prepared:
    """A prepared set, given as such or by its folder."""
    if isinstance(data, Prepared):
        return data
    if (Path(data) / "data").is_dir():
        fix = (
            "write eh.fit(eh.prepare(data, task='task.yaml', out='prepared'), out=…), or use eh.run"
        )
        raise EhrseqError("holds records that are not prepared", where=str(data), fix=fix)
    return Prepared(Path(data))


def _make_room(prepared: Prepared, out: Path, kind: Kind, *, resume: bool) -> None:
    """Remove an earlier model that nobody has changed, finished or interrupted, for a training that starts again.

    Raises:
        EhrseqError: The output is of another kind, has been changed or overlaps the prepared set.
    """
    if resume:
        what = "--resume goes on with what --overwrite removes"
        raise EhrseqError(what, where=str(out), fix="leave out one of them")
    refuse_overlap(out, prepared.folder)
    remove_unfinished(out, UNFINISHED_RUN if kind is RUN else UNFINISHED_PRETRAINING)
    remove_existing(out, kind)


def _may_resume(study: StudyConfig, out: Path) -> bool:
    """Whether to go on with what the folder holds, where nothing was said.

    Raises:
        EhrseqError: It holds something, and a part of the model is declared outside of this package.
    """
    name = study.model.visit_encoder
    is_own = visit_encoder.is_own(name)
    if is_own and out.is_dir() and any(out.iterdir()):
        what = f"is not empty, and the code of visit_encoder={name} may have changed since"
        raise EhrseqError(what, where=str(out), fix="name another folder, or say resume=True")
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
        study: All settings in one, in the place of sections.
        resume: Continue after an interruption.
        overwrite: Whether an earlier model there that nobody has changed is removed.
        progress: Whether to show a bar, and a line for each epoch.
        sections: Settings, as in `model={"size": "small"}`, `training={"epochs": 20}`,
            `pretraining={"objectives": ["masked_codes"]}`.

    Returns:
        What was measured on the tuning split (the content of `pretraining.json`): for each objective its losses in
        nats, and recall@k beside the baselines.

    Raises:
        EhrseqError: A setting is unknown, the data cannot be used, or `out` holds something else.
    """
    folder, prepared = Path(out), _prepared(data)
    settings = study_of(study, sections, where="pretrain")
    if overwrite:
        _make_room(prepared, folder, PRETRAINED, resume=resume)
    with alone_in(folder):  # before the work begins
        pretrainer = Pretrainer(prepared, folder, study=settings, task_name=task)
        with training_bar("pretraining", "tuning loss", show=progress) as report:
            return pretrainer.fit(resume=resume, on_progress=report)
