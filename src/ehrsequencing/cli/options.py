"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path | None, typer.Option("--config", help="Study file (YAML) with any of the sections")]
DataFolder = Annotated[Path, typer.Argument(help="Folder of a MEDS data set")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error")]
NewFolder = Annotated[Path, typer.Argument(help="Folder to make")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings as section.key=value, as in model.size=small", show_default=False)
]
MovedSet = Annotated[Path | None, typer.Option("--prepared", help="The prepared set, if it has moved")]
RunFolder = Annotated[Path, typer.Argument(help="What ehrseq train made")]
TaskFiles = Annotated[list[Path] | None, typer.Option("--task", help="Task file; may be repeated")]
