"""Explanations as tables: one subject's; attention weights; and their files."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.outputs import EXPLANATION, output_file
from ehrsequencing.explain.deletions import (
    KINDS,
    Deletion,
    change,
    deletion,
)
from ehrsequencing.explain.record import Question, SubjectRecord
from ehrsequencing.prediction.prediction_file import with_notes, without_formulas
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import Timelines

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


def explain_subject(
    question: Question,
    record: SubjectRecord,
    *,
    row: int = -1,
    kinds: Sequence[str] = (*KINDS, CHANGE),
) -> tuple[Deletion, pa.Table]:
    """Every effect on one risk.

    Args:
        question: Cause and horizon.
        record: The subject.
        row: Which prediction time, by its number; default: the last.
        kinds: Some of `deletions.KINDS`, and `CHANGE` for the rows that add up to the change since the prediction time
            before.

    Returns:
        The effects, and a table with the columns of `COLUMNS`, sorted by kind and size.
    """
    row = row % len(record.moments)
    removed = deletion(question, record, row=row, kinds=kinds)

    def time_of(visit: int | None) -> int | None:
        return None if visit is None else int(record.visit_us[visit])

    rows = [
        {
            "kind": effect.kind,
            "code": effect.code,
            "visit": effect.visit,
            "time": time_of(effect.visit),
            "rows": effect.count,
            "change_in_risk": effect.effect,
            "change_in_log_hazard": effect.log_hazard,
        }
        for effect in removed.effects
    ]
    if CHANGE in kinds and row > 0:
        rows.extend(
            {
                "kind": CHANGE,
                "code": part.text,
                "visit": part.visit,
                "change_in_risk": part.change,
                "time": time_of(part.visit),
            }
            for part in change(question, record, row=row)[2]
        )
    return removed, pa.Table.from_pylist(rows, schema=COLUMNS)


# ---- attention weights -----------------------------------------------------------------------------------------------


def attention_weights(run: Run, timelines: Timelines) -> Floats:
    """The weight (K,) of every code in its visit's vector; see `SurvivalModel.code_attention`."""
    from ehrsequencing.predictors.network import code_attention

    return code_attention(run.model, timelines, code_types=run.code_types)


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
