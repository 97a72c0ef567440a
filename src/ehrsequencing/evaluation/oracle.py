"""Against known truth: how much of the way from no knowledge to the best possible model a run has gone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ehrsequencing.records.grid import cohort_hazards, event_bin, exposure
from ehrsequencing.records.meds import read_table
from ehrsequencing.records.timelines import TaskRows, Timelines

TRUTH = "truth_hazards.parquet"


def oracle_nll(data: Path, timelines: Timelines, rows: TaskRows, *, causes: Sequence[str]) -> NDArray[np.float64]:
    """NLL of the true hazards at each prediction time: Σ_e ∫ λ*_e over the exposure − log λ*_cause(duration).

    Args:
        data: Folder of the simulation, with `truth_hazards.parquet`.
        timelines: Visits of a split.
        rows: Prediction times of the same split.
        causes: The task's causes.

    Returns:
        (R,) NLL; NaN where the simulation has no truth.
    """
    truth = read_table(data / TRUTH)
    owner = _match(truth, timelines, rows)
    known = owner >= 0
    owner = owner[known]
    truth = truth.filter(pa.array(known))
    cause = np.array([causes.index(name) + 1 for name in truth["cause"].to_pylist()])
    start, stop, hazard = (truth[name].to_numpy() for name in ("start_days", "stop_days", "hazard"))
    stop = np.where(stop >= stop.max(), np.inf, stop)  # the last bin is open
    duration, entry = np.asarray(rows.duration_days)[owner], np.asarray(rows.entry_days)[owner]
    span = np.maximum(np.minimum(duration, stop) - np.maximum(entry, start), 0.0)
    hit = (np.asarray(rows.cause)[owner] == cause) & (start <= duration) & (duration < stop)
    terms = hazard * span - np.where(hit, np.log(np.where(hit, hazard, 1.0)), 0.0)
    out = np.full(len(rows), np.nan)
    seen = np.unique(owner)
    out[seen] = np.bincount(owner, weights=terms, minlength=len(rows))[seen]
    return out


def _match(truth: pa.Table, timelines: Timelines, rows: TaskRows) -> NDArray[np.int64]:
    """Row of the task that each line of the truth speaks of, -1 where there is none."""
    subject = np.asarray(timelines.subject_id)[rows.subject]
    ours = np.rec.fromarrays([subject, np.asarray(rows.prediction_us)])
    theirs = np.rec.fromarrays([truth["subject_id"].to_numpy(), truth["prediction_time"].cast(pa.int64()).to_numpy()])
    order = np.argsort(ours)
    position = np.clip(np.searchsorted(ours[order], theirs), 0, max(len(ours) - 1, 0))
    return np.where(ours[order][position] == theirs, order[position], -1)


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
