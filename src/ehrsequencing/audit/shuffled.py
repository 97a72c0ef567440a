"""Checks that a small model trained on shuffled outcomes ranks subjects no better than chance."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding
from ehrsequencing.config import load_study
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.files import private_folder
from ehrsequencing.metrics.discrimination import wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.training.inference import risk_of_rows
from ehrsequencing.training.train import Trainer

TOLERANCE = 0.03
DEALS = 4
_RESAMPLES = 100
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
    "training.ema=0.9",
    "training.ema_warmup=10",
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
        return self._dealt(task)[split]

    def _dealt(self, task: str) -> dict[str, TaskRows]:
        return _deal(
            {split: self._first(task, split) for split in SPLITS}, self._ids, seed=self.seed
        )

    def _first(self, task: str, split: str) -> TaskRows:
        rows = super().rows(task, split)
        offsets = rows.row_offsets
        has = np.diff(offsets) > 0
        return rows.select(offsets[:-1][has], np.r_[0, np.cumsum(has)])

    @cached_property
    def _ids(self) -> dict[str, Ints]:
        return {split: self.timelines(split).subject_id for split in SPLITS}


def _deal(rows: dict[str, TaskRows], ids: dict[str, Ints], *, seed: int) -> dict[str, TaskRows]:
    """The same rows, with the labels of somebody drawn at random."""
    owner = np.concatenate([ids[s][rows[s].subject] for s in SPLITS])
    labels = {
        n: np.concatenate([getattr(rows[s], n) for s in SPLITS]) for n in ("duration_days", "cause")
    }
    people, first = np.unique(owner, return_index=True)
    given = np.random.default_rng([seed, 31]).permutation(first)
    out, start = {}, 0
    for split in SPLITS:
        here = given[np.searchsorted(people, owner[start : start + len(rows[split])])]
        out[split] = TaskRows(
            **{**vars(rows[split]), **{name: column[here] for name, column in labels.items()}}
        )
        start += len(rows[split])
    return out


def shuffled_labels(data: AuditData) -> Finding:
    """Train small models on dealt labels, and rank the audited split by them: C = 0.5 ± 0.03, the mean of the deals."""
    if data.run.is_visit_head:
        return Finding(
            "not_tested", "the visit head has no calendar, so that C at a horizon is undefined"
        )
    deals = [_deal_and_rank(data, seed=DEALS * data.seed + number) for number in range(DEALS)]
    c = float(np.mean([deal.c for deal in deals]))
    se = float(np.sqrt(np.mean([deal.c_se**2 for deal in deals]) / DEALS))
    tested = {
        "deals": DEALS,
        "subjects": deals[0].subjects,
        "events": sum(deal.events for deal in deals),
    }
    if np.isnan(c) or np.isnan(se):
        return Finding("not_tested", "no two subjects can be compared at the last horizon", tested)
    said = f"C = {c:.3f} (95 % interval {c - 1.96 * se:.3f} to {c + 1.96 * se:.3f})"
    if abs(c - 0.5) > max(TOLERANCE, 3 * se):
        return Finding("leak", f"{said}: shuffled labels could be learned", tested, c, TOLERANCE)
    if abs(c - 0.5) <= TOLERANCE and 1.96 * se <= TOLERANCE:
        return Finding("passed", f"{said}: shuffled labels cannot be learned", tested, c, TOLERANCE)
    return Finding(
        "not_tested",
        f"{said}: too few events to tell 0.5 from 0.5 ± {TOLERANCE}",
        tested,
        c,
        TOLERANCE,
    )


@dataclass(frozen=True)
class _Ranked:
    """C of one deal with its standard error over subjects, and on how many it rests."""

    c: float
    c_se: float
    subjects: int
    events: int


def _deal_and_rank(data: AuditData, *, seed: int) -> _Ranked:
    """One deal: train, and rank those of the audited split by their risk at the last horizon."""
    shuffled = ShuffledLabels(data.prepared, seed=seed)
    with private_folder() as folder:
        trainer = Trainer(shuffled, data.task.name, folder / "run", study=load_study(None, SMALL))
        trainer.fit()
    model: Any = trainer.training.averaged.cpu().eval()
    records = shuffled.records(data.task.name, data.split)
    rows = records.rows
    horizons = data.task.horizons[-1:]
    risk = risk_of_rows(model, records, horizons_days=horizons).astype(np.float64)
    outcome = (rows.duration_days, rows.cause.astype(np.int64), risk, horizons)
    draws = data.rng(32).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=_RESAMPLES)
    c = wolbers_c(ScoredRows.of(*outcome))[0, 0]
    resampled = wolbers_c(ScoredRows.of(*outcome, weights=draws))[:, 0, 0]
    return _Ranked(float(c), float(np.nanstd(resampled)), len(rows), int((outcome[1] == 1).sum()))


CHECK = Check(
    "shuffled_labels",
    "Does a model trained on shuffled outcomes rank people no better than chance?",
    shuffled_labels,
)
