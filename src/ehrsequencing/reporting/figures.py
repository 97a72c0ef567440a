"""The figures of the report: pure functions from data to a string of SVG, each a few marks on a `Chart`.

Callers pass real numbers (an undefined estimate is None) and only counts that may be published.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ehrsequencing.reporting.chart import Chart, Curve, Estimate, Figure, ticks
from ehrsequencing.reporting.wording import percent, plain, with_interval


@dataclass(frozen=True)
class Ridge:
    """One row of a risk distribution: `bars` are (left, right, count)."""

    label: str
    style: str
    bars: Sequence[tuple[float, float, int]]


@dataclass(frozen=True)
class CalibrationGroup:
    """Predicted and observed risk of a group of people, the limits of it, and how many they are."""

    predicted: float
    observed: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Spread:
    """Mean predicted risk of some subjects, and the mean lower and upper end of their risks over refits."""

    risk: float
    low: float
    high: float


# ----------------------------------------------------------------------------------------------- charts made of rows


def forest(
    groups: Sequence[tuple[str, Sequence[Estimate]]],
    *,
    title: str,
    label: str,
    reference: float,
    floor: float,
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
    row, gap = 13.0, 11.0
    height = 48 + sum(row * len(rows) + gap for _, rows in groups)
    chart = _row_chart([e for _, rows in groups for e in rows], height, label, reference, floor)
    y = chart.y.high + gap / 2
    for name, rows in groups:
        for k, words in enumerate(name.split("\n")):
            chart.margin_text(4, y + row * len(rows) / 2 + 14 * (k - name.count("\n") / 2), words)
        for estimate in rows:
            words = f"{estimate.name}: {with_interval(estimate.value, estimate.low, estimate.high, form)}"
            _draw_estimate(
                chart, estimate, y + row / 2, words, f"{estimate.name}: undefined", reference
            )
            numbers = with_interval(estimate.value, estimate.low, estimate.high, form)
            chart.rows.append((name.replace("\n", ", "), estimate.name, numbers))
            y += row
        y += gap
        chart.rule(y - gap / 2)
        told = (f"{e.name} {with_interval(e.value, e.low, e.high, form)}" for e in rows)
        chart.told.append(f"{name}: " + "; ".join(told))
    chart.columns = ("where", "model", label)
    return chart.svg(title)


def levels(
    groups: Sequence[tuple[str, Sequence[tuple[str, Estimate]]]],
    *,
    title: str,
    label: str,
    reference: float | None,
) -> Figure:
    """One row for each level of each group, with its interval and a dashed line.

    Args:
        groups: (group, its levels with their estimates), drawn from top to bottom.
        title: Name of the figure.
        label: Name of the horizontal axis.
        reference: Value of the dashed line; None: no line.
    """
    row, head = 17.0, 20.0
    height = 48 + sum(head + row * len(rows) for _, rows in groups)
    chart = _row_chart([e for _, rows in groups for _, e in rows], height, label, reference)
    y = chart.y.high
    for name, rows in groups:
        chart.margin_text(4, y + 11, shorten(name, 48), "strong")  # its line has no marks
        y += head
        for level, estimate in rows:
            words = with_interval(estimate.value, estimate.low, estimate.high, ".2f")
            chart.told.append(f"{name} {level}: {words}")
            chart.rows.append((name, level, words))
            chart.margin_text(14, y + row / 2, shorten(level))
            _draw_estimate(
                chart, estimate, y + row / 2, f"{level}: {words}", "not shown", chart.x.low
            )
            y += row
    chart.columns = ("group", "level", label)
    return chart.svg(title)


def _row_chart(
    estimates: Sequence[Estimate],
    height: float,
    label: str,
    reference: float | None,
    floor: float = -math.inf,
) -> Chart:
    """The frame of a chart of rows: a horizontal axis that holds all estimates, its grid and its reference."""
    known = [v for e in estimates for v in (e.value, e.low, e.high) if v is not None]
    known += [] if reference is None else [reference]
    low, high = max(min(known, default=0.0), floor), max(known, default=1.0)
    pad = 0.05 * (high - low) or 0.1
    chart = Chart(440, height, (low - pad, high + pad), left=132, top=6)
    chart.verticals(ticks(chart.x.low, chart.x.high), "grid")
    chart.verticals([] if reference is None else [reference], "reference")
    chart.x_axis(label, plain)
    return chart


def _draw_estimate(
    chart: Chart, estimate: Estimate, y: float, words: str, missing: str, beside: float
) -> None:
    """An estimate with its whisker; an arrow where it leaves the axis; `missing` right of `beside` where undefined."""
    if estimate.value is None:
        chart.text(beside, y, missing, "muted", dx=6, dy=4)
        return
    if estimate.low is not None and estimate.high is not None:
        chart.whisker(estimate.kind, (estimate.low, estimate.high), (y, y))
    if min(estimate.value, estimate.value if estimate.low is None else estimate.low) < chart.x.low:
        chart.text(chart.x.low, y, "‹", "mid", dx=-3, dy=4)
    if estimate.value >= chart.x.low:
        chart.mark(estimate.kind, estimate.value, y, words, size=3.4)


def shorten(words: str, most: int = 18) -> str:
    """Words that fit beside a row of a figure.

    >>> shorten("ETHNICITY//NOT SPECIFIED"), shorten("60-69")
    ('…//NOT SPECIFIED', '60-69')
    """
    if len(words) <= most:
        return words
    tail = words.rsplit("//", 1)[-1]
    return f"…//{tail}" if tail != words and len(tail) <= most - 3 else words[: most - 1] + "…"


def risk_distribution(ridges: Sequence[Ridge], *, title: str, label: str) -> Figure:
    """Histograms of predicted risk above one another, each drawn as a density of its own subjects.

    Area, not height, is the share.
    """
    ends = [right for ridge in ridges for _, right, count in ridge.bars if count]
    head, tall, empty = 20.0, 58.0, 6.0
    height = 40 + sum(head + (tall if ridge.bars else empty) for ridge in ridges)
    chart, base = Chart(320, height, (0, max(ends, default=1.0)), left=12, right=20, top=0), 0.0
    for ridge in ridges:
        row = tall if ridge.bars else empty
        base += row + head
        chart.text(0, base - row - 5, ridge.label)
        chart.line(0, base, chart.x.high, base, "grid")
        chart.told.append(ridge.label)
        everyone = sum(count for *_, count in ridge.bars)
        peak = max((count / (right - left) for left, right, count in ridge.bars), default=1.0)
        for left, right, count in (bar for bar in ridge.bars if bar[2]):
            part = percent(count / everyone)
            hover = f"risk {percent(left)} to {percent(right)}: {part} of them"
            chart.rows.append((ridge.label, f"{percent(left)} to {percent(right)}", part))
            top = base - row * count / (right - left) / peak
            chart.bar((left, right), top, base, f"bar {ridge.style}".rstrip(), hover)
    chart.x_axis(label, percent)
    chart.columns = ("group", label, "share of the group")
    return chart.svg(title)


# ------------------------------------------------------------------------------------------------ risks and decisions


def calibration(
    series: Sequence[tuple[int, str, Sequence[CalibrationGroup]]],
    *,
    title: str,
    curves: Sequence[Curve] = (),
) -> Figure:
    """Observed against predicted risk: smooth curves with a band, groups with intervals, and the diagonal.

    Args:
        series: (mark, model, points); the first is drawn solid, the others hollow and faint.
        title: Name of the figure.
        curves: Smooth curves (risk, observed), ours first; only ours shows its band.
    """
    found = [
        v
        for _, _, points in series
        for p in points
        for v in (p.predicted, p.observed, p.high or 0.0)
    ]
    found += [v for curve in curves for v in (*curve.x, *curve.y)]
    chart = _risk_square(max(found, default=0.0) or 1.0, 320, "predicted", "observed")
    for curve in reversed(curves):
        chart.curve(curve)
    chart.told = [
        f"{c.name}: smooth curve from {_point(c, 0)} to {_point(c, -1)}" for c in curves if c.x
    ]
    for place, (kind, name, points) in reversed(list(enumerate(series))):
        style = "faint" if place else ""
        for p in points:
            size = "" if not p.n else f", n = {p.n:,}"
            observed = with_interval(p.observed, p.low, p.high, percent)
            words = f"{name}: predicted {percent(p.predicted)}, observed {observed}{size}"
            chart.told.append(words)
            chart.rows.append(
                (name, percent(p.predicted), observed, f"{p.n:,}" if p.n else "withheld")
            )
            if p.low is not None and p.high is not None:
                chart.whisker(kind, (p.predicted, p.predicted), (p.low, p.high), style)
            chart.mark(kind, p.predicted, p.observed, words, hollow=place > 0, style=style)
    chart.columns = ("model", "predicted", "observed (95% interval)", "subjects")
    return chart.svg(title)


def _point(curve: Curve, k: int) -> str:
    return f"predicted {percent(curve.x[k])}, observed {percent(curve.y[k])}"


def _risk_square(reach: float, height: float, x_label: str, y_label: str) -> Chart:
    """Risk against risk on equal axes, with the diagonal."""
    top = min(1.0, max(reach * 1.08, 0.01))
    chart = Chart(320, height, (0, top), (0, top), left=50)
    chart.y_axis(y_label, percent)
    chart.x_axis(x_label, percent)
    chart.line(0, 0, top, top, "reference")
    return chart


def instability(groups: Sequence[Spread], *, title: str) -> Figure:
    """How far risks move when the model is fitted again: one interval per group of subjects of similar risk."""
    chart = _risk_square(
        max((g.high for g in groups), default=1.0), 300, "predicted risk", "range over refits"
    )
    for g in groups:
        words = f"predicted {percent(g.risk)}: from {percent(g.low)} to {percent(g.high)}"
        chart.told.append(words)
        chart.rows.append((percent(g.risk), f"{percent(g.low)} to {percent(g.high)}"))
        chart.whisker(0, (g.risk, g.risk), (g.low, g.high))
        chart.mark(0, g.risk, g.risk, words, size=3.0)
    chart.columns = ("predicted risk", "range over refits")
    return chart.svg(title)


def decision(curves: Sequence[Curve], *, title: str) -> Figure:
    """Net benefit per 100 subjects over the risk threshold from which one would act; acting on nobody is 0.

    Args:
        curves: Ours first, then others, then acting on everyone (styled grey); y is the net benefit per subject.
        title: Name of the figure.
    """
    scaled = [
        replace(c, y=_times_100(c.y), low=_times_100(c.low), high=_times_100(c.high))
        for c in curves
    ]
    # nobody gains: an empty frame
    top = max((v for c in scaled for v in c.y if v > 1e-9), default=0.0) * 1.12 or 1.0
    end = max((x for c in scaled for x in c.x), default=1.0)
    chart = Chart(320, 260, (0.0, end), (-0.12 * top, top), left=50)
    chart.y_axis("net benefit per 100", plain)
    chart.x_axis("act from a risk of", percent)
    chart.line(0, 0, end, 0, "axis")
    for c in reversed(scaled):
        # where it leaves downwards
        stop = next((k + 1 for k, y in enumerate(c.y) if y < chart.y.low), len(c.y))
        chart.curve(replace(c, x=c.x[:stop], y=c.y[:stop], low=c.low[:stop], high=c.high[:stop]))
    for c in scaled:
        first, last = (f"{c.y[k]:.3g} at {percent(c.x[k])}" for k in (0, -1))
        chart.told.append(f"{c.name}: {first} to {last}")
        shown = sorted({round(k * (len(c.x) - 1) / 5) for k in range(6)})
        for k in shown:
            low, high = (c.low[k], c.high[k]) if len(c.low) and len(c.high) else (None, None)
            chart.rows.append((c.name, percent(c.x[k]), with_interval(c.y[k], low, high, ".3g")))
    chart.columns = ("who is acted on", "from a risk of", "net benefit per 100 (95% band)")
    return chart.svg(title)


def _times_100(values: Sequence[float]) -> list[float]:
    return [100 * v for v in values]


# ------------------------------------------------------------------------------------------------------- one subject


def risk_over_time(
    times_days: Sequence[float],
    lines: Sequence[tuple[str, Sequence[float]]],
    kinds: Sequence[str],
    *,
    title: str,
    top: float,
) -> Figure:
    """One subject's risk by each horizon, as it was seen at each prediction time.

    Args:
        times_days: Days since the index, rising.
        lines: (name of the horizon, risk at each prediction time).
        kinds: `visit` (solid mark) or `query` (hollow mark) at each prediction time.
        title: Name of the figure.
        top: Upper end of the risk axis, the same for all of a subject's figures.
    """
    per, unit = _clock(times_days[-1])
    chart = _subject_chart(max(times_days[-1] / per, 1e-3) * 1.02, top, f"{unit} since the index")
    x = [t / per for t in times_days]
    for k, (name, risks) in enumerate(lines):
        shade = _shade(k, len(lines))
        chart.path(x, risks, opacity=shade)
        for at, risk, kind in (
            zip(x, risks, kinds, strict=True) if len(x) <= 40 else ()
        ):  # more would merge
            hover = f"{at:.1f} {unit} after the index ({kind}): risk within {name} {percent(risk)}"
            chart.mark(0, at, risk, hover, hollow=kind == "query", size=2.4, opacity=shade)
        chart.rows += [
            (f"{at:.3g} {unit[0]}", f"within {name}", percent(risk))
            for at, risk in zip(x, risks, strict=True)
        ]
        chart.told.append(f"within {name}: from {percent(risks[0])} to {percent(risks[-1])}")
    chart.end_labels([(risks[-1], name) for name, risks in lines])
    chart.columns = ("since the index", "horizon", "predicted risk")
    return chart.svg(title)


def risk_curves(
    horizons_days: Sequence[float],
    curves: Sequence[tuple[float, Sequence[float]]],
    *,
    title: str,
    top: float,
) -> Figure:
    """One subject's cumulative incidence over the horizons, from a few prediction times.

    Args:
        horizons_days: Days after the prediction time, rising.
        curves: (days of the prediction time since the index, risk by each horizon); later ones are darker.
        title: Name of the figure.
        top: Upper end of the risk axis.
    """
    per, unit = _clock(horizons_days[-1])
    time_per, time_unit = _clock(curves[-1][0]) if curves[-1][0] > 0 else (1.0, "days")
    chart, ends = _subject_chart(horizons_days[-1] / per, top, f"{unit} after the prediction"), []
    x = [h / per for h in horizons_days]
    for k, (time, risks) in enumerate(curves):
        name, shade = (
            f"{time / time_per:.1f}".removesuffix(".0") + f" {time_unit[0]}",
            _shade(k, len(curves)),
        )
        chart.path([0, *x], [0, *risks], opacity=shade)
        for at, risk in zip(x, risks, strict=True):
            hover = (
                f"predicted {name} after the index: risk within {at:.3g} {unit[0]} {percent(risk)}"
            )
            if len(x) <= 8:  # more points are a line
                chart.mark(0, at, risk, hover, size=2.4, opacity=shade)
        spaced = sorted({round(j * (len(x) - 1) / 7) for j in range(8)})
        chart.rows += [
            (f"{name} after the index", f"{x[j]:.3g} {unit[0]}", percent(risks[j])) for j in spaced
        ]
        chart.told.append(
            f"predicted {name} after the index: {percent(risks[-1])} by the last horizon"
        )
        ends.append((risks[-1], name))
    chart.end_labels(ends)
    chart.columns = ("predicted", "within", "risk")
    return chart.svg(title)


def _subject_chart(end: float, top: float, label: str) -> Chart:
    chart = Chart(440, 220, (0, end), (0, top), left=50, right=66)
    chart.y_axis("predicted risk", percent)
    chart.x_axis(label, plain)
    return chart


def _clock(days: float) -> tuple[float, str]:
    """The unit in which so many days read well: (days per unit, its name)."""
    units = ((365.25, "years"), (1.0, "days"), (1 / 24, "hours"))
    return next((per, name) for per, name in units if days >= 2 * per or per < 1)


def _shade(place: int, count: int) -> float:
    return 1.0 if count == 1 else 0.35 + 0.65 * place / (count - 1)


# ------------------------------------------------------------------------------------------ training, truth and drift


def training_curve(
    epochs: Sequence[int], values: Sequence[float], *, title: str, best_epoch: int | None = None
) -> Figure:
    """One number per epoch; the epoch whose weights were kept is marked."""
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or max(abs(high) * 0.05, 1e-3)
    chart = Chart(
        440, 200, (min(epochs) - 0.3, max(epochs) + 0.3), (low - pad, high + pad), left=58
    )
    chart.y_axis("", plain)
    chart.x_axis("epoch", lambda value: f"{value:g}" if value == int(value) else "")
    chart.path(epochs, values)
    chart.told.append(f"from {values[0]:.4g} to {values[-1]:.4g} over {len(epochs)} epochs")
    for epoch, value in zip(epochs, values, strict=True):
        if epoch == best_epoch:
            chart.told.append(f"kept epoch {epoch} with {value:.4g}")
            chart.verticals([epoch], "reference")
            chart.mark(0, epoch, value)
            dx, anchor = (-7, "end") if chart.x(epoch) > 0.7 * chart.width else (7, "strong")
            chart.text(epoch, chart.y.high, f"kept: {value:.4g}", anchor, dx=dx, dy=10)
        elif len(epochs) <= 60:
            chart.mark(0, epoch, value, f"epoch {epoch}: {value:.4g}", size=1.6)
        chart.rows.append((f"epoch {epoch}", f"{value:.4f}"))
    chart.columns = ("after", title)
    return chart.svg(title)


def oracle_bar(nll_null: float, nll_model: float, nll_oracle: float, *, title: str) -> Figure:
    """The model's NLL between that of knowing nothing (left) and that of the true hazards (right)."""
    span = nll_null - nll_oracle
    share = (nll_null - nll_model) / span if span > 0 else 0.0
    at = min(max(share, -0.25), 1.25)
    chart = Chart(440, 96, (min(0.0, at), max(1.0, at)), left=14, right=14, bottom=0)
    chart.bar((0, 1), 34, 54, "bar unknown")
    chart.bar((0, at), 34, 54, "bar" if share <= 1 else "bar beyond")
    for x in (0, 1, at):
        chart.line(x, 28, x, 60, "axis")
    anchor = "end" if chart.x(at) > 330 else "" if chart.x(at) < 110 else "mid"
    chart.text(at, 22, f"model {nll_model:.4f}", f"strong {anchor}".rstrip())
    for x, words, meaning, anchor in (
        (0, f"null {nll_null:.4f}", "knows nothing of the subject", ""),
        (1, f"oracle {nll_oracle:.4f}", "knows the true hazards", "end"),
    ):
        chart.text(x, 76, words, anchor)
        chart.text(x, 91, meaning, anchor)
    gain = f"{percent(share)} of the gain"
    chart.columns = ("hazards", "NLL")
    chart.rows += [
        (n, f"{v:.4f}")
        for n, v in (("null", nll_null), ("model", nll_model), ("oracle", nll_oracle))
    ]
    chart.told.append(
        f"null {nll_null:.4f}, model {nll_model:.4f}, oracle {nll_oracle:.4f}: {gain}"
    )
    return chart.svg(title)


def drift_bar(difference: float, reach: float) -> Figure:
    """A standardised difference as a small bar left or right of zero, for a table."""
    chart = Chart(100, 12, (-reach, reach), left=6, right=6, top=0, bottom=0)
    chart.verticals([0], "axis")
    chart.bar((0, difference), 2, 10, "bar" if abs(difference) >= 0.1 else "bar other")
    chart.told.append(f"{difference:+.2f}")
    return chart.svg("Standardised difference", "fig mini")
