"""What an evaluation is about, the models beside it, and the rows on which they are compared."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig, format_days
from ehrsequencing.core.arrays import Floats, Ints, selected
from ehrsequencing.evaluation.comparison import (
    FEWEST_RESAMPLES,
    MOST_DRAWN,
    OURS,
    Comparison,
    draw_subjects,
)
from ehrsequencing.evaluation.dropout import (
    Dropout,
    HistoryClock,
    Pieces,
    fit_dropout,
    history_covariates,
)
from ehrsequencing.evaluation.population import Population, Weights, days_since_first_index, people
from ehrsequencing.metrics.hazards import expected_events, mean_inverse
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.blend import STACKED
from ehrsequencing.predictors.fit import Fitted, fit_baselines
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.from_file import FromFile, nll_through
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The predictor that an evaluation is about.

    Attributes:
        name: Its name in every table.
        predictor: What answers.
        where: What error messages point to.
        task: The question that it answers.
        study: Settings that go with it.
        vocabulary: Names of the tokens of the records.
        config: The settings that the report lists.
        run: The run, with what only a run can tell (history, seeds, audit); None for predictions alone.
    """

    name: str
    predictor: Predictor
    where: str
    task: TaskConfig
    study: StudyConfig
    vocabulary: Vocabulary
    config: dict[str, Any]
    run: Run | None = None

    @classmethod
    def of_run(cls, run: Run) -> "Evaluated":
        """A run.

        Raises:
            EhrseqError: It has the `visit` head, whose risks have no horizons in days.
        """
        return cls(
            name=OURS,
            predictor=run.predictor,
            where=str(run.folder),
            task=run.task,
            study=run.study,
            vocabulary=run.vocabulary,
            config=run.study.model_dump(mode="json"),
            run=run,
        )

    @property
    def is_curve(self) -> bool:
        """Whether risks are known at every day up to the last horizon, and not only at the horizons."""
        return not isinstance(self.predictor, FromFile) or self.predictor.is_curve

    @property
    def knots_days(self) -> Floats | None:
        """Where every model's likelihood is that of a curve through its risks; None: each by its own hazards."""
        return self.predictor.horizons_days if isinstance(self.predictor, FromFile) else None


def fit_rivals(
    evaluated: Evaluated,
    prepared: Prepared | None,
    settings: EvaluationConfig,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Fitted]:
    """The baselines that the settings ask for, the strongest first; none without the prepared set.

    Args:
        evaluated: Beside what.
        prepared: On whose training subjects they are fitted.
        settings: Which of them, and their seed.
        progress: Called with the name of each.
    """
    if prepared is None:
        return []
    task, trials = evaluated.task, trials_of(evaluated, settings)
    data = FittingData(
        task,
        evaluated.vocabulary,
        prepared.records(task.name, "train"),
        prepared.records(task.name, "tuning"),
        evaluated.predictor.edges_days,
        settings.seed,
        enough=prepared.study.vocabulary.min_subjects,
        trials=trials or 1,
        recalibration=evaluated.study.training.recalibration,
    )
    fitted = fit_baselines(
        settings.baselines,
        data,
        known=known_baselines(evaluated.run, seed=settings.seed, trials=trials),
        progress=lambda name: progress(f"baseline: {name}"),
    )
    if evaluated.run is not None and not evaluated.study.training.network:
        return [one for one in fitted if one.model.name != STACKED]  # ours under another name
    return fitted


def declared(
    task: TaskConfig, main: tuple[float | None, float], strongest: Sequence[str]
) -> dict[str, Any] | None:
    """The one comparison with a verdict: at what the task named, beside the rival that tuning chose."""
    if task.main_horizon is None or not strongest:
        return None
    return {
        "landmark_days": main[0],
        "horizon_days": main[1],
        "cause": task.causes[0],
        "rival": strongest[0],
        "metric": "nll",
    }


def trials_of(evaluated: Evaluated, settings: EvaluationConfig) -> int | None:
    """What people tell of their tuning; the boosting tries as many settings."""
    trials = settings.tuning_trials
    return evaluated.study.evaluation.tuning_trials if trials is None else trials


def known_baselines(run: Run | None, *, seed: int, trials: int | None) -> dict[str, Predictor]:
    """Trees and Cox of a blend, together and each alone, where they were fitted as the baselines would be.

    Args:
        run: The run that is evaluated, if it is one.
        seed: Of the baselines.
        trials: Of the boosting.
    """
    if run is None or run.blend is None:
        return {}
    made, stacked = run.study.evaluation, run.blend.stacked
    if (made.seed, made.tuning_trials or 1) != (seed, trials or 1):
        return {}
    return {one.name: one for one in (stacked, *stacked.parts)}


def likelihoods(
    predictors: Mapping[str, Predictor],
    known: Mapping[str, Floats],
    knots_days: Floats | None,
    records: TaskRecords,
    task: TaskConfig,
) -> tuple[dict[str, Floats], list[str]]:
    """Model → (R,) NLL of every prediction time, and warnings; no model has one where the first has none.

    Args:
        predictors: By name, the one that is evaluated first.
        known: NLL by their own hazards (baselines on the run's grid).
        knots_days: For risks that are known at some knots only: all go by curves through their risks there.
        records: The prediction times.
        task: Its blanking.
    """
    ours, *others = predictors
    if not predictors[ours].has_hazards:
        return {}, []
    found, notes, start = {ours: known[ours]}, list[str](), task.blanking
    for name in others:
        if knots_days is None:
            nll = known[name]
        else:
            risk = predictors[name].risk(records, knots_days, start_days=start)
            nll = nll_through(risk, knots_days, records.rows, start_days=start)
        if np.isfinite(nll).all():
            found[name] = nll
        else:
            notes.append(f"{name} has no NLL: an event falls where its curve is flat.")
    return found, notes


# ---- the rows: a table for each landmark, and one for all prediction times together ----


@dataclass
class ModelRows:
    """Makes the tables of one evaluation.

    Attributes:
        population: Who is evaluated.
        task: The question.
        settings: Resamples, seed.
        horizons_days: (H,) of the task.
        knots_days: (K,) days by which risks are known.
        without_hazards: Models with risks alone.
        train: Training subjects, where weights come from them, and when their records end by design.
        dropout: What was found of leaving; weights go by it where that depends on the history.
    """

    population: Population
    task: TaskConfig
    settings: EvaluationConfig
    horizons_days: Floats
    knots_days: Floats
    without_hazards: Collection[str]
    train: tuple[TaskRecords, int] | None = None
    dropout: Dropout | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.records, self.rows = self.population.records, self.population.records.rows
        self.since_days = days_since_first_index(self.rows)
        self.weights = Weights(self.population, self.task, *(self.train or (None,)))
        people, settings = len(self.records.timelines), self.settings
        self.draws = draw_subjects(people, settings.bootstrap, settings.seed)

    def learn_dropout(self, risks: Mapping[str, Floats], vocabulary: Vocabulary) -> None:
        """Fit leaving given the history and the risks; nothing where weights come from elsewhere or nobody leaves."""
        duration = self.rows.duration_days
        dropout = self.weights.dropout(self.records, self.population.cut_us)
        pieces = Pieces.of_rows(self.rows.subject, self.since_days, duration, dropout)
        if self.train is None and pieces.matter(duration, self.horizons_days[-1]):
            x = history_covariates(self.records, vocabulary, risks)
            self.dropout = fit_dropout(pieces, x, seed=self.settings.seed)

    @property
    def is_by_history(self) -> bool:
        """Whether weights go by the history."""
        return self.dropout is not None and self.dropout.is_by_history

    def comparisons(
        self, risks: Mapping[str, Floats], days: Floats, *, marginal: bool = False
    ) -> Iterator[Comparison]:
        """Rows that are compared together, with the risks by `days`: the horizons, or a grid, which is not copied.

        Args:
            risks: Model → (R, causes, knots).
            days: Some of the knots.
            marginal: Whether weights take leaving for independent of the history, whatever was found.
        """
        at_landmarks = [(days, self.records.at_landmark(days)) for days in self.task.landmarks]
        places: list[tuple[float | None, Ints]] = [(one, at) for one, at in at_landmarks if len(at)]
        whole = any(len(at) == len(self.rows) for _, at in places)
        if not (self.population.only_landmarks or whole):
            places.append((None, np.arange(len(self.rows))))
        column = np.searchsorted(self.knots_days, days)
        for place, at in places:
            rows = slice(None) if place is None else at
            subject, duration = self.rows.subject[at], self.rows.duration_days[at]
            cause, clock = self.rows.cause[at].astype(np.int64), None
            if not marginal and self.dropout is not None and self.dropout.is_by_history:
                of, since, paths = self.weights.clock, self.since_days[at], self.dropout.paths
                made = HistoryClock(of.dropout, of.support_days, since, paths, subject)
                clock = made.refused(self.horizons_days, duration, cause)
            enough = max(FEWEST_RESAMPLES, MOST_DRAWN // max(len(at), 1))  # for which there is time
            yield Comparison(
                place,
                subject,
                duration,
                cause,
                days,
                {name: selected(risk, rows, column) for name, risk in risks.items()},
                self.draws[:enough],
                self.weights.at(place, at) if clock is None else clock,
                self.weights.potential[at],
                self._expected(risks, rows, clock) if days is self.horizons_days else {},
                not self.without_hazards,
            )

    def warnings(self, comparisons: Iterable[Comparison]) -> list[str]:
        """What a reader must know of leaving."""
        if not self.is_by_history or self.dropout is None:
            return []
        low, high = self.dropout.low, self.dropout.high
        found = [
            f"Drop-out depends on what is known of people (rate ratio {self.dropout.ratio:.2f} per standard deviation, "
            f"{low:.2f} to {high:.2f}). All numbers are weighted by it, and the details show those without. What "
            "depends on something unrecorded cannot be made good."
        ]
        for one in comparisons:
            clock, where = one.censoring, one.where
            if not isinstance(clock, HistoryClock):
                continue
            few = [format_days(days) for days in clock.refused_days]
            if few:
                found.append(
                    f"No number by {', '.join(few)} {where}: of those still at risk, more than 1% had a chance below "
                    "5% of being followed so long, or fewer than ten events carry the weights."
                )
            capped = clock.capped(one.duration_days, float(self.horizons_days[-1]))
            if capped:
                counted = people(capped)
                found.append(
                    f"{counted} prediction times {where} would weigh more than 20, and weigh 20."
                )
        return found

    def _expected(
        self, risks: Mapping[str, Floats], rows: Ints | slice, clock: HistoryClock | None
    ) -> dict[str, Floats]:
        """Model → (r, causes, horizons), events that it expects of each row while it is under observation."""
        start, late = self.task.blanking, np.flatnonzero(self.knots_days > self.task.blanking)
        knots, duration = self.knots_days[late], self.rows.duration_days[rows]
        inverse = None
        if clock is not None:
            inverse = mean_inverse(clock, knots, duration_days=duration, start_days=start)
        expects: Callable[..., Floats] = partial(
            expected_events,
            knots_days=knots,
            duration_days=duration,
            horizons_days=self.horizons_days,
            start_days=start,
            inverse=inverse,
        )
        return {
            name: expects(selected(risk, rows, late))
            for name, risk in risks.items()
            if name not in self.without_hazards
        }
