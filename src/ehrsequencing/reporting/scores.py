"""The metric table, its marks and its forest plots, and what they say in plain words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ehrsequencing.metrics.minimum_counts import TOO_FEW
from ehrsequencing.metrics.registry import in_columns
from ehrsequencing.reporting import figures
from ehrsequencing.reporting.svg import Estimate
from ehrsequencing.reporting.wording import METRICS, difference, duration, from_landmark, listed, size, verdict


@dataclass(frozen=True)
class Cell:
    """One value of the metric table."""

    state: str  # value | undefined | absent | hidden
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
        self.gaps: dict[tuple[Any, ...], Mapping[str, Any]] = {
            (row["model"], row["landmark_days"], row["cause"], row["horizon_days"], row["metric"]): row
            for row in m.get("differences") or []
        }
        truth = (m.get("oracle") or {}).get("name")
        self.rivals = [name for name in self.models[1:] if name != truth]  # the truth of a simulation is no baseline
        self.causes: list[str | None] = list(dict.fromkeys([*m["causes"], *(row["cause"] for row in m["metrics"])]))
        present = dict.fromkeys(row["landmark_days"] for row in m["metrics"])
        self.landmarks: list[float | None] = sorted(present, key=lambda x: (x is None, x))
        self.undefined = sum(row["value"] is None and not row.get("hidden") for row in m["metrics"])

    def number(self, model: str, landmark: float | None, horizon: float | None, metric: str) -> Estimate:
        """Estimate of the cause of interest."""
        row = self.values.get((model, landmark, self.m["causes"][0], horizon, metric), {})
        kind = self.models.index(model)
        return Estimate(kind, model, row.get("value"), row.get("low"), row.get("high"))

    def _columns(self, landmark: float | None, cause: str | None, *, overall: bool, part: str) -> list[str]:
        names = {k[4] for k in self.values if (k[1], k[2], k[3] is None) == (landmark, cause, overall)}
        known = [one.key for one in in_columns(METRICS.values()) if one.key in names and one.part == part]
        return [*known, *(sorted(names - set(METRICS)) if part == "accuracy" else [])]

    def _row(
        self, model: str, key: tuple[Any, ...], columns: Sequence[str], best: Mapping[str, str | None]
    ) -> list[Cell]:
        cells = []
        for metric in columns:
            row = self.values.get((model, *key, metric))
            if row is None or row["value"] is None:
                hidden = row is not None and row.get("hidden")
                state = "absent" if row is None else "hidden" if hidden else "undefined"
                cells.append(Cell(state, str(row["reason"]) if row is not None and hidden else ""))
                continue
            digits, scale = (METRICS[metric].digits, METRICS[metric].scale) if metric in METRICS else (4, 1.0)
            low, high = row["low"], row["high"]
            bounded = low is not None and high is not None
            interval = (
                f"{scale * low:z.{digits}f} to {scale * high:z.{digits}f}" if bounded else row.get("reason") or ""
            )
            target = METRICS[metric].target if metric in METRICS else None
            off = target is not None and bounded and not low <= target <= high
            off = off or (metric == "ks_p" and row["value"] < 0.05) or self._beyond_chance(model, key, metric, row)
            cells.append(Cell("value", f"{scale * row['value']:z.{digits}f}", interval, best.get(metric) == model, off))
        return cells

    def _beyond_chance(self, model: str, key: tuple[Any, ...], metric: str, row: Mapping[str, Any]) -> bool:
        chance = self.values.get((model, *key, "ici_null"), {}).get("value") if metric == "ici" else None
        return chance is not None and row["value"] > chance

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

    def blocks(self, part: str = "accuracy") -> list[dict[str, Any]]:
        """A table per cause and landmark, with a group of rows per horizon.

        Args:
            part: `accuracy` or `calibration`.
        """
        blocks = []
        for cause in self.causes:
            for landmark in self.landmarks:
                columns = self._columns(landmark, cause, overall=False, part=part)
                horizons = [
                    (horizon, rows)
                    for horizon in self.m["horizons_days"]
                    if (rows := self._rows((landmark, cause, horizon), columns))
                ]
                over = self._columns(landmark, cause, overall=True, part=part)
                overall = self._rows((landmark, cause, None), over)
                if horizons or overall:
                    where = {"cause": cause, "cause_place": self.causes.index(cause), "landmark": landmark}
                    tables = {"columns": columns, "horizons": horizons, "overall_columns": over, "overall": overall}
                    blocks.append({**where, **tables})
        return blocks

    def forests(self, shown: Mapping[Any, str]) -> list[tuple[str, list[Markup]]]:
        """Forest plots of C and IPA, per cause, with the number at risk."""
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
                            and not row.get("hidden")
                        ]
                        if rows:
                            groups.append((_where(landmark, horizon, shown), rows))
                if groups:
                    title = f"{METRICS[metric].name} of each model for {cause}"
                    name = METRICS[metric].name
                    figure = figures.forest(groups, title=title, label=name, reference=reference, floor=floor)
                    plots.append(Markup(figure))
            if plots:
                drawn.append((cause, plots))
        return drawn

    def gap_forests(self, shown: Mapping[Any, str]) -> list[Markup]:
        """Our model less each baseline in C and IPA for the cause of interest, and in NLL."""
        plots = []
        for metric in ("c", "ipa", "nll"):
            groups = []
            for landmark, horizon in self._places() if metric != "nll" else [(at, None) for at in self.landmarks]:
                rows = [
                    Estimate(self.models.index(name), name, gap["value"], gap["low"], gap["high"])
                    for name in self.rivals
                    if (gap := self.gap(name, landmark, horizon, metric)) is not None and not gap.get("hidden")
                ]
                if rows:
                    groups.append((_where(landmark, horizon, shown), rows))
            if groups:
                name = METRICS[metric].name
                side = "right" if METRICS[metric].better > 0 else "left"
                title = f"Difference in {name} to each baseline"
                label = f"difference in {name} ({side}: ours is better)"
                plots.append(Markup(figures.forest(groups, title=title, label=label, reference=0.0, floor=-0.5)))
        return plots

    def _places(self) -> list[tuple[float | None, float | None]]:
        return [(landmark, horizon) for landmark in self.landmarks for horizon in self.m["horizons_days"]]

    def gap(self, rival: str, landmark: float | None, horizon: float | None, metric: str) -> Mapping[str, Any] | None:
        """Our model less a baseline, paired over subjects, for the cause of interest."""
        return self.gaps.get((rival, landmark, self.m["causes"][0], horizon, metric))

    # The words of the summary rest on one cell: the first landmark, the longest horizon at which C is defined.

    def _main(self) -> tuple[float | None, float | None]:
        landmark = self.landmarks[0] if self.landmarks else None
        defined = [
            h for h in self.m["horizons_days"] if self.number(self.models[0], landmark, h, "c").value is not None
        ]
        return landmark, (defined or self.m["horizons_days"] or [None])[-1]

    def strongest(self) -> str | None:
        """The baseline that tuning subjects find most likely, everywhere the same; of older runs the first one."""
        named = self.m.get("strongest")
        return named if named in self.rivals else next(iter(self.rivals), None)

    def headline(self) -> dict[str, Any]:
        """The small table of the summary: our model beside the strongest baseline at the first landmark."""
        landmark = self._main()[0]
        columns = ["c", "ipa", "oe"]
        two = [*self.models[:1], self.strongest()]
        horizons = [
            (h, [row for row in self._rows((landmark, self.m["causes"][0], h), columns) if row[1] in two])
            for h in self.m["horizons_days"]
        ]
        return {"landmark": landmark, "columns": columns, "horizons": [(h, rows) for h, rows in horizons if rows]}

    def how_well(self) -> str:
        """Ranking, skill and calibration of our model, in sentences."""
        landmark, horizon = self._main()
        if horizon is None:
            return "The model answers per visit, not by a horizon in days; the metrics below say what can be said."
        ours = {name: self.number(self.models[0], landmark, horizon, name) for name in ("c", "ipa", "oe")}
        words = [f"Asked {from_landmark(landmark)} for the risk within {duration(horizon)}:"]
        if self._too_few(landmark, horizon):
            return " ".join([*words, "too few subjects or events to say."])
        if (c := ours["c"]).value is None:
            words.append("ranking could not be measured (C is undefined: no pairs of subjects to compare).")
        else:
            words.append(f"of two subjects it ranks the one with the earlier event first in {c.value:.0%} of pairs"
                         f"{_interval(c, 0)}; a coin would reach 50%.")  # fmt: skip
        if (ipa := ours["ipa"]).value is not None:
            change = f"{abs(ipa.value):.0%} {'smaller' if ipa.value >= 0 else 'LARGER'} than"
            change = "no smaller than" if abs(ipa.value) < 0.005 else change
            words.append(f"Its prediction error is {change} that of giving everyone the same average risk.")
        if (oe := ours["oe"]).value is not None:
            words.append(f"For every 100 events it expects, {100 * oe.value:.0f} happened{_interval(oe, 2)}.")
        return " ".join(words)

    def compared(self) -> str:
        """Our model against the strongest baseline; a verdict only where intervals allow one."""
        landmark, horizon = self._main()
        if not self.rivals:
            return "With nothing: no baseline was evaluated, so these numbers have no yardstick."
        others = f"On the very same subjects: {listed(self.rivals)}."
        rival = self.strongest() or ""
        pair = (self.models[0], rival)
        ours, theirs = (self.number(name, landmark, horizon, "c") for name in pair)
        if self._too_few(landmark, horizon):
            return f"{others} Nothing is compared: too few subjects or events."
        if ours.value is None or theirs.value is None:
            return f"{others} The strongest is {rival}; C is undefined for one of the two, so no verdict is possible."
        chosen = "by likelihood on the tuning subjects" if self.m.get("strongest") else "the first of the list"
        told = f"C {ours.value:.3f} against {theirs.value:.3f} for {rival}, the strongest of them ({chosen})"
        if any(self.gap(rival, landmark, horizon, metric) for metric in ("c", "ipa")):
            return f"{others} {told}. {self._verdicts(rival, landmark, horizon)}"
        key = (landmark, self.m["causes"][0], horizon)
        two = [_span("c", self.values[name, *key, "c"], 1) for name in pair]
        if two[0] is None or two[1] is None:
            return f"{others} {told}; without intervals, no verdict is possible."
        if two[0][0] > two[1][1]:
            return f"{others} {told}: clearly better."
        if two[0][1] < two[1][0]:
            return f"{others} {told}: clearly WORSE; prefer {rival}."
        return f"{others} {told}: the intervals overlap, so these subjects cannot tell the two apart."

    def _too_few(self, landmark: float | None, horizon: float | None) -> bool:
        """Whether our C there has no interval for want of subjects or events."""
        row = self.values.get((self.models[0], landmark, self.m["causes"][0], horizon, "c"), {})
        return bool(row.get("reason") == TOO_FEW)

    def _verdicts(self, rival: str, landmark: float | None, horizon: float | None) -> str:
        """Ranking and error against a baseline in words, then how often over all landmarks and horizons."""
        words = []
        for metric, what in (("c", "Ranking"), ("ipa", "Prediction error (IPA)")):
            gap = self.gap(rival, landmark, horizon, metric)
            if gap is not None and gap["value"] is not None:
                words.append(f"{what}: {verdict(gap, metric)} {rival} ({difference(gap, metric)}).")
        nll = self.gap(rival, landmark, None, "nll")
        if nll is not None and nll["value"] is not None:
            words.append(f"Likelihood (NLL): {verdict(nll, 'nll')} {rival} ({difference(nll, 'nll')}).")
        cells = [self.gap(rival, *place, "c") for place in self._places()]
        judged = [verdict(gap, "c") for gap in cells if gap is not None and gap["low"] is not None]
        if len(judged) > 1:
            better, worse = judged.count("better than"), judged.count("WORSE than")
            rest = f"worse in {worse}, not told apart in {len(judged) - better - worse}"
            words.append(
                f"In C over all {len(judged)} combinations of landmark and horizon: better in {better}, {rest}."
            )
        return " ".join(words)

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
        rival = self.strongest()
        gap = None if rival is None else self.gap(rival, *self._main(), "c")
        if gap is not None and gap["low"] is not None and verdict(gap, "c") != "better than":
            out.append(f"Not as a reason to leave {rival}: these subjects do not show that the model ranks better.")
        if off:
            told = listed(f"{how} at {listed(where)}" for how, where in off.items())
            out.append(f"Not for reading the risks as probabilities without recalibration: they are {told}.")
        return " ".join(out)


def _where(landmark: float | None, horizon: float | None, shown: Mapping[Any, str]) -> str:
    where = "all times" if landmark is None else from_landmark(landmark).replace("after the index", "after index")
    people = shown.get(("at_risk", landmark))
    by = "over all horizons" if horizon is None else f"by {duration(horizon)}"
    return f"{where}\n{by}" + ("" if people is None else f", {size(people)}")


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
