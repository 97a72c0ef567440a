"""The metric values of an evaluation: look-ups, tables, and which verdict and which caveats hold.

In: the content of `metrics.json`. Out: cells and cases; the sentences are in `answer_sentences.html.jinja`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.metrics.registry import METRICS, in_columns
from ehrsequencing.records.attrition import FEWEST_EVENTS, FEWEST_SUBJECTS
from ehrsequencing.reporting.chart import Estimate
from ehrsequencing.reporting.wording import for_readers, interval, number, verdict
from ehrsequencing.results.result_types import Interval, MetricRow, Shared, place_of

Row = MetricRow[int | str]
Case = dict[str, Any]
Shown = Mapping[Any, str]
# landmark, cause, horizon; None: all of them together
Place = tuple[float | None, str | None, float | None]
COHORT = "Aalen–Johansen"  # the baseline that models nothing
_ABSENT: Row = {
    "model": "",
    "landmark_days": None,
    "cause": "",
    "horizon_days": None,
    "metric": "",
    "value": None,
    "low": None,
    "high": None,
    "reason": None,
    "subjects": 0,
    "events": 0,
}


class Scores:
    """Metric values and differences to the baselines, by (model, landmark, cause, horizon, metric).

    Attributes:
        models: All models, ours first.
        rivals: The baselines; the truth of a simulation is none.
        landmarks: In days, rising; None (all prediction times together) last.
        undefined: How many metric values are undefined, withheld ones aside.
    """

    def __init__(self, m: Shared) -> None:
        self.m = m
        self.values: dict[tuple[Any, ...], Row] = {
            (row["model"], *place_of(row), row["metric"]): row for row in m["metrics"]
        }
        self.gaps: dict[tuple[Any, ...], Row] = {
            (row["model"], *place_of(row), row["metric"]): row for row in m["differences"]
        }
        self.marginal: dict[tuple[Any, ...], Row] = {
            (row["model"], *place_of(row), row["metric"]): row for row in m.get("marginal", ())
        }
        self.models: list[str] = list(
            dict.fromkeys([*m["models"], *(row["model"] for row in m["metrics"])])
        )
        oracle = m["oracle"]
        self.truth = None if oracle is None else oracle.get("name")
        self.rivals = [name for name in self.models[1:] if name != self.truth]
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
        row = self.values.get((model, landmark, self.m["causes"][0], horizon, metric), _ABSENT)
        return Estimate(self.models.index(model), model, row["value"], row["low"], row["high"])

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
        """The landmark and horizon of every headline (`evaluation.comparison.main_place`)."""
        return self.m["main"]["landmark_days"], self.m["main"]["horizon_days"]

    def too_few(self, landmark: float | None, horizon: float | None) -> bool:
        """Whether our C there has no interval because subjects or events are too few."""
        row = self.values.get(
            (self.models[0], landmark, self.m["causes"][0], horizon, "c"), _ABSENT
        )
        return row["reason"] == TOO_FEW

    def strongest(self) -> str | None:
        """The baseline with the best likelihood on the tuning subjects; the first one where a run chose none."""
        named = self.m["strongest"]
        return named if named in self.rivals else next(iter(self.rivals), None)

    def reached(self) -> str | None:
        """What only a simulation can say: how near to the truth ours and the strongest baseline come."""
        landmark, horizon = self.main()
        rival, truth = self.strongest(), self.truth
        if rival is None or truth is None:
            return None
        cause, found = self.m["causes"][0], list[float]()
        for metric, by, models in (
            ("nll", None, (COHORT, truth, self.models[0], rival)),
            ("c", horizon, (self.models[0], rival, truth)),
        ):
            rows = [self.values.get((one, landmark, cause, by, metric), _ABSENT) for one in models]
            found += [row["value"] for row in rows if row["value"] is not None]
        if len(found) < 7 or found[0] <= found[1]:
            return None
        nothing, best, *nll = found[:4]
        ours, theirs = ((nothing - one) / (nothing - best) for one in nll)
        c_ours, c_theirs, c_truth = found[4:]
        return (
            "Of the gain in likelihood from the cohort’s own incidence to the true hazards of the simulation, "
            f"this model reaches {ours:.0%} and {rival} {theirs:.0%}. "
            f"C is {c_ours:.2f} and {c_theirs:.2f}; that of the true risks is {c_truth:.2f}."
        )

    # --------------------------------------------------------------------------------------------------- tables

    def blocks(self, part: str) -> list[tuple[str | None, list[dict[str, Any]]]]:
        """Per cause: a table for each landmark, with a group of rows per horizon; None is all horizons together."""
        out: dict[str | None, list[dict[str, Any]]] = {}
        horizons = [*self.m["horizons_days"], None]
        for cause in self.causes:
            for landmark in self.landmarks:
                names = {key[4] for key in self.values if key[1:3] == (landmark, cause)}
                columns = [metric.key for metric in in_columns(METRICS.values())]
                columns = [key for key in columns if key in names and METRICS[key].part == part]
                columns += sorted(names - set(METRICS)) if part == "accuracy" else []
                groups = [(h, self._rows((landmark, cause, h), columns)) for h in horizons]
                groups = [(horizon, rows) for horizon, rows in groups if rows]
                if groups:
                    block = {"landmark": landmark, "columns": columns, "horizons": groups}
                    out.setdefault(cause, []).append(block)
        return list(out.items())

    def _rows(
        self, place: Place, columns: Sequence[str]
    ) -> list[tuple[int, str, list[dict[str, Any]]]]:
        """(mark, model, cells) of each model that has any of the metrics there."""
        rows = []
        for kind, name in enumerate(self.models):
            of_model = [self.values.get((name, *place, metric)) for metric in columns]
            if any(row is not None for row in of_model):
                cells = [_metric_cell(row, self._chance(name, place, row)) for row in of_model]
                rows.append((kind, name, cells))
        return rows

    def _chance(self, model: str, place: Place, row: Row | None) -> float | None:
        """What a right model's value of a distance stays under; None where nothing says so."""
        name = "" if row is None else f"{row['metric']}_null"
        return self.values.get((model, *place, name), _ABSENT)["value"]


def _metric_cell(row: Row | None, chance: float | None) -> dict[str, Any]:
    """One value of the metric table: `state` (value, undefined, absent, hidden), and `text`.

    A value has its `interval`, and is `off` where it is not what a calibrated model shows.
    """
    if row is None or row["value"] is None:
        hidden = row is not None and row.get("hidden")
        state = "absent" if row is None else "hidden" if hidden else "undefined"
        return {"state": state, "text": str(row["reason"]) if row is not None and hidden else ""}
    metric, value, low, high = row["metric"], row["value"], row["low"], row["high"]
    known = METRICS.get(metric)
    digits, scale = (4, 1.0) if known is None else (known.digits, known.scale)
    around = interval(low, high, lambda end: number(scale * end, f"z.{digits}f"))
    target = None if known is None else known.target
    off = target is not None and low is not None and high is not None and not low <= target <= high
    off |= metric == "ks_p" and value < 0.05
    off |= chance is not None and value > chance
    return {
        "state": "value",
        "text": number(scale * value, f"z.{digits}f"),
        "interval": around or row["reason"] or "",
        "off": off,
    }


# ------------------------------------------------------------------------------------------------- the answer in words

USEFUL = 0.7  # a C from which a ranking is called good
_RANKS = ((0.6, "poor"), (USEFUL, "moderate"), (0.8, "good"))
NO_EFFECT = 0.005  # a share of the prediction error that prints as 0%


def cause_verdict(table: Scores, cause: str, shown: Shown) -> Case:
    """What may be said of one cause at the main landmark and horizon.

    Returns:
        `rank` is `too few` (nothing can be concluded), `undefined`, `worse than chance`, `chance`, `unclear` (the
        interval holds both .5 and .7), `poor` (C below .6), `moderate` (below .7), `good` (below .8) or `very good`;
        `risks` is `agree`, `too low`, `too high`, `off` (right on the whole, and yet miscalibrated: `misfits` says by
        what), `near` (the interval excludes 1, O/E is within .9 and 1.1) or `unknown`; `rival_oe` is the strongest
        baseline's O/E where it is as far off; `error` is `smaller`, `same`, `larger` or `unknown`, beside giving
        everyone the average risk. `state` is `fails` (not to be used for this cause), `mixed` or `holds`.
    """
    landmark, horizon = table.main()
    rows = {
        name: table.values.get((table.models[0], landmark, cause, horizon, name), _ABSENT)
        for name in ("c", "ipa", "oe", "slope", "ici", "ici_null", "ks_p", "aj", "aj_null")
    }
    # which measures of calibration exceed chance
    value = {name: row["value"] for name, row in rows.items()}
    limits = [(name, value[name], value[f"{name}_null"]) for name in ("aj", "ici")]
    misfits = [name for name, own, most in limits if own and most is not None and own > most]
    low, high = rows["slope"]["low"], rows["slope"]["high"]
    if value["ks_p"] is not None and value["ks_p"] < 0.05:
        misfits.append("ks")
    if low is not None and high is not None and not low <= 1 <= high:
        misfits.append("slope")
    # what they would say must not depend on how drop-out is weighted
    for name in ("oe", "slope"):
        low, high = rows[name]["low"], rows[name]["high"]
        place = (table.models[0], landmark, cause, horizon, name)
        other = table.marginal.get(place, _ABSENT)["value"]
        if other is None or low is None or high is None:
            continue
        if not low <= other <= high:
            misfits = []
    rival = table.strongest()
    theirs = table.values.get((rival, landmark, cause, horizon, "oe"), _ABSENT)["value"]
    rank, risks, error = _rank(rows["c"]), _risks(rows["oe"]), _error(rows["ipa"])
    if risks == "agree" and misfits:
        risks = "off"
    own = rows["oe"]["value"]
    # a rival that is at least half as far off, on the same side of 1
    if not (risks.startswith("too") and own and theirs and math.log(theirs) / math.log(own) >= 0.5):
        theirs = None
    poor = rank in ("too few", "undefined", "worse than chance", "chance", "poor")
    fails = poor or risks.startswith("too") or error == "larger"
    mixed = error == "same" or rank == "unclear" or bool(misfits)
    return {
        "cause": cause,
        "landmark": landmark,
        "horizon": horizon,
        **{name: rows[name] for name in ("c", "ipa", "oe")},
        "events": shown.get(("by", landmark, cause, horizon)),
        "subjects": shown.get(("evaluated", landmark, horizon)),
        "misfits": misfits,
        "rival_oe": theirs,
        "rank": rank,
        "risks": risks,
        "error": error,
        "rival": rival,
        "state": "fails" if fails else "mixed" if mixed else "holds",
    }


def declared(table: Scores) -> Case | None:
    """The comparison that the task declared, with its verdict, and the difference in C beside it; None without one."""
    named = table.m.get("declared")
    if not named:
        return None
    landmark, cause, horizon = place_of(named)
    gap = table.gap(named["rival"], landmark, None, named["metric"]) or _ABSENT
    beside = table.gaps.get((named["rival"], landmark, cause, horizon, "c"), _ABSENT)
    return {**named, "gap": gap, "word": verdict(gap, named["metric"]), "c": beside}


def _rank(row: Row) -> str:
    if row["reason"] or row.get("hidden"):
        return "too few"
    if row["value"] is None:
        return "undefined"
    low, high = row["low"], row["high"]
    if high is not None and high < 0.5:
        return "worse than chance"
    if low is not None and low <= 0.5:
        return "chance" if high is None or high < USEFUL else "unclear"
    return next((name for limit, name in _RANKS if row["value"] < limit), "very good")


def _risks(row: Row) -> str:
    low, high = row["low"], row["high"]
    if low is None or high is None:
        return "unknown"
    if low <= 1 <= high:
        return "agree"
    return "near" if 0.9 <= (row["value"] or 0.0) <= 1.1 else "too low" if low > 1 else "too high"


def _error(row: Row) -> str:
    value, low, high = row["value"], row["low"], row["high"]
    if value is None:
        return "unknown"
    if high is not None and high < 0:
        return "larger"
    return "smaller" if (value if low is None else low) > 0 and value >= NO_EFFECT else "same"


def card(table: Scores) -> Case:
    """Our model beside the strongest baseline at the main landmark and horizon, a row for each of three metrics."""
    (landmark, horizon), rival, cause = table.main(), table.strongest(), table.m["causes"][0]
    rows = []
    for metric, name, scale in (
        ("c", "C: ranking", 1.0),
        ("ipa", "Prediction error removed", 100.0),
        ("oe", "O/E", 1.0),
    ):
        cells = [
            _cell(table.values.get((model, landmark, cause, horizon, metric)), scale)
            for model in (table.models[0], *([rival] if rival else []))
        ]
        gap = None if rival is None else table.gap(rival, landmark, horizon, metric)
        has_interval = gap is not None and gap["value"] is not None and gap["low"] is not None
        difference = ("", "") if gap is None or not has_interval else _cell(gap, scale, "+")
        row = {"metric": metric, "name": name, "cells": cells, "difference": difference}
        rows.append(row)
    return {"landmark": landmark, "horizon": horizon, "cause": cause, "rival": rival, "rows": rows}


def _cell(row: Interval | None, scale: float, sign: str = "") -> tuple[str, str]:
    """A value and its interval as text."""
    if row is None:
        return "–", ""
    if row["value"] is None:
        return "too few events" if row["reason"] else "undefined", ""
    unit = "" if scale == 1 else " points" if sign else "%"
    digits = 2 if scale == 1 else 1 if sign else 0

    def show(value: float) -> str:
        return number(scale * value, f"{sign}z.{digits}f") + ("" if sign else unit)

    return show(row["value"]) + (unit if sign else ""), interval(row["low"], row["high"], show)


def caveats(table: Scores, verdicts: list[Case], most: int = 2) -> list[Case]:
    """What speaks most against the numbers, the gravest first: kinds of sentence with their values."""
    m, cases = table.m, list[Case]()
    if all(case["rank"] == "too few" for case in verdicts):
        few = {"kind": "few", "events": FEWEST_EVENTS, "subjects": FEWEST_SUBJECTS}
        cases.append({**few, "repeated": bool(m["repeated_splits"] or m["external"] or m["score"])})
    if m["data"]["simulated"]:
        cases.append({"kind": "simulated"})
    # so few are still followed at the main horizon that single subjects carry a number
    thin = [
        row
        for row in m["smallest_g"]
        if row["thin"] and (row["landmark_days"], row["horizon_days"]) == table.main()
    ]
    skip = ("Nothing is compared", "Fewer than 50 subjects")
    grave = (for_readers(text) for text in m["warnings"] if not text.startswith(skip))
    cases += [{"kind": "warning", "text": text} for text in grave if text]
    compared = declared(table)
    if compared is not None and compared["word"] in ("not distinguishable", "WORSE"):
        cases.append({"kind": "no better", "rival": compared["rival"]})
    if thin:
        cases.append({"kind": "thin"})
    if m["score"]:
        cases.append({"kind": "file"})
    if not m["external"]:
        cases.append({"kind": "one split" if not m["repeated_splits"] else "same source"})
    cases.append({"kind": "missing"})
    return cases[:most]


def audit_case(m: Shared) -> Case:
    """The audit's verdict: `state` is `none`, `impossible`, `leak`, `warning` or `clean`, with its counts.

    `matter` is C and NLL of a Cox model with and without the suspicious codes that matter most, None without any.
    """
    audit = m["audit"]
    if not audit:
        return {"state": "impossible" if m["score"] else "none"}
    verdicts = [check["verdict"] for check in audit["checks"]]
    passed, not_tested = verdicts.count("passed"), verdicts.count("not_tested")
    state = "leak" if audit["leaks"] else "warning" if audit.get("warnings") else "clean"
    matters = [check["matter"] for check in audit["checks"] if check["matter"]]
    return {
        "matter": max(matters, key=lambda m: m["c"]["with"] - m["c"]["without"], default=None),
        "state": state,
        "passed": passed,
        "leaks": audit["leaks"],
        "warnings": audit.get("warnings") or 0,
        "not_tested": not_tested,
        "date": audit["created"],
    }
