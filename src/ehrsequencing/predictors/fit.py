"""The two simple baselines; all baselines, fitted on the same subjects, prediction times and history as the run.

All but Aalen–Johansen are landmark supermodels (van Houwelingen 2007), fitted on all training prediction times. Which
one is the strongest depends on the data: the likelihood of tuning subjects at the landmarks decides, where they are
many. Few would choose by chance; then it is trees and Cox together, the default without a network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ehrsequencing.config import TaskConfig
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.metrics.censoring import StepFunction, aalen_johansen, conditional_risk
from ehrsequencing.metrics.hazards import cohort_hazards, exposure
from ehrsequencing.predictors.blend import (
    FOLDS,
    MOST_WEIGHED,
    STACKED,
    Blend,
    fit_stack,
    fit_weights,
    folds_of,
)
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import LandmarkCox
from ehrsequencing.predictors.fitting_data import FittingData, kind_of
from ehrsequencing.predictors.history import AGE_KNOTS_YEARS, has_static
from ehrsequencing.predictors.predictor import Known, Predictor, hazards_of_each
from ehrsequencing.predictors.recalibration import (
    MOST_ROWS,
    Labels,
    Recalibration,
    fit_hazards,
    fit_recalibration,
)
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords, TaskRows

__all__ = ["BASELINES", "fit_baselines"]

RIDGE = (
    1e-4  # of age and sex: penalty of each coefficient but the intercept, for each expected event
)
EVENTS_TO_CHOOSE = 100  # tuning subjects with the event of interest; fewer do not say which baseline is the strongest


class MarginalIncidence(Predictor):
    """Aalen–Johansen on the training queries of each landmark; a row takes the landmark nearest in time since index.

    For the likelihood, the same queries' events over days at risk in each bin of the run's grid.
    """

    name = "Aalen–Johansen"
    by_hazards = False

    def __init__(self, data: FittingData) -> None:
        self.edges_days, self.n_causes = data.edges_days, len(data.task.causes)
        rows = data.train.rows
        self.landmarks: list[float] = []
        self.incidences: list[StepFunction] = []  # of each landmark
        self.landmark_hazards: list[Floats] = []  # (causes, bins) of each landmark
        for days in sorted({0.0, *data.task.landmarks}):
            at = rows.at_landmark(days)
            if at.any():
                duration, cause = rows.duration_days[at], rows.cause[at]
                self.landmarks.append(days)
                self.incidences.append(
                    aalen_johansen(duration, cause.astype(np.int64), n_causes=self.n_causes)
                )
                self.landmark_hazards.append(
                    cohort_hazards(
                        self.edges_days,
                        rows.entry_days[at],
                        duration,
                        cause,
                        n_causes=self.n_causes,
                    )
                )

    def _nearest(self, records: TaskRecords) -> Ints:
        """(R,) number of the landmark of each row."""
        since = _days_since_index(records.rows)
        return np.abs(since[:, None] - np.array(self.landmarks)).argmin(axis=1)

    def risk(
        self,
        records: TaskRecords,
        horizons_days: Sequence[float] | Floats,
        *,
        start_days: float = 0.0,
    ) -> Floats:
        """Aalen–Johansen's own incidence, with steps at the events and no bins; see `Predictor`."""
        risk = conditional_risk(
            lambda days: np.stack([curve.at(days) for curve in self.incidences]),
            np.asarray(horizons_days, dtype=np.float64),
            start_days=start_days,
        )
        return risk[self._nearest(records)]

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        return np.stack(self.landmark_hazards)[self._nearest(part)]


class AgeAndSex(Predictor):
    """A Poisson regression on what a model knows without reading the record: age, sex, and the time since the index.

        λ_e(k | x) = base_{g,e}(k) · f_e(x)      k a bin of the run's grid, g visit or query (`FittingData.level`)

    Age enters as a linear spline. Sex: static codes whose name starts with GENDER or SEX; all static codes where there
    is none. A competing event ends the exposure of every cause.
    """

    name = "age + sex"

    def __init__(self, data: FittingData) -> None:
        self.edges_days, self.n_causes = data.edges_days, len(data.task.causes)
        cohort = data.cohort_hazards()
        rows, names = data.train.rows, data.vocabulary.tokens
        tokens = np.unique(data.train.timelines.static_codes).tolist()
        sexes = [token for token in tokens if names[token].upper().startswith(("GENDER", "SEX"))]
        self.static = sexes or tokens
        days = exposure(self.edges_days, rows.entry_days, rows.duration_days)
        design = self._design(data.train)
        self.mean_age = float(np.nanmean(design[:, 0])) if np.isfinite(design[:, 0]).any() else 50.0
        x = self._filled(design)
        self.coefficients: list[Floats | None] = []
        for e in range(self.n_causes):
            # The factor is the same in every bin, so that a prediction time needs one row with its summed weight.
            total, events = days @ cohort[e], (rows.cause == e + 1).astype(np.float64)
            at_risk = total > 0
            if not events.any():
                self.coefficients.append(None)
                continue
            design = np.vstack([np.ones(int(at_risk.sum())), x[at_risk].T])
            penalty = total.sum() * np.r_[0.0, np.full(x.shape[1], RIDGE)]
            fitted = fit_hazards(
                design, np.log(total[at_risk]), design @ events[at_risk], penalty=penalty
            )
            self.coefficients.append(fitted[0])
        level = data.level(np.arange(len(rows)), lambda part: cohort * self._factor(x[part]))
        self.base = cohort * level  # (2, causes, bins)

    def _design(self, records: TaskRecords) -> Floats:
        """(R, ·) age in years, log of the days since the index, and the static codes."""
        rows = records.rows
        age = np.asarray(rows.age_years, dtype=np.float64)
        since = np.log1p(_days_since_index(rows))
        static = has_static(records.timelines, self.static)[rows.subject]
        return np.concatenate([age[:, None], since[:, None], static], axis=1)

    def _filled(self, design: Floats) -> Floats:
        """Unknown ages become the mean age with a mark; age gets a linear spline, in decades."""
        unknown = np.isnan(design[:, :1])
        age = np.where(unknown, self.mean_age, design[:, :1])
        spline = [np.maximum(age - knot, 0.0) for knot in AGE_KNOTS_YEARS]
        decades = np.concatenate([age, *spline], axis=1) / 10.0
        return np.concatenate([decades, unknown, design[:, 1:]], axis=1)

    def _factor(self, x: Floats) -> Floats:
        """The factor f (r, causes, 1) of covariates (r, ·)."""
        flat = np.ones(len(x))  # of a cause without a training event
        factors = [
            flat if beta is None else np.exp(beta[0] + x @ beta[1:]) for beta in self.coefficients
        ]
        return np.stack(factors, axis=1)[:, :, None]

    def _of_part(self, part: TaskRecords, known: Known) -> Floats:
        factor = self._factor(self._filled(self._design(part)))
        return self.base[kind_of(part.rows, np.arange(len(part)))] * factor


def _days_since_index(rows: TaskRows) -> Floats:
    """Days (R,) from the index to each prediction time."""
    return np.asarray((rows.prediction_us - rows.index_us) / DAY_US)


def fit_last_step(
    hazards: Floats, data: FittingData, without: Bools | None = None
) -> Recalibration | None:
    """The last step that our own training has: a recalibration by the likelihood of tuning subjects.

    Args:
        hazards: (R, causes, bins) of the fitted model at the tuning rows.
        data: Whose tuning subjects decide, and how strongly (`recalibration`).
        without: (R,) rows that have no part in it.

    Returns:
        What was fitted; None where nobody decides, or it is off.
    """
    if data.recalibration == 0 or not len(data.tuning):
        return None
    left = np.arange(len(data.tuning)) if without is None else np.flatnonzero(~without)
    rows, chosen = data.tuning.rows, data.draw(left, MOST_ROWS)
    labels = Labels.of(rows, chosen)
    eta = np.log(hazards[chosen])
    return fit_recalibration(eta, data.edges_days, labels, prior_sd=data.recalibration)


def cross_fitted(hazards: Floats, data: FittingData) -> Floats:
    """Hazards (R, causes, bins) at the tuning rows, each with a last step that others than its subject decided."""
    rows, out = data.tuning.rows, hazards.copy()
    for fold in folds_of(np.diff(rows.row_offsets), folds=FOLDS, seed=data.seed):
        own = np.isin(rows.subject, fold)
        step = fit_last_step(hazards, data, without=own)
        if step is not None:
            out[own] = step.applied(hazards[own])
    return out


def fit_blend(
    alone: Predictor, stacked: Blend, data: FittingData, step: Recalibration | None
) -> Blend:
    """A network beside trees and Cox, each after its last step.

    The tuning people decide the steps and the weights. What is weighed has steps that its own subject did not decide;
    otherwise a part would be preferred for what its step has learned by heart.

    Args:
        alone: The network, with its last step.
        stacked: Trees and Cox, without theirs.
        data: Whose tuning people decide.
        step: That of the network; None where it has none, or several members have one each.
    """
    if len(data.tuning) > MOST_WEIGHED:  # subjects spread evenly over all, with about so many rows
        nth = -(-len(data.tuning) // MOST_WEIGHED)
        some = np.arange(0, len(data.tuning.timelines), nth)
        data = replace(data, tuning=data.tuning.take(some))
    of_network, of_stacked = (one.all_hazards(data.tuning) for one in (alone, stacked))
    last = fit_last_step(of_stacked, data)
    if step is not None:
        before = np.exp((np.log(of_network) - step.intercept) / step.slope)
        of_network = cross_fitted(before, data)
    parts = [of_network, cross_fitted(of_stacked, data)]
    labels = Labels.of(data.tuning.rows, np.arange(len(data.tuning)))
    weights = fit_weights(parts, data.edges_days, labels)
    second = stacked if last is None else stacked.recalibrated(last.intercept, last.slope)
    return Blend([alone, second], weights)


def at_landmarks(rows: TaskRows, task: TaskConfig) -> Bools:
    """(R,) whether a row stands at one of the task's landmarks."""
    return np.asarray(np.any([rows.at_landmark(days) for days in task.landmarks], axis=0))


#: Name of each baseline → what fits it. One more entry is one more row in every report.
BASELINES: dict[str, Callable[[FittingData], Predictor]] = {
    STACKED: lambda data: fit_stack(data).fitted,
    BoostedVisits.name: BoostedVisits.fit,
    LandmarkCox.name: LandmarkCox,
    AgeAndSex.name: AgeAndSex,
    MarginalIncidence.name: MarginalIncidence,
}


@dataclass(frozen=True)
class Fitted:
    """A baseline, and what the tuning subjects say of it.

    Attributes:
        model: The baseline.
        tuning_nll: Mean over the tuning prediction times at landmarks; NaN without any.
    """

    model: Predictor
    tuning_nll: float


def fit_baselines(
    kind: Literal["fast", "none"],
    data: FittingData,
    *,
    known: Mapping[str, Predictor] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Fitted]:
    """Fit the baselines, the strongest first: by the likelihood of tuning subjects at the landmarks.

    Each gets the last step that our own training has, a recalibration by tuning likelihood; Aalen–Johansen stays what
    it is, the cohort's own incidence. Below `EVENTS_TO_CHOOSE` tuning subjects with an event nothing is chosen, and
    trees and Cox together come first.

    Args:
        kind: `fast`: trees and Cox together and each alone, age + sex, Aalen–Johansen. `none`: nothing.
        data: What to fit. Tuning subjects choose the boosting's length and the ridge.
        known: Baselines by name that were fitted to this very data with these settings, and are not fitted again.
        progress: Called with the name and number of each baseline before it is fitted.
    """
    if kind == "none":
        return []
    models: list[Predictor] = []
    known, tuning = dict(known or {}), data.tuning.rows
    at = at_landmarks(tuning, data.task)
    people = len(np.unique(tuning.subject[at & (tuning.cause == 1)]))
    for number, (name, fit) in enumerate(BASELINES.items(), start=1):
        progress(f"{name}, {number} of {len(BASELINES)}")
        models.append(known[name] if name in known else fit(data))
        if isinstance(models[-1], Blend):
            known |= {part.name: part for part in models[-1].parts}
    shape = (len(models), len(data.tuning), len(data.task.causes), len(data.edges_days) + 1)
    hazards = np.empty(shape)
    for rows, each in hazards_of_each(models, data.tuning):  # what they share is made once
        hazards[:, rows] = each
    out: list[Fitted] = []
    for model, of_tuning in zip(models, hazards, strict=True):
        step = None if model.name == MarginalIncidence.name else fit_last_step(of_tuning, data)
        if step is not None:
            model = model.recalibrated(step.intercept, step.slope)
            of_tuning = step.applied(of_tuning)
        nll = model.nll_of_hazards(of_tuning, tuning, slice(None))[at]
        out.append(Fitted(model, float(nll.mean()) if len(nll) else float("nan")))
    few = people < EVENTS_TO_CHOOSE
    return sorted(out, key=lambda one: (few and one.model.name != STACKED, one.tuning_nll))
