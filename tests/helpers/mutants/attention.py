"""Mutants of who sees whom: visits in time, codes of a visit, tokens of the flat model."""

from dataclasses import replace

import torch
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models import attention, plans, timeline
from ehrsequencing.models.attention import AttentionPlan, Block
from helpers.attention_checks import sightings
from helpers.mutants import (
    Mutants,
    Patch,
    dense,
    masks,
    rebuilt,
    row_of_token,
    same_subject,
    see,
    setting,
)

mutant = MUTANTS = Mutants()


# ---- visits in time --------------------------------------------------------------------------------------------------


@mutant("reference", "causality", "future gradient", "prefix", "visits plan")
def the_future_is_visible(patch: Patch) -> None:
    see(patch, "visits_plan", lambda seen, batch: seen | (same_subject(batch) & ~batch.is_query))


@mutant("reference", "causality", "future gradient", "visits plan")
def the_next_visit_is_visible(patch: Patch) -> None:
    def next_too(seen: Tensor, batch: VisitBatch) -> Tensor:
        following = batch.visit_index == batch.visit_index.unsqueeze(1) + 1
        return seen | (following & same_subject(batch) & ~batch.is_query)

    see(patch, "visits_plan", next_too)


@mutant("reference", "composition", "causality")
def the_visit_mask_is_dropped(patch: Patch) -> None:
    see(patch, "visits_plan", lambda seen, batch: torch.ones_like(seen))


@mutant("reference", "composition", "future gradient")
def the_visit_mask_is_inverted(patch: Patch) -> None:
    see(patch, "visits_plan", lambda seen, batch: ~seen)


@mutant("reference", "composition")
def the_subject_before_is_visible(patch: Patch) -> None:
    def neighbour(seen: Tensor, batch: VisitBatch) -> Tensor:
        distance = batch.subject_of_visit.unsqueeze(1) - batch.subject_of_visit
        return seen | ((distance == 1) & ~batch.is_query)

    see(patch, "visits_plan", neighbour)


@mutant("reference", "composition")
def subject_offsets_are_one_off(patch: Patch) -> None:
    """Each subject but the first takes its neighbour's last row for its own first."""
    build = plans.visits_plan

    def shifted(batch: VisitBatch, **settings: object) -> AttentionPlan:
        ends = batch.subject_offsets.clone()
        ends[1:-1] = (ends[1:-1] - 1).clamp(min=0)
        wrong = replace(batch, subject_offsets=ends)
        return build(wrong, **settings)

    patch.setattr(plans, "visits_plan", shifted)


@mutant("reference", "visits plan")
def a_visit_does_not_see_itself(patch: Patch) -> None:
    see(patch, "visits_plan", lambda seen, batch: seen & ~(torch.eye(len(seen)).bool() & ~batch.is_query))


@mutant("reference", "queries", "future gradient")
def queries_are_seen(patch: Patch) -> None:
    build = plans.visits_plan
    none = torch.zeros_like
    patch.setattr(plans, "visits_plan", lambda batch, **kw: build(replace(batch, is_query=none(batch.is_query)), **kw))


@mutant("reference", "causality", "future gradient", "visits plan")
def a_query_sees_the_next_visit(patch: Patch) -> None:
    def after(seen: Tensor, batch: VisitBatch) -> Tensor:
        following = (batch.visit_index == batch.visit_index.unsqueeze(1)) & same_subject(batch) & ~batch.is_query
        return seen | (following & batch.is_query.unsqueeze(1))

    see(patch, "visits_plan", after)


@mutant("reference", "query sees the past", "future gradient", "visits plan")
def a_query_misses_the_last_visit(patch: Patch) -> None:
    def fewer(seen: Tensor, batch: VisitBatch) -> Tensor:
        last = (batch.visit_index == batch.visit_index.unsqueeze(1) - 1) & same_subject(batch) & ~batch.is_query
        return seen & ~(last & batch.is_query.unsqueeze(1))

    see(patch, "visits_plan", fewer)


@mutant("reference", "visits plan")
def a_query_does_not_see_itself(patch: Patch) -> None:
    see(patch, "visits_plan", lambda seen, batch: seen & ~(torch.eye(len(seen)).bool() & batch.is_query))


@mutant("reference: short window", "window", "visits plan")
def the_window_is_one_too_long(patch: Patch) -> None:
    setting(patch, "visits_plan", "window", lambda window: window + 1)


@mutant("rows")
def the_window_of_single_rows_is_one_too_long(patch: Patch) -> None:
    setting(patch, "rows_plan", "window", lambda window: window + 1)


@mutant("rows")
def a_single_row_sees_the_visits_one_place_later(patch: Patch) -> None:
    right = plans._Blocks.add_each

    def late(self: plans._Blocks, *args: Tensor, real_rows: Tensor, before: Tensor) -> None:
        right(self, *args, real_rows=real_rows, before=(before + 1).clamp(max=len(real_rows)))

    patch.setattr(plans._Blocks, "add_each", late)


@mutant("reference: short window", "window", "visits plan")
def the_window_is_one_too_short(patch: Patch) -> None:
    setting(patch, "visits_plan", "window", lambda window: window - 1)


@mutant("reference: short window", "window", "visits plan")
def the_first_visit_stays_in_the_window(patch: Patch) -> None:
    def sink(seen: Tensor, batch: VisitBatch) -> Tensor:
        first = (batch.visit_index == 0) & ~batch.is_query & same_subject(batch)
        return seen | (first & (batch.visit_index.unsqueeze(1) > 0))

    see(patch, "visits_plan", sink)


@mutant("reference: short window", "window", "visits plan")
def a_chunk_sees_all_its_keys(patch: Patch) -> None:
    masks(patch, "visits_plan", lambda block, mask: torch.ones_like(mask))


@mutant("reference", "causality", "prefix")
def answers_are_put_back_one_row_off(patch: Patch) -> None:
    rebuilt(patch, "visits_plan", lambda plan: replace(plan, answer_slot=plan.answer_slot.roll(-1)))


@mutant("reference: bidirectional", "visits plan: bidirectional")
def pads_of_a_block_are_seen(patch: Patch) -> None:
    masks(patch, "visits_plan", lambda block, mask: torch.ones_like(mask))


@mutant("reference: bidirectional, short window", "visits plan: bidirectional")
def a_bidirectional_window_looks_ahead_only(patch: Patch) -> None:
    def ahead(block: Block, mask: Tensor) -> Tensor:
        return mask & ~torch.ones(block.query_length, block.key_length, dtype=torch.bool).tril(0)

    masks(patch, "visits_plan", ahead)


@mutant("reference", "reference: transformer", "reference: flat")
def attention_scores_are_not_scaled(patch: Patch) -> None:
    attend = attention.F.scaled_dot_product_attention
    patch.setattr(
        attention.F, "scaled_dot_product_attention", lambda q, k, v, **kwargs: attend(q, k, v, scale=1.0, **kwargs)
    )


@mutant("reference", "reference: transformer", "reference: flat")
def heads_are_cut_the_other_way(patch: Patch) -> None:
    def interleaved(x: Tensor, rows: Tensor, sizes: list[int], *, heads: int) -> tuple[Tensor, ...]:
        split = x.view(len(x), -1, heads).transpose(1, 2).flatten(1)
        return cut(split, rows, sizes, heads=heads)

    cut = attention._cut
    patch.setattr(attention, "_cut", interleaved)


@mutant("composition", "causality", "prefix", "reference")
def layer_norm_over_the_batch(patch: Patch) -> None:
    forward = timeline.TransformerTimeline.forward
    patch.setattr(timeline.TransformerTimeline, "forward", lambda self, x, batch: forward(self, x - x.mean(0), batch))


# ---- codes of a visit ------------------------------------------------------------------------------------------------


@mutant("reference: transformer", "composition: transformer", "codes plan")
def codes_of_other_visits_are_visible(patch: Patch) -> None:
    see(patch, "codes_plan", lambda seen, offsets: torch.ones_like(seen))


@mutant("reference: transformer", "codes plan")
def codes_of_the_next_visit_are_visible(patch: Patch) -> None:
    def next_too(seen: Tensor, offsets: Tensor) -> Tensor:
        row = row_of_token(offsets)
        distance = row - row.unsqueeze(1)
        return seen | (distance == 1)

    see(patch, "codes_plan", next_too)


@mutant("reference: transformer", "reference: cls", "code order: transformer", "codes plan")
def a_code_sees_the_codes_before_it_only(patch: Patch) -> None:
    see(patch, "codes_plan", lambda seen, offsets: seen.tril())


@mutant("reference: cls")
def the_cls_token_sees_itself_only(patch: Patch) -> None:
    def alone(seen: Tensor, offsets: Tensor) -> Tensor:
        first = torch.zeros(len(seen), dtype=torch.bool)
        first[offsets[:-1]] = True
        return seen & ~(first.unsqueeze(1) & ~first)

    see(patch, "codes_plan", alone)


@mutant("reference: transformer", "codes plan")
def visit_offsets_are_one_off(patch: Patch) -> None:
    def shifted(offsets: Tensor, **settings: object) -> AttentionPlan:
        wrong = offsets.clone()
        wrong[1:-1] = (wrong[1:-1] + 1).clamp(max=int(offsets[-1]))
        return build(wrong, **settings)

    build = plans.codes_plan
    patch.setattr(plans, "codes_plan", shifted)


# ---- tokens of the flat model ----------------------------------------------------------------------------------------


def rows(batch: VisitBatch, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(T,) row of each token, (T, T) tokens of one subject, (T,) tokens of real visits."""
    row = row_of_token(offsets)
    return row, same_subject(batch)[row][:, row], ~batch.is_query[row]


@mutant("reference: flat", "causality: flat", "future gradient: flat", "prefix: flat", "tokens plan")
def the_flat_visit_mask_is_dropped(patch: Patch) -> None:
    def all_real(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        _, own_subject, real = rows(batch, offsets)
        return seen | (own_subject & real)

    see(patch, "tokens_plan", all_real)


@mutant("reference: flat", "composition: flat")
def the_flat_model_sees_other_subjects(patch: Patch) -> None:
    see(patch, "tokens_plan", lambda seen, batch, offsets: torch.ones_like(seen))


@mutant("reference: flat", "tokens plan")
def a_visit_is_not_wholly_seen_by_itself(patch: Patch) -> None:
    """Causal token by token, as a language model is."""
    see(patch, "tokens_plan", lambda seen, batch, offsets: seen.tril())


@mutant("reference: flat", "tokens plan")
def the_own_visit_is_not_seen(patch: Patch) -> None:
    def others(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        row = row_of_token(offsets)
        return seen & (row.unsqueeze(1) != row)

    see(patch, "tokens_plan", others)


@mutant("reference: flat 4", "tokens plan")
def a_long_visit_is_cut(patch: Patch) -> None:
    """The reach counts tokens back from each token: half visits are seen, and not even the whole own one."""

    def near(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        place = torch.arange(len(seen))
        return seen & ((place.unsqueeze(1) - place) < 4)

    see(patch, "tokens_plan", near)


@mutant("reference: flat", "queries: flat", "future gradient: flat", "tokens plan")
def tokens_of_queries_are_seen(patch: Patch) -> None:
    def asked(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        row, own_subject, real = rows(batch, offsets)
        return seen | (own_subject & ~real & (row.unsqueeze(1) > row))

    see(patch, "tokens_plan", asked)


@mutant("reference: flat", "future gradient: flat", "query sees the past: flat", "tokens plan")
def a_flat_query_sees_itself_only(patch: Patch) -> None:
    def alone(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        row, _, real = rows(batch, offsets)
        return seen & (real.unsqueeze(1) | (row.unsqueeze(1) == row))

    see(patch, "tokens_plan", alone)


@mutant("reference: flat 4", "reference: flat 1", "reach", "tokens plan")
def max_tokens_is_one_more(patch: Patch) -> None:
    setting(patch, "tokens_plan", "max_tokens", lambda tokens: tokens + 1)


@mutant("reference: flat 9", "reach", "tokens plan")
def max_tokens_is_one_less(patch: Patch) -> None:
    setting(patch, "tokens_plan", "max_tokens", lambda tokens: tokens - 1)


@mutant("reference: flat 9", "reach", "tokens plan")
def the_reach_does_not_count_the_own_visit(patch: Patch) -> None:
    build = plans.tokens_plan

    def further(batch: VisitBatch, offsets: Tensor, *, max_tokens: int, bidirectional: bool = False) -> AttentionPlan:
        longest = int(offsets.diff().max()) if batch.n_visits else 0
        return build(batch, offsets, max_tokens=max_tokens + longest, bidirectional=bidirectional)

    patch.setattr(plans, "tokens_plan", further)


@mutant("reference: flat 9", "queries: flat", "reach")
def queries_use_up_the_reach(patch: Patch) -> None:
    build = plans.tokens_plan

    def shorter(batch: VisitBatch, offsets: Tensor, *, max_tokens: int, bidirectional: bool = False) -> AttentionPlan:
        row = row_of_token(offsets)
        used = offsets[row + 1].unsqueeze(1) - offsets[row]  # from the key's row to the query's, both included
        near = (used <= max_tokens) | (row.unsqueeze(1) == row)
        right = build(batch, offsets, max_tokens=max_tokens, bidirectional=bidirectional)
        return dense(near & (sightings(right, len(row)) > 0))

    patch.setattr(plans, "tokens_plan", shorter)


@mutant("reference: flat, bidirectional", "tokens plan: bidirectional")
def the_reach_ahead_is_unbounded(patch: Patch) -> None:
    def ahead(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        row, own_subject, real = rows(batch, offsets)
        return seen | (own_subject & real & real.unsqueeze(1) & (row > row.unsqueeze(1)))

    see(patch, "tokens_plan", ahead)
