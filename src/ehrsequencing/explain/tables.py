"""Explanations as tables: one subject's, with attributions beside the effects; and their files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import EXPLANATION, output_file
from ehrsequencing.explain.attention import attention_weights, has_attention
from ehrsequencing.explain.changes import change
from ehrsequencing.explain.deletions import KINDS, PAIRED_CODES, Deletion, Effect, deletion
from ehrsequencing.explain.edits import Edit, encode_copies, kept_rows
from ehrsequencing.explain.gradients import Gradients, integrated_gradients
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import SubjectRecord

CHANGE = "since the prediction time before"  # the kind of the rows that add up
COLUMNS = pa.schema(
    [
        ("kind", pa.string()),  # one of deletions.KINDS, or CHANGE
        ("code", pa.string()),  # null for a visit, and for time passing
        ("with_code", pa.string()),  # the second code of a pair
        ("visit", pa.int64()),  # number of the visit within the record, from 0
        ("time", pa.timestamp("us")),  # start of that visit
        ("rows", pa.int64()),  # of the record that were struck
        # with − without; the part of the change in the rows of CHANGE
        (
            "change_in_risk",
            pa.float64(),
        ),
        ("change_in_log_hazard", pa.float64()),
        ("interaction", pa.float64()),  # of a pair: the effect of both − the sum of each alone
        ("interaction_in_log_hazard", pa.float64()),
        ("gradient", pa.float64()),  # integrated gradients, on the log hazard of the network
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
    paired_codes: int = PAIRED_CODES,
) -> tuple[Deletion, pa.Table]:
    """Every effect on one risk, with integrated gradients and attention weights beside those of a code in a visit.

    Args:
        question: Cause and horizon.
        record: The subject.
        row: Which prediction time, by its number; default: the last.
        kinds: Some of `deletions.KINDS`, and `CHANGE` for the rows that add up to the change since the prediction time
            before.
        paired_codes: How many codes are paired.

    Returns:
        The effects, and a table with the columns of `COLUMNS`, sorted by kind and size.
    """
    row = row % len(record.moments)
    found = deletion(question, record, row=row, kinds=kinds, paired_codes=paired_codes)
    beside = _Beside.of(question, record, row) if "code in visit" in kinds else None
    rows = [_row(effect, record, beside) for effect in found.effects]
    if CHANGE in kinds and row > 0:
        for part in change(question, record, row=row).rows:
            rows.append(
                {
                    "kind": CHANGE,
                    "code": part.code or part.text,
                    "visit": part.visit,
                    "change_in_risk": part.change,
                    "time": None if part.visit is None else int(record.visit_us[part.visit]),
                }
            )
    return found, pa.Table.from_pylist(rows, schema=COLUMNS)


class _Beside:
    """What other methods say of each code in each visit, by the token that the model reads there."""

    def __init__(
        self,
        gradients: Gradients,
        attention: dict[tuple[int, str], float],
        token_of: dict[str, str],
    ) -> None:
        self.gradients, self.attention, self.token_of = gradients, attention, token_of

    @classmethod
    def of(cls, question: Question, record: SubjectRecord, row: int) -> "_Beside":
        words, names = question.run.vocabulary, tuple(record.code_number)
        tokens = words.base[words.ids(names)].tolist()
        attention: dict[tuple[int, str], float] = {}
        if has_attention(question.run):
            nothing = kept_rows(record, Edit())[None]
            lines = encode_copies(words, record, nothing, np.array([row])).timelines
            visit = np.repeat(np.arange(record.n_visits), np.diff(lines.visit_offsets)).tolist()
            weights = attention_weights(question.run, lines).tolist()
            for place, token, weight in zip(
                visit, words.base[lines.codes].tolist(), weights, strict=True
            ):
                name = (place, words.tokens[token])
                attention[name] = attention.get(name, 0.0) + weight
        of_names = {name: words.tokens[token] for name, token in zip(names, tokens, strict=True)}
        return cls(integrated_gradients(question, record, row=row), attention, of_names)


def _row(effect: Effect, record: SubjectRecord, beside: _Beside | None) -> dict[str, Any]:
    row: dict[str, Any] = {
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
    if beside is not None and effect.kind == "code in visit":
        assert effect.visit is not None
        assert effect.code is not None
        name = (effect.visit, beside.token_of[effect.code])
        row |= {
            "gradient": beside.gradients.of_codes.get(name),
            "attention": beside.attention.get(name),
        }
    return row


# ---- files -----------------------------------------------------------------------------------------------------------


def require_suffix(out: Path) -> None:
    """Refuse a file name whose ending is not that of a format for tables."""
    if not out.name.endswith(SUFFIXES):
        raise EhrseqError(
            "does not end in a format for tables",
            where=str(out),
            fix="end its name with .parquet or .csv",
        )


def write_table(table: pa.Table, out: Path, *, overwrite: bool = False) -> None:
    """Write a table as Parquet or CSV. It appears when it is complete; `overwrite` as of `refuse_existing`."""
    with output_file(out, EXPLANATION, overwrite=overwrite) as temporary:
        if out.name.endswith(".parquet"):
            pq.write_table(table, temporary)
        else:
            pc.write_csv(table, temporary)
