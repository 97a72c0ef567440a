"""What commands read before they start: the settings, the task files, the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ehrsequencing.cli.console import note
from ehrsequencing.core.errors import EhrseqError

if TYPE_CHECKING:
    from ehrsequencing.config import StudyConfig
    from ehrsequencing.prediction.run import Run


def read_study(config: Path | None, overrides: Sequence[str] | None, command: str) -> "StudyConfig":
    """The settings of the study file and the command line, which must be settings that the command uses."""
    from ehrsequencing.config import load_study, refuse_unused

    refuse_unused(overrides or (), command)
    return load_study(config, overrides or ())


def open_run(folder: Path) -> "Run":
    """Open a run, and print a line if somebody has changed its files."""
    from ehrsequencing.prediction.run import Run

    run = Run(folder)
    if run.altered:
        changes = ", ".join(f"{name} {what}" for name, what in run.altered.items())
        note(f"note: {folder}: {changes}; the model and its settings are unchanged")
    return run


def read_tasks(paths: list[Path] | None, study: "StudyConfig") -> list[Any]:
    """The tasks of `--task`, else that of the study; if both are given, they must agree."""
    from ehrsequencing.config import load_task

    tasks = [load_task(path) for path in paths or ()]
    if tasks and study.task is not None and study.task not in tasks:
        what = f"the settings hold the task {study.task.name!r}, which is none of these"
        raise EhrseqError(what, where="--task", fix="leave out one of the two")
    return tasks or ([study.task] if study.task is not None else [])
