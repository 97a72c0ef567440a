"""Tables as text, for the end of a command: the metrics, and the audit."""

from collections.abc import Mapping
from typing import Any

from ehrsequencing.config import format_days

COLUMNS = ("c", "auc", "ipa", "brier", "oe")


def metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    """One line per landmark, cause, horizon and model, each metric with its interval.

    Args:
        metrics: Content of `metrics.json`.
    """
    found = {
        (m["landmark_days"], m["cause"], m["horizon_days"], m["model"], m["metric"]): m for m in metrics["metrics"]
    }
    places = dict.fromkeys(key[:3] for key in found if key[2] is not None)
    lines = []
    for landmark, cause, horizon in places:
        lines += [
            f"{cause} within {format_days(horizon)}, {_place(landmark)}",
            f"  {'':18}" + "".join(f"{c:^21}" for c in COLUMNS),
        ]
        for model in metrics["models"]:
            cells = [_cell(found.get((landmark, cause, horizon, model, column))) for column in COLUMNS]
            lines.append(f"  {model:18}" + "".join(f"{cell:^21}" for cell in cells))
    for m in metrics["metrics"]:
        if m["metric"] == "nll":
            lines.append(f"NLL of {m['model']}, {_place(m['landmark_days'])}: {m['value']:.4f}")
    return lines + _oracle_lines(metrics.get("oracle"))


def _oracle_lines(oracle: Mapping[str, Any] | None) -> list[str]:
    if oracle is None:
        return []
    share, error = oracle["gain_share"], 1.96 * oracle["gain_share_se"]
    lines = [f"{share:.1%} (± {error:.1%}) of the gain in NLL that the truth gives"]
    if oracle["mechanisms"]:
        learned = (f"{row['mechanism']} {row['share']:.2f}" for row in oracle["mechanisms"])
        lines.append(f"learned of each mechanism (1: all): {', '.join(learned)}")
    if oracle["beats_oracle_z"] > 3:
        z = oracle["beats_oracle_z"]
        lines.append(
            f"LEAK: better than the true hazards by {z:.1f} standard errors. No honest model is: see ehrseq audit"
        )
    return lines


def _place(landmark_days: float | None) -> str:
    return "all prediction times" if landmark_days is None else f"{format_days(landmark_days)} after the index"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return "undefined"
    interval = f" ({row['low']:.3f}–{row['high']:.3f})" if row["low"] is not None and row["high"] is not None else ""
    return f"{row['value']:.3f}{interval}"


VERDICTS = {"passed": "passed", "leak": "LEAK", "not_tested": "not tested"}


def audit_lines(result: Mapping[str, Any]) -> list[str]:
    """One line per check of an audit with its verdict and reason, then the sum.

    Args:
        result: Content of `audit.json`.
    """
    lines = [f"{result['task']}, {result['split']}, up to {result['subjects']} subjects of each split", ""]
    for check in result["checks"]:
        lines.append(f"  {VERDICTS[check['verdict']]:10}  {check['name']:20} {check['reason']}")
    leaks = [check["name"] for check in result["checks"] if check["verdict"] == "leak"]
    if leaks:
        lines += ["", f"LEAK: {', '.join(leaks)}. Believe no number of this run until this is understood."]
    else:
        passed = sum(check["verdict"] == "passed" for check in result["checks"])
        lines += ["", f"no leak found: {passed} checks passed, {result['not_tested']} could not be made"]
    return lines
