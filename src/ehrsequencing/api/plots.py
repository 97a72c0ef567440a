"""Figures with matplotlib. Each function draws into `ax`, or into new axes, and returns the axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ehrsequencing.api.curves import Incidence, Row
from ehrsequencing.api.predictions import SubjectRisk
from ehrsequencing.config import DAYS_PER_YEAR, format_days
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.events import DAY_US

# the report's colours (reporting/templates/palette.css.jinja); the first is the cause of interest
COLOURS = ("#1f5fa8", "#c2571a", "#2f8258", "#8454a6", "#77701f", "#0d7a85", "#b0437c")
GREY = "#666e78"
_TODAY = "today"


def pyplot() -> Any:
    """Matplotlib's `pyplot`.

    Raises:
        EhrseqError: It is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        fix = "pip install 'ehrsequencing[notebook]'"
        raise EhrseqError("is not installed", where="matplotlib", fix=fix) from error
    return pyplot


def axes(ax: Any, *, height: float = 3.6, width: float = 6.4) -> Any:
    """The axes given, or new ones."""
    if ax is not None:
        return ax
    return pyplot().subplots(figsize=(width, height), layout="constrained")[1]


def _clean(ax: Any) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _percent(axis: Any) -> None:
    from matplotlib import ticker

    axis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=None))


def _above_zero(ax: Any, *values: Any) -> None:
    top = max((float(np.nanmax(v)) for v in values if np.size(v)), default=0.0)
    ax.set_ylim(0.0, max(1.12 * top, 0.01))


# ---- one run ---------------------------------------------------------------------------------------------------------


def subject_risk(found: SubjectRisk, *, ax: Any = None) -> Any:
    """A subject's visits and risks; see `TrainedRun.plot_risk`."""
    ax = axes(ax, width=8.0)
    last_us, horizon = int(found.prediction_us[-1]), format_days(found.horizons_days[-1])

    def years(moment_us: Any) -> Floats:
        return np.asarray(
            (np.asarray(moment_us, dtype=np.float64) - last_us) / DAY_US / DAYS_PER_YEAR
        )

    seen = found.visit_us <= last_us
    when, risk = years(found.prediction_us), found.risk[:, 0, -1]
    ax.step(
        np.r_[when, 0.0], np.r_[risk, risk[-1]], where="post", color=COLOURS[0], lw=1.2, alpha=0.75
    )
    ax.plot(
        when,
        risk,
        "o",
        ms=3.5,
        color=COLOURS[0],
        label=f"{found.causes[0]} within {horizon}, as predicted then",
    )
    after = found.curve_days / DAYS_PER_YEAR
    for e, cause in enumerate(found.causes):
        ax.plot(
            after,
            found.curve[e],
            color=COLOURS[e % len(COLOURS)],
            lw=2,
            label=f"{cause}, from today on",
        )
        if found.low is not None and found.high is not None:
            ax.fill_between(
                after,
                found.low[e],
                found.high[e],
                color=COLOURS[e % len(COLOURS)],
                alpha=0.18,
                lw=0,
            )
    _above_zero(ax, risk, found.curve, *([] if found.high is None else [found.high]))
    first = min(float(years(found.visit_us[seen]).min(initial=0.0)), float(when[0]))
    ax.set_xlim(first - 0.02 * (after[-1] - first), after[-1])
    _rug(ax, years(found.visit_us[seen]), found.codes[seen])
    ax.axvline(0.0, color=GREY, lw=1, ls="--")
    ax.annotate(
        _TODAY,
        (0.0, 1.0),
        xycoords=ax.get_xaxis_transform(),
        xytext=(3, -3),
        textcoords="offset points",
        va="top",
        color=GREY,
        fontsize="small",
    )
    for number, (cause, moment_us) in enumerate(found.events.items()):
        at = float(years(moment_us))
        if at <= after[-1]:
            colour = COLOURS[found.causes.index(cause) % len(COLOURS)]
            ax.axvline(at, color=colour, lw=1.2, ls=":")
            place = (at, 0.92 - 0.07 * number)
            ax.annotate(
                f"{cause} happened",
                place,
                xycoords=ax.get_xaxis_transform(),
                xytext=(3, 0),
                textcoords="offset points",
                va="top",
                color=colour,
                fontsize="small",
            )
    ax.set_xlabel("years from the last prediction; bars: visits and how many codes they have")
    ax.set_ylabel(f"risk by {horizon}")
    _percent(ax.yaxis)
    _clean(ax)
    ax.legend(
        frameon=False,
        fontsize="small",
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=3,
        borderaxespad=0.2,
    )
    return ax


def _rug(ax: Any, at: Floats, codes: Any) -> None:
    """Visits as bars below the axis line, as high as the square root of their number of codes."""
    height = 0.09 * np.sqrt(codes / max(int(np.max(codes, initial=1)), 1))
    ax.vlines(at, 0.0, height, transform=ax.get_xaxis_transform(), color=GREY, lw=1, alpha=0.8)


# ---- one evaluation --------------------------------------------------------------------------------------------------


def calibration(groups: Sequence[Row], smooth: Sequence[Row], *, title: str, ax: Any = None) -> Any:
    """Observed against predicted risk, ours first; see `EvaluationResult.plot_calibration`.

    Args:
        groups: Rows of `calibration` in `metrics.json`.
        smooth: Rows of `smooth_calibration`.
        title: Of the figure.
        ax: Axes of matplotlib; default: new ones.
    """
    ax = axes(ax, width=4.4, height=4.4)
    curves = {row["model"]: row for row in smooth}
    drawn: list[Floats] = []
    for number, row in enumerate(groups):
        ours = number == 0
        colour = COLOURS[0] if ours else GREY
        curve = curves.get(row["model"], {})
        predicted, observed = _numbers(curve, "predicted"), _numbers(curve, "observed")
        low, high = _numbers(curve, "low"), _numbers(curve, "high")
        drawn += [predicted, observed]
        if len(predicted) > 1:
            width = 2 if ours else 1.2
            ax.plot(predicted, observed, color=colour, lw=width, label=row["model"])
        if ours and len(predicted) > 1 and np.isfinite(low).all() and len(low) == len(high) > 0:
            ax.fill_between(predicted, low, high, color=colour, alpha=0.18, lw=0)
            drawn.append(high)
        if ours and row["predicted"]:
            x, y = _numbers(row, "predicted"), _numbers(row, "observed")
            low, high = _numbers(row, "low"), _numbers(row, "high")
            errors = [np.maximum(y - low, 0), np.maximum(high - y, 0)]
            ax.errorbar(x, y, yerr=errors, fmt="o", color=colour, ms=4, lw=1)
            drawn += [x, np.where(np.isfinite(high), high, y)]
    top = 1.05 * max((float(np.nanmax(values)) for values in drawn if len(values)), default=1.0)
    ax.plot([0, top], [0, top], color=GREY, lw=1, ls="--", zorder=0)
    ax.set_xlim(0, top)
    ax.set_ylim(0, top)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize="small", loc="upper left")
    if not any(len(values) for values in drawn):
        _too_few(ax)
    ax.set_title(title, fontsize="medium", loc="left")
    ax.set_xlabel("predicted risk")
    ax.set_ylabel("observed risk")
    _percent(ax.xaxis)
    _percent(ax.yaxis)
    _clean(ax)
    return ax


def _numbers(row: Row, name: str) -> Floats:
    """A list of `metrics.json` as numbers, NaN where a value is hidden or undefined."""
    values = row.get(name) or []
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def incidence(found: Incidence, *, title: str, ax: Any = None) -> Any:
    """Observed and predicted cumulative incidence by risk group; see `EvaluationResult.plot_incidence`."""
    groups = len(found.groups)
    ax = axes(ax, height=3.8 + 0.2 * groups)
    years = found.days / DAYS_PER_YEAR
    shades = np.linspace(1.0, 0.35, max(groups, 1))[::-1]
    for number, group in enumerate(found.groups):
        shade = float(shades[number])
        at, jumps = group.days / DAYS_PER_YEAR, found.stepwise
        ax.plot(
            at,
            group.observed,
            color=COLOURS[0],
            alpha=shade,
            lw=2,
            drawstyle="steps-post" if jumps else "default",
        )
        band = {"color": COLOURS[0], "alpha": 0.12 * shade, "lw": 0}
        ax.fill_between(at, group.low, group.high, step="post" if jumps else None, **band)
        ax.plot(years, group.predicted, color=COLOURS[1], alpha=shade, lw=1.4, ls="--")
    ax.plot([], [], color=COLOURS[0], lw=2, label="observed (Aalen–Johansen)")
    ax.plot([], [], color=COLOURS[1], lw=1.4, ls="--", label="predicted (mean)")
    _above_zero(ax, *(g.observed for g in found.groups), *(g.predicted for g in found.groups))
    _names(ax, found)
    ax.set_xlim(0.0, float(years[-1]))
    ax.set_xlabel("years from the prediction")
    ax.set_ylabel("cumulative incidence")
    ax.set_title(title, fontsize="medium", loc="left")
    _percent(ax.yaxis)
    _clean(ax)
    if not groups:
        _too_few(ax)
        return ax
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    _numbers_at_risk(ax, found)
    return ax


def _names(ax: Any, found: Incidence) -> None:
    """The groups' names beside the ends of their observed curves, moved apart where they would overlap."""
    placed = sorted(
        (float(g.observed[-1]), float(g.days[-1]) / DAYS_PER_YEAR, g.name) for g in found.groups
    )
    gap, below = 0.05 * ax.get_ylim()[1], -1.0
    for y, x, name in placed:
        below = max(y, below + gap)
        ax.annotate(
            name,
            (x, below),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            color=COLOURS[0],
            annotation_clip=False,
        )


def _numbers_at_risk(ax: Any, found: Incidence) -> None:
    """A table under the axis; its lines are given in points, so that it fits axes of any height."""
    line, top = 11.0, -40.0
    ax.annotate(
        "number at risk",
        (0.0, 0.0),
        xycoords="axes fraction",
        xytext=(0, top),
        textcoords="offset points",
        va="top",
        fontsize="small",
        color=GREY,
    )
    for number, group in enumerate(reversed(found.groups), start=1):
        y = top - line * number - 2
        ax.annotate(
            group.name,
            (0.0, 0.0),
            xycoords="axes fraction",
            xytext=(-14, y),
            textcoords="offset points",
            va="top",
            ha="right",
            fontsize="small",
        )
        for day, count in zip(found.at_risk_days, group.at_risk, strict=True):
            ax.annotate(
                count,
                (day / DAYS_PER_YEAR, 0.0),
                xycoords=ax.get_xaxis_transform(),
                xytext=(0, y),
                textcoords="offset points",
                va="top",
                ha="center",
                fontsize="small",
            )
    ax.set_xticks([day / DAYS_PER_YEAR for day in found.at_risk_days])
    ax.set_xticklabels([f"{day / DAYS_PER_YEAR:.3g}" for day in found.at_risk_days])


def _too_few(ax: Any) -> None:
    ax.text(
        0.5,
        0.5,
        "too few events to show",
        transform=ax.transAxes,
        ha="center",
        va="center",
        color=GREY,
    )
