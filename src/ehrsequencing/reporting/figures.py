"""Small hand-made SVG figures: pure functions from data to a string, without scripts or outside resources.

Colours are CSS variables set by the page (`STYLE` uses them), so that one figure serves light, dark and printed
pages. Every figure carries `<title>` and `<desc>`, and its marks carry `<title>` too, which browsers show on hover.
Callers pass real numbers (an undefined estimate is `None`) and only counts that may be published.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import escape

STYLE = """
svg.fig { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
svg.fig text { fill: var(--ink-2); }
svg.fig text.muted { fill: var(--ink-3); font-size: 10.5px; font-style: italic; }
svg.fig text.strong { fill: var(--ink); font-weight: 600; }
svg.fig text.end { text-anchor: end; } svg.fig text.mid { text-anchor: middle; }
svg.fig .grid { stroke: var(--line); stroke-width: 1; } svg.fig .axis { stroke: var(--ink-3); stroke-width: 1; }
svg.fig .reference { stroke: var(--ink-3); stroke-width: 1; stroke-dasharray: 4 3; }
svg.fig .line { fill: none; stroke: var(--s0); stroke-width: 1.8; stroke-linejoin: round; }
svg.fig .bar { fill: var(--s0); } svg.fig .bar.other { fill: var(--ink-3); }
svg.fig .bar.unknown { fill: var(--line-2); } svg.fig .bar.beyond { fill: var(--bad); }
svg .m0 { fill: var(--s0); stroke: var(--s0); } svg .m1 { fill: var(--s1); stroke: var(--s1); }
svg .m2 { fill: var(--s2); stroke: var(--s2); } svg .m3 { fill: var(--s3); stroke: var(--s3); }
svg .m4 { fill: var(--s4); stroke: var(--s4); } svg .m5 { fill: var(--s5); stroke: var(--s5); }
svg .m6 { fill: var(--s6); stroke: var(--s6); } svg .whisker { stroke-width: 1.6; } svg .faint { opacity: .55; }
svg.swatch { width: 12px; height: 12px; vertical-align: -1px; }
"""
_BASELINE_MARKS = 6


@dataclass(frozen=True)
class Estimate:
    """A number with its interval: `kind` picks the mark (0 is our model), `None` means undefined."""

    kind: int
    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CalibrationPoint:
    """Mean predicted and observed risk of `n` subjects, with the interval of the observed risk; `n` may be withheld."""

    predicted: float
    observed: float
    low: float | None
    high: float | None
    n: int | None


@dataclass(frozen=True)
class Ridge:
    """One row of a risk distribution: `bars` are (left, right, count); a rough one does not tell exact shares."""

    label: str
    style: str
    bars: Sequence[tuple[float, float, int]]
    rough: bool = False


@dataclass(frozen=True)
class _Frame:
    """Maps data to pixels inside a margin."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 46
    right: float = 14
    top: float = 10
    bottom: float = 38

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def x_axis(self, label: str, show: Callable[[float], str]) -> str:
        base, out = self.height - self.bottom, []
        for tick in ticks(*self.x_range):
            out += [_line(self.x(tick), base, self.x(tick), base + 4, "axis")]
            out += [_text(self.x(tick), base + 16, show(tick), "mid")]
        out += [_line(self.left, base, self.width - self.right, base, "axis")]
        middle = (self.left + self.width - self.right) / 2
        return "".join([*out, _text(middle, base + 33, label, "mid")])

    def y_axis(self, label: str, show: Callable[[float], str]) -> str:
        out = [_line(self.left, self.y(t), self.width - self.right, self.y(t), "grid") for t in ticks(*self.y_range)]
        out += [_text(self.left - 6, self.y(t) + 4, show(t), "end") for t in ticks(*self.y_range)]
        middle = (self.top + self.height - self.bottom) / 2
        turned = f'<text class="mid" transform="translate(11 {middle:.1f}) rotate(-90)">{escape(label)}</text>'
        return "".join([*out, turned])


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round tick positions inside [low, high], about `count` of them.

    >>> ticks(0.0, 0.4), ticks(0.5, 1.0)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    """
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 10) + 0.0 for k in range(first, last + 1)]


def percent(value: float) -> str:
    """A risk as a person reads it: `2.5%`."""
    return f"{100 * value:.3g}%"


def _plain(value: float) -> str:
    return f"{value:.6g}"


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _path(points: Sequence[tuple[float, float]], opacity: float = 1.0) -> str:
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{steps}" class="line" stroke-opacity="{opacity:.2f}"/>'


def _style(kind: int) -> int:
    """Our model (0) keeps its mark to itself; many baselines take turns."""
    return 0 if kind == 0 else 1 + (kind - 1) % _BASELINE_MARKS


def _mark(kind: int, x: float, y: float, hover: str = "", *, hollow: bool = False, size: float = 4.0) -> str:
    """A mark whose shape and colour both tell the series, so that it survives print and colour blindness."""
    r, shape = size, _style(kind)
    corners = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -r - 1), (r + 0.5, r), (-r - 0.5, r)],
        3: [(0, -r - 1.5), (r + 1.5, 0), (0, r + 1.5), (-r - 1.5, 0)],
        4: [(0, r + 1), (r + 0.5, -r), (-r - 0.5, -r)],
        5: [(-r - 1.5, -r / 2), (r + 1.5, -r / 2), (r + 1.5, r / 2), (-r - 1.5, r / 2)],
        6: [(-r / 2, -r - 1), (r / 2, -r - 1), (r / 2, r + 1), (-r / 2, r + 1)],
    }
    title = f"<title>{escape(hover)}</title>" if hover else ""
    fill = ' fill-opacity="0"' if hollow else ""
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r + 0.3:.1f}" class="m0"{fill}>{title}</circle>'
    outline = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[shape])
    return f'<polygon points="{outline}" class="m{shape}"{fill}>{title}</polygon>'


def _svg(width: float, height: float, title: str, desc: str, *body: str) -> str:
    head = f"<title>{escape(title)}</title><desc>{escape(desc)}</desc>"
    return f'<svg class="fig" viewBox="0 0 {width:g} {height:g}" role="img">{head}{"".join(body)}</svg>'


def swatch(kind: int) -> str:
    """The mark of series `kind`, for a legend."""
    return f'<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">{_mark(kind, 7, 7)}</svg>'


def _with_interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.value is None:
        return "undefined"
    if estimate.low is None or estimate.high is None:
        return show(estimate.value)
    return f"{show(estimate.value)} ({show(estimate.low)} to {show(estimate.high)})"


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
    frame = _Frame(width, height, (low - pad, high + pad), (0, 1), left=132, top=6)
    base = height - frame.bottom
    body = [_line(frame.x(t), frame.top, frame.x(t), base, "grid") for t in ticks(*frame.x_range)]
    body += [_line(frame.x(reference), frame.top, frame.x(reference), base, "reference")]
    y, told = frame.top + gap / 2, []
    for name, rows in groups:
        for offset, words in enumerate(name.split("\n")):
            body.append(_text(4, y + row * len(rows) / 2 + 4 + 14 * (offset - name.count("\n") / 2), words))
        for estimate in rows:
            body.append(_forest_row(frame, estimate, y + row / 2, frame.x(reference)))
            y += row
        y += gap
        body.append(_line(0, y - gap / 2, width, y - gap / 2, "grid"))
        told.append(f"{name}: " + "; ".join(f"{e.name} {_with_interval(e, _three)}" for e in rows))
    return _svg(width, height, title, ". ".join(told), *body, frame.x_axis(label, _plain))


def _three(value: float) -> str:
    return f"{value:.3f}"


def _forest_row(frame: _Frame, estimate: Estimate, y: float, zero: float) -> str:
    hover = f"{estimate.name}: {_with_interval(estimate, _three)}"
    if estimate.value is None:
        return _text(zero + 6, y + 4, f"{estimate.name}: undefined", "muted")
    low, high = frame.x_range
    left, right = estimate.low, estimate.high
    out = ""
    if left is not None and right is not None:
        x1, x2 = frame.x(min(max(left, low), high)), frame.x(max(min(right, high), low))
        out = _line(x1, y, x2, y, f"whisker m{_style(estimate.kind)}")
        out += _text(x1 - 3, y + 4, "‹", "mid") if left < low else ""
    if estimate.value < low:
        return f"<g><title>{escape(hover)}</title>{out}{_text(frame.x(low) - 3, y + 4, '‹', 'mid')}</g>"
    return out + _mark(estimate.kind, frame.x(estimate.value), y, hover, size=3.4)


def calibration(series: Sequence[tuple[int, str, Sequence[CalibrationPoint]]], *, title: str) -> str:
    """Observed against predicted risk in groups of subjects, with intervals and the diagonal.

    Args:
        series: (mark, model, points); the first is drawn solid and with intervals, the others hollow and faint.
        title: Name of the figure.
    """
    points = [p for _, _, some in series for p in some]
    reach = max((v for p in points for v in (p.predicted, p.observed, p.high or 0.0)), default=1.0)
    top = min(1.0, max(reach * 1.08, 0.01))
    frame = _Frame(320, 320, (0, top), (0, top), left=50)
    body = [frame.y_axis("observed", percent), frame.x_axis("predicted", percent)]
    body += [_line(frame.x(0), frame.y(0), frame.x(top), frame.y(top), "reference")]
    told = []
    for place, (kind, name, some) in reversed(list(enumerate(series))):
        marks = []
        for p in some:
            words = f"predicted {percent(p.predicted)}, observed {_observed(p)}"
            words += "" if p.n is None else f", n = {p.n:,}"
            told.append(f"{name}: {words}")
            x, y = frame.x(min(p.predicted, top)), frame.y(min(p.observed, top))
            if p.low is not None and p.high is not None:
                ends = frame.y(max(p.low, 0.0)), frame.y(min(p.high, top))
                marks.append(_line(x, *(ends[0], x, ends[1]), f"whisker m{_style(kind)}"))
            marks.append(_mark(kind, x, y, f"{name}: {words}", hollow=place > 0))
        body.append(f'<g class="{"faint" if place else "ours"}">{"".join(marks)}</g>')
    return _svg(320, 320, title, ". ".join(told), *body)


def _observed(point: CalibrationPoint) -> str:
    if point.low is None or point.high is None:
        return percent(point.observed)
    return f"{percent(point.observed)} ({percent(point.low)} to {percent(point.high)})"


def risk_distribution(ridges: Sequence[Ridge], *, title: str, label: str) -> str:
    """Histograms of predicted risk above one another, each drawn as a density of its own subjects.

    Bars may have unequal widths (small ones are merged before they come here): area, not height, is the share.
    """
    ends = [right for ridge in ridges for _, right, count in ridge.bars if count]
    head, tall, empty = 20.0, 58.0, 6.0
    rows = [tall if ridge.bars else empty for ridge in ridges]
    height = 40 + sum(row + head for row in rows)
    frame = _Frame(320, height, (0, max(ends, default=1.0)), (0, 1), left=12, right=20, top=0)
    body, told, base = [], [], 0.0
    for ridge, row in zip(ridges, rows, strict=True):
        base += row + head
        body.append(_text(frame.left, base - row - 5, ridge.label))
        body.append(_line(frame.left, base, 320 - frame.right, base, "grid"))
        body += [_bar(frame, ridge, bar, base, row) for bar in ridge.bars if bar[2]]
        told.append(ridge.label)
    return _svg(320, height, title, ". ".join(told), *body, frame.x_axis(label, percent))


def _bar(frame: _Frame, ridge: Ridge, bar: tuple[float, float, int], base: float, row: float) -> str:
    left, right, count = bar
    peak = max(some / (end - start) for start, end, some in ridge.bars)
    share = count / (right - left) / peak
    tall = row * (max(round(20 * share), 1) / 20 if ridge.rough else share)
    part = "" if ridge.rough else f": {percent(count / sum(some for *_, some in ridge.bars))} of them"
    hover = f"risk {percent(left)} to {percent(right)}{part}"
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


def _end_labels(frame: _Frame, ends: Sequence[tuple[float, str]]) -> str:
    heights = _spread([frame.y(value) for value, _ in ends], 13.0, frame.top + 4, frame.height - frame.bottom)
    x = frame.width - frame.right + 6
    return "".join(_text(x, y + 4, words) for y, (_, words) in zip(heights, ends, strict=True))


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
    frame = _Frame(440, 220, (0, max(times_days[-1] / per, 1e-3) * 1.02), (0, top), left=50, right=66)
    body = [frame.y_axis("predicted risk", percent), frame.x_axis(f"{unit} since the index", _plain)]
    for place, (name, risks) in enumerate(lines):
        shade = _shade(place, len(lines))
        spots = [(frame.x(t / per), frame.y(r)) for t, r in zip(times_days, risks, strict=True)]
        body.append(_path(spots, shade))
        if len(spots) > 40:  # marks would merge into a band
            continue
        for (x, y), t, r, kind in zip(spots, times_days, risks, kinds, strict=True):
            hover = f"{t / per:.1f} {unit} after the index ({kind}): risk within {name} {percent(r)}"
            body.append(f'<g opacity="{shade:.2f}">{_mark(0, x, y, hover, hollow=kind == "query", size=2.4)}</g>')
    ends = [(risks[-1], name) for name, risks in lines]
    told = ". ".join(f"within {name}: from {percent(risks[0])} to {percent(risks[-1])}" for name, risks in lines)
    return _svg(440, 220, title, told, *body, _end_labels(frame, ends))


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
    frame = _Frame(440, 220, (0, horizons_days[-1] / per), (0, top), left=50, right=66)
    body = [frame.y_axis("predicted risk", percent), frame.x_axis(f"{unit} after the prediction", _plain)]
    ends, told = [], []
    for place, (time, risks) in enumerate(curves):
        shade = _shade(place, len(curves))
        name = f"{time / time_per:.1f}".removesuffix(".0") + f" {time_unit[0]}"
        body.append(
            _path(
                [(frame.x(0), frame.y(0))]
                + [(frame.x(h / per), frame.y(r)) for h, r in zip(horizons_days, risks, strict=True)],
                shade,
            )
        )
        for h, r in zip(horizons_days, risks, strict=True):
            hover = f"asked {name} after the index: risk within {h / per:.3g} {unit} {percent(r)}"
            body.append(f'<g opacity="{shade:.2f}">{_mark(0, frame.x(h / per), frame.y(r), hover, size=2.4)}</g>')
        ends.append((risks[-1], name))
        told.append(f"asked {name} after the index: {percent(risks[-1])} by the last horizon")
    return _svg(440, 220, title, ". ".join(told), *body, _end_labels(frame, ends))


def training_curve(epochs: Sequence[int], values: Sequence[float], *, title: str, best_epoch: int | None = None) -> str:
    """One number per epoch; the epoch whose weights were kept is marked."""
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or max(abs(high) * 0.05, 1e-3)
    frame = _Frame(440, 200, (min(epochs) - 0.3, max(epochs) + 0.3), (low - pad, high + pad), left=58)
    body = [frame.y_axis("", _plain), frame.x_axis("epoch", _whole)]
    body.append(_path([(frame.x(e), frame.y(v)) for e, v in zip(epochs, values, strict=True)]))
    told = f"from {values[0]:.4g} to {values[-1]:.4g} over {len(epochs)} epochs"
    for epoch, value in zip(epochs, values, strict=True):
        if epoch == best_epoch:
            told += f"; kept epoch {epoch} with {value:.4g}"
            x, y = frame.x(epoch), frame.y(value)
            left = x > frame.width * 0.7
            body += [_line(x, frame.top, x, 200 - frame.bottom, "reference"), _mark(0, x, y)]
            body += [_text(x + (-7 if left else 7), frame.top + 10, f"kept: {value:.4g}", "end" if left else "strong")]
        elif len(epochs) <= 60:
            body.append(_mark(0, frame.x(epoch), frame.y(value), f"epoch {epoch}: {value:.4g}", size=1.6))
    return _svg(440, 200, title, told, *body)


def _whole(value: float) -> str:
    return f"{value:g}" if value == int(value) else ""


def oracle_bar(nll_null: float, nll_model: float, nll_oracle: float, *, title: str) -> str:
    """Where the model's NLL stands between knowing nothing (left) and knowing the true hazards (right)."""
    span = nll_null - nll_oracle
    share = (nll_null - nll_model) / span if span > 0 else 0.0
    frame = _Frame(440, 96, (min(0.0, max(share, -0.25)), max(1.0, min(share, 1.25))), (0, 1), left=14, right=14)
    x0, x1, at = frame.x(0), frame.x(1), frame.x(min(max(share, -0.25), 1.25))
    style = "bar" if share <= 1 else "bar beyond"
    body = [f'<rect x="{x0:.1f}" y="34" width="{x1 - x0:.1f}" height="20" class="bar unknown"/>']
    body += [f'<rect x="{min(x0, at):.1f}" y="34" width="{abs(at - x0):.1f}" height="20" class="{style}"/>']
    body += [_line(x, 28, x, 60, "axis") for x in (x0, x1, at)]
    anchor = "end" if at > 330 else "" if at < 110 else "mid"
    body += [_text(at, 22, f"model {nll_model:.4f}", f"strong {anchor}")]
    body += [_text(x0, 76, f"null {nll_null:.4f}"), _text(x1, 76, f"oracle {nll_oracle:.4f}", "end")]
    body += [_text(x0, 91, "knows nothing of the subject"), _text(x1, 91, "knows the true hazards", "end")]
    told = f"null {nll_null:.4f}, model {nll_model:.4f}, oracle {nll_oracle:.4f}: {percent(share)} of the gain"
    return _svg(440, 96, title, told, *body)
