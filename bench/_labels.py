"""Prepared sets for `bench/few_labels.py` in which only some training subjects have labels."""

from functools import cached_property

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.training.resolve import subjects_with_event

LEAST_TUNING = 30  # tuning subjects that decide the early stop, however few labels there are


class FewLabels(Prepared):
    """A prepared set in which only n training subjects have labels: everybody's visits, and their prediction times.

    The subjects are drawn at random, in an order that n does not change: whoever is among 50 is among 200. The same
    share of the tuning subjects has labels, `LEAST_TUNING` at least. All held-out subjects have theirs.

    Args:
        prepared: The set.
        task: Name of the task.
        n: Labelled training subjects; None for all.
        seed: Of the draw.
    """

    def __init__(self, prepared: Prepared, task: str, n: int | None, seed: int) -> None:
        super().__init__(prepared.folder, verify=False)
        self.labelled_task, self.n, self.seed = task, n, seed

    def subjects(self, split: str) -> Ints:
        """Numbers of the subjects of `train` or `tuning` with labels, rising."""
        able = self._with_prediction_time(split)
        order = np.random.default_rng([self.seed, len(able)]).permutation(able)
        if self.n is None:
            return np.sort(order)
        share = self.n / len(self._with_prediction_time("train"))
        size = self.n if split == "train" else max(LEAST_TUNING, round(share * len(order)))
        return np.sort(order[:size])

    def _with_prediction_time(self, split: str) -> Ints:
        return np.unique(super().rows(self.labelled_task, split).subject)

    @cached_property
    def events(self) -> int:
        """Labelled training subjects with the event of interest."""
        return subjects_with_event(self.rows(self.labelled_task, "train"))

    def rows(self, task: str, split: str) -> TaskRows:
        """The prediction times of those with labels."""
        rows = super().rows(task, split)
        if task != self.labelled_task or split == "held_out" or self.n is None:
            return rows
        own = np.isin(np.arange(len(rows.row_offsets) - 1), self.subjects(split))
        counts = np.diff(rows.row_offsets) * own
        return rows.select(np.flatnonzero(own[rows.subject]), np.r_[0, np.cumsum(counts)])

    def identity(self, task: str) -> dict[str, str]:
        """That of the set, and whose labels are known."""
        found = super().identity(task)
        return found if self.n is None else {**found, "labelled": f"{self.n} of seed {self.seed}"}
