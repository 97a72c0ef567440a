"""Checks that a small model trained on shuffled outcomes ranks subjects no better than chance."""

from dataclasses import replace
from typing import Any

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding
from ehrsequencing.config import load_study
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.files import private_folder
from ehrsequencing.metrics.discrimination import wolbers_c
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.predictors.network import Network
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows
from ehrsequencing.results.result_types import Verdict
from ehrsequencing.training.plan import Plan
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


def shuffled_labels(data: AuditData) -> Finding:
    """Train small models on dealt labels, and rank the audited split by them: C = 0.5 ± 0.03, the mean of the deals."""
    if data.run.is_visit_head:
        return Finding("not_tested", "the visit head has no calendar, so that C is undefined")
    deals = [_scored(data, seed=DEALS * data.seed + number) for number in range(DEALS)]
    c = float(np.mean([wolbers_c(ScoredRows.of(*deal))[0, 0] for deal in deals]))
    n = len(deals[0][0])
    draws = data.rng(32).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    again = [wolbers_c(ScoredRows.of(*deal, weights=draws))[:, 0, 0] for deal in deals]
    se = float(np.sqrt(np.mean(np.nanvar(again, axis=1)) / DEALS))
    tested = {"deals": DEALS, "subjects": n, "events": int((deals[0][1] == 1).sum())}
    if np.isnan(c) or np.isnan(se):
        return Finding("not_tested", "no two subjects can be compared at the last horizon", tested)
    verdict: Verdict = "not_tested"
    why = f"too few events to tell 0.5 from 0.5 ± {TOLERANCE}"
    if abs(c - 0.5) > max(TOLERANCE, 3 * se):
        verdict, why = "leak", "shuffled labels could be learned"
    elif abs(c - 0.5) <= TOLERANCE and 1.96 * se <= TOLERANCE:
        verdict, why = "passed", "shuffled labels cannot be learned"
    said = f"C = {c:.3f} (95 % interval {c - 1.96 * se:.3f} to {c + 1.96 * se:.3f})"
    return Finding(verdict, f"{said}: {why}", tested, round(c, 3), TOLERANCE)


def _scored(data: AuditData, *, seed: int) -> tuple[Floats, Ints, Floats, tuple[float, ...]]:
    """One deal: outcomes of the audited split, and risks by the last horizon of a model trained on the deal."""
    shuffled = ShuffledLabels(data.prepared, seed=seed)
    with private_folder() as folder:
        plan = Plan.of(shuffled, data.task.name, load_study(None, SMALL), as_given=True)
        trainer = Trainer(plan)
        trainer.train(folder / "run")
    model: Any = trainer.training.averaged.cpu().eval()
    records = shuffled.records(data.task.name, data.split)
    horizons = data.task.horizons[-1:]
    risk = Network(model).risk(records, horizons)
    return records.rows.duration_days, records.rows.cause.astype(np.int64), risk, horizons


CHECK = Check(
    "shuffled_labels",
    "Does a model trained on shuffled outcomes rank people no better than chance?",
    shuffled_labels,
)
