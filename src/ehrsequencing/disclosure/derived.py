"""What may be told of numbers that are made of counts: they are hidden with the counts that they would give away.

`counts.py` decides how each count is printed. A count that is hidden there must not come back by a product: with n
subjects, n × Brier / (1 − IPA) is n · p (1 − p), and so the number of events; O/E times the mean risk is another way to
it. `disclose` takes such numbers out of the metrics before anything is drawn or written, so that no table, figure or
sentence can hold them.

| events by the horizon, and all others at risk | what is told of the place |
|---|---|
| both printed as they are | everything |
| both at least 11, but one of them printed roughly | what ranks and what is a shape (C, AUC, slope, ICI …) |
| one of them under 11 | nothing |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ehrsequencing.core.minimum_counts import SMALLEST_COUNT, TOO_FEW
from ehrsequencing.disclosure.small_counts import exact, people
from ehrsequencing.metrics.registry import METRICS

WITHHELD = "withheld"
SUBGROUP_METRICS = ("oe", "auc", "brier")
Level = Literal["all", "shape", "nothing"]
_LIMITS: dict[str, Any] = {"value": None, "low": None, "high": None}


def tells_counts(key: str) -> bool:
    """Whether a metric gives the number of events to who knows the number at risk; an unknown one may."""
    return key not in METRICS or METRICS[key].tells_counts


@dataclass(frozen=True)
class Disclosure:
    """How much may be told of each place (landmark, cause, horizon)."""

    m: Mapping[str, Any]  # the metrics
    shown: Mapping[Any, str]  # the texts of `publish`
    # (landmark, cause, horizon) → (subjects, subjects with the event), as the rows of `metrics` have them
    counts: Mapping[tuple[Any, Any, Any], tuple[int, int]]

    @classmethod
    def of(cls, m: Mapping[str, Any], shown: Mapping[Any, str]) -> "Disclosure":
        """Collect the counts of every place."""
        counts = {
            _place(row): (row["subjects"], row["events"])
            for row in m["metrics"]
            if row.get("events") is not None
        }
        for row in m["at_risk"]:
            for cause, events in row["events"].items():
                for horizon, count in zip(m["horizons_days"], events, strict=False):
                    counts[row["landmark_days"], cause, horizon] = row["subjects"], count
        return cls(m, shown, counts)

    def level(self, landmark: float | None, cause: str | None, horizon: float | None) -> Level:
        """What may be told there; over all horizons (None) by the last of them."""
        if horizon is None:
            horizon = max(self.m["horizons_days"], default=None)
        causes = [cause] if cause in self.m["causes"] else list(self.m["causes"])
        known = [self._count(landmark, one, horizon) for one in causes]
        if any(count is None for count in known):
            return "all"  # nothing at all is told about how many there are
        subjects = min(count[0] for count in known if count)
        events = sum(count[1] for count in known if count)
        if min(events, subjects - events) < SMALLEST_COUNT:
            return "nothing"
        parts = [count[1] for count in known if count]
        if len(parts) > 1 and any(0 < part < SMALLEST_COUNT for part in parts):
            return "shape"  # all causes less the others would give the small one
        return "all" if self._printed(landmark, causes, horizon) else "shape"

    def _count(
        self, landmark: float | None, cause: str | None, horizon: float | None
    ) -> tuple[int, int] | None:
        found = self.counts.get((landmark, cause, horizon))
        if (
            found is None and landmark is None
        ):  # all prediction times: at most those who had it at any time
            events = self.m["events"].get(self.m["split"]) or {}
            if cause in events:
                return sum(events.values()), events[cause]
        return found

    def _printed(
        self, landmark: float | None, causes: Sequence[str | None], horizon: float | None
    ) -> bool:
        if landmark is None:  # the page counts prediction times there, not people
            return True
        texts = [self.shown.get(("by", landmark, cause, horizon)) for cause in causes]
        texts.append(self.shown.get(("at_risk", landmark)))
        return all(text is None or exact(text) for text in texts)

    def row(self, row: Mapping[str, Any], *, value: str = "value") -> dict[str, Any]:
        """A row of a long table, without its numbers where they may not be told; `reason` then says why."""
        level = self.level(*_place(row))
        if level == "nothing" or (level == "shape" and tells_counts(row["metric"])):
            gone = {
                **_LIMITS,
                value: None,
                "hidden": True,
                "reason": TOO_FEW if level == "nothing" else WITHHELD,
            }
            return {**row, **gone, **({"values": []} if "values" in row else {})}
        return dict(row)


def told_of_levels(family: Sequence[Mapping[str, Any]], shown: Mapping[Any, str]) -> list[set[str]]:
    """Which metrics may be told of each level of one family of subgroups (`age`, say).

    None unless at least 11 had the event and 11 had not; where either number is printed roughly, only what ranks (AUC).
    A family that hides a level has no Brier scores: that of all together less the others would be the hidden one.
    """
    told = []
    for row in family:
        key = ("group", row["landmark_days"], row["group"], row["level"])
        n, events = (shown.get((*key, name), "hidden") for name in ("n", "events"))
        smallest = min(people(events), people(n), row["n"] - row["events"])
        is_exact = exact(n) and exact(events)
        names = {name for name in SUBGROUP_METRICS if is_exact or not tells_counts(name)}
        told.append(names if smallest >= SMALLEST_COUNT else set())
    return told if all(told) else [names - {"brier"} for names in told]


def disclose(m: Mapping[str, Any], shown: Mapping[Any, str]) -> dict[str, Any]:
    """The metrics without any number that would give a hidden count away."""
    told = Disclosure.of(m, shown)
    out = dict(m) | {
        name: [told.row(row) for row in m.get(name) or []] for name in ("metrics", "differences")
    }
    for name in ("calibration", "smooth_calibration", "decision", "risk_distribution"):
        out[name] = [
            row for row in m.get(name) or [] if row["landmark_days"] is not None or _open(told, row)
        ]
    if m.get("oracle"):
        differences = [told.row(row) for row in m["oracle"].get("differences") or []]
        out["oracle"] = {**m["oracle"], "differences": differences}
    if m.get("repeated_splits"):
        found = m["repeated_splits"]
        tables = {
            name: [_split_row(told, row) for row in found[name]] for name in ("rows", "differences")
        }
        out["repeated_splits"] = {**found, **tables}
    if m.get("recalibration"):
        sides = {
            side: _recalibration(told, m["recalibration"][side] or {})
            for side in ("before", "after")
        }
        out["recalibration"] = {**m["recalibration"], **sides}
    few = [
        landmark
        for (name, landmark), text in _pairs(shown)
        if name == "at_risk" and people(text) < SMALLEST_COUNT
    ]
    out["at_risk"] = [_without(row, few, "followup_median_days") for row in m["at_risk"]]
    out["follow_up"] = [
        _without(row, few, "median_days", "low", "high") for row in m.get("follow_up") or []
    ]
    visits = m["data"].get("visits") or {}
    own = {
        split: count for split, count in visits.items() if exact(shown.get(("subjects", split), ""))
    }
    return out | {"data": {**m["data"], "visits": own}}


def _place(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return row["landmark_days"], row["cause"], row["horizon_days"]


def _open(told: Disclosure, row: Mapping[str, Any]) -> bool:
    return told.level(*_place(row)) != "nothing"


def _split_row(told: Disclosure, row: Mapping[str, Any]) -> dict[str, Any]:
    """A mean over random splits; one over all places tells nothing of a single one."""
    if row.get("reason") == TOO_FEW:
        return {**row, "mean": None, "low": None, "high": None, "values": [], "hidden": True}
    if row["landmark_days"] is None and row["horizon_days"] is None:
        return dict(row)
    return told.row(row, value="mean")


def _recalibration(told: Disclosure, side: Mapping[str, Any]) -> dict[str, Any]:
    """Calibration before or after, measure by measure: a number, a list by horizon, or a mapping by days."""
    first = min((row["landmark_days"] for row in told.m["at_risk"]), default=None)
    horizons = told.m["horizons_days"]

    def of(cause: str, measure: str, horizon: float | None, value: Any) -> Any:
        level = told.level(first, cause, horizon) if first is not None else "all"
        return None if level == "nothing" or (level == "shape" and tells_counts(measure)) else value

    def measured(cause: str, measure: str, value: Any) -> Any:
        if isinstance(value, Mapping) and "value" not in value:
            return {days: of(cause, measure, float(days), inner) for days, inner in value.items()}
        if isinstance(value, Sequence):
            return [of(cause, measure, h, inner) for h, inner in zip(horizons, value, strict=False)]
        return of(cause, measure, None, value)

    return {
        cause: {
            measure: measured(cause, measure, value) for measure, value in (found or {}).items()
        }
        for cause, found in side.items()
    }


def _pairs(shown: Mapping[Any, str]) -> Iterator[tuple[tuple[Any, Any], str]]:
    return ((key, text) for key, text in shown.items() if len(key) == 2)


def _without(row: Mapping[str, Any], few: Sequence[Any], *names: str) -> dict[str, Any]:
    """A row without its times where under 11 people are at risk: a median of so few is the time of one of them."""
    return {**row, **(dict.fromkeys(names) if row["landmark_days"] in few else {})}
