"""Broken models: each mutant breaks one thing, and the checks named beside it must fail on it.

A check that passes on a broken model proves nothing. The checks are the functions that the other tests run, here on
fixed records. The mutants are grouped by the part that they break; `tests/models/test_mutants.py` runs them all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models import plans
from ehrsequencing.models.attention import AttentionPlan, Block
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
    check_late_hazard_is_kept_apart,
    check_risk,
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
)
from helpers.models import MODELS, make_model
from helpers.strategies import sample_records

SAMPLE = sample_records(lengths=(7, 0, 1, 8, 3))
Patch = pytest.MonkeyPatch
Check = Callable[[], None]

# ---- the checks, on fixed records ------------------------------------------------------------------------------------

FLAT = {"architecture": "flat"}
CLS = {"visit_encoder": "transformer", "visit_pool": "cls"}


def reference(**settings: object) -> Check:
    return lambda: check_equals_reference(make_model(**settings), SAMPLE)


def on_sample(check: Callable[..., None], **settings: object) -> Check:
    return lambda: check(make_model(**settings), SAMPLE)


CHECKS: dict[str, Check] = {
    "reference": reference(),
    **{f"reference: {kind}": reference(**settings) for kind, settings in MODELS.items() if kind != "query"},
    "reference: short window": reference(max_visits=3),
    "reference: bidirectional": reference(attention="bidirectional"),
    "reference: bidirectional, short window": reference(attention="bidirectional", max_visits=2),
    "reference: flat, bidirectional": reference(**FLAT, attention="bidirectional", max_tokens=9),
    "reference: interpolate": reference(values="interpolate"),
    "reference: visit head": reference(head="visit"),
    "reference: wide": reference(wide_head=True),
    "reference: code position": reference(code_position=True),
    "code order": on_sample(check_code_order),
    "code order: transformer": on_sample(check_code_order, visit_encoder="transformer"),
    "code order: max": on_sample(check_code_order, visit_encoder="max"),
    "code order counts": lambda: check_code_order_counts(make_model(code_position=True)),
    "code order counts: flat": lambda: check_code_order_counts(make_model(**FLAT)),
    "same code, same score": lambda: check_same_code_same_score(make_model(scorer="bottleneck")),
    "composition": on_sample(check_composition),
    "composition: mean": on_sample(check_composition, visit_encoder="mean"),
    "composition: transformer": on_sample(check_composition, visit_encoder="transformer"),
    "composition: flat": on_sample(check_composition, **FLAT),
    "pads": on_sample(check_pads),
    "pads: flat": on_sample(check_pads, **FLAT),
    "flat contract": on_sample(check_flat_contract, **FLAT),
    "causality": on_sample(check_causality),
    "causality: flat": on_sample(check_causality, **FLAT),
    "future gradient": lambda: check_future_gradient(make_model()),
    "future gradient: flat": lambda: check_future_gradient(make_model(**FLAT)),
    "prefix": on_sample(check_prefix),
    "prefix: flat": on_sample(check_prefix, **FLAT),
    "queries": on_sample(check_queries),
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
    "empty: mean": on_sample(check_empty, visit_encoder="mean"),
    "empty: cls": on_sample(check_empty, **CLS),
    "weights": on_sample(check_weights),
    "weights: bottleneck": on_sample(check_weights, scorer="bottleneck"),
    "enumerated": lambda: check_visit_enumerated(3),
    "integral": lambda: check_horizon_integrates(0, 10.0, 200.0),
    "risk": lambda: check_risk(1),
    "late hazard": lambda: check_late_hazard_is_kept_apart(40.0),
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


def assert_caught(broken: Mutant, check: str, patch: Patch) -> None:
    broken.apply(patch)
    with pytest.raises(AssertionError):
        CHECKS[check]()


# ---- plans, changed after they are made ------------------------------------------------------------------------------


def dense(seen: Tensor) -> AttentionPlan:
    """(rows, rows) who sees whom → one block that says just that."""
    rows = torch.arange(len(seen))
    return AttentionPlan(rows, rows, rows, (Block(1, len(seen), len(seen), seen.view(1, 1, *seen.shape)),))


def see(patch: Patch, plan: str, change: Callable[..., Tensor]) -> None:
    """Change who sees whom: `change(seen, *what the plan is made from)` → seen. Every row still sees some row."""
    build = getattr(plans, plan)

    def changed(*args: object, **settings: object) -> AttentionPlan:
        right = build(*args, **settings)
        if not right.blocks:
            return right
        seen = change(sightings(right, len(right.answer_slot)) > 0, *args)
        return dense(seen | (torch.eye(len(seen), dtype=torch.bool) & ~seen.any(1, keepdim=True)))

    patch.setattr(plans, plan, changed)


def setting(patch: Patch, plan: str, name: str, change: Callable[[int], int]) -> None:
    """Build the plan with another number."""
    build = getattr(plans, plan)
    patch.setattr(plans, plan, lambda *args, **kw: build(*args, **{**kw, name: change(kw[name])}))


def rebuilt(patch: Patch, plan: str, change: Callable[[AttentionPlan], AttentionPlan]) -> None:
    """Change the plan itself."""
    build = getattr(plans, plan)
    patch.setattr(plans, plan, lambda *args, **kw: change(build(*args, **kw)))


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
