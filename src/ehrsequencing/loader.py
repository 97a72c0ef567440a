"""Prepared arrays → a stream of `VisitBatch`.

Who shares a training step is decided by a seeded shuffle alone: subjects are taken in random order until the visit
budget is full. Length never decides (SCIENCE.md §3: it is informative about the outcome).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ehrsequencing.batch import VisitBatch
from ehrsequencing.records.timelines import TaskRows, Timelines, ragged


@dataclass(frozen=True)
class Step:
    """A batch and where its prediction times stand.

    Attributes:
        batch: The packed visits and queries, with labels.
        rows: (r,) int64, rows of the task, ascending within a subject.
        positions: (r,) int64, the visit or query of the batch that answers each row.
    """

    batch: VisitBatch
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]


class SubjectLoader:
    """Batches of one split for one task.

    Subjects without a prediction time are left out, and so are visits after a subject's last one: nothing may see them.

    Args:
        timelines: Visits of the split.
        rows: The task's prediction times in the same split.
        queries: True for the `horizon` head. False for the `visit` head: queries are left out, a query that falls on
            a visit's end becomes that visit's row, and only a subject's last row carries its cause.
        code_types: (V,) type of each token; None where the model has no embedding for it.
    """

    def __init__(
        self,
        timelines: Timelines,
        rows: TaskRows,
        *,
        queries: bool = True,
        code_types: NDArray[np.int64] | None = None,
    ) -> None:
        self.timelines, self.rows, self.queries = timelines, rows, queries
        self.code_types = None if code_types is None else torch.from_numpy(code_types)
        offsets = np.asarray(rows.row_offsets)
        self.subjects = np.flatnonzero(np.diff(offsets) > 0)
        last = offsets[self.subjects + 1] - 1
        self.n_visits = np.zeros(len(timelines), dtype=np.int64)  # visits that some row may see
        self.n_visits[self.subjects] = np.asarray(rows.visits_before)[last]
        asked = np.r_[0, np.cumsum(rows.is_query)]
        self.n_queries = (asked[offsets[1:]] - asked[offsets[:-1]]) * queries
        self.cost = self.n_visits + self.n_queries
        if not queries:
            self.subjects = self.subjects[self.n_visits[self.subjects] > 0]

    def __len__(self) -> int:
        return len(self.subjects)

    def shuffled(self, epoch: int, *, seed: int, visit_budget: int) -> list[NDArray[np.int64]]:
        """The steps of one epoch: randomly drawn subjects up to the visit budget; the same for the same seed."""
        order = np.random.default_rng([seed, epoch]).permutation(self.subjects)
        return self._pack(order, visit_budget)

    def in_order(self, *, visit_budget: int) -> Iterator[Step]:
        """Every subject once, in the order of the store; for prediction."""
        for subjects in self._pack(self.subjects, visit_budget):
            yield self.collate(subjects)

    def _pack(self, order: NDArray[np.int64], visit_budget: int) -> list[NDArray[np.int64]]:
        steps: list[NDArray[np.int64]] = []
        start, filled = 0, 0
        for position, cost in enumerate(self.cost[order].tolist()):
            if filled + cost > visit_budget and position > start:
                steps.append(order[start:position])
                start, filled = position, 0
            filled += cost
        return [*steps, order[start:]] if start < len(order) else steps

    def collate(self, subjects: NDArray[np.int64]) -> Step:
        """Pack some subjects, in the order given."""
        timelines, rows = self.timelines, self.rows
        visit, visit_owner, visit_rank = _slices(timelines.subject_offsets[subjects], self.n_visits[subjects])
        start = np.asarray(rows.row_offsets)[subjects]
        row, row_owner, _ = _slices(start, np.asarray(rows.row_offsets)[subjects + 1] - start)
        seen = np.asarray(rows.visits_before[row], dtype=np.int64)
        first_visit = np.asarray(timelines.subject_offsets)[subjects][row_owner]
        is_query = np.asarray(rows.is_query[row])
        if not self.queries:
            moment = np.asarray(rows.prediction_us[row])
            own = (seen > 0) & (np.asarray(timelines.end_us)[np.maximum(first_visit + seen - 1, 0)] == moment)
            row, row_owner, seen, is_query = row[own], row_owner[own], seen[own], np.zeros(int(own.sum()), dtype=bool)
        asked = np.flatnonzero(is_query)

        # A visit stands before the queries that may see it: visit i at 2(i + 1), a query that sees k visits at 2k + 1.
        owner = np.r_[visit_owner, row_owner[asked]]
        order = np.lexsort((np.r_[2 * (visit_rank + 1), 2 * seen[asked] + 1], owner))
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        visit_start = np.r_[0, np.cumsum(self.n_visits[subjects])]
        positions = position[np.maximum(visit_start[row_owner] + seen - 1, 0)]
        positions[asked] = position[len(visit) :]

        def merged(of_visits: NDArray[np.generic], of_queries: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate([of_visits, of_queries])[order])

        query_rows = row[asked]
        codes, code_offsets = ragged(timelines.visit_offsets, visit)
        carried, carry_offsets = ragged(rows.carry_offsets, query_rows)
        joint = np.r_[code_offsets, code_offsets[-1] + carry_offsets[1:]]
        token, visit_offsets = ragged(joint, order)
        static, static_offsets = ragged(timelines.static_offsets, subjects)
        at_risk, duration, cause, entry = self._labels(row, row_owner, positions, len(order))
        all_codes = torch.from_numpy(np.r_[timelines.codes[codes], rows.carry_codes[carried]][token].astype(np.int64))
        batch = VisitBatch(
            codes=all_codes,
            visit_offsets=torch.from_numpy(visit_offsets),
            subject_offsets=torch.from_numpy(np.r_[0, np.cumsum(np.bincount(owner, minlength=len(subjects)))]),
            age_years=merged(timelines.age_years[visit], rows.age_years[query_rows]),
            delta_days=merged(timelines.delta_days[visit], rows.delta_days[query_rows]),
            static_codes=torch.from_numpy(timelines.static_codes[static].astype(np.int64)),
            static_offsets=torch.from_numpy(static_offsets),
            values=torch.from_numpy(np.concatenate([timelines.values[codes], rows.carry_values[carried]])[token]),
            is_query=merged(np.zeros(len(visit), dtype=bool), np.ones(len(asked), dtype=bool)),
            at_risk=at_risk,
            duration_days=duration,
            cause=cause,
            entry_days=entry,
            code_types=None if self.code_types is None else self.code_types[all_codes],
        )
        return Step(batch, row, positions)

    def _labels(
        self, row: NDArray[np.int64], owner: NDArray[np.int64], positions: NDArray[np.int64], n: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = self.rows
        at_risk, cause = np.zeros(n, dtype=bool), np.zeros(n, dtype=np.int64)
        duration, entry = np.ones(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
        known = ~np.isnan(rows.duration_days[row])
        where, row = positions[known], row[known]
        at_risk[where] = True
        duration[where], entry[where] = rows.duration_days[row], rows.entry_days[row]
        own_cause = np.asarray(rows.cause[row], dtype=np.int64)
        if not self.queries:
            own_cause = np.where(np.r_[np.diff(owner[known]) != 0, True], own_cause, 0) if len(row) else own_cause
        cause[where] = own_cause
        at_risk_, duration_, cause_, entry_ = map(torch.from_numpy, (at_risk, duration, cause, entry))
        return at_risk_, duration_, cause_, entry_


def _slices(
    start: NDArray[np.int64], length: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Items of several ranges one after another, the range that each belongs to, and its rank there."""
    owner = np.repeat(np.arange(len(length)), length)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
    return np.asarray(start)[owner] + rank, owner, rank
