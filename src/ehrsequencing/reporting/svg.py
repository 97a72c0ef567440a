"""The marks, axes and frame that every figure is made of: plain SVG as strings, without scripts or outside resources.

Colours are CSS variables set by the page (`STYLE` uses them), so that one figure serves light, dark and printed
pages. Every figure carries `<title>` and `<desc>`, and its marks carry `<title>` too, which browsers show on hover.
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
svg.fig .band { stroke: none; fill: var(--s0); fill-opacity: .16; } svg.fig .line.k1 { stroke: var(--s1); }
svg.fig .line.grey { stroke: var(--ink-3); stroke-dasharray: 5 3; } svg.fig .line.thin { stroke-width: 1.3; }
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
class Frame:
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
        """Pixels from the left."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def x_axis(self, label: str, show: Callable[[float], str]) -> str:
        """Axis at the bottom with ticks and a label."""
        base, out = self.height - self.bottom, []
        for tick in ticks(*self.x_range):
            out += [line(self.x(tick), base, self.x(tick), base + 4, "axis")]
            out += [text(self.x(tick), base + 16, show(tick), "mid")]
        out += [line(self.left, base, self.width - self.right, base, "axis")]
        middle = (self.left + self.width - self.right) / 2
        return "".join([*out, text(middle, base + 33, label, "mid")])

    def y_axis(self, label: str, show: Callable[[float], str]) -> str:
        """Grid lines with their values, and a turned label."""
        out = [line(self.left, self.y(t), self.width - self.right, self.y(t), "grid") for t in ticks(*self.y_range)]
        out += [text(self.left - 6, self.y(t) + 4, show(t), "end") for t in ticks(*self.y_range)]
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


def plain(value: float) -> str:
    """A number without trailing zeros."""
    return f"{value:.6g}"


def text(x: float, y: float, words: str, style: str = "") -> str:
    """Escaped words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def path(points: Sequence[tuple[float, float]], opacity: float = 1.0, style: str = "") -> str:
    """A line through pixel positions."""
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{steps}" class="{f"line {style}".rstrip()}" stroke-opacity="{opacity:.2f}"/>'


def band(lower: Sequence[tuple[float, float]], upper: Sequence[tuple[float, float]]) -> str:
    """The area between two lines."""
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*lower, *reversed(upper)))
    return f'<polygon points="{steps}" class="band"/>'


def style_of(kind: int) -> int:
    """Our model (0) keeps its mark to itself; many baselines take turns."""
    return 0 if kind == 0 else 1 + (kind - 1) % _BASELINE_MARKS


def mark(kind: int, x: float, y: float, hover: str = "", *, hollow: bool = False, size: float = 4.0) -> str:
    """A mark whose shape and colour both tell the series, so that it survives print and colour blindness."""
    r, shape = size, style_of(kind)
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


def figure(width: float, height: float, title: str, desc: str, *body: str) -> str:
    """The whole figure, with what a screen reader says."""
    head = f"<title>{escape(title)}</title><desc>{escape(desc)}</desc>"
    return f'<svg class="fig" viewBox="0 0 {width:g} {height:g}" role="img">{head}{"".join(body)}</svg>'


def swatch(kind: int) -> str:
    """The mark of series `kind`, for a legend."""
    return f'<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">{mark(kind, 7, 7)}</svg>'


def with_interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    """An estimate in words."""
    if estimate.value is None:
        return "undefined"
    if estimate.low is None or estimate.high is None:
        return show(estimate.value)
    return f"{show(estimate.value)} ({show(estimate.low)} to {show(estimate.high)})"
