"""Mutants of code vectors and visit encoders."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models import embeddings, segments, visit_encoder
from helpers.mutants import Mutants, Patch

mutant = MUTANTS = Mutants()

# ---- code vectors ----------------------------------------------------------------------------------------------------


def values(patch: Patch, change: Callable[[Tensor], Tensor]) -> None:
    of_values = embeddings.CodeEmbedding._of_values
    patch.setattr(
        embeddings.CodeEmbedding, "_of_values", lambda self, codes, numbers: of_values(self, codes, change(numbers))
    )


@mutant("reference", "reference: interpolate", "reference: flat")
def rank_and_value_are_swapped(patch: Patch) -> None:
    values(patch, lambda numbers: numbers.flip(1))


@mutant("reference: interpolate")
def knots_are_one_off(patch: Patch) -> None:
    values(patch, lambda numbers: numbers + math.sqrt(12) / 4)


@mutant("reference", "composition", "code order")
def a_missing_value_is_zero(patch: Patch) -> None:
    """Even worse: it is the value of the code before."""
    forward = embeddings.CodeEmbedding.forward

    def filled(self: embeddings.CodeEmbedding, batch: VisitBatch) -> embeddings.CodeVectors:
        assert batch.values is not None
        before = torch.cat([batch.values.new_zeros(1, 2), batch.values[:-1].nan_to_num(0.0)])[: batch.n_codes]
        return forward(self, replace(batch, values=torch.where(batch.values.isnan(), before, batch.values)))

    patch.setattr(embeddings.CodeEmbedding, "forward", filled)


@mutant("reference", "composition", "reference: flat", "composition: flat")
def static_codes_go_to_the_next_subject(patch: Patch) -> None:
    of_static = embeddings.CodeEmbedding.of_static
    patch.setattr(embeddings.CodeEmbedding, "of_static", lambda self, batch: of_static(self, batch).roll(1, 0))


@mutant("reference: code types", "reference: flat sinusoidal")
def types_are_those_of_the_next_code(patch: Patch) -> None:
    def rolled(self: embeddings.CodeEmbedding, batch: VisitBatch) -> tuple[int, Tensor]:
        return kinds(self, replace(batch, code_types=batch.code_types.roll(-1)))

    kinds = embeddings.CodeEmbedding._kinds
    patch.setattr(embeddings.CodeEmbedding, "_kinds", rolled)


def ranks(patch: Patch, offsets: Callable[[VisitBatch], Tensor]) -> None:
    """Count a code's place from elsewhere than its visit's first code."""

    def counted(self: embeddings.CodeEmbedding, batch: VisitBatch) -> tuple[int, Tensor]:
        wrong = replace(batch)
        wrong.__dict__["visit_of_code"] = torch.arange(batch.n_codes)
        object.__setattr__(wrong, "visit_offsets", offsets(batch))
        return kinds(self, wrong)

    kinds = embeddings.CodeEmbedding._kinds
    patch.setattr(embeddings.CodeEmbedding, "_kinds", counted)


@mutant("reference: code position")
def code_places_go_on_over_visits(patch: Patch) -> None:
    ranks(patch, lambda batch: torch.zeros(batch.n_codes, dtype=torch.int64))


@mutant("reference: code position")
def code_places_start_at_one(patch: Patch) -> None:
    ranks(patch, lambda batch: batch.visit_offsets[batch.visit_of_code] - 1)


@mutant("reference: code position", "code order counts")
def code_places_are_all_the_first(patch: Patch) -> None:
    ranks(patch, lambda batch: torch.arange(batch.n_codes))


# ---- visit encoders --------------------------------------------------------------------------------------------------


def pooling(patch: Patch, change: Callable[..., Tensor]) -> None:
    """`change(right, rows, index, offsets, weights=…, mode=…)` instead of the pooling of visits."""
    right = segments.pool
    patch.setattr(visit_encoder, "pool", lambda *args, **kwargs: change(right, *args, **kwargs))


@mutant("reference: mean", "composition: mean")
def mean_over_the_padded_length(patch: Patch) -> None:
    def padded(right: Callable[..., Tensor], rows: Tensor, index: Tensor, offsets: Tensor, **kw: object) -> Tensor:
        longest = max(int(offsets.diff().max()), 1)
        return right(rows, index, offsets, weights=torch.full((len(index),), 1 / longest, dtype=rows.dtype))

    pooling(patch, padded)


@mutant("reference: sum", "reference: scaled_sum")
def a_sum_over_distinct_codes_only(patch: Patch) -> None:
    def distinct(right: Callable[..., Tensor], rows: Tensor, index: Tensor, offsets: Tensor, **kw: object) -> Tensor:
        visit = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
        keys = visit * len(rows) + index
        repeated = torch.tensor([bool((keys[:k] == keys[k]).any()) for k in range(len(keys))], dtype=torch.bool)
        return right(rows, index, offsets, weights=(~repeated).to(rows.dtype))

    pooling(patch, distinct)


@mutant("reference: sum", "reference: scaled_sum")
def a_sum_is_a_mean(patch: Patch) -> None:
    pooling(patch, lambda right, *args, **kwargs: right(*args))


@mutant("reference: scaled_sum")
def a_scaled_sum_is_not_scaled(patch: Patch) -> None:
    forward = visit_encoder.ScaledSumVisitEncoder.forward

    def unscaled(self: visit_encoder.ScaledSumVisitEncoder, e: embeddings.CodeVectors, batch: VisitBatch) -> Tensor:
        return forward(self, e, batch) * batch.codes_per_visit.clamp(min=1).double().sqrt().unsqueeze(1)

    patch.setattr(visit_encoder.ScaledSumVisitEncoder, "forward", unscaled)


@mutant("reference: max")
def the_largest_is_never_negative(patch: Patch) -> None:
    """What a padded maximum does where pads are zero."""
    pooling(patch, lambda right, *args, **kwargs: right(*args, **kwargs).clamp(min=0))


@mutant("reference: max", "code order: max")
def the_largest_is_the_last(patch: Patch) -> None:
    def last(right: Callable[..., Tensor], rows: Tensor, index: Tensor, offsets: Tensor, **kw: object) -> Tensor:
        found = F.embedding(index[(offsets[1:] - 1).clamp(min=0)], rows)
        return found * (offsets.diff() > 0).unsqueeze(1)

    pooling(patch, last)


@mutant("reference", "weights", "weights: bottleneck")
def alpha_is_not_renormalised(patch: Patch) -> None:
    patch.setattr(visit_encoder, "segment_softmax", lambda scores, offsets, segment_of: (scores - 3).exp())


@mutant("reference", "weights", "composition", "causality", "future gradient")
def alpha_is_normalised_over_the_batch(patch: Patch) -> None:
    patch.setattr(visit_encoder, "segment_softmax", lambda scores, offsets, segment_of: scores.softmax(0))


@mutant("reference", "weights")
def codes_are_one_off_their_visit(patch: Patch) -> None:
    softmax = segments.segment_softmax
    patch.setattr(
        visit_encoder,
        "segment_softmax",
        lambda scores, offsets, segment_of: softmax(scores.roll(1), offsets, segment_of),
    )


@mutant("code order", "reference", "same code, same score")
def the_first_code_counts_more(patch: Patch) -> None:
    def with_rank(scores: Tensor, offsets: Tensor, segment_of: Tensor) -> Tensor:
        rank = torch.arange(len(scores)) - offsets[segment_of]
        return softmax(scores - 0.1 * rank, offsets, segment_of)

    softmax = segments.segment_softmax
    patch.setattr(visit_encoder, "segment_softmax", with_rank)


def scorer(patch: Patch, score: Callable[[visit_encoder.AttnPoolingVisitEncoder, Tensor], Tensor]) -> None:
    patch.setattr(visit_encoder.AttnPoolingVisitEncoder, "score", score)


@mutant("reference", "weights")
def the_scorer_forgets_its_bias(patch: Patch) -> None:
    scorer(patch, lambda self, rows: torch.tanh(rows @ self.W.weight.T) @ self.q)


@mutant("reference: bottleneck", "weights: bottleneck")
def the_bottleneck_forgets_its_inner_bias(patch: Patch) -> None:
    scorer(patch, lambda self, rows: (torch.tanh(rows @ self.W1.weight.T) @ self.W2.weight.T).squeeze(1))


@mutant("reference: bottleneck", "weights: bottleneck")
def the_bottleneck_has_no_tanh(patch: Patch) -> None:
    scorer(patch, lambda self, rows: self.W2(self.W1(rows)).squeeze(1))


@mutant("reference: bottleneck", "weights: bottleneck")
def the_bottlenecks_sigmoid_is_not_scaled_back(patch: Patch) -> None:
    scorer(patch, lambda self, rows: self.W2((2 * self.W1(rows)).sigmoid()).squeeze(1))


@mutant("empty", "empty: mean", "reference", "reference: mean")
def an_empty_visit_gets_the_mlps_constant(patch: Patch) -> None:
    def forward(self: visit_encoder.VisitMLP, u: Tensor, batch: VisitBatch) -> Tensor:
        return u + self.W2(F.gelu(self.W1(self.norm(u))))

    patch.setattr(visit_encoder.VisitMLP, "forward", forward)


@mutant("empty", "reference")
def an_empty_visit_takes_the_next_ones_code(patch: Patch) -> None:
    def stolen(right: Callable[..., Tensor], rows: Tensor, index: Tensor, offsets: Tensor, **kw: object) -> Tensor:
        following = F.embedding(index[offsets[:-1].clamp(max=len(index) - 1)], rows)
        return torch.where((offsets.diff() == 0).unsqueeze(1), following, right(rows, index, offsets, **kw))

    pooling(patch, stolen)


@mutant("reference: cls", "empty: cls")
def the_cls_token_answers_for_an_empty_visit(patch: Patch) -> None:
    def all_full(self: visit_encoder.TransformerVisitEncoder, e: embeddings.CodeVectors, batch: VisitBatch) -> Tensor:
        wrong = replace(batch)
        wrong.__dict__["codes_per_visit"] = torch.ones_like(batch.codes_per_visit)
        return forward(self, e, wrong)

    forward = visit_encoder.TransformerVisitEncoder.forward
    patch.setattr(visit_encoder.TransformerVisitEncoder, "forward", all_full)


@mutant("reference: transformer")
def the_mini_transformer_pools_its_input(patch: Patch) -> None:
    patch.setattr(visit_encoder.TransformerVisitEncoder, "_contextual", lambda self, x, offsets: x)
