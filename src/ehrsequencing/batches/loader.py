"""Prepared arrays → a stream of `VisitBatch`.

Who shares a training step is decided by a seeded shuffle alone: subjects are taken in random order until the visit
budget is full. Length never decides (it is informative about the outcome).

A query that lies in a visit sees that visit's codes stamped up to its moment, and no other answer may see them. It is
asked of a copy of its subject whose record ends there: the very batch that the truncated record would make.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.arrays import Ints, offsets, ragged, spans
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


class SubjectLoader:
    """Batches of one split for one task.

    Subjects without a prediction time are left out, and so are visits after a subject's last one: nothing may see them.

    Args:
        records: Visits and prediction times of the split.
        queries: True for the `horizon` head. False for the `visit` head: queries are left out, a query that falls on
            a visit's end becomes that visit's row, and only a subject's last row carries its cause.
        code_types: (V,) type of each token; None where the model has no embedding for it.
    """

    def __init__(
        self,
        records: TaskRecords,
        *,
        queries: bool = True,
        code_types: Ints | None = None,
    ) -> None:
        self.timelines, self.rows = records.timelines, records.rows
        self.queries = queries
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
        copies = np.flatnonzero(rows.unfinished_codes)
        if queries and len(copies):  # the subject itself then needs only what other rows see
            owner = np.searchsorted(offsets, copies, side="right") - 1
            np.add.at(self.n_copies, owner, 1)
            np.add.at(self.cost, owner, rows.visits_before[copies] + 1)
            seen = np.where(rows.unfinished_codes, 0, rows.visits_before)
            seen_by_others = np.maximum.reduceat(seen, offsets[self.subjects])
            self.cost[self.subjects] += seen_by_others - self.n_visits[self.subjects]
            self.n_visits[self.subjects] = seen_by_others
        if not queries:
            self.subjects = self.subjects[self.n_visits[self.subjects] > 0]

    @classmethod
    def of_model(
        cls, config: ModelConfig, records: TaskRecords, *, code_types: Ints | None = None
    ) -> "SubjectLoader":
        """The batches that a model wants.

        Raises:
            EhrseqError: A visit has more codes than this kind of model can relate to one another.
        """
        loader = cls(records, queries=config.head == "horizon", code_types=code_types)
        if not config.relates_codes:  # pooling is linear in a visit's codes
            return loader
        timelines = loader.timelines
        huge = np.flatnonzero(np.diff(timelines.visit_offsets) > MAX_VISIT_CODES)
        subject = np.searchsorted(timelines.subject_offsets, huge, side="right") - 1
        is_huge = np.any(huge - timelines.subject_offsets[subject] < loader.n_visits[subject])
        if loader.n_copies.any():
            is_huge |= np.max(loader.rows.unfinished_codes) > MAX_VISIT_CODES
        if is_huge:
            raise EhrseqError(
                f"a visit has more than {MAX_VISIT_CODES:,} codes, which this model relates each to each",
                where="visits",
                fix="use model.architecture=hierarchical with model.visit_encoder=attention, whose cost is linear"
                " in the codes of a visit, or prepare with finer visits (visits.by=window)",
            )
        return loader

    def __len__(self) -> int:
        return len(self.subjects)

    def shuffled(
        self, epoch: int, *, seed: int, visit_budget: int, most_subjects: int | None = None
    ) -> list[Ints]:
        """The steps of one epoch: randomly drawn subjects, so many at most, up to the visit budget.

        The same for the same seed.
        """
        order = np.random.default_rng([seed, epoch]).permutation(self.subjects)
        return self.groups_in_order(
            visit_budget=visit_budget, subjects=order, most_subjects=most_subjects
        )

    def in_order(self, *, visit_budget: int, subjects: Ints | None = None) -> Iterator[Step]:
        """Every subject once, in the order of the store, or the given ones in theirs; for prediction."""
        for group in self.groups_in_order(visit_budget=visit_budget, subjects=subjects):
            yield self.collate(group)

    def groups_in_order(
        self,
        *,
        visit_budget: int,
        subjects: Ints | None = None,
        most_subjects: int | None = None,
    ) -> list[Ints]:
        """The subjects of each step of `in_order`; arguments as there, and how many subjects a step has at most."""
        order, steps = self.subjects if subjects is None else subjects, list[Ints]()
        start, filled, most = 0, 0, most_subjects or len(order)
        for position, cost in enumerate(self.cost[order].tolist()):
            if (filled + cost > visit_budget or position - start == most) and position > start:
                steps.append(order[start:position])
                start, filled = position, 0
            filled += cost
        return [*steps, order[start:]] if start < len(order) else steps

    # ---- packing -----------------------------------------------------------------------------------------------------

    def collate(self, subjects: Ints) -> Step:
        """Pack some subjects, in the order given."""
        timelines, rows = self.timelines, self.rows
        row, bounds = ragged(rows.row_offsets, subjects)
        row_owner = np.repeat(np.arange(len(subjects)), np.diff(bounds))
        subjects, row_owner, high, cut = self._with_copies(subjects, row, row_owner)
        first = timelines.subject_offsets[subjects]
        visit, visit_start = spans(first, high)
        visit_owner = np.repeat(np.arange(len(subjects)), high)
        visit_rank = np.arange(len(visit)) - visit_start[visit_owner]
        is_query = rows.is_query[row]
        if not self.queries:
            before = rows.visits_before[row].astype(np.int64)
            end_us = timelines.end_us[np.maximum(first[row_owner] + before - 1, 0)]
            ends_a_visit = (before > 0) & (end_us == rows.prediction_us[row])
            row, row_owner = row[ends_a_visit], row_owner[ends_a_visit]
            is_query = np.zeros(len(row), dtype=bool)
        seen = rows.visits_before[row].astype(np.int64) + (cut[row_owner] > 0)
        queries = np.flatnonzero(is_query)

        # A visit stands before the queries that may see it: visit i at 2(i + 1), a query that sees k visits at 2k + 1.
        owner = np.r_[visit_owner, row_owner[queries]]
        order = np.lexsort((np.r_[2 * (visit_rank + 1), 2 * seen[queries] + 1], owner))
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        positions = position[np.maximum(visit_start[row_owner] + seen - 1, 0)]
        positions[queries] = position[len(visit) :]

        query_rows = row[queries]
        ages = np.concatenate([timelines.age_years[visit], rows.age_years[query_rows]])
        gaps = np.concatenate([timelines.delta_days[visit], rows.delta_days[query_rows]])
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
            subject_offsets=torch.from_numpy(offsets(owner, len(subjects))),
            age_years=torch.from_numpy(ages[order]),
            delta_days=torch.from_numpy(gaps[order]),
            is_query=torch.from_numpy(order >= len(visit)),
            static_codes=torch.from_numpy(timelines.static_codes[static].astype(np.int64)),
            static_offsets=torch.from_numpy(static_offsets),
            values=torch.from_numpy(
                np.concatenate([timelines.values[codes], rows.carry_values[carried]])[token]
            ),
            code_types=None if self.code_types is None else self.code_types[all_codes],
            **self._labels(row, row_owner, positions, len(order)),
        )
        return Step(batch, row, positions)

    def _with_copies(
        self, subjects: Ints, row: Ints, row_owner: Ints
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """The subjects and, behind them, a copy for each query that lies in a visit.

        Returns:
            Subjects; the new owner of each row; the visits of each subject; the codes that are known of a copy's last
            visit (0: it is no copy).
        """
        known = self.rows.unfinished_codes[row].astype(np.int64) * self.queries
        copies = np.flatnonzero(known)
        owner = row_owner.copy()
        owner[copies] = len(subjects) + np.arange(len(copies))
        return (
            np.r_[subjects, subjects[row_owner[copies]]],
            owner,
            np.r_[self.n_visits[subjects], self.rows.visits_before[row[copies]] + 1],
            np.r_[np.zeros_like(subjects), known[copies]],
        )

    def _labels(self, row: Ints, owner: Ints, positions: Ints, n: int) -> dict[str, Any]:
        """Fields of a batch of n visits and queries, with outcomes where the records are asked about some."""
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
        labels = {
            "at_risk": at_risk,
            "duration_days": duration,
            "cause": cause,
            "entry_days": entry,
        }
        if self.outcomes is not None:
            order = np.argsort(where)
            listed = outcome_labels(self.outcomes, rows, row[order])
            labels |= {"outcome_rows": where[order][listed.row], "outcome_codes": listed.code}
            labels["outcome_days"] = listed.days
        return {name: torch.from_numpy(array) for name, array in labels.items()}


# ---- batches on their way to a device ----
Item = TypeVar("Item")


def on_device(steps: Iterator[Step], device: torch.device) -> Iterator[Step]:
    """The same steps on a device. On a GPU, one thread packs and pins the next one while this one is worked on."""
    if device.type == "cpu":  # where batches are made
        yield from steps
        return
    for step in prefetched(replace(step, batch=step.batch.pin_memory()) for step in steps):
        yield replace(step, batch=step.batch.to(device, non_blocking=True))


def prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order, each made in a second thread while the one before is in use.

    >>> list(prefetched(iter("abc")))
    ['a', 'b', 'c']
    """
    nothing = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="collate") as thread:
        coming = thread.submit(next, items, nothing)
        while (item := coming.result()) is not nothing:
            coming = thread.submit(next, items, nothing)
            yield item  # type: ignore[misc]  # it is not `nothing`
