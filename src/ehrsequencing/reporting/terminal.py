"""What `ehrseq evaluate` and `ehrseq audit` print at their end: the metrics and the audit as lines of text."""

from collections.abc import Mapping
from typing import Any

from ehrsequencing.config import format_days
from ehrsequencing.metrics.minimum_counts import TOO_FEW
from ehrsequencing.metrics.registry import METRICS, in_columns, taken
from ehrsequencing.reporting.scores import Row, Scores
from ehrsequencing.reporting.tables import blend
from ehrsequencing.reporting.wording import verdict, with_interval

VERDICTS = {"passed": "passed", "warning": "WARNING", "leak": "LEAK", "not_tested": "not tested"}


def metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The cause of interest at each landmark and horizon: one line per model, and ours minus the strongest baseline."""
    table, ours, lines = Scores(metrics), metrics["causes"][0], list[str]()
    columns = in_columns(taken("everywhere"))
    wide = max([18, *(len(name) for name in metrics["models"])])
    by_horizon = dict.fromkeys(key[1:4] for key in table.values if key[3] is not None)
    for place in (place for place in by_horizon if place[1] == ours):
        landmark, _, horizon = place
        lines.append(f"{ours} within {format_days(horizon)}, {_landmark(landmark)}")
        lines.append(f"  {'':{wide}}" + "".join(f"{column.name:^21}" for column in columns))
        for model in metrics["models"]:
            cells = [_cell(table.values.get((model, *place, column.key))) for column in columns]
            lines.append(f"  {model:{wide}}" + "".join(f"{cell:^21}" for cell in cells).rstrip())
        lines += _difference_line(table, landmark, horizon)
    for m in metrics["metrics"]:
        if m["metric"] == "nll" and m["cause"] == ours and m["value"] is not None and m.get("reason") != TOO_FEW:
            gap = table.gap(m["model"], m["landmark_days"], None, "nll")
            words = "" if gap is None or gap["value"] is None else f", ours minus it {_signed(gap, 'nll', 4)}"
            lines.append(f"NLL of {m['model']}, {_landmark(m['landmark_days'])}: {m['value']:.4f}{words}")
    others = dict.fromkeys(str(place[1]) for place in by_horizon if place[1] != ours)
    if others:
        lines.append(f"{', '.join(others)}: in the report and in metrics.json")
    return lines + _blend_lines(metrics) + _oracle_lines(metrics.get("oracle"))


def _blend_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The weights of a blend, a line per cause."""
    found = blend(metrics)
    if found is None:
        return []
    lines = ["weights of the blend, fitted out of fold"]
    for cause, weights in found["rows"]:
        lines.append(f"  {cause}: " + ", ".join(f"{p} {w}" for p, w in zip(found["parts"], weights, strict=True)))
    if found["best"]:
        lines.append(f"the blend minus {found['best']}, the part with the lowest tuning NLL")
    for (landmark, horizon), told in found["gaps"]:
        within = "" if horizon is None else f" within {format_days(horizon)}"
        lines.append(f"  {_landmark(landmark)}{within}: {', '.join(told)}")
    return lines


def _difference_line(table: Scores, landmark: float | None, horizon: float) -> list[str]:
    """Ours minus the strongest baseline in one line; none where it was not computed."""
    rival, words = table.strongest(), []
    for metric in ("c", "ipa"):
        gap = None if rival is None else table.gap(rival, landmark, horizon, metric)
        if gap is not None and gap.get("reason") == TOO_FEW:
            return ["  too few subjects or events: nothing is compared"]
        if gap is not None and gap["value"] is not None:
            words.append(f"{METRICS[metric].name} {_signed(gap, metric, 3)}")
    named = ", the strongest baseline" if table.m.get("strongest") else ""
    return [f"  against {rival}{named}: {', '.join(words)}"] if words else []


def _signed(gap: Row, metric: str, digits: int) -> str:
    """A difference with its interval and its verdict."""
    return f"{with_interval(gap['value'], gap['low'], gap['high'], f'+.{digits}f')} {verdict(gap, metric)}"


def _oracle_lines(oracle: Mapping[str, Any] | None) -> list[str]:
    """How much of the gain in likelihood from no knowledge to the true hazards of a simulation the model reaches."""
    if oracle is None:
        return []
    lines, expected = [], oracle.get("gain_share_expected")
    if expected is not None:
        lines.append(f"{expected:.1%} of the gain in NLL that the true hazards give, in expectation")
    if oracle["gain_share"] is None:
        return lines
    share, error = oracle["gain_share"], 1.96 * oracle["gain_share_se"]
    lines.append(f"{share:.1%} (± {error:.1%}) of the gain in NLL that the true hazards give, on the observed outcomes")
    if oracle["mechanisms"]:
        learned = (f"{row['mechanism']} {row['share']:.2f}" for row in oracle["mechanisms"])
        lines.append(f"learned of each mechanism (1: all): {', '.join(learned)}")
    z, nll_z = oracle["beats_oracle_z"], oracle.get("nll_z", 0)
    if z > 3:
        lines.append(
            f"LEAK: better than the true hazards by {z:.1f} standard errors. No honest model is: see ehrseq audit"
        )
    elif nll_z > 3:
        lines.append(
            f"better than the true hazards by {nll_z:.1f} standard errors of the NLL, but not in foreseeing events: "
            "no leak, the simulation has too few futures (truth_futures)"
        )
    return lines


def _landmark(days: float | None) -> str:
    return "all prediction times" if days is None else f"{format_days(days)} after the index"


def _cell(row: Row | None) -> str:
    if row is None:
        return "undefined"
    return TOO_FEW if row.get("reason") == TOO_FEW else with_interval(row["value"], row["low"], row["high"], ".3f", "–")


def audit_lines(result: Mapping[str, Any]) -> list[str]:
    """One line per check of an audit with its verdict and reason, then the sum."""
    named: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    lines = [f"{result['task']}, {result['split']}, up to {result['subjects']} subjects of each split", ""]
    for check in result["checks"]:
        named[check["verdict"]].append(check["name"])
        lines.append(f"  {VERDICTS[check['verdict']]:10}  {check['name']:20} {check['reason']}")
    leaks, warnings = named["leak"], named["warning"]
    if warnings:
        lines += ["", f"WARNING: {', '.join(warnings)}. Find out whether this is a leak before you use this run."]
    if leaks:
        return [*lines, "", f"LEAK: {', '.join(leaks)}. Do not trust any number of this run until this is explained."]
    warned = f"{len(warnings)} warned, " if warnings else ""
    passed = f"{len(named['passed'])} checks passed, {warned}{result['not_tested']} could not be made"
    return [*lines, "", f"no leak found: {passed}"]
