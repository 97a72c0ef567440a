"""Sources of risks: a run, a baseline, a file of predictions, the truth of a simulation.

Each answers two questions at the prediction times of a population: the risk by some days, and the likelihood by its own
hazards. The truth is in `oracle`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from ehrsequencing.baselines.base import Baseline
from ehrsequencing.baselines.blend.blend import RunAnswers
from ehrsequencing.config import StudyConfig, TaskConfig, format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints, row_blocks, scratch
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.comparison import OURS
from ehrsequencing.metrics.censoring import conditional_risk
from ehrsequencing.metrics.hazards import LEAST_SURVIVAL, hazards_through
from ehrsequencing.metrics.outcomes import ROUNDING
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.hazards import cumulative_incidence, horizon_nll
from ehrsequencing.records.timelines import TaskRecords, TaskRows
from ehrsequencing.records.vocabulary import Vocabulary

# Horizons from which the curve through them has nearly the model's likelihood: in the simulator's default world five
# evenly spaced ones keep 97 % of what the true hazards gain over the cohort's, three 89 %, one 75 %.
FEWEST_KNOTS = 5


@dataclass(frozen=True)
class RiskSource(ABC):
    """Anything that answers a task at the prediction times of a population; `name` is the model's in every table."""

    name: str

    @abstractmethod
    def risk(self, records: TaskRecords, horizons_days: Floats) -> Floats:
        """(R, causes, H) cumulative incidence, given no event in the task's blanking."""

    @abstractmethod
    def nll(self, records: TaskRecords) -> Floats | None:
        """(R,) negative log-likelihood; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedRisks(RiskSource):
    """The source that an evaluation is about.

    Attributes:
        where: What error messages point to.
        task: The question that it answers.
        study: Settings that go with it.
        vocabulary: Names of the tokens of the records.
        edges_days: Inner edges of the time grid on which baselines are fitted.
        config: The settings that the report lists.
        run: The run, with what only a run can tell (history, seeds, audit); None for predictions alone.
    """

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


@dataclass(frozen=True, init=False)
class RunRisks(EvaluatedRisks):
    """A run as a source of risks.

    Attributes:
        answers: What it says; default: as it was trained.
        own: The run's own records, where others ask at the prediction times that they have in common.
        place: (R,) number among them of each prediction time that is asked about.

    Raises:
        EhrseqError: It has the `visit` head, whose risks have no horizons in days.
    """

    run: Run
    answers: RunAnswers
    own: TaskRecords | None
    place: Ints | slice

    def __init__(
        self,
        run: Run,
        *,
        name: str = OURS,
        answers: RunAnswers | None = None,
        own: TaskRecords | None = None,
        place: Ints | slice = slice(None),
    ) -> None:
        if run.is_visit_head:
            raise EhrseqError(
                "the visit head has no risks at horizons to evaluate",
                where=str(run.folder),
                fix="train with model.head=horizon",
            )
        super().__init__(
            name=name,
            where=str(run.folder),
            task=run.task,
            study=run.study,
            vocabulary=run.vocabulary,
            edges_days=run.study.model.edges_days,
            config=run.study.model_dump(mode="json"),
            run=run,
        )
        vars(self).update(answers=answers or run.answers, own=own, place=place)

    def risk(
        self, records: TaskRecords, horizons_days: Floats, *, start_days: float | None = None
    ) -> Floats:
        """See `RiskSource`; given no event until `start_days`, by default the task's blanking.

        Some subjects at a time, in the batches of all together.
        """
        start = self.task.blanking if start_days is None else start_days
        records = self.own or records
        out = scratch(len(records), len(self.task.causes), len(horizons_days))
        count = sum(1 for _ in row_blocks(len(records)))
        done = 0
        for some in cut_at_batches(records, *self.answers.batches(records), count=count):
            part = slice(done, done + len(some))
            out[part] = conditional_risk(
                partial(self._from_zero, some), horizons_days, start_days=start
            )
            done = part.stop
        return out[self.place]

    def _from_zero(self, records: TaskRecords, days: Floats) -> Floats:
        return self.answers.risk(records, horizons_days=days).astype(np.float64)

    def nll(self, records: TaskRecords) -> Floats:
        """See `RiskSource`."""
        return self.answers.nll(self.own or records)[self.place]


@dataclass(frozen=True, kw_only=True)
class FileRisks(EvaluatedRisks):
    """Risks of a file as what is evaluated.

    Attributes:
        horizons_days: (H,) horizons of the file, among them the task's.
        values: (R, causes, H) the risks.
        labels: The prediction times with their labels.
    """

    horizons_days: Floats
    values: Floats
    labels: TaskRecords

    @cached_property
    def incoherent(self) -> Bools:
        """(R,) prediction times at which a risk falls with the horizon, or the causes' risks sum to more than 1."""
        falling = (np.diff(self.values, axis=2) < -ROUNDING).any(axis=(1, 2))
        total = self.values.sum(axis=1).max(axis=1)
        return np.asarray(falling | (total > 1 + ROUNDING * self.values.shape[1]), dtype=np.bool_)

    @property
    def is_curve(self) -> bool:
        """See `RiskSource`: there are enough horizons, and the risks are incidences."""
        return len(self.horizons_days) >= FEWEST_KNOTS and not self.incoherent.any()

    @cached_property
    def _rising(self) -> Floats:
        """The risks without what rounding does."""
        rising = np.maximum.accumulate(self.values, axis=2)
        return np.asarray(
            rising / np.maximum(rising.sum(axis=1, keepdims=True), 1.0), dtype=np.float64
        )

    @property
    def knots_days(self) -> Floats | None:
        """See `RiskSource`."""
        return self.horizons_days if self.is_curve else None

    def risk(self, records: TaskRecords, horizons_days: Floats) -> Floats:
        """See `RiskSource`: at horizons of the file its own risks, at other days those of the curve through them."""
        at = np.minimum(
            np.searchsorted(self.horizons_days, horizons_days), len(self.horizons_days) - 1
        )
        known = self.horizons_days[at] == horizons_days
        out = np.empty((*self.values.shape[:2], len(horizons_days)))
        out[:, :, known] = self.values[:, :, at[known]]
        if not known.all():
            days, start = horizons_days[~known], self.task.blanking
            out[:, :, ~known] = risk_through(
                self._rising, self.horizons_days, days, start_days=start
            )
        return out

    @cached_property
    def _nll(self) -> Floats:
        start = self.task.blanking
        return nll_through(self._rising, self.horizons_days, self.labels.rows, start_days=start)

    def nll(self, records: TaskRecords) -> Floats | None:
        """See `RiskSource`."""
        return self._nll if self.is_curve and np.isfinite(self._nll).all() else None

    def warnings(self) -> list[str]:
        """Why there is no likelihood, or what kind of likelihood it is."""
        if self.incoherent.any():
            return [
                "At some prediction times a risk falls with the horizon, or the "
                "causes' risks sum to over 1. NLL and the integrated Brier score are left out: these are no cumulative "
                "incidences."
            ]
        if not self.is_curve:
            return [
                f"NLL and the integrated Brier score are left out: they need the risks of {FEWEST_KNOTS} or more "
                f"horizons, and the file has {len(self.horizons_days)}."
            ]
        if not np.isfinite(self._nll).all():
            return [
                "NLL is left out: some events fall where the predicted curve is flat, so that it is infinite."
            ]
        last = format_days(float(self.horizons_days[-1]))
        return [
            f"NLL is that of curves through the risks at the {len(self.horizons_days)} horizons of the file, with the "
            f"follow-up cut at {last}. It is so for every model here, and cannot be compared with other reports."
        ]


@dataclass(frozen=True)
class BaselineRisks(RiskSource):
    """A baseline as a source of risks for a task."""

    model: Baseline
    task: TaskConfig

    def risk(self, records: TaskRecords, horizons_days: Floats) -> Floats:
        """See `RiskSource`."""
        every = np.arange(len(records))
        out = scratch(len(every), len(self.task.causes), len(horizons_days))
        for some in row_blocks(len(every)):
            out[some] = self.model.risk(
                records, every[some], horizons_days, start_days=self.task.blanking
            )
        return out

    def nll(self, records: TaskRecords) -> Floats:
        """See `RiskSource`."""
        return self.model.nll(records, np.arange(len(records)))


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
    with np.errstate(divide="ignore", invalid="ignore"):
        nll = horizon_nll(
            hazards,
            knots_days[:-1].tolist(),
            duration_days=np.minimum(rows.duration_days, last),
            cause=np.where(rows.duration_days <= last, rows.cause, 0),
            entry_days=rows.entry_days,
        )
    return np.where(np.isnan(nll), np.inf, nll)


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
