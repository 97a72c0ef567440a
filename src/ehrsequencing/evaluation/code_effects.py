"""Which codes move the risk: mean effects of striking each code, over some of the evaluated subjects.

A run and a population go in, one row for each code comes out. It may be shared: rows need 11 carriers, and how many
subjects carry a code is told as a share, in steps of at least 11 people.
"""

from typing import Any

import numpy as np

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.minimum_counts import SMALLEST_COUNT
from ehrsequencing.evaluation.population import Population
from ehrsequencing.explain import Question
from ehrsequencing.explain.cohort import explain_cohort
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.codes import read_descriptions
from ehrsequencing.records.events import hash_u64

MOST_CODES = 15
STEPS = (0.05, 0.1, 0.2, 0.5)  # to which shares of subjects are rounded
# Why a run has no effects of codes. These texts may be shared, so that none repeats an error that may count people.
GONE = "The records that the run was prepared from are no longer where they were."
CHANGED = (
    "The records changed after the run was prepared. ehrseq explain RUN DATA prints the error."
)
RARE = f"No code was recorded for at least {SMALLEST_COUNT} of the subjects."


def rounded_share(carriers: int, subjects: int) -> float | None:
    """A share in steps of at least 11 people; None where there are too few for any.

    >>> rounded_share(37, 200), rounded_share(37, 1000), rounded_share(12, 20)
    (0.2, 0.05, None)
    """
    step = next((step for step in STEPS if step * subjects >= SMALLEST_COUNT), None)
    return None if step is None else round(round(carriers / subjects / step) * step, 2)


def code_effects(
    run: Run, population: Population, *, subjects: int, resamples: int
) -> dict[str, Any] | None:
    """Mean effects of codes on the risk by the middle horizon, at the subjects' last prediction times.

    Args:
        run: The run.
        population: The evaluated subjects.
        subjects: How many of them are explained, chosen by a hash of their ids; 0: none.
        resamples: Bootstrap resamples of subjects for the intervals.

    Returns:
        `cause`, `horizon_days`, `subjects` (how many were asked for), mean `risk` and `codes`, with the largest mean
        effects first: `code`, `description`, rounded `share` of the subjects that have it, `effect` on the risk
        with its 95 % interval `low` and `high`. Where nothing was measured, `codes` is empty and `reason` says why in
        words. None where nothing is asked for.
    """
    if not subjects:
        return None
    if population.source is None or not population.source.is_dir():
        return {"codes": [], "reason": GONE}
    rows, ids = population.records.rows, population.records.timelines.subject_id
    asked = ids[np.unique(rows.subject)]
    chosen = asked[np.argsort(hash_u64(asked.astype(np.uint64)), kind="stable")[:subjects]]
    try:
        question = Question.for_run(run)
    except EhrseqError as error:  # the run has no answer for the horizon
        return {"codes": [], "reason": f"{error.what}."}
    try:
        records = NewRecords(run, population.source, only=frozenset(chosen.tolist()))
        found = explain_cohort(question, records, subjects=None, bootstrap=resamples)
    except EhrseqError:
        return {"codes": [], "reason": CHANGED}
    words = read_descriptions(population.source)
    kept = found.table.to_pylist()
    return {
        "cause": question.cause_name,
        "horizon_days": question.horizon_days,
        "subjects": subjects,
        "risk": found.risk,
        "reason": None if kept else RARE,
        "codes": [
            {
                "code": row["code"],
                "description": words.get(row["code"]),
                "share": rounded_share(row["carriers"], found.subjects),
                "effect": row["change_in_risk"],
                "low": row["low"],
                "high": row["high"],
            }
            for row in kept[:MOST_CODES]
        ],
    }
