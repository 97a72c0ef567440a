"""Sums of several sites → pooled metrics, and how far the sites differ. Plain numbers in and out."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import chi2, norm, t

from ehrsequencing.core.arrays import Floats
from ehrsequencing.metrics.censoring import divide

SUMS = ("n", "known", "observed", "expected", "squared_error", "concordant", "pairs", "events")
Cell = Mapping[str, Any]
_MEANS = ("mean", "low", "high", "tau", "i2", "q", "p", "next_low", "next_high")


def pooled(cells: Sequence[Cell]) -> dict[str, float | None]:
    """Metrics of all sites' rows together, from sums.

    Observed and expected risk, O/E, Brier score, IPA and C are exactly those of the pooled rows weighted by each site's
    own G; C compares subjects of the same site only. The AUC also compares subjects of different sites. It comes from
    the bins, and `auc_error` is the most that it can be off.

    Args:
        cells: The sites' cells of one cause, horizon and landmark, as `aggregates.aggregate` gives them.
    """
    total = {name: float(sum(cell[name] for cell in cells)) for name in SUMS}
    n = total["n"]
    observed, expected, known = (total[name] / n for name in ("observed", "expected", "known"))
    brier = total["squared_error"] / n
    null = (known - observed) * observed**2 + observed * (1 - observed) ** 2
    auc, error = binned_auc(cells)
    return {
        "observed": observed,
        "expected": expected,
        "oe": _ratio(observed, expected),
        "brier": brier,
        "ipa": None if null < 1e-12 else 1 - brier / null,
        "c": _ratio(total["concordant"], total["pairs"]),
        "auc": auc,
        "auc_error": error,
    }


def binned_auc(cells: Sequence[Cell]) -> tuple[float | None, float | None]:
    """Cumulative/dynamic AUC from bins of predicted risk, and the largest error that the bins allow.

    A case and a control in bins that do not overlap are compared exactly. Where bins overlap the pair counts one half,
    which is wrong by at most one half.
    """
    bins = [one for cell in cells for one in cell["bins"]]
    low, high, known, case = (
        np.array([one[k] for one in bins]) for k in ("low", "high", "known", "observed")
    )
    control = known - case
    weight = np.multiply.outer(case, control)
    total = float(weight.sum())
    if not total:
        return None, None
    above = low[:, None] >= high[None, :]
    overlap = ~above & (high[:, None] > low[None, :])
    unsure = 0.5 * float(weight[overlap].sum()) / total
    return float(weight[above].sum()) / total + unsure, unsure


def pooled_bins(cells: Sequence[Cell]) -> list[dict[str, float]]:
    """Observed and predicted risk in bins whose edges all sites share."""
    edges = sorted(
        set.intersection(*({one["low"] for one in cell["bins"]} for cell in cells)) | {1.0}
    )
    out = []
    for low, high in pairwise(edges):
        inside = [one for cell in cells for one in cell["bins"] if low <= one["low"] < high]
        n = sum(one["n"] for one in inside)
        if n:
            sums = {k: sum(one[k] for one in inside) / n for k in ("expected", "observed")}
            out.append(
                {
                    "low": low,
                    "high": high,
                    "n": n,
                    "predicted": sums["expected"],
                    "observed": sums["observed"],
                }
            )
    return out


def random_effects(values: Sequence[float], errors: Sequence[float]) -> dict[str, float | None]:
    """Random-effects meta-analysis (DerSimonian & Laird 1986), with Higgins' I² and a prediction interval.

    Args:
        values: (k,) one estimate per site, on a scale on which it is about normal.
        errors: (k,) their standard errors.

    Returns:
        `mean` with `low` and `high` (95 %), between-site standard deviation `tau`, `i2`, `q` and its `p`, and
        `next_low` and `next_high`, between which a new site's true value lies with 95 % (from three sites on).
    """
    y, v = np.asarray(values, dtype=np.float64), np.asarray(errors, dtype=np.float64) ** 2
    k, w = len(y), 1 / v
    q = float(w @ (y - w @ y / w.sum()) ** 2)
    freedom = k - 1
    tau2 = max(0.0, (q - freedom) / float(w.sum() - (w**2).sum() / w.sum())) if freedom else 0.0
    total = float((1 / (v + tau2)).sum())
    mean, error = float((1 / (v + tau2)) @ y) / total, total**-0.5
    z = float(norm.ppf(0.975))
    out: dict[str, float | None] = {
        "mean": mean,
        "low": mean - z * error,
        "high": mean + z * error,
        "tau": tau2**0.5,
        "i2": max(0.0, (q - freedom) / q) if q > 0 else 0.0,
        "q": q,
        "p": float(chi2.sf(q, freedom)) if freedom else None,
        "next_low": None,
        "next_high": None,
    }
    if k >= 3:
        reach = float(t.ppf(0.975, k - 2)) * (tau2 + error**2) ** 0.5
        out |= {"next_low": mean - reach, "next_high": mean + reach}
    return out


def heterogeneity(cells: Sequence[Cell], *, metric: str) -> dict[str, Any]:
    """Each site's C or O/E with its interval, and their random-effects mean (null if fewer than two have an error).

    Args:
        cells: The sites' cells.
        metric: `c`, pooled as logit C, or `oe`, pooled as log O/E.
    """
    z = float(norm.ppf(0.975))
    to, back, error = (
        (logit, expit, "logit_c_se") if metric == "c" else (np.log, np.exp, "log_oe_se")
    )
    found: list[tuple[float, float] | None] = []
    for cell in cells:
        top, bottom = ("concordant", "pairs") if metric == "c" else ("observed", "expected")
        value = _ratio(cell[top], cell[bottom])
        if value is None or value <= 0 or (metric == "c" and value >= 1) or not cell[error]:
            found.append(None)
        else:
            found.append((float(to(value)), cell[error]))
    usable = [pair for pair in found if pair is not None]
    mean = dict.fromkeys(_MEANS) if len(usable) < 2 else random_effects(*zip(*usable, strict=True))
    on_scale = ("mean", "low", "high", "next_low", "next_high")
    told = {name: _back(back, value) if name in on_scale else value for name, value in mean.items()}
    ends = {"value": 0.0, "low": -z, "high": z}
    sites = [
        p and {name: _back(back, p[0] + end * p[1]) for name, end in ends.items()} for p in found
    ]
    return {**told, "sites": sites}


def _back(function: Any, value: float | None) -> float | None:
    return None if value is None else float(function(value))


def _ratio(top: float, bottom: float) -> float | None:
    found: Floats = divide(top, bottom)
    return float(found) if np.isfinite(found) else None
