"""Broken models: each mutant breaks one thing, and the checks named beside it must fail on it.

A check that passes on its mutant proves nothing. The checks are the very functions that the other tests run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing import batch as batch_module
from ehrsequencing.batch import VisitBatch
from ehrsequencing.errors import EhrseqError
from ehrsequencing.models import attention, embeddings, segments, survival, timeline, visit_encoder
from strategies import Padded, pad, sample_records
from test_models_invariance import (
    check_causality,
    check_code_order,
    check_composition,
    check_empty,
    check_future_gradient,
    check_pads,
    check_prefix,
    check_queries,
    check_query_sees_the_past,
    check_weights,
    check_window,
)
from test_models_reference import check_equals_reference, make_model
from test_models_survival import (
    check_extremes,
    check_horizon_integrates,
    check_late_hazard_is_kept_apart,
    check_risk,
    check_visit_enumerated,
)

SAMPLE = sample_records(lengths=(7, 0, 1, 8, 3))
Patch = pytest.MonkeyPatch
Check = Callable[[], None]

# ---- the checks, on fixed records ------------------------------------------------------------------------------------


def reference(**settings: object) -> Check:
    return lambda: check_equals_reference(make_model(**settings), SAMPLE)


def on_sample(check: Callable[..., None], **settings: object) -> Check:
    return lambda: check(make_model(**settings), SAMPLE)


CHECKS: dict[str, Check] = {
    "reference": reference(),
    "reference: mean": reference(visit_encoder="mean"),
    "reference: short window": reference(max_visits=3),
    "reference: bidirectional": reference(attention="bidirectional"),
    "reference: bidirectional, short window": reference(attention="bidirectional", max_visits=2),
    "reference: interpolate": reference(values="interpolate"),
    "reference: visit head": reference(head="visit"),
    "reference: wide": reference(wide_head=True),
    "code order": on_sample(check_code_order),
    "composition": on_sample(check_composition),
    "composition: mean": on_sample(check_composition, visit_encoder="mean"),
    "pads": on_sample(check_pads),
    "causality": on_sample(check_causality),
    "future gradient": lambda: check_future_gradient(make_model()),
    "prefix": on_sample(check_prefix),
    "queries": on_sample(check_queries),
    "query sees the past": lambda: check_query_sees_the_past(make_model()),
    "window": check_window,
    "empty": on_sample(check_empty),
    "empty: mean": on_sample(check_empty, visit_encoder="mean"),
    "weights": on_sample(check_weights),
    "enumerated": lambda: check_visit_enumerated(3),
    "integral": lambda: check_horizon_integrates(0, 10.0, 200.0),
    "risk": lambda: check_risk(1),
    "late hazard": lambda: check_late_hazard_is_kept_apart(40.0),
    "extremes": lambda: check_extremes(100.0, torch.bfloat16),
}


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_passes_on_the_model(name: str) -> None:
    CHECKS[name]()


# ---- the mutants -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One thing broken, and the checks that must each see it."""

    name: str
    apply: Callable[[Patch], None]
    caught_by: tuple[str, ...]


MUTANTS: list[Mutant] = []


def mutant(*caught_by: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS.append(Mutant(apply.__name__, apply, caught_by))
        return apply

    return register


def plans(patch: Patch, change: Callable[[attention.AttentionPlan, VisitBatch], attention.AttentionPlan]) -> None:
    """Change every plan after it is made."""
    build = attention.build_plan
    patch.setattr(timeline, "build_plan", lambda batch, **kwargs: change(build(batch, **kwargs), batch))


@mutant("reference", "causality", "future gradient", "prefix")
def the_future_is_visible(patch: Patch) -> None:
    def see_all(plan: attention.AttentionPlan, batch: VisitBatch) -> attention.AttentionPlan:
        every = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        return replace(plan, blocks=tuple(replace(b, mask=every if b.mask is None else b.mask) for b in plan.blocks))

    plans(patch, see_all)


@mutant("reference", "future gradient")
def the_next_visit_is_visible(patch: Patch) -> None:
    def one_more(plan: attention.AttentionPlan, batch: VisitBatch) -> attention.AttentionPlan:
        def mask(block: attention.Block) -> Tensor | None:
            if block.mask is not None:
                return block.mask
            return torch.ones(block.query_length, block.key_length, dtype=torch.bool).tril(1)

        return replace(plan, blocks=tuple(replace(b, mask=mask(b)) for b in plan.blocks))

    plans(patch, one_more)


@mutant("reference")
def a_visit_does_not_see_itself(patch: Patch) -> None:
    def strict(plan: attention.AttentionPlan, batch: VisitBatch) -> attention.AttentionPlan:
        def mask(block: attention.Block) -> Tensor | None:
            if block.mask is not None:
                return block.mask
            below = torch.ones(block.query_length, block.key_length, dtype=torch.bool).tril(-1)
            below[0, 0] = True
            return below

        return replace(plan, blocks=tuple(replace(b, mask=mask(b)) for b in plan.blocks))

    plans(patch, strict)


@mutant("reference", "queries", "future gradient")
def queries_are_seen(patch: Patch) -> None:
    build = attention.build_plan
    patch.setattr(
        timeline,
        "build_plan",
        lambda batch, **kwargs: build(replace(batch, is_query=torch.zeros_like(batch.is_query)), **kwargs),
    )


@mutant("reference", "causality", "future gradient")
def a_query_sees_the_next_visit(patch: Patch) -> None:
    def after(builder: attention._Builder) -> None:
        builder.before = (builder.before + 1).clamp(max=max(len(builder.real_rows) - 1, 0))
        queries(builder)

    queries = attention._Builder.add_queries
    patch.setattr(attention._Builder, "add_queries", after)


@mutant("reference", "query sees the past")
def a_query_misses_the_last_visit(patch: Patch) -> None:
    def fewer(builder: attention._Builder) -> None:
        builder.before = (builder.before - 1).clamp(min=0)
        builder.seen = (builder.seen - 1).clamp(min=0)
        queries(builder)

    queries = attention._Builder.add_queries
    patch.setattr(attention._Builder, "add_queries", fewer)


@mutant("reference")
def a_query_does_not_see_itself(patch: Patch) -> None:
    def others_only(plan: attention.AttentionPlan, batch: VisitBatch) -> attention.AttentionPlan:
        def mask(block: attention.Block) -> Tensor | None:
            if block.query_length != 1 or block.mask is None or block.key_length == 1:
                return block.mask
            hidden = block.mask.clone()
            hidden[..., 0] &= ~block.mask[..., 1:].any(-1)
            return hidden

        return replace(plan, blocks=tuple(replace(b, mask=mask(b)) for b in plan.blocks))

    plans(patch, others_only)


def shift_window(patch: Patch, by: int) -> None:
    build = attention.build_plan
    patch.setattr(timeline, "build_plan", lambda batch, window, **kwargs: build(batch, window=window + by, **kwargs))


@mutant("reference: short window", "window")
def the_window_is_one_too_long(patch: Patch) -> None:
    shift_window(patch, 1)


@mutant("reference: short window", "window")
def the_window_is_one_too_short(patch: Patch) -> None:
    shift_window(patch, -1)


@mutant("reference: short window", "window")
def a_chunk_sees_all_its_keys(patch: Patch) -> None:
    def see_all(plan: attention.AttentionPlan, batch: VisitBatch) -> attention.AttentionPlan:
        def mask(block: attention.Block) -> Tensor | None:
            return block.mask if block.mask is None or block.query_length == 1 else torch.ones_like(block.mask)

        return replace(plan, blocks=tuple(replace(b, mask=mask(b)) for b in plan.blocks))

    plans(patch, see_all)


@mutant("reference", "causality", "prefix")
def answers_are_put_back_one_row_off(patch: Patch) -> None:
    plans(patch, lambda plan, batch: replace(plan, answer_slot=plan.answer_slot.roll(-1)))


@mutant("reference: bidirectional")
def pads_of_a_block_are_seen(patch: Patch) -> None:
    def see_all(plan: attention.AttentionPlan, batch: VisitBatch) -> attention.AttentionPlan:
        def mask(block: attention.Block) -> Tensor | None:
            return block.mask if block.mask is None or block.query_length == 1 else torch.ones_like(block.mask)

        return replace(plan, blocks=tuple(replace(b, mask=mask(b)) for b in plan.blocks))

    plans(patch, see_all)


@mutant("reference: bidirectional, short window")
def a_bidirectional_window_looks_ahead_only(patch: Patch) -> None:
    def ahead(plan: attention.AttentionPlan, batch: VisitBatch) -> attention.AttentionPlan:
        def mask(block: attention.Block) -> Tensor | None:
            if block.mask is None or block.query_length == 1:
                return block.mask
            return block.mask & ~torch.ones(block.query_length, block.key_length, dtype=torch.bool).tril(0)

        return replace(plan, blocks=tuple(replace(b, mask=mask(b)) for b in plan.blocks))

    plans(patch, ahead)


@mutant("reference")
def attention_scores_are_not_scaled(patch: Patch) -> None:
    attend = F.scaled_dot_product_attention
    patch.setattr(
        attention.F, "scaled_dot_product_attention", lambda q, k, v, **kwargs: attend(q, k, v, scale=1.0, **kwargs)
    )


@mutant("reference: mean", "composition: mean")
def mean_over_the_padded_length(patch: Patch) -> None:
    def padded_mean(rows: Tensor, index: Tensor, offsets: Tensor, *, weights: Tensor | None = None) -> Tensor:
        ones = torch.ones(len(index), dtype=rows.dtype)
        longest = max(int(offsets.diff().max()), 1)
        return pool(rows, index, offsets, weights=ones / longest if weights is None else weights)

    pool = segments.pool
    patch.setattr(visit_encoder, "pool", padded_mean)


@mutant("reference", "weights")
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


@mutant("code order", "reference")
def the_first_code_counts_more(patch: Patch) -> None:
    def with_rank(scores: Tensor, offsets: Tensor, segment_of: Tensor) -> Tensor:
        rank = torch.arange(len(scores)) - offsets[segment_of]
        return softmax(scores - 0.1 * rank, offsets, segment_of)

    softmax = segments.segment_softmax
    patch.setattr(visit_encoder, "segment_softmax", with_rank)


@mutant("reference")
def the_scorer_forgets_its_bias(patch: Patch) -> None:
    patch.setattr(
        visit_encoder.AttnPoolingVisitEncoder,
        "score",
        lambda self, rows: torch.tanh(rows @ self.W.weight.T) @ self.q,
    )


@mutant("empty", "empty: mean", "reference", "reference: mean")
def an_empty_visit_gets_the_mlps_constant(patch: Patch) -> None:
    def forward(self: visit_encoder.VisitMLP, u: Tensor, batch: VisitBatch) -> Tensor:
        return u + self.W2(F.gelu(self.W1(self.norm(u))))

    patch.setattr(visit_encoder.VisitMLP, "forward", forward)


@mutant("empty", "reference")
def an_empty_visit_takes_the_next_ones_code(patch: Patch) -> None:
    def nonempty(rows: Tensor, index: Tensor, offsets: Tensor, *, weights: Tensor | None = None) -> Tensor:
        u = pool(rows, index, offsets, weights=weights)
        stolen = F.embedding(index[offsets[:-1].clamp(max=len(index) - 1)], rows)
        return torch.where((offsets.diff() == 0).unsqueeze(1), stolen, u)

    pool = segments.pool
    patch.setattr(visit_encoder, "pool", nonempty)


@mutant("composition", "causality", "prefix", "reference")
def layer_norm_over_the_batch(patch: Patch) -> None:
    forward = timeline.TransformerTimeline.forward
    patch.setattr(timeline.TransformerTimeline, "forward", lambda self, x, batch: forward(self, x - x.mean(0), batch))


def visit_indices(patch: Patch, make: Callable[[VisitBatch], Tensor]) -> None:
    """Look up another visit index."""
    forward = embeddings.VisitTimeEmbedding.forward

    def wrong(self: embeddings.VisitTimeEmbedding, u: Tensor, batch: VisitBatch) -> Tensor:
        table = self.index_table
        assert table is not None
        right, other = (table(i.clamp(max=table.num_embeddings - 1)) for i in (batch.visit_index, make(batch)))
        return forward(self, u, batch) - right + other

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


@mutant("reference", "causality", "prefix")
def gaps_are_those_to_the_next_visit(patch: Patch) -> None:
    bins = embeddings.gap_bins
    patch.setattr(embeddings, "gap_bins", lambda days, first: bins(days.roll(-1), first))


@mutant("reference")
def gap_edges_belong_to_the_bin_below(patch: Patch) -> None:
    bins = embeddings.gap_bins
    patch.setattr(embeddings, "gap_bins", lambda days, first: bins((days - 1e-9).clamp(min=0), first))


@mutant("reference")
def the_first_visit_has_a_gap_of_zero(patch: Patch) -> None:
    bins = embeddings.gap_bins
    patch.setattr(embeddings, "gap_bins", lambda days, first: bins(days.masked_fill(first, 0), first & False))


@mutant("reference")
def an_unknown_age_is_zero(patch: Patch) -> None:
    bins = embeddings.age_bins
    patch.setattr(embeddings, "age_bins", lambda age, **kwargs: bins(age.nan_to_num(0.0), **kwargs))


@mutant("reference", "query sees the past")
def a_query_is_not_told_from_a_visit(patch: Patch) -> None:
    def same(self: embeddings.VisitTimeEmbedding, u: Tensor, batch: VisitBatch) -> Tensor:
        return forward(self, u, batch) - batch.is_query.unsqueeze(1) * self.query

    forward = embeddings.VisitTimeEmbedding.forward
    patch.setattr(embeddings.VisitTimeEmbedding, "forward", same)


def values(patch: Patch, change: Callable[[Tensor], Tensor]) -> None:
    of_values = embeddings.CodeEmbedding._of_values
    patch.setattr(
        embeddings.CodeEmbedding, "_of_values", lambda self, codes, numbers: of_values(self, codes, change(numbers))
    )


@mutant("reference", "reference: interpolate")
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


@mutant("reference", "composition")
def static_codes_go_to_the_next_subject(patch: Patch) -> None:
    of_static = embeddings.CodeEmbedding.of_static
    patch.setattr(embeddings.CodeEmbedding, "of_static", lambda self, batch: of_static(self, batch).roll(1, 0))


# ---- the padded edge


def from_padded(patch: Patch, change: Callable[[Padded], None]) -> None:
    """Break what `from_padded` reads."""
    original = VisitBatch.from_padded.__func__  # type: ignore[attr-defined]

    def broken(cls: type[VisitBatch], *args: Tensor, **labels: Tensor) -> VisitBatch:
        names = ("codes", "code_mask", "ages", "deltas", "visit_mask")
        x = pad(SAMPLE)
        x = replace(x, **dict(zip(names, args, strict=True)))
        change(x)
        return original(cls, *(getattr(x, name) for name in names), **labels)

    patch.setattr(VisitBatch, "from_padded", classmethod(broken))


@mutant("pads")
def the_code_mask_is_dropped(patch: Patch) -> None:
    def keep(x: Padded) -> None:
        x.code_mask, x.codes = torch.ones_like(x.code_mask), x.codes % 12

    from_padded(patch, keep)


@mutant("pads")
def the_code_mask_is_inverted(patch: Patch) -> None:
    def invert(x: Padded) -> None:
        x.code_mask, x.codes = ~x.code_mask, x.codes % 12

    from_padded(patch, invert)


@mutant("pads")
def the_visit_mask_is_taken_for_left_padding(patch: Patch) -> None:
    def left(x: Padded) -> None:
        x.visit_mask = torch.arange(x.visit_mask.shape[1]) < x.visit_mask.sum(1, keepdim=True)
        x.ages, x.deltas, x.codes = x.ages.clamp(max=99), x.deltas.nan_to_num(0).clamp(0, 99), x.codes % 12

    from_padded(patch, left)


@mutant("pads")
def results_go_back_to_the_left(patch: Patch) -> None:
    original = VisitBatch.to_padded

    def left(self: VisitBatch, per_visit: Tensor) -> Tensor:
        shape = self.padded_shape
        assert shape is not None
        packed = original(replace(self, padded_shape=None, slots=None), per_visit)
        out = packed.new_zeros(*shape, *per_visit.shape[1:])
        out[:, : packed.shape[1]] = packed
        return out

    patch.setattr(VisitBatch, "to_padded", left)


@mutant("pads")
def visits_are_packed_column_by_column(patch: Patch) -> None:
    offsets = batch_module._offsets
    patch.setattr(batch_module, "_offsets", lambda counts: offsets(counts.flip(0)))


# ---- the likelihoods


@mutant("enumerated", "reference: visit head")
def a_censored_visit_counts_as_survived(patch: Patch) -> None:
    def terms(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
        nll = torch.where(cause > 0, F.softplus(-logits), F.softplus(logits))
        return nll.masked_fill(~at_risk, 0.0)

    patch.setattr(survival, "visit_nll_terms", terms)
    patch.setattr("ehrsequencing.models.base.visit_nll_terms", terms)


@mutant("enumerated", "reference: visit head")
def the_event_index_is_one_off(patch: Patch) -> None:
    def terms(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
        return right(logits.roll(1), at_risk, cause=cause, subject_offsets=subject_offsets)

    right = survival.visit_nll_terms
    patch.setattr(survival, "visit_nll_terms", terms)
    patch.setattr("ehrsequencing.models.base.visit_nll_terms", terms)


@mutant("reference", "integral")
def the_entry_is_ignored(patch: Patch) -> None:
    def nll(logits: Tensor, edges_days: tuple[float, ...], **labels: Tensor) -> Tensor:
        return right(logits, edges_days, **{**labels, "entry_days": None})

    right = survival.horizon_nll
    patch.setattr("ehrsequencing.models.base.horizon_nll", nll)
    patch.setattr("test_models_survival.horizon_nll", nll)


@mutant("reference")
def an_event_on_an_edge_belongs_to_the_bin_below(patch: Patch) -> None:
    bucketize = torch.bucketize

    def left(x: Tensor, edges: Tensor, **kwargs: bool) -> Tensor:
        return bucketize(x, edges, right=False)

    patch.setattr(survival.torch, "bucketize", left)
    patch.setattr(embeddings, "gap_bins", lambda days, first: (bucketize_gaps(days) + 1).masked_fill(first, 0))

    def bucketize_gaps(days: Tensor) -> Tensor:
        return bucketize(days, torch.tensor(embeddings.GAP_EDGES_DAYS[1:], dtype=days.dtype), right=True)


@mutant("reference", "integral")
def the_causes_are_swapped(patch: Patch) -> None:
    def nll(logits: Tensor, edges_days: tuple[float, ...], *, cause: Tensor, **labels: Tensor) -> Tensor:
        return right(logits, edges_days, cause=(cause > 0) * (logits.shape[1] + 1 - cause), **labels)

    right = survival.horizon_nll
    patch.setattr("ehrsequencing.models.base.horizon_nll", nll)
    patch.setattr("test_models_survival.horizon_nll", nll)


@mutant("reference", "integral")
def competing_hazards_are_left_out(patch: Patch) -> None:
    def nll(logits: Tensor, edges_days: tuple[float, ...], *, cause: Tensor, **labels: Tensor) -> Tensor:
        own = (cause.clamp(min=1) - 1).view(-1, 1, 1).expand(-1, 1, logits.shape[2])
        return right(logits.gather(1, own), edges_days, cause=cause.clamp(max=1), **labels)

    right = survival.horizon_nll
    patch.setattr("ehrsequencing.models.base.horizon_nll", nll)
    patch.setattr("test_models_survival.horizon_nll", nll)


def risks(patch: Patch, change: Callable[..., Tensor]) -> None:
    right = survival.cumulative_incidence
    patch.setattr("test_models_survival.cumulative_incidence", lambda *a, **k: change(right, *a, **k))


@mutant("risk", "integral")
def the_start_is_ignored(patch: Patch) -> None:
    risks(patch, lambda right, *grid, **times: right(*grid, **{**times, "start_days": None}))


@mutant("risk", "integral")
def horizons_count_from_the_start(patch: Patch) -> None:
    def shifted(right: Callable[..., Tensor], *grid: Tensor, horizons_days: list[float], **start: float) -> Tensor:
        later = start.get("start_days", 0.0)
        later = later if isinstance(later, float) else 0.0
        return right(*grid, horizons_days=[h + later for h in horizons_days], **start)

    risks(patch, shifted)


@mutant("risk", "integral")
def each_cause_is_alone(patch: Patch) -> None:
    def one_by_one(right: Callable[..., Tensor], logits: Tensor, edges: tuple[float, ...], **kwargs: object) -> Tensor:
        return torch.cat([right(logits[:, e : e + 1], edges, **kwargs) for e in range(logits.shape[1])], 1)

    risks(patch, one_by_one)


@mutant("late hazard")
def survival_by_a_difference_of_sums(patch: Patch) -> None:
    def cancelling(right: Callable[..., Tensor], logits: Tensor, edges: Tensor, **times: list[float]) -> Tensor:
        share, total = logits.softmax(1), logits.logsumexp(1).exp()
        found = []
        for horizon in times["horizons_days"]:
            days = survival._overlap(edges, torch.zeros(1).double(), torch.full((1,), horizon).double())
            hazard = total * days
            before = (hazard - hazard.cumsum(1)).exp()
            found.append((share * (before * -torch.expm1(-hazard)).unsqueeze(1)).sum(2))
        return torch.stack(found, 2)

    risks(patch, cancelling)


@mutant("extremes")
def the_exponential_has_no_tangent(patch: Patch) -> None:
    patch.setattr(survival, "_tangent_exp", torch.exp)


@mutant("extremes")
def clamp_then_log(patch: Patch) -> None:
    def terms(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
        h = torch.sigmoid(logits).clamp(1e-7, 1 - 1e-7)
        return torch.where(cause > 0, -h.log(), -(1 - h).log()).float()

    patch.setattr(survival, "visit_nll_terms", terms)


@pytest.mark.parametrize(
    ("broken", "check"), [pytest.param(m, c, id=f"{m.name}-{c}") for m in MUTANTS for c in m.caught_by]
)
def test_a_mutant_is_caught(broken: Mutant, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken.apply(monkeypatch)
    with pytest.raises((AssertionError, EhrseqError)):
        CHECKS[check]()


def test_every_check_has_a_mutant_and_there_are_enough() -> None:
    caught = {check for m in MUTANTS for check in m.caught_by}
    assert set(CHECKS) - caught == {"reference: wide"}
    assert len(MUTANTS) >= 30
