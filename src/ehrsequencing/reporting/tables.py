"""Tables beside the metrics: what went in, what was checked, who was followed how long, what moves when refitted.

Rates over few people are counts in disguise, so they are told in steps of at least 11 people (`rough_rate`).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from ehrsequencing.disclosure.counts import subgroup_rows
from ehrsequencing.disclosure.derived import SUBGROUP_METRICS, told_of_levels
from ehrsequencing.disclosure.small_counts import exact, people
from ehrsequencing.metrics.minimum_counts import SMALLEST_COUNT, TOO_FEW
from ehrsequencing.metrics.registry import in_columns
from ehrsequencing.reporting import curves
from ehrsequencing.reporting.scores import Scores
from ehrsequencing.reporting.svg import Estimate, percent
from ehrsequencing.reporting.wording import METRICS, duration, from_landmark, said, size

Shown = Mapping[Any, str]
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_INPUTS = {  # measure: (words, kind); people: a share of people or of their prediction times
    "unknown_token_rate": ("recorded codes without a token", "tokens"),
    "unknown_age_rate": ("prediction times without an age", "people"),
    "no_visit_before_rate": ("prediction times with no visit before them", "people"),
    "numeric_value_rate": ("tokens that carry a number", "tokens"),
    "codes_per_visit": ("codes per visit, on average", "mean"),
    "visits_per_subject": ("visits per subject, on average", "mean"),
}


def rough_rate(rate: float | None, subjects: int) -> str:
    """A share of people in steps of at least 11 of them, so that it tells no small count.

    >>> rough_rate(0.1234, 20_000), rough_rate(0.1234, 300), rough_rate(0.001, 300), rough_rate(0.0, 300)
    ('12.3%', '10%', '<5%', '0%')
    >>> rough_rate(0.999, 300), rough_rate(0.5, 20), rough_rate(None, 300)
    ('>95%', 'withheld', 'undefined')
    """
    if rate is None:
        return "undefined"
    if rate in (0.0, 1.0):
        return f"{rate:.0%}"
    step = next((s for s in _STEPS if s * subjects >= SMALLEST_COUNT), None)
    if step is None:
        return "withheld"
    if min(rate, 1 - rate) < step:
        return f"<{percent(step)}" if rate < 0.5 else f">{percent(1 - step)}"
    return percent(round(rate / step) * step)


# ------------------------------------------------------------------------------------------------- what went in


def inputs(m: Mapping[str, Any], shown: Shown) -> dict[str, Any] | None:
    """Rates of the inputs per split, and the largest differences between training and judged data."""
    found = m.get("inputs")
    if not found:
        return None
    splits = list(found["by_split"])
    rows = [
        (words, [_input(found["by_split"][s].get(name), kind, people(shown.get(("subjects", s)))) for s in splits])
        for name, (words, kind) in _INPUTS.items()
        if any(found["by_split"][s].get(name) is not None for s in splits)
    ]
    sizes = [shown.get(("subjects", s), "–") for s in splits]
    sides = [people(shown.get(("subjects", s))) for s in ("train", m["split"])]
    drift = (found.get("drift") or [])[:15]
    reach = max((abs(row["smd"] or 0.0) for row in drift), default=0.0)
    return {
        "splits": splits, "sizes": sizes, "rows": rows, "drift": [_drifted(row, sides, reach) for row in drift],
        "far": sum(abs(row["smd"] or 0.0) >= 0.1 for row in drift),
    }  # fmt: skip


def _input(value: float | None, kind: str, subjects: int) -> str:
    if value is None:
        return "–"
    if kind == "people":
        return rough_rate(value, subjects)
    return f"{100 * value:.3g}%" if kind == "tokens" else f"{value:.1f}"


def _drifted(row: Mapping[str, Any], sides: Sequence[int], reach: float) -> dict[str, Any]:
    means, few = [], False
    share = not row["feature"].endswith("(rank)")  # else a mean rank, from -1.7 to 1.7
    share = share and all(row[side] is not None and 0 <= row[side] <= 1 for side in ("train", "judged"))
    for value, subjects in zip((row["train"], row["judged"]), sides, strict=True):
        if value is None or not share:
            means.append("undefined" if value is None else f"{value:.3g}")
            continue
        few = few or 0 < min(value, 1 - value) * subjects < SMALLEST_COUNT or not subjects
        means.append(rough_rate(value, subjects))
    smd = row["smd"]
    shown = None if smd is None else round(smd, 1 if few else 2)
    bar = None if shown is None else Markup(curves.drift_bar(shown, max(reach, 0.2)))
    words = "undefined" if shown is None else f"{shown:+.{1 if few else 2}f}"
    return {"feature": row["feature"], "means": means, "words": words, "bar": bar, "far": abs(smd or 0.0) >= 0.1}


def immortal_time(m: Mapping[str, Any], shown: Shown) -> list[tuple[str, ...]]:
    """Where some subjects have no record before they are asked: landmark, share of them, share recorded later."""
    rows: list[tuple[str, ...]] = []
    for row in m.get("records_before") or []:
        if row["without_record_before"]:
            n = people(shown.get(("at_risk", row["landmark_days"])))
            shares = [row[name] / row["subjects"] for name in ("without_record_before", "first_record_later")]
            rows.append((from_landmark(row["landmark_days"]), *(rough_rate(share, n) for share in shares)))
    return rows


# ------------------------------------------------------------------------------------------------ what was checked


def checks(m: Mapping[str, Any], shown: Shown) -> dict[str, Any] | None:
    """Proofs about time and splits, and how much data there was for each parameter."""
    found = m.get("checks")
    if not found:
        return None
    overlap = found.get("split_overlap") or {}
    shared = overlap.get("shared_subjects")
    return {
        "shared": shared,
        "hashes": [(split, str(hashed)[:16]) for split, hashed in (overlap.get("hash") or {}).items()],
        "time_zero": found.get("time_zero"), "cutoff": found.get("predictor_cutoff"), "audit": found.get("audit"),
        "per_parameter": _per_parameter(m, found.get("events_per_parameter"), shown),
        "parameters": found.get("parameters"),
    }  # fmt: skip


def _per_parameter(m: Mapping[str, Any], ratio: float | None, shown: Shown) -> str | None:
    """Events per parameter; only its order of magnitude where the events themselves are not told."""
    if not ratio or ratio <= 0:
        return None
    told = exact(shown.get(("events", "train", m["causes"][0]), "hidden"))
    if ratio >= 1:
        return f"{ratio:.3g} events for each parameter" if told else "at least one event for each parameter"
    each = 1 / ratio
    rough = f"{each:,.0f}" if told else f"{10 ** len(str(int(each))):,}"
    return f"one event for {'every' if told else 'less than every'} {rough} parameters"


def card(m: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The model card: how this very model can be made again."""
    found, config, history = m.get("checks") or {}, m["config"], m["history"]
    model, training = (config.get(name) or {} for name in ("model", "training"))
    seeds = found.get("seeds") or ([training["seed"]] if "seed" in training else [])
    seconds = sum(row.get("seconds") or 0 for row in history)
    trials, parameters, members = (found.get(name) for name in ("tuning_trials", "parameters", "members"))
    architecture = [f"{name.replace('_', ' ')} {model[name]}" for name in _ARCHITECTURE if model.get(name) is not None]
    rows = [
        ("Model", m["models"][0] if m["models"] else "–"),
        ("Architecture", ", ".join(architecture)),
        ("Parameters", f"{parameters:,}" if parameters is not None else ""),
        ("Members", f"{members} models, averaged" if members and members > 1 else ""),
        ("Seeds" if len(seeds) > 1 else "Seed", "seed " * (len(seeds) == 1) + ", ".join(map(str, seeds))),
        ("Training", f"{len(history)} epochs in {seconds:.0f} seconds" if history else ""),
        ("Tuning trials", "NOT PROVIDED (evaluation.tuning_trials=N tells it)" if trials is None else f"{trials:,}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in m["versions"].items())),
        ("Data", str(m["data"].get("name") or "")),
        ("Evaluated on", str(m["created"])),
    ]
    return [(name, text) for name, text in rows if text]


_ARCHITECTURE = ("architecture", "size", "dim", "layers", "heads", "visit_encoder", "timeline", "head", "dropout")


def external(m: Mapping[str, Any], shown: Shown) -> dict[str, str] | None:
    """What the banner of an external validation says."""
    found = m.get("external")
    if not found:
        return None
    unknown = found.get("unknown_token_rate")
    rate = "unknown" if unknown is None else f"{100 * unknown:.3g}%"
    return {
        "data": str(found.get("data")),
        "subjects": shown.get(("external",), "an unknown number of"),
        "unknown": rate,
    }


# ------------------------------------------------------------------------------------------- who was followed how long


def follow_up(m: Mapping[str, Any], shown: Shown) -> dict[str, Any] | None:
    """Median follow-up, and the share still observed at each horizon, per landmark."""
    medians = {row["landmark_days"]: row for row in m.get("follow_up") or []}
    censoring = m.get("censoring") or {}
    still = {(row["landmark_days"], row["horizon_days"]): row["g"] for row in censoring.get("smallest_g") or []}
    landmarks = list(dict.fromkeys([*medians, *(landmark for landmark, _ in still)]))
    if not landmarks:
        return None
    rows = []
    for landmark in landmarks:
        median = medians.get(landmark) or {}
        rest = [still.get((landmark, h)) for h in m["horizons_days"]]
        text = shown.get(("subjects", m["split"])) if landmark is None else shown.get(("at_risk", landmark))
        cells = [("–" if g is None else rough_rate(g, people(text)), g is not None and g < THIN) for g in rest]
        rows.append((from_landmark(landmark), shown.get(("at_risk", landmark), "–"), _days(median), cells))
    names = {"kaplan-meier": "Kaplan–Meier", "cox": "Cox"}
    model = names.get(str(censoring.get("model")), censoring.get("model"))
    thin = [h for (_, h), g in still.items() if g is not None and g < THIN]
    return {"rows": rows, "model": model, "note": _thin(thin, len(still)) if thin else ""}


def _thin(horizons: Sequence[float], places: int) -> str:
    """Where few are followed, without the chance itself: times those at risk it is how many are left."""
    return (
        f"Few subjects are followed long enough: at {len(horizons)} of {places} combinations of landmark and horizon "
        f"the chance of still being followed is below {THIN:.0%}. Trust horizons under {duration(min(horizons))} more."
    )


THIN = 0.1  # chance of being followed below which single subjects carry a number


def _days(median: Mapping[str, Any]) -> str:
    if not median:
        return "–"
    value, low, high = (median.get(name) for name in ("median_days", "low", "high"))
    if value is None:
        return "undefined"
    return duration(value) + ("" if low is None or high is None else f" ({duration(low)} to {duration(high)})")


# ---------------------------------------------------------------------------------- subgroups, refits, repeated splits


def subgroups(m: Mapping[str, Any], table: Scores, shown: Shown) -> list[dict[str, Any]]:
    """Per landmark: a table of the levels, and a figure each for O/E and AUC."""
    out = []
    rows = subgroup_rows(m)
    for landmark in dict.fromkeys(row["landmark_days"] for row in rows):
        here = [row for row in rows if row["landmark_days"] == landmark]
        families = {
            group: _levels([row for row in here if row["group"] == group], shown)
            for group in dict.fromkeys(row["group"] for row in here)
        }
        horizon = here[0]["horizon_days"]
        place = f"{from_landmark(landmark)}, by {duration(horizon)}".capitalize()
        overall = table.number(table.models[0], landmark, horizon, "auc").value
        figures = [
            Markup(curves.levels(
                [(group, [(level["name"], level[metric]) for level in levels]) for group, levels in families.items()],
                title=f"{METRICS[metric].name} in subgroups, {place}", label=words, reference=line,
            ))
            for metric, words, line in (("oe", "O/E (1: right)", 1.0), ("auc", "AUC (dashed: all together)", overall))
        ]  # fmt: skip
        n = shown.get(("at_risk", landmark))
        caption = place if n is None else f"{place}, {size(n)}"
        out.append({"caption": caption, "families": families, "figures": figures})
    return out


def _levels(family: Sequence[Mapping[str, Any]], shown: Shown) -> list[dict[str, Any]]:
    """A line per level of one family, with its metrics where they may be told."""
    lines = []
    for row, told in zip(family, told_of_levels(family, shown), strict=True):
        key = ("group", row["landmark_days"], row["group"], row["level"])
        n, events = (shown.get((*key, name), "hidden") for name in ("n", "events"))
        parts = {name: (row.get(name) or {}) if name in told else {} for name in SUBGROUP_METRICS}
        values = {
            name: Estimate(0, row["level"], *(part.get(k) for k in ("value", "low", "high")))
            for name, part in parts.items()
        }
        few = any((row.get(name) or {}).get("reason") == TOO_FEW for name in SUBGROUP_METRICS)
        lines.append({"name": str(row["level"]), "n": n, "events": events, "told": bool(told), "few": few, **values})
    return lines


def instability(m: Mapping[str, Any]) -> dict[str, Any] | None:
    """Spread of the risks over refits, in groups of at least 11 subjects of similar risk."""
    found = m.get("instability")
    if not found:
        return None
    points = sorted(found.get("points") or [], key=lambda p: p["risk"])
    count = min(len(points) // SMALLEST_COUNT, 15)
    cuts = [round(k * len(points) / count) for k in range(count + 1)] if count else [0]
    spreads = [
        curves.Spread(*(sum(p[name] for p in points[a:b]) / (b - a) for name in ("risk", "low", "high")))
        for a, b in pairwise(cuts)
    ]
    title = f"Risk by {duration(found['horizon_days'])} over {found['resamples']} refits"
    figure = Markup(curves.instability(spreads, title=title)) if spreads else None
    return {**found, "bootstrap": bool(found.get("bootstrap")), "figure": figure, "title": title}


def repeated(m: Mapping[str, Any], models: Sequence[str]) -> dict[str, Any] | None:
    """Means over random splits with corrected intervals: all cells together first, single cells below."""
    found = m.get("repeated_splits")
    if not found:
        return None
    blocks = []
    places = dict.fromkeys((r["landmark_days"], r["cause"], r["horizon_days"]) for r in found["rows"])
    for place in sorted(places, key=lambda p: (p[0] is not None, p[2] is not None)):
        rows = [r for r in found["rows"] if (r["landmark_days"], r["cause"], r["horizon_days"]) == place]
        gaps = [r for r in found["differences"] if (r["landmark_days"], r["cause"], r["horizon_days"]) == place]
        metrics = [one.key for one in in_columns(METRICS.values()) if any(r["metric"] == one.key for r in rows)]
        landmark, cause, horizon = place
        where = (
            "mean of all landmarks and horizons" if landmark is None and horizon is None else from_landmark(landmark)
        )
        where += "" if horizon is None else f", by {duration(horizon)}"
        table = [
            (models.index(name) if name in models else 9, name,
             [(_mean(rows, name, metric), _gap(gaps, name, metric)) for metric in metrics])
            for name in dict.fromkeys(r["model"] for r in rows)
        ]  # fmt: skip
        blocks.append({"caption": f"{cause}: {where}", "metrics": metrics, "rows": table})
    return {"splits": found["splits"], "seeds": found.get("seeds") or [], "blocks": blocks}


def _mean(rows: Sequence[Mapping[str, Any]], model: str, metric: str) -> tuple[str, str]:
    row = next((r for r in rows if (r["model"], r["metric"]) == (model, metric)), None)
    if row is None or row["mean"] is None:
        return (str(row["reason"]) if row is not None and row.get("hidden") else "undefined"), ""
    digits = METRICS[metric].digits
    low, high = row["low"], row["high"]
    return f"{row['mean']:.{digits}f}", "" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def _gap(rows: Sequence[Mapping[str, Any]], model: str, metric: str) -> list[str]:
    """Whether our model is better than this one, in words, by the paired difference."""
    row = next((r for r in rows if (r["model"], r["metric"]) == (model, metric)), None)
    if row is None or row["mean"] is None or not METRICS[metric].better:
        return []
    digits = METRICS[metric].digits
    span = (
        "" if row["low"] is None or row["high"] is None else f" ({row['low']:+.{digits}f} to {row['high']:+.{digits}f})"
    )
    return [f"{row['mean']:+.{digits}f}{span}", f"ours: {said(row, metric)}"]


def recalibration(m: Mapping[str, Any]) -> dict[str, Any] | None:
    """Calibration before and after, a row per cause and measure."""
    found = m.get("recalibration")
    if not found:
        return None
    rows = []
    for cause, before in found["before"].items():
        after = found["after"].get(cause) or {}
        for measure in ("oe", "intercept", "slope"):
            two = [_by_horizon(side.get(measure), m["horizons_days"]) for side in (before, after)]
            for horizon in dict.fromkeys([*two[0], *two[1]]):
                words = METRICS[measure].name + ("" if horizon is None else f" by {duration(horizon)}")
                rows.append((cause, words, *(_number(side.get(horizon)) for side in two)))
    return {"rows": rows, "fitted_on": found.get("fitted_on")}


def _by_horizon(value: Any, horizons: Sequence[float]) -> dict[float | None, Any]:
    """A number for all horizons, a list in their order, or a mapping by their days."""
    if isinstance(value, Mapping) and "value" not in value:
        return {float(days): inner for days, inner in value.items()}
    if isinstance(value, Sequence):
        return dict(zip(horizons, value, strict=False))
    return {} if value is None else {None: value}


def _number(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("value")
    return "undefined" if value is None else f"{value:.2f}"
