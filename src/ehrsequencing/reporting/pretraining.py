"""What a pretraining measured, as lines of text: each objective beside its baselines."""

from collections.abc import Iterator, Mapping
from typing import Any

from ehrsequencing.reporting.pretraining_verdict import verdict_of

_LOSSES = {"masked_codes": "nats a code"}  # of the others: nats a visit
GUESSERS = ("model", "frequency", "last visit")
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
    return {
        "model": "model",
        "frequency": "most frequent first",
        "last visit": "last visit's codes first",
    }[who]
