"""Explanations as tables: one subject's, with attributions beside the effects; and their files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.outputs import EXPLANATION, output_file
from ehrsequencing.explain.deletions import (
    KINDS,
    Deletion,
    Effect,
    change,
    deletion,
)
from ehrsequencing.explain.record import Edit, Question, SubjectRecord, encode_copies, kept_rows
from ehrsequencing.prediction.prediction_file import with_notes, without_formulas
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.timelines import Timelines

CHANGE = "since the prediction time before"  # the kind of the rows that add up
COLUMNS = pa.schema(
    [
        ("kind", pa.string()),  # one of deletions.KINDS, or CHANGE
        ("code", pa.string()),  # null for a visit, and for time passing
        ("with_code", pa.string()),  # the second code of a pair
        ("visit", pa.int64()),  # number of the visit within the record, from 0
        ("time", pa.timestamp("us")),  # start of that visit
        ("rows", pa.int64()),  # of the record that were removed
        # risk with it minus risk without it; in rows of CHANGE its part of the change
        (
            "change_in_risk",
            pa.float64(),
        ),
        ("change_in_log_hazard", pa.float64()),
        ("interaction", pa.float64()),  # of a pair: the effect of both − the sum of each alone
        ("interaction_in_log_hazard", pa.float64()),
        ("attention", pa.float64()),  # importance within a visit, not cause
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
    """Every effect on one risk, with attention weights beside those of a code in a visit.

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
    attention = _attention(question, record, row) if "code in visit" in kinds else {}
    rows = [_row(effect, record, attention) for effect in removed.effects]
    if CHANGE in kinds and row > 0:
        rows.extend(
            {
                "kind": CHANGE,
                "code": part.text,
                "visit": part.visit,
                "change_in_risk": part.change,
                "time": None if part.visit is None else int(record.visit_us[part.visit]),
            }
            for part in change(question, record, row=row).rows
        )
    return removed, pa.Table.from_pylist(rows, schema=COLUMNS)


def _attention(question: Question, record: SubjectRecord, row: int) -> dict[tuple[int, str], float]:
    """(visit, code) → the weight of its token in the visit's vector; empty where the encoder has no weights."""
    if not has_attention(question.run):
        return {}
    words, names = question.run.vocabulary, tuple(record.code_number)
    token_of = dict(zip(names, words.base[words.ids(names)].tolist(), strict=True))
    whole = kept_rows(record, Edit())[None]
    lines = encode_copies(words, record, whole, np.array([row])).timelines
    visits = np.repeat(np.arange(record.n_visits), np.diff(lines.visit_offsets)).tolist()
    weight: dict[tuple[int, int], float] = {}
    for visit, token, own in zip(
        visits,
        words.base[lines.codes].tolist(),
        attention_weights(question.run, lines).tolist(),
        strict=True,
    ):
        weight[visit, token] = weight.get((visit, token), 0.0) + own
    return {
        (visit, code): weight[visit, token_of[code]]
        for visit, codes in enumerate(record.codes)
        for code in codes
        if (visit, token_of[code]) in weight
    }


def _row(
    effect: Effect, record: SubjectRecord, attention: dict[tuple[int, str], float]
) -> dict[str, object]:
    row: dict[str, object] = {
        "kind": effect.kind,
        "code": effect.code,
        "with_code": effect.other,
        "visit": effect.visit,
        "time": None if effect.visit is None else int(record.visit_us[effect.visit]),
        "rows": effect.count,
        "change_in_risk": effect.effect,
        "change_in_log_hazard": effect.log_hazard,
        "interaction": effect.interaction,
        "interaction_in_log_hazard": effect.log_hazard_interaction,
    }
    if effect.kind == "code in visit" and effect.visit is not None and effect.code is not None:
        row["attention"] = attention.get((effect.visit, effect.code))
    return row


# ---- attention weights -----------------------------------------------------------------------------------------------


def has_attention(run: Run) -> bool:
    """Whether the run's visit encoder weighs the codes of a visit."""
    model = run.study.model
    has_weights = model.visit_encoder in ("attention", "bottleneck")
    return run.study.training.network and model.architecture == "hierarchical" and has_weights


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
