"""Checks that no prediction depends on later visits or on other queries, through the loader that prediction uses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ehrsequencing.audit.copies import (
    MOVED,
    NONE,
    Copies,
    Cut,
    answers,
    copy_subjects,
    cuts,
    judge_movement,
    movement,
    noisy,
)
from ehrsequencing.audit.data import AuditData, Check, Finding
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.models.embeddings import CodeEmbedding, CodeVectors, VisitTimeEmbedding
from ehrsequencing.records.timelines import TaskRecords, TaskRows

MAX_GRADIENT_ROWS = 16


def future_perturbation(data: AuditData) -> Finding:
    """Visits after each cut are dropped, changed, or replaced by strangers' noise; answers up to it must not move."""
    chosen = cuts(data, share=4)
    own_row = np.concatenate([np.arange(cut.first_row, cut.row + 1) for cut in chosen])
    before = answers(data, data.asked)[own_row]
    rng, n_visits = data.rng(11), len(data.asked.timelines.start_us)

    def own(cut: Cut) -> Ints:
        return np.arange(cut.first_visit + cut.past_visits, cut.last_visit)

    def strangers(cut: Cut) -> Ints:
        return rng.integers(0, max(n_visits, 1), int(rng.integers(1, 7))) if n_visits else NONE

    copies = {
        "dropped": copy_subjects(
            data, chosen, visits_after=lambda cut: NONE, rows_after=False, end=False
        ),
        "changed": noisy(
            data, copy_subjects(data, chosen, visits_after=own, rows_after=True, end=True), rng
        ),
        "appended": noisy(
            data,
            copy_subjects(
                data,
                chosen,
                visits_after=lambda cut: np.r_[own(cut), strangers(cut)],
                rows_after=False,
                end=True,
            ),
            rng,
        ),
        "replaced": noisy(
            data,
            copy_subjects(data, chosen, visits_after=strangers, rows_after=False, end=True),
            rng,
        ),
    }
    moved = {
        name: movement(before, answers(data, c.records)[~c.later_row]) for name, c in copies.items()
    }
    tested = {
        "subjects": len({cut.subject for cut in chosen}),
        "rows": len(before),
        "perturbations": 4 * len(chosen),
    }
    if np.isnan(before).all():
        return Finding("not_tested", "the model gives no prediction at the sampled times", tested)
    bad = [name for name, m in moved.items() if m.max(initial=0.0) > MOVED]
    leak = f"changed when later visits were {' or '.join(bad)}"
    clean = "changing later visits changed no prediction; changing earlier visits did"
    return judge_movement(
        data, np.max(list(moved.values()), axis=0), leak=leak, clean=clean, tested=tested
    )


def queries_are_silent(data: AuditData) -> Finding:
    """Other queries are dropped, or queries of strangers are added between; no other prediction may change."""
    subjects = np.unique([cut.subject for cut in cuts(data, share=4)])
    records = data.asked.take(subjects)
    people, asked = records.timelines, records.rows
    is_query, rng = asked.is_query, data.rng(12)
    tested = {"subjects": len(subjects), "rows": len(asked)}
    if data.run.is_visit_head:
        return Finding("not_tested", "the visit head predicts at visits only", tested)
    before = answers(data, records)
    # A stranger's query in front of every row, and after it: the same moment and view, other contents.
    doubled = np.repeat(np.arange(len(asked)), 3)
    stranger = np.tile([True, False, True], len(asked))
    more = asked.select(doubled, 3 * asked.row_offsets)
    more = replace(more, is_query=more.is_query | stranger)
    no_visit, no_code = (
        np.zeros(len(people.start_us), dtype=bool),
        np.zeros(len(people.codes), dtype=bool),
    )
    noise = noisy(data, Copies(TaskRecords(people, more), no_visit, no_code, stranger), rng)
    moved = movement(before, answers(data, TaskRecords(people, noise.records.rows))[~stranger])
    # Without any queries; and with each subject's last row alone.
    for keep in (~is_query, _last_of_subject(asked)):
        kept = np.flatnonzero(keep)
        counts = np.bincount(asked.subject[kept], minlength=len(subjects))
        fewer = TaskRecords(people, asked.select(kept, np.r_[0, np.cumsum(counts)]))
        moved = np.r_[moved, movement(before[kept], answers(data, fewer))]
    tested["perturbations"] = 2 * len(asked) + int(is_query.sum())
    leak, clean = (
        "changed when others were requested",
        "no prediction changed when others were requested",
    )
    return judge_movement(data, moved, leak=leak, clean=clean, tested=tested)


def gradient(data: AuditData) -> Finding:
    """The derivative of each answer by the inputs of later visits, and of other queries, must be exactly zero."""
    rng, n_visits = data.rng(13), len(data.asked.timelines.start_us)
    ends = {cut.subject: replace(cut, row=cut.last_row - 1) for cut in cuts(data, share=16)}
    seen = data.asked.rows.visits_before + (data.asked.rows.unfinished_codes > 0)
    chosen = [replace(cut, past_visits=int(seen[cut.row])) for cut in ends.values()]

    def then_strangers(cut: Cut) -> Ints:
        own = np.arange(cut.first_visit + cut.past_visits, cut.last_visit)
        return np.r_[own, rng.integers(0, n_visits, 2)] if n_visits else own

    copies = copy_subjects(data, chosen, visits_after=then_strangers, rows_after=True, end=True)
    loader = SubjectLoader(
        copies.records, queries=not data.run.is_visit_head, code_types=data.run.code_types
    )
    step = loader.collate(loader.subjects)
    positions = step.positions[~copies.later_row[step.rows]]
    tested = {"subjects": len(chosen), "rows": 0, "inputs after the moment": 0}
    if not len(positions):
        return Finding("not_tested", "the model gives no prediction at the sampled times", tested)
    store: list[tuple[Tensor, Tensor]] = []  # inputs, and the row of the batch that owns each
    with torch.enable_grad(), _recorded(data.model, store, step.batch):
        logits = data.model(step.batch).double().view(step.batch.n_visits, -1)
    own = worst = 0.0
    for asked in _turns(positions, step.batch, rng):
        found = _derivative(logits, store, asked, step.batch, rng)
        worst, own = max(worst, found.forbidden), max(own, found.allowed)
        tested["rows"] += len(asked)
        tested["inputs after the moment"] += found.inputs
    if worst > 0:
        return Finding(
            "leak", "predictions have a derivative with respect to later inputs", tested, worst, 0.0
        )
    if not own or not tested["inputs after the moment"]:
        why = (
            "no prediction has a derivative with respect to its own past"
            if not own
            else "nobody has a later visit"
        )
        return Finding("not_tested", f"{why}, so that nothing could have been seen", tested)
    return Finding(
        "passed",
        "derivatives are exactly zero for later inputs and not zero for earlier ones",
        tested,
        0.0,
        0.0,
    )


def _turns(positions: Ints, batch: VisitBatch, rng: np.random.Generator) -> list[Ints]:
    """Prediction times in turns, at most one of each subject in a turn; not more turns than there is time for."""
    owner = batch.subject_of_visit.numpy()[positions]  # rows of a subject stand together
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    chosen = rng.permutation(int(place.max()) + 1)[:MAX_GRADIENT_ROWS]
    return [positions[place == turn] for turn in chosen.tolist()]


@dataclass(frozen=True)
class _Derivative:
    """Largest derivative by inputs that an answer may use and may not use; and how many of the latter."""

    allowed: float
    forbidden: float
    inputs: int


def _derivative(
    logits: Tensor,
    store: list[tuple[Tensor, Tensor]],
    asked: Ints,
    batch: VisitBatch,
    rng: np.random.Generator,
) -> _Derivative:
    """One backward pass from the asked rows, a randomly weighted sum of their logits."""
    weights = rng.uniform(0.5, 1.5, (len(asked), logits.shape[1])) * rng.choice(
        [-1.0, 1.0], (len(asked), 1)
    )
    loss = (logits[asked] * torch.from_numpy(weights)).sum()
    gradients = torch.autograd.grad(
        loss, [x for x, _ in store], retain_graph=True, allow_unused=True
    )
    is_query, subject = batch.is_query.numpy(), batch.subject_of_visit.numpy()
    cut = np.full(batch.n_subjects, -1)
    cut[subject[asked]] = asked
    position = np.arange(batch.n_visits)
    may = (position <= cut[subject]) & (~is_query | np.isin(position, asked))
    allowed = forbidden = 0.0
    inputs = 0
    for (_, row), by in zip(store, gradients, strict=True):
        if by is not None and by.numel():
            size, mine = by.abs().flatten(1).amax(1).numpy(), may[row.numpy()]
            allowed = max(allowed, float(size[mine].max(initial=0.0)))
            forbidden = max(forbidden, float(size[~mine].max(initial=0.0)))
            inputs += int((~mine).sum())
    return _Derivative(allowed, forbidden, inputs)


def _last_of_subject(rows: TaskRows) -> Bools:
    last = np.zeros(len(rows), dtype=bool)
    last[rows.row_offsets[1:] - 1] = True
    return last


@contextmanager
def _recorded(
    model: nn.Module, store: list[tuple[Tensor, Tensor]], batch: VisitBatch
) -> Iterator[None]:
    """While open, the inputs of a forward pass are stored: the vectors of codes, one each, and those of visits."""

    def codes(module: nn.Module, inputs: Any, output: CodeVectors) -> CodeVectors:
        vectors = output.expand().detach().requires_grad_()
        store.append((vectors, batch.visit_of_code))
        return CodeVectors(vectors, torch.arange(len(vectors)))

    def visits(module: nn.Module, inputs: Any, output: Tensor) -> None:
        store.append((output, torch.arange(batch.n_visits)))

    hooks: dict[type[nn.Module], Callable[..., Any]] = {
        CodeEmbedding: codes,
        VisitTimeEmbedding: visits,
    }
    handles = [m.register_forward_hook(hooks[type(m)]) for m in model.modules() if type(m) in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


CHECKS = (
    Check(
        "future_perturbation",
        "Does a prediction change when later visits are changed, dropped or added?",
        future_perturbation,
    ),
    Check(
        "gradient",
        "Does a prediction depend, however slightly, on the codes of a later visit?",
        gradient,
    ),
    Check(
        "queries_are_silent",
        "Does a prediction at one time change the prediction at another?",
        queries_are_silent,
    ),
)
