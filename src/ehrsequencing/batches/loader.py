"""Prepared arrays → a stream of `VisitBatch`.

Who shares a training step is decided by a seeded shuffle alone: subjects are taken in random order until the visit
budget is full. Length never decides (it is informative about the outcome).

A record too long for one batch is cut into parts: some of its prediction times each, with as much of the record before
them as they can depend on (`Reach`). A step's loss is a sum over prediction times, so its gradient is the sum of its
parts' gradients: memory is that of one part, and nothing else changes.

A query that lies in a visit sees that visit's codes stamped up to its moment, and no other answer may see them. It is
asked of a copy of its subject whose record ends there: the very batch that the truncated record would make.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ehrsequencing.batches.reach import Reach as Reach, RecordPart as RecordPart
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.arrays import Bools, Ints, ragged, spans
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.outcomes import outcome_labels
from ehrsequencing.records.timelines import TaskRecords

# in one visit, whose codes attend to one another: time and memory grow with the square
MAX_VISIT_CODES = 16_384


@dataclass(frozen=True)
class Step:
    """A batch and where its prediction times stand."""

    batch: VisitBatch  # the packed visits and queries, with labels
    rows: Ints  # (r,) int64, rows of the task, ascending within a subject
    positions: Ints  # (r,) int64, the visit or query of the batch that answers each row
    is_last: bool = True  # whether the subjects drawn together are complete with it; False while parts of them follow


class SubjectLoader:
    """Batches of one split for one task.

    Subjects without a prediction time are left out, and so are visits after a subject's last one: nothing may see them.

    Args:
        records: Visits and prediction times of the split.
        queries: True for the `horizon` head. False for the `visit` head: queries are left out, a query that falls on
            a visit's end becomes that visit's row, and only a subject's last row carries its cause.
        code_types: (V,) type of each token; None where the model has no embedding for it.
        reach: Of the model, to cut long records by; None: no record is cut.
    """

    def __init__(
        self,
        records: TaskRecords,
        *,
        queries: bool = True,
        code_types: Ints | None = None,
        reach: Reach | None = None,
    ) -> None:
        self.timelines, self.rows = records.timelines, records.rows
        self.queries, self.reach = queries, reach
        self.outcomes = records.outcomes
        self.code_types = None if code_types is None else torch.from_numpy(code_types)
        timelines, rows = records.timelines, records.rows
        offsets = rows.row_offsets
        self.subjects = np.flatnonzero(np.diff(offsets) > 0)
        last = offsets[self.subjects + 1] - 1
        self.n_visits = np.zeros(len(timelines), dtype=np.int64)  # visits that some row may see
        self.n_visits[self.subjects] = rows.visits_before[last]
        self.n_queries = np.zeros(len(timelines), dtype=np.int64)
        if queries and len(self.subjects):
            is_query = rows.is_query
            self.n_queries[self.subjects] = np.add.reduceat(
                is_query, offsets[self.subjects], dtype=np.int64
            )
        self.cost: Ints = self.n_visits + self.n_queries
        # copies of each subject: one for each query that lies in a visit
        self.n_copies = np.zeros(len(timelines), dtype=np.int64)
        if queries:
            self._count_copies()
        if not queries:
            self.subjects = self.subjects[self.n_visits[self.subjects] > 0]

    def _count_copies(self) -> None:
        """Queries that lie in a visit have copies of their own; the subject itself needs only what other rows see."""
        rows, offsets = self.rows, self.rows.row_offsets
        copies = np.flatnonzero(rows.unfinished_codes)
        if not len(copies):
            return
        owner = np.searchsorted(offsets, copies, side="right") - 1
        np.add.at(self.n_copies, owner, 1)
        np.add.at(self.cost, owner, rows.visits_before[copies] + 1)
        seen = np.where(rows.unfinished_codes, 0, rows.visits_before)
        seen_by_others = np.maximum.reduceat(seen, offsets[self.subjects])
        self.cost[self.subjects] += seen_by_others - self.n_visits[self.subjects]
        self.n_visits[self.subjects] = seen_by_others

    @classmethod
    def of_model(
        cls, config: ModelConfig, records: TaskRecords, *, code_types: Ints | None = None
    ) -> "SubjectLoader":
        """The batches that a model wants.

        Raises:
            EhrseqError: A visit has more codes than this kind of model can relate to one another.
        """
        queries, reach = config.head == "horizon", Reach.for_model(config)
        loader = cls(records, queries=queries, code_types=code_types, reach=reach)
        if config.relates_codes:
            loader._refuse_huge_visits()
        return loader

    def _refuse_huge_visits(self) -> None:
        """Pooling is linear in a visit's codes; attention among them is not."""
        timelines = self.timelines
        huge = np.flatnonzero(np.diff(timelines.visit_offsets) > MAX_VISIT_CODES)
        subject = np.searchsorted(timelines.subject_offsets, huge, side="right") - 1
        is_huge = np.any(huge - timelines.subject_offsets[subject] < self.n_visits[subject])
        if self.n_copies.any():
            is_huge |= np.max(self.rows.unfinished_codes) > MAX_VISIT_CODES
        if is_huge:
            raise EhrseqError(
                f"a visit has more than {MAX_VISIT_CODES:,} codes, which this model relates each to each",
                where="visits",
                fix="use model.architecture=hierarchical with model.visit_encoder=attention, whose cost is linear"
                " in the codes of a visit, or prepare with finer visits (visits.by=window)",
            )

    def __len__(self) -> int:
        return len(self.subjects)

    def shuffled(
        self, epoch: int, *, seed: int, visit_budget: int, most_subjects: int | None = None
    ) -> list[Ints]:
        """The steps of one epoch: randomly drawn subjects, so many at most, up to the visit budget.

        The same for the same seed.
        """
        order = np.random.default_rng([seed, epoch]).permutation(self.subjects)
        return self._pack(order, visit_budget, most_subjects)

    def in_order(self, *, visit_budget: int, subjects: Ints | None = None) -> Iterator[Step]:
        """Every subject once, in the order of the store, or the given ones in theirs; for prediction."""
        for group in self.groups_in_order(visit_budget=visit_budget, subjects=subjects):
            yield from self.steps(group, visit_budget=visit_budget)

    def groups_in_order(self, *, visit_budget: int, subjects: Ints | None = None) -> list[Ints]:
        """The subjects of each step of `in_order`; arguments as there."""
        return self._pack(self.subjects if subjects is None else subjects, visit_budget)

    def _pack(self, order: Ints, visit_budget: int, most_subjects: int | None = None) -> list[Ints]:
        steps: list[Ints] = []
        start, filled, most = 0, 0, most_subjects or len(order)
        for position, cost in enumerate(self.cost[order].tolist()):
            if (filled + cost > visit_budget or position - start == most) and position > start:
                steps.append(order[start:position])
                start, filled = position, 0
            filled += cost
        return [*steps, order[start:]] if start < len(order) else steps

    # ---- long records ------------------------------------------------------------------------------------------------

    def steps(self, subjects: Ints, *, visit_budget: int) -> Iterator[Step]:
        """Some subjects as batches: all that are not long in one, and then each part of a long one by itself.

        Long is a record beyond the visit budget and beyond three times the model's reach: a part then has at most half
        as many visits before its own prediction times' as it has of these. (Tokens are not counted by the budget.)
        """
        if self.reach is None:
            yield self.collate(subjects)
            return
        limit = 3 * self.reach.most
        if not self.reach.in_tokens:
            limit = max(limit, visit_budget)
        is_long = self._size(subjects) > limit
        parts = [
            part
            for subject in subjects[is_long].tolist()
            for part in self.parts(subject, size=limit)
        ]
        if not is_long.all():
            yield replace(self.collate(subjects[~is_long]), is_last=not parts)
        for number, part in enumerate(parts, start=1):
            yield replace(self.collate_part(part), is_last=number == len(parts))

    def _size(self, subjects: Ints) -> Ints:
        """Visits and queries of each subject; where the reach counts tokens, tokens and queries."""
        if self.reach is None or not self.reach.in_tokens:
            return self.cost[subjects]
        first = self.timelines.subject_offsets[subjects]
        offsets, n_visits = self.timelines.visit_offsets, self.n_visits[subjects]
        tokens: Ints = np.maximum(offsets[first + n_visits] - offsets[first], n_visits)
        tokens += self._tokens_of_copies(subjects)
        return tokens + self.n_queries[subjects]

    def _tokens_of_copies(self, subjects: Ints) -> Ints:
        """Tokens of the records of each subject's queries that lie in a visit."""
        total, rows = np.zeros(len(subjects), dtype=np.int64), self.rows
        offsets = self.timelines.visit_offsets
        for k in np.flatnonzero(self.n_copies[subjects]).tolist():
            row = self._unfinished_rows(subjects[k])
            first, seen = self.timelines.subject_offsets[subjects[k]], rows.visits_before[row]
            length = np.maximum(offsets[first + seen] - offsets[first], seen)
            total[k] = np.sum(length + rows.unfinished_codes[row])
        return total

    def _unfinished_rows(self, subject: int) -> Ints:
        """Rows of a subject's queries that lie in a visit."""
        low, high = self.rows.row_offsets[subject : subject + 2]
        return int(low) + np.flatnonzero(self.rows.unfinished_codes[low:high])

    def parts(self, subject: int, *, size: int) -> list[RecordPart]:
        """Cut one subject's prediction times into parts of about equal size.

        Args:
            subject: Row of the subject.
            size: The most visits and queries (tokens) of one part, those that its prediction times look back on
                included; more only where the reach leaves no room, or a single visit has more tokens.
        """
        assert self.reach is not None
        rows, first = self.rows, int(self.timelines.subject_offsets[subject])
        row = np.arange(rows.row_offsets[subject], rows.row_offsets[subject + 1])
        unfinished = self._unfinished_rows(subject).tolist() if self.queries else []
        copies = [self._part_of_copy(subject, k) for k in unfinished]
        if copies:
            row = row[rows.unfinished_codes[row] == 0]
            if not len(row):
                return copies
        known = ~np.isnan(rows.duration_days[row])
        if not self.queries:
            chosen = self._ends_a_visit(row, np.full(len(row), first))
            row, known = row[chosen], known[chosen]
        if not len(row):
            nothing = int(rows.row_offsets[subject])
            return [RecordPart(subject, (0, 1), (nothing, nothing))]
        seen = rows.visits_before[row].astype(np.int64)
        codes = np.diff(self.timelines.visit_offsets[first : first + int(seen[-1]) + 1])
        tokens: Ints = np.r_[0, np.cumsum(np.maximum(codes, 1))]  # before each visit
        start: Ints = np.arange(len(tokens))
        of_query: Ints = np.ones(len(row), dtype=np.int64)
        if self.reach.in_tokens:
            start = tokens
            of_query = 1 + np.diff(rows.carry_offsets[row[0] : row[-1] + 2])[row - row[0]]
        place = start[seen] + (np.cumsum(of_query * rows.is_query[row]) if self.queries else 0)
        place = place - place[0]
        count = -(-(int(place[-1]) + 1) // max(size - self.reach.most, 1))
        bounds = np.flatnonzero(np.diff(place * count // (int(place[-1]) + 1))) + 1
        at_risk = row[known]
        parts: list[RecordPart] = []
        for low, high in zip([0, *bounds.tolist()], [*bounds.tolist(), len(row)], strict=True):
            back = self.reach.first_visit(start, int(seen[low]) - 1) if seen[low] else 0
            rest = at_risk[np.searchsorted(at_risk, row[high - 1], side="right") :]
            next_row = int(rest[0]) if len(rest) and not self.queries else None
            visits, own = (back, int(seen[high - 1])), (int(row[low]), int(row[high - 1]) + 1)
            skipped = int(tokens[back])
            parts.append(
                RecordPart(subject, visits, own, tokens_skipped=skipped, next_row=next_row)
            )
        return parts + copies

    def _part_of_copy(self, subject: int, row: int) -> RecordPart:
        """A query that lies in a visit, with that visit and what it can depend on before."""
        assert self.reach is not None
        first, seen = self.timelines.subject_offsets[subject], int(self.rows.visits_before[row])
        finished = np.diff(self.timelines.visit_offsets[first : first + seen + 1])
        codes = np.r_[finished, self.rows.unfinished_codes[row]]
        tokens: Ints = np.r_[0, np.cumsum(np.maximum(codes, 1))]
        start = tokens if self.reach.in_tokens else np.arange(len(tokens))
        back = self.reach.first_visit(start, seen)
        skipped = int(tokens[back])
        return RecordPart(
            subject, (back, seen + 1), (row, row + 1), unfinished=True, tokens_skipped=skipped
        )

    def collate_part(self, part: RecordPart) -> Step:
        """Pack one part of a long record."""
        low, high = part.rows
        row = np.arange(low, high)
        if self.queries and not part.unfinished:
            row = row[self.rows.unfinished_codes[row] == 0]
        first, last = part.visits
        if part.next_row is not None:
            row, last = np.r_[row, part.next_row], int(self.rows.visits_before[part.next_row])
        cut = np.array([self.rows.unfinished_codes[low] if part.unfinished else 0])
        subject = np.array([part.subject])
        step = self._collate(subject, np.array([first]), np.array([last]), row, row * 0, cut)
        batch = replace(
            step.batch,
            visits_skipped=torch.tensor([part.visits[0]]),
            tokens_skipped=torch.tensor([part.tokens_skipped]),
        )
        if part.next_row is None:
            return replace(step, batch=batch)
        assert batch.cause is not None
        batch = replace(batch, cause=torch.zeros_like(batch.cause))
        return Step(batch, step.rows[:-1], step.positions[:-1])

    # ---- packing -----------------------------------------------------------------------------------------------------

    def collate(self, subjects: Ints) -> Step:
        """Pack some subjects, in the order given."""
        start = self.rows.row_offsets[subjects]
        length = self.rows.row_offsets[subjects + 1] - start
        row, _ = spans(start, length)
        owner = np.repeat(np.arange(len(subjects)), length)
        high, cut = self.n_visits[subjects], np.zeros_like(subjects)
        if self.n_copies[subjects].any():  # only where this head answers queries
            codes = self.rows.unfinished_codes[row].astype(np.int64)
            copies = np.flatnonzero(codes)
            owner_of_copy = subjects[owner[copies]]
            owner[copies] = len(subjects) + np.arange(len(copies))
            subjects = np.r_[subjects, owner_of_copy]
            high = np.r_[high, self.rows.visits_before[row[copies]] + 1]
            cut = np.r_[cut, codes[copies]]
        return self._collate(subjects, np.zeros_like(subjects), high, row, owner, cut)

    def _ends_a_visit(self, row: Ints, first_visit: Ints) -> Bools:
        """Which rows of the task fall on the end of the last visit that they see; the subjects' first visits given."""
        seen = self.rows.visits_before[row].astype(np.int64)
        end_us = self.timelines.end_us[np.maximum(first_visit + seen - 1, 0)]
        return np.asarray((seen > 0) & (end_us == self.rows.prediction_us[row]))

    def _collate(
        self, subjects: Ints, low: Ints, high: Ints, row: Ints, row_owner: Ints, cut: Ints
    ) -> Step:
        """Pack the visits `low` to `high` (exclusive) of some subjects, and rows of the task that see no others.

        Where `cut` is not 0 the last of the visits shows its first so many codes, and the subject's row sees it too.
        """
        timelines, rows = self.timelines, self.rows
        first = timelines.subject_offsets[subjects]
        visit, visit_start = spans(first + low, high - low)
        visit_owner = np.repeat(np.arange(len(subjects)), high - low)
        visit_rank = np.arange(len(visit)) - visit_start[visit_owner]
        is_query = rows.is_query[row]
        if not self.queries:
            own = self._ends_a_visit(row, first[row_owner])
            row, row_owner = row[own], row_owner[own]
            is_query = np.zeros(len(row), dtype=bool)
        seen = rows.visits_before[row].astype(np.int64) - low[row_owner] + (cut[row_owner] > 0)
        queries = np.flatnonzero(is_query)

        # A visit stands before the queries that may see it: visit i at 2(i + 1), a query that sees k visits at 2k + 1.
        owner = np.r_[visit_owner, row_owner[queries]]
        order = np.lexsort((np.r_[2 * (visit_rank + 1), 2 * seen[queries] + 1], owner))
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        positions = position[np.maximum(visit_start[row_owner] + seen - 1, 0)]
        positions[queries] = position[len(visit) :]

        def merged(of_visits: NDArray[np.generic], of_queries: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate([of_visits, of_queries])[order])

        query_rows = row[queries]
        first_code = timelines.visit_offsets[visit]
        length = timelines.visit_offsets[visit + 1] - first_code
        is_cut = np.flatnonzero(cut)
        length[visit_start[is_cut + 1] - 1] = cut[is_cut]
        codes, code_offsets = spans(first_code, length)
        carried, carry_offsets = ragged(rows.carry_offsets, query_rows)
        joint = np.r_[code_offsets, code_offsets[-1] + carry_offsets[1:]]
        token, visit_offsets = ragged(joint, order)
        static, static_offsets = ragged(timelines.static_offsets, subjects)
        all_codes = torch.from_numpy(
            np.r_[timelines.codes[codes], rows.carry_codes[carried]][token].astype(np.int64)
        )
        batch = VisitBatch(
            codes=all_codes,
            visit_offsets=torch.from_numpy(visit_offsets),
            subject_offsets=torch.from_numpy(
                np.r_[0, np.cumsum(np.bincount(owner, minlength=len(subjects)))]
            ),
            age_years=merged(timelines.age_years[visit], rows.age_years[query_rows]),
            delta_days=merged(timelines.delta_days[visit], rows.delta_days[query_rows]),
            static_codes=torch.from_numpy(timelines.static_codes[static].astype(np.int64)),
            static_offsets=torch.from_numpy(static_offsets),
            values=torch.from_numpy(
                np.concatenate([timelines.values[codes], rows.carry_values[carried]])[token]
            ),
            is_query=merged(np.zeros(len(visit), dtype=bool), np.ones(len(queries), dtype=bool)),
            code_types=None if self.code_types is None else self.code_types[all_codes],
            **self._labels(row, row_owner, positions, len(order)),
            **self._outcome_labels(row, positions),
        )
        return Step(batch, row, positions)

    def _outcome_labels(self, row: Ints, positions: Ints) -> dict[str, Any]:
        """Fields of a batch; none where the records are not asked about outcomes."""
        if self.outcomes is None:
            return {}
        known = ~np.isnan(self.rows.duration_days[row])
        row, positions = row[known], positions[known]
        order = np.argsort(positions)
        row, positions = row[order], positions[order]
        listed = outcome_labels(self.outcomes, self.rows, row)
        return {
            "outcome_rows": torch.from_numpy(positions[listed.row]),
            "outcome_codes": torch.from_numpy(listed.code),
            "outcome_days": torch.from_numpy(listed.days),
        }

    def _labels(self, row: Ints, owner: Ints, positions: Ints, n: int) -> dict[str, Any]:
        """Fields of a batch of n visits and queries."""
        rows = self.rows
        at_risk, cause = np.zeros(n, dtype=bool), np.zeros(n, dtype=np.int64)
        duration, entry = np.ones(n), np.zeros(n)  # float64: a time may lie on an edge of the grid
        known = ~np.isnan(rows.duration_days[row])
        where, row, owner = positions[known], row[known], owner[known]
        at_risk[where] = True
        duration[where], entry[where] = rows.duration_days[row], rows.entry_days[row]
        cause[where] = rows.cause[row]
        if not self.queries:  # a subject's last row alone carries its cause
            cause[where[:-1][np.diff(owner) == 0]] = 0
        return {
            "at_risk": torch.from_numpy(at_risk),
            "duration_days": torch.from_numpy(duration),
            "cause": torch.from_numpy(cause),
            "entry_days": torch.from_numpy(entry),
        }
