"""What is evaluated: a source of risks, which is a trained run or somebody else's file of predictions."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Floats, Ints, row_blocks, scratch
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.metrics.hazards import LEAST_SURVIVAL, hazards_through
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class RiskSource:
    """Anything that answers a task at the prediction times of a population.

    Attributes:
        name: The model's name in every table.
        where: What error messages point to.
        task: The question that it answers.
        study: Settings that go with it.
        vocabulary: Names of the tokens of the records.
        edges_days: Inner edges of the time grid on which baselines are fitted.
        config: The settings that the report lists.
        run: The run, with what only a run can tell (history, seeds, audit); None for predictions alone.
    """

    name: str
    where: str
    task: TaskConfig
    study: StudyConfig
    vocabulary: Vocabulary
    edges_days: tuple[float, ...]
    config: dict[str, Any]
    run: Run | None = None

    @property
    def is_curve(self) -> bool:
        """Whether risks are known at every day up to the last horizon, and not only at the horizons."""
        return True

    @property
    def knots_days(self) -> Floats | None:
        """Where every model's likelihood is that of a curve through its risks; None: each by its own hazards."""
        return None

    def risk(self, records: TaskRecords, horizons_days: Floats) -> Floats:
        """(R, causes, H) cumulative incidence, given no event in the task's blanking."""
        raise NotImplementedError

    def nll(self, records: TaskRecords) -> Floats | None:
        """(R,) negative log-likelihood; None where there is none."""
        raise NotImplementedError


@dataclass(frozen=True, init=False)
class RunRisks(RiskSource):
    """A run as a source of risks.

    Raises:
        EhrseqError: It has the `visit` head, whose risks have no horizons in days.
    """

    run: Run

    def __init__(self, run: Run) -> None:
        if run.is_visit_head:
            raise EhrseqError(
                "the visit head has no risks at horizons to evaluate",
                where=str(run.folder),
                fix="train with model.head=horizon",
            )
        super().__init__(
            name=OURS,
            where=str(run.folder),
            task=run.task,
            study=run.study,
            vocabulary=run.vocabulary,
            edges_days=run.study.model.edges_days,
            config=run.study.model_dump(mode="json"),
            run=run,
        )

    def from_zero(self, records: TaskRecords, horizons_days: Floats) -> Floats:
        """(R, causes, H) cumulative incidence from the prediction time on, whatever the task's blanking."""
        return self._answers(records, horizons_days, start_days=0.0)

    def risk(self, records: TaskRecords, horizons_days: Floats) -> Floats:
        """See `RiskSource`."""
        return self._answers(records, horizons_days, start_days=self.task.blanking)

    def _answers(self, records: TaskRecords, days: Floats, *, start_days: float) -> Floats:
        """Risks given no event until `start_days`, for some subjects at a time, in the batches of all together."""
        out = scratch(len(records), len(self.task.causes), len(days))
        count, done = sum(1 for _ in row_blocks(len(records))), 0
        for some in cut_at_batches(records, *self.run.answers.batches(records), count=count):
            out[done : done + len(some)] = conditional_risk(
                partial(self._now, some), days, start_days=start_days
            )
            done += len(some)
        return out

    def _now(self, records: TaskRecords, days: Floats) -> Floats:
        return self.run.risk(records, horizons_days=days).astype(np.float64)

    def nll(self, records: TaskRecords) -> Floats:
        """See `RiskSource`."""
        return self.run.nll(records)


def nll_through(
    risk: Floats, knots_days: Floats, rows: TaskRows, *, start_days: float = 0.0
) -> Floats:
    """Likelihood of the curve through the risks, with the follow-up cut at the last knot τ_K.

        NLL_p = Σ_e Σ_k λ_{e,k} · |[τ_{k−1}, τ_k) ∩ [s, min(T, τ_K))|  −  Σ_e 1[cause = e, T ≤ τ_K] · log λ_{e, k(T)}

    with the hazards of `hazards_through`. Between two knots it knows no more than that the hazard is constant: what a
    model says within them is neither rewarded nor punished beyond that, so that it must be the same for all models that
    are compared.

    Args:
        risk: (R, E, K) cumulative incidence at each knot, given no event until s.
        knots_days: (K,) rising.
        rows: The prediction times with their labels.
        start_days: s, the task's blanking.

    Returns:
        (R,); infinite where an event falls between two knots at which its risk is the same, or nobody should be left.
    """
    hazards = hazards_through(risk, knots_days, start_days=start_days)
    hazards = np.where(np.isfinite(hazards), hazards, np.inf)
    last = knots_days[-1]
    duration, cause = (
        np.minimum(rows.duration_days, last),
        np.where(rows.duration_days <= last, rows.cause, 0),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        nll = horizon_nll(
            hazards,
            knots_days[:-1].tolist(),
            duration_days=duration,
            cause=cause,
            entry_days=rows.entry_days,
        )
    return np.where(np.isnan(nll), np.inf, nll)


def nll_of_curves(
    risks: Mapping[str, Floats], knots_days: Floats, rows: TaskRows, *, start_days: float
) -> tuple[dict[str, Floats], list[str]]:
    """Model → (R,) likelihood of the curve through its risks, where it is finite; and who has none."""
    found, notes = dict[str, Floats](), list[str]()
    for name, risk in risks.items():
        nll = nll_through(risk, knots_days, rows, start_days=start_days)
        if np.isfinite(nll).all():
            found[name] = nll
        else:
            notes.append(f"{name} has no NLL: an event falls where its curve is flat.")
    return found, notes


def risk_through(
    risk: Floats, knots_days: Floats, days: Floats, *, start_days: float = 0.0
) -> Floats:
    """Cumulative incidence (R, E, D) at other days, none after the last knot, of the curve through the risks.

    From where the risks sum to 1, hazards would be infinite: a few in 1e12 are taken to be left there.
    """
    hazards = hazards_through(
        risk, knots_days, start_days=start_days, least_survival=LEAST_SURVIVAL
    )
    return cumulative_incidence(hazards, knots_days[:-1].tolist(), days, start_days=start_days)


def cut_at_batches(
    records: TaskRecords, starts: Ints, cost: Ints, *, count: int
) -> Iterator[TaskRecords]:
    """Subjects in so many parts of about equal cost, which begin where batches begin: risks keep their bits.

    Args:
        records: To cut.
        starts: (b,) the first subject of each batch.
        cost: (b,) of each batch.
        count: How many parts; some are empty where there are fewer batches.
    """
    if count == 1:
        yield records
        return
    done = np.cumsum(cost, dtype=np.float64)
    part = np.minimum((done - cost / 2) * count // max(float(done[-1]), 1.0), count - 1)
    first = np.searchsorted(part, np.arange(1, count))
    bounds = [0, *np.append(starts, len(records.timelines))[first].tolist(), len(records.timelines)]
    for low, high in itertools.pairwise(bounds):
        yield records.take(slice(low, high))
