"""A long record cut into parts is the uncut record: loss, every gradient, every answer; and batches made ahead."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ehrsequencing.batches.loader import MAX_VISIT_CODES, RecordPart, Step, SubjectLoader
from ehrsequencing.batches.reach import Reach
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.records.timelines import TaskRecords
from helpers.long_records import random_records
from helpers.models import make_model
from helpers.rows import nll_of_rows, risk_of_rows
from helpers.settings import examples
from helpers.strategies import CODE_TYPES, VOCAB

SMALL: dict[str, object] = {"max_visits": 3, "max_tokens": 7, "layers": 2}
KINDS: dict[str, dict[str, object]] = {
    "attention": {},
    "mini-transformer, places, types": {"visit_encoder": "transformer", "code_position": True, "code_types": True},
    "sinusoidal": {"position": "sinusoidal", "wide_head": True},
    "seeds": {"visit_mlp": False, "delta_bins": "linear", "age_polynomial": True},
    "one visit": {"max_visits": 1},
    "visit head": {"head": "visit"},
    "flat": {"architecture": "flat"},
    "flat sinusoidal": {"architecture": "flat", "position": "sinusoidal", "wide_head": True},
    "flat visit head": {"architecture": "flat", "head": "visit"},
    "flat, one token": {"architecture": "flat", "max_tokens": 1},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def model_of(kind: str, seed: int = 0) -> SurvivalModel:
    chosen = {**SMALL, **KINDS[kind]}
    chosen.pop("max_visits" if chosen.get("architecture") == "flat" else "max_tokens")
    return make_model(seed=seed, **chosen)


def loader_of(model: SurvivalModel, arrays: TaskRecords) -> SubjectLoader:
    causes = 1 if model.config.head == "visit" else 2
    capped = np.minimum(arrays.rows.cause, causes).astype(np.int8)
    arrays = replace(arrays, rows=replace(arrays.rows, cause=capped))
    types = (np.arange(VOCAB) * 3 % CODE_TYPES) if model.config.code_types else None
    return SubjectLoader.of_model(model.config, arrays, code_types=types)


def double(batch: VisitBatch) -> VisitBatch:
    """Sums over ages and values are then exact enough to compare."""
    return batch._with_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def gradient(model: SurvivalModel, steps: list[Step]) -> tuple[float, list[Tensor], dict[int, float]]:
    """The summed loss of some batches, its gradient, and the NLL of each row of the task."""
    model.zero_grad(set_to_none=True)
    total, nll = 0.0, {}
    for step in steps:
        loss = model.loss(double(step.batch), divisor=10.0)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        terms = model.nll(double(step.batch)).detach()[step.positions].tolist()
        assert not set(nll) & set(step.rows.tolist()), "a prediction time in two batches"
        nll |= dict(zip(step.rows.tolist(), terms, strict=True))
    zero = torch.zeros(())
    return total, [zero if p.grad is None else p.grad.clone() for p in model.parameters()], nll


def cut(loader: SubjectLoader, size: int) -> list[Step]:
    """Every subject in parts of a size."""
    parts = [part for subject in loader.subjects.tolist() for part in loader.parts(subject, size=size)]
    return [loader.collate_part(part) for part in parts]


def largest_difference(model: SurvivalModel, whole: list[Step], parts: list[Step]) -> float:
    """Of loss, gradient and NLL per prediction time, relative to the largest number of each kind."""
    one, other = gradient(model, whole), gradient(model, parts)
    assert one[2].keys() == other[2].keys()
    scale = max(float(g.abs().max()) for g in one[1]) or 1.0  # a record without a prediction time has no gradient
    return max(
        abs(one[0] - other[0]) / max(1.0, abs(one[0])),
        *(float((a - b).abs().max()) / scale for a, b in zip(one[1], other[1], strict=True)),
        *(abs(one[2][row] - other[2][row]) / max(1.0, abs(one[2][row])) for row in one[2]),
    )


# ---- parts are the whole ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size"), [*((kind, 12) for kind in KINDS), ("attention", 1), ("flat", 1)])
def test_parts_have_the_gradient_of_the_uncut_record(kind: str, size: int) -> None:
    model = model_of(kind)
    loader = loader_of(model, random_records((12, 3, 0, 1, 18), seed=1))
    parts = cut(loader, size)
    assert len(parts) > len(loader)
    assert largest_difference(model, [loader.collate(loader.subjects)], parts) < 1e-10


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(0, 14), min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.sampled_from(list(KINDS)),
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([0.1, 0.7, 1.0]),
)
def test_parts_of_any_record(
    lengths: list[int], seed: int, kind: str, size: int, layers: int, window: int, density: float
) -> None:
    is_flat = KINDS[kind].get("architecture") == "flat"
    model = make_model(**{**KINDS[kind], "max_tokens" if is_flat else "max_visits": window, "layers": layers})
    loader = loader_of(model, random_records(tuple(lengths), seed=seed, density=density))
    if not len(loader):
        return
    whole = gradient(model, [loader.collate(loader.subjects)])
    if whole[2]:
        assert largest_difference(model, [loader.collate(loader.subjects)], cut(loader, size)) < 1e-10


# Each breaks one thing about parts, for one kind of model that must notice.


def one_visit_too_few(self: Reach, start: Any, visit: int) -> int:
    return min(visit, _first_visit(self, start, visit) + 1)


def one_layer_too_few(self: Reach, start: Any, visit: int) -> int:
    return _first_visit(replace(self, layers=self.layers - 1), start, visit)


def begins_a_record(self: SubjectLoader, part: RecordPart) -> Step:
    step = _collate_part(self, part)
    return replace(step, batch=replace(step.batch, visits_skipped=None))


def forgets_tokens(self: SubjectLoader, part: RecordPart) -> Step:
    step = _collate_part(self, part)
    return replace(step, batch=replace(step.batch, tokens_skipped=None))


def ends_a_record(self: SubjectLoader, part: RecordPart) -> Step:
    return _collate_part(self, replace(part, next_row=None))


def bears_loss_before(self: SubjectLoader, part: RecordPart) -> Step:
    step = _collate_part(self, part)
    assert step.batch.at_risk is not None
    return replace(step, batch=replace(step.batch, at_risk=step.batch.at_risk | ~step.batch.is_query))


_first_visit, _collate_part = Reach.first_visit, SubjectLoader.collate_part
MUTANTS: list[tuple[type, str, Callable[..., Any], str]] = [
    (Reach, "first_visit", one_visit_too_few, "attention"),
    (Reach, "first_visit", one_layer_too_few, "attention"),
    (Reach, "first_visit", one_visit_too_few, "flat"),
    (Reach, "first_visit", one_layer_too_few, "flat"),
    (SubjectLoader, "collate_part", begins_a_record, "attention"),
    (SubjectLoader, "collate_part", begins_a_record, "sinusoidal"),
    (SubjectLoader, "collate_part", begins_a_record, "flat"),
    (SubjectLoader, "collate_part", forgets_tokens, "flat"),
    (SubjectLoader, "collate_part", forgets_tokens, "flat sinusoidal"),
    (SubjectLoader, "collate_part", ends_a_record, "visit head"),
    (SubjectLoader, "collate_part", bears_loss_before, "attention"),
]


@pytest.mark.parametrize(("owner", "name", "broken", "kind"), MUTANTS)
def test_a_broken_cut_is_caught(
    owner: type, name: str, broken: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(kind)
    loader = loader_of(model, random_records((14, 18), seed=1))
    whole = [loader.collate(loader.subjects)]
    monkeypatch.setattr(owner, name, broken)
    assert largest_difference(model, whole, cut(loader, 12)) > 1e-6


@every_kind
def test_predictions_of_a_cut_record(kind: str) -> None:
    model = model_of(kind)
    loader = loader_of(model, random_records((40, 5, 60), seed=4))
    uncut = loader.collate(loader.subjects)
    steps = list(loader.in_order(visit_budget=1))
    assert len(steps) > len(loader)  # records of 40 and 60 visits were cut
    rows = np.concatenate([step.rows for step in steps])
    order = np.argsort(rows)
    np.testing.assert_array_equal(rows[order], uncut.rows)  # each once
    with torch.no_grad():
        expected = model(double(uncut.batch))[uncut.positions]
        answers = torch.cat([model(double(step.batch))[step.positions] for step in steps])
    torch.testing.assert_close(answers[order], expected, rtol=1e-10, atol=1e-10)


def test_risk_and_likelihood_of_rows_do_not_depend_on_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    records = random_records((50, 8, 70), seed=2)
    model = model_of("attention").float()
    monkeypatch.setattr("ehrsequencing.predictors.network.VISIT_BUDGET", 1)

    def answers() -> tuple[Any, Any]:
        return risk_of_rows(model, records, horizons_days=[30.0, 365.0]), nll_of_rows(model, records)

    risk, nll = answers()
    monkeypatch.setattr(Reach, "for_model", lambda config: None)
    np.testing.assert_allclose(risk, answers()[0], atol=1e-5)
    np.testing.assert_allclose(nll, answers()[1], rtol=1e-4, atol=1e-4)
    assert np.isfinite(risk).all()


# ---- how large parts are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attention", "one visit", "visit head", "flat"])
def test_parts_are_bounded_and_look_back_on_half_as_much_at_most(kind: str) -> None:
    window = {"max_tokens": 40} if kind == "flat" else {"max_visits": 12}
    model = make_model(**{**window, "layers": 2, **KINDS[kind]})
    loader = loader_of(model, random_records((400,), seed=3, density=1.0, inside=0.0))
    assert loader.reach is not None
    most = loader.reach.most
    size = max(3 * most, 8)
    own = context = 0
    for part in loader.parts(0, size=size):
        step = loader.collate_part(part)
        in_tokens = loader.reach.in_tokens
        lengths = step.batch.codes_per_visit
        tokens = lengths + ((lengths == 0) | step.batch.is_query) if in_tokens else torch.ones(step.batch.n_visits)
        before = torch.arange(step.batch.n_visits) < int(step.positions[0])
        context += int(tokens[before].sum())
        own += int(tokens[~before].sum())
        assert int(tokens.sum()) <= size + 10  # one visit more at most, and its queries
    assert own >= 400
    assert context <= 0.55 * own


def test_short_records_stay_together_and_uncut() -> None:
    loader = SubjectLoader(random_records((5, 90, 7), seed=0, inside=0.0), reach=Reach(layers=2, window=4))
    together, *parts = loader.steps(loader.subjects, visit_budget=20)
    assert [step.is_last for step in (together, *parts)] == [False] * len(parts) + [True]
    assert together.batch.n_subjects == 2
    assert together.batch.visits_skipped is None
    whole, *none = loader.steps(loader.subjects, visit_budget=10_000)
    assert not none
    assert whole.is_last
    expected = loader.collate(loader.subjects).batch
    assert torch.equal(whole.batch.codes, expected.codes)
    assert whole.batch.visits_skipped is None


def test_what_cannot_be_cut_is_not() -> None:
    assert Reach.for_model(ModelConfig(attention="bidirectional")) is None
    assert Reach.for_model(ModelConfig(layers=3, max_visits=10)) == Reach(3, 10)
    assert Reach.for_model(ModelConfig(architecture="flat", layers=3, max_tokens=9)) == Reach(3, 9, in_tokens=True)
    assert Reach(3, 10).most == 27
    loader = SubjectLoader(random_records((300,), seed=0))
    assert len(list(loader.in_order(visit_budget=1))) == 1


def one_visit_of(n_codes: int) -> TaskRecords:
    records = random_records((1, 3), seed=0, density=1.0)
    timelines, rows = records.timelines, records.rows
    last = int(timelines.visit_offsets[-1] - timelines.visit_offsets[1])
    whole = replace(
        timelines,
        visit_offsets=np.r_[0, timelines.visit_offsets[1:] - timelines.visit_offsets[1] + n_codes],
        codes=np.resize(np.arange(1, VOCAB, dtype=np.int32), n_codes + last),
        values=np.full((n_codes + last, 2), np.nan, np.float32),
    )
    return TaskRecords(whole, rows)


@pytest.mark.parametrize("chosen", [{"architecture": "flat"}, {"visit_encoder": "transformer"}])
def test_attention_among_too_many_codes_of_a_visit_is_refused(chosen: dict[str, object]) -> None:
    config = ModelConfig.model_validate(chosen)
    SubjectLoader.of_model(config, one_visit_of(MAX_VISIT_CODES))
    with pytest.raises(EhrseqError, match="16,384 codes"):
        SubjectLoader.of_model(config, one_visit_of(MAX_VISIT_CODES + 1))
    records = one_visit_of(MAX_VISIT_CODES + 1)
    rows = records.rows
    unseen = replace(rows, visits_before=np.where(rows.subject == 0, 0, rows.visits_before).astype(np.int32))
    SubjectLoader.of_model(config, replace(records, rows=unseen))  # nobody looks at that visit
    SubjectLoader.of_model(ModelConfig(), one_visit_of(MAX_VISIT_CODES + 1))
