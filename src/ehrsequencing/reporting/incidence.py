"""Observed against predicted cumulative incidence by risk group, with the numbers at risk below.

A row of `incidence` of a redacted evaluation goes in, a figure comes out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.reporting.chart import Chart, Figure
from ehrsequencing.reporting.wording import duration, percent, plain

_NAMES = {
    4: ("lowest quarter", "second quarter", "third quarter", "highest quarter"),
    3: ("lowest third", "middle third", "highest third"),
    2: ("lower half", "higher half"),
    1: ("everyone",),
}


@dataclass(frozen=True)
class RiskGroup:
    """Curves of one group, in days and risks; `at_risk` are texts that may be published."""

    name: str
    style: int
    predicted: Sequence[tuple[float, float]]
    observed: Sequence[tuple[float, float, float, float]]  # day, estimate, low, high
    at_risk: Sequence[str]


def incidence_figure(
    groups: Sequence[RiskGroup], tick_days: Sequence[float], *, title: str
) -> Figure:
    """Cumulative incidence over time: observed (solid, with its 95 % band) and predicted (dashed) by risk group.

    Args:
        groups: From low to high risk.
        tick_days: Days at which the numbers at risk are told; the last is the horizon.
        title: Name of the figure.
    """
    horizon = tick_days[-1]
    per, unit = (DAYS_PER_YEAR, "years") if horizon >= DAYS_PER_YEAR else (1.0, "days")
    top = max(max(point[-1] for point in (*g.predicted, *g.observed)) for g in groups)
    below = 58 + 15 * (len(groups) + 1)
    chart = Chart(
        540,
        250 + below,
        (0, horizon / per),
        (0, min(1.0, 1.06 * top) or 0.01),
        left=132,
        right=104,
        bottom=below,
    )
    chart.y_axis("", percent)
    at = [day / per for day in tick_days]
    chart.x_axis(f"{unit} after the prediction", plain, at)
    for g in groups:
        x = [day / per for day, *_ in g.observed]
        chart.band(x, [p[2] for p in g.observed], [p[3] for p in g.observed], f"g{g.style}")
    for g in groups:
        chart.path(
            [d / per for d, _ in g.predicted], [r for _, r in g.predicted], f"g{g.style} dashes"
        )
        chart.path([p[0] / per for p in g.observed], [p[1] for p in g.observed], f"g{g.style}")
        ends = [percent(value) for value in (g.predicted[-1][1], *g.observed[-1][1:])]
        words = f"predicted {ends[0]}, observed {ends[1]} ({ends[2]} to {ends[3]})"
        chart.told.append(f"{g.name}: by {duration(horizon)} {words}")
        chart.rows.append((g.name, ends[0], f"{ends[1]} ({ends[2]} to {ends[3]})", *g.at_risk))
    chart.columns = (
        "risk group",
        f"predicted by {duration(horizon)}",
        "observed (95% interval)",
        *(f"at risk at {plain(round(day, 2))} {unit}" for day in at),
    )
    chart.end_labels([(g.observed[-1][1], g.name) for g in groups])
    chart.text(0, 0, "at risk", "strong end", dx=-24, dy=54)
    for k, g in enumerate(reversed(groups)):
        chart.text(0, 0, g.name, "end", dx=-24, dy=69 + 15 * k)
        for day, words in zip(at, g.at_risk, strict=True):
            chart.text(day, 0, words, "mid", dy=69 + 15 * k)
    return chart.svg(title, "fig wide")


def incidence_of(row: Mapping[str, Any]) -> Figure | None:
    """The figure of one row of `incidence`; None where the groups would be too small."""
    groups = []
    names = _NAMES.get(len(row["groups"]), ())
    for style, (name, group) in enumerate(zip(names, row["groups"], strict=True)):
        columns = (group[name] for name in ("observed", "low", "high"))
        curve = zip(row["days"], *columns, strict=True)
        observed = [point for point in curve if None not in point]
        predicted = list(zip(row["days"], group["predicted"], strict=True))
        counts = [f"{n:,}" if isinstance(n, int) else n for n in group["at_risk"]]
        groups.append(RiskGroup(name, style, predicted, observed, counts))
    if not groups:
        return None
    title = f"Observed and predicted incidence of {row['cause']} by risk group"
    return incidence_figure(groups, row["tick_days"], title=title)
