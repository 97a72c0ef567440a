"""The page's tables beside the metrics: inputs, checks, follow-up, subgroups, refits, repeated splits, recalibration.

In: a redacted evaluation and the texts of its counts. Out: cells as text. A share of fewer than 11 people is withheld.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.core.disclosure import TOO_FEW
from ehrsequencing.evaluation.curves import SUBGROUP_METRICS
from ehrsequencing.metrics.registry import METRICS, in_columns
from ehrsequencing.reporting import figures
from ehrsequencing.reporting.chart import Estimate
from ehrsequencing.reporting.scores import Scores, place_of
from ehrsequencing.reporting.wording import (
    duration,
    from_landmark,
    interval,
    percent,
    signed,
    size,
    verdict,
    with_interval,
)

Shown = Mapping[Any, str]
_INPUTS = {  # measure: (words, kind); people: a share of people or of their prediction times
    "unknown_token_rate": ("recorded codes without a token", "tokens"),
    "unknown_age_rate": ("prediction times without an age", "people"),
    "no_visit_before_rate": ("prediction times with no visit before them", "people"),
    "numeric_value_rate": ("tokens that carry a number", "tokens"),
    "codes_per_visit": ("codes per visit, on average", "mean"),
    "visits_per_subject": ("visits per subject, on average", "mean"),
}


def share(rate: float | None) -> str:
    """A share of people; one that would stand for fewer than 11 of them is withheld."""
    return "withheld" if rate is None else percent(rate)


# ------------------------------------------------------------------------------------------------ inputs and checks


def inputs(m: Mapping[str, Any], shown: Shown) -> dict[str, Any] | None:
    """Rates of the inputs per split, and the largest differences between training and evaluated subjects."""
    found = m.get("inputs")
    if not found:
        return None
    by_split, splits = found["by_split"], list(found["by_split"])
    rows = [
        (
            words,
            [_input(by_split[s], name, kind) for s in splits],
        )
        for name, (words, kind) in _INPUTS.items()
        if any(by_split[s].get(name) is not None for s in splits)
    ]
    sizes = [shown.get(("subjects", s), "–") for s in splits]
    drift = (found.get("drift") or [])[:15]
    reach = max((abs(row["smd"] or 0.0) for row in drift), default=0.0)
    drifted = [_drifted(row, reach) for row in drift]
    far = sum(row["far"] for row in drifted)
    return {"splits": splits, "sizes": sizes, "rows": rows, "drift": drifted, "far": far}


def _input(rates: Mapping[str, float | None], name: str, kind: str) -> str:
    value = rates.get(name)
    if kind == "people":
        return share(value) if name in rates else "–"
    if value is None:
        return "–"
    return percent(value) if kind == "tokens" else f"{value:.1f}"


def _drifted(row: Mapping[str, Any], reach: float) -> dict[str, Any]:
    """Means of an input on both sides and their standardised difference."""
    both, smd = (row["train"], row["judged"]), row["smd"]
    if row["feature"].endswith("(rank)"):  # a mean rank, from -1.7 to 1.7
        means = ["undefined" if value is None else f"{value:.3g}" for value in both]
    else:
        means = [share(value) for value in both]
    bar = None if smd is None else figures.drift_bar(smd, max(reach, 0.2))
    words = "undefined" if smd is None else f"{smd:+.2f}"
    return {
        "feature": row["feature"],
        "means": means,
        "words": words,
        "bar": bar,
        "far": abs(smd or 0.0) >= 0.1,
    }


def immortal_time(m: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Where some subjects have no record before the prediction: landmark, how many, how many recorded only later."""
    return [
        (
            from_landmark(row["landmark_days"]),
            str(row["without_record_before"]),
            str(row["first_record_later"]),
        )
        for row in m.get("records_before") or []
        if row["without_record_before"]
    ]


def per_parameter(m: Mapping[str, Any]) -> dict[str, Any] | None:
    """Events per parameter, or parameters per event; None where the training events are few or not known."""
    parameters = (m.get("checks") or {}).get("parameters")
    events = (m["events"].get("train") or {}).get(m["causes"][0])
    if not parameters or not events or isinstance(events, str):
        return None
    if events >= parameters:
        return {"events": f"{events / parameters:.3g}"}
    return {"parameters": f"{parameters / events:,.0f}"}


# ------------------------------------------------------------------------------------------ follow-up and subgroups


def follow_up(m: Mapping[str, Any], shown: Shown) -> dict[str, Any] | None:
    """Median follow-up, and the share still observed at each horizon, per landmark."""
    medians = {row["landmark_days"]: row for row in m.get("follow_up") or []}
    censoring = m.get("censoring") or {}
    still = {
        (row["landmark_days"], row["horizon_days"]): row
        for row in censoring.get("smallest_g") or []
    }
    landmarks = list(dict.fromkeys([*medians, *(landmark for landmark, _ in still)]))
    if not landmarks:
        return None
    rows = []
    for landmark in landmarks:
        rest = [still.get((landmark, h)) for h in m["horizons_days"]]
        cells = [
            ("–" if row is None else share(row["g"]), row is not None and row["thin"])
            for row in rest
        ]
        median = medians.get(landmark)
        ends = [median.get(name) for name in ("median_days", "low", "high")] if median else None
        words = with_interval(ends[0], ends[1], ends[2], duration) if ends else "–"
        rows.append((from_landmark(landmark), shown.get(("at_risk", landmark), "–"), words, cells))
    model = {"kaplan-meier": "Kaplan–Meier", "cox": "Cox"}.get(
        str(censoring.get("model")), censoring.get("model")
    )
    thin = [h for (_, h), row in still.items() if row["thin"]]
    return {"rows": rows, "model": model, "thin": thin, "places": len(still)}


def subgroups(m: Mapping[str, Any], table: Scores, shown: Shown) -> list[dict[str, Any]]:
    """Per landmark: a table of the levels, and a figure each for O/E and AUC."""
    out = []
    rows = subgroup_rows(m)
    for landmark in dict.fromkeys(row["landmark_days"] for row in rows):
        here = [row for row in rows if row["landmark_days"] == landmark]
        families = {
            group: _levels([row for row in here if row["group"] == group])
            for group in dict.fromkeys(row["group"] for row in here)
        }
        horizon = here[0]["horizon_days"]
        place = f"{from_landmark(landmark)}, by {duration(horizon)}".capitalize()
        overall = table.number(table.models[0], landmark, horizon, "auc").value
        plots = []
        for metric, label, line in (
            ("oe", "O/E (1: right)", 1.0),
            ("auc", "AUC (dashed: all together)", overall),
        ):
            groups = [
                (group, [(level["name"], level[metric]) for level in some])
                for group, some in families.items()
            ]
            title = f"{METRICS[metric].name} in subgroups, {place}"
            plots.append(figures.levels(groups, title=title, label=label, reference=line))
        n = shown.get(("at_risk", landmark))
        caption = place if n is None else f"{place}, {size(n)}"
        out.append({"caption": caption, "families": families, "figures": plots})
    return out


def _levels(family: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line per level of one family, with its metrics where they may be told."""
    lines = []
    for row in family:
        parts = {name: row.get(name) or {} for name in SUBGROUP_METRICS}
        values = {
            name: Estimate(0, row["level"], *(part.get(k) for k in ("value", "low", "high")))
            for name, part in parts.items()
        }
        counts = {
            name: f"{n:,}" if isinstance(n := row[name], int) else n for name in ("n", "events")
        }
        few = any(part.get("reason") == TOO_FEW for part in parts.values())
        told = not row.get("hidden")
        lines.append({"name": str(row["level"]), **counts, "told": told, "few": few, **values})
    return lines


def subgroup_rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The subgroups that the report shows: the cause of interest, at each landmark, by its longest defined horizon.

    All landmarks, causes and horizons are in `metrics.json`. Showing one horizon keeps the tables readable.
    """
    rows = [row for row in metrics.get("subgroups") or [] if row["cause"] == metrics["causes"][0]]
    shown: list[dict[str, Any]] = []
    for landmark in (row["landmark_days"] for row in metrics["at_risk"]):
        here = [
            row
            for row in rows
            if row["landmark_days"] == landmark and row["horizon_days"] is not None
        ]
        defined = [
            row["horizon_days"]
            for row in here
            if any((row.get(name) or {}).get("value") is not None for name in ("oe", "auc"))
        ]
        horizon = max(defined or [row["horizon_days"] for row in here], default=None)
        shown += [row for row in here if row["horizon_days"] == horizon]
    return shown


# --------------------------------------------------------------------------- refits, repeated splits, recalibration


def instability(m: Mapping[str, Any]) -> dict[str, Any] | None:
    """Spread of the risks over refits, in groups of at least 11 subjects of similar risk."""
    found = m.get("instability")
    if not found:
        return None
    spreads = [figures.Spread(**group) for group in found["groups"]]
    title = f"Risk by {duration(found['horizon_days'])} over {found['resamples']} refits"
    figure = figures.instability(spreads, title=title) if spreads else None
    return {**found, "bootstrap": bool(found.get("bootstrap")), "figure": figure, "title": title}


def repeated(m: Mapping[str, Any], models: Sequence[str]) -> dict[str, Any] | None:
    """Means over random splits with corrected intervals: all landmarks and horizons together first."""
    found = m.get("repeated_splits")
    if not found:
        return None
    rows = {(place_of(row), row["model"], row["metric"]): row for row in found["rows"]}
    gaps = {(place_of(row), row["model"], row["metric"]): row for row in found["differences"]}
    blocks = []
    places = dict.fromkeys(place for place, _, _ in rows)
    for place in sorted(places, key=lambda p: (p[0] is not None, p[2] is not None)):
        here = [(model, metric) for at, model, metric in rows if at == place]
        metrics = [
            one.key
            for one in in_columns(METRICS.values())
            if one.key in {metric for _, metric in here}
        ]
        landmark, cause, horizon = place
        where = (
            "mean of all landmarks and horizons"
            if landmark is horizon is None
            else from_landmark(landmark)
        )
        where += "" if horizon is None else f", by {duration(horizon)}"
        table = []
        for name in dict.fromkeys(model for model, _ in here):
            keys = [(place, name, metric) for metric in metrics]
            cells = [(_mean(rows.get(key), key[2]), _gap(gaps.get(key), key[2])) for key in keys]
            table.append((models.index(name) if name in models else 9, name, cells))
        blocks.append({"caption": f"{cause}: {where}", "metrics": metrics, "rows": table})
    return {"splits": found["splits"], "seeds": found.get("seeds") or [], "blocks": blocks}


def _mean(row: Mapping[str, Any] | None, metric: str) -> tuple[str, str]:
    """A mean and its interval."""
    if row is None or row["mean"] is None:
        return (str(row["reason"]) if row is not None and row.get("hidden") else "undefined"), ""
    show = f".{METRICS[metric].digits}f"
    return f"{row['mean']:{show}}", interval(row["low"], row["high"], show)


def _gap(row: Mapping[str, Any] | None, metric: str) -> list[str]:
    """The paired difference to a baseline, and whether our model is better."""
    if row is None or row["mean"] is None or not METRICS[metric].better:
        return []
    return [signed({**row, "value": row["mean"]}, metric), f"ours: {verdict(row, metric)}"]


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
                words = METRICS[measure].name + (
                    "" if horizon is None else f" by {duration(horizon)}"
                )
                rows.append((cause, words, *(_number(side.get(horizon)) for side in two)))
    return {"rows": rows, "fitted_on": found.get("fitted_on")}


def blend(m: Mapping[str, Any]) -> dict[str, Any] | None:
    """The weights of a blend as text, a row per cause and a column per part; and the blend minus its best part."""
    found = m.get("blend")
    if not found:
        return None
    by_cause: dict[str, list[str]] = {}
    for row in found["weights"]:
        by_cause.setdefault(row["cause"], []).append(
            with_interval(row["value"], row["low"], row["high"], ".2f", "–")
        )
    best, gaps = found.get("best_part"), dict[tuple[float | None, float | None], list[str]]()
    for row in m.get("differences") or []:
        is_asked = (row["model"], row["cause"]) == (best, m["causes"][0]) and row[
            "metric"
        ] in _OF_BLEND
        if is_asked and row["value"] is not None and not row.get("reason"):
            told = f"{METRICS[row['metric']].name} {signed(row, row['metric'])} {verdict(row, row['metric'])}"
            gaps.setdefault((row["landmark_days"], row["horizon_days"]), []).append(told)
    facts = {"folds": found["folds"], "parts": found["parts"], "rows": list(by_cause.items())}
    in_order = sorted(gaps.items(), key=lambda pair: pair[0][1] is not None)  # likelihoods first
    return facts | {"best": best, "tuning_nll": found.get("tuning_nll") or {}, "gaps": in_order}


_OF_BLEND = ("nll", "c", "ipa")  # in which a blend is compared with its best part


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
