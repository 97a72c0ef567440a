"""Tables and figures for a paper. A figure is drawn into `ax`, or into new axes, in the report's colours."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import pandas as pd

from ehrsequencing.config import DAYS_PER_YEAR, format_days
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.core.elsewhere import Hinted
from ehrsequencing.core.errors import EhrseqError, install
from ehrsequencing.core.text import day_of
from ehrsequencing.metrics.registry import in_columns, taken
from ehrsequencing.prediction.prediction_file import Risks
from ehrsequencing.records.events import DAY_US
from ehrsequencing.reporting.figures import group_names
from ehrsequencing.reporting.wording import with_interval
from ehrsequencing.results.result_types import MetricRow, PlaceRow, Shared, place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes


@dataclass(frozen=True, repr=False)
class PaperTable(Hinted):
    """A table for a paper.

    Attributes:
        frame: Its cells as text, rows by name.
        caption: What it shows.
    """

    frame: pd.DataFrame
    caption: str

    def to_frame(self) -> pd.DataFrame:
        """Its cells as text, rows by name."""
        return self.frame

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table in Markdown, which is also written to `path`."""
        rows = [["", *self.frame.columns], ["---"] * (1 + len(self.frame.columns))]
        rows += [[str(name), *cells] for name, cells in self.frame.T.items()]
        return _kept("\n".join(f"| {' | '.join(map(str, row))} |" for row in rows), path)

    def to_latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table in LaTeX, as a `tabular` with rules of the package booktabs, which is also written to `path`."""
        return _kept(str(self.frame.to_latex(escape=True)).replace("<", "$<$"), path)

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string()}"

    def _repr_html_(self) -> str:
        return str(self.frame.to_html())


def _kept(text: str, path: str | os.PathLike[str] | None) -> str:
    """The text, also written to a file where one is named."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def accuracy_table(
    result: Mapping[str, Any], place: Mapping[str, Any], *, title: str
) -> PaperTable:
    """Table 2: the metrics of every model at one landmark, cause and horizon, from the content of `metrics.json`.

    Where divisions were repeated, it has the means over them: one division of a small cohort is too little.
    """
    repeated = result.get("repeated_splits")
    rows, of = result["metrics"], "with 95 % intervals"
    if repeated:
        rows = [row | {"value": row["mean"]} for row in repeated["rows"]]
        of = f"means over {repeated['splits']} random splits, with 95 % intervals (Nadeau and Bengio)"
    columns = [metric for metric in in_columns(taken("everywhere")) if metric.in_terminal]
    wanted = (place["landmark"], place["cause"], place["horizon"])
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        if (row["landmark_days"], row["cause"], row["horizon_days"]) == wanted:
            own = cells.setdefault(row["model"], {})
            for metric in columns:
                if metric.key == row["metric"]:
                    shown = with_interval(row["value"], row["low"], row["high"], ".2f")
                    own[metric.name] = shown if row["value"] is not None else row["reason"] or shown
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna("")
    return PaperTable(frame, f"Accuracy of each model for {title}, {of}")


# ---- the rows of `metrics.json` as a frame ---------------------------------------------------------------------------


AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])
_ORDER = (
    "landmark",
    "cause",
    "horizon",
    "horizon_days",
    "metric",
    "value",
    "low",
    "high",
    "subjects",
    "events",
    "reason",
)


def long_table(rows: Sequence[MetricRow[int | str]], first: str) -> pd.DataFrame:
    """Long rows of `metrics.json` as a frame; `first` is what the column of models is called."""
    table = pd.DataFrame([dict(row) for row in rows], columns=[*MetricRow.__annotations__])
    everywhere = {"landmark": "all prediction times", "horizon": "all horizons"}
    for key, text in everywhere.items():
        days = table[f"{key}_days"]
        table[key] = [text if pd.isna(day) else format_days(day) for day in days]
    numbers = ["horizon_days", "value", "low", "high"]
    table[numbers] = table[numbers].astype(np.float64)
    for key in ("subjects", "events"):
        if any(isinstance(count, str) for count in table[key]):
            table[key] = [None if pd.isna(count) else str(count) for count in table[key]]
    table = table.rename(columns={"model": first})
    return table[[first, *_ORDER]]


def main_c(result: Shared) -> str:
    """C of the first cause at the main landmark and horizon, with its interval."""
    cause, horizon = result["causes"][0], result["main"]["horizon_days"]
    place = (result["models"][0], result["main"]["landmark_days"], cause, horizon, "c")
    rows = (
        row for row in result["metrics"] if (row["model"], *place_of(row), row["metric"]) == place
    )
    row = next(rows, None)
    if row is None or row["value"] is None:
        why = row and row["reason"]
        return f"{why or 'undefined'} for {cause} by {format_days(horizon)}"
    limits = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['value']:.2f}{limits} for {cause} by {format_days(horizon)}"


def known_day(what: str, given: str | float, known: Sequence[float]) -> float:
    """A landmark or horizon in days, which must be one that was evaluated."""
    days = day_of(given, where=what)
    if not any(abs(days - one) < 1e-9 for one in known):
        raise EhrseqError(
            f"{format_days(days)} was not evaluated",
            where=what,
            fix=f"use one of {', '.join(map(format_days, known))}",
        )
    return days


def rows_at(rows: Sequence[AnyRow], *, landmark: float, cause: str, horizon: float) -> list[AnyRow]:
    """The rows of one landmark, cause and horizon."""
    return [row for row in rows if place_of(row) == (landmark, cause, horizon)]


# ---- figures with matplotlib -----------------------------------------------------------------------------------------


# the report's colours (reporting/templates/palette.css.jinja); the first is the cause of interest
COLOURS = ("#1f5fa8", "#c2571a", "#2f8258", "#8454a6", "#77701f", "#0d7a85", "#b0437c")
GREY = "#666e78"
Row = Mapping[str, Any]


def axes(ax: "Axes | None", *, width: float = 6.4, height: float = 3.6) -> "Axes":
    """The axes given, or new ones.

    Raises:
        EhrseqError: Matplotlib is not installed.
    """
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise EhrseqError(
            "is not installed", where="matplotlib", fix=install("notebook")
        ) from error
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def _finish(ax: "Axes", *, x: str, y: str, title: str = "", x_is_share: bool = False) -> "Axes":
    """Labels, percent, a legend, and no frame at the top and on the right."""
    from matplotlib import ticker

    ax.set_xlabel(x)
    ax.set_ylabel(y)
    percent = ticker.FuncFormatter(lambda share, _: f"{100 * share:.3g}%")
    ax.yaxis.set_major_formatter(percent)
    if x_is_share:
        ax.xaxis.set_major_formatter(percent)
        ax.locator_params(axis="x", nbins=6)
    ax.spines[["top", "right"]].set_visible(False)
    lines, pad = -(-len(ax.get_legend_handles_labels()[1]) // 2), None
    if lines:  # above the axes, where no curve is
        ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        pad = 10 + 14 * lines
    ax.set_title(title, fontsize="medium", loc="left", pad=pad)
    return ax


def _numbers(row: Row, name: str) -> Floats:
    """A list of `metrics.json` as numbers, NaN where a value is hidden or undefined."""
    return np.array([np.nan if v is None else v for v in row.get(name) or []], dtype=np.float64)


def subject_risk(
    told: Risks,
    curves: Risks,
    days: Floats,
    *,
    causes: Sequence[str],
    visit_us: Ints,
    events: Mapping[str, int],
    ax: "Axes | None" = None,
) -> "Axes":
    """A subject's visits and risks; see `TrainedRun.plot_risk`.

    Args:
        told: The risks at each of its prediction times.
        curves: The risks by each of `days`; those from the last prediction time on are drawn.
        days: Days after a prediction time; the last is the horizon of `told`.
        causes: Names of the causes.
        visit_us: Starts of its visits.
        events: Cause → when it happened, where it did.
        ax: Axes of matplotlib; default: new ones.
    """
    ax, horizon = axes(ax, width=8.0), format_days(float(days[-1]))
    last_us = int(told.prediction_us[-1])

    def years(moment_us: Any) -> Floats:
        return np.asarray((np.asarray(moment_us) - last_us) / DAY_US / DAYS_PER_YEAR)

    def from_zero(risk: Any) -> Floats:
        return np.pad(risk[-1].astype(np.float64), ((0, 0), (1, 0)))

    when, after = years(told.prediction_us), np.r_[0.0, days] / DAYS_PER_YEAR
    ax.step(
        when,
        told.risk[:, 0, -1],
        "o-",
        where="post",
        color=COLOURS[0],
        ms=3.5,
        label=f"{causes[0]} within {horizon}, as predicted then",
    )
    for number, (cause, curve) in enumerate(zip(causes, from_zero(curves.risk), strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        ax.plot(after, curve, color=colour, lw=2, label=f"{cause}, from today on")
        if curves.low is not None and curves.high is not None:
            low, high = from_zero(curves.low)[number], from_zero(curves.high)[number]
            ax.fill_between(after, low, high, color=colour, alpha=0.18, lw=0)
        if cause in events and years(events[cause]) <= after[-1]:
            _mark(
                ax, float(years(events[cause])), f"{cause} happened", colour, 0.92 - 0.07 * number
            )
    _mark(ax, 0.0, "today", GREY, 1.0)
    seen = years(visit_us[visit_us <= last_us])
    ax.plot(seen, np.zeros(len(seen)), "|", color=GREY, ms=9, clip_on=False)
    ax.set_ylim(bottom=0.0)
    ax.set_xlim(right=after[-1])
    _finish(ax, x="years from the last prediction; bars: visits", y=f"risk by {horizon}")
    ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return ax


def _mark(ax: Any, at: float, text: str, colour: str, height: float) -> None:
    """A named vertical line."""
    ax.axvline(at, color=colour, lw=1, ls="--")
    style = {"color": colour, "fontsize": "small", "va": "top", "textcoords": "offset points"}
    ax.annotate(text, (at, height), xycoords=ax.get_xaxis_transform(), xytext=(3, -3), **style)


def calibration(rows: Sequence[PlaceRow], *, title: str, ax: "Axes | None" = None) -> "Axes":
    """Observed against predicted risk, ours first; see `EvaluationResult.plot_calibration`.

    Args:
        rows: Rows of `smooth_calibration` in `metrics.json`, ours first; none where nothing could be estimated.
        title: Of the figure.
        ax: Axes of matplotlib; default: new ones.
    """
    ax = axes(ax, width=4.4, height=4.4)
    _curves(ax, rows, "predicted", "observed")
    top = max(*ax.get_xlim(), *ax.get_ylim())
    ax.plot([0, top], [0, top], color=GREY, lw=1, ls="--", zorder=0)
    ax.set_xlim(0, top)
    ax.set_ylim(0, top)
    for row in rows[:1]:  # how many people have which risk
        bars = row["histogram"]
        edges, shares = bars["edges"], _numbers(bars, "shares")
        high = 0.15 * top * shares / np.nanmax(shares, initial=1e-9)
        ax.bar(edges[:-1], high, np.diff(edges), align="edge", color=COLOURS[0], alpha=0.3, lw=0)
    return _finish(ax, x="predicted risk", y="observed risk", title=title, x_is_share=True)


def _curves(ax: Any, rows: Sequence[Row], x: str, y: str) -> None:
    """The curve of each model, ours first, with its band."""
    for number, row in enumerate(rows):
        style = {"color": GREY, "lw": 1.2} if number else {"color": COLOURS[0], "lw": 2}
        at, low, high = (_numbers(row, name) for name in (x, "low", "high"))
        ax.plot(at, _numbers(row, y), label=row["model"], **style)
        if not number and len(low) == len(high) == len(at):
            ax.fill_between(at, low, high, color=COLOURS[0], alpha=0.18, lw=0)
    if not rows:
        ax.text(0.5, 0.5, TOO_FEW, transform=ax.transAxes, ha="center", color=GREY)


def decision(rows: Sequence[PlaceRow], *, title: str, ax: "Axes | None" = None) -> "Axes":
    """Net benefit by threshold, ours first; see `EvaluationResult.plot_decision_curve`.

    Args:
        rows: Rows of `decision` in `metrics.json`, ours first; none where there are too few people.
        title: Of the figure.
        ax: Axes of matplotlib; default: new ones.
    """
    ax = axes(ax)
    _curves(ax, rows, "thresholds", "net_benefit")
    for row in rows[:1]:
        everyone = _numbers(row, "treat_all")
        ax.plot(row["thresholds"], everyone, "--", color=GREY, lw=1, label="act on everyone")
        drawn = [everyone, *(_numbers(row, name) for name in ("net_benefit", "high"))]
        best, top = (np.nanmax(np.r_[*some], initial=1e-9) for some in (drawn[1:2], drawn))
        ax.set_ylim(-0.12 * best, 1.1 * top)
    ax.axhline(0.0, color=GREY, lw=1)
    x, y = "act from a risk of", "net benefit per person"
    return _finish(ax, x=x, y=y, title=title, x_is_share=True)


def incidence(row: PlaceRow, *, title: str, ax: "Axes | None" = None) -> "Axes":
    """Observed and predicted cumulative incidence by risk group; see `EvaluationResult.plot_incidence`.

    Args:
        row: A row of `incidence` in `metrics.json`.
        title: Of the figure.
        ax: Axes of matplotlib; default: new ones.
    """
    groups = row["groups"]
    ax = axes(ax, height=3.8 + 0.2 * len(groups))
    years = np.array(row["days"]) / DAYS_PER_YEAR
    ticks = np.array(row["tick_days"]) / DAYS_PER_YEAR
    names = group_names(groups)
    for number, (name, group) in enumerate(zip(names, groups, strict=True)):
        shade = 0.35 + 0.65 * (number + 1) / len(groups)
        observed, low, high = (_numbers(group, key) for key in ("observed", "low", "high"))
        label = "observed (Aalen–Johansen), with 95 % band" if name == names[-1] else None
        known = np.isfinite(observed)
        ax.plot(years[known], observed[known], color=COLOURS[0], alpha=shade, lw=2, label=label)
        ax.fill_between(
            years[known], low[known], high[known], color=COLOURS[0], alpha=0.12 * shade, lw=0
        )
        label = "predicted (mean)" if name == names[-1] else None
        ax.plot(years, group["predicted"], "--", color=COLOURS[1], alpha=shade, label=label)
        ends = np.flatnonzero(np.isfinite(observed))
        ax.text(years[ends[-1]], observed[ends[-1]], f" {name}", fontsize="small", va="center")
        for tick, count in zip(ticks, group["at_risk"], strict=True):
            _below(ax, tick, number, len(groups), str(count))
        _below(ax, 0.0, number, len(groups), f"{name}, at risk", ha="right", dx=-14)
    if not groups:
        ax.text(0.5, 0.5, TOO_FEW, transform=ax.transAxes, ha="center", color=GREY)
    ax.set_ylim(bottom=0.0)
    ax.set_xlim(0.0, ticks[-1])
    ax.set_xticks(ticks)
    return _finish(ax, x="years from the prediction", y="cumulative incidence", title=title)


def _below(
    ax: Any,
    x: float,
    number: int,
    groups: int,
    text: str,
    *,
    ha: str = "center",
    dx: float = 0.0,
) -> None:
    """A cell of the table under the axis, the highest risk first; lines are in points, so that it fits any height."""
    place = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
    y = -42.0 - 11.0 * (groups - 1 - number)
    ax.annotate(text, (x, 0.0), xytext=(dx, y), ha=ha, va="top", fontsize="small", **place)


def save(drawn: "Mapping[str, Axes]", folder: Path) -> list[Path]:
    """Save the figure of each axes into a folder, as PDF under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.pdf" for name in drawn]
    for ax, path in zip(drawn.values(), paths, strict=True):
        cast(Any, ax.figure).savefig(path, bbox_inches="tight")
    return paths
