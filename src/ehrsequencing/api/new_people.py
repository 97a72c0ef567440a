"""A run and other people in Python: `drift`, how they differ from the training people, and `update` for them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ehrsequencing.api.data import as_settings, meds_folder, task_of
from ehrsequencing.api.progress import bar, stages
from ehrsequencing.config import DataConfig, DriftConfig
from ehrsequencing.core.outputs import METRICS_FILE, MONITOR, output_file, refuse_existing
from ehrsequencing.core.text import day_of
from ehrsequencing.prediction.drift import Drift, compare_data
from ehrsequencing.prediction.journal import Journal
from ehrsequencing.prediction.run import Run, opened

if TYPE_CHECKING:
    from ehrsequencing.api.run import TrainedRun
    from ehrsequencing.evaluation.monitor import Watch


def drift(
    run: str | os.PathLike[str] | Run,
    data: Any,
    *,
    limits: Mapping[str, Any] | DriftConfig | None = None,
    facts: Mapping[str, Any] | DataConfig | None = None,
    progress: bool = True,
) -> Drift:
    """Compare new people with the people that a run was trained on: codes, units, numbers, visits, ages.

    Args:
        run: A run, or its folder.
        data: A folder of MEDS data, or a frame of MEDS rows.
        limits: Beyond which a difference is an alarm, as in `{"people": 0.3}`.
        facts: What the data's own files do not tell, as in `{"extracted": "2026-03-01"}`.
        progress: Whether to show a bar.

    Returns:
        `verdict` is one line, `is_alarm` says whether something lies beyond its limit, and `differences` has everything
        that was compared, the largest first; `to_frame()` makes a frame of it.

    Raises:
        EhrseqError: Run or data cannot be used.

    Example:
        >>> import ehrsequencing as eh
        >>> found = eh.drift("runs/hf", "meds/", progress=False)
        >>> found.is_alarm, found.verdict
        (False, 'No alarm: these people are like the training people.')
    """
    beyond = as_settings(DriftConfig, limits, "drift, limits")
    known = opened(run)
    with meds_folder(data) as folder, bar("reading the records", show=progress) as tick:
        return compare_data(known, folder, as_settings(DataConfig, facts), beyond, tick)


def monitor(
    run: str | os.PathLike[str] | Run,
    data: Any,
    journal: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    by: str | Sequence[str] = (),
    lag: str | float = "7d",
    out: str | os.PathLike[str] | None = None,
    metrics: str | os.PathLike[str] | None = None,
    limits: Mapping[str, Any] | DriftConfig | None = None,
    facts: Mapping[str, Any] | DataConfig | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> "Watch":
    """Say how good the predictions of a journal are today, before most of their outcomes are known.

    Args:
        run: The run that made them, or its folder.
        data: The newest records of the same people: a folder of MEDS data, or a frame of MEDS rows.
        journal: The folder that `ehrseq predict --journal` keeps.
        key: Its key; default: the folder's name with `.key`, beside it.
        by: Codes or patterns: people who have one by their first night are watched as a group too.
        lag: After it an event has been recorded: a day is counted then, and stays as it is.
        out: A page, for its owner only; default: none.
        metrics: A file in Prometheus' text format; default: none.
        limits: Of drift, as in `{"people": 0.3}`.
        facts: What the data's own files do not tell, as in `{"extracted": "2026-03-01"}`.
        overwrite: Whether an earlier page and metrics there are replaced.
        progress: Whether to show a bar.

    Returns:
        `verdict` is one line, `is_alarm` says whether somebody must look, and `action` what to do.

    Raises:
        EhrseqError: Journal, key, run and data do not belong together, or the journal is empty.
    """
    # these load scipy, which drift does not need
    from ehrsequencing.evaluation.monitor import monitor as watch
    from ehrsequencing.reporting.monitor_page import night_line, render_monitor

    beyond = as_settings(DriftConfig, limits, "monitor, limits")
    known = opened(run)
    pages = {Path(path): kind for path, kind in ((out, MONITOR), (metrics, METRICS_FILE)) if path}
    for path, kind in pages.items():
        refuse_existing(path, kind, overwrite=overwrite)
    with meds_folder(data) as folder, bar("reading the records", show=progress) as tick:
        found = watch(
            known,
            folder,
            Journal(Path(journal), key),
            by=[by] if isinstance(by, str) else by,
            lag_days=day_of(lag, where="lag"),
            facts=as_settings(DataConfig, facts),
            limits=beyond,
            progress=tick,
        )
    numbers = {n: v for n, v in night_line(found).items() if isinstance(v, int | float)}
    lines = [f"ehrseq_monitor_{name} {float(value):g}" for name, value in numbers.items()]
    prometheus = "\n".join(["# ehrseq monitor", *lines, ""])  # Prometheus' text format
    texts = {MONITOR: render_monitor(found), METRICS_FILE: prometheus}
    for path, kind in pages.items():
        is_page = kind is MONITOR
        with output_file(path, kind, overwrite=overwrite, owner_only=is_page) as temporary:
            temporary.write_text(texts[kind], encoding="utf-8")
    return found


def update(
    run: str | os.PathLike[str] | Run,
    data: Any,
    *,
    out: str | os.PathLike[str],
    task: Any = None,
    overwrite: bool = False,
    progress: bool = True,
) -> "TrainedRun":
    """Update a run for the people of another hospital: nothing, the level, or level and slope.

    A closed test chooses for each cause (`predictors/recalibration.py`), at the landmarks. The level needs 11 people
    with the event, the slope 50; estimates are shrunk. The weights of a network and of a blend stay.

    Args:
        run: The run, a shared copy of one, or its folder.
        data: A folder of MEDS data of the other hospital, or a frame of MEDS rows.
        out: Folder of the new run.
        task: The same question by the codes of the other hospital; default: the run's task.
        overwrite: Whether an earlier run there that nobody has changed is replaced.
        progress: Whether to show the stages.

    Returns:
        The new run. `manifest["update"]` has what was chosen and why, and numbers before and after: on a third of the
        people that the update had not seen, or cross-fitted below 300 people. What is written is fitted on all.

    Raises:
        EhrseqError: Fewer than 11 people have the event of interest, or run, task or data cannot be used.

    Example:
        >>> import ehrsequencing as eh
        >>> here = eh.update("runs/hf", "meds/", out="runs/here", progress=False)
        >>> here.manifest["update"]["hf"]["method"] in ("none", "level", "level and slope")
        True
    """
    from ehrsequencing.api.run import TrainedRun  # these load torch, which drift does not need
    from ehrsequencing.evaluation.local_update import update as update_run

    folder = run.folder if isinstance(run, Run) else run
    where = str(data) if isinstance(data, str | os.PathLike) else "data"
    with meds_folder(data) as source, stages("updating", show=progress) as stage:
        update_run(
            Run(Path(folder)),
            source,
            Path(out),
            where=where,
            task=None if task is None else task_of(task),
            overwrite=overwrite,
            progress=stage,
        )
    return TrainedRun(Path(out))
