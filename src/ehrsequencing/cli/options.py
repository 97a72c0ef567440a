"""Options and arguments that several commands share, and what commands read before they start."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ehrsequencing.cli.console import note

if TYPE_CHECKING:
    from ehrsequencing.config import StudyConfig
    from ehrsequencing.prediction.run import Run


def _settings_like(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings that the command uses and that begin like this, for completion in a shell."""
    from ehrsequencing.config import COMMANDS, StudyConfig, setting_names

    sections = COMMANDS.get(ctx.info_name or "", ())
    names = [name for name in setting_names(StudyConfig) if name.partition(".")[0] in sections]
    return [f"{name}=" for name in names if name.startswith(incomplete)]


Config = Annotated[
    Path | None, typer.Option("--config", help="Study file (YAML) with any of the sections")
]
DataFolder = Annotated[Path, typer.Argument(help="Folder of a MEDS data set")]
Force = Annotated[bool, typer.Option("--force", help="Go on even if nearly all codes are unknown")]
NewFolder = Annotated[Path, typer.Argument(help="Folder to make")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings, as in model.size=small",
        show_default=False,
        autocompletion=_settings_like,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an earlier output of this command (a folder: if nobody has changed it)",
    ),
]
JournalFolder = Annotated[
    Path | None,
    typer.Option("--journal", help="Folder in which each night's predictions are kept for monitor"),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Key of the journal; default: JOURNAL.key beside it")
]
MovedSet = Annotated[
    Path | None, typer.Option("--prepared", help="The prepared set, if it has moved")
]
RunFolder = Annotated[Path, typer.Argument(help="What ehrseq train made")]
TaskFiles = Annotated[list[Path] | None, typer.Option("--task", help="Task file; may be repeated")]


def read_study(config: Path | None, overrides: Sequence[str] | None, command: str) -> "StudyConfig":
    """The settings of the study file and the command line, which must be settings that the command uses."""
    from ehrsequencing.config import load_study, refuse_unused

    refuse_unused(overrides or (), command)
    return load_study(config, overrides or ())


def places(config: Path | None) -> tuple[Path | None, Path | None]:
    """The records and the output that a study file names; a path there is relative to its folder."""
    from ehrsequencing.config.files import PLACES, read_yaml

    named = {} if config is None else read_yaml(config)
    data, out = (named.get(name) for name in PLACES)
    folder = Path() if config is None else config.parent
    return tuple(folder / one if isinstance(one, str) else None for one in (data, out))  # type: ignore[return-value]


def open_run(
    folder: Path,
    study: "StudyConfig | None" = None,
    command: str = "",
    *,
    config: Path | None = None,
    data: Path | None = None,
) -> "Run":
    """Open a run, and print a line if somebody has changed its files; `data` is looked at first.

    Raises:
        EhrseqError: There is no run or no data set, or the settings of the study file `config` contradict it.
    """
    from ehrsequencing.config import refuse_changes
    from ehrsequencing.prediction.run import Run
    from ehrsequencing.records.meds import find_shards

    if data is not None:
        find_shards(data)
    run = Run(folder)
    if run.altered:
        changes = ", ".join(f"{name} {what}" for name, what in run.altered.items())
        note(f"note: {folder}: {changes}; the model and its settings are unchanged")
    hidden = [name for name in run.manifest["files"] if not os.access(folder / name, os.R_OK)]
    for name in sorted(set(hidden) - set(run.altered)):
        note(f"note: {folder / name} is for its owner only, and is not needed")
    if study is not None:
        refuse_changes(study, run.study, command, file=config, by=folder)
    return run
