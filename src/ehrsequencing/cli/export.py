"""`ehrseq export RUN`: a folder that may be shared, risks for MEDS-DEV, or a program of torch and NumPy."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ehrsequencing.cli.console import bar, finish, note, say, warn
from ehrsequencing.cli.inputs import open_run
from ehrsequencing.cli.options import MovedSet, RunFolder
from ehrsequencing.core.errors import EhrseqError


def export(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="meds-dev: folder of a MEDS data set, seen or not")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder or file to make")] = ...,  # type: ignore[assignment]
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="share: a folder for others; meds-dev: a risk for each of --labels (docs/scale.md); torch: a program",
        ),
    ] = "share",
    network_only: Annotated[
        bool,
        typer.Option(
            "--network-only",
            help="torch: of a blend, its network alone; its risks are not the blend's",
        ),
    ] = False,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="meds-dev: MEDS labels, a file or a folder")
    ] = None,
    cause: Annotated[
        str | None, typer.Option("--cause", help="meds-dev: which cause [the first]")
    ] = None,
    horizon: Annotated[
        str | None, typer.Option("--horizon", help="meds-dev: as in 90d [the task's only one]")
    ] = None,
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
    dates, codes of fewer than 11 people, exact counts and paths. meds-dev: the risk of one cause by one horizon for
    each label, as MEDS-DEV reads it.
    """
    given = {
        "--network-only": network_only,
        "--prepared": prepared is not None,
        "--license": license_ is not None,
        "DATA": data is not None,
        "--labels": labels is not None,
        "--cause": cause is not None,
        "--horizon": horizon is not None,
    }
    _refuse_unused(format_, {name for name, is_given in given.items() if is_given})
    open_run(run)
    if format_ == "meds-dev":
        ending = _for_meds_dev(run, data, out, labels=labels, cause=cause, horizon=horizon)
    elif format_ == "torch":
        ending = _as_program(run, out, network_only=network_only)
    else:
        ending = _to_share(run, out, prepared=prepared, license_id=license_)
    finish(**ending)


def _refuse_unused(chosen: str, given: set[str]) -> None:
    """Refuse a format that there is not, and options that belong to another one."""
    belongs = {
        "torch": {"--network-only"},
        "share": {"--prepared", "--license"},
        "meds-dev": {"DATA", "--labels", "--cause", "--horizon"},
    }
    if chosen not in belongs:
        raise EhrseqError(
            f"{chosen!r} is not a choice", where="--format", fix=f"use {' or '.join(belongs)}"
        )
    if other := sorted(given - belongs[chosen]):
        fix = f"leave it out, or use --format {next(name for name in belongs if other[0] in belongs[name])}"
        raise EhrseqError(f"does not belong to --format {chosen}", where=other[0], fix=fix)


def _for_meds_dev(
    run: Path,
    data: Path | None,
    out: Path,
    *,
    labels: Path | None,
    cause: str | None,
    horizon: str | None,
) -> dict[str, Any]:
    from ehrsequencing.config import parse_days
    from ehrsequencing.prediction.predict_labels import predict_labels

    if data is None or labels is None:
        raise EhrseqError(
            "needs DATA and --labels", where="--format meds-dev", fix="name records and labels"
        )
    try:
        days = None if horizon is None else [parse_days(horizon)]
    except ValueError as error:
        raise EhrseqError(str(error), where="--horizon", fix="write it as 90d or 1y") from error
    notes: list[str] = []
    with bar("predicting") as tick:
        count = predict_labels(
            run,
            data,
            out,
            labels=labels,
            cause=cause,
            horizons_days=days,
            progress=tick,
            say=notes.append,
        )
    for text in notes:
        warn(text.removeprefix("warning: ")) if text.startswith("warning: ") else note(text)
    say(f"risks at {count:,} labels")
    return {
        "wrote": {"predictions": out},
        "then": f"meds-dev-evaluation predictions_path={out} output_dir=results",
        "result": {"labels": count},
    }


def _as_program(run: Path, out: Path, *, network_only: bool) -> dict[str, Any]:
    from ehrsequencing.export.folder import EXAMPLE, export_run

    with bar("exporting"):
        found = export_run(run, out, network_only=network_only)
    say(
        f"{found.answers}; {found.questions} questions about made-up records: risks differ by {found.difference:.1e}"
    )
    told = {"answers": found.answers, "questions": found.questions, "difference": found.difference}
    return {"wrote": {"export": out}, "then": f"python {out / EXAMPLE} rows.csv", "result": told}


def _to_share(
    run: Path, out: Path, *, prepared: Path | None, license_id: str | None
) -> dict[str, Any]:
    from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
    from ehrsequencing.export.share import CARD, share_run

    with bar("exporting"):
        found = share_run(run, out, prepared=prepared, license_id=license_id)
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
