"""What a pretraining measured, as lines of text: each objective beside its baselines."""

from collections.abc import Iterator, Mapping
from typing import Any

from ehrsequencing.reporting.pretraining_verdict import verdict_of

_LOSSES = {"masked_codes": "nats a code"}  # of the others: nats a visit
GUESSERS = ("model", "frequency", "last visit")
KINDS = {
    "": "all codes",
    " onset": "codes new to the subject",
    " repeat": "codes that the subject had",
}
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
        for kind, text in KINDS.items():
            if f"model{kind} recall@{TOP[0]}" not in measures:
                continue
            yield f"  recall@{', @'.join(map(str, TOP))} of {text}"
            for who in GUESSERS:
                values = "  ".join(f"{measures[f'{who}{kind} recall@{k}']:.3f}" for k in TOP)
                yield f"    {shown(who):<26} {values}"
        yield from _numbers(measures)


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
        " data, or describe them and their parents in metadata/codes.parquet. Compare with a training without --init."
    )


def losses_of(measures: Mapping[str, float]) -> Iterator[tuple[str, float, float | None]]:
    """Name, our loss, and that of frequencies where it is known."""
    for name, value in measures.items():
        if name.endswith("loss") and not name.startswith("frequency"):
            yield name, value, measures.get(f"frequency {name}")


def _numbers(measures: Mapping[str, float]) -> Iterator[str]:
    """Squared errors of the ranks of numbers, which have variance 1."""
    if not measures.get("mean rank error"):
        return
    yield (
        f"  squared error of ranks       {measures['model rank error']:8.3f}"
        f"   mean rank   {measures['mean rank error']:8.3f}"
    )
    yield (
        f"  ... with a number before     {measures['model rank error, known before']:8.3f}"
        f"   last rank   {measures['last rank error, known before']:8.3f}"
    )


def shown(who: str) -> str:
    """Who guesses, in words."""
    return {
        "model": "model",
        "frequency": "most frequent first",
        "last visit": "last visit's codes first",
    }[who]
