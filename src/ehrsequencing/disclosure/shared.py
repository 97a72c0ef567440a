"""What of an evaluation may be shared: the exact result goes in, the content of `metrics.json` comes out.

It tells no more than the report does. Counts are told as the report prints them (a number, or a text such as `<11`),
metrics where the report shows them, and with as many decimals. The data of curves and of single persons is left out:
the report draws it coarsened. What is not named here is left out too, so that no new key of the result slips through.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ehrsequencing.core.minimum_counts import shareable_count
from ehrsequencing.disclosure.counts import publish, subgroup_rows
from ehrsequencing.disclosure.derived import SUBGROUP_METRICS, disclose, told_of_levels
from ehrsequencing.disclosure.small_counts import exact
from ehrsequencing.metrics.registry import METRICS

INDIVIDUAL = "metrics-individual.json"
_AS_THEY_ARE = (
    "title",
    "run",
    "split",
    "created",
    "versions",
    "task",
    "question",
    "causes",
    "horizons_days",
    "landmarks_days",
    "models",
    "strongest",
    "config",
    "warnings",
    "recalibrated_in_training",
    "score",
    "tripod",
)
_LEFT_OUT = (
    "calibration",
    "smooth_calibration",
    "decision",
    "risk_distribution",
    "trajectories",
    "incidence",
)
_MEDIAN = ("median_days", "low", "high")
_CHECKS = (
    "time_zero",
    "predictor_cutoff",
    "audit",
    "events_per_parameter",
    "parameters",
    "tuning_trials",
    "seeds",
    "members",
)
_RATES = {
    "unknown_token_rate": 4,
    "numeric_value_rate": 4,
    "codes_per_visit": 1,
    "visits_per_subject": 1,
}
Shown = Mapping[Any, str]
Row = Mapping[str, Any]


def shared(result: Row) -> dict[str, Any]:
    """The view of an evaluation that people may share."""
    shown = publish(result)
    m = disclose(result, shown)
    out = {"individual": INDIVIDUAL} | {name: m[name] for name in _AS_THEY_ARE if name in m}
    return out | {
        "data": _data(m, shown),
        "attrition": [_step(step, i, shown) for i, step in enumerate(m["attrition"])],
        "events": {
            split: {name: _count(shown, "events", split, name) for name in events}
            for split, events in m["events"].items()
        },
        "at_risk": [_at_risk(row, m["horizons_days"], shown) for row in m["at_risk"]],
        "follow_up": [
            {**row, **{k: _rounded(row[k], 0) for k in _MEDIAN}} for row in m.get("follow_up") or []
        ],
        "censoring": {"model": (m.get("censoring") or {}).get("model")},
        "baselines": [_rounded(row, METRICS["nll"].digits) for row in m.get("baselines") or []],
        "metrics": [_metric(row, shown) for row in m["metrics"]],
        "differences": [_metric(row, shown) for row in m.get("differences") or []],
        "subgroups": _subgroups(m, shown),
        "inputs": _inputs(m.get("inputs")),
        "checks": _checks(m, shown),
        "instability": {k: v for k, v in (m.get("instability") or {}).items() if k != "points"}
        or None,
        "external": _external(m, shown),
        "recalibration": _recalibration(m.get("recalibration")),
        "blend": _blend(m.get("blend")),
        "codes": _rounded(m.get("codes"), 4),
        "repeated_splits": _repeated(m.get("repeated_splits")),
        "history": [
            {k: v for k, v in row.items() if k != "subjects_per_second"} for row in m["history"]
        ],
        "records_before": None,
        "oracle": None,
        **{name: [] for name in _LEFT_OUT},
    }


def _count(shown: Shown, *key: Any) -> int | str | None:
    """A count as the report prints it: a number where it is exact, else its text; None where it is not printed."""
    text = shown.get(key)
    return int(text.replace(",", "")) if text is not None and exact(text) else text


def _rounded(value: Any, digits: int) -> Any:
    """Every number with decimals in it, rounded."""
    if isinstance(value, Mapping):
        return {key: _rounded(inner, digits) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner, digits) for inner in value]
    return round(value, digits) if isinstance(value, float) else value


def _printed(value: Any, key: str) -> Any:
    """Values of a metric with the decimals that the report prints."""
    known = METRICS.get(key)
    return _rounded(value, 3 if known is None else known.digits + (2 if known.scale == 100 else 0))


def _data(m: Row, shown: Shown) -> dict[str, Any]:
    data = m["data"]
    times = data.get("prediction_times") or {}
    told = {split: n for split, n in times.items() if exact(shown.get(("subjects", split), ""))}
    subjects = {split: _count(shown, "subjects", split) for split in data["subjects"]}
    own = {name: data.get(name) for name in ("name", "simulated", "visits")}
    return {**own, "subjects": subjects, "prediction_times": told}


def _step(step: Row, i: int, shown: Shown) -> dict[str, Any]:
    left_out = _count(shown, "out", i) if i else 0
    return {
        "step": step["step"],
        "subjects": _count(shown, "flow", i),
        "excluded": left_out,
        "reason": step.get("reason"),
    }


def _at_risk(row: Row, horizons: Sequence[float], shown: Shown) -> dict[str, Any]:
    landmark = row["landmark_days"]
    events = {
        name: [_count(shown, "by", landmark, name, h) for h in horizons] for name in row["events"]
    }
    median = _rounded(row["followup_median_days"], 0)
    subjects = _count(shown, "at_risk", landmark)
    return {
        "landmark_days": landmark,
        "subjects": subjects,
        "followup_median_days": median,
        "events": events,
    }


def _metric(row: Row, shown: Shown) -> dict[str, Any]:
    """A long row; its counts where they are those that the report prints: of a landmark, a cause and a horizon."""
    place = (row["landmark_days"], row["cause"], row["horizon_days"])
    events = _count(shown, "by", *place)
    subjects = None if events is None else _count(shown, "at_risk", row["landmark_days"])
    limits = {name: _printed(row[name], row["metric"]) for name in ("value", "low", "high")}
    return {**row, **limits, "subjects": subjects, "events": events}


def _subgroups(m: Row, shown: Shown) -> list[dict[str, Any]]:
    """The subgroups of the report, by the same rule."""
    rows, out = subgroup_rows(m), []
    places = dict.fromkeys((row["landmark_days"], row["group"]) for row in rows)
    for place in places:
        family = [row for row in rows if (row["landmark_days"], row["group"]) == place]
        for row, told in zip(family, told_of_levels(family, shown), strict=True):
            key = ("group", row["landmark_days"], row["group"], row["level"])
            counts = {name: _count(shown, *key, name) or "hidden" for name in ("n", "events")}
            values = {
                name: _printed(row.get(name), name) if name in told else None
                for name in SUBGROUP_METRICS
            }
            out.append({**row, **counts, **values})
    return out


def _inputs(found: Row | None) -> dict[str, Any] | None:
    """Rates of tokens and visits; shares of people stay behind."""
    if not found:
        return None
    rates = {
        split: {name: _rounded(row.get(name), digits) for name, digits in _RATES.items()}
        for split, row in found["by_split"].items()
    }
    drift = [
        {"feature": row["feature"], "smd": _rounded(row["smd"], 1)}
        for row in found.get("drift") or []
    ]
    return {"by_split": rates, "drift": drift}


def _checks(m: Row, shown: Shown) -> dict[str, Any] | None:
    found = m.get("checks")
    if not found:
        return None
    out = {name: found.get(name) for name in _CHECKS}
    if not exact(shown.get(("events", "train", m["causes"][0]), "")):
        out["events_per_parameter"] = None  # times the parameters it is the events
    overlap = found.get("split_overlap") or {}
    out["split_overlap"] = {
        "shared_subjects": shareable_count(overlap.get("shared_subjects")),
        "hash": overlap.get("hash"),
    }
    return out


def _external(m: Row, shown: Shown) -> dict[str, Any] | None:
    found = m.get("external")
    if not found:
        return None
    rates = ("unknown_token_rate", "training_unknown_token_rate")
    return {
        **{name: found.get(name) for name in ("data", "unmatched", "baselines")},
        **{name: _rounded(found.get(name), 4) for name in rates},
        "subjects": _count(shown, "external"),
        "events": {
            name: _count(shown, "events", m["split"], name) for name in found.get("events") or {}
        },
        "seen_in_training": shareable_count(found.get("seen_in_training")),
        "new_codes": [{"code": row["code"]} for row in found.get("new_codes") or []],
    }


def _recalibration(found: Row | None) -> dict[str, Any] | None:
    if not found:
        return None
    fitted = {
        cause: {name: value for name, value in one.items() if name != "events"}
        for cause, one in (found.get("fitted") or {}).items()
    }
    sides = {side: _rounded(found[side], METRICS["oe"].digits) for side in ("before", "after")}
    return {**found, **sides, "fitted": fitted}


def _blend(found: Row | None) -> dict[str, Any] | None:
    if not found:
        return None
    told = _rounded(found.get("tuning_nll"), METRICS["nll"].digits)
    return {**_rounded(found, 2), "tuning_nll": told}


def _repeated(found: Row | None) -> dict[str, Any] | None:
    """Means over the splits; not each split's value, which with its size may give its events away."""
    if not found:
        return None

    def line(row: Row) -> dict[str, Any]:
        return {
            **row,
            "values": [],
            **{name: _printed(row[name], row["metric"]) for name in ("mean", "low", "high")},
        }

    tables = {name: [line(row) for row in found[name]] for name in ("rows", "differences")}
    return {"splits": found["splits"], "seeds": found.get("seeds"), **tables}
