"""What `ehrseq evaluate` and `ehrseq audit` print at their end: the metrics and the audit as lines of text."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.config import format_days
from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.metrics.registry import METRICS, in_columns, taken
from ehrsequencing.records.attrition import from_index
from ehrsequencing.reporting.scores import Scores, declared
from ehrsequencing.reporting.wording import with_interval
from ehrsequencing.results.result_types import Shared, SharedAudit, place_of

COLUMNS, MOST_MODELS = 100, 6
VERDICTS = {"passed": "passed", "warning": "WARNING", "leak": "LEAK", "not_tested": "not tested"}


def metric_lines(metrics: Shared) -> list[str]:
    """The main result in about ten lines of at most 100 columns; the report has the rest.

    One table for the cause of interest: every model at the main landmark and horizon. Below it, ours minus the
    strongest baseline, one line a metric.
    """
    table, cause = Scores(metrics), metrics["causes"][0]
    landmark, horizon = table.main()
    place = (landmark, cause, horizon)
    columns = [column for column in in_columns(taken("everywhere")) if column.in_terminal]
    lines, others = [], metrics["models"][MOST_MODELS:]
    truth = table.truth
    shown = [name for name in metrics["models"] if name not in others or name == truth]
    rows = {
        name: [table.values.get((name, *place, column.key)) for column in columns] for name in shown
    }
    place_words = (
        "at all prediction times" if landmark is None else f"predicted {from_index(landmark)}"
    )
    where = f"{cause} within {format_days(horizon or 0)}, {place_words}"
    if table.too_few(landmark, horizon):
        lines.append(f"{where}: {TOO_FEW}, nothing is compared")
        if repeated := metrics.get("repeated_splits"):
            means = {(row["model"], *place_of(row), row["metric"]): row for row in repeated["rows"]}
            cells = {
                name: [_cell(means.get((name, *place, column.key)), "mean") for column in columns]
                for name in shown
            }
            heads = [column.name for column in columns]
            lines += [f"means over {repeated['splits']} random splits", *_table(heads, cells)]
    elif any(row is not None for cells in rows.values() for row in cells):
        heads = [*(column.name for column in columns), "NLL"]
        cells = {
            name: [*map(_cell, values), _nll(table, name, place)] for name, values in rows.items()
        }
        lines += [reached] if (reached := table.reached()) else []
        lines += [where, *_table(heads, cells), *_difference_lines(table, landmark, horizon)]
    else:
        lines += [f"NLL of {name}: {text}" for name in shown if (text := _nll(table, name, place))]
    lines += _oracle_lines(metrics.get("oracle"))
    return [part for line in lines for part in _cut(line)]


def _table(heads: Sequence[str], cells: Mapping[str, Sequence[str]]) -> list[str]:
    """A row for each model. Empty columns are left out."""
    rows = {"": heads, **cells}
    lines = [f"  {name:<{max(map(len, rows))}}" for name in rows]
    for column in zip(*rows.values(), strict=True):
        if any(column[1:]):
            wide = max(map(len, column))
            lines = [f"{a}  {b:<{wide}}" for a, b in zip(lines, column, strict=True)]
    return [line.rstrip() for line in lines]


def _nll(table: Scores, model: str, place: tuple[Any, ...]) -> str:
    """The likelihood of a model over all durations; empty without one."""
    row = table.values.get((model, *place[:2], None, "nll")) or table.values.get(
        (model, None, place[1], None, "nll")
    )
    known = row is not None and row["value"] is not None and row.get("reason") != TOO_FEW
    return f"{row['value']:.4f}" if row is not None and known else ""


def _cut(line: str, *, indent: int = 4) -> list[str]:
    """A line, or several where it is too long."""
    wrap = textwrap.TextWrapper(
        COLUMNS, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return wrap.wrap(line) if len(line) > COLUMNS else [line]


def _difference_lines(table: Scores, landmark: float | None, horizon: float | None) -> list[str]:
    """Ours minus the strongest baseline, one line a metric; none where it was not computed."""
    rival, lines, compared = table.strongest(), list[str](), declared(table)
    for metric, by, digits in (("c", horizon, 3), ("ipa", horizon, 3), ("nll", None, 4)):
        gap = None if rival is None else table.gap(rival, landmark, by, metric)
        if gap is not None and gap.get("reason") == TOO_FEW:
            return ["  too few subjects or events: nothing is compared"]
        if gap is not None and gap["value"] is not None:
            less = with_interval(gap["value"], gap["low"], gap["high"], f"+.{digits}f")
            word = f" {compared['word']}" if compared and metric == compared["metric"] else ""
            counted = f", {gap['events']} with the event" if gap.get("events") is not None else ""
            lines.append(f"  {METRICS[metric].name:5} {less}{word}{counted}")
    named = ", the strongest baseline" if table.m.get("strongest") else ""
    undeclared = "" if compared else "; no verdict, because the task declares no main horizon"
    return [f"against {rival}{named}{undeclared}", *lines] if lines else []


def _oracle_lines(oracle: dict[str, Any] | None) -> list[str]:
    """The likelihood of the model less that of the true hazards of a simulation, and whether that is a leak."""
    if oracle is None or "nll_difference" not in oracle:
        return []
    less, error = oracle["nll_difference"], 1.96 * oracle["nll_difference_se"]
    ends = with_interval(less, less - error, less + error, "+.4f")
    lines = [f"NLL less that of the true hazards: {ends}"]
    whole: dict[str, float] = {}
    for row in oracle.get("excess", []):
        whole.setdefault(row["kind"], row["value"])  # the first row of a kind is of all its time
    if whole:
        said = ", ".join(f"{value:.4f} at {kind} times" for kind, value in whole.items())
        lines.append(f"cost above the true hazards, without the chance of events: {said}")
    z, nll_z = oracle["beats_oracle_z"], oracle["nll_z"]
    if z > 3:
        lines.append(
            f"LEAK: better than the true hazards by {z:.1f} standard errors. That is a leak: see ehrseq audit"
        )
    elif nll_z > 3:
        lines.append(
            f"better than the true hazards by {nll_z:.1f} standard errors of the NLL, but not in foreseeing events: "
            "no leak, the simulation has too few futures (truth_futures)"
        )
    return lines


def _cell(row: Mapping[str, Any] | None, key: str = "value") -> str:
    if row is None:
        return "undefined"
    return (
        TOO_FEW
        if row.get("reason") == TOO_FEW
        else with_interval(row[key], row["low"], row["high"], ".3f")
    )


def audit_lines(result: SharedAudit) -> list[str]:
    """The checks of an audit that did not pass with their reasons, the names of the others, and the sum."""
    named: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    lines = [
        f"{result['task']}, {result['split']}, up to {result['subjects']} subjects of each split",
        "",
    ]
    for check in result["checks"]:
        named[check["verdict"]].append(check["name"])
        if check["verdict"] != "passed":
            lines += _cut(
                f"  {VERDICTS[check['verdict']]:10}  {check['name']:20} {check['reason']}",
                indent=14,
            )
    if named["passed"]:
        lines += _cut(f"  {'passed':10}  {', '.join(named['passed'])}", indent=14)
    leaks, warnings = named["leak"], named["warning"]
    if warnings:
        sentence = f"WARNING: {', '.join(warnings)}. Find out whether this is a leak before you use this run."
        lines += ["", *_cut(sentence)]
    if leaks:
        sentence = f"LEAK: {', '.join(leaks)}. Do not trust any number of this run until this is explained."
        return [*lines, "", *_cut(sentence)]
    warned = f"{len(warnings)} warned, " if warnings else ""
    passed = (
        f"{len(named['passed'])} checks passed, {warned}{result['not_tested']} could not be made"
    )
    return [*lines, "", f"no leak found: {passed}"]
