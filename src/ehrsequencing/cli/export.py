"""`ehrseq export RUN`: as a program that needs torch and NumPy only, or as a folder that may be shared."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ehrsequencing.cli.console import bar, finish, say
from ehrsequencing.cli.inputs import open_run
from ehrsequencing.cli.options import MovedSet, Overwrite, RunFolder
from ehrsequencing.core.errors import EhrseqError


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder to make")],
    overwrite: Overwrite = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format", help="torch: a program of torch.export; share: a folder for others"
        ),
    ] = "torch",
    network_only: Annotated[
        bool,
        typer.Option(
            "--network-only",
            help="torch: of a blend, its network alone; its risks are not the blend's",
        ),
    ] = False,
    prepared: MovedSet = None,
    license_: Annotated[
        str | None,
        typer.Option(
            "--license", help="share: the licence that the model card names, as in cc-by-nc-4.0"
        ),
    ] = None,
) -> None:
    """Write the run for other software or for other people.

    torch: a program for one subject at a time, with an example that needs torch and NumPy only. It is checked against
    the run on made-up records. share: a folder for ehrseq predict elsewhere, with a model card and without ids,
    dates, codes of fewer than 11 people, exact counts and paths.
    """
    given = {
        "--network-only": network_only,
        "--prepared": prepared is not None,
        "--license": license_ is not None,
    }
    _refuse_unused(format_, {name for name, is_given in given.items() if is_given})
    open_run(run)
    if format_ == "torch":
        ending = _as_program(run, out, network_only=network_only, overwrite=overwrite)
    else:
        ending = _to_share(run, out, prepared=prepared, license_id=license_, overwrite=overwrite)
    finish(**ending)


def _refuse_unused(chosen: str, given: set[str]) -> None:
    """Refuse a format that there is not, and options that belong to another one."""
    belongs = {"torch": {"--network-only"}, "share": {"--prepared", "--license"}}
    if chosen not in belongs:
        raise EhrseqError(
            f"{chosen!r} is not a choice", where="--format", fix=f"use {' or '.join(belongs)}"
        )
    if other := sorted(given - belongs[chosen]):
        fix = f"leave it out, or use --format {next(name for name in belongs if other[0] in belongs[name])}"
        raise EhrseqError(f"does not belong to --format {chosen}", where=other[0], fix=fix)


def _as_program(run: Path, out: Path, *, network_only: bool, overwrite: bool) -> dict[str, Any]:
    from ehrsequencing.export.folder import EXAMPLE, export_run

    with bar("exporting"):
        found = export_run(run, out, network_only=network_only, overwrite=overwrite)
    say(
        f"{found.answers}; {found.questions} questions about made-up records: risks differ by {found.difference:.1e}"
    )
    told = {"answers": found.answers, "questions": found.questions, "difference": found.difference}
    return {"wrote": {"export": out}, "then": f"python {out / EXAMPLE} rows.csv", "result": told}


def _to_share(
    run: Path, out: Path, *, prepared: Path | None, license_id: str | None, overwrite: bool
) -> dict[str, Any]:
    from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
    from ehrsequencing.export.share import CARD, share_run

    with bar("exporting"):
        found = share_run(run, out, prepared=prepared, license_id=license_id, overwrite=overwrite)
    what = "codes and numbers" if found.numbers else "codes"
    changed = f"{found.codes + found.numbers} {what} of fewer than {SMALLEST_COUNT} people removed"
    same = "it predicts as the run does"
    say(
        f"{changed}; people who have one get another risk" if found.codes or found.numbers else same
    )
    say(f"read {out / CARD} before you give the folder away")
    told = {"removed_codes": found.codes, "removed_numbers": found.numbers, "files": found.files}
    then = ["predict", out, "DATA", "--at", "last", "--out", "risks.csv"]
    return {"wrote": {"shared": out}, "then": then, "result": told}
