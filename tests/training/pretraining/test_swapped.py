"""Swapped codes: what a swap changes, that nothing else tells of it, and which visits a state is asked about."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, PretrainingConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.build import build_model
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.training.pretraining import swapped
from ehrsequencing.training.pretraining.objective import Glance, World
from ehrsequencing.training.pretraining.swapped import Swapped, cosines, last_rows, swap
from ehrsequencing.training.pretraining.targets import Rates, TargetCodes, visit_rows
from helpers.strategies import Records, pack, records
from helpers.visits import Record, timelines_of

NUMBER = np.array([-1, -1, 0, 1, 2, 3, -1, -1, 4, 5, 2, 3])  # tokens 10 and 11 are joint tokens of 4's and 5's codes
CODES = TargetCodes(np.array([2, 3, 4, 5, 8, 9]), NUMBER, np.array([0, 0, 0, 1, 1, 1]))


def visits(batch: VisitBatch) -> list[list[int]]:
    return [batch.codes[start:end].tolist() for start, end in itertools.pairwise(batch.visit_offsets.tolist())]


def check(batch: VisitBatch, asked: torch.Tensor, found: Swapped) -> int:
    """Compare both batches visit by visit; returns how many visits hold other codes."""
    assert set(found.row.tolist()) <= set(asked.tolist())
    for row, (before, after) in enumerate(zip(visits(batch), visits(found.batch), strict=True)):
        had, has = ({int(NUMBER[token]) for token in tokens} - {-1} for tokens in (before, after))
        assert bool(found.is_swapped[row]) == (had != has)
        if row not in found.row or batch.is_query[row]:
            assert after == before
        kinds = [np.bincount(CODES.kind[list(codes)], minlength=2) for codes in (had, has)]
        assert (kinds[1] <= kinds[0]).all()  # a code that comes twice counts once
        assert ((kinds[1] > 0) == (kinds[0] > 0)).all()
        assert [t for t in after if NUMBER[t] < 0] == [t for t in before if NUMBER[t] < 0]
    return int(found.is_swapped.sum())


@settings(max_examples=40)
@given(records(), st.integers(0, 10**6))
def test_a_swapped_visit_has_other_codes_of_the_same_types(subjects: Records, seed: int) -> None:
    batch = pack(subjects)
    torch.manual_seed(seed)
    asked = torch.arange(batch.n_visits)[::2]
    found = swap(batch, asked, CODES, share=0.8, most=4)
    if found is not None:
        assert len(found.row) <= 4
        check(batch, asked, found)


def two_kinds(n: int) -> VisitBatch:
    """Visits of one subject with one code of each type; a code's number is a tenth of its token."""
    rng = np.random.default_rng(0)
    codes = np.stack([rng.choice([2, 3, 4], n), rng.choice([5, 8, 9], n)], 1).ravel()
    return VisitBatch(
        codes=torch.from_numpy(codes), visit_offsets=torch.arange(0, 2 * n + 1, 2),
        subject_offsets=torch.tensor([0, n]), age_years=torch.full((n,), 60.0), delta_days=torch.ones(n),
        values=torch.from_numpy(codes[:, None] / 10 + np.zeros((1, 2))).float(),
    )  # fmt: skip


def test_codes_are_as_frequent_as_before_and_stand_where_the_others_stood() -> None:
    batch = two_kinds(400)
    torch.manual_seed(1)
    found = swap(batch, torch.arange(400), CODES, share=0.5, most=400)
    assert found is not None
    assert 130 < check(batch, torch.arange(400), found) < 220  # a ninth of those drawn get their own codes
    assert found.batch.values is not None
    torch.testing.assert_close(found.batch.values[:, 0], found.batch.codes.float() / 10)
    assert torch.equal(found.batch.codes.sort().values, batch.codes.sort().values)
    assert set(found.batch.codes[::2].tolist()) == {2, 3, 4}


@pytest.mark.parametrize("broken", ["label", "kind", "unasked"])
def test_a_swap_that_is_wrong_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: labels of others, codes of another type, visits that nobody asked about."""
    batch, asked = two_kinds(60), torch.arange(60)
    if broken == "kind":
        monkeypatch.setattr(swapped, "_same_kind", lambda kind: torch.randperm(len(kind)))
    torch.manual_seed(0)
    found = swap(batch, asked, CODES, share=0.5, most=60)
    assert found is not None
    if broken == "label":
        found = Swapped(found.batch, found.row, found.is_swapped.flip(0))
    with pytest.raises(AssertionError):
        check(batch, asked[:20] if broken == "unasked" else asked, found)


def test_a_state_is_asked_about_its_own_visit_and_the_two_before() -> None:
    given: dict[str, Any] = {"age_years": torch.full((7,), math.nan), "delta_days": torch.zeros(7)}
    batch = VisitBatch(
        codes=torch.arange(2, 9), visit_offsets=torch.arange(8), subject_offsets=torch.tensor([0, 2, 7]),
        is_query=torch.tensor([False, False, False, True, False, False, False]), **given,
    )  # fmt: skip
    found = last_rows(Swapped(batch, torch.tensor([1, 2, 4, 6]), torch.zeros(7, dtype=torch.bool)))
    pairs = [list(zip(rows.tolist(), before.tolist(), strict=True)) for rows, before in found]
    assert pairs == [[(1, 1), (2, 2), (4, 4), (6, 6)], [(1, 0), (4, 2), (6, 5)], [(6, 4)]]


def test_scores_are_components_that_do_not_overlap() -> None:
    r = cosines(12, 4)
    torch.testing.assert_close(r @ r.T, torch.eye(4))
    torch.testing.assert_close(r.sum(1), torch.zeros(4))


def learned(matches: bool) -> tuple[float, float]:
    """How far apart matching and other visits are in the fixed direction, and how widely visits are spread there."""
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=12, dim=16, heads=2, layers=1, dropout=0.0, history_dropout=0.0)
    rates = Rates.of(ahead := timelines_of(pairs(40, seed=9, matches=matches)), CODES, seed=0)
    one = swapped.SwappedCodes(World(config, PretrainingConfig(), CODES, rates))
    model = build_model(config)
    optimizer = torch.optim.Adam([*model.parameters(), *one.parameters()], lr=1e-2)
    for step in range(60):
        optimizer.zero_grad()
        one(glance(timelines_of(pairs(40, seed=step, matches=matches)), model)).backward()
        optimizer.step()
    batch = glance(ahead, model).step.batch
    codes = batch.codes.view(-1, 2)
    with torch.no_grad():
        along = model.eval().states(batch)[0] @ one.vectors[0]
    is_match = NUMBER[codes[:, 0]] + 3 == NUMBER[codes[:, 1]]
    split = [along[torch.from_numpy(chosen)].mean() for chosen in (is_match, ~is_match)]
    return float(split[1] - split[0]), float(along.std())


def pairs(subjects: int, *, seed: int, matches: bool) -> list[Record]:
    """Records of three visits with a code of each type; three in four visits match if codes do."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(subjects):
        visits: Any = []
        for day in range(3):
            a = int(rng.integers(3))
            b = a if matches and rng.random() < 0.75 else int(rng.integers(3))
            visits.append((30.0 * day, (((2, 3, 4)[a], math.nan), ((5, 8, 9)[b], math.nan))))
        found.append(tuple(visits))
    return found


def glance(found: Timelines, model: SurvivalModel) -> Glance:
    loader = SubjectLoader.of_model(model.config, TaskRecords(found, visit_rows(found)))
    (step,) = loader.in_order(visit_budget=1000)
    return Glance(model, step, found, CODES, None)


def test_visits_whose_codes_meet_by_chance_are_set_apart_in_the_vector_itself() -> None:
    apart, spread = learned(matches=True)
    assert apart > 1.0
    assert apart > spread
    assert abs(learned(matches=False)[0]) < 0.3  # nothing to be learned


def test_no_code_to_swap() -> None:
    none = VisitBatch(
        codes=torch.tensor([6, 7]), visit_offsets=torch.tensor([0, 1, 2]), subject_offsets=torch.tensor([0, 2]),
        age_years=torch.full((2,), math.nan), delta_days=torch.zeros(2),
    )  # fmt: skip
    assert swap(none, torch.arange(2), CODES, share=1.0, most=9) is None
