"""An import with plain arguments and a plain result, so that another process can do it (`limited.py`)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ehrsequencing.config import load_import
from ehrsequencing.readers.registry import all_readers


def import_source(
    *,
    format_: str,
    source: str,
    out: str,
    overrides: Sequence[str],
    table_map: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Import a source.

    Args:
        format_: Name of a reader.
        source: What it reads.
        out: Folder to make.
        overrides: Settings as `import.key=value`.
        table_map: File that says what the columns mean.
        progress: Called with what is done, and of how much.

    Returns:
        `lines` and `warnings` to print, and `result`, the report as JSON.

    Raises:
        EhrseqError: The source cannot be read.
    """
    settings = load_import(overrides)
    if table_map is not None:
        settings = settings.model_copy(update={"map": Path(table_map)})
    report = all_readers()[format_](source, Path(out), settings=settings, progress=progress)
    return {"lines": report.lines(), "warnings": report.warnings(), "result": report.as_json()}
