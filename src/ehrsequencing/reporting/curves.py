"""More figures of the report: what acting on a risk is worth, levels of a subgroup, spread over refits, drift."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ehrsequencing.reporting import svg
from ehrsequencing.reporting.figures import Curve, draw_curve
from ehrsequencing.reporting.svg import Estimate


def decision(curves: Sequence[Curve], *, title: str) -> str:
    """Net benefit per 100 subjects over the risk threshold from which one would act; acting on nobody is 0.

    Args:
        curves: Ours first, then others, then acting on everyone (styled grey); y is the net benefit per subject.
        title: Name of the figure.
    """
    scaled = [replace(c, y=_times_100(c.y), low=_times_100(c.low), high=_times_100(c.high)) for c in curves]
    top = max((v for c in scaled for v in c.y if v > 1e-9), default=0.0) * 1.12 or 1.0  # nobody gains: an empty frame
    ends = [x for c in scaled for x in c.x]
    frame = svg.Frame(320, 260, (0.0, max(ends, default=1.0)), (-0.12 * top, top), left=50)
    body = [frame.y_axis("net benefit per 100", svg.plain), frame.x_axis("act from a risk of", svg.percent)]
    body.append(svg.line(frame.left, frame.y(0), 320 - frame.right, frame.y(0), "axis"))
    body += [draw_curve(frame, curve) for curve in reversed([_above(c, -0.12 * top) for c in scaled])]
    told = [
        f"{c.name}: {c.y[0]:.3g} at {svg.percent(c.x[0])} to {c.y[-1]:.3g} at {svg.percent(c.x[-1])}" for c in scaled
    ]
    return svg.figure(320, 260, title, ". ".join(told), *body)


def _above(curve: Curve, floor: float) -> Curve:
    """The curve up to where it leaves the figure downwards."""
    stop = next((k + 1 for k, y in enumerate(curve.y) if y < floor), len(curve.y))
    return replace(curve, x=curve.x[:stop], y=curve.y[:stop], low=curve.low[:stop], high=curve.high[:stop])


def _times_100(values: Sequence[float]) -> list[float]:
    return [100 * v for v in values]


def levels(
    groups: Sequence[tuple[str, Sequence[tuple[str, Estimate]]]], *, title: str, label: str, reference: float | None
) -> str:
    """One row for each level of each group, with its interval and a dashed line.

    Args:
        groups: (group, its levels with their estimates), drawn from top to bottom.
        title: Name of the figure.
        label: Name of the horizontal axis.
        reference: Where the dashed line stands; None: no line.
    """
    found = [v for _, rows in groups for _, e in rows for v in (e.value, e.low, e.high) if v is not None]
    found += [] if reference is None else [reference]
    low, high = min(found, default=0.0), max(found, default=1.0)
    pad, row, head = 0.05 * (high - low) or 0.1, 17.0, 20.0
    height = 48 + sum(head + row * len(rows) for _, rows in groups)
    frame = svg.Frame(440, height, (low - pad, high + pad), (0, 1), left=132, top=4)
    base = height - frame.bottom
    body = [svg.line(frame.x(t), frame.top, frame.x(t), base, "grid") for t in svg.ticks(*frame.x_range)]
    if reference is not None:
        body.append(svg.line(frame.x(reference), frame.top, frame.x(reference), base, "reference"))
    y, told = frame.top, []
    for name, rows in groups:
        body.append(svg.text(4, y + 15, shorten(name), "strong"))
        y += head
        for level, estimate in rows:
            words = svg.with_interval(estimate, _two)
            told.append(f"{name} {level}: {words}")
            body.append(svg.text(14, y + row / 2 + 4, shorten(level)))
            if estimate.value is None:
                body.append(svg.text(frame.left + 8, y + row / 2 + 4, "not shown", "muted"))
            else:
                if estimate.low is not None and estimate.high is not None:
                    ends = frame.x(estimate.low), frame.x(estimate.high)
                    body.append(svg.line(ends[0], y + row / 2, ends[1], y + row / 2, "whisker m0"))
                body.append(
                    svg.mark(estimate.kind, frame.x(estimate.value), y + row / 2, f"{level}: {words}", size=3.4)
                )
            y += row
    return svg.figure(440, height, title, ". ".join(told), *body, frame.x_axis(label, svg.plain))


def shorten(words: str, most: int = 18) -> str:
    """Words that fit beside a row of a figure.

    >>> shorten("ETHNICITY//NOT SPECIFIED"), shorten("60-69")
    ('…//NOT SPECIFIED', '60-69')
    """
    if len(words) <= most:
        return words
    tail = words.rsplit("//", 1)[-1]
    return f"…//{tail}" if tail != words and len(tail) <= most - 3 else words[: most - 1] + "…"


def _two(value: float) -> str:
    return f"{value:.2f}"


@dataclass(frozen=True)
class Spread:
    """Mean predicted risk of some subjects, and the mean lower and upper end of their risks over refits."""

    risk: float
    low: float
    high: float


def instability(groups: Sequence[Spread], *, title: str) -> str:
    """How far a subject's risk moves when the model is made again: a bar per group of subjects of similar risk."""
    top = min(1.0, max((g.high for g in groups), default=1.0) * 1.08) or 0.01
    frame = svg.Frame(320, 300, (0.0, top), (0.0, top), left=50)
    body = [frame.y_axis("range over refits", svg.percent), frame.x_axis("predicted risk", svg.percent)]
    body.append(svg.line(frame.x(0), frame.y(0), frame.x(top), frame.y(top), "reference"))
    told = []
    for g in groups:
        words = f"predicted {svg.percent(g.risk)}: from {svg.percent(g.low)} to {svg.percent(g.high)}"
        told.append(words)
        x = frame.x(min(g.risk, top))
        body.append(svg.line(x, frame.y(min(g.low, top)), x, frame.y(min(g.high, top)), "whisker m0"))
        body.append(svg.mark(0, x, frame.y(min(g.risk, top)), words, size=3.0))
    return svg.figure(320, 300, title, ". ".join(told), *body)


def drift_bar(difference: float, reach: float) -> str:
    """A standardised difference as a small bar left or right of zero, for a table."""
    wide = 44 * min(abs(difference) / reach, 1.0) if reach > 0 else 0.0
    x = 50 - wide if difference < 0 else 50
    style = "bar" if abs(difference) >= 0.1 else "bar other"
    words = f"<title>Standardised difference</title><desc>{difference:+.2f}</desc>"
    bar = f'<rect x="{x:.1f}" y="2" width="{wide:.1f}" height="8" class="{style}"/>'
    zero = svg.line(50, 0, 50, 12, "axis")
    return f'<svg class="fig mini" viewBox="0 0 100 12" role="img">{words}{zero}{bar}</svg>'
