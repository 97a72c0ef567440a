"""`VisitBatch`: the packed batch that every model takes, and conversions from and to padded tensors.

Subjects, their visits and the visits' codes are flat arrays; offsets say which subject has which visits and codes:

    codes            3 8 5 | 2 | (empty) | 4 4 9        K = 7 codes
    visit_offsets    0       3   4         4      7     N = 4 visits
    subject_offsets  0           2                4     S = 2 subjects

Real visits of a subject are in time order. A *query* is a time at which a prediction is wanted, not a visit. It comes
after the real visits that it may see and before the next one; several queries may follow one another.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ehrsequencing.batches.padded import (
    PaddedVisits,
    bad_field,
    check_offsets,
    described,
    pack_flat,
    pack_padded,
)
from ehrsequencing.core.elsewhere import Hinted

_INT, _FLOAT, _BOOL = (torch.int64,), (torch.float32, torch.float64), (torch.bool,)
_FILLED_IN: Any = None  # default of a field that `__post_init__` makes from the others


@dataclass(frozen=True, eq=False, repr=False)
class VisitBatch(Hinted):
    """Packed visits of S subjects: N visits (queries among them) with K codes in all.

    Index fields are int64, floats are float32 or float64, masks are bool with `True` = real. The batch checks itself
    when it is made; it never copies or changes the tensors it is given.

    Attributes:
        codes: (K,) token ids of all visits, one after another; 0 is `[PAD]`, whose embedding is zero.
        visit_offsets: (N+1,) visit n owns `codes[visit_offsets[n]:visit_offsets[n+1]]`; empty visits are legal.
        subject_offsets: (S+1,) subject s owns visits `subject_offsets[s]:subject_offsets[s+1]`; may be none.
        age_years: (N,) age at the visit's start; NaN where birth is unknown.
        delta_days: (N,) days from the end of the real visit before to this one's start; 0 for a subject's first.
        static_codes: (M,) token ids without a time; none by default.
        static_offsets: (S+1,) subject s owns `static_codes[static_offsets[s]:static_offsets[s+1]]`.
        values: (K, 2) rank and standardised value of a code's number, both NaN where it has none; or None.
        is_query: (N,) a time without a visit: sees the past, seen by none; all False by default.
        at_risk: (N,) the rows that are prediction times; or None (no labels).
        duration_days: (N,) days from the prediction time to event or censoring; or None.
        cause: (N,) 0 = censored, else 1.. in the task's order; or None.
        entry_days: (N,) days from the prediction time until exposure starts (blanking); or None, which means 0.
        outcome_rows: (M,) rows of the pairs of a row and an outcome with an event, or without risk; ascending; or None.
        outcome_codes: (M,) which outcome.
        outcome_days: (M,) days from the prediction time to the event; 0 = not at risk.
        code_types: (K,) type of each code (dx, proc, rx, lab, ...); or None.
        visit_ids: (N,) the visit ids that `from_flat` was given, for flat BEHRT's visit embedding; None: `visit_index`.
        padded_shape: (B, V) of the padded tensors that the batch was made from; or None.
        slots: (N,) position of each visit in the flattened (B, V); or None.

    Raises:
        EhrseqError: A field has the wrong type, shape or content; the message says what was expected and what came.

    Example:
        >>> batch = VisitBatch(
        ...     codes=torch.tensor([3, 8, 5, 2, 4, 4, 9]),
        ...     visit_offsets=torch.tensor([0, 3, 4, 4, 7]),
        ...     subject_offsets=torch.tensor([0, 2, 4]),
        ...     age_years=torch.tensor([61.0, 61.5, float("nan"), float("nan")]),
        ...     delta_days=torch.tensor([0.0, 182.0, 0.0, 30.0]),
        ... )
        >>> batch
        VisitBatch(subjects=2, visits=4, queries=0, codes=7, labels=none)
        >>> batch.visit_of_code.tolist(), batch.visit_index.tolist()
        ([0, 0, 0, 1, 3, 3, 3], [0, 1, 0, 1])
    """

    codes: Tensor
    visit_offsets: Tensor
    subject_offsets: Tensor
    age_years: Tensor
    delta_days: Tensor
    static_codes: Tensor = field(default=_FILLED_IN, kw_only=True)
    static_offsets: Tensor = field(default=_FILLED_IN, kw_only=True)
    values: Tensor | None = field(default=None, kw_only=True)
    is_query: Tensor = field(default=_FILLED_IN, kw_only=True)
    at_risk: Tensor | None = field(default=None, kw_only=True)
    duration_days: Tensor | None = field(default=None, kw_only=True)
    cause: Tensor | None = field(default=None, kw_only=True)
    entry_days: Tensor | None = field(default=None, kw_only=True)
    outcome_rows: Tensor | None = field(default=None, kw_only=True)
    outcome_codes: Tensor | None = field(default=None, kw_only=True)
    outcome_days: Tensor | None = field(default=None, kw_only=True)
    code_types: Tensor | None = field(default=None, kw_only=True)
    visit_ids: Tensor | None = field(default=None, kw_only=True)
    padded_shape: tuple[int, int] | None = field(default=None, kw_only=True)
    slots: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._check_types()
        fill, device = object.__setattr__, self.codes.device  # the class is frozen
        if (self.static_codes is None) != (self.static_offsets is None):
            raise bad_field(
                "come together", "one of them is missing", where="static_codes, static_offsets"
            )
        if self.static_codes is None:
            offsets = torch.zeros(self.n_subjects + 1, dtype=torch.int64, device=device)
            fill(self, "static_codes", offsets.new_zeros(0))
            fill(self, "static_offsets", offsets)
        if self.is_query is None:
            fill(self, "is_query", torch.zeros(self.n_visits, dtype=torch.bool, device=device))
        self._check_shapes()
        if device.type == "cpu":  # elsewhere each look at a number would wait for the device
            self._check_contents()

    # ---- sizes -------------------------------------------------------------------------------------------------

    @property
    def n_subjects(self) -> int:
        """S, subjects without visits included."""
        return self.subject_offsets.shape[0] - 1

    @property
    def n_visits(self) -> int:
        """N, queries included."""
        return self.visit_offsets.shape[0] - 1

    @property
    def n_codes(self) -> int:
        """K, codes of all visits and queries."""
        return self.codes.shape[0]

    def __repr__(self) -> str:
        names = ("at_risk", "duration_days", "cause", "entry_days")
        labels = "+".join(name for name in names if getattr(self, name) is not None) or "none"
        queries = int(self.is_query.sum())
        sizes = f"subjects={self.n_subjects}, visits={self.n_visits - queries}, queries={queries}, codes={self.n_codes}"
        device = "" if self.codes.device.type == "cpu" else f", device={self.codes.device}"
        return f"VisitBatch({sizes}, labels={labels}{device})"

    # ---- derived indices, made on first use --------------------------------------------------------------------

    @cached_property
    def codes_per_visit(self) -> Tensor:
        """(N,) number of codes of each visit."""
        return self.visit_offsets.diff()

    @cached_property
    def visit_of_code(self) -> Tensor:
        """(K,) the visit that owns each code."""
        return _owners(self.visit_offsets, self.n_codes)

    @cached_property
    def subject_of_visit(self) -> Tensor:
        """(N,) the subject that owns each visit."""
        return _owners(self.subject_offsets, self.n_visits)

    @cached_property
    def visit_index(self) -> Tensor:
        """(N,) number of the subject's *real* visits before this row: 0 for the first visit; queries do not count."""
        real = (~self.is_query).long()
        before = real.cumsum(0) - real
        return before - before[self.subject_offsets[self.subject_of_visit]]

    @property
    def host(self) -> "VisitBatch":
        """The same batch on the CPU: what it was moved from, so that a look at its offsets waits for no device."""
        if self.codes.device.type == "cpu":
            return self
        if "_host" not in self.__dict__:  # made on its device; one wait
            object.__setattr__(self, "_host", self.to("cpu"))
        return self.__dict__["_host"]

    # ---- the padded edge ---------------------------------------------------------------------------------------

    @classmethod
    def from_padded(
        cls,
        codes: Tensor,
        code_mask: Tensor,
        ages: Tensor,
        time_deltas: Tensor,
        visit_mask: Tensor,
        *,
        at_risk: Tensor | None = None,
        duration_days: Tensor | None = None,
        cause: Tensor | None = None,
        entry_days: Tensor | None = None,
        is_query: Tensor | None = None,
        values: Tensor | None = None,
        code_types: Tensor | None = None,
        static_codes: Tensor | None = None,
        static_mask: Tensor | None = None,
    ) -> "VisitBatch":
        """Pack padded tensors (the hierarchical contract).

        Masks may have any pattern; what pads hold (NaN, 1e30, any id) is never read. The codes of a padded visit are
        pads too. Visits are in row-major order of the real slots, and `to_padded` goes back to (B, V).

        Args:
            codes: (B, V, C) token ids.
            code_mask: (B, V, C) `True` = real.
            ages: (B, V) years.
            time_deltas: (B, V) days since the visit before.
            visit_mask: (B, V) `True` = real; a real visit without real codes is an empty visit.
            at_risk: (B, V) prediction times.
            duration_days: (B, V) days to event or censoring.
            cause: (B, V) 0 = censored.
            entry_days: (B, V) days from the prediction time until exposure starts.
            is_query: (B, V) slots that are prediction times without a visit; they follow the visits that they see.
            values: (B, V, C, 2) rank and standardised value of each code's number, both NaN where it has none.
            code_types: (B, V, C) type of each code.
            static_codes: (B, M) token ids without a time.
            static_mask: (B, M) `True` = real; by default all of them.

        Raises:
            EhrseqError: Shapes disagree, a mask is not made of 0 and 1, or a real slot holds an impossible value.

        Example:
            >>> mask = torch.tensor([[[True, True], [True, False]], [[False, False], [False, True]]])
            >>> codes, ages = torch.arange(8).view(2, 2, 2), torch.full((2, 2), 50.0)
            >>> batch = VisitBatch.from_padded(codes, mask, ages, torch.zeros(2, 2), mask.any(-1))
            >>> batch.codes.tolist(), batch.to_padded(batch.visit_index + 1).tolist()
            ([0, 1, 2, 7], [[1, 2], [0, 1]])
        """
        labels = dict(zip(_LABELS, (at_risk, duration_days, cause, entry_days), strict=True))
        return cls(
            **pack_padded(
                PaddedVisits(codes, code_mask, ages, time_deltas, visit_mask),
                per_visit={**labels, "is_query": is_query},
                values=values,
                code_types=code_types,
                static_codes=static_codes,
                static_mask=static_mask,
            )
        )

    @classmethod
    def from_flat(
        cls, codes: Tensor, ages: Tensor, visit_ids: Tensor, mask: Tensor
    ) -> "VisitBatch":
        """Pack flat token sequences (flat BEHRT's contract).

        The tokens of one visit id form the visit, in their order; visits are in order of their ids, and keep them. A
        visit's age is that of its first token, and its gap is 0 (the contract has none). Slots are (b, visit_id) of
        a (B, V) with V = largest real id + 1.

        Args:
            codes: (B, L) token ids.
            ages: (B, L) years.
            visit_ids: (B, L) the visit of each token, from 0.
            mask: (B, L) `True` = real; what pads hold is never read.

        Raises:
            EhrseqError: Shapes disagree, the mask is not made of 0 and 1, or a real visit id is negative.
        """
        return cls(**pack_flat(codes, ages, visit_ids, mask))

    def to_padded(self, per_visit: Tensor) -> Tensor:
        """Put per-visit results back: (N, ...) → (B, V, ...), with 0 in pads; gradients flow through.

        A batch that was not made from padded tensors gets (S, most visits of a subject), real slots first.

        Raises:
            EhrseqError: `per_visit` has not N rows.
        """
        if per_visit.dim() == 0 or per_visit.shape[0] != self.n_visits:
            raise bad_field(
                f"{self.n_visits} rows, one a visit", described(per_visit), where="per_visit"
            )
        if self.padded_shape is not None and self.slots is not None:
            shape, slots = self.padded_shape, self.slots
        else:
            shape = (
                self.n_subjects,
                int(self.subject_offsets.diff().max()) if self.n_subjects else 0,
            )
            rows = torch.arange(self.n_visits, device=self.codes.device)
            slots = rows + (
                self.subject_of_visit * shape[1] - self.subject_offsets[:-1][self.subject_of_visit]
            )
        trailing = per_visit.shape[1:]
        return (
            per_visit.new_zeros(shape[0] * shape[1], *trailing)
            .index_copy(0, slots, per_visit)
            .view(*shape, *trailing)
        )

    def codes_to_padded(self, per_code: Tensor) -> Tensor:
        """Put results of codes back: (K, ...) → (B, V, C, ...), with 0 in pads; C is the most codes of a visit.

        Raises:
            EhrseqError: `per_code` has not K rows.
        """
        if per_code.dim() == 0 or per_code.shape[0] != self.n_codes:
            expected = f"{self.n_codes} rows, one a code"
            raise bad_field(expected, described(per_code), where="per_code")
        most = int(self.codes_per_visit.max()) if self.n_visits else 0
        rank = torch.arange(self.n_codes, device=per_code.device)
        rank = rank - self.visit_offsets[:-1][self.visit_of_code]
        shape = self.n_visits, most, *per_code.shape[1:]
        slots = per_code.new_zeros(shape).flatten(0, 1)
        filled = slots.index_copy(0, self.visit_of_code * most + rank, per_code)
        return self.to_padded(filled.view(shape))

    def padded(self) -> PaddedVisits:
        """The visits as padded tensors, for a network of one's own; `from_padded(*batch.padded())` packs them again."""
        return PaddedVisits(
            self.codes_to_padded(self.codes),
            self.codes_to_padded(torch.ones_like(self.codes, dtype=torch.bool)),
            self.to_padded(self.age_years),
            self.to_padded(self.delta_days),
            self.to_padded(torch.ones_like(self.is_query)),
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "VisitBatch":
        """Move every tensor to a device; the batch itself where it is there already."""
        if self.codes.device == torch.device(device):
            return self
        moved = self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        if self.codes.device.type == "cpu":
            object.__setattr__(moved, "_host", self)
        return moved

    def pin_memory(self) -> "VisitBatch":
        """The batch in page-locked memory, from which a GPU copies without blocking; needs CUDA."""
        return self._with_tensors(Tensor.pin_memory)

    def with_codes(self, kept: Tensor) -> "VisitBatch":
        """The same visits with those of their codes whose place is True in `kept` (K,); a visit may lose them all."""
        before = F.pad(kept.cumsum(0), (1, 0))
        return replace(
            self,
            codes=self.codes[kept],
            visit_offsets=before[self.visit_offsets],
            values=None if self.values is None else self.values[kept],
            code_types=None if self.code_types is None else self.code_types[kept],
        )

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "VisitBatch":
        changed: dict[str, Any] = {
            f.name: change(tensor)
            for f in fields(self)
            if isinstance(tensor := getattr(self, f.name), Tensor)
        }
        return replace(self, **changed)

    # ---- self-check --------------------------------------------------------------------------------------------

    def _check_types(self) -> None:
        needed = ("codes", "visit_offsets", "subject_offsets", "age_years", "delta_days")
        for name, dtypes in _DTYPES.items():
            tensor = getattr(self, name)
            if tensor is None and name not in needed:
                continue
            if not isinstance(tensor, Tensor):
                raise bad_field("a tensor", type(tensor).__name__, where=name)
            if tensor.dtype not in dtypes:
                raise bad_field(
                    " or ".join(str(d).removeprefix("torch.") for d in dtypes),
                    described(tensor),
                    where=name,
                )
            if tensor.device != self.codes.device:
                expected = f"device {self.codes.device}, as codes"
                raise bad_field(expected, str(tensor.device), where=name)
            if tensor.dim() != (2 if name == "values" else 1):
                expected = "(K, 2)" if name == "values" else "one dimension"
                raise bad_field(expected, described(tensor), where=name)
        for name in ("visit_offsets", "subject_offsets"):
            if not getattr(self, name).shape[0]:
                raise bad_field("one more entry than rows", "none", where=name)

    def _check_shapes(self) -> None:
        k, n, s = self.n_codes, self.n_visits, self.n_subjects
        expected: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(
                ("age_years", "delta_days", "is_query", "slots", "visit_ids", *_LABELS), (n,)
            ),
            "static_offsets": (s + 1,),
            "values": (k, 2),
            "code_types": (k,),
            **dict.fromkeys(
                _OUTCOMES, () if self.outcome_rows is None else tuple(self.outcome_rows.shape)
            ),
        }
        for name, shape in expected.items():
            tensor = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != shape:
                raise bad_field(f"shape {shape}", described(tensor), where=name)
        if len({getattr(self, name) is None for name in _OUTCOMES}) > 1:
            raise bad_field("come together", "one of them is missing", where=", ".join(_OUTCOMES))
        if (self.padded_shape is None) != (self.slots is None):
            raise bad_field("come together", "one of them is missing", where="padded_shape, slots")

    def _check_contents(self) -> None:
        check_offsets("visit_offsets", self.visit_offsets, self.n_codes)
        check_offsets("subject_offsets", self.subject_offsets, self.n_visits)
        check_offsets("static_offsets", self.static_offsets, len(self.static_codes))
        for name in ("codes", "static_codes", "code_types", "cause"):
            tensor = getattr(self, name)
            if tensor is not None and len(tensor) and int(tensor.min()) < 0:
                raise bad_field("nothing below 0", "a negative entry", where=name)
        if not bool((self.delta_days >= 0).all() & self.delta_days.isfinite().all()):
            came = "a negative gap, NaN or infinity"
            raise bad_field("finite gaps from 0 days", came, where="delta_days")
        if bool(self.age_years.isinf().any()):
            raise bad_field("years, or NaN where unknown", "infinity", where="age_years")
        if self.values is not None:
            missing = self.values.isnan()
            if bool((missing[:, 0] != missing[:, 1]).any() | self.values.isinf().any()):
                expected = "rank and value both finite or both NaN"
                raise bad_field(expected, "something else", where="values")
        if self.padded_shape is not None and self.slots is not None and len(self.slots):
            first, last = int(self.slots[0]), int(self.slots[-1])
            is_inside = first >= 0 and last < self.padded_shape[0] * self.padded_shape[1]
            if not is_inside or bool((self.slots.diff() <= 0).any()):
                expected = f"rising positions within {self.padded_shape}"
                raise bad_field(expected, "something else", where="slots")


_LABELS = {"at_risk": _BOOL, "duration_days": _FLOAT, "cause": _INT, "entry_days": _FLOAT}
_OUTCOMES = {"outcome_rows": _INT, "outcome_codes": _INT, "outcome_days": _FLOAT}
_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(
        ("codes", "visit_offsets", "subject_offsets", "static_codes", "static_offsets"), _INT
    ),
    **dict.fromkeys(("age_years", "delta_days", "values"), _FLOAT),
    "is_query": _BOOL,
    **_LABELS,
    **_OUTCOMES,
    **dict.fromkeys(("code_types", "slots", "visit_ids"), _INT),
}


def _owners(offsets: Tensor, total: int) -> Tensor:
    rows = torch.arange(offsets.shape[0] - 1, device=offsets.device)
    return rows.repeat_interleave(offsets.diff(), output_size=total)
