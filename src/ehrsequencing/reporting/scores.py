"""The metric values of an evaluation as tables: by cause, landmark and horizon, with marks for the best and the off.

In: the content of `metrics.json`. Out: blocks of cells for the page, and look-ups for its figures and sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.metrics.registry import METRICS, in_columns
from ehrsequencing.reporting.chart import Estimate
from ehrsequencing.reporting.wording import interval

Row = Mapping[str, Any]
# landmark, cause, horizon; None: all of them together
Place = tuple[float | None, str | None, float | None]
_KEY = ("model", "landmark_days", "cause", "horizon_days", "metric")


@dataclass(frozen=True)
class Cell:
    """One value of the metric table."""

    state: str  # value | undefined | absent | hidden
    text: str = ""
    interval: str = ""
    best: bool = False
    off: bool = False


class Scores:
    """Metric values and differences to the baselines, by (model, landmark, cause, horizon, metric).

    Attributes:
        models: All models, ours first.
        rivals: The baselines; the truth of a simulation is none.
        landmarks: In days, rising; None (all prediction times together) last.
        undefined: How many metric values are undefined, withheld ones aside.
    """

    def __init__(self, m: Mapping[str, Any]) -> None:
        self.m = m
        self.values: dict[tuple[Any, ...], Row] = {
            tuple(row[k] for k in _KEY): row for row in m["metrics"]
        }
        self.gaps: dict[tuple[Any, ...], Row] = {
            tuple(row[k] for k in _KEY): row for row in m.get("differences") or []
        }
        self.models: list[str] = list(
            dict.fromkeys([*m["models"], *(row["model"] for row in m["metrics"])])
        )
        truth = (m.get("oracle") or {}).get("name")
        self.rivals = [name for name in self.models[1:] if name != truth]
        self.causes: list[str | None] = list(
            dict.fromkeys([*m["causes"], *(row["cause"] for row in m["metrics"])])
        )
        present = dict.fromkeys(row["landmark_days"] for row in m["metrics"])
        self.landmarks: list[float | None] = sorted(present, key=lambda x: (x is None, x))
        self.undefined = sum(row["value"] is None and not row.get("hidden") for row in m["metrics"])

    # ------------------------------------------------------------------------------------------------- look-ups

    def number(
        self, model: str, landmark: float | None, horizon: float | None, metric: str
    ) -> Estimate:
        """Estimate for the cause of interest."""
        row = self.values.get((model, landmark, self.m["causes"][0], horizon, metric), {})
        return Estimate(
            self.models.index(model), model, row.get("value"), row.get("low"), row.get("high")
        )

    def gap(
        self, rival: str, landmark: float | None, horizon: float | None, metric: str
    ) -> Row | None:
        """Our model less a baseline, paired over subjects, for the cause of interest."""
        return self.gaps.get((rival, landmark, self.m["causes"][0], horizon, metric))

    def combinations(self) -> list[tuple[float | None, float | None]]:
        """Every landmark with every horizon."""
        return [
            (landmark, horizon)
            for landmark in self.landmarks
            for horizon in self.m["horizons_days"]
        ]

    def main(self) -> tuple[float | None, float | None]:
        """What the summary rests on: the first landmark, and the longest horizon at which our C is defined there."""
        landmark = self.landmarks[0] if self.landmarks else None
        horizons = self.m["horizons_days"]
        defined = [
            h for h in horizons if self.number(self.models[0], landmark, h, "c").value is not None
        ]
        return landmark, (defined or horizons or [None])[-1]

    def too_few(self, landmark: float | None, horizon: float | None) -> bool:
        """Whether our C there has no interval because subjects or events are too few."""
        row = self.values.get((self.models[0], landmark, self.m["causes"][0], horizon, "c"), {})
        return bool(row.get("reason") == TOO_FEW)

    def strongest(self) -> str | None:
        """The baseline with the best likelihood on the tuning subjects; the first one where a run chose none."""
        named = self.m.get("strongest")
        return named if named in self.rivals else next(iter(self.rivals), None)

    def best(self, place: Place, metric: str) -> str | None:
        """The model whose interval lies wholly on the good side of every other model's; else none."""
        if metric not in METRICS or not METRICS[metric].better:
            return None
        rows = {name: self.values.get((name, *place, metric)) for name in self.models}
        spans = {
            name: span(metric, row)
            for name, row in rows.items()
            if row is not None and row["value"] is not None
        }
        known = {name: ends for name, ends in spans.items() if ends is not None}
        if len(known) < max(len(spans), 2):
            return None
        top = max(known, key=lambda name: known[name][0])
        return (
            top
            if all(known[top][0] > ends[1] for name, ends in known.items() if name != top)
            else None
        )

    # --------------------------------------------------------------------------------------------------- tables

    def blocks(self, part: str) -> list[tuple[str | None, list[dict[str, Any]]]]:
        """Per cause: a table for each landmark, with a group of rows per horizon."""
        out: dict[str | None, list[dict[str, Any]]] = {}
        for cause in self.causes:
            for landmark in self.landmarks:
                columns, over = (
                    self._columns(landmark, cause, part, overall) for overall in (False, True)
                )
                by = [
                    (h, self._rows((landmark, cause, h), columns)) for h in self.m["horizons_days"]
                ]
                overall = self._rows((landmark, cause, None), over)
                horizons = [(h, rows) for h, rows in by if rows]
                if horizons or overall:
                    block = {"landmark": landmark, "columns": columns, "horizons": horizons}
                    out.setdefault(cause, []).append(
                        block | {"overall_columns": over, "overall": overall}
                    )
        return list(out.items())

    def headline(self) -> dict[str, Any]:
        """The small table of the summary: our model beside the strongest baseline at the first landmark."""
        landmark, columns, two = (
            self.main()[0],
            ["c", "ipa", "oe"],
            [*self.models[:1], self.strongest()],
        )
        by = [
            (h, self._rows((landmark, self.m["causes"][0], h), columns))
            for h in self.m["horizons_days"]
        ]
        kept = [(h, [row for row in rows if row[1] in two]) for h, rows in by]
        return {
            "landmark": landmark,
            "columns": columns,
            "horizons": [(h, rows) for h, rows in kept if rows],
        }

    def _columns(
        self, landmark: float | None, cause: str | None, part: str, overall: bool
    ) -> list[str]:
        names = {
            k[4] for k in self.values if (k[1], k[2], k[3] is None) == (landmark, cause, overall)
        }
        known = [
            one.key for one in in_columns(METRICS.values()) if one.key in names and one.part == part
        ]
        return [*known, *(sorted(names - set(METRICS)) if part == "accuracy" else [])]

    def _rows(self, place: Place, columns: Sequence[str]) -> list[tuple[int, str, list[Cell]]]:
        """(mark, model, cells) of each model that has any of the metrics there."""
        best = {metric: self.best(place, metric) for metric in columns}
        present = [
            name
            for name in self.models
            if any((name, *place, metric) in self.values for metric in columns)
        ]
        return [
            (
                self.models.index(name),
                name,
                [self._cell(name, place, metric, best[metric]) for metric in columns],
            )
            for name in present
        ]

    def _cell(self, model: str, place: Place, metric: str, best: str | None) -> Cell:
        row = self.values.get((model, *place, metric))
        if row is None or row["value"] is None:
            hidden = row is not None and row.get("hidden")
            state = "absent" if row is None else "hidden" if hidden else "undefined"
            return Cell(state, str(row["reason"]) if row is not None and hidden else "")
        digits, scale = (
            (METRICS[metric].digits, METRICS[metric].scale) if metric in METRICS else (4, 1.0)
        )
        low, high = row["low"], row["high"]
        around = (
            interval(low, high, lambda end: f"{scale * end:z.{digits}f}") or row.get("reason") or ""
        )
        bounded = low is not None and high is not None
        target = METRICS[metric].target if metric in METRICS else None
        off = target is not None and bounded and not low <= target <= high
        off = (
            off
            or (metric == "ks_p" and row["value"] < 0.05)
            or self._beyond_chance(model, place, metric, row)
        )
        return Cell("value", f"{scale * row['value']:z.{digits}f}", around, best == model, off)

    def _beyond_chance(self, model: str, place: Place, metric: str, row: Row) -> bool:
        chance = (
            self.values.get((model, *place, "ici_null"), {}).get("value")
            if metric == "ici"
            else None
        )
        return chance is not None and row["value"] > chance


def place_of(row: Row) -> tuple[Any, Any, Any]:
    """Landmark, cause and horizon of a row."""
    return row["landmark_days"], row["cause"], row["horizon_days"]


def span(metric: str, row: Row) -> tuple[float, float] | None:
    """Interval with its sign turned so that more is better; the model that is IPA's reference is 0 without one."""
    low, high = row["low"], row["high"]
    if low is None or high is None:
        return (0.0, 0.0) if metric == "ipa" and row["value"] == 0 else None
    return (low, high) if METRICS[metric].better >= 0 else (-high, -low)
