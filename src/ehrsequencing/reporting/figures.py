"""The figures of the report: pure functions from data to a string of SVG, each a few marks on a `Chart`.

Callers pass real numbers (an undefined estimate is None) and only counts that may be published.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.reporting.chart import Chart, Curve, Estimate, Figure, ticks
from ehrsequencing.reporting.wording import duration, percent, percent_mark, plain, with_interval
from ehrsequencing.results.result_types import PlaceRow

_MOST_LETTERS = 40  # of a name beside its row

# ----------------------------------------------------------------------------------------------- charts made of rows


def forest(
    groups: Sequence[tuple[str, Sequence[Estimate]]],
    *,
    title: str,
    label: str,
    reference: float,
    floor: float = -math.inf,
    form: str = ".3f",
) -> Figure:
    """Forest plot: one row per model in each group, with intervals and a dashed reference.

    Args:
        groups: (name of the group, its estimates), drawn from top to bottom; a name may have two lines.
        title: Name of the figure.
        label: Name of the horizontal axis.
        reference: Value of the dashed line (no skill).
        floor: The axis starts no lower; an arrow marks what lies below.
        form: How numbers are printed.
    """
    row, line_height, gap = 13.0, 14.0, 11.0
    named = [[shorten(line, _MOST_LETTERS) for line in name.split("\n")] for name, _ in groups]
    tall = [
        max(row * len(rows), line_height * len(lines))
        for lines, (_, rows) in zip(named, groups, strict=True)
    ]
    height = 48 + sum(tall) + gap * len(groups)
    known = [v for _, rows in groups for e in rows for v in (e.value, e.low, e.high)]
    ends = [reference, *(v for v in known if v is not None)]
    low, high = max(min(ends), floor), max(ends)
    pad = 0.05 * (high - low) or 0.1
    longest = max((len(line) for lines in named for line in lines), default=0)
    left = 14 + 6 * longest
    chart = Chart(max(308 + left, 440), height, (low - pad, high + pad), left=left, top=6)
    chart.verticals(ticks(chart.x.low, chart.x.high), "grid")
    chart.verticals([reference], "reference")
    chart.x_axis(label, plain)
    top = chart.y.high + gap / 2
    for (name, rows), lines, block in zip(groups, named, tall, strict=True):
        middle = top + block / 2
        for k, line in enumerate(lines):
            place = middle + line_height * (k - (len(lines) - 1) / 2)
            chart.text(chart.x.low, place, line, dx=4 - chart.x.start, dy=4)
        y = top + (block - row * len(rows)) / 2
        for estimate in rows:
            numbers = with_interval(estimate.value, estimate.low, estimate.high, form)
            _draw_estimate(chart, estimate, y + row / 2, numbers, reference)
            chart.rows.append((name.replace("\n", ", "), estimate.name, numbers))
            y += row
        top += block + gap
        between = top - gap / 2
        chart.drawn.append(
            f'<line x1="0.0" y1="{between:.1f}" x2="{chart.width:.1f}" y2="{between:.1f}" class="grid"/>'
        )
        values = (f"{e.name} {with_interval(e.value, e.low, e.high, form)}" for e in rows)
        chart.told.append(f"{name}: " + "; ".join(values))
    chart.columns = ("where", "model", label)
    return chart.svg(title)


def _draw_estimate(
    chart: Chart, estimate: Estimate, y: float, numbers: str, reference: float
) -> None:
    """An estimate with its whisker; an arrow where it leaves the axis; words where it is undefined."""
    if estimate.value is None:
        chart.text(reference, y, f"{estimate.name}: undefined", "muted", dx=6, dy=4)
        return
    if estimate.low is not None and estimate.high is not None:
        chart.whisker(estimate.kind, (estimate.low, estimate.high), (y, y))
    if min(estimate.value, estimate.value if estimate.low is None else estimate.low) < chart.x.low:
        chart.text(chart.x.low, y, "‹", "mid", dx=-3, dy=4)
    if estimate.value >= chart.x.low:
        chart.mark(estimate.kind, estimate.value, y, f"{estimate.name}: {numbers}", size=3.4)


def shorten(words: str, most: int = 18) -> str:
    """Words that fit beside a row of a figure: a code behind its description leaves before a letter does.

    >>> shorten("ETHNICITY//NOT SPECIFIED"), shorten("Chronic condition 6 (DX//CHRONIC06)", 22)
    ('…//NOT SPECIFIED', 'Chronic condition 6')
    """
    if len(words) > most:
        words = re.sub(r" \([^()]*//[^()]*\)$", "", words)
    if len(words) <= most:
        return words
    tail = words.rsplit("//", 1)[-1]
    return f"…//{tail}" if tail != words and len(tail) <= most - 3 else words[: most - 1] + "…"


# ------------------------------------------------------------------------------------------------ risks and decisions


def calibration(curve: Curve, *, title: str, histogram: dict[str, Any]) -> Figure:
    """Observed against predicted risk: a smooth curve with its band, and the diagonal, above how common each risk is.

    Args:
        curve: The smooth curve.
        title: Name of the figure.
        histogram: `edges` (k + 1) and `shares` (k) of the predicted risks, None where it may not be told.
    """
    top = min(1.0, max(1.08 * max(*curve.x, *curve.y), 0.01))
    chart = Chart(320, 320, (0, top), (0, top), left=50)
    chart.y_axis("observed", percent_mark)
    chart.x_axis("predicted", percent_mark)
    known = [0.0 if share is None else share for share in histogram["shares"]]
    for (left, right), share in zip(pairwise(histogram["edges"]), known, strict=True):
        if share and left < top:
            chart.bar((left, min(right, top)), 0.15 * top * share / max(known), 0.0, "bar faint")
    chart.line(0, 0, top, top, "reference")
    chart.curve(curve)
    for k in spread_over(curve.x):
        low, high = (curve.low[k], curve.high[k]) if curve.low and curve.high else (None, None)
        predicted, seen = percent(curve.x[k]), with_interval(curve.y[k], low, high, percent)
        chart.told.append(f"predicted {predicted}, observed {seen}")
        chart.rows.append((predicted, seen))
    chart.columns = ("predicted", "observed (95% interval)")
    return chart.svg(title)


def spread_over(x: Sequence[float]) -> list[int]:
    """Some six places of a curve, for its table."""
    return sorted({round(k * (len(x) - 1) / 5) for k in range(6)})


def decision(curves: Sequence[Curve], *, title: str) -> Figure:
    """Net benefit per 100 subjects over the risk threshold from which one would act; acting on nobody is 0.

    Args:
        curves: Ours first, then others, then acting on everyone (styled grey); y is the net benefit per subject.
        title: Name of the figure.
    """
    scaled = []
    for c in curves:
        benefit, least, most = ([100 * v for v in side] for side in (c.y, c.low, c.high))
        scaled.append(replace(c, y=benefit, low=least, high=most))
    # the top is 1, an empty frame, where no decision has a benefit
    top = max((v for c in scaled for v in c.y if v > 1e-9), default=0.0) * 1.12 or 1.0
    end = max((x for c in scaled for x in c.x), default=1.0)
    chart = Chart(320, 260, (0.0, end), (-0.12 * top, top), left=50)
    chart.y_axis("net benefit per 100", plain)
    chart.x_axis("act from a risk of", percent_mark)
    chart.line(0, 0, end, 0, "axis")
    for c in reversed(scaled):
        # where the curve leaves the frame at the bottom
        stop = next((k + 1 for k, y in enumerate(c.y) if y < chart.y.low), len(c.y))
        chart.curve(replace(c, x=c.x[:stop], y=c.y[:stop], low=c.low[:stop], high=c.high[:stop]))
    for c in scaled:
        first, last = (f"{c.y[k]:.3g} at {percent(c.x[k])}" for k in (0, -1))
        chart.told.append(f"{c.name}: {first} to {last}")
        for k in spread_over(c.x):
            low, high = (c.low[k], c.high[k]) if len(c.low) and len(c.high) else (None, None)
            chart.rows.append((c.name, percent(c.x[k]), with_interval(c.y[k], low, high, ".3g")))
    chart.columns = ("who is acted on", "from a risk of", "net benefit per 100 (95% band)")
    return chart.svg(title)


# --------------------------------------------------------------------------------------------------------- incidence

GROUP_NAMES = {
    4: ("lowest quarter", "second quarter", "third quarter", "highest quarter"),
    3: ("lowest third", "middle third", "highest third"),
    2: ("lower half", "higher half"),
    1: ("everyone",),
}


def group_names(groups: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """What the groups of risk are called, from low to high: by their shares where they are not of one size.

    >>> group_names([{"n": 150}, {"n": 100}, {"n": 50}])
    ['lowest 50%', 'next 33%', 'highest 17%']
    """
    sizes = [float(group["n"]) for group in groups]
    if not groups or max(sizes) < 1.5 * min(sizes):
        return GROUP_NAMES.get(len(groups), ())
    words = ["lowest", *["next"] * (len(groups) - 2), "highest"]
    return [f"{word} {size / sum(sizes):.0%}" for word, size in zip(words, sizes, strict=True)]


def incidence(row: PlaceRow) -> Figure | None:
    """Cumulative incidence by risk group: observed (solid, with its 95 % band) and predicted (dashed).

    The numbers at risk are below, at the days of `tick_days`, the last of which is the horizon.

    Args:
        row: A row of `incidence` of a redacted evaluation, its groups from low to high risk.

    Returns:
        The figure; None where the groups would be too small.
    """
    groups, horizon = row["groups"], row["tick_days"][-1]
    if not groups:
        return None
    per, unit = (DAYS_PER_YEAR, "years") if horizon >= DAYS_PER_YEAR else (1.0, "days")
    top = max(v for g in groups for v in (*g["predicted"], *g["high"]) if v is not None)
    below = 58 + 15 * (len(groups) + 1)
    y = (0, min(1.0, 1.06 * top) or 0.01)
    chart = Chart(540, 250 + below, (0, horizon / per), y, left=142, right=128, bottom=below)
    chart.y_axis("", percent_mark)
    at = [day / per for day in row["tick_days"]]
    chart.x_axis(f"{unit} after the prediction", plain, at)
    chart.text(0, 0, "at risk", "strong end", dx=-24, dy=54)
    ends = []
    for k, (name, g) in enumerate(zip(group_names(groups), groups, strict=True)):
        curve = zip(row["days"], g["observed"], g["low"], g["high"], strict=True)
        points = [point for point in curve if None not in point]
        days, observed, low, high = (list(column) for column in zip(*points, strict=True))
        x = [day / per for day in days]
        chart.band(x, low, high, f"g{k}")
        chart.path([day / per for day in row["days"]], g["predicted"], f"g{k} dashes")
        chart.path(x, observed, f"g{k}")
        ends.append((observed[-1], name))
        predicted = percent(g["predicted"][-1])
        seen = with_interval(observed[-1], low[-1], high[-1], percent)
        words = f"predicted {predicted}, observed {seen}"
        chart.told.append(f"{name}: by {duration(horizon)} {words}")
        counts = [f"{n:,}" if isinstance(n, int) else n for n in g["at_risk"]]
        chart.rows.append((name, predicted, seen, *counts))
        dy = 69 + 15 * (len(groups) - 1 - k)
        chart.text(0, 0, name, "end", dx=-24, dy=dy)
        for day, count in zip(at, counts, strict=True):
            chart.text(day, 0, count, "mid", dy=dy)
    chart.end_labels(ends)
    ticks_told = (f"at risk at {plain(round(day, 2))} {unit}" for day in at)
    by = f"predicted by {duration(horizon)}"
    chart.columns = ("risk group", by, "observed (95% interval)", *ticks_told)
    return chart.svg(
        f"Observed and predicted incidence of {row['cause']} by risk group", "fig wide"
    )
