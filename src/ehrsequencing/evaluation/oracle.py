"""Compares a run with the true hazards of a simulation: how close it comes to the best possible model.

A simulation writes, for each held-out prediction time, the hazards that the best possible model would give
(`truth_hazards.parquet`), and what each mechanism adds to the outcome's log hazard (`truth_mechanisms.parquet`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ehrsequencing.config import TaskConfig, load_task
from ehrsequencing.core.arrays import Bools, Floats, Ints, row_blocks, scratch
from ehrsequencing.evaluation.comparison import ORACLE
from ehrsequencing.evaluation.population import Population, RowFinder
from ehrsequencing.evaluation.risk_source import RunRisks
from ehrsequencing.metrics.hazards import hazards_through
from ehrsequencing.models.risks import cumulative_incidence
from ehrsequencing.records.hazards import cohort_hazards, event_bin, exposure, horizon_nll
from ehrsequencing.records.parquet_rows import read_batches
from ehrsequencing.records.timelines import TaskRecords, TaskRows

TRUTH, MECHANISMS, TASK = "truth_hazards.parquet", "truth_mechanisms.parquet", "task.yaml"
_KEY = ("subject_id", "prediction_time")  # of a line of the truth
ANSWERED = ("index", "outcome", "competing", "censoring", "recurrent")  # they change the truth
LEAK_Z = 3.0  # standard errors by which no honest model beats the truth
_NO_HAZARD = 1e-12  # per day: a true hazard of zero has no logarithm
_LEAST = 1e-3  # of a bin's mean hazard: what is below is taken to be this


def is_simulation(data: Path | None) -> bool:
    """Whether records are those of a simulation: its truth lies beside them."""
    return data is not None and (data / TRUTH).is_file()


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
    def read(cls, data: Path, records: TaskRecords, *, causes: Sequence[str]) -> "Truth | None":
        """The truth of a split, or None where the data is no simulation or knows nothing of this split.

        Args:
            data: Folder of the simulation.
            records: Visits and prediction times of the split.
            causes: The task's causes.
        """
        if not is_simulation(data):
            return None
        names: set[str] = set()
        edges = np.zeros(0)
        for batch in read_batches(data / TRUTH, ["cause", "start_days", "stop_days"]):
            names.update(batch["cause"].unique().to_pylist())
            edges = np.unique(np.r_[edges, batch["start_days"], batch["stop_days"]])
        if names != set(causes):
            return None  # another task on these records
        finder, number = RowFinder(records), pa.array(causes)
        hazards = scratch(len(records), len(causes), len(edges) - 1)
        for batch in read_batches(data / TRUTH, [*_KEY, "cause", "start_days", "hazard"]):
            line, row = _lines(batch, finder)
            cause = np.asarray(pa.compute.index_in(batch["cause"], number))[line]
            bin_ = np.searchsorted(edges, np.asarray(batch["start_days"])[line])
            hazards[row, cause, bin_] = np.asarray(batch["hazard"])[line]
        if all(np.isnan(hazards[some]).all() for some in row_blocks(len(hazards))):
            return None
        return cls(edges, hazards, _read_mechanisms(data, records, finder))

    @cached_property
    def known(self) -> Bools:
        """(R,) prediction times with a truth."""
        return np.concatenate(
            [
                ~np.isnan(self.hazards[some]).any(axis=(1, 2))
                for some in row_blocks(len(self.hazards))
            ]
        )

    def design(self, some: Ints) -> Floats:
        """(r, 1 + mechanisms) a one and the log hazard ratio of each mechanism."""
        return np.column_stack(
            [np.ones(len(some)), *(ratio[some] for ratio in self.mechanisms.values())]
        )

    def parts(self) -> Iterator[Ints]:
        """Numbers of the prediction times with a truth, some at a time."""
        known = np.flatnonzero(self.known)
        return (known[some] for some in row_blocks(len(known)))

    def nll(self, rows: TaskRows) -> Floats:
        """(R,) NLL of the true hazards, Σ_e ∫ λ*_e over the exposure − log λ*_cause(duration); NaN without a truth."""
        return _nll(self.hazards, self.edges_days[1:-1].tolist(), rows)

    def risk(self, horizons_days: Floats) -> Floats:
        """(R, E, H) true cumulative incidence by each horizon; NaN without a truth."""
        inner = self.edges_days[1:-1].tolist()
        risk, known = scratch(*self.hazards.shape[:2], len(horizons_days)), self.known
        for some in row_blocks(len(risk)):
            logits = torch.from_numpy(
                np.log(np.maximum(np.nan_to_num(self.hazards[some], nan=1.0), _NO_HAZARD))
            )
            found = cumulative_incidence(
                logits, inner, horizons_days=horizons_days.tolist()
            ).numpy()
            risk[some] = np.where(known[some, None, None], found, np.nan)
        return risk


def other_settings(data: Path, task: TaskConfig) -> list[str]:
    """Settings in which a task asks another question than the one that a simulation's truth answers.

    Landmarks, horizons, `blanking` and eligibility may differ: they choose among the prediction times.
    """
    if not (data / TRUTH).is_file() or not (data / TASK).is_file():
        return []
    own = load_task(data / TASK)
    return [name for name in ANSWERED if getattr(own, name) != getattr(task, name)]


def _read_mechanisms(data: Path, records: TaskRecords, finder: RowFinder) -> dict[str, Floats]:
    out: dict[str, Floats] = {}
    if not (data / MECHANISMS).is_file():
        return out
    for batch in read_batches(data / MECHANISMS, [*_KEY, "mechanism", "log_hazard_ratio"]):
        line, row = _lines(batch, finder)
        names, ratio = (
            batch["mechanism"].take(pa.array(line)),
            np.asarray(batch["log_hazard_ratio"])[line],
        )
        for name in batch["mechanism"].unique().to_pylist():
            here = np.asarray(pa.compute.equal(names, name))
            out.setdefault(name, scratch(len(records)))[row[here]] = ratio[here]
    return out


# ---- one model beside the truth ------------------------------------------------------------


def bin_hazards(risk: Floats, edges_days: Floats) -> Floats:
    """Constant hazards per bin and day (R, E, K) with the cumulative incidences (R, E, K) at the bins' ends."""
    out = scratch(*risk.shape)
    for some in row_blocks(len(risk)):
        out[some] = hazards_through(
            risk[some], edges_days[1:], start_days=float(edges_days[0]), least_survival=1e-12
        )
    return out


def foresight(model: Floats, truth: Truth, rows: TaskRows) -> Floats:
    r"""What a model tells of the events beyond what the truth expects, in nats; above 0 on average only by a leak.

        Σ_e ∫ Y log(m_e / r_e) (dN_e − λ*_e du)

    with N the events, Y at risk, m the model's hazards, λ* the truth's. Of an honest model the mean is 0, since m and r
    are known at the prediction time and λ* is what is expected then, **and it stays 0 if λ* is a noisy mean over few
    simulated futures**, since λ* stands there linearly and its noise knows nothing of m, r or N. That is not so for a
    difference in NLL: with λ*(1 + ε) in place of λ* the truth's NLL is too high by

        Σ_e ∫ Y λ* (ε − log(1 + ε)) du  ≈  ½ Σ_e ∫ Y λ* ε² du

    half the expected events times the squared relative noise, and a better model "beats" it.

    r may be anything without that noise; the nearer to λ*, the smaller the standard error. It is a regression of
    log λ* on the mechanisms, per cause and bin.

    Args:
        model: (R, E, K) hazards per day in the bins of the truth.
        truth: The truth.
        rows: The prediction times.

    Returns:
        (R,), NaN without a truth.
    """
    inner = truth.edges_days[1:-1].tolist()
    total = sum(
        (truth.hazards[some].sum(axis=0) for some in truth.parts()),
        np.zeros(truth.hazards.shape[1:]),
    )
    least = np.maximum(_LEAST * (total / truth.known.sum()), _NO_HAZARD)
    slopes = _slopes_of_logs(truth, least)
    found = np.full(len(truth.hazards), np.nan)
    for some in truth.parts():
        true, cause, duration = (
            truth.hazards[some],
            rows.cause[some].astype(np.int64),
            rows.duration_days[some],
        )
        stake = np.log(np.maximum(model[some], least)) - (truth.design(some) @ slopes).reshape(
            true.shape
        )
        own = -np.einsum(
            "rek,rk->r", stake * true, exposure(inner, rows.entry_days[some], duration)
        )
        had = np.flatnonzero(cause > 0)
        own[had] += stake[had, cause[had] - 1, event_bin(inner, duration[had])]
        found[some] = own
    return found


def _slopes_of_logs(truth: Truth, least: Floats) -> Floats:
    """(1 + mechanisms, E K) least squares of log λ* on the mechanisms, from sums over the prediction times."""
    width = 1 + len(truth.mechanisms)
    gram, moment = np.zeros((width, width)), np.zeros((width, least.size))
    for some in truth.parts():
        design = truth.design(some)
        gram += design.T @ design
        moment += design.T @ np.log(np.maximum(truth.hazards[some], least)).reshape(len(some), -1)
    return np.asarray(np.linalg.lstsq(gram, moment, rcond=None)[0], dtype=np.float64)


def expected_gain_share(
    model: Floats, truth: Truth, *, train: TaskRows, rows: TaskRows
) -> float | None:
    """The share of the gain by what the truth expects, not by what happened.

        Σ ∫ Y (λ* log(m / λ⁰) − m + λ⁰)  /  Σ ∫ Y (λ* log(λ* / λ⁰) − λ* + λ⁰)

    with λ⁰ the cohort's own hazards in the bins of the truth. Outcomes decide only who is at risk. Noise of the truth
    makes the divisor too large by ½ Σ ∫ Y λ* ε² and that of `gain_share` too small by as much (see `foresight`): of an
    honest model this share is too low and the other too high.

    Args:
        model: (R, E, K) hazards per day in the bins of the truth.
        truth: The truth.
        train: Training rows, on which λ⁰ is fitted.
        rows: The evaluated rows.

    Returns:
        The share; None where the truth is λ⁰.
    """
    inner, n_causes = truth.edges_days[1:-1].tolist(), truth.hazards.shape[1]
    null = cohort_hazards(
        inner, train.entry_days, train.duration_days, train.cause, n_causes=n_causes
    )
    gained = best = 0.0
    for some in truth.parts():
        true, span = (
            truth.hazards[some],
            exposure(inner, rows.entry_days[some], rows.duration_days[some]),
        )
        of_model, of_truth = (
            float(
                np.einsum(
                    "rek,rk->",
                    true * np.log(np.maximum(said, _NO_HAZARD) / null) - said + null,
                    span,
                )
            )
            for said in (model[some], true)
        )
        gained, best = gained + of_model, best + of_truth
    return gained / best if best > 0 else None


def oracle_gap(
    nll_model: Floats,
    nll_oracle: Floats,
    *,
    foresight: Floats,
    train: TaskRows,
    rows: TaskRows,
    edges_days: Sequence[float],
    n_causes: int,
) -> dict[str, Any]:
    """Share of the NLL gain from the cohort's own hazards (null) to the truth (oracle) that a model reaches.

    A model is leaking where its NLL is better than the truth's by more than `LEAK_Z` standard errors *and* it foresees
    events: the first alone a good model reaches too, where the truth is noisy. `beats_oracle_z` is the smaller of both.

    Args:
        nll_model: (R,) the model's NLL.
        nll_oracle: (R,) the truth's, NaN where unknown.
        foresight: (R,) what `foresight` says of the model, NaN where unknown.
        train: Training rows, on which the null hazards are fitted.
        rows: The evaluated rows.
        edges_days: Grid of the null hazards.
        n_causes: Number of causes.

    Returns:
        `nll_null`, `nll_model`, `nll_oracle` (means), `gain_share` with its standard error by subject, and
        `beats_oracle_z`: how many standard errors the model is better than the truth, above 3 it is leaking; the
        smaller of `nll_z` (by the NLL) and `foresight_z`.
    """
    hazards = cohort_hazards(
        edges_days, train.entry_days, train.duration_days, train.cause, n_causes=n_causes
    )
    nll_null = _nll(hazards, edges_days, rows)
    known = ~np.isnan(nll_oracle) & ~np.isnan(nll_model)
    subject = rows.subject[known]
    null, model, oracle = nll_null[known], nll_model[known], nll_oracle[known]
    gain, best = null.mean() - model.mean(), null.mean() - oracle.mean()
    share = gain / best
    # The delta method for a ratio of means; rows of one subject are summed first, since they belong together.
    influence = _by_subject((null - model) - share * (null - oracle), subject) / (len(null) * best)
    nll_z, foresight_z = _z(oracle - model, subject), _z(foresight[known], subject)
    return {
        "nll_null": float(null.mean()),
        "nll_model": float(model.mean()),
        "nll_oracle": float(oracle.mean()),
        "gain_share": float(share),
        "gain_share_se": float(np.sqrt(np.sum(influence**2))),
        "beats_oracle_z": min(nll_z, foresight_z),
        "nll_z": nll_z,
        "foresight_z": foresight_z,
        "prediction_times": int(known.sum()),
    }


def _nll(hazards: Floats, edges_days: Sequence[float], rows: TaskRows) -> Floats:
    """(R,) NLL of hazards (R, E, K) of the rows, or (E, K) for all."""
    found = np.empty(len(rows))
    for some in row_blocks(len(rows)):
        found[some] = horizon_nll(
            hazards if hazards.ndim == 2 else hazards[some],
            edges_days,
            duration_days=rows.duration_days[some],
            cause=rows.cause[some],
            entry_days=rows.entry_days[some],
        )
    return found


def _z(values: Floats, subject: Ints) -> float:
    """Mean in its standard errors, by subject."""
    se = float(np.sqrt(np.sum(_by_subject(values - values.mean(), subject) ** 2))) / len(values)
    return float(values.mean() / max(se, 1e-12))


def _by_subject(values: Floats, subject: Ints) -> Floats:
    return np.asarray(np.bincount(subject, weights=values), dtype=np.float64)


def _lines(batch: pa.RecordBatch, finder: RowFinder) -> tuple[Ints, Ints]:
    """Lines (m,) of the truth that speak of a prediction time, and its number (m,)."""
    row = finder(*(np.asarray(batch[name].cast(pa.int64())) for name in _KEY))
    line = np.flatnonzero(row >= 0)
    return line, row[line]


# ---- the part of the result ----------------------------------------------------------------


def truth_of(population: Population, task: TaskConfig) -> tuple[Truth | None, list[str]]:
    """The truth of a population's prediction times, if a simulation answers this very task; and why it does not."""
    if population.source is None:
        return None, []
    other = other_settings(population.source, task)
    if other:
        what = f"its task has another {', '.join(other)}."
        return None, [f"No comparison with the truth of the simulation: {what}"]
    return Truth.read(population.source, population.records, causes=task.causes), []


def oracle_table(
    truth: Truth, source: RunRisks, records: TaskRecords, nll: Floats, *, train: TaskRows
) -> dict[str, Any]:
    """Content of `oracle`.

    Args:
        truth: Of the prediction times.
        source: The run.
        records: The prediction times.
        nll: (R,) the run's NLL.
        train: Training prediction times, on which the hazards of no knowledge are fitted.
    """
    rows = records.rows
    risk = source.from_zero(records, truth.edges_days[1:])
    hazards = bin_hazards(risk, truth.edges_days)
    gap = oracle_gap(
        nll,
        truth.nll(rows),
        foresight=foresight(hazards, truth, rows),
        train=train,
        rows=rows,
        edges_days=source.edges_days,
        n_causes=len(source.task.causes),
    )
    return gap | {
        "name": ORACLE,
        "gain_share_expected": expected_gain_share(hazards, truth, train=train, rows=rows),
    }


def oracle_warnings(found: Mapping[str, Any]) -> list[str]:
    """What a reader of `oracle` must be warned of."""
    if found["beats_oracle_z"] > LEAK_Z:
        return [
            "The model beats the true hazards by more than three standard errors: it is leaking."
        ]
    if found["nll_z"] > LEAK_Z:
        return [
            "The model's NLL beats that of the true hazards by more than three standard errors, but it foresees no "
            "event that they do not expect: they are means over too few simulated futures. Raise truth_futures."
        ]
    return []
