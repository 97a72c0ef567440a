"""The figures of the report: pure functions from data to a string of SVG.

Callers pass real numbers (an undefined estimate is `None`) and only counts that may be published.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import escape

from ehrsequencing.reporting import svg
from ehrsequencing.reporting.svg import Estimate


@dataclass(frozen=True)
class CalibrationPoint:
    """Mean predicted and observed risk of `n` subjects, with the interval of the observed risk; `n` may be withheld."""

    predicted: float
    observed: float
    low: float | None
    high: float | None
    n: int | None


@dataclass(frozen=True)
class Curve:
    """A line of series `kind` through (x, y), with a band where `low` and `high` are not empty."""

    kind: int
    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: str = ""


@dataclass(frozen=True)
class Ridge:
    """One row of a risk distribution: `bars` are (left, right, count); a rough one does not tell exact shares."""

    label: str
    style: str
    bars: Sequence[tuple[float, float, int]]
    rough: bool = False


def forest(
    groups: Sequence[tuple[str, Sequence[Estimate]]], *, title: str, label: str, reference: float, floor: float
) -> str:
    """Forest plot: one line per model in each group, with intervals and a dashed reference.

    Args:
        groups: (what the group is, its estimates), drawn from top to bottom.
        title: Name of the figure.
        label: Name of the horizontal axis.
        reference: Where the dashed line stands (no skill).
        floor: The axis starts no lower; what lies below ends in an arrow.
    """
    numbers = [v for _, rows in groups for e in rows for v in (e.value, e.low, e.high) if v is not None]
    low, high = max(min([*numbers, reference]), floor), max([*numbers, reference])
    pad = 0.04 * (high - low) or 0.1
    row, gap, width = 13.0, 11.0, 440.0
    height = 48 + sum(row * len(rows) + gap for _, rows in groups)
    frame = svg.Frame(width, height, (low - pad, high + pad), (0, 1), left=132, top=6)
    base = height - frame.bottom
    body = [svg.line(frame.x(t), frame.top, frame.x(t), base, "grid") for t in svg.ticks(*frame.x_range)]
    body += [svg.line(frame.x(reference), frame.top, frame.x(reference), base, "reference")]
    y, told = frame.top + gap / 2, []
    for name, rows in groups:
        for offset, words in enumerate(name.split("\n")):
            body.append(svg.text(4, y + row * len(rows) / 2 + 4 + 14 * (offset - name.count("\n") / 2), words))
        for estimate in rows:
            body.append(_forest_row(frame, estimate, y + row / 2, frame.x(reference)))
            y += row
        y += gap
        body.append(svg.line(0, y - gap / 2, width, y - gap / 2, "grid"))
        told.append(f"{name}: " + "; ".join(f"{e.name} {svg.with_interval(e, _three)}" for e in rows))
    return svg.figure(width, height, title, ". ".join(told), *body, frame.x_axis(label, svg.plain))


def _three(value: float) -> str:
    return f"{value:.3f}"


def _forest_row(frame: svg.Frame, estimate: Estimate, y: float, zero: float) -> str:
    hover = f"{estimate.name}: {svg.with_interval(estimate, _three)}"
    if estimate.value is None:
        return svg.text(zero + 6, y + 4, f"{estimate.name}: undefined", "muted")
    low, high = frame.x_range
    left, right = estimate.low, estimate.high
    out = ""
    if left is not None and right is not None:
        x1, x2 = frame.x(min(max(left, low), high)), frame.x(max(min(right, high), low))
        out = svg.line(x1, y, x2, y, f"whisker m{svg.style_of(estimate.kind)}")
        out += svg.text(x1 - 3, y + 4, "‹", "mid") if left < low else ""
    if estimate.value < low:
        return f"<g><title>{escape(hover)}</title>{out}{svg.text(frame.x(low) - 3, y + 4, '‹', 'mid')}</g>"
    return out + svg.mark(estimate.kind, frame.x(estimate.value), y, hover, size=3.4)


def calibration(
    series: Sequence[tuple[int, str, Sequence[CalibrationPoint]]], *, title: str, curves: Sequence[Curve] = ()
) -> str:
    """Observed against predicted risk: smooth curves with a band, groups with intervals, and the diagonal.

    Args:
        series: (mark, model, points); the first is drawn solid and with intervals, the others hollow and faint.
        title: Name of the figure.
        curves: Smooth curves (risk, observed), ours first; only ours shows its band.
    """
    points = [p for _, _, some in series for p in some]
    reach = max((v for p in points for v in (p.predicted, p.observed, p.high or 0.0)), default=0.0)
    reach = max([reach, *(v for curve in curves for v in (*curve.x, *curve.y))]) or 1.0
    top = min(1.0, max(reach * 1.08, 0.01))
    frame = svg.Frame(320, 320, (0, top), (0, top), left=50)
    body = [frame.y_axis("observed", svg.percent), frame.x_axis("predicted", svg.percent)]
    body += [svg.line(frame.x(0), frame.y(0), frame.x(top), frame.y(top), "reference")]
    told = [f"{curve.name}: smooth curve from {_ends(curve)}" for curve in curves if curve.x]
    body += [draw_curve(frame, curve) for curve in reversed(curves)]
    for place, (kind, name, some) in reversed(list(enumerate(series))):
        marks = []
        for p in some:
            words = f"predicted {svg.percent(p.predicted)}, observed {_observed(p)}"
            words += "" if p.n is None else f", n = {p.n:,}"
            told.append(f"{name}: {words}")
            x, y = frame.x(min(p.predicted, top)), frame.y(min(p.observed, top))
            if p.low is not None and p.high is not None:
                ends = frame.y(max(p.low, 0.0)), frame.y(min(p.high, top))
                marks.append(svg.line(x, *(ends[0], x, ends[1]), f"whisker m{svg.style_of(kind)}"))
            marks.append(svg.mark(kind, x, y, f"{name}: {words}", hollow=place > 0))
        body.append(f'<g class="{"faint" if place else "ours"}">{"".join(marks)}</g>')
    return svg.figure(320, 320, title, ". ".join(told), *body)


def _ends(curve: Curve) -> str:
    first, last = (f"predicted {svg.percent(curve.x[k])}, observed {svg.percent(curve.y[k])}" for k in (0, -1))
    return f"{first} to {last}"


def draw_curve(frame: svg.Frame, curve: Curve) -> str:
    """The line of a curve, and its band where it has one, cut off at the frame."""
    low, high = frame.y_range

    def spots(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(frame.x(x), frame.y(min(max(y, low), high))) for x, y in zip(curve.x, values, strict=True)]

    area = svg.band(spots(curve.low), spots(curve.high)) if curve.low and curve.high and curve.kind == 0 else ""
    style = curve.style or ("" if curve.kind == 0 else "k1 thin")
    return area + svg.path(spots(curve.y), style=style)


def _observed(point: CalibrationPoint) -> str:
    if point.low is None or point.high is None:
        return svg.percent(point.observed)
    return f"{svg.percent(point.observed)} ({svg.percent(point.low)} to {svg.percent(point.high)})"


def risk_distribution(ridges: Sequence[Ridge], *, title: str, label: str) -> str:
    """Histograms of predicted risk above one another, each drawn as a density of its own subjects.

    Bars may have unequal widths (small ones are merged before they come here): area, not height, is the share.
    """
    ends = [right for ridge in ridges for _, right, count in ridge.bars if count]
    head, tall, empty = 20.0, 58.0, 6.0
    rows = [tall if ridge.bars else empty for ridge in ridges]
    height = 40 + sum(row + head for row in rows)
    frame = svg.Frame(320, height, (0, max(ends, default=1.0)), (0, 1), left=12, right=20, top=0)
    body, told, base = [], [], 0.0
    for ridge, row in zip(ridges, rows, strict=True):
        base += row + head
        body.append(svg.text(frame.left, base - row - 5, ridge.label))
        body.append(svg.line(frame.left, base, 320 - frame.right, base, "grid"))
        body += [_bar(frame, ridge, bar, base, row) for bar in ridge.bars if bar[2]]
        told.append(ridge.label)
    return svg.figure(320, height, title, ". ".join(told), *body, frame.x_axis(label, svg.percent))


def _bar(frame: svg.Frame, ridge: Ridge, bar: tuple[float, float, int], base: float, row: float) -> str:
    left, right, count = bar
    peak = max(some / (end - start) for start, end, some in ridge.bars)
    share = count / (right - left) / peak
    tall = row * (max(round(20 * share), 1) / 20 if ridge.rough else share)
    part = "" if ridge.rough else f": {svg.percent(count / sum(some for *_, some in ridge.bars))} of them"
    hover = f"risk {svg.percent(left)} to {svg.percent(right)}{part}"
    x, wide = frame.x(left), frame.x(right) - frame.x(left)
    return (
        f'<rect x="{x + 0.5:.1f}" y="{base - tall:.1f}" width="{max(wide - 1, 0.5):.1f}" height="{tall:.1f}"'
        f' class="bar {ridge.style}"><title>{escape(hover)}</title></rect>'
    )


def _clock(days: float) -> tuple[float, str]:
    """The unit in which so many days read well: (days per unit, its name)."""
    return next(
        (d, name) for d, name in ((365.25, "years"), (1.0, "days"), (1 / 24, "hours")) if days >= 2 * d or d < 1
    )


def _spread(wanted: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Move label positions apart by at least `step`, keeping their order and staying inside where there is room."""
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    placed = [0.0] * len(wanted)
    last = low - step
    for k in order:
        placed[k] = last = max(wanted[k], last + step)
    ceiling = high + step
    for k in reversed(order):
        placed[k] = ceiling = min(placed[k], ceiling - step)
    return placed


def _end_labels(frame: svg.Frame, ends: Sequence[tuple[float, str]]) -> str:
    heights = _spread([frame.y(value) for value, _ in ends], 13.0, frame.top + 4, frame.height - frame.bottom)
    x = frame.width - frame.right + 6
    return "".join(svg.text(x, y + 4, words) for y, (_, words) in zip(heights, ends, strict=True))


def _shade(place: int, count: int) -> float:
    return 1.0 if count == 1 else 0.35 + 0.65 * place / (count - 1)


def risk_over_time(
    times_days: Sequence[float],
    lines: Sequence[tuple[str, Sequence[float]]],
    kinds: Sequence[str],
    *,
    title: str,
    top: float,
) -> str:
    """One subject's risk by each horizon, as it was seen at each prediction time.

    Args:
        times_days: Days since the index, rising.
        lines: (name of the horizon, risk at each prediction time).
        kinds: `visit` (solid mark) or `query` (hollow mark) at each prediction time.
        title: Name of the figure.
        top: Upper end of the risk axis, the same for all of a subject's figures.
    """
    per, unit = _clock(times_days[-1])
    frame = svg.Frame(440, 220, (0, max(times_days[-1] / per, 1e-3) * 1.02), (0, top), left=50, right=66)
    body = [frame.y_axis("predicted risk", svg.percent), frame.x_axis(f"{unit} since the index", svg.plain)]
    for place, (name, risks) in enumerate(lines):
        shade = _shade(place, len(lines))
        spots = [(frame.x(t / per), frame.y(r)) for t, r in zip(times_days, risks, strict=True)]
        body.append(svg.path(spots, shade))
        if len(spots) > 40:  # marks would merge into a band
            continue
        for (x, y), t, r, kind in zip(spots, times_days, risks, kinds, strict=True):
            hover = f"{t / per:.1f} {unit} after the index ({kind}): risk within {name} {svg.percent(r)}"
            body.append(f'<g opacity="{shade:.2f}">{svg.mark(0, x, y, hover, hollow=kind == "query", size=2.4)}</g>')
    ends = [(risks[-1], name) for name, risks in lines]
    from_to = (f"within {name}: from {svg.percent(risks[0])} to {svg.percent(risks[-1])}" for name, risks in lines)
    told = ". ".join(from_to)
    return svg.figure(440, 220, title, told, *body, _end_labels(frame, ends))


def risk_curves(
    horizons_days: Sequence[float], curves: Sequence[tuple[float, Sequence[float]]], *, title: str, top: float
) -> str:
    """One subject's cumulative incidence over the horizons, from a few prediction times.

    Args:
        horizons_days: Days after the prediction time, rising.
        curves: (days of the prediction time since the index, risk by each horizon); later ones are darker.
        title: Name of the figure.
        top: Upper end of the risk axis.
    """
    per, unit = _clock(horizons_days[-1])
    time_per, time_unit = _clock(curves[-1][0]) if curves[-1][0] > 0 else (1.0, "days")
    frame = svg.Frame(440, 220, (0, horizons_days[-1] / per), (0, top), left=50, right=66)
    body = [frame.y_axis("predicted risk", svg.percent), frame.x_axis(f"{unit} after the prediction", svg.plain)]
    ends, told = [], []
    for place, (time, risks) in enumerate(curves):
        shade = _shade(place, len(curves))
        name = f"{time / time_per:.1f}".removesuffix(".0") + f" {time_unit[0]}"
        body.append(
            svg.path(
                [(frame.x(0), frame.y(0))]
                + [(frame.x(h / per), frame.y(r)) for h, r in zip(horizons_days, risks, strict=True)],
                shade,
            )
        )
        for h, r in zip(horizons_days, risks, strict=True):
            hover = f"asked {name} after the index: risk within {h / per:.3g} {unit} {svg.percent(r)}"
            body.append(f'<g opacity="{shade:.2f}">{svg.mark(0, frame.x(h / per), frame.y(r), hover, size=2.4)}</g>')
        ends.append((risks[-1], name))
        told.append(f"asked {name} after the index: {svg.percent(risks[-1])} by the last horizon")
    return svg.figure(440, 220, title, ". ".join(told), *body, _end_labels(frame, ends))


def training_curve(epochs: Sequence[int], values: Sequence[float], *, title: str, best_epoch: int | None = None) -> str:
    """One number per epoch; the epoch whose weights were kept is marked."""
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or max(abs(high) * 0.05, 1e-3)
    frame = svg.Frame(440, 200, (min(epochs) - 0.3, max(epochs) + 0.3), (low - pad, high + pad), left=58)
    body = [frame.y_axis("", svg.plain), frame.x_axis("epoch", _whole)]
    body.append(svg.path([(frame.x(e), frame.y(v)) for e, v in zip(epochs, values, strict=True)]))
    told = f"from {values[0]:.4g} to {values[-1]:.4g} over {len(epochs)} epochs"
    for epoch, value in zip(epochs, values, strict=True):
        if epoch == best_epoch:
            told += f"; kept epoch {epoch} with {value:.4g}"
            x, y = frame.x(epoch), frame.y(value)
            left = x > frame.width * 0.7
            body += [svg.line(x, frame.top, x, 200 - frame.bottom, "reference"), svg.mark(0, x, y)]
            side, anchor = (-7, "end") if left else (7, "strong")
            body += [svg.text(x + side, frame.top + 10, f"kept: {value:.4g}", anchor)]
        elif len(epochs) <= 60:
            body.append(svg.mark(0, frame.x(epoch), frame.y(value), f"epoch {epoch}: {value:.4g}", size=1.6))
    return svg.figure(440, 200, title, told, *body)


def _whole(value: float) -> str:
    return f"{value:g}" if value == int(value) else ""


def oracle_bar(nll_null: float, nll_model: float, nll_oracle: float, *, title: str) -> str:
    """Where the model's NLL stands between knowing nothing (left) and knowing the true hazards (right)."""
    span = nll_null - nll_oracle
    share = (nll_null - nll_model) / span if span > 0 else 0.0
    frame = svg.Frame(440, 96, (min(0.0, max(share, -0.25)), max(1.0, min(share, 1.25))), (0, 1), left=14, right=14)
    x0, x1, at = frame.x(0), frame.x(1), frame.x(min(max(share, -0.25), 1.25))
    style = "bar" if share <= 1 else "bar beyond"
    body = [f'<rect x="{x0:.1f}" y="34" width="{x1 - x0:.1f}" height="20" class="bar unknown"/>']
    body += [f'<rect x="{min(x0, at):.1f}" y="34" width="{abs(at - x0):.1f}" height="20" class="{style}"/>']
    body += [svg.line(x, 28, x, 60, "axis") for x in (x0, x1, at)]
    anchor = "end" if at > 330 else "" if at < 110 else "mid"
    body += [svg.text(at, 22, f"model {nll_model:.4f}", f"strong {anchor}")]
    body += [svg.text(x0, 76, f"null {nll_null:.4f}"), svg.text(x1, 76, f"oracle {nll_oracle:.4f}", "end")]
    body += [svg.text(x0, 91, "knows nothing of the subject"), svg.text(x1, 91, "knows the true hazards", "end")]
    told = f"null {nll_null:.4f}, model {nll_model:.4f}, oracle {nll_oracle:.4f}: {svg.percent(share)} of the gain"
    return svg.figure(440, 96, title, told, *body)
