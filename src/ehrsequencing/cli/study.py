"""The commands `ehrseq study pack`, `run` and `merge`: a study across hospitals that share no patients."""

from pathlib import Path
from typing import Annotated

import typer

from ehrsequencing.cli.console import finish, note, say, stages, warn
from ehrsequencing.cli.conventions import CommandLine
from ehrsequencing.cli.options import DataFolder, RunFolder
from ehrsequencing.core.errors import EhrseqError

study_app = CommandLine(
    group="study",
    help="Evaluate one model at several hospitals without sharing patients.",
    epilog="Example: ehrseq study pack run pack",
    no_args_is_help=True,
)


@study_app.command(example="ehrseq study pack run pack")
def pack(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="Folder to make; an earlier pack there is replaced")],
) -> None:
    """Copy what a hospital needs to test a run: model, vocabulary, task and settings."""
    from ehrsequencing.study.pack import pack as make_pack

    facts = make_pack(run, out)
    say(f"packed the task {facts['task']}: {', '.join(facts['causes'])}")
    finish(
        wrote={"pack": out},
        then=["study", "run", out, "DATA", "--name", "SITE", "--out", "SITE.json"],
        result=facts,
    )


@study_app.command(example="ehrseq study run pack meds --name north --out north.json")
def run(
    pack: Annotated[Path, typer.Argument(help="Folder that ehrseq study pack made")],
    data: DataFolder,
    out: Annotated[Path, typer.Option("--out", help="File to write")] = ...,  # type: ignore[assignment]
    name: Annotated[
        str, typer.Option("--name", help="What this site is called in the study")
    ] = ...,  # type: ignore[assignment]
    split: Annotated[
        str,
        typer.Option(
            "--split", help="all subjects, or held_out: those that the data's splits hold out"
        ),
    ] = "all",
    resamples: Annotated[
        int, typer.Option("--resamples", min=10, help="Of the bootstrap, for standard errors")
    ] = 200,
) -> None:
    """Predict this site's patients and write sums over them; counts of fewer than 11 people are withheld.

    The file holds no row of a patient. Look at it before you send it: it is JSON.
    """
    from ehrsequencing.study.site import Part, run_site

    if split not in ("all", "held_out"):
        raise EhrseqError(f"{split!r} is no choice", where="--split", fix="use all or held_out")
    told: list[str] = []
    with stages("running the study") as stage:
        part: Part = "held_out" if split == "held_out" else "all"
        result = run_site(
            pack,
            data,
            out,
            name=name,
            split=part,
            resamples=resamples,
            progress=stage,
            say=told.append,
        )
    for text in told:
        warn(text)
    for entry in result["landmarks"]:
        shown, hidden = len(entry["cells"]), len(entry["withheld"])
        say(
            f"{entry['subjects']} subjects at day {entry['landmark_days']:g}: {shown} results, {hidden} withheld"
        )
    finish(
        wrote={"site": out},
        then=["study", "merge", out, "OTHER.json", "--out", "study"],
        result=result,
    )


@study_app.command(example="ehrseq study merge north.json south.json --out study")
def merge(
    sites: Annotated[list[Path], typer.Argument(help="Files that ehrseq study run wrote")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder to make; an earlier merge there is replaced")
    ] = ...,  # type: ignore[assignment]
) -> None:
    """Pool the sites' results, and show how far the sites differ."""
    from ehrsequencing.reporting.study import study_lines, write_study
    from ehrsequencing.study.merge import merge as merge_sites

    result = merge_sites(sites, out, draw=write_study)
    for text in result["warnings"]:
        warn(text)
    say("\n".join(study_lines(result)))
    for row in result["rows"]:
        if row["withheld"]:
            where = (
                f"{row['cause']} by day {row['horizon_days']:g}, at day {row['landmark_days']:g}"
            )
            note(f"note: withheld by {', '.join(row['withheld'])}: {where}")
    page = out / "study.html"
    finish(
        wrote={"page": page, "study": out / "study.json"},
        then=f"open {page} in a browser",
        result=result,
    )
