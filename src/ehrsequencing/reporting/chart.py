"""A small grammar of charts: scales, axes and marks that make up one string of SVG.

In: numbers in the units of the data. Out: an `<svg>` without scripts or outside resources. Colours are CSS variables of
the page (`templates/chart.css.jinja`), so that one chart serves light, dark and printed pages. Every chart has a
`<title>` and a `<desc>` for screen readers, and its marks have a `<title>`, which browsers show on hover.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_BASELINE_SHAPES = 7
Show = Callable[[float], str]  # how a number is printed


class Figure(Markup):
    """A drawn chart: the text of its `<svg>`, and the same numbers as a table.

    Attributes:
        columns: Heads of the table.
        rows: Its lines, as text.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Estimate:
    """A number with its interval. `kind` picks the mark (0 is our model); None means undefined."""

    kind: int
    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


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
class Scale:
    """Maps data from `low` to `high` onto pixels from `start` to `stop`; values outside go to the nearer end."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Pixels of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.stop - self.start)


class Chart:
    """A figure that is being drawn: two scales, the marks so far, and the text for screen readers (`told`).

    Positions are in the units of the data; `dx` and `dy` are pixels. Marks drawn later lie above earlier ones.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        x: Range of the horizontal axis.
        y: Range of the vertical axis. None: y is in pixels from the top, as charts made of rows need it.
        left: Margin in pixels; `right`, `top` and `bottom` likewise.
    """

    def __init__(
        self,
        width: float,
        height: float,
        x: tuple[float, float],
        y: tuple[float, float] | None = None,
        *,
        left: float = 46,
        right: float = 14,
        top: float = 10,
        bottom: float = 38,
    ) -> None:
        self.width, self.height = width, height
        self.x = Scale(*x, left, width - right)
        self.y = Scale(*(y or (height - bottom, top)), height - bottom, top)
        self.drawn: list[str] = []
        self.told: list[str] = []
        self.columns: tuple[str, ...] = ()
        self.rows: list[tuple[str, ...]] = []

    def svg(self, title: str, style: str = "fig") -> Figure:
        """The whole figure."""
        head = f"<title>{escape(title)}</title><desc>{escape('. '.join(self.told))}</desc>"
        box = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        figure = Figure(f'<svg class="{style}" {box} role="img">{head}{"".join(self.drawn)}</svg>')
        figure.columns, figure.rows = self.columns, tuple(self.rows)
        return figure

    # -------------------------------------------------------------------------------------------------------- axes

    def x_axis(self, label: str, show: Show, at: Sequence[float] = ()) -> None:
        """Axis at the bottom with ticks (at round values, unless they are given) and a label."""
        base, low, high = self.y.low, self.x.low, self.x.high
        for tick in at or ticks(low, high):
            self.drawn.append(
                _line(self.x(tick), self.y.start, self.x(tick), self.y.start + 4, "axis")
            )
            self.text(tick, base, show(tick), "mid", dy=16)
        self.line(low, base, high, base, "axis")
        self.text((low + high) / 2, base, label, "mid", dy=33)

    def y_axis(self, label: str, show: Show) -> None:
        """Horizontal grid lines with their values, and a turned label."""
        for tick in ticks(self.y.low, self.y.high):
            self.line(self.x.low, tick, self.x.high, tick, "grid")
            self.text(self.x.low, tick, show(tick), "end", dx=-6, dy=4)
        turned = f"translate(11 {(self.y.start + self.y.stop) / 2:.1f}) rotate(-90)"
        self.drawn.append(f'<text class="mid" transform="{turned}">{escape(label)}</text>')

    def verticals(self, at: Sequence[float], style: str) -> None:
        """Lines from the bottom to the top."""
        for x in at:
            self.line(x, self.y.low, x, self.y.high, style)

    # ------------------------------------------------------------------------------------------------------- marks

    def text(
        self, x: float, y: float, words: str, style: str = "", *, dx: float = 0.0, dy: float = 0.0
    ) -> None:
        """Escaped words."""
        place = f'x="{self.x(x) + dx:.1f}" y="{self.y(y) + dy:.1f}"'
        self.drawn.append(f'<text {place} class="{style}">{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self.drawn.append(_line(self.x(x1), self.y(y1), self.x(x2), self.y(y2), style))

    def whisker(self, kind: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        """The interval of an estimate of series `kind`, from (x[0], y[0]) to (x[1], y[1])."""
        self.line(x[0], y[0], x[1], y[1], f"whisker m{_shape_of(kind)}")

    def bar(self, x: tuple[float, float], top: float, bottom: float, style: str) -> None:
        """A rectangle over the range `x`."""
        left, wide, high = self.x(min(x)), abs(self.x(x[1]) - self.x(x[0])), self.y(top)
        size = f'width="{wide:.1f}" height="{self.y(bottom) - high:.1f}"'
        self.drawn.append(f'<rect x="{left:.1f}" y="{high:.1f}" {size} class="{style}"/>')

    def path(self, x: Sequence[float], y: Sequence[float], style: str = "") -> None:
        """A line through points."""
        steps = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(x, y, strict=True))
        self.drawn.append(f'<polyline points="{steps}" class="{f"line {style}".rstrip()}"/>')

    def band(
        self, x: Sequence[float], low: Sequence[float], high: Sequence[float], style: str = ""
    ) -> None:
        """The area between two lines."""
        around = [*zip(x, low, strict=True), *reversed([*zip(x, high, strict=True)])]
        corners = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in around)
        self.drawn.append(f'<polygon points="{corners}" class="{f"band {style}".rstrip()}"/>')

    def curve(self, curve: Curve) -> None:
        """The line of a curve; our model (kind 0) also shows its band."""
        if curve.kind == 0 and curve.low and curve.high:
            self.band(curve.x, curve.low, curve.high)
        self.path(curve.x, curve.y, curve.style or ("" if curve.kind == 0 else "k1 thin"))

    def mark(
        self,
        kind: int,
        x: float,
        y: float,
        hover: str = "",
        *,
        hollow: bool = False,
        size: float = 4.0,
        style: str = "",
    ) -> None:
        """The mark of series `kind`."""
        more = ' fill-opacity="0"' if hollow else ""
        self.drawn.append(_shape(kind, self.x(x), self.y(y), size, style, more, hover))

    def end_labels(self, ends: Sequence[tuple[float, str]]) -> None:
        """Names beside the right ends of lines, given as (y, name), moved apart so that they do not overlap."""
        step, low, high = 15.0, self.y.stop + 4, self.y.start
        order = sorted(ends, key=lambda end: self.y(end[0]))
        placed, last = list[float](), low - step
        for y, _ in order:
            last = max(self.y(y), last + step)
            placed.append(last)
        heights, ceiling = dict[tuple[float, str], float](), high + step
        for height, end in zip(reversed(placed), reversed(order), strict=True):
            heights[end] = ceiling = min(height, ceiling - step)
        for y, words in ends:
            self.text(self.x.high, y, words, dx=6, dy=heights[y, words] - self.y(y) + 4)


def swatch(kind: int) -> str:
    """The mark of series `kind`, for a legend."""
    return f'<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">{_shape(kind, 7, 7)}</svg>'


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


def _shape_of(kind: int) -> int:
    """Our model (0) keeps its mark to itself; many baselines take turns."""
    return 0 if kind == 0 else 1 + (kind - 1) % _BASELINE_SHAPES


def _shape(
    kind: int, x: float, y: float, r: float = 4.0, style: str = "", more: str = "", hover: str = ""
) -> str:
    """A mark at pixels (x, y). Shape and colour both tell the series, for print and for colour-blind readers."""
    shape = _shape_of(kind)
    corners = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -r - 1), (r + 0.5, r), (-r - 0.5, r)],
        3: [(0, -r - 1.5), (r + 1.5, 0), (0, r + 1.5), (-r - 1.5, 0)],
        4: [(0, r + 1), (r + 0.5, -r), (-r - 0.5, -r)],
        5: [(-r - 1.5, -r / 2), (r + 1.5, -r / 2), (r + 1.5, r / 2), (-r - 1.5, r / 2)],
        6: [(-r / 2, -r - 1), (r / 2, -r - 1), (r / 2, r + 1), (-r / 2, r + 1)],
        7: [(-r - 1, -r), (r + 1, r), (r + 1, -r), (-r - 1, r)],
    }
    look = f'class="{f"m{shape} {style}".rstrip()}"{more}'
    if shape == 0:
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r + 0.3:.1f}" {look}>{_hover(hover)}</circle>'
        )
    outline = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[shape])
    return f'<polygon points="{outline}" {look}>{_hover(hover)}</polygon>'


def _hover(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'
