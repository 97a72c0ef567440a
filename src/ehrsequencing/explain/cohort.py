"""Which codes raise or lower the risk in a cohort: mean effects among carriers, with intervals over subjects."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.explain.deletions import deletion
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import SubjectRecord, subject_records
from ehrsequencing.metrics.bootstrap import bootstrap_subjects, percentile_interval
from ehrsequencing.prediction.predict import Moment, NewRecords, no_prediction_times
from ehrsequencing.records.events import hash_u64

AGE_EDGES_YEARS = (50, 65, 80)
ALL_AGES = "all"
COHORT_COLUMNS = pa.schema(
    [
        ("code", pa.string()),
        ("age", pa.string()),  # in years, at the prediction time
        ("carriers", pa.string()),  # subjects with the code; a small count is hidden, as in <11
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
        table: With the columns of `COHORT_COLUMNS`: the largest mean effects first; for each code all ages, then bands.
    """

    subjects: int
    risk: float
    table: pa.Table


@dataclass
class _Found:
    """Effects in long form: one entry for each subject and code."""

    risks: list[float]
    ages: list[float]
    subject: list[int]
    code: list[str]
    effect: list[tuple[float, float]]

    def add(self, question: Question, record: SubjectRecord) -> None:
        found = deletion(question, record, kinds=["code"])
        self.subject += [len(self.risks)] * len(found.effects)
        self.risks.append(found.risk)
        self.ages.append(float(record.prediction_ages[-1]))
        self.code += [effect.code or "" for effect in found.effects]
        self.effect += [(effect.effect, effect.log_hazard) for effect in found.effects]


def explain_cohort(
    question: Question,
    records: NewRecords,
    *,
    subjects: int | None = 1000,
    bootstrap: int = 200,
    progress: Callable[[int, int], None] = lambda done, todo: None,
) -> CohortEffects:
    """Strike each code from each subject's record, and average over those who have it.

    Args:
        question: Cause and horizon.
        records: The data.
        subjects: How many subjects at most, chosen by a hash of their ids; None: all.
        bootstrap: Resamples of subjects for the intervals.
        progress: Called with the number of subjects done and to do.

    Returns:
        Codes with at least 11 carriers. Smaller groups are hidden, and counts from which they could be worked out.

    Raises:
        EhrseqError: Nobody has a prediction time.
    """
    everybody = np.concatenate(
        [
            np.zeros(0, np.int64),
            *(
                record.subject_id[np.unique(rows.subject)]
                for record, rows in records.prediction_times(Moment("last"))
            ),
        ]
    )
    if not len(everybody):
        raise no_prediction_times(records)
    order = np.argsort(hash_u64(everybody.astype(np.uint64)), kind="stable")
    chosen = set(everybody[order[:subjects]].tolist())
    found = _Found([], [], [], [], [])
    for record in subject_records(records, chosen):
        found.add(question, record)
        progress(len(found.risks), len(chosen))
    return CohortEffects(len(found.risks), float(np.mean(found.risks)), _table(found, bootstrap))


def _table(found: _Found, bootstrap: int) -> pa.Table:
    codes, code = np.unique(np.array(found.code, dtype=object), return_inverse=True)
    subject, effect = np.array(found.subject, dtype=np.int64), np.array(found.effect).reshape(-1, 2)
    bands = age_bands(np.array(found.ages))
    weights = (
        np.concatenate(list(bootstrap_subjects(np.arange(len(found.risks)), bootstrap, 0)))
        if bootstrap
        else None
    )
    rows = list[list[dict[str, object]]]()
    for number in np.flatnonzero(np.bincount(code, minlength=len(codes)) >= SMALLEST_COUNT):
        own = np.flatnonzero(code == number)
        of_code = []
        for age in (ALL_AGES, *age_names()):
            who = own if age == ALL_AGES else own[bands[subject[own]] == age]
            if not len(who):
                continue
            carriers = count_text(len(who))
            row: dict[str, object] = {"code": codes[number], "age": age, "carriers": carriers}
            if len(who) >= SMALLEST_COUNT:
                row |= _means(effect[who], None if weights is None else weights[:, subject[who]])
            of_code.append(row)
        rows.append(of_code)
    rows.sort(key=lambda of_code: -abs(float(str(of_code[0]["change_in_risk"]))))
    return pa.Table.from_pylist([row for of_code in rows for row in of_code], schema=COHORT_COLUMNS)


def _means(effect: Floats, weights: Ints | None) -> dict[str, object]:
    """Mean effects of carriers (n, 2), and the interval of the first by their weights (B, n)."""
    row: dict[str, object] = {
        "change_in_risk": float(effect[:, 0].mean()),
        "change_in_log_hazard": float(effect[:, 1].mean()),
        "raised": float((effect[:, 0] > 0).mean()),
    }
    if weights is not None:
        total = weights.sum(axis=1)
        with np.errstate(invalid="ignore"):
            low, high = percentile_interval(
                weights @ effect[:, 0] / np.where(total > 0, total, np.nan)
            )
        row |= {"low": float(low), "high": float(high)}
    return row


def age_names() -> list[str]:
    """The age bands in order."""
    low = [f"under {AGE_EDGES_YEARS[0]}"]
    middle = [f"{a}-{b - 1}" for a, b in itertools.pairwise(AGE_EDGES_YEARS)]
    return [*low, *middle, f"{AGE_EDGES_YEARS[-1]} and over", "unknown"]


def age_bands(age_years: Floats) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """The band of each age.

    >>> age_bands(np.array([49.9, 65.0, 80.0, np.nan])).tolist()
    ['under 50', '65-79', '80 and over', 'unknown']
    """
    names = np.array(age_names())
    band = np.searchsorted(AGE_EDGES_YEARS, age_years, side="right")
    return names[np.where(np.isnan(age_years), len(names) - 1, band)]
