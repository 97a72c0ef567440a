"""The answer in words: which verdict holds for each cause, how we compare, and what speaks most against the numbers.

The content of `metrics.json` goes in, as `Scores`. Cases and values come out; the sentences are in
`answer_sentences.html.jinja`.
"""

from collections.abc import Mapping
from typing import Any

from ehrsequencing.records.attrition import FEWEST_EVENTS, FEWEST_SUBJECTS
from ehrsequencing.reporting.scores import Scores, span
from ehrsequencing.reporting.wording import interval, rounded, verdict

Case = dict[str, Any]
Shown = Mapping[Any, str]
_RANKS = ((0.6, "poor"), (0.7, "moderate"), (0.8, "good"))
NO_EFFECT = 0.005  # a share of the prediction error that prints as 0%


def of_cause(table: Scores, cause: str, shown: Shown) -> Case:
    """What may be said of one cause at the main landmark and horizon.

    Returns:
        `rank` is `too few` (nothing can be concluded), `undefined`, `worse than chance`, `chance`, `poor` (C below
        .6), `moderate` (below .7), `good` (below .8) or `very good`; `risks` is `agree`, `too low`, `too high` or
        `unknown`; `error` is `smaller`, `same`, `larger` or `unknown`, beside giving everyone the average risk;
        `against` is the verdict of the paired difference in C to the strongest baseline, or empty; `loses` says whether
        our prediction error is the larger one. `state` is `fails` (not to be used for this cause), `mixed` or `holds`.
    """
    landmark, horizon = table.main()
    rows = {
        name: table.values.get((table.models[0], landmark, cause, horizon, name), {})
        for name in ("c", "ipa", "oe")
    }
    case: Case = {"cause": cause, "landmark": landmark, "horizon": horizon, **rows}
    case["events"] = shown.get(("by", landmark, cause, horizon))
    case["subjects"] = shown.get(("at_risk", landmark))
    rank, risks, error = _rank(rows["c"]), _risks(rows["oe"]), _error(rows["ipa"])
    rival = table.strongest()
    gap = None if rival is None else table.gaps.get((rival, landmark, cause, horizon, "c"))
    against = "" if gap is None or gap["value"] is None or gap["low"] is None else verdict(gap, "c")
    gap = None if rival is None else table.gaps.get((rival, landmark, cause, horizon, "ipa"))
    loses = gap is not None and gap["high"] is not None and verdict(gap, "ipa") == "WORSE"
    poor = rank in ("too few", "undefined", "worse than chance", "chance", "poor")
    fails = poor or risks.startswith("too") or error == "larger" or against == "WORSE"
    state = "fails" if fails else "mixed" if loses or error == "same" else "holds"
    words = {"rank": rank, "risks": risks, "error": error, "against": against, "rival": rival}
    return case | words | {"loses": loses, "state": state}


def _rank(row: Mapping[str, Any]) -> str:
    if (row.get("reason") and row.get("value") is None) or row.get("hidden"):
        return "too few"
    if row.get("value") is None:
        return "undefined"
    if row.get("reason"):
        return "too few"
    low, high = row["low"], row["high"]
    if high is not None and high < 0.5:
        return "worse than chance"
    if low is not None and low <= 0.5:
        return "chance"
    return next((name for limit, name in _RANKS if row["value"] < limit), "very good")


def _risks(row: Mapping[str, Any]) -> str:
    low, high = row.get("low"), row.get("high")
    if low is None or high is None:
        return "unknown"
    return "too low" if low > 1 else "too high" if high < 1 else "agree"


def _error(row: Mapping[str, Any]) -> str:
    value, low, high = row.get("value"), row.get("low"), row.get("high")
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
        told = gap is not None and gap["value"] is not None and gap["low"] is not None
        word = verdict(gap, metric) if told and gap is not None and metric != "oe" else ""
        difference = ("", "") if gap is None or not told else _cell(gap, scale, "+")
        rows.append(
            {
                "metric": metric,
                "name": name,
                "cells": cells,
                "difference": difference,
                "verdict": word,
            }
        )
    return {"landmark": landmark, "horizon": horizon, "cause": cause, "rival": rival, "rows": rows}


def _cell(row: Mapping[str, Any] | None, scale: float, sign: str = "") -> tuple[str, str]:
    """A value and its interval as text."""
    if row is None or row.get("value") is None:
        words = "too few events" if row is not None and row.get("reason") else "undefined"
        return words if row is not None else "–", ""
    unit = "" if scale == 1 else " points" if sign else "%"
    digits = 2 if scale == 1 else 1 if sign else 0

    def show(value: float) -> str:
        return f"{scale * value:{sign}z.{digits}f}{'' if sign else unit}"

    return show(row["value"]) + (unit if sign else ""), interval(row["low"], row["high"], show)


def caveats(table: Scores, verdicts: list[Case], most: int = 2) -> list[Case]:
    """What speaks most against the numbers, the gravest first: kinds of sentence with their values."""
    m, found = table.m, list[Case]()
    if all(case["rank"] == "too few" for case in verdicts):
        found.append({"kind": "few", "events": FEWEST_EVENTS, "subjects": FEWEST_SUBJECTS})
    if m["data"].get("simulated"):
        found.append({"kind": "simulated"})
    thin = [
        row for row in (m.get("censoring") or {}).get("smallest_g") or [] if _is_thin(row, table)
    ]
    skip = ("Nothing is compared", "Fewer than 50 subjects")
    found += [
        {"kind": "warning", "text": text} for text in m["warnings"] if not text.startswith(skip)
    ]
    first = verdicts[0]
    if first.get("against") in ("not distinguishable", "level", "WORSE"):
        found.append({"kind": "no better", "rival": first["rival"]})
    if thin:
        found.append({"kind": "thin"})
    if m.get("score"):
        found.append({"kind": "file"})
    if not m.get("external"):
        found.append({"kind": "one split" if not m.get("repeated_splits") else "same source"})
    found.append({"kind": "missing"})
    return found[:most]


def _is_thin(row: Mapping[str, Any], table: Scores) -> bool:
    """Whether so few are still followed at the main horizon that single subjects carry a number."""
    return (row["landmark_days"], row["horizon_days"]) == table.main() and row["thin"]


def audit_case(m: Mapping[str, Any]) -> Case:
    """The audit's verdict: `state` is `none`, `impossible`, `leak`, `warning` or `clean`, with its counts."""
    audit = m.get("audit")
    if not audit:
        return {"state": "impossible" if m.get("score") else "none"}
    verdicts = [check["verdict"] for check in audit["checks"]]
    passed, not_tested = verdicts.count("passed"), verdicts.count("not_tested")
    state = "leak" if audit["leaks"] else "warning" if audit.get("warnings") else "clean"
    return {
        "state": state,
        "passed": passed,
        "leaks": audit["leaks"],
        "warnings": audit.get("warnings") or 0,
        "not_tested": not_tested,
        "date": audit["created"],
    }


def how_well(table: Scores) -> Case:
    """Ranking, prediction error and calibration of our model at the main landmark and horizon."""
    landmark, horizon = table.main()
    case = {"landmark": landmark, "horizon": horizon, "too_few": table.too_few(landmark, horizon)}
    return case | {
        name: table.number(table.models[0], landmark, horizon, name) for name in ("c", "ipa", "oe")
    }


def compared(table: Scores) -> Case:
    """Our model against the strongest baseline: a verdict only where intervals allow one.

    Returns:
        `verdict` is `none` (no baseline), `too few`, `undefined`, `paired` (see `differences` and `wins`), or, where a
        run has no paired differences, `no interval`, `better`, `worse` or `overlap` by the two intervals.
    """
    rival, (landmark, horizon) = table.strongest(), table.main()
    if rival is None:
        return {"verdict": "none"}
    ours, theirs = (table.number(name, landmark, horizon, "c") for name in (table.models[0], rival))
    case: Case = {
        "rivals": table.rivals,
        "rival": rival,
        "chosen": bool(table.m.get("strongest")),
        "ours": ours.value,
        "theirs": theirs.value,
    }
    if table.too_few(landmark, horizon):
        return case | {"verdict": "too few"}
    if ours.value is None or theirs.value is None:
        return case | {"verdict": "undefined"}
    if any(table.gap(rival, landmark, horizon, metric) for metric in ("c", "ipa")):
        return case | {"verdict": "paired"} | _differences(table, rival, landmark, horizon)
    place = (landmark, table.m["causes"][0], horizon)
    mine, other = (span("c", table.values[name, *place, "c"]) for name in (table.models[0], rival))
    if mine is None or other is None:
        return case | {"verdict": "no interval"}
    return case | {
        "verdict": "better" if mine[0] > other[1] else "worse" if mine[1] < other[0] else "overlap"
    }


def _differences(table: Scores, rival: str, landmark: float | None, horizon: float | None) -> Case:
    """Paired differences to a baseline there, and how often our C is better or worse over all combinations."""
    rows = []
    for metric, at in (("c", horizon), ("ipa", horizon), ("nll", None)):
        gap = table.gap(rival, landmark, at, metric)
        if gap is not None and gap["value"] is not None:
            around = interval(gap["low"], gap["high"], lambda end: rounded(end, "+"))
            row = {
                "metric": metric,
                "verdict": verdict(gap, metric),
                "value": rounded(gap["value"], "+"),
            }
            rows.append(row | {"interval": around})
    cells = [table.gap(rival, *place, "c") for place in table.combinations()]
    verdicts = [verdict(gap, "c") for gap in cells if gap is not None and gap["low"] is not None]
    better, worse = verdicts.count("better"), verdicts.count("WORSE")
    wins = {
        "all": len(verdicts),
        "better": better,
        "worse": worse,
        "neither": len(verdicts) - better - worse,
    }
    return {"differences": rows, "wins": wins}


def not_for(table: Scores) -> Case:
    """What these numbers do not support: replacing a baseline, or reading miscalibrated risks as probabilities."""
    (landmark, horizon), rival = table.main(), table.strongest()
    off: dict[str, list[float]] = {}
    for h in table.m["horizons_days"]:
        oe = table.number(table.models[0], landmark, h, "oe")
        if oe.low is not None and oe.high is not None and not oe.low <= 1 <= oe.high:
            off.setdefault("too low" if oe.low > 1 else "too high", []).append(h)
    gap = None if rival is None else table.gap(rival, landmark, horizon, "c")
    proven = gap is None or gap["low"] is None or verdict(gap, "c") == "better"
    return {"no_better_than": None if proven else rival, "off": off}
