"""The parts of a blend as baselines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ehrsequencing.baselines.base import Baseline
from ehrsequencing.baselines.blend.blend import RunAnswers
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.baselines.fit import Fitted
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.evaluation.comparison import NETWORK
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import TaskRecords


class TrainedBaseline:
    """A trained run as a baseline, such as the network of a blend.

    Args:
        name: What tables call it.
        answers: What it says of records.
    """

    def __init__(self, name: str, answers: RunAnswers) -> None:
        self.name, self.answers = name, answers

    def risk(
        self, records: TaskRecords, chosen: Ints, horizons_days: Floats, *, start_days: float = 0.0
    ) -> Floats:
        """See `Baseline`."""
        part, place = self._part(records, chosen)
        risk = self.answers.risk(part, horizons_days=horizons_days, start_days=start_days)
        return risk[place].astype(np.float64)

    def nll(self, records: TaskRecords, chosen: Ints) -> Floats:
        """See `Baseline`."""
        part, place = self._part(records, chosen)
        return self.answers.nll(part)[place]

    @staticmethod
    def _part(records: TaskRecords, chosen: Ints) -> tuple[TaskRecords, Ints]:
        """The subjects of the chosen rows with all their rows, and where the chosen ones are among these."""
        subjects, owner = np.unique(records.rows.subject[chosen], return_inverse=True)
        part = records.take(subjects)
        # Row number r of a subject stands `shift` places earlier among the chosen subjects' rows.
        shift = records.rows.row_offsets[subjects] - part.rows.row_offsets[:-1]
        return part, chosen - shift[owner]


def parts_alone(run: Run | None, fitted: Sequence[Fitted]) -> list[Baseline]:
    """The parts of a blend as models of their own, as far as they are not among the baselines; of others nothing."""
    if run is None or run.blend is None:
        return []
    there = {one.model.name for one in fitted}
    parts: list[Baseline] = [run.blend.boosted, run.blend.cox]
    network = TrainedBaseline(NETWORK, replace(run.answers, blend=None))
    return [network, *(part for part in parts if part.name not in there)]


def likelihood_of_parts(
    run: Run | None, fitted: Sequence[Fitted], tuning: TaskRecords
) -> dict[str, float]:
    """Part of a blend → mean NLL of all tuning prediction times, the best first; nothing where the run is no blend.

    A part that is among the fitted baselines has the NLL of that baseline, whose hazards are recalibrated.
    """
    if run is None or run.blend is None or not len(tuning):
        return {}
    every = np.arange(len(tuning))
    found = {part.name: float(part.nll(tuning, every).mean()) for part in parts_alone(run, fitted)}
    kept = (BoostedVisits.name, LandmarkCox.name)
    found |= {one.model.name: one.tuning_nll for one in fitted if one.model.name in kept}
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def known_baselines(run: Run | None, *, seed: int, trials: int | None) -> dict[str, Baseline]:
    """The trees of a blend, where they were fitted as the baseline would be.

    Args:
        run: The run that is evaluated, if it is one.
        seed: Of the baselines.
        trials: Of the boosting.
    """
    if run is None or run.blend is None:
        return {}
    made = run.study.evaluation
    is_same = (made.seed, made.tuning_trials or 1) == (seed, trials or 1)
    return {BoostedVisits.name: run.blend.boosted} if is_same else {}
