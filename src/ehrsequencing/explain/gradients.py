"""Integrated gradients on code vectors: what each code adds to a network's log hazard, from gradients alone.

With e the vectors of all codes that a network reads for one answer f (the log cumulative hazard), and zero vectors as
the baseline, a code's attribution is

    φ_k = ∫_0^1 e_k · ∂f(α e) / ∂e_k dα          Σ_k φ_k = f(e) − f(0)

The integral is a Gauss–Legendre sum. The second equation (completeness) checks it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.core.arrays import Floats
from ehrsequencing.explain.edits import encode_copies
from ehrsequencing.explain.question import Question
from ehrsequencing.explain.record import SubjectRecord
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.embeddings import CodeEmbedding, CodeVectors
from ehrsequencing.prediction.predict import start_days_of
from ehrsequencing.records.hazards import exposure
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.inference import VISIT_BUDGET

POINTS = (32, 64, 128, 256)  # of the sum: more are taken until it is complete
RELATIVE_GAP, ABSOLUTE_GAP = 0.01, 1e-3  # Σφ may miss f(e) − f(0) by 1 % of it and .001


@dataclass(frozen=True)
class Gradients:
    """Attributions of codes on the log cumulative hazard of a run's network.

    Attributes:
        of_codes: (visit, code) → attribution, summed over that code's tokens; the visit is None for a summary of past
            numbers that a query carries. Codes are named as the model reads them (rolled up, or unknown).
        total: f(e) − f(0), the mean over an ensemble's members.
        gap: How far the attributions' sum is from it.
        points: Points of the sum.
        is_part: Whether the network is one part of a blend, so that the blend's risk moves less.
    """

    of_codes: dict[tuple[int | None, str], float]
    total: float
    gap: float
    points: int
    is_part: bool

    @property
    def is_complete(self) -> bool:
        """Whether the gap is within 1 % of the total and .001."""
        return self.gap <= RELATIVE_GAP * abs(self.total) + ABSOLUTE_GAP


def integrated_gradients(question: Question, record: SubjectRecord, *, row: int = -1) -> Gradients:
    """Attributions of every code known at a prediction time; codes without a time stay as they are.

    Args:
        question: Cause and horizon. Of a blend, only the network's part is explained; of an ensemble the attributions
            are the mean over its members.
        record: The subject.
        row: Which prediction time, by its number; default: the last.
    """
    row = row % len(record.moments)
    answers = question.answers
    models = answers.members or (answers.model,)
    found = _attributed(question, record, row, models, POINTS[0])
    for points in POINTS[1:]:
        if found.is_complete:
            break
        found = _attributed(question, record, row, models, points)
    return found


def _attributed(
    question: Question,
    record: SubjectRecord,
    row: int,
    models: Sequence[SurvivalModel],
    points: int,
) -> Gradients:
    nodes, weights = np.polynomial.legendre.leggauss(points)
    alphas = np.r_[(nodes + 1) / 2, 1.0, 0.0]
    kept = np.ones((len(alphas), len(record.record.events)), dtype=bool)
    copies = encode_copies(question.run.vocabulary, record, kept, np.array([row]))
    of_codes: dict[tuple[int | None, str], float] = {}
    totals, sums = [], []
    for model in models:
        values, found = _integrate(question, model, copies, alphas, np.r_[weights / 2, 0.0, 0.0])
        totals.append(values[-2] - values[-1])
        sums.append(sum(found.values()))
        for (visit, token), attribution in found.items():
            name = (visit, question.run.vocabulary.tokens[token])
            of_codes[name] = of_codes.get(name, 0.0) + attribution / len(models)
    gap = float(np.max(np.abs(np.array(sums) - np.array(totals))))
    return Gradients(
        of_codes, float(np.mean(totals)), gap, points, question.answers.blend is not None
    )


def _integrate(
    question: Question, model: SurvivalModel, copies: TaskRecords, alphas: Floats, weights: Floats
) -> tuple[Floats, dict[tuple[int | None, int], float]]:
    """The log hazard f at every α, and the weighted sum of e · ∂f/∂e of every code, by visit and token."""
    base = question.run.vocabulary.base
    values, found = np.empty(len(alphas)), dict[tuple[int | None, int], float]()
    loader = SubjectLoader.of_model(model.config, copies, code_types=question.run.code_types)
    for step in loader.in_order(visit_budget=VISIT_BUDGET):
        batch = step.batch
        position, owner = torch.from_numpy(step.positions), batch.subject_of_visit
        alpha = torch.ones(batch.n_subjects)
        alpha[owner[position]] = torch.from_numpy(alphas[step.rows]).float()
        with _scaled(model, alpha[owner[batch.visit_of_code]]) as vectors:
            f = _log_hazard(question, model(batch).index_select(0, position))
            grad = torch.autograd.grad(f.sum(), vectors.scaled)[0]
        values[step.rows] = f.detach().double().numpy()
        weight = torch.zeros(batch.n_subjects)
        weight[owner[position]] = torch.from_numpy(weights[step.rows]).float()
        parts = (grad * vectors.whole).sum(1) * weight[owner[batch.visit_of_code]]
        tokens, visits = (
            base[batch.codes.numpy()].tolist(),
            _visit_numbers(step)[batch.visit_of_code.numpy()].tolist(),
        )
        for visit, token, part in zip(visits, tokens, parts.double().tolist(), strict=True):
            name = (None if visit < 0 else visit, token)
            found[name] = found.get(name, 0.0) + part
    return values, found


def _visit_numbers(step: Step) -> Any:
    """(N,) number of each visit within its subject's record; −1 for queries."""
    batch = step.batch
    real = (~batch.is_query).long()
    before = real.cumsum(0) - real
    number = before - before[batch.subject_offsets[batch.subject_of_visit]]
    if batch.visits_skipped is not None:
        number = number + batch.visits_skipped[batch.subject_of_visit]
    return number.masked_fill(batch.is_query, -1).numpy()


def _log_hazard(question: Question, logits: Tensor) -> Tensor:
    """(n,) the log cumulative hazard, from logits."""
    if question.horizon_days is None:  # log(−log(1 − σ(η)))
        return nn.functional.softplus(logits).log()
    start, edges = start_days_of(question.run), question.run.model.config.edges_days
    days = exposure(edges, np.array([start]), np.array([question.horizon_days]))[0]
    return (logits[:, question.cause] + torch.from_numpy(days).to(logits.dtype).log()).logsumexp(1)


@dataclass
class _Vectors:
    whole: Tensor  # (K, d)
    scaled: Tensor  # (K, d), with a gradient


@contextmanager
def _scaled(model: nn.Module, alpha: Tensor) -> Iterator[_Vectors]:
    """In the block the network reads every code's vector times its α (K,)."""
    (embedding,) = (module for module in model.modules() if isinstance(module, CodeEmbedding))
    vectors = _Vectors(alpha, alpha)

    def scale(module: nn.Module, given: Any, found: CodeVectors) -> CodeVectors:
        vectors.whole = found.expand().detach()
        vectors.scaled = (vectors.whole * alpha[:, None]).requires_grad_()
        return CodeVectors(vectors.scaled, torch.arange(len(alpha)))

    handle = embedding.register_forward_hook(scale)
    try:
        yield vectors
    finally:
        handle.remove()
