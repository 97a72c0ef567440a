"""What a pretraining learned, as an answer in words: each objective beside guesses by frequency."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOP_K = 10  # of the recall that the answer is about
_GUESSED = {
    "masked_codes": "codes taken from a visit",
    "next_visit": "codes of the next visit",
    "marked_time": "codes of the next visit",
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
        results: The content of `pretraining.json`; without `gains`, of an earlier version, nothing is concluded.
    """
    found = {name: one for name, one in results["objectives"].items() if one.get("gains")}
    if not found:
        return Verdict(
            False,
            "Too little was measured on tuning subjects to say whether anything was learned.",
            (),
        )
    gains = {name: main_gain(one["gains"]) for name, one in found.items()}
    learned = [
        name for name, (_, gain) in gains.items() if gain["low"] is not None and gain["low"] > 0
    ]
    parts = tuple(_part(name, found[name], *gains[name]) for name in found)
    if not learned:
        return Verdict(False, "Nothing was learned that frequencies do not tell.", parts)
    if len(learned) == len(found):
        return Verdict(True, "The model guesses better than frequencies do.", parts)
    return Verdict(
        True,
        f"The model guesses better than frequencies do in {' and '.join(learned)} alone.",
        parts,
    )


def main_gain(gains: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The measure that an objective is judged by, and its gain over frequencies."""
    name = f"recall@{TOP_K}"
    return (name, gains[name]) if name in gains else next(iter(gains.items()))


def _part(name: str, found: Mapping[str, Any], measure: str, gain: Mapping[str, Any]) -> str:
    """One objective: what it guesses, how often, and how often frequencies do."""
    measures = found["measures"]
    if not measure.startswith("recall"):
        text = f"{name}: the loss of telling a recorded visit from a swapped one is {measures[measure]:.3f} nats, by"
        chance = measures[f"frequency {measure}"]
        return f"{text} chance {chance:.3f}: a gain of {_between(gain, scale=1.0, digits=3)} nats."
    ours, frequency, last = (
        f"{measures[f'{who} {measure}']:.0%}" for who in ("model", "frequency", "last visit")
    )
    return (
        f"{name}: its first {TOP_K} guesses hold {ours} of the {_GUESSED.get(name, 'codes')}, and those of most "
        f"frequent first {frequency}: a gain of {_between(gain, scale=100.0, digits=1)} percentage points. "
        f"Last visit's codes first hold {last}."
    )


def _between(gain: Mapping[str, Any], *, scale: float, digits: int) -> str:
    """A gain with its interval."""
    value, low, high = (
        None if gain[key] is None else gain[key] * scale for key in ("value", "low", "high")
    )
    if value is None:
        return "an unknown number of"
    around = "" if low is None or high is None else f" ({low:+.{digits}f} to {high:+.{digits}f})"
    return f"{value:+.{digits}f}{around}".replace("-", "−")
