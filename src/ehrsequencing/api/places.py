"""The landmark, cause and horizon of a figure, among those that were evaluated."""

from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.api.predictions import days_of
from ehrsequencing.config import format_days
from ehrsequencing.core.errors import EhrseqError


def place_of(
    result: Mapping[str, Any], horizon: Any, cause: str | None, landmark: Any
) -> tuple[dict[str, Any], str]:
    """Landmark, cause and horizon of a figure, and its title.

    Raises:
        EhrseqError: One of them was not evaluated.
    """
    known = result["horizons_days"]
    days = main_horizon(known) if horizon is None else horizons_of(result, [horizon])[0]
    cause = result["causes"][0] if cause is None else cause
    if cause not in result["causes"]:
        fix = f"use one of {', '.join(result['causes'])}"
        raise EhrseqError(f"there is no cause {cause!r}", where="cause", fix=fix)
    since = landmark_of(result, landmark)
    later = "" if since == 0 else f", {format_days(since)} after the index"
    place = {"landmark": since, "cause": cause, "horizon": days}
    return place, f"{cause} by {format_days(days)}{later}"


def landmark_of(result: Mapping[str, Any], landmark: str | float | None) -> float:
    """Days from the index to a landmark; None: the first one."""
    known = result["landmarks_days"]
    if landmark is None:
        return float(known[0])
    return _known("landmark", days_of(landmark)[0], known)


def horizons_of(result: Mapping[str, Any], horizons: Sequence[str | float] | None) -> list[float]:
    """Days of horizons; None: all of them."""
    known: list[float] = result["horizons_days"]
    if horizons is None:
        return known
    return [_known("horizon", days, known) for days in days_of(horizons)]


def _known(what: str, days: float, known: Sequence[float]) -> float:
    if not any(abs(days - one) < 1e-9 for one in known):
        fix = f"use one of {', '.join(map(format_days, known))}"
        raise EhrseqError(f"{format_days(days)} was not evaluated", where=what, fix=fix)
    return float(days)


def main_horizon(horizons_days: Sequence[float]) -> float:
    """The horizon that a card tells of: the middle one."""
    return float(horizons_days[len(horizons_days) // 2])
