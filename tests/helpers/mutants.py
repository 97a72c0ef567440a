"""Broken models: each mutant breaks one thing, and the checks named beside it must fail on it.

A check that passes on a broken model proves nothing. The checks are the functions that the other tests run, here on
fixed records; `tests/models/test_mutants.py` runs all mutants.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches import padded
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models import attention, behrt, embeddings, hazards, segments, table, visit_encoder
from ehrsequencing.models.attention_blocks import AttentionPlan, Block
from ehrsequencing.models.base import SurvivalModel
from helpers.attention_checks import (
    check_codes_plan,
    check_reach,
    check_same_code_same_score,
    check_tokens_plan,
    check_visits_plan,
    check_weights,
    check_window,
    sightings,
)
from helpers.likelihood_checks import (
    check_extremes,
    check_horizon_integrates,
    check_visit_enumerated,
)
from helpers.model_checks import (
    check_causality,
    check_code_order,
    check_code_order_counts,
    check_composition,
    check_empty,
    check_equals_reference,
    check_flat_contract,
    check_future_gradient,
    check_pads,
    check_prefix,
    check_queries,
    check_query_sees_the_past,
    check_rows,
    check_table_dropout,
)
from helpers.models import make_model
from helpers.strategies import sample_records

SAMPLE = sample_records(lengths=(5, 0, 1, 4))
Patch = pytest.MonkeyPatch
Check = Callable[[], None]

# ---- the checks, on fixed records ------------------------------------------------------------------------------------

FLAT = {"architecture": "flat"}


def reference(**settings: object) -> Check:
    return lambda: check_equals_reference(make_model(**settings), SAMPLE)


def on_sample(check: Callable[..., None], **settings: object) -> Check:
    return lambda: check(make_model(**settings), SAMPLE)


CHECKS: dict[str, Check] = {
    "reference": reference(),
    "reference: flat": reference(**FLAT),
    "reference: transformer": reference(visit_encoder="transformer"),
    "reference: short window": reference(max_visits=3),
    "reference: bidirectional": reference(attention="bidirectional"),
    "reference: visit head": reference(head="visit"),
    "reference: wide": reference(wide_head=True),
    "reference: table": reference(table_dim=5),
    "reference: query follows": reference(query_follows_visit=True),
    "code order": on_sample(check_code_order),
    "code order: transformer": on_sample(check_code_order, visit_encoder="transformer"),
    "code order counts": lambda: check_code_order_counts(make_model(code_position=True)),
    "same code, same score": lambda: check_same_code_same_score(make_model(visit_encoder="bottleneck")),
    "composition": on_sample(check_composition),
    "composition: flat": on_sample(check_composition, **FLAT),
    "pads": on_sample(check_pads),
    "flat contract": on_sample(check_flat_contract, **FLAT),
    "causality": on_sample(check_causality),
    "causality: query follows": on_sample(check_causality, query_follows_visit=True),
    "causality: flat": on_sample(check_causality, **FLAT),
    "future gradient": lambda: check_future_gradient(make_model()),
    "future gradient: flat": lambda: check_future_gradient(make_model(**FLAT)),
    "prefix": on_sample(check_prefix),
    "prefix: flat": on_sample(check_prefix, **FLAT),
    "prefix: table": on_sample(check_prefix, table_dim=5),
    "queries": on_sample(check_queries),
    "queries: table": on_sample(check_queries, table_dim=5),
    "queries: flat": on_sample(check_queries, **FLAT, max_tokens=9),
    "query sees the past": lambda: check_query_sees_the_past(make_model()),
    "query sees the past: flat": lambda: check_query_sees_the_past(make_model(**FLAT)),
    "rows": on_sample(check_rows, max_visits=3),
    "window": check_window,
    "reach": check_reach,
    "visits plan": lambda: check_visits_plan(SAMPLE, 3, bidirectional=False),
    "visits plan: bidirectional": lambda: check_visits_plan(SAMPLE, 3, bidirectional=True),
    "codes plan": lambda: check_codes_plan([2, 0, 5, 1, 5]),
    "tokens plan": lambda: check_tokens_plan(SAMPLE, 9, bidirectional=False),
    "tokens plan: bidirectional": lambda: check_tokens_plan(SAMPLE, 9, bidirectional=True),
    "empty": on_sample(check_empty),
    "table dropout": check_table_dropout,
    "weights": on_sample(check_weights),
    "enumerated": lambda: check_visit_enumerated(3),
    "integral": lambda: check_horizon_integrates(0, 10.0, 200.0),
    "extremes": lambda: check_extremes(100.0, torch.bfloat16),
}

# ---- the mutants -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One thing broken, and the checks that must each see it."""

    name: str
    apply: Callable[[Patch], None]
    caught_by: tuple[str, ...]


class Mutants(list[Mutant]):
    """The mutants of one file; used as a decorator, with the names of the checks that must see the mutant."""

    def __call__(self, *caught_by: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
        def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
            self.append(Mutant(apply.__name__, apply, caught_by))
            return apply

        return register


# ---- plans, changed after they are made ------------------------------------------------------------------------------

HOME = {"visits_plan": attention, "rows_plan": attention, "codes_plan": attention, "tokens_plan": behrt}


def dense(seen: Tensor) -> AttentionPlan:
    """(rows, rows) who sees whom → one block that says just that."""
    rows = torch.arange(len(seen))
    return AttentionPlan(rows, rows, rows, (Block(1, len(seen), len(seen), seen.view(1, 1, *seen.shape)),))


def see(patch: Patch, plan: str, change: Callable[..., Tensor]) -> None:
    """Change who sees whom: `change(seen, *what the plan is made from)` → seen. Every row still sees some row."""
    build = getattr(HOME[plan], plan)

    def changed(*args: object, **settings: object) -> AttentionPlan:
        right = build(*args, **settings)
        if not right.blocks:
            return right
        seen = change(sightings(right, len(right.answer_slot)) > 0, *args)
        return dense(seen | (torch.eye(len(seen), dtype=torch.bool) & ~seen.any(1, keepdim=True)))

    patch.setattr(HOME[plan], plan, changed)


def setting(patch: Patch, plan: str, name: str, change: Callable[[int], int]) -> None:
    """Build the plan with another number."""
    build = getattr(HOME[plan], plan)
    patch.setattr(HOME[plan], plan, lambda *args, **kw: build(*args, **{**kw, name: change(kw[name])}))


def rebuilt(patch: Patch, plan: str, change: Callable[[AttentionPlan], AttentionPlan]) -> None:
    """Change the plan itself."""
    build = getattr(attention, plan)
    patch.setattr(attention, plan, lambda *args, **kw: change(build(*args, **kw)))


def masks(patch: Patch, plan: str, change: Callable[[Block, Tensor], Tensor]) -> None:
    """Change every mask of blocks of several queries."""

    def changed(block: Block) -> Block:
        return (
            block if block.mask is None or block.query_length == 1 else replace(block, mask=change(block, block.mask))
        )

    rebuilt(patch, plan, lambda p: replace(p, blocks=tuple(map(changed, p.blocks))))


def same_subject(batch: VisitBatch) -> Tensor:
    """(N, N) rows of one subject."""
    return batch.subject_of_visit.unsqueeze(1) == batch.subject_of_visit


def row_of_token(offsets: Tensor) -> Tensor:
    """(T,) the row that owns each token."""
    return torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())


# ---- the mutants -----

mutant = MUTANTS = Mutants()


@mutant("reference", "causality", "future gradient")
def the_future_is_visible(patch: Patch) -> None:
    see(patch, "visits_plan", lambda seen, batch: seen | (same_subject(batch) & ~batch.is_query))


@mutant("queries")
def queries_are_seen(patch: Patch) -> None:
    build = attention.visits_plan
    none = torch.zeros_like
    patch.setattr(
        attention, "visits_plan", lambda batch, **kw: build(replace(batch, is_query=none(batch.is_query)), **kw)
    )


@mutant("query sees the past", "visits plan")
def a_query_misses_the_last_visit(patch: Patch) -> None:
    def fewer(seen: Tensor, batch: VisitBatch) -> Tensor:
        last = (batch.visit_index == batch.visit_index.unsqueeze(1) - 1) & same_subject(batch) & ~batch.is_query
        return seen & ~(last & batch.is_query.unsqueeze(1))

    see(patch, "visits_plan", fewer)


@mutant("reference: query follows", "causality: query follows")
def a_query_follows_the_visit_to_come(patch: Patch) -> None:
    build = VisitBatch.visit_followed.func

    def next_one(batch: VisitBatch) -> Tensor:
        last = build(batch)
        place = torch.arange(batch.n_visits)
        later = place.masked_fill(batch.is_query, batch.n_visits).flip(0).cummin(0).values.flip(0)
        end = batch.subject_offsets[batch.subject_of_visit + 1]
        return torch.where(batch.is_query & (later < end), later, last)

    patch.setattr(VisitBatch, "visit_followed", property(next_one))


@mutant("reference: short window", "window")
def the_window_is_one_too_long(patch: Patch) -> None:
    setting(patch, "visits_plan", "window", lambda window: window + 1)


@mutant("rows")
def the_window_of_single_rows_is_one_too_long(patch: Patch) -> None:
    setting(patch, "rows_plan", "window", lambda window: window + 1)


@mutant("prefix")
def answers_are_put_back_one_row_off(patch: Patch) -> None:
    rebuilt(patch, "visits_plan", lambda plan: replace(plan, answer_slot=plan.answer_slot.roll(-1)))


@mutant("reference: bidirectional", "visits plan: bidirectional")
def pads_of_a_block_are_seen(patch: Patch) -> None:
    masks(patch, "visits_plan", lambda block, mask: torch.ones_like(mask))


@mutant("reference: transformer", "code order: transformer", "codes plan")
def a_code_sees_the_codes_before_it_only(patch: Patch) -> None:
    see(patch, "codes_plan", lambda seen, offsets: seen.tril())


def rows(batch: VisitBatch, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(T,) row of each token, (T, T) tokens of one subject, (T,) tokens of real visits."""
    row = row_of_token(offsets)
    return row, same_subject(batch)[row][:, row], ~batch.is_query[row]


@mutant("causality: flat", "future gradient: flat")
def the_flat_visit_mask_is_dropped(patch: Patch) -> None:
    def all_real(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        _, own_subject, real = rows(batch, offsets)
        return seen | (own_subject & real)

    see(patch, "tokens_plan", all_real)


@mutant("reference: flat", "composition: flat")
def the_flat_model_sees_other_subjects(patch: Patch) -> None:
    see(patch, "tokens_plan", lambda seen, batch, offsets: torch.ones_like(seen))


@mutant("queries: flat", "tokens plan")
def tokens_of_queries_are_seen(patch: Patch) -> None:
    def asked(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        row, own_subject, real = rows(batch, offsets)
        return seen | (own_subject & ~real & (row.unsqueeze(1) > row))

    see(patch, "tokens_plan", asked)


@mutant("query sees the past: flat")
def a_flat_query_sees_itself_only(patch: Patch) -> None:
    def alone(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        row, _, real = rows(batch, offsets)
        return seen & (real.unsqueeze(1) | (row.unsqueeze(1) == row))

    see(patch, "tokens_plan", alone)


@mutant("reach", "tokens plan")
def max_tokens_is_one_more(patch: Patch) -> None:
    setting(patch, "tokens_plan", "max_tokens", lambda tokens: tokens + 1)


@mutant("tokens plan: bidirectional")
def the_reach_ahead_is_unbounded(patch: Patch) -> None:
    def ahead(seen: Tensor, batch: VisitBatch, offsets: Tensor) -> Tensor:
        row, own_subject, real = rows(batch, offsets)
        return seen | (own_subject & real & real.unsqueeze(1) & (row > row.unsqueeze(1)))

    see(patch, "tokens_plan", ahead)


@mutant("composition", "reference: flat")
def static_codes_go_to_the_next_subject(patch: Patch) -> None:
    of_static = embeddings.CodeEmbedding.of_static
    patch.setattr(embeddings.CodeEmbedding, "of_static", lambda self, batch: of_static(self, batch).roll(1, 0))


@mutant("weights", "composition")
def alpha_is_normalised_over_the_batch(patch: Patch) -> None:
    patch.setattr(visit_encoder, "segment_softmax", lambda scores, offsets, segment_of: scores.softmax(0))


@mutant("code order", "same code, same score")
def the_first_code_counts_more(patch: Patch) -> None:
    def with_rank(scores: Tensor, offsets: Tensor, segment_of: Tensor) -> Tensor:
        rank = torch.arange(len(scores)) - offsets[segment_of]
        return softmax(scores - 0.1 * rank, offsets, segment_of)

    softmax = segments.segment_softmax
    patch.setattr(visit_encoder, "segment_softmax", with_rank)


@mutant("empty")
def an_empty_visit_gets_the_mlps_constant(patch: Patch) -> None:
    def forward(self: visit_encoder.VisitMLP, u: Tensor, batch: VisitBatch) -> Tensor:
        return u + self.W2(F.gelu(self.W1(self.norm(u))))

    patch.setattr(visit_encoder.VisitMLP, "forward", forward)


@mutant("causality")
def gaps_are_those_to_the_next_visit(patch: Patch) -> None:
    """Also what Δt looks like where a truncation has shifted the visits beside it."""
    forward = embeddings.DeltaTEmbedding.forward
    patch.setattr(embeddings.DeltaTEmbedding, "forward", lambda self, days, first: forward(self, days.roll(-1), first))


def aggregated(patch: Patch, change: Callable[[Tensor, behrt.Tokens], Tensor]) -> None:
    patch.setattr(behrt.BEHRTForSurvival, "aggregate_visits", staticmethod(change))


@mutant("prefix: flat")
def visits_take_the_next_ones_first_token(patch: Patch) -> None:
    right = behrt.BEHRTForSurvival.aggregate_visits

    def shifted(states: Tensor, t: behrt.Tokens) -> Tensor:
        return right(states.roll(-1, 0), t)

    aggregated(patch, shifted)


@mutant("reference: wide")
def the_wide_head_looks_at_the_states(patch: Patch) -> None:
    logits = SurvivalModel._logits
    patch.setattr(SurvivalModel, "_logits", lambda self, z, batch, *, wide: logits(self, z, batch, wide=z))


def table_bag(patch: Patch, change: Callable[..., Tensor]) -> None:
    """`change(bag, rows, vectors, offsets, **settings)` in place of the table's sum."""
    bag = F.embedding_bag
    other = SimpleNamespace(**{**vars(F), "embedding_bag": partial(change, bag)})
    patch.setattr(table, "F", other)


@mutant("reference: table", "prefix: table")
def a_table_holds_the_next_rows_numbers(patch: Patch) -> None:
    table_bag(patch, lambda bag, *args, **settings: bag(*args, **settings).roll(-1, 0))


@mutant("queries: table")
def a_visit_sees_the_numbers_of_the_query_before_it(patch: Patch) -> None:
    def leaky(bag: Callable[..., Tensor], *args: object, **settings: object) -> Tensor:
        total = bag(*args, **settings)
        return total + total.roll(1, 0)

    table_bag(patch, leaky)


@mutant("table dropout")
def single_columns_are_dropped(patch: Patch) -> None:
    kept = table.TableBranch._kept

    def alone(self: table.TableBranch, batch: VisitBatch) -> Tensor:
        self.variable = None
        return kept(self, batch)

    patch.setattr(table.TableBranch, "_kept", alone)


def from_flat(patch: Patch, change: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> None:
    """`change(codes, ages, visit_ids, mask)` before `from_flat` reads them."""
    original = VisitBatch.from_flat.__func__  # type: ignore[attr-defined]
    patch.setattr(VisitBatch, "from_flat", classmethod(lambda cls, *args: original(cls, *change(*args))))


@mutant("flat contract")
def the_flat_mask_is_dropped(patch: Patch) -> None:
    from_flat(patch, lambda codes, ages, ids, mask: (codes % 12, ages, ids % 9, torch.ones_like(mask)))


@mutant("enumerated", "reference: visit head")
def a_censored_visit_counts_as_survived(patch: Patch) -> None:
    def terms(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
        nll = torch.where(cause > 0, F.softplus(-logits), F.softplus(logits))
        return nll.masked_fill(~at_risk, 0.0)

    patch.setattr("helpers.likelihood_checks.visit_nll", terms)
    patch.setattr("ehrsequencing.models.hazard_model.visit_nll", terms)


@mutant("reference", "integral")
def the_entry_is_ignored(patch: Patch) -> None:
    def nll(logits: Tensor, edges_days: tuple[float, ...], **labels: Tensor) -> Tensor:
        return right(logits, edges_days, **{**labels, "entry_days": None})

    right = hazards.horizon_nll
    patch.setattr("ehrsequencing.models.hazard_model.horizon_nll", nll)
    patch.setattr("helpers.likelihood_checks.horizon_nll", nll)


@mutant("extremes")
def the_exponential_has_no_tangent(patch: Patch) -> None:
    patch.setattr(hazards, "_tangent_exp", torch.exp)


@mutant("pads")
def visits_are_packed_column_by_column(patch: Patch) -> None:
    offsets = padded._offsets
    patch.setattr(padded, "_offsets", lambda counts: offsets(counts.flip(0)))


@mutant("code order counts")
def codes_have_no_place(patch: Patch) -> None:
    def first(self: embeddings.CodeEmbedding, batch: VisitBatch) -> tuple[int, Tensor]:
        n_kinds, keys = kinds(self, batch)
        return n_kinds, keys // embeddings.MAX_CODE_POSITIONS * embeddings.MAX_CODE_POSITIONS

    kinds = embeddings.CodeEmbedding._kinds
    patch.setattr(embeddings.CodeEmbedding, "_kinds", first)
