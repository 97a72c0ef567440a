"""What a pretraining learned, as an answer in words: each objective beside guesses by frequency."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    ours, frequency, last = (
        f"{measures[f'{who} {measure}']:.0%}" for who in ("model", "frequency", "last visit")
    )
    return (
        f"{name}: its first {TOP_K} guesses hold {ours} of the {_GUESSED.get(name, 'codes')}, and those of most "
        f"frequent first {frequency}: a gain of {_percentage_points(gain)} percentage points. "
        f"Last visit's codes first hold {last}."
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
