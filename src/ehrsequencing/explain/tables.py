"""Explanations as tables, of one subject or of a cohort; and their files."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ehrsequencing.core.errors import refuse_idle, refuse_unknown
from ehrsequencing.core.outputs import EXPLANATION, output_file
from ehrsequencing.explain.cohort import Explanation, explain_cohort
from ehrsequencing.explain.deletions import KINDS, change, deletion
from ehrsequencing.explain.record import Question, subject_record
from ehrsequencing.prediction.predict import NewRecords
from ehrsequencing.prediction.prediction_file import with_notes, without_formulas

CHANGE = "since the prediction time before"  # the kind of the rows that add up
COLUMNS = pa.schema(
    [
        ("kind", pa.string()),  # one of deletions.KINDS, or CHANGE
        ("code", pa.string()),  # null for a visit, and for time passing
        ("visit", pa.int64()),  # number of the visit within the record, from 0
        ("time", pa.timestamp("us")),  # start of that visit
        ("rows", pa.int64()),  # of the record that were removed
        # risk with it minus risk without it; in rows of CHANGE its part of the change
        (
            "change_in_risk",
            pa.float64(),
        ),
        ("change_in_log_hazard", pa.float64()),
    ]
)
SUFFIXES = (".parquet", ".csv")


def explained(
    question: Question,
    records: NewRecords,
    subject: int | None,
    *,
    kind: str | None = None,
    subjects: int | None = None,
    progress: Callable[[int, int], None] = lambda done, todo: None,
) -> Explanation:
    """The effects on a subject's last risk, of one kind or of all, or the mean effects on those of a cohort.

    Args:
        question: Cause and horizon.
        records: The data.
        subject: One subject; None: the cohort.
        kind: One of `deletions.KINDS`, `CHANGE` for the parts that add up to the change since the prediction time
            before, or `all`.
        subjects: Of a cohort, at most so many.
        progress: Called with the number of subjects done and to do.

    Returns:
        A table with the columns of `COLUMNS`, sorted by kind and size, or with those of `COHORT_COLUMNS`.

    Raises:
        EhrseqError: There is no such kind or subject, nobody has a prediction time, or an argument would do nothing.
    """
    if subject is None:
        refuse_idle({"kind": kind}, "without a subject", where="explain")
        return explain_cohort(question, records, subjects=subjects or 1000, progress=progress)
    refuse_idle({"subjects": subjects}, "beside a subject", where="explain")
    every, kind = (*KINDS, CHANGE), kind or "all"
    refuse_unknown("kind", [kind], (*every, "all"))
    kinds = every if kind == "all" else (kind,)
    record = subject_record(records, subject)
    removed = deletion(question, record, kinds=kinds)
    rows: list[dict[str, object]] = [
        {
            "kind": effect.kind,
            "code": effect.code,
            "visit": effect.visit,
            "rows": effect.count,
            "change_in_risk": effect.effect,
            "change_in_log_hazard": effect.log_hazard,
        }
        for effect in removed.effects
    ]
    if CHANGE in kinds and len(record.moments) > 1:
        rows += [
            {"kind": CHANGE, "code": part.text, "visit": part.visit, "change_in_risk": part.change}
            for part in change(question, record)[2]
        ]
    starts: dict[object, int] = dict(enumerate(record.visit_us.tolist()))
    timed = [row | {"time": starts.get(row["visit"])} for row in rows]
    table = pa.Table.from_pylist(timed, schema=COLUMNS)
    return Explanation(removed.risk, table, removed.is_part, visits=record.visits_before[-1])


# ---- files -----------------------------------------------------------------------------------------------------------


def write_table(table: pa.Table, out: Path, *, overwrite: bool = False) -> None:
    """Write a table as Parquet or CSV. It appears when it is complete; `overwrite` as of `refuse_existing`."""
    with output_file(out, EXPLANATION, overwrite=overwrite) as temporary:
        if out.name.endswith(".parquet"):
            notes = with_notes(table.schema, {}, kind=EXPLANATION).metadata
            pq.write_table(table.replace_schema_metadata(notes), temporary)
        else:
            for number, field in enumerate(table.schema):
                if pa.types.is_string(field.type):
                    table = table.set_column(number, field, without_formulas(table[number]))
            pc.write_csv(table, temporary)
