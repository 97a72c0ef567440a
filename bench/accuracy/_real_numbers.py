"""Means over splits, their intervals, and how they are written; for `bench/accuracy/real.py`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ehrsequencing.evaluation.comparison import NETWORK, OURS
from ehrsequencing.evaluation.repeated_splits import corrected_interval
from ehrsequencing.predictors.fit import MarginalIncidence

COLUMNS = {"nll": "NLL", "ipa": "IPA", "c": "C", "auc": "AUC", "oe": "O/E", "slope": "slope"}
DIGITS = {"nll": 4, "oe": 2, "slope": 2}  # of the others: 3
LOWER_IS_BETTER = ("nll",)
Values = dict[tuple[str, str], float]  # (model, metric) → one number of a split


def values_of(stored: Mapping[str, Any], horizon: float | None = None) -> Values:
    """One number per model and metric of a split: the mean over the landmark × horizon cells of the outcome.

    A cell counts where the metric is defined for every model that has it anywhere, so that all are averaged over the
    same cells. NLL has no horizons: the mean over landmarks.

    Args:
        stored: A split's `rows.json`.
        horizon: Only this horizon; default all.
    """
    rows = [
        row
        for row in stored["metrics"]
        if row["landmark_days"] is not None and row["metric"] in COLUMNS
    ]
    outcome = rows[0]["cause"]
    cells: dict[tuple[str, float, float | None], dict[str, float]] = {}
    for row in rows:
        here = horizon is None or row["horizon_days"] == horizon
        if here and row["cause"] == outcome and row["value"] is not None:
            place = row["metric"], row["landmark_days"], row["horizon_days"]
            cells.setdefault(place, {})[row["model"]] = float(row["value"])
    found: dict[tuple[str, str], list[float]] = {}
    have: dict[str, set[str]] = {}
    for (metric, *_), by_model in cells.items():
        have.setdefault(metric, set()).update(by_model)
    for (metric, *_), by_model in cells.items():
        if set(by_model) == have[metric]:
            for model, value in by_model.items():
                found.setdefault((model, metric), []).append(value)
    return {place: float(np.mean(values)) for place, values in found.items()}


def interval(
    values: Iterable[float], splits: Sequence[Mapping[str, Any]]
) -> tuple[float, float, float]:
    """Mean over splits with the interval of Nadeau and Bengio."""
    ratio = float(np.mean([one["held_out_subjects"] / one["train_subjects"] for one in splits]))
    return corrected_interval(list(values), ratio)


def tuning_means(splits: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Model → mean over splits of its likelihood on tuning subjects, the best first."""
    names = splits[0]["tuning_nll"]
    means = {name: float(np.mean([one["tuning_nll"][name] for one in splits])) for name in names}
    return dict(sorted(means.items(), key=lambda pair: pair[1]))


def ours_of(splits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Our models and what they are called: the network, or where a blend was trained the blend and its network."""
    if (NETWORK, "nll") not in values_of(splits[0]):
        return {OURS: NETWORK}
    return {OURS: "blend", NETWORK: "network alone"}


def strongest(splits: Sequence[Mapping[str, Any]]) -> str:
    """The baseline with the lowest mean likelihood on tuning subjects."""
    return next(name for name in tuning_means(splits) if name not in (OURS, NETWORK))


def seeds_of(splits: Sequence[Mapping[str, Any]]) -> str:
    """`20000–20003`, or each seed where some between them are missing."""
    seeds = [int(one["seed"]) for one in splits]
    if len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def cell(metric: str, found: tuple[float, float, float], *, signed: bool = False) -> str:
    """`value (low to high)`; a dash where it is undefined, no limits with one split."""
    mean, low, high = found
    form = f"{'+' if signed else ''}.{DIGITS.get(metric, 3)}f"
    if math.isnan(mean):
        return "–"
    return f"{mean:{form}}" if math.isnan(low) else f"{mean:{form}} ({low:{form}} to {high:{form}})"


def verdict(metric: str, found: tuple[float, float, float]) -> str:
    """What the interval of a difference allows one to say of ours."""
    _, low, high = found
    if math.isnan(low):
        return "no interval"
    if low <= 0 <= high:
        return "?"  # the interval holds 0
    return "better" if (low > 0) != (metric in LOWER_IS_BETTER) else "worse"


def gap(
    by_split: Sequence[Values],
    splits: Sequence[Mapping[str, Any]],
    model: str,
    metric: str,
    *,
    ours: str = OURS,
) -> tuple[float, float, float]:
    """One of ours minus another model, paired by split."""
    values = [
        found.get((ours, metric), math.nan) - found.get((model, metric), math.nan)
        for found in by_split
    ]
    return interval(values, splits)


def median_text(metric: str, values: Sequence[float]) -> str:
    """`; median 0.812` over the splits where it is defined; nothing with one split."""
    known = [value for value in values if not math.isnan(value)]
    form = f".{DIGITS.get(metric, 3)}f"
    return f"; median {np.median(known):{form}}" if len(known) > 1 else ""


def median_and_wins(
    by_split: Sequence[Values], model: str, metric: str, *, ours: str = OURS
) -> str:
    """`median +0.01, better in 16 of 25`: one of ours minus another model, paired by split."""
    gaps = np.array(
        [
            found.get((ours, metric), math.nan) - found.get((model, metric), math.nan)
            for found in by_split
        ]
    )
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps):
        return ""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    form = f"+.{DIGITS.get(metric, 3)}f"
    return f"median {np.median(gaps):{form}}, better in {np.sum(sign * gaps > 0)} of {len(gaps)}"


def oe_beside_cohort(found: Values, model: str) -> float:
    """The model's O/E over that of Aalen–Johansen; NaN without either."""
    return found.get((model, "oe"), math.nan) / found.get((MarginalIncidence.name, "oe"), math.nan)
