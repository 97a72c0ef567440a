"""Ridge Cox regression of one cause.

    h(t | x) = h_0(t) · exp(β·z),     z = (x − mean) / sd over the rows that fitted it

β maximises the penalised partial likelihood (Cox 1972; ties by Breslow 1974) of rows at risk during (entry, duration]:

    ℓ(β) = Σ_i δ_i (β·z_i − log Σ_{j: entry_j < T_i ≤ T_j} exp(β·z_j)) − ½ ridge |β|²

All sums over risk sets are differences of cumulative sums over rows sorted in time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.hazards import cohort_hazards, horizon_nll
from ehrsequencing.predictors.fitting_data import FittingData, LinearDesign, feature_range
from ehrsequencing.predictors.predictor import OfHistory
from ehrsequencing.records.timelines import TaskRows

#: Ridge per event: a standardised covariate carries information of the order of one per event.
RIDGES_PER_EVENT = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
UNWATCHED_RIDGE_PER_EVENT = 0.3  # of a cause that no tuning subject had: nothing says how much
_MOST_ITERATIONS = 100
_MOST_TIMES = 64  # whose means make the information
_TOLERANCE = 1e-13
_SLOW = (
    0.1  # a step that promises more than this share of the one before wants the information anew
)
_STUCK = 0.5  # … and with new information wants to be longer


@dataclass(frozen=True)
class CoxRows:
    """What a Cox regression is fitted to."""

    x: Floats  # (n, F) covariates, finite
    entry_days: Floats  # (n,) at risk after this time
    duration_days: Floats  # (n,) at risk up to this time, included
    event: Bools  # (n,) bool, False = left without the event

    @property
    def has_events(self) -> bool:
        """Whether an event comes after its row's entry."""
        return bool((self.event & (self.entry_days < self.duration_days)).any())


class CoxRiskSets:
    """Rows that were at risk at some event time, sorted by when they leave; who was at risk when.

    Row j is at risk at the distinct event times number [start_j, stop_j).
    """

    def __init__(self, rows: CoxRows) -> None:
        has_event = rows.event & (rows.entry_days < rows.duration_days)
        self.times_days: Floats = np.unique(rows.duration_days[has_event])
        stop = np.searchsorted(self.times_days, rows.duration_days, side="right")
        start = np.searchsorted(self.times_days, rows.entry_days, side="right")
        here = np.flatnonzero(stop > start)
        self.row: Ints = here[np.argsort(stop[here], kind="stable")]
        self.start, self.stop = start[self.row], stop[self.row]
        self.event = has_event[self.row]
        # Every time has a row that leaves at it (the one with the event), so that no group is empty.
        self.leaving = np.searchsorted(
            self.stop, np.arange(1, len(self.times_days) + 1), side="left"
        )
        late = np.flatnonzero(self.start > 0)
        self.entering = late[np.argsort(self.start[late], kind="stable")]
        self.entered, self.entering_at = np.unique(self.start[self.entering], return_index=True)
        events = np.bincount(self.stop[self.event] - 1, minlength=len(self.times_days))
        self.events = events.astype(np.float64)

    def sums(self, values: Floats) -> Floats:
        """Sum of `values` (rows, ...) over the risk set of each time, (m, ...)."""
        if not len(self.times_days):
            return np.zeros((0, *values.shape[1:]))
        total: Floats = np.add.reduceat(values, self.leaving, axis=0)[::-1].cumsum(axis=0)[::-1]
        if len(self.entering):
            waiting = np.zeros((len(self.times_days) + 1, *values.shape[1:]))
            waiting[self.entered] = np.add.reduceat(values[self.entering], self.entering_at, axis=0)
            total -= waiting[::-1].cumsum(axis=0)[::-1][1:]  # those who enter at or after the time
        return total


def partial_log_likelihood(z: Floats, beta: Floats, sets: CoxRiskSets) -> tuple[float, Floats]:
    """ℓ(β) without the ridge, and its gradient (F,); `z` (rows, F) in the order of `sets`.

    ∂ℓ/∂β = Σ_j z_j (δ_j − θ_j A_j),            A_j = Σ_{t in (entry_j, T_j]} d(t) / S0(t),   θ = exp(β·z)
    """
    theta, at_risk, score = _at_risk(z, beta, sets)
    event = sets.event.astype(np.float64)
    value = float(event @ score - sets.events @ np.log(at_risk))
    cumulative = np.r_[0.0, np.cumsum(sets.events / at_risk)]
    expected = theta * (cumulative[sets.stop] - cumulative[sets.start])  # θ A
    gradient = (event - expected) @ z
    return value, gradient


def information(z: Floats, beta: Floats, sets: CoxRiskSets) -> Floats32:
    """The negative Hessian (F, F) of the same or a little more: what steps towards the maximum need.

    −∂²ℓ/∂β² = Σ_j θ_j A_j z_j z_jᵀ − Σ_t d(t) m(t) m(t)ᵀ,   m = S1 / S0 the mean of z at risk

    Neighbours among more than `_MOST_TIMES` event times share the mean of their m, which makes the second sum smaller;
    sums are in float32. It is still far dearer than the gradient.
    """
    theta, at_risk, _ = _at_risk(z, beta, sets)
    until, cumulative = np.cumsum(sets.events), np.r_[0.0, np.cumsum(sets.events / at_risk)]
    first = np.arange(len(until))
    if len(until) > _MOST_TIMES:  # groups of about as many events
        group = (until - sets.events) * _MOST_TIMES // until[-1]
        first = np.flatnonzero(np.diff(group, prepend=-1.0))
    begin, end = first[:, None], np.r_[first[1:], len(until)][:, None]
    last, start = np.minimum(sets.stop, end), np.maximum(sets.start, begin)
    expected = theta * np.where(last > start, cumulative[last] - cumulative[start], 0.0)
    events = np.add.reduceat(sets.events, first)
    means = ((expected @ z) / np.sqrt(events)[:, None]).astype(np.float32)
    of_rows = np.multiply(
        z,
        np.sqrt(expected.sum(axis=0))[:, None],
        out=np.empty(z.shape, np.float32),
        casting="same_kind",
    )
    return of_rows.T @ of_rows - means.T @ means


def _at_risk(z: Floats, beta: Floats, sets: CoxRiskSets) -> tuple[Floats, Floats, Floats]:
    """θ of each row, their sum at risk at each time, and log θ, all relative to the largest θ."""
    score = z @ beta
    if len(score):
        score = score - score.max()  # cancels; keeps exp within bounds
    theta = np.exp(score)
    return theta, sets.sums(theta), score


@dataclass(frozen=True)
class CoxFit:
    """A fitted Cox regression."""

    mean: Floats  # (F,) of the covariates over the rows that fitted it
    scale: Floats  # (F,) their standard deviations; 1 where a covariate did not vary
    beta: Floats  # (F,) log hazard ratio of one standard deviation
    ridge: float  # the strength it was fitted with

    def log_hazard(self, x: ArrayLike) -> Floats:
        """β·z of covariates (n, F), relative to a row at the mean."""
        per_unit = self.beta / self.scale
        return np.asarray(x, dtype=np.float64) @ per_unit - self.mean @ per_unit


class CoxRegression:
    """Fits the same rows with one ridge after another.

    Args:
        rows: What to fit: covariates and outcome of one cause; other causes are no event. At least one has an event.

    Example:
        >>> x, days = np.array([[1.0], [0.0], [1.0], [0.0]]), np.arange(1.0, 5.0)
        >>> rows = CoxRows(x, np.zeros(4), days, np.array([True, True, True, False]))
        >>> fit = CoxRegression(rows).fit(ridge=0.0)
        >>> round(float(fit.beta[0] / fit.scale[0]), 4)  # log hazard ratio: log((1 + √17) / 2), by hand
        0.9406
    """

    def __init__(self, rows: CoxRows) -> None:
        self.sets = CoxRiskSets(rows)
        self.z = rows.x[self.sets.row]
        self.mean = self.z.mean(axis=0)
        self.z -= self.mean
        scale = np.sqrt(np.einsum("nf,nf->f", self.z, self.z) / len(self.z))
        self.scale = np.where(scale > 1e-12 * np.maximum(np.abs(self.mean), 1.0), scale, 1.0)
        self.z /= self.scale
        self.information: Floats32 | None = None  # at the last place where it was needed

    def fit(
        self, *, ridge: float, start: Floats | None = None, tolerance: float = _TOLERANCE
    ) -> CoxFit:
        """Newton's method with step halving from `start`, or from 0.

        The information is that of an earlier place, of another ridge too, while steps with it still come near the
        maximum: it costs far more than a gradient, and the maximum is where the gradient is 0.

        Args:
            ridge: λ of the penalty ½ λ |β|² on the sum over events, β per standard deviation.
            start: (F,) where to begin.
            tolerance: Relative gain that another step must promise; one is still taken when it does not.

        Raises:
            EhrseqError: Without a ridge, where the likelihood has no finite maximum.
        """
        beta = np.zeros(self.z.shape[1]) if start is None else start.copy()
        value, gradient = self._penalised(beta, ridge)
        is_here = self.information is None
        from scipy.linalg import cho_solve  # which predictions need not load

        factor = self._factor(beta, ridge, anew=is_here)
        last = anew = np.inf  # what the step before promised, and the last one of new information
        for _ in range(_MOST_ITERATIONS):
            step = cho_solve(factor, gradient)
            promised = float(gradient @ step)
            if promised <= tolerance * max(1.0, abs(value)):
                return CoxFit(self.mean, self.scale, beta + step, ridge)
            if promised > _SLOW * last and not is_here:
                is_here, last = True, np.inf
                factor = self._factor(beta, ridge, anew=True)
                continue
            is_short = is_here and promised > _STUCK * anew
            anew = promised if is_here else anew
            size = 1.0
            while size > 1e-8:
                moved = self._penalised(beta + size * step, ridge)
                if moved[0] >= value:
                    break
                size /= 2
            else:  # nothing higher within rounding
                return CoxFit(self.mean, self.scale, beta, ridge)
            while is_short:  # a row far from all others: the information is too large
                further = self._penalised(beta + 2 * size * step, ridge)
                if not further[0] > moved[0]:
                    break
                moved, size = further, 2 * size
            beta, is_here, last = beta + size * step, False, promised
            value, gradient = moved
        raise EhrseqError(
            "the likelihood has no finite maximum",
            where="Cox regression",
            fix="use a ridge above 0",
        )

    def _penalised(self, beta: Floats, ridge: float) -> tuple[float, Floats]:
        value, gradient = partial_log_likelihood(self.z, beta, self.sets)
        return value - 0.5 * ridge * float(beta @ beta), gradient - ridge * beta

    def _factor(self, beta: Floats, ridge: float, *, anew: bool) -> tuple[Floats, bool]:
        """Cholesky factor of the penalised information, found anew at β or as it was last found."""
        from scipy.linalg import cho_factor

        if anew or self.information is None:
            self.information = information(self.z, beta, self.sets)
        return cho_factor(self.information + ridge * np.eye(len(beta)))


def choose_ridge(
    train: CoxRows,
    tuning: CoxRows,
    *,
    score: Callable[[CoxFit], float],
) -> CoxFit:
    """The ridge that suits other subjects best; from strong to weak, until it is worse twice.

    Args:
        train: Rows to fit; where none has an event, no covariate has an effect.
        tuning: Rows of other subjects. Without an event among them the ridge is `UNWATCHED_RIDGE_PER_EVENT`.
        score: How well a fit suits the tuning subjects.
    """
    if not train.has_events:
        nothing = np.zeros(train.x.shape[1])
        return CoxFit(nothing, nothing + 1, nothing, ridge=0.0)
    regression, events = CoxRegression(train), float(train.event.sum())
    if not tuning.has_events:
        return regression.fit(ridge=UNWATCHED_RIDGE_PER_EVENT * events)
    best_value, falls, start = -np.inf, 0, None
    for strength in RIDGES_PER_EVENT:
        fit = regression.fit(ridge=strength * events, start=start, tolerance=1e-6)
        start = fit.beta
        value = score(fit)
        if value > best_value:
            best, best_value, falls = fit, value, 0
        else:
            falls += 1
            if falls == 2:
                break
    return regression.fit(ridge=best.ridge, start=best.beta)


# ---- on the history features: each cause from every landmark on ------------------------------------------------------


@dataclass
class CoxHazards(OfHistory):
    """Cox regressions on the run's grid: all that a blend keeps of them.

        λ_e(k | x) = base_e(k) · exp(η_e),   η_e = β_e · (z − mean_e) / scale_e, held within bounds_e

    Attributes:
        design: Records' features → covariates z (D).
        mean: (causes, D).
        scale: (causes, D).
        beta: (causes, D); 0 for a cause without a training event.
        base: (causes, bins) hazards per day of a row at the mean.
        bounds: (causes, 2) lowest and highest η of the training rows, of enough people each. Beyond them a line is a
            guess, and a few wild risks would carry every mean.
        edges_days: The inner edges of the grid.
    """

    design: LinearDesign
    mean: Floats
    scale: Floats
    beta: Floats
    base: Floats
    bounds: Floats
    edges_days: tuple[float, ...]

    name = "landmark Cox"

    def __post_init__(self) -> None:
        self.n_causes, self.columns = len(self.base), self.design.columns

    def of_history(self, history: Floats32, rows: TaskRows) -> Floats:
        """See `OfHistory`."""
        z = self.design(history)
        scores = [
            np.clip(z @ (beta / scale) - mean @ (beta / scale), *bounds)
            for mean, scale, beta, bounds in zip(
                self.mean, self.scale, self.beta, self.bounds, strict=True
            )
        ]
        return np.asarray(np.exp(np.stack(scores, axis=1))[:, :, None] * self.base)


class LandmarkCox(CoxHazards):
    """The landmark supermodel of van Houwelingen (2007): cause-specific ridge Cox regressions on what is known so far.

    All training prediction times are stacked, each with its own clock and with the time since the index among the
    covariates, so that there is an answer at every prediction time. The ridge is the one with the lowest NLL of tuning
    subjects at all their prediction times, the number that reports compare. (One regression per landmark was worse on
    tuning subjects of PBC2 and NAFLD: docs/metrics.md.)

    In each bin of the run's grid the baseline hazard is events over days at risk, a day of a row counting exp(β·z)
    times (`cohort_hazards`): Breslow's (1974), constant in the bins.
    """

    def __init__(self, data: FittingData) -> None:
        train, tuning, features = data.train.rows, data.tuning.rows, data.features
        chosen, watched, x = features.rows[features.linear], features.tuning_rows, features.x
        self.fits = []
        for cause in range(1, len(data.task.causes) + 1):
            own, others = (
                CoxRows(
                    values,
                    np.asarray(rows.entry_days[some], np.float64),
                    rows.duration_days[some],
                    rows.cause[some] == cause,
                )
                for rows, some, values in (
                    (train, chosen, x),
                    (tuning, watched, features.tuning_x),
                )
            )
            score = partial(_log_likelihood, train=own, tuning=others, edges_days=data.edges_days)
            self.fits.append(choose_ridge(own, others, score=score))
        scores, owner = [fit.log_hazard(x) for fit in self.fits], train.subject[chosen]
        ranges = [
            feature_range(one.astype(np.float32), owner, enough=data.enough) for one in scores
        ]
        bounds = np.array([(-np.inf, np.inf) if one is None else one[::2] for one in ranges])
        base = cohort_hazards(
            data.edges_days,
            train.entry_days[chosen],
            train.duration_days[chosen],
            train.cause[chosen],
            n_causes=len(self.fits),
            factors=[
                np.exp(np.clip(score, *own)) for score, own in zip(scores, bounds, strict=True)
            ],
        )
        mean, scale, beta = (
            np.stack([getattr(fit, name) for fit in self.fits])
            for name in ("mean", "scale", "beta")
        )
        design = features.design
        super().__init__(design, mean, scale, beta, base, bounds, data.edges_days)


def _log_likelihood(
    fit: CoxFit, *, train: CoxRows, tuning: CoxRows, edges_days: tuple[float, ...]
) -> float:
    """Mean log-likelihood of tuning rows, one cause, under hazards constant in the bins of the run's grid."""
    factor = np.exp(fit.log_hazard(train.x))
    base = cohort_hazards(
        edges_days,
        train.entry_days,
        train.duration_days,
        train.event.astype(np.int8),
        n_causes=1,
        factors=[factor],
    )
    hazards = np.exp(fit.log_hazard(tuning.x))[:, None, None] * base
    nll = horizon_nll(
        hazards,
        edges_days,
        duration_days=tuning.duration_days,
        cause=tuning.event.astype(np.int8),
        entry_days=tuning.entry_days,
    )
    return -float(nll.mean())
