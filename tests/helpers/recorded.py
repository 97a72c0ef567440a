"""Two evaluations of our own simulation, recorded once (`tests/data/README.md`), as if their people were real."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
YEAR = 365.25
MODELS = ["ehrsequencing", "boosted visits", "age + sex", "landmark Cox", "Aalen–Johansen"]
ORACLE = {"nll_model": 1.103, "nll_oracle": 1.061, "nll_difference": 0.042, "nll_difference_se": 0.011}
KEY = ("model", "landmark_days", "cause", "horizon_days", "metric")
#: What a result holds where nothing was computed.
NOTHING: dict[str, Any] = {
    **{name: [] for name in ("differences", "decision", "subgroups", "smallest_g", "follow_up")},
    **{name: [] for name in ("records_before", "incidence", "baselines")},
    **dict.fromkeys(("external", "repeated_splits", "audit", "blend", "score")),
    **dict.fromkeys(("weights", "strongest", "made_of", "table1")),
    "inputs": {"by_split": {}},
    "checks": {},
    "tripod": {},
    "recalibrated_in_training": False,
}
CALIBRATION = {"intercept", "slope", "ici", "e50", "e90", "ici_null", "aj", "aj_null", "ks", "ks_p"}
#: Names of the counts of people in a result.
COUNTS = {"subjects", "events", "excluded", "n", "seen_in_training", "shared_subjects", "no_event", "unknown", "people"}
COUNTS |= {"above", "events_above", "indexes", "followed"}
COUNTS |= {"evaluated", "at_risk", "prediction_times", "visits", "without_record_before", "first_record_later"}


@cache
def _text(name: str) -> str:
    return (DATA / f"{name}.json").read_text(encoding="utf-8")


def recorded(name: str = "narrow", *, share: float = 1.0) -> dict[str, Any]:
    """One cause, landmark 0 and two horizons; or `wide`: two causes, landmarks, three horizons; with fewer people."""
    metrics = json.loads(_text(name))
    metrics["data"]["simulated"] = False
    metrics["checks"]["tuning_trials"] = 12
    metrics |= {"made_of": None, "weights": None, "run": "/home/somebody/runs/17"}
    fewer: dict[str, Any] = with_counts(metrics, lambda count: int(count * share))
    return fewer


def with_counts(part: Any, change: Callable[[int], int], key: str = "") -> Any:
    """The result, or a part of it, with every count of people changed."""
    if isinstance(part, dict):
        return {
            name: with_counts(inner, change, key if key in COUNTS and name not in COUNTS else name)
            for name, inner in part.items()
        }
    if isinstance(part, list):
        return [with_counts(inner, change, key) for inner in part]
    is_count = key in COUNTS and isinstance(part, int) and not isinstance(part, bool)
    return change(part) if is_count else part


def bare(metrics: dict[str, Any]) -> dict[str, Any]:
    """The result without what a run need not have."""
    rows = [row for row in metrics["metrics"] if row["metric"] not in CALIBRATION]
    return metrics | NOTHING | {"metrics": rows}


def without_first_horizon(metrics: dict[str, Any]) -> dict[str, Any]:
    """The result without a number at its first horizon."""
    for row in metrics["metrics"]:
        if row["horizon_days"] == metrics["horizons_days"][0]:
            row.update(value=None, low=None, high=None)
    return metrics


def simulation(**oracle: Any) -> dict[str, Any]:
    """The result beside the truth."""
    metrics = recorded()
    metrics["data"]["simulated"] = True
    return metrics | {"oracle": ORACLE | oracle}


def of_split(
    seed: int,
    values: dict[tuple[Any, ...], float],
    train: int = 80,
    held_out: int = 20,
    counts: tuple[int, int] = (20, 40),
) -> dict[str, Any]:
    """What is kept of one random split: a value for each model, landmark, cause, horizon and metric."""
    rows = [
        {**dict(zip(KEY, place, strict=True)), "value": value, "events": counts[0], "subjects": counts[1]}
        for place, value in values.items()
    ]
    return {"seed": seed, "train_subjects": train, "held_out_subjects": held_out, "metrics": rows}
