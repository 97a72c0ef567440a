"""`ehrseq explore RUN DATA`: the cohort, each patient, and what the risk would be without X, as one file."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import bar, finish, note, say, warn
from ehrsequencing.cli.inputs import open_run, read_study
from ehrsequencing.cli.options import Config, DataFolder, Overrides, Overwrite, RunFolder
from ehrsequencing.core.process import keep_freed_memory


def explore(
    run: RunFolder,
    data: DataFolder,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="File to write")] = Path("explorer.html"),
    overwrite: Overwrite = False,
    patients: Annotated[
        int, typer.Option("--patients", help="At most so many, drawn at random")
    ] = 10_000,
    fewest: Annotated[
        int,
        typer.Option(
            "--fewest", help="Codes that fewer patients have are shown as one, 'rare code'"
        ),
    ] = 11,
    what_if: Annotated[
        bool,
        typer.Option("--what-if/--no-what-if", help="Strike each code and each visit in advance"),
    ] = True,
    megabytes: Annotated[
        float,
        typer.Option(
            "--megabytes", help="Above it, what-if answers are those of the latest prediction only"
        ),
    ] = 15.0,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Apply the recalibration that ehrseq evaluate --recalibrate fitted",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on even if nearly all codes are unknown")
    ] = False,
    config: Config = None,
) -> None:
    """Write the explorer: a page on which to look at a cohort, at one patient, and at what moved the risk.

    The file opens by double click and asks no server. It holds pseudonyms and days, no ids and no dates, but it is
    patient data all the same.
    """
    keep_freed_memory()
    study = read_study(config, overrides, "explore")
    from ehrsequencing.config import refuse_changes
    from ehrsequencing.core.files import refuse_overlap
    from ehrsequencing.core.outputs import EXPLORER, refuse_existing
    from ehrsequencing.explorer import ExplorerSettings, collect, write_page
    from ehrsequencing.prediction.predict import NewRecords

    settings = ExplorerSettings(
        patients=patients,
        fewest=fewest,
        what_if=what_if,
        megabytes=megabytes,
        recalibrated=recalibrate,
    )
    refuse_existing(out, EXPLORER, overwrite=overwrite)
    refuse_overlap(out, data, run)
    opened = open_run(run)
    refuse_changes(study, opened.study, "explore", file=config, by=run)
    notes: list[str] = []
    with bar("exploring") as tick:
        records = NewRecords(opened, data, study.data)
        found = collect(records, settings, force=force, progress=tick, say=notes.append)
        write_page(found, out, overwrite=overwrite)
    for text in notes:
        warn(text.removeprefix("warning: ")) if text.startswith("warning: ") else note(text)
    shown, answers = (
        len(found.gathered.patients),
        0 if found.removals is None else len(found.removals),
    )
    size = out.stat().st_size / 1e6
    say(f"{shown:,} patients, {answers:,} what-if answers, {size:.1f} MB")
    finish(
        wrote={"explorer": out},
        then=f"open {out} in a browser",
        result={"patients": shown, "what_if": answers, "megabytes": round(size, 1)},
    )
