"""Timelines of hand-written visits, for tests of pretraining."""

import numpy as np

from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import Timelines

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
