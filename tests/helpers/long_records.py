"""Long records of random visits and prediction times."""

import numpy as np

from ehrsequencing.core.arrays import offsets
from ehrsequencing.records.timelines import TaskRecords, TaskRows, Timelines
from helpers.strategies import VOCAB


def random_records(
    lengths: tuple[int, ...], *, seed: int, causes: int = 2, density: float = 0.7, inside: float = 0.4
) -> TaskRecords:
    """Visits at whole days with 0 to 4 codes; prediction times at visits' ends, and queries on and between them.

    A share of the queries lies in the visit that follows, after some of its codes.
    """
    rng = np.random.default_rng(seed)
    n, subject = sum(lengths), np.repeat(np.arange(len(lengths)), lengths)
    end = np.concatenate([np.cumsum(rng.integers(1, 4, length)) for length in lengths] or [np.zeros(0)]).astype(
        np.int64
    )
    codes = rng.integers(0, 5, n)
    values = rng.normal(size=(int(codes.sum()), 2)).astype(np.float32)
    values[rng.random(len(values)) < 0.5] = np.nan
    static = rng.integers(0, 3, len(lengths))
    timelines = Timelines(
        subject_id=np.arange(len(lengths)) + 7,
        birth_us=np.zeros(len(lengths), np.int64),
        subject_offsets=offsets(subject, len(lengths)),
        start_us=end,
        end_us=end,
        age_years=np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0, 100, n)).astype(np.float32),
        delta_days=rng.choice([0.0, 0.3, 1.0, 40.0], n).astype(np.float32),
        visit_offsets=np.r_[0, np.cumsum(codes)],
        codes=rng.integers(1, VOCAB, int(codes.sum())).astype(np.int32),
        values=values,
        static_codes=rng.integers(1, VOCAB, int(static.sum())).astype(np.int32),
        static_offsets=np.r_[0, np.cumsum(static)],
    )
    rows: list[tuple[int, int, bool, int]] = []  # subject, moment, query, visits seen
    for owner, length in enumerate(lengths):
        own = end[timelines.subject_offsets[owner] : timelines.subject_offsets[owner] + length]
        for moment in range(int(own.max(initial=0)) + 3):
            if rng.random() < density:
                seen = int(np.sum(own <= moment))
                is_query = not (seen and own[seen - 1] == moment) or rng.random() < 0.2
                if is_query and rng.random() < 0.5:
                    continue
                rows.append((owner, moment, bool(is_query), seen))
    r, is_query = len(rows), np.array([row[2] for row in rows], dtype=bool)
    carried = rng.integers(0, 3, r) * is_query
    owner = np.array([row[0] for row in rows], dtype=np.int64)
    cause = rng.integers(0, causes + 1, r).astype(np.int8)
    next_visit = timelines.subject_offsets[owner] + np.array([row[3] for row in rows], dtype=np.int64)
    codes = np.r_[np.diff(timelines.visit_offsets), 0][next_visit] * (next_visit < timelines.subject_offsets[owner + 1])
    unfinished = rng.integers(0, codes + 1) * is_query * (rng.random(r) < inside)
    asked = TaskRows(
        row_offsets=offsets(owner, len(lengths)),
        prediction_us=np.array([row[1] for row in rows], dtype=np.int64),
        index_us=np.zeros(r, np.int64),
        is_query=is_query,
        visits_before=np.array([row[3] for row in rows], dtype=np.int32),
        age_years=rng.uniform(0, 100, r).astype(np.float32),
        delta_days=rng.uniform(0, 9, r).astype(np.float32),
        unfinished_codes=unfinished.astype(np.int32),
        duration_days=rng.uniform(1, 900, r),
        entry_days=np.zeros(r, np.float32),
        cause=cause,
        carry_offsets=np.r_[0, np.cumsum(carried)],
        carry_codes=rng.integers(1, VOCAB, int(carried.sum())).astype(np.int32),
        carry_values=rng.normal(size=(int(carried.sum()), 2)).astype(np.float32),
    )
    return TaskRecords(timelines, asked)
