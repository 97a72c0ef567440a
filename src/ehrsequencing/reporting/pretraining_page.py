"""`report.html` of a pretrained model: what it learned from records without labels, beside simple guesses."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ehrsequencing.reporting.chart import Chart, swatch, ticks
from ehrsequencing.reporting.pretraining import GUESSERS, OPTIMISTIC, TOP, losses_of, shown
from ehrsequencing.reporting.pretraining_verdict import verdict_of
from ehrsequencing.reporting.report import environment

_WIDTH, _HEIGHT = 430.0, 260.0


def render_pretraining(results: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str:
    """The page as a string of HTML, without a script.

    Args:
        results: The content of `pretraining.json`.
        history: One row an epoch, as in `history.jsonl`.
    """
    objectives = [
        {
            "name": name,
            "loss": Markup(
                draw_loss(
                    name, history, results["best_epoch"], found["measures"].get("frequency loss")
                )
            ),
            "recall": _recall(found) if f"model recall@{TOP[0]}" in found["measures"] else None,
            "losses": [
                (what, ours, baseline) for what, ours, baseline in losses_of(found["measures"])
            ],
        }
        for name, found in results["objectives"].items()
    ]
    guessers = [
        (Markup(swatch(kind)), shown(who))
        for kind, who in enumerate(GUESSERS)
        if who != "frequency"
    ]
    page = {
        "results": results,
        "objectives": objectives,
        "guessers": guessers,
        "verdict": verdict_of(results),
        "optimistic": OPTIMISTIC,
        "top": TOP,
    }
    return environment().get_template("pretraining.html.jinja").render(page)


def _recall(found: Mapping[str, Any]) -> dict[str, Any]:
    """Recall@k of each guesser: a figure, and lines of a table."""
    measures = found["measures"]
    rows = [(shown(who), [f"{measures[f'{who} recall@{k}']:.3f}" for k in TOP]) for who in GUESSERS]
    return {"figure": Markup(draw_recall(found)), "rows": rows}


def draw_loss(
    name: str,
    history: Sequence[Mapping[str, Any]],
    best_epoch: int,
    by_frequency: float | None = None,
) -> str:
    """The loss of one objective on the tuning split, epoch by epoch, with that of frequencies where it is known."""
    epochs, losses = [row["epoch"] for row in history], [row[f"tuning_{name}"] for row in history]
    ends = [*losses, *([] if by_frequency is None else [by_frequency])]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low) or 0.1
    widest = max(len(f"{tick:g}") for tick in ticks(low - room, high + room))
    x, y = (1, max(2, epochs[-1])), (low - room, high + room)
    chart = Chart(_WIDTH, _HEIGHT, x, y, left=32 + 7.0 * widest)
    chart.y_axis("loss, nats", lambda value: f"{value:g}")
    chart.x_axis("epoch", lambda value: f"{value:g}", _whole(epochs[-1]))
    if by_frequency is not None:
        chart.line(x[0], by_frequency, x[1], by_frequency, "reference")
        above = by_frequency - low < 0.8 * (high - low)
        chart.text(x[1], by_frequency, "by frequencies", "end muted", dy=-5 if above else 13)
        chart.told.append(f"By frequencies {by_frequency:.3f}")
    chart.path(epochs, losses)
    for epoch, loss in zip(epochs, losses, strict=True):
        chart.mark(0, epoch, loss, f"epoch {epoch}: {loss:.4f}", hollow=epoch != best_epoch)
    chart.told.append(
        f"From {losses[0]:.3f} to {losses[-1]:.3f}; the weights of epoch {best_epoch} were kept"
    )
    return chart.svg(f"Tuning loss of {name} by epoch")


def _whole(last: int) -> list[float]:
    """About six epochs for an axis."""
    return [float(epoch) for epoch in range(1, last + 1, max(1, last // 6))]


def draw_recall(found: Mapping[str, Any]) -> str:
    """How many more targets are among the first k guesses than with "most frequent first", in percentage points.

    Args:
        found: Measures of one objective, and the model's gains with their intervals.
    """
    measures, gains = found["measures"], found.get("gains", {})
    base = [measures[f"frequency recall@{k}"] for k in TOP]
    over = {
        who: [100 * (measures[f"{who} recall@{k}"] - b) for k, b in zip(TOP, base, strict=True)]
        for who in GUESSERS
        if who != "frequency"
    }
    bounds = [gains.get(f"recall@{k}", {}) for k in TOP]
    whiskers = [
        (100 * b["low"], 100 * b["high"]) if b.get("low") is not None else None for b in bounds
    ]
    ends = [
        0.0,
        *(v for values in over.values() for v in values),
        *(e for pair in whiskers if pair for e in pair),
    ]
    room = 0.1 * (max(ends) - min(ends)) or 1.0
    chart = Chart(
        _WIDTH,
        _HEIGHT,
        (0.6, len(TOP) + 0.4),
        (min(ends) - room, max(ends) + room),
        left=60,
        bottom=52,
    )
    chart.y_axis("points over most frequent first", lambda value: f"{value:+g}" if value else "0")
    bottom = chart.y.low
    for place, (k, b) in enumerate(zip(TOP, base, strict=True), start=1):
        chart.text(place, bottom, f"first {k}" if k > 1 else "first", "mid", dy=16)
        chart.text(place, bottom, f"({b:.0%})", "mid muted", dy=30)
    chart.line(0.6, bottom, len(TOP) + 0.4, bottom, "axis")
    chart.text(
        (len(TOP) + 1) / 2,
        bottom,
        "guesses (in brackets: share found by most frequent first)",
        "mid",
        dy=47,
    )
    chart.line(0.6, 0.0, len(TOP) + 0.4, 0.0, "reference")
    for who, values in over.items():
        number = GUESSERS.index(who)
        aside = -0.06 if number == 0 else 0.06
        for place, value in enumerate(values, start=1):
            interval = whiskers[place - 1] if number == 0 else None
            if interval is not None:
                chart.whisker(0, (place + aside, place + aside), interval)
            chart.mark(number, place + aside, value, f"{shown(who)}: {value:+.1f} points")
        chart.told.append(f"{shown(who)}: {', '.join(f'{value:+.1f}' for value in values)} points")
    chart.told.append(f"most frequent first: {', '.join(f'{b:.3f}' for b in base)}")
    return chart.svg("Recall, over most frequent first")
