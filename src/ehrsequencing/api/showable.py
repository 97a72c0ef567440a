"""What may be shown of an evaluation, and at which landmark, cause and horizon.

Of real people, only what may be shared: small counts are hidden, and metrics and curves that would give them away are
left out, as in `metrics.json`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ehrsequencing.api import curves
from ehrsequencing.api.predictions import days_of
from ehrsequencing.config import format_days
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.disclosure.counts import publish
from ehrsequencing.disclosure.derived import disclose
from ehrsequencing.disclosure.shared import shared
from ehrsequencing.disclosure.small_counts import exact


class Showable:
    """The parts of an evaluation's exact result that may be shown.

    Attributes:
        result: The exact result.
        simulated: Whether the data is simulated, so that everything may be shown.
    """

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result
        self.simulated = bool(result["data"].get("simulated"))

    @cached_property
    def told(self) -> dict[str, Any]:
        """The content of `metrics.json`."""
        return self.result if self.simulated else shared(self.result)

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """The result that figures are drawn from, without what would give a hidden count away."""
        return self.result if self.simulated else disclose(self.result, self._counts)

    @cached_property
    def _counts(self) -> dict[Any, str]:
        """Texts of the counts that may be told of real people."""
        return {**publish(self.result)}

    def rows(self, name: str, place: dict[str, Any], *counts: tuple[Any, ...]) -> list[Any]:
        """The rows of a figure at a place; of real people none where one of these counts is not exact."""
        cell = (place["landmark"], place["cause"], place["horizon"])
        texts = (
            []
            if self.simulated
            else [self._counts.get((first, *cell, *rest), "hidden") for first, *rest in counts]
        )
        return curves.at_place(self.drawn[name], **place) if all(map(exact, texts)) else []

    def hidden(self, place: dict[str, Any]) -> tuple[bool, bool]:
        """Whether nothing may be drawn of how many had the event there, and whether risks must be rounded for it."""
        if self.simulated:
            return False, False
        events = self._counts.get(
            ("by", place["landmark"], place["cause"], place["horizon"]), "hidden"
        )
        at_risk = self._counts.get(("at_risk", place["landmark"]), "hidden")
        return events[:1] in "<h" or at_risk[:1] in "<h", not (exact(events) and exact(at_risk))

    # ---- landmarks, causes and horizons ------------------------------------------------------------------------

    def place(self, horizon: Any, cause: str | None, landmark: Any) -> tuple[dict[str, Any], str]:
        """Landmark, cause and horizon of a figure, and its title.

        Raises:
            EhrseqError: One of them was not evaluated.
        """
        known = self.result["horizons_days"]
        days = main_horizon(known) if horizon is None else self.horizons([horizon])[0]
        cause = self.result["causes"][0] if cause is None else cause
        if cause not in self.result["causes"]:
            fix = f"use one of {', '.join(self.result['causes'])}"
            raise EhrseqError(f"there is no cause {cause!r}", where="cause", fix=fix)
        since = self.landmark(landmark)
        later = "" if since == 0 else f", {format_days(since)} after the index"
        return {
            "landmark": since,
            "cause": cause,
            "horizon": days,
        }, f"{cause} by {format_days(days)}{later}"

    def landmark(self, landmark: str | float | None) -> float:
        """Days from the index to a landmark; None: the first one."""
        known = self.result["landmarks_days"]
        return (
            float(known[0]) if landmark is None else _known("landmark", days_of(landmark)[0], known)
        )

    def horizons(self, asked: Sequence[str | float] | None) -> list[float]:
        """Days of horizons; None: all of them."""
        known = self.result["horizons_days"]
        return (
            known if asked is None else [_known("horizon", days, known) for days in days_of(asked)]
        )


def _known(what: str, days: float, known: Sequence[float]) -> float:
    if not any(abs(days - one) < 1e-9 for one in known):
        fix = f"use one of {', '.join(map(format_days, known))}"
        raise EhrseqError(f"{format_days(days)} was not evaluated", where=what, fix=fix)
    return float(days)


def main_horizon(horizons_days: Sequence[float]) -> float:
    """The horizon that a card tells of: the middle one."""
    return float(horizons_days[len(horizons_days) // 2])
