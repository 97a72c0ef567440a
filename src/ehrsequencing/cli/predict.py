"""`ehrseq predict`, `explain` and `explore`: what a run says of records, and what moves its risks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ehrsequencing.cli.console import bar, finish, note, remark, say
from ehrsequencing.cli.options import (
    Config,
    DataFolder,
    Force,
    Overrides,
    Overwrite,
    Recalibrate,
    RunFolder,
    open_run,
    read_study,
)
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.process import keep_freed_memory

if TYPE_CHECKING:
    from ehrsequencing.api.predictions import Explanation

SHOWN = 5  # rows of each table in the terminal
CODE = 34  # columns of a code in the terminal


def predict(
    run: RunFolder,
    data: DataFolder,
    overrides: Overrides = None,
    out: Annotated[
        Path, typer.Option("--out", help="File to write: .parquet, .csv or .csv.gz")
    ] = Path("predictions.parquet"),
    at: Annotated[
        str, typer.Option("--at", help="all prediction times, each subject's last, or a date")
    ] = "all",
    horizons: Annotated[
        str | None, typer.Option("--horizons", help="As in 90d,2y; default: the task's")
    ] = None,
    recalibrate: Recalibrate = False,
    outcome: Annotated[
        list[str] | None,
        typer.Option(
            "--outcome",
            help="A code or pattern of the run's outcomes (docs/outcomes.md); may be repeated",
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", help="So many most likely outcomes of each moment")
    ] = None,
    force: Force = False,
    overwrite: Overwrite = False,
    config: Config = None,
) -> None:
    """Write risk curves for any MEDS data."""
    from ehrsequencing.api.predictions import days_of
    from ehrsequencing.prediction.predict import predict as write
    from ehrsequencing.prediction.predict_outcomes import predict_outcomes

    days = None if horizons is None else days_of(horizons.split(","), where="--horizons")
    study = read_study(config, overrides, "predict")
    open_run(run, study, "predict", config=config)
    given: dict[str, Any] = {"at": at, "horizons_days": days, "facts": study.data, "force": force}
    given |= {"overwrite": overwrite, "say": remark}
    with bar("predicting") as tick:
        if outcome or top is not None:
            if recalibrate:
                what, fix = "--recalibrate is for the task's causes", "leave it out"
                raise EhrseqError(what, where="ehrseq predict", fix=fix)
            count = predict_outcomes(
                run, data, out, outcomes=outcome or (), top=top, progress=tick, **given
            )
            then = ["evaluate", run]  # score knows a task's own causes alone
        else:
            count = write(run, data, out, recalibrated=recalibrate, progress=tick, **given)
            then = ["score", out, data, "--task", "TASK.yaml"]
    say(f"risks at {count:,} prediction times")
    finish(wrote={"predictions": out}, then=then, result={"prediction_times": count})


def explain(
    run: RunFolder,
    data: DataFolder,
    overrides: Overrides = None,
    subject: Annotated[
        int | None, typer.Option("--subject", help="A subject_id; default: the whole cohort")
    ] = None,
    horizon: Annotated[
        str | None, typer.Option("--horizon", help="As in 1y; default: the task's middle one")
    ] = None,
    cause: Annotated[
        str | None, typer.Option("--cause", help="Default: the task's first outcome")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File for the whole table: .parquet or .csv")
    ] = None,
    overwrite: Overwrite = False,
    subjects: Annotated[
        int, typer.Option("--subjects", min=1, help="Subjects of the cohort at most")
    ] = 1000,
    recalibrate: Recalibrate = False,
    config: Config = None,
) -> None:
    """Show which codes and visits move a risk.

    With --subject: the effect of striking each code, visit and pair of codes from the record, at the subject's last
    prediction time, and what changed the risk since the prediction time before. Without it: the mean effect of each
    code among the subjects who have it, with intervals. Effects are associations in the model, not causes.
    """
    from ehrsequencing.api.predictions import days_of, explained
    from ehrsequencing.core.files import refuse_overlap
    from ehrsequencing.core.outputs import EXPLANATION, refuse_existing
    from ehrsequencing.explain.question import Question
    from ehrsequencing.explain.tables import require_suffix, write_table
    from ehrsequencing.prediction.predict import NewRecords

    if out is not None:
        refuse_existing(out, EXPLANATION, overwrite=overwrite)
        refuse_overlap(out, data)
        require_suffix(out)
    days = None if horizon is None else days_of(horizon, where="--horizon")[0]
    study = read_study(config, overrides, "explain")
    question = Question.for_run(
        open_run(run), cause=cause, horizon_days=days, recalibrated=recalibrate
    )
    with bar("explaining") as tick:
        records = NewRecords(question.run, data, study.data)
        note(records.require_known(force=False))
        found = explained(question, records, subject, subjects=subjects, progress=tick)
    for line in _cohort_lines(found) if subject is None else _subject_lines(found):
        say(line)
    say("An effect is an association in the model, not the effect of a treatment.")
    if out is not None:
        write_table(found.table, out, overwrite=overwrite)
    result = {"risk": found.risk, "question": question.text, "rows": found.table.num_rows}
    result |= {} if found.subjects is None else {"subjects": found.subjects}
    finish(wrote={"table": out}, then=["predict", run, data, "--at", "last"], result=result)


def _subject_lines(found: "Explanation") -> list[str]:
    lines = [f"risk of {found.question}: {found.risk:.1%}, after {found.visits} visits"]
    for kind, title in (
        ("code", "without the code, in all visits"),
        ("visit", "without what was recorded at the visit"),
        ("pair", "without both codes, and how far that differs from the two effects together"),
        ("since the prediction time before", "since the prediction time before; rows add up"),
    ):
        rows = [row for row in found.table.to_pylist() if row["kind"] == kind]
        if rows:
            lines += ["", title, *(f"  {_effect(row)}" for row in rows[:SHOWN])]
    return lines


def _effect(row: dict[str, Any]) -> str:
    """One effect; positive raises the risk."""
    name = _cut(row["code"]) if row["code"] else f"visit {row['visit']} on {row['time'].date()}"
    if row["with_code"]:
        name = f"{name} and {_cut(row['with_code'])}"
    if row["interaction"] is not None:
        name += f"  (differs by {100 * row['interaction']:+.2f})"
    return f"{100 * row['change_in_risk']:+7.2f} points  {name}"


def _cut(code: str) -> str:
    return code if len(code) <= CODE else f"{code[: CODE - 1]}…"


def _cohort_lines(found: "Explanation") -> list[str]:
    lines = [
        f"risk of {found.question}: {found.risk:.1%} on average over {found.subjects:,} subjects, at their last"
        " prediction times",
        "",
        f"{'code':<{CODE}}  carriers  points of risk  95 % interval     raises it for",
    ]
    rows = found.table.to_pylist()
    for row in rows[: 2 * SHOWN]:
        interval = f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}"
        effect = f"{100 * row['change_in_risk']:+.2f}"
        code = f"{_cut(row['code']):<{CODE}}  {row['carriers']:>8}"
        lines.append(f"{code}  {effect:>14}  {interval:<16}  {row['raised']:>13.0%}")
    return lines if rows else [*lines, "no code has 11 carriers or more"]


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
    recalibrate: Recalibrate = False,
    force: Force = False,
    config: Config = None,
) -> None:
    """Write the explorer: a page on which to look at a cohort, at one patient, and at what moved the risk.

    The file opens by double click and asks no server. It holds pseudonyms and days, no ids and no dates, but it is
    patient data all the same.
    """
    keep_freed_memory()
    study = read_study(config, overrides, "explore")
    from ehrsequencing.api.predictions import write_explorer
    from ehrsequencing.explorer import ExplorerSettings

    settings = ExplorerSettings(
        patients=patients,
        fewest=fewest,
        what_if=what_if,
        megabytes=megabytes,
        recalibrated=recalibrate,
    )
    opened = open_run(run, study, "explore", config=config)
    with bar("exploring") as tick:
        found = write_explorer(
            opened,
            data,
            out,
            settings,
            facts=study.data,
            force=force,
            overwrite=overwrite,
            progress=tick,
            say=remark,
        )
    result = {
        "patients": len(found.gathered.patients),
        "what_if": 0 if found.removals is None else len(found.removals),
        "megabytes": round(out.stat().st_size / 1e6, 1),
    }
    say("{patients:,} patients, {what_if:,} what-if answers, {megabytes} MB".format(**result))
    finish(wrote={"explorer": out}, then=f"open {out} in a browser", result=result)
