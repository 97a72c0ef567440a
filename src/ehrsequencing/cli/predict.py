"""`ehrseq predict`, `explain` and `explore`: what a run says of records, and what moves its risks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ehrsequencing.api.progress import bar
from ehrsequencing.cli.console import REFUSED, finish, note, remark, say, shown, warn
from ehrsequencing.cli.options import open_run, read_study
from ehrsequencing.core.errors import EhrseqError, refuse_idle
from ehrsequencing.core.signals import keep_freed_memory

if TYPE_CHECKING:
    from ehrsequencing.explain.tables import Explanation

SHOWN = 5  # rows of each table in the terminal
CODE = 34  # columns of a code in the terminal


def predict(
    run: Path,
    data: Path,
    out: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    **given: Any,
) -> None:
    """Write risk curves for any MEDS data, and beside them a page and a JSON for their owner."""
    from ehrsequencing.core.text import days_of
    from ehrsequencing.prediction.journal import Journal
    from ehrsequencing.prediction.predict import Request
    from ehrsequencing.prediction.predict_some import predict_outcomes
    from ehrsequencing.reporting.risk_list import write_list

    horizons, journal, key = (given.pop(name) for name in ("horizons", "journal", "key"))
    outcome, top = (given.pop(name) for name in ("outcome", "top"))
    of_list = {name: given.pop(name) for name in ("threshold", "strict")}
    read_study(config, overrides, "predict")  # settings, then files and moments, then the run
    Request(**given).refuse_early(out, data)
    opened, study = open_run(run, "predict", overrides, config)
    days = None if horizons is None else days_of(horizons.split(","), where="--horizons")
    given |= {"horizons_days": days, "facts": study.data, "limits": study.drift, "say": remark}
    if outcome or top is not None:
        refuse_idle(
            {f"--{name}": value for name, value in of_list.items()},
            "beside --outcome and --top: it is for the task's causes",
            where="ehrseq predict",
        )
        with bar("predicting", show=shown()) as tick:
            asked = Request(progress=tick, **given)
            count = predict_outcomes(run, data, out, asked, outcomes=outcome or (), top=top)
        say(f"risks at {count:,} prediction times")
        # score knows a task's own causes alone
        then = ["evaluate", run]
        finish(wrote={"predictions": out}, then=then, result={"prediction_times": count})
        return
    refuse_idle({"--key": key}, "without --journal", where="ehrseq predict", when=journal is None)
    kept = None if journal is None else Journal(journal, key)
    with bar("predicting", show=shown()) as tick:
        asked = Request(progress=tick, journal=kept, **given)
        found, unlike, wrote = write_list(opened, data, out, asked, **of_list)
    times = sum(found["prediction_times"].values())
    say(f"risks at {times:,} prediction times")
    result = {"prediction_times": times} | {name: found[name] for name in ("above", "drift")}
    page = f"open {wrote['page']} in a browser"
    if "predictions" not in wrote:
        warn(f"there is no list. {unlike.verdict}")
    else:
        (say if unlike.passes else warn)(unlike.verdict)
    finish(wrote=wrote, then=page, result=result)
    if "predictions" not in wrote:
        raise typer.Exit(REFUSED)


def drift(run: Path, data: Path, overrides: Sequence[str] | None, config: Path | None) -> None:
    """Compare new people with those that a run was trained on; loads no model.

    Exits with 4 where codes, units, numbers or people differ beyond the settings of the section drift, and where they
    cannot be compared: the run does not tell of its training people, or the new ones are too few.
    """
    from ehrsequencing.api.new_people import drift as compare

    opened, study = open_run(run, "drift", overrides, config, data=data)
    found = compare(opened, data, limits=study.drift, facts=study.data, progress=shown())
    (say if found.passes else warn)(found.verdict)
    for text in found.notes if found.is_alarm else ():
        warn(text)
    for one in (found.differences or [])[: 2 * SHOWN]:
        training, here = one.texts
        mark = "  alarm" if one.is_alarm else ""
        say(f"  {_named(one.title, {}):<{CODE}} {training:>9} {here:>9}  {one.size:>4.0%}{mark}")
    then = ["predict", run, data, "--at", opened.task.index.moment]
    if not found.passes:
        then = ["check", data]
    finish(wrote={}, then=then, result=found.as_json())
    if not found.passes:
        raise typer.Exit(REFUSED)


def monitor(
    run: Path,
    data: Path,
    out: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    **given: Any,
) -> None:
    """Say how good the journalled predictions are today, before most of their outcomes are known.

    Exits with 4 where events are so many or so few that O/E lies outside .9 to 1.1, or where the feed looks broken.
    """
    from ehrsequencing.api.new_people import monitor as watch
    from ehrsequencing.reporting.monitor_page import night_line

    if given["journal"] is None:
        raise EhrseqError(
            "needs the journal", where="ehrseq monitor", fix="name its folder by --journal"
        )
    opened, study = open_run(run, "monitor", overrides, config, data=data)
    given |= {"by": given["by"] or (), "limits": study.drift, "facts": study.data}
    found = watch(opened, data, out=out, progress=shown(), **given)
    say(found.verdict)
    then: Sequence[object] | str = f"open {out} in a browser"
    if found.action == "update":
        then = ["update", run, data, "--out", "updated"]
    finish(
        wrote={"page": out, "metrics": given["metrics"]},
        then=then,
        result=dict(night_line(found)),
    )
    if found.is_alarm:
        raise typer.Exit(REFUSED)


def explain(
    run: Path,
    data: Path,
    out: Path | None,
    overrides: Sequence[str] | None,
    config: Path | None,
    **given: Any,
) -> None:
    """Show which codes and visits move a risk.

    With --subject: what each code and visit adds to the risk at the subject's last prediction time (the
    risk with it minus the risk without it), and what has changed since the prediction time before. Without it: what
    each code adds on average for the subjects who have it, with intervals. These are associations, not causes.
    """
    from ehrsequencing.core.files import refuse_overlap
    from ehrsequencing.core.outputs import EXPLANATION, refuse_existing
    from ehrsequencing.core.text import day_of
    from ehrsequencing.explain.deletions import OF_PART
    from ehrsequencing.explain.record import Question
    from ehrsequencing.explain.tables import SUFFIXES, explained, write_table
    from ehrsequencing.prediction.predict import NewRecords
    from ehrsequencing.prediction.prediction_file import require_suffix
    from ehrsequencing.records.codes import read_descriptions

    subject, subjects, horizon, overwrite = (
        given.pop(name) for name in ("subject", "subjects", "horizon", "overwrite")
    )
    refuse_idle(
        {"--overwrite": overwrite}, "without --out", where="ehrseq explain", when=out is None
    )
    if out is not None:
        refuse_existing(out, EXPLANATION, overwrite=overwrite)
        refuse_overlap(out, data)
        require_suffix(out, SUFFIXES, what="tables")
    days = None if horizon is None else day_of(horizon, where="--horizon")
    opened, study = open_run(run, "explain", overrides, config, data=data)
    question = Question.for_run(opened, horizon_days=days, **given)
    with bar("explaining", show=shown()) as tick:
        records = NewRecords(question.run, data, study.data)
        note(records.require_known(force=False))
        explanation = explained(question, records, subject, subjects=subjects, progress=tick)
    if explanation.is_part:
        warn(OF_PART)
    show = _cohort_lines if subject is None else _subject_lines
    say("\n".join(show(explanation, question.text, read_descriptions(data))))
    say("An effect is an association in the model, not the effect of a treatment.")
    if out is not None:
        write_table(explanation.table, out, overwrite=overwrite)
    result = {
        "risk": explanation.risk,
        "question": question.text,
        "rows": explanation.table.num_rows,
    }
    result |= {} if subject is not None else {"subjects": explanation.subjects}
    then = ["predict", run, data, "--at", opened.task.index.moment]
    finish(wrote={"table": out}, then=then, result=result)


def _subject_lines(explanation: "Explanation", asked: str, described: dict[str, str]) -> list[str]:
    lines = [f"risk of {asked}: {explanation.risk:.1%}, after {explanation.visits} visits"]
    for kind, title in (
        ("code", "what each code adds, in all visits"),
        ("visit", "what each visit adds"),
        (
            "since the prediction time before",
            "what has changed since the prediction time before; rows add up",
        ),
    ):
        rows = [row for row in explanation.table.to_pylist() if row["kind"] == kind]
        if rows:
            effects = [_effect(row, explanation.risk, described) for row in rows[:SHOWN]]
            lines += ["", title, *(f"  {effect}" for effect in effects)]
    return lines


def _effect(row: dict[str, Any], risk: float, described: dict[str, str]) -> str:
    """What a part of the record adds: `+21.9 points: with DX//A01 42.0%, without it 20.1%`."""
    name = f"visit {row['visit']} on {row['time'].date()}" if row["visit"] is not None else ""
    if row["code"]:
        name = _named(row["code"], described)
    added = row["change_in_risk"]
    points = f"{_signed(100 * added):>7} points"
    if row["kind"] == "since the prediction time before":
        return f"{points}  {name}"
    return f"{points}: with {name} {risk:.1%}, without {risk - added:.1%}"


def _named(code: str, described: dict[str, str]) -> str:
    """A code with its description, cut to what a line has room for."""
    text = f"{code} {described.get(code, '')}".strip()
    return text if len(text) <= CODE else f"{text[: CODE - 1]}…"


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "\N{MINUS SIGN}")


def _cohort_lines(explanation: "Explanation", asked: str, described: dict[str, str]) -> list[str]:
    lines = [
        f"risk of {asked}: {explanation.risk:.1%} on average over {explanation.subjects:,} subjects,"
        " at their last prediction times",
        "",
        f"{'code':<{CODE}}  carriers  adds (points)  95 % interval     raises it for",
    ]
    rows = explanation.table.to_pylist()
    for row in rows[: 2 * SHOWN]:
        interval = f"{_signed(100 * row['low'])} to {_signed(100 * row['high'])}"
        against = f" against {row['against']}" if row["against"] else ""
        code = f"{_named(row['code'] + against, described):<{CODE}}  {row['carriers']:>8}"
        added = _signed(100 * row["change_in_risk"])
        lines.append(f"{code}  {added:>13}  {interval:<16}  {row['raised']:>13.0%}")
    return lines if rows else [*lines, "no code has 11 carriers or more"]


def explore(
    run: Path,
    data: Path,
    out: Path,
    overrides: Sequence[str] | None,
    config: Path | None,
    megabytes: float | None,
    **given: Any,
) -> None:
    """Write the explorer: a page on which to look at a cohort, at one patient, and at what moved the risk.

    The file opens by double click and asks no server. It holds pseudonyms and days, no ids and no dates, but it is
    patient data all the same.
    """
    keep_freed_memory()
    is_idle = not given["what_if"]
    refuse_idle({"--megabytes": megabytes}, "with --no-what-if", where="explore", when=is_idle)
    _, study = open_run(run, "explore", overrides, config, data=data)
    from ehrsequencing.api.run import TrainedRun

    given |= {} if megabytes is None else {"megabytes": megabytes}
    given |= {"facts": study.data, "progress": shown(), "say": remark}
    explorer = TrainedRun(run).explore(data, out, **given)
    result = {
        "patients": len(explorer.gathered.patients),
        "what_if": 0 if explorer.removals is None else len(explorer.removals),
        "megabytes": round(out.stat().st_size / 1e6, 1),
    }
    say("{patients:,} patients, {what_if:,} what-if answers, {megabytes} MB".format(**result))
    finish(wrote={"explorer": out}, then=f"open {out} in a browser", result=result)
