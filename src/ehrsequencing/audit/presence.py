"""Which prediction times see which token."""

import numpy as np

from ehrsequencing.core.arrays import Floats
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.visits import count_at_or_before


class Presence:
    """Which rows see a token: all rows of a subject after the visit that has it first; static ones always."""

    def __init__(self, records: TaskRecords) -> None:
        timelines, rows = records.timelines, records.rows
        everyone = np.arange(len(timelines))
        visits = np.diff(timelines.subject_offsets)
        place = np.arange(int(visits.sum())) - np.repeat(timelines.subject_offsets[:-1], visits)
        codes = np.diff(timelines.visit_offsets)
        subject = np.r_[
            np.repeat(np.repeat(everyone, visits), codes),
            np.repeat(everyone, np.diff(timelines.static_offsets)),
        ]
        token = np.r_[timelines.codes, timelines.static_codes].astype(np.int64)
        nth = np.r_[np.repeat(place, codes), np.full(len(timelines.static_codes), -1)]
        order = np.lexsort((nth, token, subject))
        subject, token, nth = subject[order], token[order], nth[order]
        opens = np.r_[True, (np.diff(subject) != 0) | (np.diff(token) != 0)][: len(order)]
        subject, self.token, nth = subject[opens], token[opens], nth[opens]
        before, first = count_at_or_before(
            rows.subject, rows.visits_before.astype(np.int64), subject, nth
        )
        self.start, self.stop = first + before, rows.row_offsets[subject + 1]

    def weight_with(self, weight: Floats, n_tokens: int) -> Floats:
        """(V,) weight of the rows that see each token."""
        seen = np.r_[0.0, np.cumsum(weight)]
        return np.asarray(
            np.bincount(self.token, weights=seen[self.stop] - seen[self.start], minlength=n_tokens)
        )
