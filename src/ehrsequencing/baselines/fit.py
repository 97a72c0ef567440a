"""Baselines on the very same subjects, prediction times and history: what a model has to beat.

Aalen–Johansen (the same curve for everybody), age + sex, landmark Cox (landmark_cox.py) and a boosted visit supermodel
(boosted.py), the last two on hand-made history features; with `all` also our own LSTM and flat BEHRT (neural.py). All
but the first are landmark supermodels (van Houwelingen 2007) fitted on all training prediction times. Which of them is
the strongest depends on the data: their likelihood on tuning subjects says it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.baselines.age_sex import AgeAndSex
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.baselines.marginal import MarginalIncidence
from ehrsequencing.baselines.neural import FLAT, LSTM, is_variant, train_baseline
from ehrsequencing.config import StudyConfig, TaskConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary


class Baseline(Protocol):
    """Anything that answers at prediction times."""

    name: str

    def risk(self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0) -> Floats:
        """Cumulative incidence (r, causes, horizons) from the chosen rows on; of any split.

        `start_days`: given no event for so long after the prediction time (a task's blanking).
        """
        ...

    def nll(self, records: TaskRecords, chosen: Ints) -> Floats:
        """The model's own `horizon` likelihood (r,) of the chosen rows, by hazards constant in the bins of its grid."""
        ...


@dataclass(frozen=True)
class Fitted:
    """A baseline, and what the tuning subjects say of it.

    Attributes:
        model: The baseline.
        tuning_nll: Mean over all tuning prediction times; NaN without any.
    """

    model: Baseline
    tuning_nll: float


@dataclass(frozen=True)
class RunToRival:
    """The run that `all` trains rivals for: they are trained as it was, into its folder.

    Attributes:
        folder: The run.
        prepared: What it was trained on.
        study: Its settings.
    """

    folder: Path
    prepared: Prepared
    study: StudyConfig


def fit_baselines(
    kind: Literal["fast", "all", "none"],
    *,
    task: TaskConfig,
    vocabulary: Vocabulary,
    train: TaskRecords,
    tuning: TaskRecords,
    edges_days: Sequence[float],
    seed: int,
    trials: int | None = None,
    run: RunToRival | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Fitted]:
    """Fit the baselines, the strongest first: by the likelihood of tuning subjects at all their prediction times.

    Args:
        kind: `fast`: boosted visits, landmark Cox, age + sex, Aalen–Johansen. `all`: also LSTM and flat BEHRT, less the
            one that the run is itself. `none`: nothing.
        task: The question.
        vocabulary: Names of the tokens.
        train: Visits and prediction times to fit on.
        tuning: Other subjects; they choose the boosting's settings and length, the ridge, and the strongest.
        edges_days: Inner edges of the run's grid, on which every likelihood is computed.
        seed: Of the boosting.
        trials: Settings that were tried for the run; the boosting tries as many. None: one.
        run: Needed by `all`.
        progress: Called with the name of each baseline before it is fitted.

    Raises:
        EhrseqError: `all` without a run.
    """
    if kind == "none":
        return []
    fits: dict[str, Callable[[], Baseline]] = {
        BoostedVisits.name: lambda: BoostedVisits(
            task, vocabulary, train, tuning, edges_days=edges_days, seed=seed, trials=trials or 1
        )
    }
    if kind == "all":
        fits |= _trained(run, task.name)
    fits |= {
        LandmarkCox.name: lambda: LandmarkCox(task, vocabulary, train, tuning, edges_days=edges_days, seed=seed),
        AgeAndSex.name: lambda: AgeAndSex(task, vocabulary, train, edges_days=edges_days),
        MarginalIncidence.name: lambda: MarginalIncidence(task, train.rows, edges_days=edges_days),
    }
    out: list[Fitted] = []
    every = np.arange(len(tuning))
    for name, fit in fits.items():
        progress(name)
        model = fit()
        out.append(Fitted(model, float(model.nll(tuning, every).mean()) if len(every) else float("nan")))
    return sorted(out, key=lambda fitted: fitted.tuning_nll)


def _trained(run: RunToRival | None, task_name: str) -> dict[str, Callable[[], Baseline]]:
    """How to get LSTM and flat BEHRT, as far as the run is another one."""
    if run is None:
        fix = "evaluate a run whose prepared set is still there, or use --baselines fast"
        raise EhrseqError("LSTM and flat BEHRT need the run's own data", where="evaluation.baselines=all", fix=fix)

    def train(name: str) -> Baseline:
        return train_baseline(name, prepared=run.prepared, task_name=task_name, study=run.study, run_folder=run.folder)

    return {name: partial(train, name) for name in (LSTM, FLAT) if not is_variant(run.study.model, name)}
