"""The masked-code objective: what is taken, what is seen, what the loss is, and that the run keeps none of it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, TrainingConfig, load_study
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.checkpoints import TrainingState
from ehrsequencing.training.objectives import BesideHazards, MaskedCodes, take_codes
from helpers.no_wait import check_no_wait
from helpers.strategies import CODE_TYPES, VOCAB, Records, Subject, Visit, pack, records, sample_records
from helpers.training import TINY, NetworkTrainer as Trainer

Taken = tuple[VisitBatch, Tensor]

ENCODERS: list[dict[str, Any]] = [
    {},
    {"visit_encoder": "bottleneck"},
    {"visit_encoder": "mean"},
    {"visit_encoder": "transformer"},
    {"code_types": True, "n_code_types": CODE_TYPES, "code_position": True},
    {"visit_mlp": False},
]


def parts(dtype: torch.dtype = torch.float64, **chosen: Any) -> tuple[HierarchicalBEHRTForSurvival, MaskedCodes]:
    """A random model and objective; without dropout unless asked for."""
    given_ = {"dropout": 0.0, **chosen}
    config = ModelConfig.model_validate({"vocab_size": VOCAB, "dim": 8, "heads": 2, "layers": 1, **given_})
    torch.manual_seed(3)
    return HierarchicalBEHRTForSurvival(config).to(dtype), MaskedCodes(config).to(dtype)


def check_masked(batch: VisitBatch, masked: Taken) -> None:
    """Each masked visit is one of the batch's real ones, in order, without one of its codes in all its copies."""
    places = [n for n in range(batch.n_visits) if not batch.is_query[n] and len(set(codes_of(batch, n))) > 1]
    visits, targets = masked
    assert len(targets) == visits.n_visits == len(places)
    assert visits.values is not None
    assert batch.values is not None
    for m, n in enumerate(places):
        target, own = int(targets[m]), slice(int(batch.visit_offsets[n]), int(batch.visit_offsets[n + 1]))
        kept = batch.codes[own] != target
        rest = slice(int(visits.visit_offsets[m]), int(visits.visit_offsets[m + 1]))
        assert 0 < int(kept.sum()) < len(kept)
        assert torch.equal(visits.codes[rest], batch.codes[own][kept])
        torch.testing.assert_close(visits.values[rest], batch.values[own][kept], equal_nan=True)


def codes_of(batch: VisitBatch, visit: int) -> list[int]:
    return batch.codes[int(batch.visit_offsets[visit]) : int(batch.visit_offsets[visit + 1])].tolist()


@settings(max_examples=30)
@given(records(), st.integers(0, 10**6))
def test_a_masked_visit_lacks_one_code(subjects: Records, seed: int) -> None:
    batch = pack(subjects)
    torch.manual_seed(seed)
    masked = take_codes(batch)
    if masked is not None:
        check_masked(batch, masked)
    else:
        several = [n for n in range(batch.n_visits) if not batch.is_query[n] and len(set(codes_of(batch, n))) > 1]
        assert len(several) < 2


WRONG: dict[str, tuple[Visit, ...]] = {
    "copies stay": (Visit((3, 4), ((0.2, 0.2), (0.3, 0.3))), Visit((6,), (None,))),
    "number lost": (Visit((4,), (None,)), Visit((6,), (None,))),
    "query too": (Visit((4,), ((0.3, 0.3),)), Visit((6,), (None,)), Visit((7,), (None,))),
    "another visit's code": (Visit((4,), ((0.3, 0.3),)), Visit((4,), (None,))),
}


def test_a_broken_mask_is_seen() -> None:
    first, second = Visit((3, 3, 4), ((0.1, 0.1), (0.2, 0.2), (0.3, 0.3))), Visit((5, 6), (None, None))
    batch = pack([Subject((first, second, Visit((7, 8), (None, None), is_query=True)))])
    targets = torch.tensor([3, 5, 8])
    check_masked(batch, (pack([Subject((Visit((4,), ((0.3, 0.3),)), Visit((6,), (None,))))]), targets[:2]))
    for broken in WRONG.values():
        with pytest.raises(AssertionError):
            check_masked(batch, (pack([Subject(broken)]), targets[: len(broken)]))


def test_every_code_of_a_visit_is_taken_as_often() -> None:
    batch = pack([Subject((Visit((1, 2, 3, 4), (None,) * 4), Visit((5, 6), (None, None))))])
    torch.manual_seed(0)
    taken = [int(take_codes(batch)[1][0]) for _ in range(1000)]  # type: ignore[index]
    assert all(abs(taken.count(code) / 1000 - 0.25) < 0.06 for code in (1, 2, 3, 4))


def slow_loss(model: HierarchicalBEHRTForSurvival, objective: MaskedCodes, masked: Taken) -> Tensor:
    """From the formula, visit by visit: each masked visit goes through the encoder alone."""
    total = torch.zeros((), dtype=torch.float64)
    whole, targets = masked
    keys = {c: objective.W_k(model.code_embedding.table.weight[c]) for c in set(targets.tolist())}
    for m, target in enumerate(targets.tolist()):
        own = slice(int(whole.visit_offsets[m]), int(whole.visit_offsets[m + 1]))
        alone = VisitBatch(
            whole.codes[own],
            torch.tensor([0, own.stop - own.start]),
            torch.tensor([0, 1]),
            torch.zeros(1).double(),
            torch.zeros(1).double(),
            values=None if whole.values is None else whole.values[own],
            code_types=None if whole.code_types is None else whole.code_types[own],
        )
        u = model.visit_encoder(model.code_embedding(alone), alone)[0]
        z = objective.W_q(objective.norm(u))
        rivals = [c for c in targets.tolist() if c != target]
        scores = torch.stack([z @ keys[c] / math.sqrt(len(z)) for c in [target, *rivals]])
        total = total + torch.logsumexp(scores, 0) - scores[0]
    return total


@pytest.mark.parametrize("chosen", ENCODERS)
def test_the_loss_is_the_formula(chosen: dict[str, Any]) -> None:
    model, objective = parts(**chosen)
    batch = pack(sample_records(2))
    torch.manual_seed(8)
    found = objective(model, batch)
    torch.manual_seed(8)
    masked = take_codes(batch)
    assert masked is not None
    expected = slow_loss(model, objective, masked)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    grads = [torch.autograd.grad(loss, model.code_embedding.table.weight)[0] for loss in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-11)


def test_no_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, objective = parts(torch.float32, dropout=0.1)
    objective.to("meta")

    def step(model: Any, batch: VisitBatch) -> None:
        (model.loss(batch, divisor=64.0) + objective(model, batch)).backward()

    check_no_wait(model, pack(sample_records(2), dtype=torch.float32), monkeypatch, run=step)


def trained(prepared: Path, out: Path, *extra: str) -> Trainer:
    trainer = Trainer(
        Prepared(prepared), "simulated", out, study=load_study(None, [*TINY, "training.epochs=1", *extra])
    )
    trainer.fit()
    return trainer


def test_the_run_keeps_the_model_alone(sim_prepared: Path, tmp_path: Path) -> None:
    """The objective is trained, changes what the model becomes, and leaves no tensor in the run."""
    on = trained(sim_prepared, tmp_path / "on")
    off = trained(sim_prepared, tmp_path / "off", "training.masked_codes=0")
    assert on.beside is not None
    assert off.beside is None
    before = MaskedCodes(on.config).state_dict()
    after = on.beside.objective.state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in after.items())
    with_it, without = (load_file(tmp_path / name / "model.safetensors") for name in ("on", "off"))
    assert with_it.keys() == without.keys()
    assert any(not torch.equal(with_it[name], without[name]) for name in with_it)


def hazards_gradients(trainer: Trainer) -> list[Tensor | None]:
    """What the hazards' optimiser would be given in the first step."""
    steps = trainer.loader.shuffled(0, seed=0, visit_budget=trainer.training.visit_budget, most_subjects=8)
    trainer.training.set_gradients(TrainingState(), trainer.loader.collate(steps[0]))
    return [None if p.grad is None else p.grad.clone() for p in trainer.model.parameters()]


def same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    return all(x is y is None or (x is not None and y is not None and torch.equal(x, y)) for x, y in zip(a, b))  # noqa: B905


def test_hazards_move_at_their_own_pace(sim_prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However loud the guessing of codes is, the hazards' optimiser is given what it would be given without it."""

    def trainer(pace: float) -> Trainer:
        study = load_study(None, [*TINY, "model.dropout=0.1", f"training.masked_codes={pace}"])
        return Trainer(Prepared(sim_prepared), "simulated", tmp_path / str(pace), study=study)

    alone = hazards_gradients(trainer(0))
    assert same(alone, hazards_gradients(trainer(50)))

    def add(beside: BesideHazards, loss: Tensor) -> None:  # the two losses as one sum
        loss.backward()  # type: ignore[no-untyped-call]

    monkeypatch.setattr(BesideHazards, "backward", add)
    assert not same(alone, hazards_gradients(trainer(50)))


def test_its_pace_is_a_share_of_the_hazards() -> None:
    model, _ = parts(torch.float32)
    beside = BesideHazards(model, TrainingConfig(masked_codes=0.25))
    beside.backward(beside.loss(pack(sample_records(2), dtype=torch.float32)))
    assert any(g is not None and bool(g.any()) for g in beside.gradients)
    before = [p.detach().clone() for p in model.visit_encoder.parameters()]
    beside.step(1e-2)
    assert {group["lr"] for group in beside.optimizer.param_groups} == {0.25e-2}
    moved = max(
        float((a - b.detach()).abs().max()) for a, b in zip(before, model.visit_encoder.parameters(), strict=True)
    )
    assert moved == pytest.approx(0.25e-2, rel=0.01)  # Adam's first step
    assert all(gradient is None for gradient in beside.gradients)
    assert all(p.grad is None for p in model.head.parameters())
