"""Equal visits are encoded once: which are equal, and that no answer changes."""

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ehrsequencing.batches.equal_visits import distinct_visits
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.models import hierarchical
from helpers.models import MODELS, make_model
from helpers.strategies import Records, pack, records, sample_records

HIERARCHICAL = [name for name, given in MODELS.items() if given.get("architecture") != "flat"]


def contents(batch: VisitBatch) -> list[bytes]:
    """Plainly, what each visit holds."""
    columns = [batch.codes, batch.values, batch.code_types]
    bounds = batch.visit_offsets.tolist()
    return [
        b"|".join(b"" if one is None else np.ascontiguousarray(one[a:b].numpy()).tobytes() for one in columns)
        for a, b in itertools.pairwise(bounds)
    ]


@settings(deadline=None, max_examples=50)
@given(records(), st.integers(1, 6), st.integers(0, 100))
def test_visits_are_equal_where_their_contents_are(subjects: Records, copies: int, seed: int) -> None:
    several = subjects * copies
    random.Random(seed).shuffle(several)
    batch = pack(several)
    held = contents(batch)
    found = distinct_visits(batch)
    if len(set(held)) > 0.5 * len(held):
        assert found is None
        return
    assert found is not None
    visits, number = found
    distinct = contents(visits)
    assert len(set(distinct)) == len(distinct) == len(set(held))
    assert [distinct[k] for k in number.tolist()] == held


def test_one_key_of_two_contents_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pack(sample_records() * 3)
    assert distinct_visits(batch) is not None
    monkeypatch.setattr("ehrsequencing.batches.equal_visits._mixed", lambda content, batch: batch.codes_per_visit)
    assert distinct_visits(batch) is None


@pytest.mark.parametrize("kind", HIERARCHICAL)
def test_no_answer_changes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of some people, one of whom has another code in one visit."""
    model = make_model(**MODELS[kind])
    batch = pack(sample_records() * 4)
    codes = batch.codes.clone()
    codes[-1] = codes[-1] % 3 + 1
    batch = VisitBatch(**{**vars_of(batch), "codes": codes})
    encoded: list[int] = []
    model.visit_encoder.register_forward_hook(lambda module, given, out: encoded.append(len(out)))
    with torch.no_grad():
        once = model(batch)
        monkeypatch.setattr(hierarchical, "distinct_visits", lambda batch: None)
        each = model(batch)
    assert encoded[0] < 0.5 * encoded[1] == 0.5 * batch.n_visits
    torch.testing.assert_close(once, each, rtol=1e-12, atol=1e-12, equal_nan=True)


def vars_of(batch: VisitBatch) -> dict[str, object]:
    return {name: getattr(batch, name) for name in batch.__dataclass_fields__}
