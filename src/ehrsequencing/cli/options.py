"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def _settings_like(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings that the command uses and that begin like this, for completion in a shell."""
    from ehrsequencing.config.files import COMMANDS, setting_names
    from ehrsequencing.config.study import StudyConfig

    sections = COMMANDS.get(ctx.info_name or "", ())
    names = (name for name in setting_names(StudyConfig) if name.partition(".")[0] in sections)
    return [f"{name}=" for name in names if name.startswith(incomplete)]


Config = Annotated[
    Path | None, typer.Option("--config", help="Study file (YAML) with any of the sections")
]
DataFolder = Annotated[Path, typer.Argument(help="Folder of a MEDS data set")]
NewFolder = Annotated[Path, typer.Argument(help="Folder to make")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings as section.key=value, as in model.size=small",
        show_default=False,
        autocompletion=_settings_like,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace an earlier output of this command that nobody has changed"
    ),
]
MovedSet = Annotated[
    Path | None, typer.Option("--prepared", help="The prepared set, if it has moved")
]
RunFolder = Annotated[Path, typer.Argument(help="What ehrseq train made")]
TaskFiles = Annotated[list[Path] | None, typer.Option("--task", help="Task file; may be repeated")]
