"""Which codes raise or lower the risk in a cohort: mean effects among carriers, with intervals over subjects."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.explain.deletions import deletion
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import subject_records
from ehrsequencing.metrics.bootstrap import bootstrap_subjects, percentile_interval
from ehrsequencing.prediction.predict import Moment, NewRecords, no_prediction_times
from ehrsequencing.records.events import hash_u64

COHORT_COLUMNS = pa.schema(
    [
        ("code", pa.string()),
        (
            "carriers",
            pa.string(),
        ),  # subjects with the code, at least 11, rounded as all counts that may be shared
        ("change_in_risk", pa.float64()),  # mean among carriers: with the code − without it
        ("low", pa.float64()),  # 95 % interval by bootstrap over subjects
        ("high", pa.float64()),
        ("change_in_log_hazard", pa.float64()),
        ("raised", pa.float64()),  # share of the carriers whose risk the code raises
    ]
)


@dataclass(frozen=True)
class CohortEffects:
    """Effects of codes on the risk at each subject's last prediction time.

    Attributes:
        subjects: How many subjects were explained.
        risk: Their mean risk.
        table: With the columns of `COHORT_COLUMNS`: the largest mean effects first.
    """

    subjects: int
    risk: float
    table: pa.Table


def explain_cohort(
    question: Question,
    records: NewRecords,
    *,
    subjects: int | None = 1000,
    bootstrap: int = 200,
    progress: Callable[[int, int], None] = lambda done, todo: None,
) -> CohortEffects:
    """Remove each code from each subject's record, and average over those who have it.

    Args:
        question: Cause and horizon.
        records: The data.
        subjects: How many subjects at most, chosen by a hash of their ids; None: all.
        bootstrap: Resamples of subjects for the intervals.
        progress: Called with the number of subjects done and to do.

    Returns:
        Codes with at least 11 carriers.

    Raises:
        EhrseqError: Nobody has a prediction time.
    """
    parts = [np.zeros(0, np.int64)]
    for shard, rows in records.prediction_times(Moment("last")):
        parts.append(shard.subject_id[np.unique(rows.subject)])
    everybody = np.concatenate(parts)
    if not len(everybody):
        raise no_prediction_times(records)
    order = np.argsort(hash_u64(everybody.astype(np.uint64)), kind="stable")
    chosen = set(everybody[order[:subjects]].tolist())
    risks: list[float] = []
    subject, code, effect = [], [], []  # one entry for each subject and code
    for record in subject_records(records, chosen):
        found = deletion(question, record, kinds=["code"])
        for one in found.effects:
            subject.append(len(risks))
            code.append(one.code or "")
            effect.append((one.effect, one.log_hazard))
        risks.append(found.risk)
        progress(len(risks), len(chosen))
    weights = None
    if bootstrap:
        weights = np.concatenate(list(bootstrap_subjects(np.arange(len(risks)), bootstrap, 0)))
    table = _table(
        np.array(code, dtype=object),
        np.array(effect).reshape(-1, 2),
        np.array(subject, dtype=np.int64),
        weights,
    )
    return CohortEffects(len(risks), float(np.mean(risks)), table)


def _table(
    code: NDArray[np.object_], effect: Floats, subject: Ints, weights: Ints | None
) -> pa.Table:
    """One row a code, from the effect (n, 2) of each code of each subject, and weights (B, subjects) of resamples."""
    codes, number = np.unique(code, return_inverse=True)
    carriers = np.bincount(number, minlength=len(codes))
    rows = []
    for k in np.flatnonzero(carriers >= SMALLEST_COUNT):
        own = np.flatnonzero(number == k)
        row = {
            "code": codes[k],
            "carriers": count_text(int(carriers[k])),
            "change_in_risk": float(effect[own, 0].mean()),
            "change_in_log_hazard": float(effect[own, 1].mean()),
            "raised": float((effect[own, 0] > 0).mean()),
        }
        if weights is not None:
            weight = weights[:, subject[own]]
            total = weight.sum(axis=1)
            with np.errstate(invalid="ignore"):
                means = weight @ effect[own, 0] / np.where(total > 0, total, np.nan)
            row["low"], row["high"] = (float(limit) for limit in percentile_interval(means))
        rows.append(row)
    rows.sort(key=lambda row: -abs(row["change_in_risk"]))
    return pa.Table.from_pylist(rows, schema=COHORT_COLUMNS)
