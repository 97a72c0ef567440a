"""Tables as text, for the end of a command: the metrics, and the audit."""

from collections.abc import Mapping
from typing import Any

from ehrsequencing.config import format_days
from ehrsequencing.metrics.minimum_counts import TOO_FEW
from ehrsequencing.metrics.registry import in_columns, taken
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.wording import METRICS, said


def metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The cause of interest at each landmark and horizon: a line per model, and how ours differs from the strongest.

    Args:
        metrics: Content of `metrics.json`.
    """
    found = {
        (m["landmark_days"], m["cause"], m["horizon_days"], m["model"], m["metric"]): m for m in metrics["metrics"]
    }
    table, wide = Scores(metrics), max([18, *(len(name) for name in metrics["models"])])
    places = [place for place in dict.fromkeys(key[:3] for key in found) if place[2] is not None]
    shown = [place for place in places if place[1] == metrics["causes"][0]]
    lines, columns = [], in_columns(taken("everywhere"))
    for landmark, cause, horizon in shown:
        lines += [
            f"{cause} within {format_days(horizon)}, {_place(landmark)}",
            f"  {'':{wide}}" + "".join(f"{column.name:^21}" for column in columns),
        ]
        for model in metrics["models"]:
            cells = [_cell(found.get((landmark, cause, horizon, model, column.key))) for column in columns]
            lines.append(f"  {model:{wide}}" + "".join(f"{cell:^21}" for cell in cells).rstrip())
        lines += _gap_line(table, landmark, horizon)
    for m in metrics["metrics"]:
        if m["metric"] == "nll" and m["cause"] == metrics["causes"][0] and _cell(m) not in ("undefined", TOO_FEW):
            gap = table.gap(m["model"], m["landmark_days"], None, "nll")
            words = "" if gap is None or gap["value"] is None else f", ours against it {_signed(gap, 'nll', 4)}"
            lines.append(f"NLL of {m['model']}, {_place(m['landmark_days'])}: {m['value']:.4f}{words}")
    others = dict.fromkeys(place[1] for place in places if place not in shown)
    if others:
        lines.append(f"{', '.join(map(str, others))}: in the report and in metrics.json")
    return lines + _oracle_lines(metrics.get("oracle"))


def _gap_line(table: Scores, landmark: float | None, horizon: float) -> list[str]:
    """Ours less the strongest baseline, in one line; none where it was not computed."""
    rival = table.strongest()
    words = []
    for metric in ("c", "ipa"):
        gap = None if rival is None else table.gap(rival, landmark, horizon, metric)
        if gap is not None and gap.get("reason") == TOO_FEW:
            return ["  too few subjects or events: nothing is compared"]
        if gap is not None and gap["value"] is not None:
            words.append(f"{METRICS[metric].name} {_signed(gap, metric, 3)}")
    named = ", the strongest baseline" if table.m.get("strongest") else ""
    return [f"  against {rival}{named}: {', '.join(words)}"] if words else []


def _signed(gap: Mapping[str, Any], metric: str, digits: int) -> str:
    """A difference with its interval and its verdict."""
    low, high = gap["low"], gap["high"]
    between = "" if low is None or high is None else f" ({low:+.{digits}f} to {high:+.{digits}f})"
    return f"{gap['value']:+.{digits}f}{between} {said(gap, metric)}"


def _oracle_lines(oracle: Mapping[str, Any] | None) -> list[str]:
    if oracle is None:
        return []
    share, error, expected = oracle["gain_share"], 1.96 * oracle["gain_share_se"], oracle.get("gain_share_expected")
    lines = [f"{share:.1%} (± {error:.1%}) of the gain in NLL that the truth gives, by what happened to these subjects"]
    if expected is not None:
        lines.insert(0, f"{expected:.1%} of the gain in NLL that the truth gives, by what the truth expects")
    if oracle["mechanisms"]:
        learned = (f"{row['mechanism']} {row['share']:.2f}" for row in oracle["mechanisms"])
        lines.append(f"learned of each mechanism (1: all): {', '.join(learned)}")
    if oracle["beats_oracle_z"] > 3:
        z = oracle["beats_oracle_z"]
        lines.append(
            f"LEAK: better than the true hazards by {z:.1f} standard errors. No honest model is: see ehrseq audit"
        )
    elif oracle.get("nll_z", 0) > 3:
        lines.append(
            f"better than the true hazards by {oracle['nll_z']:.1f} standard errors of the NLL, but it foresees no "
            "event that they do not expect: too few simulated futures (truth_futures), no leak"
        )
    return lines


def _place(landmark_days: float | None) -> str:
    return "all prediction times" if landmark_days is None else f"{format_days(landmark_days)} after the index"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is not None and row.get("reason") == TOO_FEW:
        return TOO_FEW
    if row is None or row["value"] is None:
        return "undefined"
    interval = f" ({row['low']:.3f}–{row['high']:.3f})" if row["low"] is not None and row["high"] is not None else ""
    return f"{row['value']:.3f}{interval}"


VERDICTS = {"passed": "passed", "warning": "WARNING", "leak": "LEAK", "not_tested": "not tested"}


def audit_lines(result: Mapping[str, Any]) -> list[str]:
    """One line per check of an audit with its verdict and reason, then the sum.

    Args:
        result: Content of `audit.json`.
    """
    lines = [f"{result['task']}, {result['split']}, up to {result['subjects']} subjects of each split", ""]
    for check in result["checks"]:
        lines.append(f"  {VERDICTS[check['verdict']]:10}  {check['name']:20} {check['reason']}")
    leaks, warnings = (
        [check["name"] for check in result["checks"] if check["verdict"] == verdict] for verdict in ("leak", "warning")
    )
    if warnings:
        lines += ["", f"WARNING: {', '.join(warnings)}. Not proven, not cleared: find out before you use this run."]
    if leaks:
        lines += ["", f"LEAK: {', '.join(leaks)}. Believe no number of this run until this is understood."]
    else:
        passed = sum(check["verdict"] == "passed" for check in result["checks"])
        warned = f"{len(warnings)} warned, " if warnings else ""
        lines += ["", f"no leak found: {passed} checks passed, {warned}{result['not_tested']} could not be made"]
    return lines
