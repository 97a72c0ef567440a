"""Data in Python: frames in and out, `read_meds`, `prepare`. MEDS data may be a folder or a frame of MEDS rows."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.api.progress import bar
from ehrsequencing.config import (
    StudyConfig,
    TaskConfig,
    load_task,
    refuse_unused,
    validated,
)
from ehrsequencing.config.base import SettingsT
from ehrsequencing.config.files import agreed_tasks
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.elsewhere import Answering, Hinted, right_way
from ehrsequencing.core.errors import EhrseqError, refuse_idle, refuse_unknown
from ehrsequencing.core.files import private_folder, read_json, write_json
from ehrsequencing.core.made_of import differing
from ehrsequencing.core.outputs import MANIFEST, PREPARED, is_json_of
from ehrsequencing.records.meds import SPLITS, MedsReader
from ehrsequencing.records.prepare import content_of, prepare as write_prepared
from ehrsequencing.records.prepared import Prepared

if TYPE_CHECKING:
    from ehrsequencing.batches.visit_batch import VisitBatch

MEDS_COLUMNS = ("subject_id", "time", "code", "numeric_value")


def is_path(data: object) -> bool:
    """Whether data is named by its path."""
    return isinstance(data, str | os.PathLike)


def as_table(frame: Any) -> pa.Table:
    """A frame (pandas, polars, Arrow) as an Arrow table.

    Raises:
        EhrseqError: It is no frame.
    """
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pd.DataFrame):
        return pa.Table.from_pandas(frame, preserve_index=False)
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    raise EhrseqError(
        f"{type(frame).__name__} is no frame",
        where="data",
        fix=right_way("data", type(frame).__name__)
        or "give a path, or a frame of pandas, polars or Arrow",
    )


def times(moments_us: Any) -> pa.Array:
    """Microseconds since 1970 as times; the smallest integer, which stands for no time, as null."""
    moments = np.asarray(moments_us, dtype=np.int64)
    return pa.array(moments, pa.timestamp("us"), mask=moments == np.iinfo(np.int64).min)


@contextmanager
def meds_folder(data: Any) -> Iterator[Path]:
    """The folder of MEDS data: its path as it is, or a frame of MEDS rows written to a temporary folder.

    The temporary folder can be read by its owner only, and is gone after the block.

    Raises:
        EhrseqError: It is neither, or a frame lacks a column.
    """
    if is_path(data):
        yield Path(data)
        return
    table = as_table(data)
    missing = [name for name in MEDS_COLUMNS[:3] if name not in table.column_names]
    if missing:
        raise EhrseqError(
            f"the frame has no column {missing[0]!r}",
            where="data",
            fix=f"give it the columns of MEDS: {', '.join(MEDS_COLUMNS)}; "
            "a flat table becomes records by eh.from_table",
        )
    with private_folder() as place:
        folder = place / "frame"
        (folder / "data").mkdir(parents=True)
        pq.write_table(table.replace_schema_metadata(), folder / "data" / "0.parquet")
        write_json(folder / "metadata" / "dataset.json", {"dataset_name": "frame"})
        yield folder


def task_of(task: Any) -> TaskConfig:
    """A task from its file, its content as a mapping, or a `TaskConfig`.

    >>> task_of({"name": "t", "index": {"first_visit": True}, "outcome": {"hf": "I50"}, "horizons": ["1y"]}).causes
    ('hf',)

    Raises:
        EhrseqError: The file cannot be read, or a setting is unknown or missing.
    """
    if isinstance(task, TaskConfig):
        return task
    if not isinstance(task, Mapping) and not is_path(task):
        raise EhrseqError(
            f"expected a task, got {type(task).__name__}",
            where="task",
            fix="name a task file: labels are made from it; eh.from_table makes one of a table",
        )
    return load_task(Path(task)) if is_path(task) else validated(TaskConfig, task, where="task")


def tasks_of(task: Any, study: StudyConfig) -> list[TaskConfig]:
    """No task, one, or a list, each as of `task_of`; without one that of the study, which must be one of them."""
    given = [] if task is None else task if isinstance(task, list | tuple) else [task]
    return agreed_tasks([task_of(one) for one in given], study)


def one_task(task: Any, study: StudyConfig, *, where: str) -> TaskConfig:
    """As `tasks_of`, where one is needed.

    Raises:
        EhrseqError: There is none, there are several, or the study has another one.
    """
    tasks = tasks_of(task, study)
    if len(tasks) != 1:
        raise EhrseqError(
            f"needs one task, not {len(tasks)}",
            where=where,
            fix="name one, as in task='task.yaml' or --task task.yaml",
        )
    return tasks[0]


def study_of(study: StudyConfig | None, sections: Mapping[str, Any], *, where: str) -> StudyConfig:
    """All settings: given as one, or by sections that the command `where` uses.

    Raises:
        EhrseqError: Both are given, or a setting is unknown, impossible or not used.
    """
    if not isinstance(study, StudyConfig | None):
        raise EhrseqError(
            f"study is a {type(study).__name__}",
            where=where,
            fix="write training={…}, or study=ehrsequencing.config.load_study(Path('study.yaml'))",
        )
    refuse_idle(
        sections,
        "beside study, which holds all settings",
        where=where,
        when=study is not None,
    )
    refuse_unused(sections, where)
    return validated(StudyConfig, sections, where=where) if study is None else study


def as_settings(
    kind: type[SettingsT], given: SettingsT | Mapping[str, Any] | None, where: str = "facts"
) -> SettingsT | None:
    """Settings as an object; None stays."""
    if given is None or isinstance(given, kind):
        return given
    return validated(kind, cast(Mapping[str, Any], given), where=where)


class PreparedData(Hinted, Answering, Prepared):
    """A prepared data set: packed arrays and labels on disk.

    Example:
        >>> eh.prepare("meds/", task="task.yaml", out="prepared/", progress=False)
        PreparedData('prepared', 400 subjects, 420 tokens, tasks: hf)
    """

    def __repr__(self) -> str:
        subjects, tokens = self.manifest["subjects"], len(self.vocabulary)
        tasks = ", ".join(self.tasks) or "none"
        sizes = f"{subjects:,} subjects, {tokens:,} tokens, tasks: {tasks}"
        return f"PreparedData({str(self.folder)!r}, {sizes})"

    def batches(
        self,
        split: str,
        *,
        task: str | None = None,
        head: str = "horizon",
        visit_budget: int = 2048,
        shuffle: int | None = None,
    ) -> "Iterator[VisitBatch]":
        """The subjects of a split as batches with their labels, for a training loop of one's own.

        `batch.to_padded(…)` and `batch.padded()` give padded tensors, (B, V) and (B, V, C).

        Args:
            split: `train`, `tuning` or `held_out`.
            task: Name of the task; the only one by default.
            head: The model's head: `horizon`, or `visit`, which answers no queries.
            visit_budget: Most visits and queries in a batch, unless one subject has more.
            shuffle: Seed of the order of the subjects, another one for each epoch; None: the order of the store.

        Raises:
            EhrseqError: There is no such task or split.

        Example:
            >>> batch = next(eh.prepare("meds/", "task.yaml", out="prepared/").batches("train", visit_budget=100))
            >>> batch.padded().codes.dim(), batch.to_padded(batch.age_years).shape[0] == batch.n_subjects
            (3, True)
        """
        from ehrsequencing.batches.loader import (
            SubjectLoader,
        )  # torch, which reading records does not need

        refuse_unknown("split", [split], SPLITS)
        records = self.records(task or self.only_task(), split)
        types = self.vocabulary.code_types
        loader = SubjectLoader(records, queries=head == "horizon", code_types=types)
        groups = loader.groups_in_order(visit_budget=visit_budget)
        if shuffle is not None:
            groups = loader.shuffled(0, seed=shuffle, visit_budget=visit_budget)
        for group in groups:
            yield loader.collate(group).batch


def read_meds(data: Any, *, subjects: Sequence[int] | None = None) -> pd.DataFrame:
    """The rows of MEDS data as a frame, after the automatic fixes (docs/data.md).

    Args:
        data: A folder of MEDS data, or a frame of MEDS rows.
        subjects: Only these `subject_id`; default: all.

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
        return events_table(MedsReader(folder), chosen).to_pandas()


def events_table(
    reader: Any, subjects: Ints | None = None, words: Sequence[str] | None = None
) -> pa.Table:
    """All rows that a reader gives, or those of some subjects, or of codes that hold one of some lower-case words."""
    parts = []
    for events in reader:
        if words is not None:
            fits = [any(word in code.casefold() for word in words) for code in events.codes]
            events = events.take(np.array(fits, dtype=bool)[events.code])
        if subjects is not None:
            events = events.take(np.isin(events.subject_id, subjects))
        codes = pa.DictionaryArray.from_arrays(
            pa.array(events.code), pa.array(events.codes, pa.string())
        )
        value = events.value.astype(np.float64)
        parts.append(
            pa.table(
                {
                    "subject_id": pa.array(events.subject_id),
                    "time": times(events.time_us),
                    "code": codes.cast(pa.string()),
                    "numeric_value": pa.array(value, mask=np.isnan(value)),
                }
            )
        )
    return pa.concat_tables(parts)


def prepare(
    data: Any,
    task: Any = None,
    *,
    out: str | os.PathLike[str],
    study: StudyConfig | None = None,
    overwrite: bool = False,
    progress: bool = True,
    engine: str = "processes",
    **sections: Any,
) -> PreparedData:
    """Turn MEDS data into packed arrays and labels; does nothing if `out` holds the result already.

    The result is known by the rows of the data, the tasks and the settings. Where one of them has changed, what is in
    `out` is refused by the name of the change, or made again with `overwrite`. Another compression or another order of
    the shards is no change.

    Args:
        data: A folder of MEDS data, or a frame of MEDS rows.
        task: A task file, its content as a mapping, or a list of either; default: that of `study`, or none, for
            pretraining.
        out: Folder to make.
        study: All settings in one, in the place of sections.
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
        (['hf'], 400)
    """
    settings = study_of(study, sections, where="prepare")
    tasks, folder = tasks_of(task, settings), Path(out)
    with meds_folder(data) as source, bar("preparing", show=progress) as tick:
        if is_json_of(folder / MANIFEST, PREPARED):
            noted = read_json(folder / MANIFEST).get("made_of")
            other = differing(content_of(source, settings, tasks), noted)
            if other and not overwrite:
                raise EhrseqError(
                    f"is there already, made with other data or settings (what differs: {', '.join(other)})",
                    where=str(folder),
                    fix="name another folder with --out, or replace this one with --overwrite",
                )
            with suppress(EhrseqError):  # damaged: refused below
                if not other:
                    return PreparedData(folder)
        write_prepared(
            source,
            folder,
            study=settings,
            tasks=tasks,
            overwrite=overwrite,
            progress=tick,
            engine=engine,
        )
    return PreparedData(folder)
