"""`report.html` of a pretrained model: what it learned from records without labels, beside simple guesses."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ehrsequencing.reporting.chart import Chart, swatch
from ehrsequencing.reporting.pretraining import GUESSERS, KINDS, TOP, losses_of, shown
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
            "loss": Markup(draw_loss(name, history, results["best_epoch"])),
            "recalls": [
                Markup(draw_recall(found["measures"], kind)) for kind in KINDS if _has(found["measures"], kind)
            ],
            "losses": [(what, ours, baseline) for what, ours, baseline in losses_of(found["measures"])],
        }
        for name, found in results["objectives"].items()
    ]
    guessers = [(Markup(swatch(kind)), shown(who)) for kind, who in enumerate(GUESSERS)]
    page = {"results": results, "objectives": objectives, "guessers": guessers, "neighbours": results.get("neighbours")}
    return environment().get_template("pretraining.html.jinja").render(page)


def _has(measures: Mapping[str, float], kind: str) -> bool:
    return f"model{kind} recall@{TOP[0]}" in measures


def draw_loss(name: str, history: Sequence[Mapping[str, Any]], best_epoch: int) -> str:
    """The loss of one objective on the tuning split, epoch by epoch."""
    epochs, losses = [row["epoch"] for row in history], [row[f"tuning_{name}"] for row in history]
    room = 0.05 * (max(losses) - min(losses)) or 0.1
    chart = Chart(_WIDTH, _HEIGHT, (1, max(2, epochs[-1])), (min(losses) - room, max(losses) + room), left=58)
    chart.y_axis("loss, nats", lambda value: f"{value:g}")
    chart.x_axis("epoch", lambda value: f"{value:g}", _whole(epochs[-1]))
    chart.path(epochs, losses)
    for epoch, loss in zip(epochs, losses, strict=True):
        chart.mark(0, epoch, loss, f"epoch {epoch}: {loss:.4f}", hollow=epoch != best_epoch)
    chart.told.append(f"From {losses[0]:.3f} to {losses[-1]:.3f}; the weights of epoch {best_epoch} were kept")
    return chart.svg(f"Tuning loss of {name} by epoch")


def _whole(last: int) -> list[float]:
    """About six epochs for an axis."""
    return [float(epoch) for epoch in range(1, last + 1, max(1, last // 6))]


def draw_recall(measures: Mapping[str, float], kind: str) -> str:
    """Recall@k of the model and of two simple guesses."""
    chart = Chart(_WIDTH, _HEIGHT, (0.6, len(TOP) + 0.4), (0.0, 1.0))
    chart.y_axis("recall", lambda value: f"{value:g}")
    for place, k in enumerate(TOP, start=1):
        chart.text(place, 0.0, f"first {k}" if k > 1 else "first", "mid", dy=16)
    chart.line(0.6, 0.0, len(TOP) + 0.4, 0.0, "axis")
    chart.text((len(TOP) + 1) / 2, 0.0, f"guesses; {KINDS[kind]}", "mid", dy=33)
    for number, who in enumerate(GUESSERS):
        values = [measures.get(f"{who}{kind} recall@{k}") for k in TOP]
        known = [(place, value) for place, value in enumerate(values, start=1) if value is not None]
        if not known:
            continue
        chart.path([place for place, _ in known], [value for _, value in known], "" if number == 0 else "k1 thin")
        for place, value in known:
            chart.mark(number, place, value, f"{shown(who)}: {value:.3f}")
        chart.told.append(f"{shown(who)}: {', '.join(f'{value:.3f}' for _, value in known)}")
    return chart.svg(f"Recall of {KINDS[kind]}")
