"""`ehrseq explain RUN DATA`: why a run predicts a risk, for one subject or over a cohort."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ehrsequencing.cli.console import bar, finish, note, say
from ehrsequencing.cli.inputs import open_run, read_study
from ehrsequencing.cli.options import Config, Overrides, Overwrite, RunFolder
from ehrsequencing.core.errors import EhrseqError

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 5  # rows of each table in the terminal
CODE = 34  # columns of a code in the terminal


def explain(
    run: RunFolder,
    data: Annotated[Path, typer.Argument(help="Folder of a MEDS data set, seen or not")],
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
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Apply the recalibration that ehrseq evaluate --recalibrate fitted",
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Show which codes and visits move a risk.

    With --subject: the effect of striking each code, visit and pair of codes from the record, at the subject's last
    prediction time, and what changed the risk since the prediction time before. Without it: the mean effect of each
    code among the subjects who have it, with intervals. Effects are associations in the model, not causes.
    """
    from ehrsequencing.config import parse_days
    from ehrsequencing.core.files import refuse_overlap
    from ehrsequencing.core.outputs import EXPLANATION, refuse_existing
    from ehrsequencing.explain.question import Question
    from ehrsequencing.explain.tables import require_suffix, write_table
    from ehrsequencing.prediction.predict import NewRecords

    if out is not None:
        refuse_existing(out, EXPLANATION, overwrite=overwrite)
        refuse_overlap(out, data)
        require_suffix(out)
    try:
        days = None if horizon is None else parse_days(horizon)
    except ValueError as error:
        raise EhrseqError(str(error), where="--horizon", fix="write it as 90d or 1y") from error
    study = read_study(config, overrides, "explain")
    question = Question.for_run(
        open_run(run), cause=cause, horizon_days=days, recalibrated=recalibrate
    )
    with bar("explaining") as tick:
        records = NewRecords(question.run, data, study.data)
        known = records.require_known(force=False)
        if subject is None:
            table, result = _cohort(question, records, subjects, tick)
        else:
            table, result = _subject(question, records, subject)
    note(known)
    say("An effect is an association in the model, not the effect of a treatment.")
    if out is not None:
        write_table(table, out, overwrite=overwrite)
    finish(wrote={"table": out}, then=["predict", run, data, "--at", "last"], result=result)


def _subject(question: Any, records: Any, subject: int) -> "tuple[pa.Table, dict[str, Any]]":
    from ehrsequencing.explain.record import subject_record
    from ehrsequencing.explain.tables import CHANGE, explain_subject

    record = subject_record(records, subject, where="--subject")
    found, table = explain_subject(question, record)
    say(f"risk of {question.text}: {found.risk:.1%}, after {record.visits_before[-1]} visits")
    for kind, title in (
        ("code", "without the code, in all visits"),
        ("visit", "without what was recorded at the visit"),
        ("pair", "without both codes, and how far that differs from the two effects together"),
        (CHANGE, "since the prediction time before; rows add up"),
    ):
        rows = [row for row in table.to_pylist() if row["kind"] == kind]
        if rows:
            say(f"\n{title}")
            for row in rows[:SHOWN]:
                say("  " + _line(row))
    return table, {"risk": found.risk, "question": question.text, "rows": table.num_rows}


def _line(row: dict[str, Any]) -> str:
    """One effect; positive raises the risk."""
    name = _cut(row["code"]) if row["code"] else f"visit {row['visit']} on {row['time'].date()}"
    if row["with_code"]:
        name = f"{_cut(row['code'])} and {_cut(row['with_code'])}"
    text = f"{100 * row['change_in_risk']:+7.2f} points  {name}"
    return text + (
        f"  (differs by {100 * row['interaction']:+.2f})" if row["interaction"] is not None else ""
    )


def _cut(code: str) -> str:
    return code if len(code) <= CODE else f"{code[: CODE - 1]}…"


def _cohort(
    question: Any, records: Any, subjects: int, tick: Any
) -> "tuple[pa.Table, dict[str, Any]]":
    from ehrsequencing.explain.cohort import explain_cohort

    found = explain_cohort(question, records, subjects=subjects, progress=tick)
    rows = found.table.to_pylist()
    say(
        f"risk of {question.text}: {found.risk:.1%} on average over {found.subjects:,} subjects, last prediction times"
    )
    say(f"\n{'code':<{CODE}}  carriers  points of risk  95 % interval     raises it for")
    for row in rows[: 2 * SHOWN]:
        interval = f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}"
        effect, raised = f"{100 * row['change_in_risk']:+.2f}", f"{row['raised']:.0%}"
        say(
            f"{_cut(row['code']):<{CODE}}  {row['carriers']:>8}  {effect:>14}  {interval:<16}  {raised:>13}"
        )
    if not rows:
        say("no code has 11 carriers or more")
    return found.table, {
        "risk": found.risk,
        "question": question.text,
        "subjects": found.subjects,
        "codes": len(rows),
    }
