"""The metric table, its marks and its forest plots, and what they say in plain words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ehrsequencing.config import DAYS_PER_YEAR
from ehrsequencing.reporting import figures
from ehrsequencing.reporting.figures import Estimate


@dataclass(frozen=True)
class _Metric:
    """How a metric is printed: `better` is +1, -1, or 0 where neither more nor less is better."""

    name: str
    better: int
    digits: int
    meaning: str


METRICS = {
    "c": _Metric("C", 1, 3, "of two subjects, how often the one with the earlier event was given the higher risk"),
    "auc": _Metric("AUC", 1, 3, "how often a subject with the event by the horizon was given more risk than others"),
    "ipa": _Metric("IPA", 1, 3, "share of the prediction error removed, against giving everyone the same average risk"),
    "brier": _Metric("Brier", -1, 4, "mean squared error of the predicted risk; lower is better"),
    "oe": _Metric("O/E", 0, 2, "events observed for each event expected; 1 is right, above 1 the risks are too low"),
    "slope": _Metric("slope", 0, 2, "calibration slope; 1 is right, below 1 the risks are too extreme"),
    "ici": _Metric("ICI", -1, 4, "mean distance between predicted and observed risk; lower is better"),
    "ibs": _Metric("IBS", -1, 4, "Brier score averaged over time; lower is better"),
    "nll": _Metric("NLL", -1, 4, "negative log-likelihood per prediction; lower is better"),
}  # fmt: skip


def duration(days: float) -> str:
    """Days in words.

    >>> duration(365.25), duration(730.5), duration(30.0), duration(0.25), duration(1234.0)
    ('1 year', '2 years', '30 days', '6 hours', '3.4 years')
    """
    years = days / DAYS_PER_YEAR
    if years >= 2 or (years >= 1 and years % 0.5 == 0):
        amount, unit = f"{round(years, 1):g}", "year"
    elif 0 < days < 1:
        amount, unit = f"{round(days * 24, 1):g}", "hour"
    else:
        amount, unit = f"{round(days, 1):g}", "day"
    return f"{amount} {unit}" + ("" if amount == "1" else "s")


def from_landmark(days: float | None) -> str:
    """Where the clock of a prediction starts."""
    if days is None:
        return "all prediction times together"
    return "at the index" if days == 0 else f"{duration(days)} after the index"


def listed(words: Iterable[str], last: str = "and") -> str:
    """Words as in a sentence: `a, b and c`."""
    *most, final = list(words)
    return f"{', '.join(most)} {last} {final}" if most else final


@dataclass(frozen=True)
class Cell:
    """One value of the metric table."""

    state: str  # value | undefined | absent
    text: str = ""
    interval: str = ""
    best: bool = False
    off: bool = False


class Scores:
    """Metric values by (model, landmark, cause, horizon, metric)."""

    def __init__(self, m: Mapping[str, Any]) -> None:
        self.m, self.values = m, {}
        for row in m["metrics"]:
            key = (row["model"], row["landmark_days"], row["cause"], row["horizon_days"], row["metric"])
            self.values[key] = row
        self.models: list[str] = list(dict.fromkeys([*m["models"], *(row["model"] for row in m["metrics"])]))
        truth = (m.get("oracle") or {}).get("name")
        self.rivals = [name for name in self.models[1:] if name != truth]  # the truth of a simulation is no baseline
        self.causes: list[str | None] = list(dict.fromkeys([*m["causes"], *(row["cause"] for row in m["metrics"])]))
        present = dict.fromkeys(row["landmark_days"] for row in m["metrics"])
        self.landmarks: list[float | None] = sorted(present, key=lambda x: (x is None, x))
        self.undefined = sum(row["value"] is None for row in m["metrics"])

    def number(self, model: str, landmark: float | None, horizon: float | None, metric: str) -> Estimate:
        """Estimate of the cause of interest."""
        row = self.values.get((model, landmark, self.m["causes"][0], horizon, metric), {})
        kind = self.models.index(model)
        return Estimate(kind, model, row.get("value"), row.get("low"), row.get("high"))

    def _columns(self, landmark: float | None, cause: str | None, *, overall: bool) -> list[str]:
        names = {k[4] for k in self.values if (k[1], k[2], k[3] is None) == (landmark, cause, overall)}
        return [*(name for name in METRICS if name in names), *sorted(names - set(METRICS))]

    def _row(
        self, model: str, key: tuple[Any, ...], columns: Sequence[str], best: Mapping[str, str | None]
    ) -> list[Cell]:
        cells = []
        for metric in columns:
            row = self.values.get((model, *key, metric))
            if row is None or row["value"] is None:
                cells.append(Cell("absent" if row is None else "undefined"))
                continue
            digits = METRICS[metric].digits if metric in METRICS else 4
            low, high = row["low"], row["high"]
            interval = "" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"
            off = metric in ("oe", "slope") and bool(interval) and not low <= 1 <= high
            cells.append(Cell("value", f"{row['value']:.{digits}f}", interval, best.get(metric) == model, off))
        return cells

    def _rows(self, key: tuple[Any, ...], columns: Sequence[str]) -> list[tuple[int, str, list[Cell]]]:
        best = {metric: self.best(key, metric) for metric in columns}
        present = [name for name in self.models if any((name, *key, metric) in self.values for metric in columns)]
        return [(self.models.index(name), name, self._row(name, key, columns, best)) for name in present]

    def best(self, key: tuple[float | None, str | None, float | None], metric: str) -> str | None:
        """The model whose interval lies wholly on the good side of every other model's; else none."""
        better = METRICS[metric].better if metric in METRICS else 0
        rows = {name: self.values.get((name, *key, metric)) for name in self.models}
        found = {name: row for name, row in rows.items() if row is not None and row["value"] is not None}
        spans = {name: _span(metric, row, better) for name, row in found.items()}
        if not better or len(spans) < 2 or any(span is None for span in spans.values()):
            return None
        known = {name: span for name, span in spans.items() if span is not None}
        top = max(known, key=lambda name: known[name][0])
        return top if all(known[top][0] > span[1] for name, span in known.items() if name != top) else None

    def blocks(self) -> list[dict[str, Any]]:
        """A table per cause and landmark, with a group of rows per horizon."""
        blocks = []
        for cause in self.causes:
            for landmark in self.landmarks:
                columns = self._columns(landmark, cause, overall=False)
                horizons = [
                    (horizon, rows)
                    for horizon in self.m["horizons_days"]
                    if (rows := self._rows((landmark, cause, horizon), columns))
                ]
                over = self._columns(landmark, cause, overall=True)
                overall = self._rows((landmark, cause, None), over)
                if horizons or overall:
                    where = {"cause": cause, "cause_place": self.causes.index(cause), "landmark": landmark}
                    tables = {"columns": columns, "horizons": horizons, "overall_columns": over, "overall": overall}
                    blocks.append({**where, **tables})
        return blocks

    def forests(self) -> list[tuple[str, list[Markup]]]:
        """Forest plots of C and IPA, per cause."""
        drawn = []
        for cause in self.m["causes"]:
            plots = []
            for metric, reference, floor in (("c", 0.5, 0.0), ("ipa", 0.0, -0.25)):
                groups = []
                for landmark in self.landmarks:
                    for horizon in self.m["horizons_days"]:
                        rows = [
                            Estimate(kind, name, row["value"], row["low"], row["high"])
                            for kind, name in enumerate(self.models)
                            if (row := self.values.get((name, landmark, cause, horizon, metric))) is not None
                        ]
                        if rows:
                            where = "all times" if landmark is None else from_landmark(landmark)
                            where = where.replace("after the index", "after index")
                            groups.append((f"{where}\nby {duration(horizon)}", rows))
                if groups:
                    title = f"{METRICS[metric].name} of each model for {cause}"
                    name = METRICS[metric].name
                    figure = figures.forest(groups, title=title, label=name, reference=reference, floor=floor)
                    plots.append(Markup(figure))
            if plots:
                drawn.append((cause, plots))
        return drawn

    # The words of the summary rest on one cell: the first landmark, the longest horizon at which C is defined.

    def _main(self) -> tuple[float | None, float | None]:
        landmark = self.landmarks[0] if self.landmarks else None
        defined = [
            h for h in self.m["horizons_days"] if self.number(self.models[0], landmark, h, "c").value is not None
        ]
        return landmark, (defined or self.m["horizons_days"] or [None])[-1]

    def headline(self) -> dict[str, Any]:
        """The small table of the summary: our model beside the strongest baseline at the first landmark."""
        landmark = self._main()[0]
        columns = ["c", "ipa", "oe"]
        horizons = [(h, self._rows((landmark, self.m["causes"][0], h), columns)[:2]) for h in self.m["horizons_days"]]
        return {"landmark": landmark, "columns": columns, "horizons": [(h, rows) for h, rows in horizons if rows]}

    def how_well(self) -> str:
        """Ranking, skill and calibration of our model, in sentences."""
        landmark, horizon = self._main()
        if horizon is None:
            return "The model answers per visit, not by a horizon in days; the metrics below say what can be said."
        ours = {name: self.number(self.models[0], landmark, horizon, name) for name in ("c", "ipa", "oe")}
        words = [f"Asked {from_landmark(landmark)} for the risk within {duration(horizon)}:"]
        if (c := ours["c"]).value is None:
            words.append("ranking could not be measured (C is undefined: no pairs of subjects to compare).")
        else:
            words.append(f"of two subjects it ranks the one with the earlier event first in {c.value:.0%} of pairs"
                         f"{_interval(c, 0)}; a coin would reach 50%.")  # fmt: skip
        if (ipa := ours["ipa"]).value is not None:
            change = "smaller" if ipa.value >= 0 else "LARGER"
            words.append(f"Its prediction error is {abs(ipa.value):.0%} {change} than that of giving everyone the same "
                         "average risk.")  # fmt: skip
        if (oe := ours["oe"]).value is not None:
            words.append(f"For every 100 events it expects, {100 * oe.value:.0f} happened{_interval(oe, 2)}.")
        return " ".join(words)

    def compared(self) -> str:
        """Our model against the strongest baseline; a verdict only where intervals allow one."""
        landmark, horizon = self._main()
        if not self.rivals:
            return "With nothing: no baseline was evaluated, so these numbers have no yardstick."
        others = f"On the very same subjects: {listed(self.rivals)}."
        pair = (self.models[0], self.rivals[0])
        ours, rival = (self.number(name, landmark, horizon, "c") for name in pair)
        if ours.value is None or rival.value is None:
            return (
                f"{others} The strongest is {rival.name}; C is undefined for one of the two, so no verdict is possible."
            )
        gap = f"C {ours.value:.3f} against {rival.value:.3f} for {rival.name}, the strongest of them"
        key = (landmark, self.m["causes"][0], horizon)
        two = [_span("c", self.values[name, *key, "c"], 1) for name in pair]
        if two[0] is None or two[1] is None:
            return f"{others} {gap}; without intervals, no verdict is possible."
        if two[0][0] > two[1][1]:
            return f"{others} {gap}: clearly better."
        if two[0][1] < two[1][0]:
            return f"{others} {gap}: clearly WORSE; prefer {rival.name}."
        return f"{others} {gap}: the intervals overlap, so these subjects cannot tell the two apart."

    def not_for(self) -> str:
        """Uses that these numbers do not support."""
        landmark = self._main()[0]
        out = [
            "Not for deciding about a patient: this report is evidence about a model, not a release for care.",
            "Not for people unlike those in the cohort flow, nor for times beyond the longest horizon.",
            "Not for saying what causes the event.",
        ]
        off: dict[str, list[str]] = {}
        for horizon in self.m["horizons_days"]:
            oe = self.number(self.models[0], landmark, horizon, "oe")
            if oe.low is not None and oe.high is not None and not oe.low <= 1 <= oe.high:
                off.setdefault("too low" if oe.low > 1 else "too high", []).append(duration(horizon))
        if off:
            told = listed(f"{how} at {listed(where)}" for how, where in off.items())
            out.append(f"Not for reading the risks as probabilities without recalibration: they are {told}.")
        return " ".join(out)


def _interval(estimate: Estimate, digits: int) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    if digits == 0:
        return f" (95% interval {estimate.low:.0%} to {estimate.high:.0%})"
    return f" (O/E {estimate.value:.{digits}f}, 95% interval {estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def _span(metric: str, row: Mapping[str, Any], better: int) -> tuple[float, float] | None:
    """Interval with the sign turned so that more is better; IPA's reference is 0 by definition, without one."""
    low, high = row["low"], row["high"]
    if low is None or high is None:
        return (0.0, 0.0) if metric == "ipa" and row["value"] == 0 else None
    return (low, high) if better > 0 else (-high, -low)
