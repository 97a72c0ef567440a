"""Labels dealt out among the subjects, and settings of a small model that could learn them by heart."""

from dataclasses import replace

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows

# Without regularisation and early stopping the model can memorise. A control that cannot learn would find nothing.
SMALL = (
    "model.dim=64",
    "model.heads=4",
    "model.layers=1",
    "model.dropout=0",
    "model.history_dropout=0",
    "training.epochs=12",
    "training.patience=12",
    "training.learning_rate=3e-3",
    "training.weight_decay=0",
    "training.visit_budget=2048",
    "training.subjects_per_step=null",
    "training.masked_codes=0",
)


class ShuffledLabels(Prepared):
    """A prepared set with each subject's first prediction time only, and with labels dealt out among all subjects.

    The deal is by id, so that somebody who is in two splits has the same label in both.
    """

    def __init__(self, prepared: Prepared, *, seed: int) -> None:
        super().__init__(prepared.folder, verify=False)
        self.seed = seed

    def rows(self, task: str, split: str) -> TaskRows:
        """Prediction times with dealt labels."""
        first, ids = {}, {}
        for name in SPLITS:
            rows = super().rows(task, name)
            has = np.diff(rows.row_offsets) > 0
            first[name] = rows.select(rows.row_offsets[:-1][has], np.r_[0, np.cumsum(has)])
            ids[name] = self.timelines(name).subject_id
        return deal(first, ids, seed=self.seed)[split]


def deal(rows: dict[str, TaskRows], ids: dict[str, Ints], *, seed: int) -> dict[str, TaskRows]:
    """The same rows, with the labels of somebody drawn at random."""
    owner = np.concatenate([ids[s][rows[s].subject] for s in SPLITS])
    people, first = np.unique(owner, return_index=True)
    given = np.random.default_rng([seed, 31]).permutation(first)
    place = np.split(np.searchsorted(people, owner), np.cumsum([len(rows[s]) for s in SPLITS]))
    days = np.concatenate([rows[s].duration_days for s in SPLITS])[given]
    cause = np.concatenate([rows[s].cause for s in SPLITS])[given]
    return {
        s: replace(rows[s], duration_days=days[here], cause=cause[here])
        for s, here in zip(SPLITS, place, strict=False)
    }
