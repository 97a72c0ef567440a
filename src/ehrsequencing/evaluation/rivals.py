"""What an evaluation is about, and the models beside it: baselines on the same training subjects, parts of a blend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ehrsequencing.config import EvaluationConfig, StudyConfig, TaskConfig
from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation.comparison import NETWORK, OURS
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.blend import STACKED
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.cox import LandmarkCox
from ehrsequencing.predictors.fit import Fitted, fit_baselines, landmark_nll
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


def parts_alone(run: Run | None, fitted: Sequence[Fitted]) -> dict[str, Predictor]:
    """The parts of a blend as models of their own, as far as they are not among the baselines; of others nothing."""
    if run is None or run.blend is None:
        return {}
    there = {one.model.name for one in fitted}
    parts = {NETWORK if one.name == "network" else one.name: one for one in run.blend.shares[0]}
    return {name: one for name, one in parts.items() if name not in there}


def likelihood_of_parts(
    run: Run | None, fitted: Sequence[Fitted], prepared: Prepared | None
) -> dict[str, float]:
    """Part of a blend → mean NLL of the tuning rows at landmarks, the best first; nothing without a blend or those.

    A part that is among the fitted baselines has the NLL of that baseline, whose hazards are recalibrated.
    """
    if run is None or run.blend is None or prepared is None:
        return {}
    tuning = prepared.records(run.task.name, "tuning")
    if not len(tuning):
        return {}
    parts = parts_alone(run, fitted)
    nll = {name: landmark_nll(part, tuning, run.task) for name, part in parts.items()}
    rivals = (BoostedVisits.name, LandmarkCox.name)
    nll |= {one.model.name: one.tuning_nll for one in fitted if one.model.name in rivals}
    return dict(sorted(nll.items(), key=lambda pair: pair[1]))


def known_baselines(run: Run | None, *, seed: int, trials: int | None) -> dict[str, Predictor]:
    """Trees and Cox of a blend, together and each alone, where they were fitted as the baselines would be.

    Args:
        run: The run that is evaluated, if it is one.
        seed: Of the baselines.
        trials: Of the boosting.
    """
    if run is None or run.blend is None:
        return {}
    made = run.study.evaluation
    is_same = (made.seed, made.tuning_trials or 1) == (seed, trials or 1)
    if not is_same:
        return {}
    stacked = run.blend.stacked
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
