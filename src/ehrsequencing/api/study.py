"""From MEDS data to a trained run in Python: `read_meds`, `prepare`, `fit`."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.api.asked import events_table
from ehrsequencing.api.cards import card
from ehrsequencing.api.frames import as_frame, kind_of, meds_folder
from ehrsequencing.api.loaded import TrainedRun
from ehrsequencing.api.progress import Tick, progress_bar
from ehrsequencing.api.task import task_of
from ehrsequencing.baselines.blend.train import trainer_of
from ehrsequencing.config import StudyConfig, TaskConfig, validated
from ehrsequencing.config.parts import KINDS
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json, sha256
from ehrsequencing.core.outputs import MANIFEST, PREPARED, is_json_of
from ehrsequencing.core.process import keep_freed_memory
from ehrsequencing.core.version import __version__
from ehrsequencing.records.meds import MedsReader, find_shards
from ehrsequencing.records.prepared import SECTIONS, Prepared
from ehrsequencing.records.prepared import prepare as write_prepared
from ehrsequencing.training.pretrained import Pretrained
from ehrsequencing.training.progress import Progress
from ehrsequencing.training.run_folder import alone_in


class PreparedData(Prepared):
    """A prepared data set: packed arrays and labels on disk.

    Example:
        >>> eh.prepare("meds/", task="task.yaml", out="prepared/", progress=False)
        PreparedData('prepared', 200 subjects, 448 tokens, tasks: hf)
    """

    def __repr__(self) -> str:
        facts = self._facts
        parts = [
            f"{facts['subjects']} subjects",
            f"{facts['tokens']} tokens",
            f"tasks: {facts['tasks'] or 'none'}",
        ]
        return f"PreparedData({str(self.folder)!r}, {', '.join(parts)})"

    @property
    def _facts(self) -> dict[str, str]:
        tasks = ", ".join(self.tasks)
        return {
            "subjects": f"{self.manifest['subjects']:,}",
            "tokens": f"{len(self.vocabulary):,}",
            "tasks": tasks,
        }

    def _repr_html_(self) -> str:
        return card(f"Prepared data {self.folder}", self._facts)


def read_meds(data: Any, *, subjects: Sequence[int] | None = None, frames: str = "pandas") -> Any:
    """The rows of MEDS data as a frame, after the automatic fixes (docs/data.md).

    Args:
        data: A folder of MEDS data, or a frame of MEDS rows.
        subjects: Only these `subject_id`; default: all.
        frames: Kind of the frame where data is a folder: `pandas`, `polars` or `arrow`.

    Returns:
        Columns `subject_id`, `time` (missing for codes without a time), `code`, `numeric_value`.

    Raises:
        EhrseqError: The data cannot be read.

    Example:
        >>> import ehrsequencing as eh
        >>> rows = eh.read_meds("meds/", subjects=[1])
        >>> list(rows.columns), rows.subject_id.unique().tolist()
        (['subject_id', 'time', 'code', 'numeric_value'], [1])
    """
    with meds_folder(data) as folder:
        chosen = None if subjects is None else np.asarray(subjects, dtype=np.int64)
        return as_frame(events_table(MedsReader(folder), chosen), kind_of(data, frames))


def prepare(
    meds: Any,
    task: Any = None,
    *,
    out: str | os.PathLike[str],
    overwrite: bool = False,
    progress: bool = True,
    engine: str = "processes",
    **sections: Mapping[str, Any],
) -> PreparedData:
    """Turn MEDS data into packed arrays and labels; does nothing if `out` holds the result already.

    The result is known by the content of the data, the tasks, the settings and the version, so a changed file or
    setting makes it again.

    Args:
        meds: A folder of MEDS data, or a frame of MEDS rows.
        task: A task file, its content as a mapping, or a list of either; none for pretraining.
        out: Folder to make.
        overwrite: Whether an earlier prepared set there that nobody has changed is replaced.
        progress: Whether to show a bar.
        engine: Where shards are worked on: `processes` of this machine, or a cluster (`dask://HOST:PORT`).
        sections: Sections of a study, as in `visits={"by": "day"}` or `splits={"by": "hash"}`.

    Returns:
        The prepared data, for `fit`.

    Raises:
        EhrseqError: Data, task or settings cannot be used.

    Example:
        >>> import ehrsequencing as eh
        >>> data = eh.prepare("meds/", task="task.yaml", out="prepared/", progress=False)
        >>> data.tasks, data.manifest["subjects"]
        (['hf'], 200)
    """
    study = validated(StudyConfig, sections, where="prepare")
    given = [] if task is None else task if isinstance(task, list | tuple) else [task]
    tasks = [task_of(one) for one in given]
    folder = Path(out)
    with meds_folder(meds) as source, progress_bar("preparing", show=progress) as tick:
        content = _content(source, study, tasks)
        if (found := _known(folder, content)) is not None:
            return found
        write_prepared(
            source,
            folder,
            study=study,
            tasks=tasks,
            overwrite=overwrite,
            progress=tick,
            content=content,
            engine=engine,
        )
    return PreparedData(folder)


def _known(folder: Path, content: str) -> PreparedData | None:
    """What the folder holds, if it is complete and of this very content."""
    manifest = folder / MANIFEST
    if not is_json_of(manifest, PREPARED) or read_json(manifest).get("content") != content:
        return None
    try:
        return PreparedData(folder)
    except EhrseqError:
        return None


def _content(data: Path, study: StudyConfig, tasks: Sequence[TaskConfig]) -> str:
    """Digest of everything that a prepared set is made of."""
    metadata = [path for path in sorted((data / "metadata").glob("*")) if path.is_file()]
    indexes = [Path(task.index.file) for task in tasks if task.index.file is not None]
    files = [
        (str(path.relative_to(data)), sha256(path)) for path in (*find_shards(data), *metadata)
    ]
    settings = [
        study.model_dump(mode="json", include=SECTIONS),
        [task.model_dump(mode="json") for task in tasks],
    ]
    return digest([__version__, settings, files, [sha256(path) for path in indexes]])


def fit(
    data: Prepared | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    preset: str | None = None,
    seed: int | None = None,
    init: str | os.PathLike[str] | None = None,
    transfer: str | Mapping[str, Any] | None = None,
    resume: bool | None = None,
    progress: bool = True,
    frames: str = "pandas",
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
        preset: `small_cohort`, `medium_cohort` or `domain_shift`.
        seed: Seed of the training.
        init: Folder of a model to start from, that `pretrain` or `fit` made (docs/pretraining.md).
        transfer: With `init`: `full`, `frozen` or `lora`, or settings, as in `{"mode": "full", "layer_decay": 0.8}`.
        resume: Whether to go on with an interrupted run of the same settings and data in `out`, or to load it if it is
            complete. Default: yes, unless the model has a part of your own, whose code may have changed.
        progress: Whether to show a bar.
        frames: Kind of the run's tables.

    Returns:
        The run.

    Raises:
        EhrseqError: A setting is unknown, there is too little to train on, or `out` holds another run.

    Example:
        >>> import ehrsequencing as eh
        >>> small = {"dim": 16, "heads": 2, "layers": 1}
        >>> run = eh.fit("prepared", out="runs/small", model=small, training={"epochs": 1, "min_steps": 2}, seed=0,
        ...              progress=False)
        >>> len(run.history)
        1
    """
    keep_freed_memory()
    settings: dict[str, Any] = {"model": dict(model or {}), "training": dict(training or {})}
    if seed is not None:
        settings["training"]["seed"] = seed
    settings |= {"evaluation": dict(evaluation or {})} | (
        {} if preset is None else {"preset": preset}
    )
    if transfer is not None:
        if init is None:
            raise EhrseqError(
                "transfer needs init", where="fit", fix="name the model to start from"
            )
        settings["transfer"] = {"mode": transfer} if isinstance(transfer, str) else dict(transfer)
    study = validated(StudyConfig, settings, where="fit")
    go_on = _may_resume(study, Path(out)) if resume is None else resume
    with alone_in(Path(out)):  # before the work begins
        store = data if isinstance(data, Prepared) else Prepared(Path(data))
        source = None if init is None else Pretrained(Path(init))
        trainer = trainer_of(store, task or store.only_task(), Path(out), study=study, init=source)
        with progress_bar("training", show=progress) as tick:
            trainer.fit(resume=go_on, on_progress=partial(_show, tick))
    return TrainedRun(out, frames=frames)


def _show(tick: Tick, p: Progress) -> None:
    nll = "" if p.tuning_nll is None else f", tuning NLL {p.tuning_nll:.4f}"
    done = ((p.member - 1) * p.epochs + p.epoch - 1) * p.steps + p.step
    tick(done, p.members * p.epochs * p.steps, f"training: epoch {p.epoch}, loss {p.loss:.4f}{nll}")


def _may_resume(study: StudyConfig, out: Path) -> bool:
    """Whether to go on with what the folder holds, where nothing was said.

    Raises:
        EhrseqError: It holds something, and a part of the model is declared outside of this package.
    """
    own = [
        f"{kind.setting}={name}"
        for kind in KINDS
        if kind.is_own(name := str(getattr(study.model, kind.setting)))
    ]
    if own and out.is_dir() and any(out.iterdir()):
        what = f"is not empty, and the code of {own[0]} may have changed since"
        raise EhrseqError(what, where=str(out), fix="name another folder, or say resume=True")
    return not own
