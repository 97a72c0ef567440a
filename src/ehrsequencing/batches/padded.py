"""Padded tensors → the fields of a `VisitBatch`. What pads hold is never read."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ehrsequencing.core.errors import EhrseqError

_MASKS, _INTEGERS = ("at_risk", "is_query"), ("cause",)


class PaddedVisits(NamedTuple):
    """Padded visits, in the order of the arguments of `VisitBatch.from_padded`."""

    codes: Tensor  # (B, V, C) token ids, 0 in pads
    code_mask: Tensor  # (B, V, C) True = real
    ages: Tensor  # (B, V) years
    time_deltas: Tensor  # (B, V) days since the visit before
    visit_mask: Tensor  # (B, V) True = real


def pack_padded(
    given: PaddedVisits,
    *,
    per_visit: Mapping[str, Tensor | None],
    values: Tensor | None,
    code_types: Tensor | None,
    static_codes: Tensor | None,
    static_mask: Tensor | None,
) -> dict[str, Any]:
    """Fields of the batch that `VisitBatch.from_padded` makes; arguments and errors as there.

    Args:
        given: The visits.
        per_visit: Other fields of visits by name, (B, V) each, None for those that are not given.
        values: (B, V, C, 2) or None.
        code_types: (B, V, C) or None.
        static_codes: (B, M) or None.
        static_mask: (B, M) or None.
    """
    codes, code_mask, ages, time_deltas, visit_mask = given
    _require_ids(codes, 3, "codes")
    shape = (codes.shape[0], codes.shape[1])
    visits = {"ages": ages, "time_deltas": time_deltas, "visit_mask": visit_mask, **per_visit}
    for name, tensor in visits.items():
        _require_shape(tensor, shape, name)
    for name, tensor in {"code_mask": code_mask, "code_types": code_types}.items():
        _require_shape(tensor, tuple(codes.shape), name)
    _require_shape(values, (*codes.shape, 2), "values")
    real = as_mask(visit_mask, "visit_mask")
    real_codes = as_mask(code_mask, "code_mask") & real.unsqueeze(-1)
    slots = real.flatten().nonzero().squeeze(1)
    static = dict[str, Tensor]()
    if static_codes is not None:
        _require_ids(static_codes, 2, "static_codes")
        _require_shape(static_codes, (shape[0], static_codes.shape[1]), "static_codes")
        _require_shape(static_mask, tuple(static_codes.shape), "static_mask")
        every = torch.ones_like(static_codes, dtype=torch.bool)
        own = every if static_mask is None else as_mask(static_mask, "static_mask")
        static = {"static_codes": static_codes[own].long(), "static_offsets": _offsets(own.sum(1))}
    elif static_mask is not None:
        raise bad_field("static_codes beside it", "none", where="static_mask")

    def picked(name: str, tensor: Tensor) -> Tensor:
        chosen = tensor.flatten()[slots]
        if name in _MASKS:
            return as_mask(chosen, name)
        return chosen.long() if name in _INTEGERS else _floating(chosen)

    return {
        "codes": codes[real_codes].long(),
        "visit_offsets": _offsets(real_codes.sum(-1).flatten()[slots]),
        "subject_offsets": _offsets(real.sum(1)),
        "age_years": picked("ages", ages),
        "delta_days": picked("time_deltas", time_deltas),
        **{name: picked(name, tensor) for name, tensor in per_visit.items() if tensor is not None},
        **({} if values is None else {"values": _floating(values[real_codes])}),
        **({} if code_types is None else {"code_types": code_types[real_codes].long()}),
        **static,
        "padded_shape": shape,
        "slots": slots,
    }


def pack_flat(codes: Tensor, ages: Tensor, visit_ids: Tensor, mask: Tensor) -> dict[str, Any]:
    """Fields of the batch that `VisitBatch.from_flat` makes; arguments and errors as there."""
    _require_ids(codes, 2, "codes")
    for name, tensor in {"ages": ages, "visit_ids": visit_ids, "mask": mask}.items():
        _require_shape(tensor, tuple(codes.shape), name)
    if visit_ids.is_floating_point():
        raise bad_field("integers", described(visit_ids), where="visit_ids")
    real = as_mask(mask, "mask").flatten().nonzero().squeeze(1)
    ids = visit_ids.flatten()[real].long()
    if bool((ids < 0).any()):
        raise bad_field("ids from 0", "a negative id", where="visit_ids")
    shape = (codes.shape[0], int(ids.max()) + 1 if len(ids) else 0)
    slot_of_token = (real // max(codes.shape[1], 1)) * shape[1] + ids
    order = slot_of_token.argsort(stable=True)
    slots, counts = torch.unique_consecutive(slot_of_token[order], return_counts=True)
    visit_offsets, tokens = _offsets(counts), real[order]
    return {
        "codes": codes.flatten()[tokens].long(),
        "visit_offsets": visit_offsets,
        "subject_offsets": _offsets((slots // max(shape[1], 1)).bincount(minlength=shape[0])),
        "age_years": _floating(ages.flatten()[tokens[visit_offsets[:-1]]]),
        "delta_days": torch.zeros(len(slots), device=codes.device),
        "visit_ids": slots % max(shape[1], 1),
        "padded_shape": shape,
        "slots": slots,
    }


def as_mask(mask: Tensor, name: str) -> Tensor:
    """A mask as bool.

    Raises:
        EhrseqError: It holds something other than 0 and 1.
    """
    if mask.dtype == torch.bool:
        return mask
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise bad_field("a mask: bool, or 0 and 1", described(mask), where=name)
    return mask.bool()


def bad_field(expected: str, came: str, *, where: str) -> EhrseqError:
    """The error of a field that has another type, shape or content."""
    return EhrseqError(
        f"expected {expected}, got {came}", where=f"VisitBatch.{where}", fix="correct this field"
    )


def check_offsets(name: str, offsets: Tensor, total: int) -> None:
    """Refuse offsets that do not start at 0, fall, or end elsewhere than at the total."""
    if int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((offsets.diff() < 0).any()):
        raise bad_field(
            f"offsets that start at 0, never fall and end at {total}", "something else", where=name
        )


def described(tensor: Tensor) -> str:
    """Type and shape of a tensor, without its content."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _require_tensor(given: object, name: str) -> None:
    if not isinstance(given, Tensor):
        raise bad_field(f"a tensor: torch.as_tensor({name})", type(given).__name__, where=name)


def _require_ids(codes: Tensor, dimensions: int, name: str) -> None:
    _require_tensor(codes, name)
    if codes.dim() != dimensions or codes.is_floating_point() or codes.dtype == torch.bool:
        axes = {"codes": {3: "(B, V, C)", 2: "(B, L)"}[dimensions], "static_codes": "(B, M)"}[name]
        raise bad_field(f"{axes} token ids", described(codes), where=name)


def _require_shape(tensor: Tensor | None, shape: tuple[int, ...], name: str) -> None:
    if tensor is None:
        return
    _require_tensor(tensor, name)
    if tuple(tensor.shape) != shape:
        as_codes = "" if name.startswith("static") else ", as codes"
        raise bad_field(f"shape {shape}{as_codes}", described(tensor), where=name)


def _floating(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0)])
