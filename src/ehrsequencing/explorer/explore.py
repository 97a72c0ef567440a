"""A run and records → the one file of an explorer."""

from collections.abc import Callable
from pathlib import Path

from ehrsequencing.explorer.collect import Explorer, Tick, collect
from ehrsequencing.explorer.page import require_own, write_page
from ehrsequencing.explorer.settings import ExplorerSettings
from ehrsequencing.predict import NewRecords
from ehrsequencing.storage import refuse_overlap


def explore(
    records: NewRecords,
    out: Path,
    settings: ExplorerSettings | None = None,
    *,
    force: bool = False,
    progress: Tick | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Explorer:
    """Write the explorer of a run and a data set as one file of HTML.

    Args:
        records: A run, and the data set that it is asked about.
        out: The file; an explorer that is there is replaced, nothing else.
        settings: What is shown, and what is hidden.
        force: Whether to answer even if hardly any code of the data is known to the run.
        progress: As of `collect`.
        say: As of `collect`.

    Returns:
        What the page shows.

    Raises:
        EhrseqError: As of `collect`, or the file cannot be written.
    """
    require_own(out)
    refuse_overlap(out, records.data, records.run.folder)
    found = collect(records, settings, force=force, progress=progress, say=say)
    write_page(found, out)
    return found
