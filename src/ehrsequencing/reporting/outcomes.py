"""`outcomes.html`: every outcome of a run, as a figure and a table. Outcomes with few events are pooled before."""

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ehrsequencing.config import format_days
from ehrsequencing.reporting.chart import Chart
from ehrsequencing.reporting.report import environment

_WIDTH, _HEIGHT = 460.0, 330.0


def render_outcomes(result: Mapping[str, Any], *, title: str) -> str:
    """The page as a string of HTML, without a script.

    Args:
        result: Of `evaluate_outcomes`.
        title: Heading.
    """
    rows, pooled = result["outcomes"], result["pooled"]
    near, far = (format_days(days) for days in result["horizons_days"])
    figures = [Markup(draw(result, name)) for name in ("auc", "oe")] if rows else []
    page = {
        "title": title,
        "result": result,
        "rows": rows,
        "pooled": pooled,
        "near": near,
        "far": far,
    }
    return (
        environment()
        .get_template("outcomes.html.jinja")
        .render(page, figures=figures, lines=outcome_lines(result))
    )


def outcome_lines(result: Mapping[str, Any]) -> list[str]:
    """The summary of all outcomes as sentences, for the terminal and the page."""
    found, fewest = result["summary"], result["fewest_events"]
    pooled = result["pooled"]
    within = "sex and age" if "sex" in result["strata"] else "age"
    if not found["outcomes"] and pooled["outcomes"]:
        return [
            f"no outcome has {fewest} events or more; of the {pooled['outcomes']} with fewer, pooled, the AUC within"
            f" {within} is {with_interval(pooled['auc'])}, and observed/expected is {with_interval(pooled['oe'])}"
        ]
    lines = [
        f"{found['outcomes']} outcomes with {fewest} events or more, {pooled['outcomes']} with fewer"
    ]
    if found["median_auc"] is not None:
        lines.append(f"median AUC within {within}: {found['median_auc']:.3f}")
    if found["oe_within_10_percent"] is not None:
        lines.append(
            f"observed/expected within .9 to 1.1: {found['oe_within_10_percent']:.0%} of the outcomes; with so few"
            f" events, true hazards would reach {found['oe_within_10_percent_if_true']:.0%}"
        )
    if found["oe_intervals_that_hold_1"] is not None:
        lines.append(
            f"intervals of observed/expected that hold 1: {found['oe_intervals_that_hold_1']:.0%}"
        )
    return lines


def with_interval(estimate: Mapping[str, float | None]) -> str:
    """A number with its interval, as text.

    >>> with_interval({"value": 0.71234, "low": 0.65, "high": 0.77}), with_interval({"value": None, "low": None})
    ('0.712 (0.650 to 0.770)', 'undefined')
    """
    if estimate["value"] is None:
        return "undefined"
    around = (
        "" if estimate["low"] is None else f" ({estimate['low']:.3f} to {estimate['high']:.3f})"
    )
    return f"{estimate['value']:.3f}{around}"


def draw(result: Mapping[str, Any], name: str) -> str:
    """One number of every outcome against its events, with intervals; outcomes' names show on hover."""
    known = [row for row in result["outcomes"] if row[name]["value"] is not None]
    events = [row["events"] for row in known] or [result["fewest_events"]]
    low, high = math.log10(min(events)) - 0.05, math.log10(max(events)) + 0.05
    ends = [
        x
        for row in known
        for x in (row[name]["value"], row[name]["low"], row[name]["high"])
        if x is not None
    ]
    floor, ceiling, reference = (0.4, 1.0, 0.5) if name == "auc" else (0.5, 1.6, 1.0)
    y = (min([floor, *ends]), max([ceiling, *ends]))
    chart = Chart(_WIDTH, _HEIGHT, (low, high), y)
    label = "AUC within sex and age" if name == "auc" else "observed / expected"
    chart.y_axis(label, lambda value: f"{value:g}")
    marks = [
        n
        for n in (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)
        if low <= math.log10(n) <= high
    ]
    for n in marks:
        chart.text(math.log10(n), chart.y.low, f"{n:,}", "mid", dy=16)
    chart.line(low, chart.y.low, high, chart.y.low, "axis")
    chart.text((low + high) / 2, chart.y.low, "subjects with the event", "mid", dy=33)
    chart.line(low, reference, high, reference, "axis")
    for bound in (0.9, 1.1) if name == "oe" else ():
        chart.line(low, bound, high, bound, "grid")
    for row in known:
        x, one = math.log10(row["events"]), row[name]
        if one["low"] is not None:
            chart.whisker(0, (x, x), (one["low"], one["high"]))
    for row in known:
        hover = f"{row['code']}: {with_interval(row[name])}, {row['events']} events"
        chart.mark(0, math.log10(row["events"]), row[name]["value"], hover, size=3.0, opacity=0.8)
    values = sorted(row[name]["value"] for row in known)
    if values:
        chart.told.append(
            f"{label} of {len(values)} outcomes: from {values[0]:.2f} to {values[-1]:.2f}"
        )
        chart.told.append(f"median {values[len(values) // 2]:.2f}")
    return chart.svg(f"{label} of every outcome")
