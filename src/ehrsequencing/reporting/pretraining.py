"""A pretraining's answer, its lines in a terminal and its page: what was learned, beside simple guesses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ehrsequencing.reporting.chart import Chart, swatch, ticks
from ehrsequencing.reporting.report import environment

TOP_K = 10  # of the recall that the answer is about
_GUESSED = {
    "masked_codes": "codes taken from a visit",
    "time_to_code": "codes recorded next",
}


@dataclass(frozen=True)
class Verdict:
    """Whether anything was learned, and what.

    Attributes:
        learned: Whether the interval of one objective's gain over frequencies lies above zero.
        headline: The answer, a sentence.
        parts: One sentence an objective.
    """

    learned: bool
    headline: str
    parts: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """For a terminal."""
        return (self.headline, *(f"  {part}" for part in self.parts))


def verdict_of(results: Mapping[str, Any]) -> Verdict:
    """The answer.

    Args:
        results: The content of `pretraining.json`; without `gains` nothing is concluded.
    """
    found = {name: one for name, one in results["objectives"].items() if one.get("gains")}
    if not found:
        return Verdict(
            False,
            "Too little was measured on tuning subjects to say whether anything was learned.",
            (),
        )
    gains = {name: one["gains"][f"recall@{TOP_K}"] for name, one in found.items()}
    learned = [name for name, gain in gains.items() if gain["low"] is not None and gain["low"] > 0]
    parts = tuple(_part(name, found[name], gains[name]) for name in found)
    if not learned:
        return Verdict(False, "Nothing was learned that frequencies do not tell.", parts)
    if len(learned) == len(found):
        return Verdict(True, "The model guesses better than frequencies do.", parts)
    return Verdict(
        True,
        f"The model guesses better than frequencies do in {' and '.join(learned)} alone.",
        parts,
    )


def _part(name: str, found: Mapping[str, Any], gain: Mapping[str, Any]) -> str:
    """One objective: what it guesses, how often, and how often frequencies do."""
    measures, measure = found["measures"], f"recall@{TOP_K}"
    ours, frequency = (f"{measures[f'{who} {measure}']:.0%}" for who in GUESSERS)
    return (
        f"{name}: its first {TOP_K} guesses hold {ours} of the {_GUESSED.get(name, 'codes')}, and those of most "
        f"frequent first {frequency}: a gain of {_percentage_points(gain)} percentage points."
    )


def _percentage_points(gain: Mapping[str, Any]) -> str:
    """A gain with its interval."""
    value, low, high = (
        None if gain[key] is None else 100 * gain[key] for key in ("value", "low", "high")
    )
    if value is None:
        return "an unknown number of"
    around = "" if low is None or high is None else f" ({low:+.1f} to {high:+.1f})"
    return f"{value:+.1f}{around}".replace("-", "−")


_LOSSES = {"masked_codes": "nats a code"}  # of the others: nats a visit
GUESSERS = ("model", "frequency")
TOP = (1, 5, 10)
OPTIMISTIC = "tuning subjects also chose the epoch, so that the numbers are slightly optimistic"


def pretraining_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a terminal: held-out losses and recalls of every objective."""
    yield from verdict_of(results).lines
    yield f"tuning split, {results['targets']} target codes, best epoch {results['best_epoch']}; {OPTIMISTIC}"
    for name, found in results["objectives"].items():
        measures = found["measures"]
        yield f"{name} (weight {found['weight']:g}, losses in {_LOSSES.get(name, 'nats a visit')})"
        for loss, ours, baseline in losses_of(measures):
            yield f"  {loss:<28} {ours:8.3f}" + (
                f"   frequencies {baseline:8.3f}" if baseline is not None else ""
            )
        if f"model recall@{TOP[0]}" in measures:
            yield f"  recall@{', @'.join(map(str, TOP))}"
            for who in GUESSERS:
                values = "  ".join(f"{measures[f'{who} recall@{k}']:.3f}" for k in TOP)
                yield f"    {shown(who):<26} {values}"


def transfer_lines(started_from: Mapping[str, Any] | None) -> Iterator[str]:
    """Lines of a terminal: how many codes of a training correspond to codes of the model that it starts from."""
    if started_from is None:
        return
    overlap = started_from["overlap"]
    found = [
        f"{each['share']:.0%} by {reason}"
        for reason, each in overlap.items()
        if reason != "none" and each["codes"]
    ]
    yield (
        f"starts from {started_from['folder']}: {', '.join(found) or 'none'} of the records' codes;"
        f" {overlap['none']['share']:.0%} not found"
    )


FEW_FOUND = 0.5  # share of the records' codes below which little is transferred


def transfer_advice(started_from: Mapping[str, Any] | None) -> str | None:
    """What to do where the model that a training starts from knows few of the records' codes; None where it does."""
    if (
        started_from is None
        or (found := 1.0 - started_from["overlap"]["none"]["share"]) >= FEW_FOUND
    ):
        return None
    return (
        f"little is transferred: the model knows {found:.0%} of the records' codes. Give codes the names of the other"
        " data, or name their parents in metadata/codes.parquet. Compare with a training without --init."
    )


def losses_of(measures: Mapping[str, float]) -> Iterator[tuple[str, float, float | None]]:
    """Name, our loss, and that of frequencies where it is known."""
    for name, value in measures.items():
        if name.endswith("loss") and not name.startswith("frequency"):
            yield name, value, measures.get(f"frequency {name}")


def shown(who: str) -> str:
    """Who guesses, in words."""
    return {"model": "model", "frequency": "most frequent first"}[who]


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
