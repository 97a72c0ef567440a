"""Against known truth: how much of the way from no knowledge to the best possible model a run has gone.

A simulation writes, for each held-out prediction time, the hazards that the best possible model would give
(`truth_hazards.parquet`), and what each mechanism adds to the outcome's log hazard (`truth_mechanisms.parquet`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ehrsequencing.models.survival import cumulative_incidence
from ehrsequencing.records.grid import cohort_hazards, event_bin, exposure
from ehrsequencing.records.meds import read_table
from ehrsequencing.records.timelines import TaskRows, Timelines

TRUTH, MECHANISMS = "truth_hazards.parquet", "truth_mechanisms.parquet"
EARLY_DAYS = 30.0  # the mechanisms are those of the prediction time; they are sought in the risk soon after it
_NO_HAZARD = 1e-12  # per day: a true hazard of zero has no logarithm
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """What the best possible model could say at the prediction times of a split.

    Attributes:
        edges_days: (K + 1,) edges of the bins, from 0; the last bin is open.
        hazards: (R, E, K) per day; NaN where the simulation has no truth.
        mechanisms: Name → (R,), log hazard of the outcome with the mechanism minus without it, at the prediction time.
    """

    edges_days: Floats
    hazards: Floats
    mechanisms: dict[str, Floats]

    @classmethod
    def read(cls, data: Path, timelines: Timelines, rows: TaskRows, *, causes: Sequence[str]) -> "Truth | None":
        """The truth of a split, or None where the data is no simulation or knows nothing of this split.

        Args:
            data: Folder of the simulation.
            timelines: Visits of the split.
            rows: Prediction times of the split.
            causes: The task's causes.
        """
        if not (data / TRUTH).is_file():
            return None
        table = read_table(data / TRUTH)
        names = table["cause"].unique().to_pylist()
        if set(names) != set(causes):
            return None  # another task on these records
        owner = _match(table, timelines, rows)
        start, stop = table["start_days"].to_numpy(), table["stop_days"].to_numpy()
        edges = np.unique(np.r_[start, stop])
        cause_number = table["cause"].dictionary_encode().combine_chunks()
        cause = np.array([causes.index(name) for name in cause_number.dictionary.to_pylist()], dtype=np.int64)
        hazards = np.full((len(rows), len(causes), len(edges) - 1), np.nan)
        known = owner >= 0
        place = cause[cause_number.indices.to_numpy()], np.searchsorted(edges, start)
        hazards[owner[known], place[0][known], place[1][known]] = table["hazard"].to_numpy()[known]
        if np.isnan(hazards).all():
            return None
        return cls(edges, hazards, _read_mechanisms(data, timelines, rows))

    @property
    def known(self) -> NDArray[np.bool_]:
        """(R,) prediction times with a truth."""
        return np.asarray(~np.isnan(self.hazards).any(axis=(1, 2)), dtype=np.bool_)

    def nll(self, rows: TaskRows) -> Floats:
        """(R,) NLL of the true hazards, Σ_e ∫ λ*_e over the exposure − log λ*_cause(duration); NaN without a truth."""
        inner = self.edges_days[1:-1].tolist()
        duration, cause = np.asarray(rows.duration_days), np.asarray(rows.cause).astype(np.int64)
        span = exposure(inner, rows.entry_days, duration)
        nll = np.einsum("rek,rk->r", self.hazards, span)
        had = np.flatnonzero(cause > 0)
        nll[had] -= np.log(self.hazards[had, cause[had] - 1, event_bin(inner, duration[had])])
        return np.asarray(nll, dtype=np.float64)

    def risk(self, horizons_days: Floats) -> Floats:
        """(R, E, H) true cumulative incidence by each horizon; NaN without a truth."""
        logits = torch.from_numpy(np.log(np.maximum(np.nan_to_num(self.hazards, nan=1.0), _NO_HAZARD)))
        inner = self.edges_days[1:-1].tolist()
        risk = cumulative_incidence(logits, inner, horizons_days=[float(days) for days in horizons_days]).numpy()
        risk[~self.known] = np.nan
        return np.asarray(risk, dtype=np.float64)


def _read_mechanisms(data: Path, timelines: Timelines, rows: TaskRows) -> dict[str, Floats]:
    if not (data / MECHANISMS).is_file():
        return {}
    table = read_table(data / MECHANISMS)
    owner, names, ratio = _match(table, timelines, rows), table["mechanism"], table["log_hazard_ratio"].to_numpy()
    out = {}
    for name in names.unique().to_pylist():
        here = (owner >= 0) & np.asarray(pa.compute.equal(names, name))
        out[name] = np.full(len(rows), np.nan)
        out[name][owner[here]] = ratio[here]
    return out


# ---- one model beside the truth --------------------------------------------------------------------------------------


def risk_errors(
    model: Floats, true: Floats, *, causes: Sequence[str], horizons_days: Floats, subject: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """How far predicted risks are from true ones, per cause and horizon.

    `slope` is that of the true risk on the predicted one: 1 where predictions are neither too extreme nor too timid,
    whatever they miss. `slope_reversed`, of the predicted on the true risk, falls with what a model has not learned.

    Args:
        model: (R, E, H) predicted cumulative incidences.
        true: (R, E, H) true ones; rows with NaN do not count.
        causes: Names.
        horizons_days: (H,).
        subject: (R,) the rows' subjects, for the standard error.

    Returns:
        One mapping per cause and horizon: `rmse`, `slope`, `slope_se` (by subject), `slope_reversed`, `correlation`;
        None where undefined.
    """
    out = []
    for e, cause in enumerate(causes):
        for h, horizon in enumerate(horizons_days.tolist()):
            known = ~np.isnan(true[:, e, h])
            x, y = model[known, e, h], true[known, e, h]
            covariance = np.cov(x, y) if len(x) > 1 else np.zeros((2, 2))
            between, defined = covariance[0, 1], len(x) > 1 and bool(np.ptp(x) > 0 and np.ptp(y) > 0)
            slope = float(between / covariance[0, 0]) if defined else None
            out.append({
                "cause": cause, "horizon_days": horizon, "rmse": float(np.sqrt(np.mean((x - y) ** 2))),
                "slope": slope, "slope_se": None if slope is None else slope_error(x, y, slope, subject[known]),
                "slope_reversed": float(between / covariance[1, 1]) if defined else None,
                "correlation": float(between / np.sqrt(covariance[0, 0] * covariance[1, 1])) if defined else None,
            })  # fmt: skip
    return out


def slope_error(x: Floats, y: Floats, slope: float, subject: NDArray[np.int64]) -> float:
    """Standard error of a least-squares slope of y on x whose rows belong together by subject (sandwich)."""
    x = x - x.mean()
    by_subject = np.bincount(subject, weights=x * (y - y.mean() - slope * x))
    return float(np.sqrt((by_subject**2).sum()) / (x @ x))


def hazard_rmse_per_year(model_risk: Floats, truth: Truth, *, causes: Sequence[str]) -> dict[str, float]:
    """Root mean square error of each cause's hazard, per year, over the bins of the truth.

    The model's hazard in a bin is the constant one with the model's incidences, as the truth's is. Bins count by their
    length and by the chance to live to see them.

    Args:
        model_risk: (R, E, K) the model's cumulative incidence at the end of each bin of the truth.
        truth: The truth.
        causes: Names.
    """
    width = np.diff(truth.edges_days)
    incidence = np.concatenate([np.zeros_like(model_risk[:, :, :1]), model_risk], axis=2)
    survival = np.maximum(1 - incidence.sum(axis=1), 1e-12)
    gained = np.diff(incidence, axis=2)
    total = np.log(survival[:, :-1] / survival[:, 1:]) / width
    either = gained.sum(axis=1, keepdims=True)
    hazard = total[:, None] * np.divide(gained, either, out=np.zeros_like(gained), where=either > 0)
    known = truth.known
    alive = np.exp(-np.cumsum(truth.hazards[known].sum(axis=1) * width, axis=1)) * width
    squared = ((hazard[known] - truth.hazards[known]) * 365.25) ** 2
    mean = np.einsum("rek,rk->e", squared, alive) / alive.sum()
    return dict(zip(causes, np.sqrt(mean).tolist(), strict=True))


def mechanism_shares(
    model_early: Floats, true_early: Floats, truth: Truth, subject: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """How much of each mechanism a model has learned: 1 all of it, 0 nothing.

    Least squares of the log cumulative hazard soon after the prediction time on every mechanism's log hazard ratio
    (knob on minus knob off) at it, for the model and for the truth; the share is the quotient of the two slopes. It
    says what the model does with the mechanism, whatever else it does.

    Args:
        model_early: (R,) the model's risk of the outcome within `EARLY_DAYS`.
        true_early: (R,) the true one.
        truth: With the mechanisms.
        subject: (R,) the rows' subjects, for the standard error.

    Returns:
        One mapping a mechanism that varies: `mechanism`, `share`, `share_se` (by subject), `sd` of its ratio's log.
    """
    known = truth.known & (true_early > 0) & (model_early > 0)
    names = [name for name, ratio in truth.mechanisms.items() if np.std(ratio[known]) > 1e-6]
    if not names or known.sum() <= len(names) + 1:
        return []
    ratios = np.stack([truth.mechanisms[name][known] for name in names], axis=1)
    design = np.column_stack([np.ones(len(ratios)), ratios])
    answers = np.log(-np.log1p(-np.minimum(np.stack([model_early, true_early], axis=1)[known], 1 - 1e-9)))
    inverse = np.linalg.inv(design.T @ design)
    slopes = inverse @ (design.T @ answers)
    share = slopes[:, 0] / slopes[:, 1]
    residual = answers - design @ slopes  # the delta method: both slopes come from the same rows
    influence = (residual[:, :1] - residual[:, 1:] * share) / slopes[:, 1] * (design @ inverse)
    by_subject = np.stack([np.bincount(subject[known], weights=column) for column in influence.T], axis=1)
    se = np.sqrt((by_subject**2).sum(axis=0))
    return [
        {"mechanism": name, "share": float(share[k]), "share_se": float(se[k]), "sd": float(ratios[:, k - 1].std())}
        for k, name in enumerate(names, start=1)
    ]


def oracle_gap(
    nll_model: NDArray[np.float64],
    nll_oracle: NDArray[np.float64],
    *,
    train: TaskRows,
    rows: TaskRows,
    edges_days: Sequence[float],
    n_causes: int,
) -> dict[str, Any]:
    """Share of the NLL gain from the cohort's own hazards (null) to the truth (oracle) that a model reaches.

    Args:
        nll_model: (R,) the model's NLL.
        nll_oracle: (R,) the truth's, NaN where unknown.
        train: Training rows, on which the null hazards are fitted.
        rows: The evaluated rows.
        edges_days: Grid of the null hazards.
        n_causes: Number of causes.

    Returns:
        `nll_null`, `nll_model`, `nll_oracle` (means), `gain_share` with its standard error by subject, and
        `beats_oracle_z`: how many standard errors the model is better than the truth; above 3 it is leaking.
    """
    hazards = cohort_hazards(edges_days, train.entry_days, train.duration_days, train.cause, n_causes=n_causes)
    span = exposure(edges_days, rows.entry_days, rows.duration_days)
    nll_null = span @ hazards.sum(axis=0)
    had = np.asarray(rows.cause) > 0
    bins = event_bin(edges_days, rows.duration_days)
    nll_null[had] -= np.log(hazards[np.asarray(rows.cause)[had] - 1, bins[had]])
    known = ~np.isnan(nll_oracle) & ~np.isnan(nll_model)
    subject = rows.subject[known]
    null, model, oracle = nll_null[known], nll_model[known], nll_oracle[known]
    gain, best = null.mean() - model.mean(), null.mean() - oracle.mean()
    share = gain / best
    # The delta method for a ratio of means; rows of one subject are summed first, since they belong together.
    influence = _by_subject((null - model) - share * (null - oracle), subject) / (len(null) * best)
    excess = _by_subject(oracle - model - (oracle - model).mean(), subject) / len(null)
    se_excess = float(np.sqrt(np.sum(excess**2)))
    return {
        "nll_null": float(null.mean()), "nll_model": float(model.mean()), "nll_oracle": float(oracle.mean()),
        "gain_share": float(share), "gain_share_se": float(np.sqrt(np.sum(influence**2))),
        "beats_oracle_z": float((oracle - model).mean() / max(se_excess, 1e-12)),
        "prediction_times": int(known.sum()),
    }  # fmt: skip


def _by_subject(values: NDArray[np.float64], subject: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(np.bincount(subject, weights=values), dtype=np.float64)


def _match(truth: pa.Table, timelines: Timelines, rows: TaskRows) -> NDArray[np.int64]:
    """Row of the task that each line of the truth speaks of, -1 where there is none."""
    subject = np.asarray(timelines.subject_id)[rows.subject]
    ours = np.rec.fromarrays([subject, np.asarray(rows.prediction_us)])
    theirs = np.rec.fromarrays([truth["subject_id"].to_numpy(), truth["prediction_time"].cast(pa.int64()).to_numpy()])
    order = np.argsort(ours)
    position = np.clip(np.searchsorted(ours[order], theirs), 0, max(len(ours) - 1, 0))
    return np.where(ours[order][position] == theirs, order[position], -1)
