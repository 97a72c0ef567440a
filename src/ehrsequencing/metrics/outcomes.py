"""What a metric is, and the rows that it takes: outcomes, predicted risks, multiplicities, censoring weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.censoring import (
    RiskSets,
    StepFunction,
    SubjectClock,
    checked_outcome,
    divide,
)

__all__ = ["Metric", "ScoredRows"]

#: Risks may leave [0, 1] by this much (float32 sums do) and are cut back.
ROUNDING = 1e-6
T = TypeVar("T")


@dataclass(frozen=True)
class ScoredRows:
    """Rows at one landmark (or at all prediction times) with their outcome and predicted risk. Make it with `of`."""

    duration_days: Floats  # (n,) from the prediction time to the event or censoring
    cause: Ints  # (n,) int, 0 = censored, 1..causes
    risk: Floats  # (n, causes, horizons) predicted cumulative incidence
    horizons_days: Floats  # (horizons,) increasing
    weights: Floats  # (resamples, n) multiplicities; one row of ones without weights
    # G fitted on other rows, one for all or one for each row; None: fitted on these rows, again for each resample
    fixed_censoring: StepFunction | SubjectClock | None
    is_block: bool  # whether results keep a leading resample axis
    # (n, causes, horizons) events that the model's hazards expect of each row while it is under observation; None: it
    # has risks alone
    expected: Floats | None = None
    # (causes, horizons) where too few people had the event: costly metrics are NaN there
    too_few: Bools | None = None
    # what several metrics share, by the function that gives it
    shared: dict[Callable[[ScoredRows], Any], Any] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        duration_days: ArrayLike,
        cause: ArrayLike,
        risk: ArrayLike,
        horizons_days: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        censoring: StepFunction | SubjectClock | None = None,
        expected: ArrayLike | None = None,
        too_few: Bools | None = None,
    ) -> ScoredRows:
        """Check the inputs and bring them into one form.

        Args:
            duration_days: (n,) from the prediction time to the event or censoring.
            cause: (n,) int, 0 = censored, 1..causes.
            risk: (n, causes, horizons) predicted cumulative incidence by each horizon.
            horizons_days: (horizons,) increasing, not negative.
            weights: (n,) or (resamples, n) multiplicities, as `bootstrap_subjects` draws them.
            censoring: Distribution G of censoring times, as `censoring_survival` fits it on other rows (say the
                training subjects at risk), or of each row's own censoring time. Default: fitted on these rows, again
                for each resample.
            expected: (n, causes, horizons) events that the model expects of each row by each horizon while it is under
                observation (`expected_events`). Default: it has risks alone.
            too_few: (causes, horizons) places whose values are thrown away: costly metrics are NaN there.

        Raises:
            EhrseqError: Shapes that do not fit, risks outside [0, 1] or missing, horizons not increasing.
        """
        risks = np.asarray(risk, dtype=np.float64)
        horizons = np.asarray(horizons_days, dtype=np.float64)
        if horizons.ndim != 1 or (np.diff(horizons) <= 0).any() or (horizons < 0).any():
            raise EhrseqError(
                "not increasing, or negative",
                where="horizons_days",
                fix="sort them, name each once",
            )
        if risks.ndim != 3 or risks.shape[2] != horizons.size:
            raise EhrseqError(
                "not (rows, causes, horizons)",
                where="risk",
                fix="give one risk per row, cause, horizon",
            )
        duration, codes, weight = checked_outcome(duration_days, cause, risks.shape[1], weights)
        if risks.shape[0] != duration.size:
            raise EhrseqError(
                "rows without a prediction, or predictions without a row",
                where="risk",
                fix="align them",
            )
        if not ((risks >= -ROUNDING) & (risks <= 1 + ROUNDING)).all():
            raise EhrseqError(
                "missing or outside 0..1", where="risk", fix="predict a probability for every row"
            )
        if risks.size and (risks.min() < 0 or risks.max() > 1):  # a copy only where one is needed
            risks = np.clip(risks, 0.0, 1.0)
        own = None if expected is None else np.asarray(expected, dtype=np.float64)
        block = np.atleast_2d(weight)
        is_block = weight.ndim == 2
        return cls(duration, codes, risks, horizons, block, censoring, is_block, own, too_few)

    @property
    def n_causes(self) -> int:
        """How many causes the risks have."""
        return int(self.risk.shape[1])

    def places(self) -> list[tuple[int, int]]:
        """Cause and horizon numbers of every place but those of too few people."""
        few = np.zeros(self.risk.shape[1:], bool) if self.too_few is None else self.too_few
        return [(e, h) for e, h in np.ndindex(*few.shape) if not few[e, h]]

    @cached_property
    def total_weight(self) -> Floats:
        """(resamples,) number of rows, each as often as it was drawn."""
        return self.weights.sum(axis=1)

    @cached_property
    def counts(self) -> RiskSets:
        """Risk sets of every resample."""
        return RiskSets.count(self.duration_days, self.cause, self.n_causes, self.weights)

    @cached_property
    def censoring(self) -> StepFunction:
        """G as one curve, values (m + 1,) where it is fixed, else (resamples, m + 1).

        Where each row has its own G this is the Kaplan–Meier curve of these rows, which weighs nothing.
        """
        return (
            self.fixed_censoring
            if isinstance(self.fixed_censoring, StepFunction)
            else self.counts.censoring
        )

    @cached_property
    def covered(self) -> Bools:
        """(resamples, horizons) whether follow-up reaches the horizon."""
        return self.counts.reaches(self.horizons_days) & (self.smallest_g > 0)

    @cached_property
    def smallest_g(self) -> Floats:
        """(resamples or 1, horizons) the smallest G that divides anything at each horizon: look at it."""
        if isinstance(self.fixed_censoring, SubjectClock):
            outcome = {"duration_days": self.duration_days, "cause": self.cause}
            return self.fixed_censoring.smallest(self.horizons_days, **outcome)[None]
        return np.atleast_2d(self.censoring.before(self.horizons_days))

    @cached_property
    def inverse_at_duration(self) -> Floats:
        """(resamples or 1, n) 1 / G(T−), the weight of an event at T; 0 where G(T−) is 0."""
        if isinstance(self.fixed_censoring, SubjectClock):
            return divide(
                1.0, self.fixed_censoring.before_own(self.duration_days)[None], undefined=0.0
            )
        return divide(1.0, np.atleast_2d(self.censoring.before(self.duration_days)), undefined=0.0)

    @cached_property
    def observed_risk(self) -> Floats:
        """(resamples, causes, horizons) observed incidence; NaN where follow-up ends before.

        Aalen–Johansen's; where each row has its own G, the weighted share of events Σ ω y / n, since Aalen–Johansen
        takes censoring for independent.
        """
        if isinstance(self.fixed_censoring, SubjectClock):
            shares = [
                self.known_weights[h] @ self.has_event_by(h).T
                for h in range(len(self.horizons_days))
            ]
            return self.where_covered(
                divide(np.stack(shares, axis=2), self.total_weight[:, None, None])
            )
        return self.where_covered(self.counts.incidence.at(self.horizons_days))

    def once(self, function: Callable[[ScoredRows], T]) -> T:
        """`function` of these rows, computed the first time and kept: several metrics share a fit."""
        if function not in self.shared:
            self.shared[function] = function(self)
        return self.shared[function]

    def has_event_by(self, h: int) -> Bools:
        """(causes, n) whether an event of each cause was seen by horizon number h."""
        by_horizon = self.duration_days <= self.horizons_days[h]
        return by_horizon & (self.cause == np.arange(1, self.n_causes + 1)[:, None])

    def is_event_free_at(self, h: int) -> Bools:
        """(n,) whether a row is known to be event-free at horizon number h: seen beyond it, or censored at it."""
        horizon = self.horizons_days[h]
        return (self.duration_days > horizon) | (
            (self.duration_days == horizon) & (self.cause == 0)
        )

    @cached_property
    def known_weights(self) -> list[Floats]:
        """Of each horizon (resamples, n) multiplicity × inverse probability of being known at it.

        1 / G(T−) after an event of any cause by the horizon t, 1 / G(t−) when event-free at t, 0 when censored before.
        They sum to the number of rows when G is fitted on the same rows.
        """
        blocks = []
        for h, horizon in enumerate(self.horizons_days):
            if isinstance(self.fixed_censoring, SubjectClock):
                at_horizon = divide(1.0, self.fixed_censoring.before(horizon), undefined=0.0)[
                    None, :
                ]
            else:
                at_horizon = divide(
                    1.0, np.atleast_1d(self.censoring.before(horizon)), undefined=0.0
                )[:, None]
            inverse = self.inverse_at_duration * self.has_event_by(h).any(axis=0)
            inverse += at_horizon * self.is_event_free_at(h)
            blocks.append(self.weights * inverse)
        return blocks

    def where_covered(self, values: Floats) -> Floats:
        """`values` (resamples, causes, horizons, ...), NaN where follow-up does not reach the horizon."""
        covered = self.covered.reshape(*self.covered.shape[:1], 1, -1, *([1] * (values.ndim - 3)))
        return np.where(covered, values, np.nan)

    def finish(self, values: Floats) -> Floats:
        """Drop the resample axis unless the weights came as a block."""
        return values if self.is_block else values[0]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. A record in `registry.METRICS` is all that a new metric needs.

    Raises:
        EhrseqError: Models are to be compared by what is neither better higher nor lower.
    """

    key: str  # its name in `metrics.json`
    name: str  # its name in tables, as in `C`
    meaning: str  # what it is and how to read it, in half a sentence
    # scored rows → (..., causes, horizons), or (..., causes) where `taken` is `over time`; a leading resample axis
    # where the rows have one. None where it is not made of scored rows
    of: Callable[[ScoredRows], Floats] | None = None
    better: Literal[1, 0, -1] = 0  # 1: higher is better; -1: lower is; 0: neither
    target: float | None = None  # its value where the risks mean what they say, as 1 for O/E
    digits: int = 3  # decimals that are printed, after multiplying by `scale`
    scale: float = 1.0  # 100 prints a share in percent
    # the table of the report in which it stands
    part: Literal["accuracy", "calibration"] = "accuracy"
    # `everywhere`: of every model, for each cause, and in repeated splits. `causes`: of every
    # model, for each cause (regressions, which cost more and need more events). `strongest`: of our model and the
    # strongest baseline. `over time`: of every model, from risks on a grid of times: one number for each cause.
    # `elsewhere`: not of scored rows (likelihoods, simulations); the record gives its words only
    taken: Literal["everywhere", "causes", "strongest", "over time", "elsewhere"] = "everywhere"
    compared: bool = False  # whether models are compared by it: paired differences to each baseline
    # a difference that does not matter; None where that depends on how frequent the event is
    margin: float | None = None
    interval: bool = True  # whether it has a bootstrap interval
    # the scale on which that is symmetric (`scaled_interval`); None: by percentiles
    on: Literal["logit", "log", "log of the rest"] | None = None
    # whether the table in the terminal has it; only for metrics that are taken everywhere
    in_terminal: bool = True
    # whether every row counts where the model has hazards, also one whose follow-up ends by design before the horizon
    of_every_row: bool = False

    def __post_init__(self) -> None:
        if self.compared and not self.better:
            raise EhrseqError(
                "compares models without a direction", where=self.key, fix="set better to 1 or -1"
            )
        if (self.of is None) != (self.taken == "elsewhere"):
            raise EhrseqError(
                "has no function", where=self.key, fix="give it one, or set taken to 'elsewhere'"
            )
