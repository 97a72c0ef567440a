"""The models beside the one that is evaluated: baselines on the same training subjects, and the parts of a blend."""

from collections.abc import Callable, Sequence

from ehrsequencing.config import EvaluationConfig, TaskConfig
from ehrsequencing.core.result_types import Declared
from ehrsequencing.evaluation.comparison import NETWORK
from ehrsequencing.evaluation.evaluated import Evaluated
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.fit import Fitted, fit_baselines, landmark_nll
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.predictors.landmark_cox import LandmarkCox
from ehrsequencing.predictors.predictor import Predictor
from ehrsequencing.records.prepared import Prepared


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
    return fit_baselines(
        settings.baselines,
        data,
        known=known_baselines(evaluated.run, seed=settings.seed, trials=trials),
        progress=lambda name: progress(f"baseline: {name}"),
    )


def declared(
    task: TaskConfig, main: tuple[float | None, float], strongest: Sequence[str]
) -> Declared | None:
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
    parts = {NETWORK if one.name == "network" else one.name: one for one in run.blend.parts}
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
