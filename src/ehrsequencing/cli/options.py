"""What commands read before they start: the settings of a study file and of the command line, and a run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ehrsequencing.cli.console import note

if TYPE_CHECKING:
    from ehrsequencing.config import StudyConfig
    from ehrsequencing.prediction.run import Run


def read_study(config: Path | None, overrides: Sequence[str] | None, command: str) -> "StudyConfig":
    """The settings of the study file and the command line, which must be settings that the command uses."""
    from ehrsequencing.config import load_study, refuse_unused

    refuse_unused(overrides or (), command)
    return load_study(config, overrides or ())


def open_run(
    folder: Path,
    command: str = "",
    overrides: Sequence[str] | None = None,
    config: Path | None = None,
    *,
    data: Path | None = None,
) -> tuple["Run", "StudyConfig"]:
    """Open a run, with the settings of a command; say if somebody has changed its files. `data` is looked at first.

    Raises:
        EhrseqError: There is no run or no data set, or settings do not belong to the command or contradict the run.
    """
    from ehrsequencing.config import load_study, refuse_changes
    from ehrsequencing.prediction.run import Run
    from ehrsequencing.records.meds import find_shards

    study = read_study(config, overrides, command) if command else load_study(None)
    if data is not None:
        find_shards(data)
    run = Run(folder)
    if run.altered:
        changes = ", ".join(f"{name} {what}" for name, what in run.altered.items())
        note(f"note: {folder}: {changes}; the model and its settings are unchanged")
    hidden = [name for name in run.manifest["files"] if not os.access(folder / name, os.R_OK)]
    for name in sorted(set(hidden) - set(run.altered)):
        note(f"note: {folder / name} is for its owner only, and is not needed")
    if config is not None:  # settings of the command line are the command's own
        refuse_changes(study, run.study, command, file=config, by=folder)
    return run, study
