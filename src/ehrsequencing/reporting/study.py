"""`study.html`: pooled metrics of several hospitals, a forest plot of the sites, and calibration by site."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ehrsequencing.config import format_days
from ehrsequencing.core.files import write_bytes
from ehrsequencing.reporting.chart import Chart, Estimate, Figure, swatch
from ehrsequencing.reporting.figures import levels
from ehrsequencing.reporting.report import environment

_SIZE, _LEFT = 330.0, 50.0


def write_study(result: Mapping[str, Any], folder: Path) -> None:
    """Write `study.html` into a folder."""
    write_bytes(folder / "study.html", render_study(result).encode())


def render_study(result: Mapping[str, Any]) -> str:
    """The page as a string of HTML, without a script.

    Args:
        result: Of `study.merge.merged`.
    """
    rows = [row for row in result["rows"] if row["sites"]]
    kinds = {name: kind for kind, name in enumerate(result["sites"], start=1)}  # of marks
    page = {
        "result": result,
        "rows": [{**row, "where": where(row)} for row in rows],
        "hidden": [{**row, "where": where(row)} for row in result["rows"] if row["withheld"]],
        "forests": [forest_plot(rows, metric, kinds) for metric in ("c", "oe") if rows],
        "calibrations": [calibration_plot(row, kinds) for row in rows],
        "swatches": [(swatch(kind), name) for name, kind in ({"all sites": 0} | kinds).items()],
    }
    return environment().get_template("study.html.jinja").render(page)


def where(row: Mapping[str, Any]) -> str:
    """Cause, horizon and landmark of a row in words."""
    at = (
        ""
        if not row["landmark_days"]
        else f", asked {format_days(row['landmark_days'])} after the index"
    )
    return f"{row['cause']} by {format_days(row['horizon_days'])}{at}"


def study_lines(result: Mapping[str, Any]) -> list[str]:
    """The pooled metrics for the terminal."""
    lines = [f"{len(result['sites'])} sites: {', '.join(result['sites'])}"]
    for row in result["rows"]:
        if row["sites"]:
            spread = row["between_sites"]["c"]
            between = "" if spread["i2"] is None else f", I² of C {spread['i2']:.0%}"
            numbers = f"C {_number(row['c'])}, O/E {_number(row['oe'])}, IPA {_number(row['ipa'])}{between}"
            lines.append(
                f"{where(row)}: {numbers} ({row['events']:,} events of {row['n']:,}, {len(row['sites'])} sites)"
            )
        else:
            lines.append(f"{where(row)}: withheld by every site")
    return lines


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def forest_plot(rows: list[Mapping[str, Any]], metric: str, kinds: Mapping[str, int]) -> Figure:
    """One line for each site and one for their random-effects mean, for each cause, horizon and landmark."""
    groups = []
    for row in rows:
        found, own = row["between_sites"][metric], row["each_site"]
        parts = []
        for k, site in enumerate(row["sites"]):
            part = found["sites"][k]
            value = {"value": own[k][metric], "low": None, "high": None} if part is None else part
            parts.append(
                (site, Estimate(kinds[site], site, value["value"], value["low"], value["high"]))
            )
        if found["mean"] is not None:
            parts.append(
                ("all sites", Estimate(0, "all sites", found["mean"], found["low"], found["high"]))
            )
        groups.append((where(row), parts))
    name, reference = ("C", 0.5) if metric == "c" else ("observed / expected", 1.0)
    return levels(groups, title=f"{name} of each site", label=name, reference=reference)


def calibration_plot(row: Mapping[str, Any], kinds: Mapping[str, int]) -> Figure:
    """Observed against predicted risk: each site in its own bins, and all sites in those that they share."""
    parts = [(0, "all sites", row["calibration"])] if len(row["calibration"]) > 1 else []
    named = zip(row["sites"], row["each_site"], strict=True)
    parts = [(kinds[name], name, own["calibration"]) for name, own in named] + parts
    reach = 1.05 * max(max(p["predicted"], p["observed"]) for _, _, points in parts for p in points)
    chart = Chart(_SIZE, _SIZE, (0.0, reach), (0.0, reach), left=_LEFT)
    chart.x_axis("predicted risk", lambda value: f"{value:.0%}")
    chart.y_axis("observed risk", lambda value: f"{value:.0%}")
    chart.line(0.0, 0.0, reach, reach, "reference")
    for kind, name, points in parts:
        for p in points:
            words = f"{name}: predicted {p['predicted']:.1%}, observed {p['observed']:.1%}, {p['n']:,} subjects"
            chart.mark(kind, p["predicted"], p["observed"], words)
            chart.told.append(words)
            chart.rows.append(
                (name, f"{p['predicted']:.3f}", f"{p['observed']:.3f}", f"{p['n']:,}")
            )
    chart.columns = ("site", "predicted", "observed", "subjects")
    return chart.svg(where(row))
