"""Which case holds for each sentence of the summary, and its values; the sentences are in `sentences.html.jinja`."""

from typing import Any

from ehrsequencing.reporting.scores import Scores, span
from ehrsequencing.reporting.wording import interval, rounded, verdict

Case = dict[str, Any]


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
