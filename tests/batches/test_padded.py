"""`from_padded` with values, static codes, queries and entry: the batch is the one that was packed by hand."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ehrsequencing import VisitBatch
from ehrsequencing.core.errors import EhrseqError

FIELDS = ("is_query", "entry_days", "values", "code_types", "static_codes", "static_offsets", "at_risk", "codes")


def padded(seed: int) -> dict[str, Tensor]:
    """Random padded tensors whose pads hold nonsense; queries have no codes."""
    g = torch.Generator().manual_seed(seed)
    b, v, c, m = 3, 4, 3, 2
    visit_mask = torch.rand(b, v, generator=g) < 0.7
    is_query = (torch.rand(b, v, generator=g) < 0.4) & visit_mask
    code_mask = (torch.rand(b, v, c, generator=g) < 0.6) & ~is_query.unsqueeze(-1)
    values = torch.randn(b, v, c, 2, generator=g)
    values[torch.rand(b, v, c, generator=g) < 0.5] = float("nan")
    junk = 1e30 * (~visit_mask).double()
    return {
        "codes": torch.randint(1, 9, (b, v, c), generator=g),
        "code_mask": code_mask,
        "ages": torch.rand(b, v, generator=g) * 90 + junk,
        "time_deltas": torch.rand(b, v, generator=g) * 9 + junk,
        "visit_mask": visit_mask,
        "is_query": is_query,
        "values": values,
        "entry_days": torch.rand(b, v, generator=g) + junk,
        "code_types": torch.randint(0, 5, (b, v, c), generator=g),
        "static_codes": torch.randint(1, 9, (b, m), generator=g),
        "static_mask": torch.rand(b, m, generator=g) < 0.5,
        "at_risk": visit_mask & (torch.rand(b, v, generator=g) < 0.5),
    }


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_every_field_is_taken_from_the_real_slots(seed: int) -> None:
    given_ = padded(seed)
    batch = VisitBatch.from_padded(**given_)
    slots = [(i, j) for i in range(3) for j in range(4) if given_["visit_mask"][i, j]]
    codes = [(i, j, k) for i, j in slots for k in range(3) if given_["code_mask"][i, j, k]]
    static = [[int(given_["static_codes"][i, k]) for k in range(2) if given_["static_mask"][i, k]] for i in range(3)]
    expected = {
        "is_query": torch.tensor([bool(given_["is_query"][s]) for s in slots], dtype=torch.bool),
        "entry_days": torch.tensor([float(given_["entry_days"][s]) for s in slots]),
        "values": torch.stack([given_["values"][s] for s in codes]) if codes else torch.zeros(0, 2),
        "code_types": torch.tensor([int(given_["code_types"][s]) for s in codes], dtype=torch.int64),
        "codes": torch.tensor([int(given_["codes"][s]) for s in codes], dtype=torch.int64),
        "static_codes": torch.tensor([one for own in static for one in own], dtype=torch.int64),
        "static_offsets": torch.tensor([0, *torch.tensor([len(s) for s in static]).cumsum(0).tolist()]),
        "at_risk": torch.tensor([bool(given_["at_risk"][s]) for s in slots], dtype=torch.bool),
    }
    assert set(expected) == set(FIELDS)
    for name, tensor in expected.items():
        torch.testing.assert_close(getattr(batch, name), tensor, equal_nan=True, check_dtype=name != "entry_days")
    assert torch.equal(batch.to_padded(batch.is_query), given_["is_query"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"values": torch.zeros(3, 4, 3)}, r"expected shape \(3, 4, 3, 2\)"),
        ({"static_codes": torch.zeros(2, 2, dtype=torch.int64), "static_mask": None}, r"expected shape \(3, 2\)"),
        ({"static_codes": None}, "static_codes beside it"),
        ({"is_query": torch.full((3, 4), 2.0)}, "a mask: bool, or 0 and 1"),
        ({"entry_days": torch.zeros(4)}, r"expected shape \(3, 4\)"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Tensor | None], says: str) -> None:
    with pytest.raises(EhrseqError, match=says):
        VisitBatch.from_padded(**{**padded(1), **change})
