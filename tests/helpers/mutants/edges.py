"""Mutants of the padded edges and of the likelihoods."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches import padded
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models import hazards
from helpers.mutants import SAMPLE, Mutants, Patch
from helpers.strategies import Padded, pad

mutant = MUTANTS = Mutants()

# ---- the padded edges ------------------------------------------------------------------------------------------------


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


@mutant("pads", "pads: flat")
def the_code_mask_is_dropped(patch: Patch) -> None:
    def keep(x: Padded) -> None:
        x.code_mask, x.codes = torch.ones_like(x.code_mask), x.codes % 12

    from_padded(patch, keep)


@mutant("pads", "pads: flat")
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


@mutant("pads", "pads: flat")
def visits_are_packed_column_by_column(patch: Patch) -> None:
    offsets = padded._offsets
    patch.setattr(padded, "_offsets", lambda counts: offsets(counts.flip(0)))


def from_flat(patch: Patch, change: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]) -> None:
    """`change(codes, ages, visit_ids, mask)` before `from_flat` reads them."""
    original = VisitBatch.from_flat.__func__  # type: ignore[attr-defined]
    patch.setattr(VisitBatch, "from_flat", classmethod(lambda cls, *args: original(cls, *change(*args))))


@mutant("flat contract")
def the_flat_mask_is_dropped(patch: Patch) -> None:
    from_flat(patch, lambda codes, ages, ids, mask: (codes % 12, ages, ids % 9, torch.ones_like(mask)))


@mutant("flat contract")
def flat_visit_ids_are_counted_back(patch: Patch) -> None:
    from_flat(patch, lambda codes, ages, ids, mask: (codes, ages, (ids.where(mask, 0).max() - ids).clamp(min=0), mask))


@mutant("flat contract")
def flat_tokens_are_read_from_the_right(patch: Patch) -> None:
    from_flat(patch, lambda *tensors: tuple(tensor.flip(1) for tensor in tensors))


# ---- the likelihoods -------------------------------------------------------------------------------------------------


@mutant("enumerated", "reference: visit head")
def a_censored_visit_counts_as_survived(patch: Patch) -> None:
    def terms(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
        nll = torch.where(cause > 0, F.softplus(-logits), F.softplus(logits))
        return nll.masked_fill(~at_risk, 0.0)

    patch.setattr("helpers.likelihood_checks.visit_nll", terms)
    patch.setattr("ehrsequencing.models.base.visit_nll", terms)


@mutant("enumerated", "reference: visit head")
def the_event_index_is_one_off(patch: Patch) -> None:
    def terms(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
        return right(logits.roll(1), at_risk, cause=cause, subject_offsets=subject_offsets)

    right = hazards.visit_nll
    patch.setattr("helpers.likelihood_checks.visit_nll", terms)
    patch.setattr("ehrsequencing.models.base.visit_nll", terms)


@mutant("reference", "integral")
def the_entry_is_ignored(patch: Patch) -> None:
    def nll(logits: Tensor, edges_days: tuple[float, ...], **labels: Tensor) -> Tensor:
        return right(logits, edges_days, **{**labels, "entry_days": None})

    right = hazards.horizon_nll
    patch.setattr("ehrsequencing.models.base.horizon_nll", nll)
    patch.setattr("helpers.likelihood_checks.horizon_nll", nll)


@mutant("reference")
def an_event_on_an_edge_belongs_to_the_bin_above(patch: Patch) -> None:
    bucketize = torch.bucketize

    def right(x: Tensor, edges: Tensor, **kwargs: bool) -> Tensor:
        return bucketize(x, edges, right=True)

    patch.setattr(hazards.torch, "bucketize", right)


@mutant("reference", "integral")
def the_causes_are_swapped(patch: Patch) -> None:
    def nll(logits: Tensor, edges_days: tuple[float, ...], *, cause: Tensor, **labels: Tensor) -> Tensor:
        return right(logits, edges_days, cause=(cause > 0) * (logits.shape[1] + 1 - cause), **labels)

    right = hazards.horizon_nll
    patch.setattr("ehrsequencing.models.base.horizon_nll", nll)
    patch.setattr("helpers.likelihood_checks.horizon_nll", nll)


@mutant("reference", "integral")
def competing_hazards_are_left_out(patch: Patch) -> None:
    def nll(logits: Tensor, edges_days: tuple[float, ...], *, cause: Tensor, **labels: Tensor) -> Tensor:
        own = (cause.clamp(min=1) - 1).view(-1, 1, 1).expand(-1, 1, logits.shape[2])
        return right(logits.gather(1, own), edges_days, cause=cause.clamp(max=1), **labels)

    right = hazards.horizon_nll
    patch.setattr("ehrsequencing.models.base.horizon_nll", nll)
    patch.setattr("helpers.likelihood_checks.horizon_nll", nll)


def risks(patch: Patch, change: Callable[..., Tensor]) -> None:
    right = hazards.cumulative_incidence
    patch.setattr("helpers.likelihood_checks.cumulative_incidence", lambda *a, **k: change(right, *a, **k))


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
            days = hazards.exposure(edges, torch.zeros(1).double(), torch.full((1,), horizon).double())
            hazard = total * days
            before = (hazard - hazard.cumsum(1)).exp()
            found.append((share * (before * -torch.expm1(-hazard)).unsqueeze(1)).sum(2))
        return torch.stack(found, 2)

    risks(patch, cancelling)


@mutant("extremes")
def the_exponential_has_no_tangent(patch: Patch) -> None:
    patch.setattr(hazards, "_tangent_exp", torch.exp)


@mutant("extremes")
def clamp_then_log(patch: Patch) -> None:
    def terms(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
        h = torch.sigmoid(logits).clamp(1e-7, 1 - 1e-7)
        return torch.where(cause > 0, -h.log(), -(1 - h).log()).float()

    patch.setattr("helpers.likelihood_checks.visit_nll", terms)
