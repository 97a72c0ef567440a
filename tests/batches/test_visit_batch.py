"""The packed batch: what it accepts, what it refuses, and its padded edge."""

import random
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.errors import EhrseqError
from helpers.model_checks import plain
from helpers.strategies import NAN, Records, Subject, Visit, pack, pad, records, sample_records


def small(**changes: object) -> VisitBatch:
    """Two subjects, four visits (one empty), seven codes."""
    base: dict[str, object] = {
        "codes": torch.tensor([3, 8, 5, 2, 4, 4, 9]),
        "visit_offsets": torch.tensor([0, 3, 4, 4, 7]),
        "subject_offsets": torch.tensor([0, 2, 4]),
        "age_years": torch.tensor([61.0, 61.5, NAN, NAN]),
        "delta_days": torch.tensor([0.0, 182.0, 0.0, 30.0]),
    }
    return VisitBatch(**{**base, **changes})


@settings(deadline=None)
@given(records())
def test_indices_are_those_of_the_records(subjects: Records) -> None:
    batch = pack(subjects)
    rows = [(s, visit) for s, subject in enumerate(subjects) for visit in subject.visits]
    assert (batch.n_subjects, batch.n_visits) == (len(subjects), len(rows))
    assert batch.n_codes == sum(len(visit.codes) for _, visit in rows)
    assert batch.subject_of_visit.tolist() == [s for s, _ in rows]
    assert batch.visit_of_code.tolist() == [n for n, (_, visit) in enumerate(rows) for _ in visit.codes]
    assert batch.codes_per_visit.tolist() == [len(visit.codes) for _, visit in rows]
    assert batch.subject_offsets.diff().tolist() == [len(subject.visits) for subject in subjects]
    expected = [
        sum(not earlier.is_query for earlier in subject.visits[:i])
        for subject in subjects
        for i in range(len(subject.visits))
    ]
    assert batch.visit_index.tolist() == expected
    assert batch.visit_index is batch.visit_index  # made once


def test_repr_tells_sizes_and_no_patient_value() -> None:
    text = repr(pack(sample_records()))
    assert text.startswith("VisitBatch(subjects=5, visits=17, queries=9, codes=")
    assert text.endswith("labels=at_risk+duration_days+cause+entry_days)")
    assert repr(small(age_years=torch.full((4,), 91.25))) == repr(small())
    assert repr(small()).endswith("labels=none)")


def test_to_moves_every_tensor() -> None:
    batch = pack(sample_records())
    assert batch.to("cpu") is batch
    meta = batch.to("meta")
    for field in fields(VisitBatch):
        value = getattr(meta, field.name)
        assert not isinstance(value, Tensor) or value.device.type == "meta"
    assert meta.n_codes == batch.n_codes


SECRET = 7777  # stands for a patient's value: no message may hold it


@pytest.mark.parametrize(
    ("field", "wrong", "expected"),
    [
        ("codes", torch.tensor([1.0] * 7), "expected int64, got float32 of shape (7,)"),
        ("codes", torch.zeros(7, dtype=torch.int32), "expected int64, got int32"),
        ("codes", [1, 2], "expected a tensor, got list"),
        ("codes", torch.full((7,), -SECRET), "nothing below 0"),
        ("codes", torch.zeros(1, 7, dtype=torch.int64), "one dimension"),
        ("visit_offsets", torch.tensor([0, 3, 2, 4, 7]), "offsets that start at 0, never fall and end at 7"),
        ("visit_offsets", torch.tensor([1, 3, 4, 4, 7]), "start at 0"),
        ("visit_offsets", torch.tensor([0, 3, 4, 4, 6]), "end at 7"),
        ("visit_offsets", torch.zeros(0, dtype=torch.int64), "one more entry than rows"),
        ("subject_offsets", torch.tensor([0, 2, 3]), "end at 4"),
        ("age_years", torch.zeros(3), "shape (4,), got float32 of shape (3,)"),
        ("age_years", torch.tensor([1.0, float("inf"), 0.0, 0.0]), "NaN where unknown"),
        ("age_years", torch.zeros(4, dtype=torch.float16), "float32 or float64"),
        ("delta_days", torch.tensor([0.0, -SECRET, 0.0, 0.0]), "finite gaps"),
        ("delta_days", torch.tensor([0.0, NAN, 0.0, 0.0]), "finite gaps"),
        ("is_query", torch.zeros(4), "expected bool"),
        ("values", torch.zeros(7, 3), "shape (7, 2)"),
        ("values", torch.zeros(7), "(K, 2)"),
        ("values", torch.tensor([[NAN, SECRET]] * 7), "both finite or both NaN"),
        ("static_codes", torch.tensor([1]), "static_codes, static_offsets: expected come together"),
        ("at_risk", torch.ones(4), "expected bool"),
        ("cause", torch.full((4,), -SECRET), "nothing below 0"),
        ("duration_days", torch.zeros(5), "shape (4,)"),
        ("code_types", torch.zeros(4, dtype=torch.int64), "shape (7,)"),
        ("slots", torch.arange(4), "come together"),
        ("age_years", torch.zeros(4, device="meta"), "expected device cpu, as codes, got meta"),
    ],
)
def test_refuses(field: str, wrong: object, expected: str) -> None:
    with pytest.raises(EhrseqError) as caught:
        small(**{field: wrong})
    assert expected in str(caught.value)
    assert field in str(caught.value)
    assert str(SECRET) not in str(caught.value)


def test_refuses_slots_outside_the_padded_shape() -> None:
    for slots in ([0, 1, 2, 4], [0, 2, 1, 3], [-1, 0, 1, 2]):
        with pytest.raises(EhrseqError, match="rising positions"):
            small(padded_shape=(2, 2), slots=torch.tensor(slots))


@settings(deadline=None)
@given(records(), st.sampled_from([0.0, NAN, 1e30]), st.integers(0, 5))
def test_from_padded_reads_the_real_slots_in_row_major_order(subjects: Records, junk: float, seed: int) -> None:
    subjects = plain(subjects)
    expected, x = pack(subjects), pad(subjects, junk=junk, seed=seed)
    batch = VisitBatch.from_padded(
        x.codes,
        x.code_mask,
        x.ages,
        x.deltas,
        x.visit_mask,
        at_risk=x.at_risk,
        duration_days=x.duration_days,
        cause=x.cause,
    )
    for name in (
        "codes",
        "visit_offsets",
        "subject_offsets",
        "age_years",
        "delta_days",
        "at_risk",
        "duration_days",
        "cause",
    ):
        torch.testing.assert_close(getattr(batch, name), getattr(expected, name), rtol=0, atol=0, equal_nan=True)
    assert batch.padded_shape == x.visit_mask.shape
    per_visit = torch.randn(batch.n_visits, 2, requires_grad=True)
    padded = batch.to_padded(per_visit)
    assert torch.equal(padded[x.visit_mask], per_visit)
    assert (padded[~x.visit_mask] == 0).all()
    (gradient,) = torch.autograd.grad(padded.square().sum(), per_visit)
    assert torch.equal(gradient, 2 * per_visit)
    again = VisitBatch.from_padded(x.codes.int(), x.code_mask.long(), x.ages, x.deltas, x.visit_mask.double())
    assert torch.equal(again.codes, batch.codes)


CODES, MASK, FLAT = torch.ones(2, 3, 4, dtype=torch.int64), torch.ones(2, 3, 4), torch.ones(2, 3)
NO_PADDED: list[tuple[str, tuple[Tensor, ...], dict[str, Tensor]]] = [
    (r"codes.*\(B, V, C\)", (CODES[0], MASK, FLAT, FLAT, FLAT), {}),
    (r"codes.*\(B, V, C\)", (CODES.float(), MASK, FLAT, FLAT, FLAT), {}),
    (r"code_mask.*\(2, 3, 4\)", (CODES, FLAT, FLAT, FLAT, FLAT), {}),
    (r"time_deltas.*\(2, 3\)", (CODES, MASK, FLAT, FLAT.T, FLAT), {}),
    (r"cause.*\(2, 3\)", (CODES, MASK, FLAT, FLAT, FLAT), {"cause": CODES}),
    (r"visit_mask.*a mask", (CODES, MASK, FLAT, FLAT, FLAT * 2), {}),
    (r"delta_days.*finite gaps", (CODES, MASK, FLAT, -FLAT, FLAT), {}),
]


@pytest.mark.parametrize(("says", "tensors", "labels"), NO_PADDED)
def test_from_padded_refuses(says: str, tensors: tuple[Tensor, ...], labels: dict[str, Tensor]) -> None:
    with pytest.raises(EhrseqError, match=says):
        VisitBatch.from_padded(*tensors, **labels)


def test_to_padded_of_a_packed_batch_stands_on_the_left() -> None:
    batch = pack([Subject((Visit(),)), Subject(), Subject((Visit(), Visit(is_query=True), Visit()))])
    assert batch.to_padded(torch.tensor([1, 2, 3, 4])).tolist() == [[1, 0, 0], [0, 0, 0], [2, 3, 4]]
    with pytest.raises(EhrseqError, match="4 rows"):
        batch.to_padded(torch.zeros(3))
    with pytest.raises(EhrseqError, match="4 rows"):
        batch.to_padded(torch.tensor(1.0))


@settings(deadline=None)
@given(records(), st.randoms(use_true_random=False))
def test_from_flat_is_the_record_again(subjects: Records, rng: random.Random) -> None:
    """Tokens of the visits, interleaved at random and padded anywhere, give back the visits that have codes."""
    tokens = [
        [(v, code, visit.age_years) for v, visit in enumerate(subject.visits) for code in visit.codes]
        for subject in subjects
    ]
    length = max(map(len, tokens)) + 2
    codes, ids = torch.full((len(tokens), length), 999), torch.full((len(tokens), length), 999)
    ages, mask = torch.full((len(tokens), length), NAN), torch.zeros(len(tokens), length, dtype=torch.bool)
    for b, row in enumerate(tokens):
        turns = [v for v, _, _ in row]
        rng.shuffle(turns)  # visits take turns, but each visit's own tokens keep their order
        queues = {v: [t for t in row if t[0] == v] for v in set(turns)}
        for place, v in zip(sorted(rng.sample(range(length), len(turns))), turns, strict=True):
            ids[b, place], codes[b, place], ages[b, place] = torch.tensor(queues[v].pop(0))
            mask[b, place] = True
    batch = VisitBatch.from_flat(codes, ages, ids, mask)
    visits = [(b, v, visit) for b, s in enumerate(subjects) for v, visit in enumerate(s.visits) if visit.codes]
    assert batch.codes.tolist() == [code for _, _, visit in visits for code in visit.codes]
    assert batch.subject_of_visit.tolist() == [b for b, _, _ in visits]
    expected = torch.tensor([visit.age_years for _, _, visit in visits])
    torch.testing.assert_close(batch.age_years, expected.view(-1), equal_nan=True)
    width = max((v + 1 for _, v, _ in visits), default=0)
    assert batch.padded_shape == (len(subjects), width)
    assert batch.slots is not None
    assert batch.slots.tolist() == [b * width + v for b, v, _ in visits]


TOKENS, ONES = torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3)
NO_FLAT: list[tuple[str, tuple[Tensor, ...]]] = [
    (r"codes.*\(B, L\)", (ONES, ONES, TOKENS, ONES)),
    (r"visit_ids.*\(2, 3\)", (TOKENS, ONES, TOKENS.T, ONES)),
    (r"visit_ids.*integers", (TOKENS, ONES, ONES, ONES)),
    (r"visit_ids.*from 0", (TOKENS, ONES, -TOKENS, ONES)),
    (r"mask.*a mask", (TOKENS, ONES, TOKENS, ONES / 2)),
]


@pytest.mark.parametrize(("says", "tensors"), NO_FLAT)
def test_from_flat_refuses(says: str, tensors: tuple[Tensor, ...]) -> None:
    with pytest.raises(EhrseqError, match=says):
        VisitBatch.from_flat(*tensors)
