"""Mutants of time signals and of the flat model's tokens."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models import behrt, embeddings, rotary
from ehrsequencing.models.base import SurvivalModel
from helpers.mutants import Mutants, Patch

mutant = MUTANTS = Mutants()

# ---- when ------------------------------------------------------------------------------------------------------------


def visit_indices(patch: Patch, make: Callable[[VisitBatch], Tensor]) -> None:
    """Look up another visit index (and nothing else: a first visit stays one)."""
    forward = embeddings.VisitTimeEmbedding.forward

    def wrong(self: embeddings.VisitTimeEmbedding, u: Tensor, batch: VisitBatch) -> Tensor:
        position = self.position
        assert position is not None
        return forward(self, u, batch) - position(batch.visit_index) + position(make(batch))

    patch.setattr(embeddings.VisitTimeEmbedding, "forward", wrong)


@mutant("reference", "queries")
def queries_count_as_visits(patch: Patch) -> None:
    visit_indices(patch, lambda b: torch.arange(b.n_visits) - b.subject_offsets[b.subject_of_visit])


@mutant("reference", "composition")
def visit_ids_are_not_restarted(patch: Patch) -> None:
    visit_indices(patch, lambda b: (~b.is_query).long().cumsum(0) - (~b.is_query).long())


@mutant("reference", "causality", "prefix")
def visits_are_counted_from_the_last(patch: Patch) -> None:
    visit_indices(patch, lambda b: b.visits_per_subject[b.subject_of_visit] - 1 - b.visit_index)


@mutant("reference: short window")
def visit_ids_restart_in_each_window(patch: Patch) -> None:
    visit_indices(patch, lambda b: b.visit_index % 3)


def days(patch: Patch, change: Callable[[VisitBatch, Tensor], Tensor]) -> None:
    """`change(batch, right)` → the days that rotary attention counts."""
    right = rotary.days_since_first
    patch.setattr(rotary, "days_since_first", lambda batch: change(batch, right(batch)))


@mutant("reference")
def rotary_days_are_gaps(patch: Patch) -> None:
    days(patch, lambda batch, _: batch.delta_days.double())


@mutant("reference")
def rotary_days_of_queries_are_the_last_visits(patch: Patch) -> None:
    days(patch, lambda batch, right: right - batch.delta_days.double() * batch.is_query)


@mutant("reference", "queries")
def rotary_days_go_on_after_a_query(patch: Patch) -> None:
    def wrong(batch: VisitBatch, _: Tensor) -> Tensor:
        total = batch.delta_days.double().cumsum(0)
        return total - total[batch.subject_offsets[:-1][batch.subject_of_visit]]

    days(patch, wrong)


@mutant("reference")
def rotary_turns_queries_only(patch: Patch) -> None:
    call = rotary.Rotation.__call__

    def wrong(self: rotary.Rotation, x: Tensor, *, heads: int) -> Tensor:
        q, k = x.chunk(2, dim=1)
        return torch.cat([call(self, q, heads=heads // 2), k], 1)

    patch.setattr(rotary.Rotation, "__call__", wrong)


@mutant("reference", "causality", "prefix")
def rotary_days_are_counted_in_record_lengths(patch: Patch) -> None:
    def wrong(batch: VisitBatch, right: Tensor) -> Tensor:
        last = batch.subject_offsets[1:][batch.subject_of_visit] - 1
        return right / (1 + right[last])

    days(patch, wrong)


def sinusoid(patch: Patch, change: Callable[..., Tensor]) -> None:
    """`change(right, place)` → the vectors, where `right(place)` are the right ones in float64."""
    forward = embeddings.SinusoidalPositionalEncoding.forward

    def wrong(self: embeddings.SinusoidalPositionalEncoding, place: Tensor, *, dtype: torch.dtype) -> Tensor:
        return change(lambda p: forward(self, p, dtype=torch.float64), place).to(dtype)

    patch.setattr(embeddings.SinusoidalPositionalEncoding, "forward", wrong)


@mutant("reference: sinusoidal", "reference: flat sinusoidal")
def sines_stand_before_cosines(patch: Patch) -> None:
    sinusoid(patch, lambda right, place: torch.cat([right(place)[:, 0::2], right(place)[:, 1::2]], 1))


@mutant("reference: sinusoidal", "reference: flat sinusoidal")
def the_sinusoid_is_not_scaled(patch: Patch) -> None:
    sinusoid(patch, lambda right, place: right(place) * 2)  # √(d/2) for d = 8


@mutant("reference: sinusoidal", "reference: flat sinusoidal")
def the_sinusoid_starts_at_one(patch: Patch) -> None:
    sinusoid(patch, lambda right, place: right(place + 1))


@mutant("reference: sinusoidal")
def the_sinusoid_saturates(patch: Patch) -> None:
    sinusoid(patch, lambda right, place: right(place.clamp(max=2)))


@mutant("reference", "causality", "prefix", "reference: the seeds")
def gaps_are_those_to_the_next_visit(patch: Patch) -> None:
    """Also what Δt looks like where a truncation has shifted the visits beside it."""
    forward = embeddings.DeltaTEmbedding.forward
    patch.setattr(embeddings.DeltaTEmbedding, "forward", lambda self, days, first: forward(self, days.roll(-1), first))


@mutant("reference: the seeds")
def linear_gap_bins_are_rounded(patch: Patch) -> None:
    forward = embeddings.DeltaTEmbedding.forward

    def rounded(self: embeddings.DeltaTEmbedding, days: Tensor, first: Tensor) -> Tensor:
        return forward(self, days + self.bin_days / 2, first)

    patch.setattr(embeddings.DeltaTEmbedding, "forward", rounded)


def gaps(patch: Patch, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    bins = embeddings.gap_bins
    patch.setattr(embeddings, "gap_bins", lambda days, first: bins(*change(days, first)))


@mutant("reference")
def gap_edges_belong_to_the_bin_below(patch: Patch) -> None:
    gaps(patch, lambda days, first: ((days - 1e-9).clamp(min=0), first))


@mutant("reference")
def the_first_visit_has_a_gap_of_zero(patch: Patch) -> None:
    gaps(patch, lambda days, first: (days.masked_fill(first, 0), first & False))


@mutant("reference", "reference: flat")
def an_unknown_age_is_zero(patch: Patch) -> None:
    bins = embeddings.age_bins
    patch.setattr(embeddings, "age_bins", lambda age, **kwargs: bins(age.nan_to_num(0.0), **kwargs))


@mutant("reference", "query sees the past")
def a_query_is_not_told_from_a_visit(patch: Patch) -> None:
    def same(self: embeddings.VisitTimeEmbedding, u: Tensor, batch: VisitBatch) -> Tensor:
        return forward(self, u, batch) - batch.is_query.unsqueeze(1) * self.query

    forward = embeddings.VisitTimeEmbedding.forward
    patch.setattr(embeddings.VisitTimeEmbedding, "forward", same)


# ---- tokens of the flat model ----------------------------------------------------------------------------------------


def tokens(patch: Patch, change: Callable[[behrt.Tokens, VisitBatch], behrt.Tokens]) -> None:
    right = behrt.Tokens.of
    patch.setattr(behrt.Tokens, "of", lambda batch: change(right(batch), batch))


@mutant("reference: flat", "reference: flat sinusoidal")
def positions_restart_in_each_visit(patch: Patch) -> None:
    tokens(patch, lambda t, batch: replace(t, place=torch.arange(len(t.row)) - t.offsets[t.row]))


@mutant("reference: flat", "composition: flat")
def positions_go_on_over_subjects(patch: Patch) -> None:
    tokens(patch, lambda t, batch: replace(t, place=torch.arange(len(t.row))))


@mutant("reference: flat", "queries: flat")
def tokens_of_queries_take_positions(patch: Patch) -> None:
    def counted(t: behrt.Tokens, batch: VisitBatch) -> behrt.Tokens:
        first = t.offsets[batch.subject_offsets[batch.subject_of_visit[t.row]]]
        return replace(t, place=torch.arange(len(t.row)) - first)

    tokens(patch, counted)


@mutant("code order counts: flat", "reference: flat")
def tokens_of_a_visit_share_a_position(patch: Patch) -> None:
    tokens(patch, lambda t, batch: replace(t, place=t.place[t.offsets[:-1]][t.row]))


@mutant("reference: flat")
def the_marker_of_a_query_is_empty(patch: Patch) -> None:
    tokens(patch, lambda t, batch: replace(t, is_query_marker=torch.zeros_like(t.is_query_marker)))


@mutant("reference: flat", "composition: flat")
def codes_stand_in_the_next_codes_token(patch: Patch) -> None:
    """A marker keeps its place; codes do not."""
    tokens(patch, lambda t, batch: replace(t, of_code=t.of_code.roll(1)))


def flat_visit_ids(patch: Patch, make: Callable[[VisitBatch], Tensor]) -> None:
    forward = behrt.BEHRTEmbedding.forward

    def wrong(self: behrt.BEHRTEmbedding, batch: VisitBatch, t: behrt.Tokens) -> Tensor:
        other = replace(batch)
        other.__dict__["visit_index"] = make(batch)
        return forward(self, other, t)

    patch.setattr(behrt.BEHRTEmbedding, "forward", wrong)


@mutant("reference: flat", "composition: flat")
def flat_visit_ids_are_not_restarted(patch: Patch) -> None:
    flat_visit_ids(patch, lambda b: (~b.is_query).long().cumsum(0) - (~b.is_query).long())


@mutant("reference: flat", "queries: flat")
def queries_take_visit_ids(patch: Patch) -> None:
    flat_visit_ids(patch, lambda b: torch.arange(b.n_visits) - b.subject_offsets[b.subject_of_visit])


def aggregated(patch: Patch, change: Callable[[Tensor, behrt.Tokens], Tensor]) -> None:
    patch.setattr(behrt.BEHRTForSurvival, "aggregate_visits", staticmethod(change))


@mutant("reference: flat")
def visits_are_summed_not_averaged(patch: Patch) -> None:
    right = behrt.BEHRTForSurvival.aggregate_visits
    aggregated(patch, lambda states, t: right(states, t) * t.offsets.diff().unsqueeze(1))


@mutant("reference: flat", "composition: flat")
def visits_are_averaged_over_the_longest(patch: Patch) -> None:
    right = behrt.BEHRTForSurvival.aggregate_visits

    def padded(states: Tensor, t: behrt.Tokens) -> Tensor:
        counts = t.offsets.diff()
        return right(states, t) * (counts / max([1, *counts.tolist()])).unsqueeze(1)

    aggregated(patch, padded)


@mutant("reference: flat", "causality: flat", "future gradient: flat", "prefix: flat")
def visits_take_the_next_ones_first_token(patch: Patch) -> None:
    right = behrt.BEHRTForSurvival.aggregate_visits

    def shifted(states: Tensor, t: behrt.Tokens) -> Tensor:
        return right(states.roll(-1, 0), t)

    aggregated(patch, shifted)


# ---- the wide head ---------------------------------------------------------------------------------------------------


@mutant("reference: wide", "reference: code types", "reference: flat sinusoidal")
def the_wide_head_looks_at_the_states(patch: Patch) -> None:
    logits = SurvivalModel._logits
    patch.setattr(SurvivalModel, "_logits", lambda self, z, batch, *, wide: logits(self, z, batch, wide=z))
