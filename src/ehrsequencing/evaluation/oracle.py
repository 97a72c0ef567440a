"""Compares a run with the true hazards of a simulation: how close it comes to the best possible model.

A simulation writes, for each held-out prediction time, the hazards that the best possible model would give
(`truth_hazards.parquet`), and what each mechanism adds to the outcome's log hazard (`truth_mechanisms.parquet`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ehrsequencing.config import TaskConfig, load_task
from ehrsequencing.core.arrays import Bools, Floats, Ints, row_blocks
from ehrsequencing.evaluation.comparison import ORACLE
from ehrsequencing.evaluation.population import Population, rows_of
from ehrsequencing.metrics.bootstrap import mean_by_subject
from ehrsequencing.metrics.hazards import (
    cumulative_incidence,
    event_bin,
    exposure,
    hazards_through,
    horizon_nll,
)
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.parquet_rows import read_batches
from ehrsequencing.records.prepared import simulation_faults
from ehrsequencing.records.timelines import TaskRecords, TaskRows

TRUTH, MECHANISMS, TASK = "truth_hazards.parquet", "truth_mechanisms.parquet", "task.yaml"
_KEY = ("subject_id", "prediction_time")  # of a line of the truth
ANSWERED = ("index", "outcome", "competing", "censoring", "recurrent")  # they change the truth
LEAK_Z = 3.0  # standard errors by which no honest model beats the truth
_NO_HAZARD = 1e-12  # per day: a true hazard of zero has no logarithm
_LEAST = 1e-3  # of a bin's mean hazard: what is below is taken to be this


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
        """The truth of a split, or None where there is none or it knows nothing of this split.

        Args:
            data: Folder of the records; the truth of their outcomes may lie beside them.
            records: Visits and prediction times of the split.
            causes: The task's causes.
        """
        if not (data / TRUTH).is_file():
            return None
        names: set[str] = set()
        edges = np.zeros(0)
        for batch in read_batches(data / TRUTH, ["cause", "start_days", "stop_days"]):
            names.update(batch["cause"].unique().to_pylist())
            edges = np.unique(np.r_[edges, batch["start_days"], batch["stop_days"]])
        if names != set(causes):
            return None  # another task on these records
        number = pa.array(causes)
        hazards = np.full((len(records), len(causes), len(edges) - 1), np.nan)
        for batch in read_batches(data / TRUTH, [*_KEY, "cause", "start_days", "hazard"]):
            line, row = _lines(batch, records)
            cause = np.asarray(pa.compute.index_in(batch["cause"], number))[line]
            bin_ = np.searchsorted(edges, np.asarray(batch["start_days"])[line])
            hazards[row, cause, bin_] = np.asarray(batch["hazard"])[line]
        if np.isnan(hazards).all():
            return None
        mechanisms: dict[str, Floats] = {}
        columns = [*_KEY, "mechanism", "log_hazard_ratio"]
        there = (data / MECHANISMS).is_file()
        for batch in read_batches(data / MECHANISMS, columns) if there else ():
            line, row = _lines(batch, records)
            mechanism = np.asarray(batch["mechanism"].to_pylist())[line]
            ratio = np.asarray(batch["log_hazard_ratio"])[line]
            for name in np.unique(mechanism).tolist():
                here = mechanism == name
                mechanisms.setdefault(name, np.full(len(records), np.nan))[row[here]] = ratio[here]
        return cls(edges, hazards, mechanisms)

    @cached_property
    def known(self) -> Bools:
        """(R,) prediction times with a truth."""
        return np.asarray(~np.isnan(self.hazards).any(axis=(1, 2)), dtype=np.bool_)

    @property
    def design(self) -> Floats:
        """(R, 1 + mechanisms) a one and the log hazard ratio of each mechanism."""
        return np.column_stack([np.ones(len(self.hazards)), *self.mechanisms.values()])

    def nll(self, rows: TaskRows) -> Floats:
        """(R,) NLL of the true hazards, Σ_e ∫ λ*_e over the exposure − log λ*_cause(duration); NaN without a truth."""
        return horizon_nll(
            self.hazards,
            self.edges_days[1:-1].tolist(),
            duration_days=rows.duration_days,
            cause=rows.cause,
            entry_days=rows.entry_days,
        )

    def risk(self, horizons_days: Floats) -> Floats:
        """(R, E, H) true cumulative incidence by each horizon; NaN without a truth."""
        hazards = np.maximum(np.nan_to_num(self.hazards, nan=1.0), _NO_HAZARD)
        risk = cumulative_incidence(hazards, self.edges_days[1:-1].tolist(), horizons_days)
        return np.where(self.known[:, None, None], risk, np.nan)


class TrueHazards(Predictor):
    """The truth as a predictor at its own prediction times."""

    name = ORACLE
    by_hazards = False

    def __init__(self, truth: Truth) -> None:
        self.truth, self.n_causes = truth, truth.hazards.shape[1]
        self.edges_days = tuple(truth.edges_days[1:-1].tolist())

    def hazards(self, records: TaskRecords) -> Iterator[tuple[slice, Floats]]:
        """See `Predictor`; NaN without a truth."""
        for rows in row_blocks(len(self.truth.hazards)):
            yield rows, self.truth.hazards[rows]


# ---- one model beside the truth ------------------------------------------------------------


def bin_hazards(risk: Floats, edges_days: Floats) -> Floats:
    """Constant hazards per bin and day (R, E, K) with the cumulative incidences (R, E, K) at the bins' ends."""
    return hazards_through(
        risk, edges_days[1:], start_days=float(edges_days[0]), least_survival=1e-12
    )


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
    inner, known = truth.edges_days[1:-1].tolist(), np.flatnonzero(truth.known)
    true, cause = truth.hazards[known], rows.cause[known].astype(np.int64)
    duration = rows.duration_days[known]
    least = np.maximum(_LEAST * true.mean(axis=0), _NO_HAZARD)
    logs, design = np.log(np.maximum(true, least)), truth.design[known]
    slopes = np.linalg.lstsq(design, logs.reshape(len(known), -1), rcond=None)[0]
    stake = np.log(np.maximum(model[known], least)) - (design @ slopes).reshape(true.shape)
    at_risk = exposure(inner, rows.entry_days[known], duration)
    own = -np.einsum("rek,rk->r", stake * true, at_risk)
    had = np.flatnonzero(cause > 0)
    own[had] += stake[had, cause[had] - 1, event_bin(inner, duration[had])]
    nats = np.full(len(truth.hazards), np.nan)
    nats[known] = own
    return nats


def beside_the_truth(
    nll_model: Floats, nll_oracle: Floats, *, foresight: Floats, subject: Ints
) -> dict[str, Any]:
    """The NLL of a model beside that of the truth, and whether it is better than the truth can be.

    A model is leaking where its NLL is better than the truth's by more than `LEAK_Z` standard errors *and* it foresees
    events: the first alone a good model reaches too, where the truth is noisy.

    Args:
        nll_model: (R,) the model's NLL.
        nll_oracle: (R,) the truth's, NaN where unknown.
        foresight: (R,) what `foresight` says of the model, NaN where unknown.
        subject: (R,) whose prediction time it is.

    Returns:
        The `name` of the truth; `nll_model`, `nll_oracle` and `nll_difference` (means, the model less the truth) with
        its standard error by subject, `nll_difference_se`; `nll_z` and `foresight_z`, how many standard errors the
        model is better by either, and `beats_oracle_z`, the smaller of both: above 3 it is leaking.
    """
    known = ~np.isnan(nll_oracle) & ~np.isnan(nll_model)
    less, se = mean_by_subject(nll_model[known] - nll_oracle[known], subject[known])
    seen, seen_se = mean_by_subject(foresight[known], subject[known])
    nll_z, foresight_z = -less / max(se, 1e-12), seen / max(seen_se, 1e-12)
    return {
        "name": ORACLE,
        "nll_model": float(nll_model[known].mean()),
        "nll_oracle": float(nll_oracle[known].mean()),
        "nll_difference": less,
        "nll_difference_se": se,
        "beats_oracle_z": min(nll_z, foresight_z),
        "nll_z": nll_z,
        "foresight_z": foresight_z,
        "prediction_times": int(known.sum()),
    }


def excess(model: Floats, truth: Truth, rows: TaskRows) -> Floats:
    r"""What a model's hazards cost above the truth, with the chance of events removed: 0 at the truth, else above.

        Σ_e |bin k at risk| · (m − λ* − λ* · log(m / λ*))

    Its sum over the bins is what the row's NLL is expected to exceed that of the truth by, given how long the row was
    at risk.

    Args:
        model: (R, E, K) m per day in the bins of the truth.
        truth: λ*.
        rows: The prediction times.

    Returns:
        (R, K) nats, NaN without a truth.
    """
    true = np.maximum(truth.hazards, _NO_HAZARD)
    said = np.maximum(model, _NO_HAZARD)
    days = exposure(truth.edges_days[1:-1].tolist(), rows.entry_days, rows.duration_days)
    return np.asarray((said - true - true * np.log(said / true)).sum(axis=1) * days)


def excess_rows(costs: Floats, truth: Truth, rows: TaskRows) -> list[dict[str, Any]]:
    """Mean excess (`costs` (R, K)) by kind of prediction time, in whole and by third of the truth's bins."""
    bins_of = np.arange(costs.shape[1])
    parts = [bins_of, *(one for one in np.array_split(bins_of, 3) if len(one))]
    table: list[dict[str, Any]] = []
    for kind, of_kind in (("visit", ~rows.is_query), ("query", rows.is_query)):
        chosen = costs[truth.known & of_kind]
        for bins in parts if len(chosen) else []:
            table.append(
                {
                    "kind": kind,
                    "from_days": float(truth.edges_days[bins[0]]),
                    "until_days": float(truth.edges_days[bins[-1] + 1]),
                    "prediction_times": len(chosen),
                    "value": float(chosen[:, bins].sum(axis=1).mean()),
                }
            )
    return table


def _lines(batch: pa.RecordBatch, records: TaskRecords) -> tuple[Ints, Ints]:
    """Lines (m,) of the truth that speak of a prediction time, and its number (m,)."""
    row = rows_of(records, *(batch[name].cast(pa.int64()) for name in _KEY))
    line = np.flatnonzero(row >= 0)
    return line, row[line]


# ---- the part of the result ----------------------------------------------------------------


def truth_of(population: Population, task: TaskConfig) -> tuple[Truth | None, list[str]]:
    """The truth of a population's prediction times, if a simulation answers this very task; and why it does not."""
    data = population.source
    if data is None:
        return None, []
    if (data / TRUTH).is_file() and (data / TASK).is_file():
        own = load_task(data / TASK)
        other = [name for name in ANSWERED if getattr(own, name) != getattr(task, name)]
        if other:
            what = f"its task has another {', '.join(other)}."
            return None, [f"No comparison with the truth of the simulation: {what}"]
    if changed := simulation_faults(data, parts=["truth"]):
        what = f"{', '.join(changed)} is missing or has changed since it was written."
        return None, [f"No comparison with the truth of the simulation: {what}"]
    return Truth.read(data, population.records, causes=task.causes), []


def oracle_table(
    truth: Truth, predictor: Predictor, records: TaskRecords, nll: Floats
) -> dict[str, Any]:
    """Content of `oracle`.

    Args:
        truth: Of the prediction times.
        predictor: The run's.
        records: The prediction times.
        nll: (R,) the run's NLL.
    """
    rows = records.rows
    risk = predictor.risk(records, truth.edges_days[1:])
    hazards = bin_hazards(risk, truth.edges_days)
    sees = foresight(hazards, truth, rows)
    table = beside_the_truth(nll, truth.nll(rows), foresight=sees, subject=rows.subject)
    return {
        **table,
        "excess": excess_rows(excess(hazards, truth, rows), truth, rows),
    }


def oracle_warnings(table: dict[str, Any]) -> list[str]:
    """What a reader of `oracle` must be warned of."""
    if table["beats_oracle_z"] > LEAK_Z:
        return [
            "The model beats the true hazards by more than three standard errors: it is leaking."
        ]
    if table["nll_z"] > LEAK_Z:
        return [
            "The model's NLL beats that of the true hazards by more than three standard errors, but it foresees no "
            "event that they do not expect: they are means over too few simulated futures. Raise truth_futures."
        ]
    return []
