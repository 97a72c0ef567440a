"""Timelines of hand-written visits, rows of hand-written columns, and vocabularies of hand-written codes."""

import numpy as np

from ehrsequencing.config import ValuesConfig
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.scales import KNOTS
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

Codes = tuple[tuple[int, float], ...]  # token and rank (NaN without a number) of each code
Record = tuple[tuple[float, Codes], ...]  # day and codes of each visit


def timelines_of(records: list[Record]) -> Timelines:
    """Visits without length, at the end of the days given; the value of a code is its rank."""
    visits = [visit for record in records for visit in record]
    codes = [code for _, own in visits for code in own]
    moment = np.array([round(day * DAY_US) for day, _ in visits], dtype=np.int64)
    days = np.array([day for day, _ in visits], dtype=np.float32)
    gaps = [np.diff([record[0][0], *(day for day, _ in record)]) for record in records if record]
    ranks = np.array([rank for _, rank in codes], dtype=np.float32)
    return Timelines(
        subject_id=np.arange(len(records)) + 1,
        birth_us=np.zeros(len(records), dtype=np.int64),
        subject_offsets=np.cumsum([0, *map(len, records)]).astype(np.int64),
        start_us=moment,
        end_us=moment,
        age_years=days / np.float32(365.25),
        delta_days=np.concatenate([*gaps, np.zeros(0)]).astype(np.float32),
        visit_offsets=np.cumsum([0, *(len(own) for _, own in visits)]).astype(np.int64),
        codes=np.array([token for token, _ in codes], dtype=np.int32),
        values=np.stack([ranks, ranks], 1),
        static_codes=np.zeros(0, dtype=np.int32),
        static_offsets=np.zeros(len(records) + 1, dtype=np.int64),
    )


def one_row_each(subjects: int, **columns: np.ndarray) -> TaskRows:
    """A prediction time of each subject; columns that are not given are zeros."""
    blank = {name: np.zeros(subjects) for name in TaskRows.__dataclass_fields__}
    return TaskRows(**{**blank, "row_offsets": np.arange(subjects + 1), **columns})


def vocabulary_of(
    *codes: str, kinds: tuple[str, ...] = (), numeric: tuple[str, ...] = (), carry: bool = False
) -> Vocabulary:
    """Codes, of which some have numbers in two bins."""
    has = np.array([code in numeric for code in codes])
    n = int(has.sum()) * (3 if carry else 1)
    settings = ValuesConfig(mode="bins", bins=2, carry=carry)
    return Vocabulary(kinds, codes, has, np.tile(np.linspace(0, 1, KNOTS), (n, 1)), np.zeros(n), np.ones(n), settings)
