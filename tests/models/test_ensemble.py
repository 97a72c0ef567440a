"""Ensembles: the mean hazard, members that are the runs of their seeds, and everything else as with one model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ehrsequencing.core.outputs import read_manifest
from ehrsequencing.models.ensemble import Ensemble, mean_hazard_logits
from ehrsequencing.prediction.run import Run
from helpers.models import make_model
from helpers.strategies import pack, sample_records
from helpers.training import losses, train

PAIR = "training.members=2"


def make_ensemble(**settings: object) -> Ensemble:
    """Three models of random weights."""
    single = make_model(**settings)
    ensemble = Ensemble(single.config.model_copy(update={"members": 3}))
    for number, member in enumerate(ensemble.members):
        member.load_state_dict(make_model(seed=number, **settings).state_dict())
    return ensemble.eval()


def test_the_hazard_is_the_mean_of_the_members_hazards() -> None:
    logits = torch.randn(5, 7, 2, 4, dtype=torch.float64)
    assert torch.allclose(mean_hazard_logits(logits).exp(), logits.exp().mean(0), rtol=1e-12)
    found = mean_hazard_logits(logits, is_probability=True).sigmoid()
    assert torch.allclose(found, logits.sigmoid().mean(0), rtol=1e-12)


@pytest.mark.parametrize("is_probability", [False, True])
@pytest.mark.parametrize("level", [-100.0, -60.0, 60.0, 100.0])
def test_extreme_logits_stay_finite_and_have_gradients(level: float, is_probability: bool) -> None:
    logits = (level + torch.tensor([[0.0], [1.0]])).requires_grad_()
    mean = mean_hazard_logits(logits, is_probability=is_probability)
    mean.sum().backward()
    assert logits.detach().amin() <= mean.detach() <= logits.detach().amax()
    assert logits.grad is not None
    assert (logits.grad > 0).all()
    assert logits.grad.sum().item() == pytest.approx(1.0, abs=1e-3 if is_probability else 1e-5)


def test_survival_and_incidence_sum_to_one_and_the_likelihood_is_that_of_the_mean_hazard() -> None:
    ensemble, batch = make_ensemble(causes=2, edges_days=(30.0, 365.0)), pack(sample_records())
    risk = ensemble.risk(batch, horizons_days=[20.0, 100.0, 400.0])
    hazards = torch.stack([member(batch).double().exp() for member in ensemble.members]).mean(0)  # (N, E, K)
    spans = torch.tensor([[20.0, 0, 0], [30, 70, 0], [30, 335, 35]], dtype=torch.float64)
    survival = torch.exp(-torch.einsum("nek,hk->nh", hazards, spans))
    torch.testing.assert_close(risk.sum(1) + survival, torch.ones_like(survival), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def pair(sim_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pair") / "run"
    train(sim_prepared, out, PAIR)
    return out


def test_members_are_the_runs_of_their_seeds(sim_prepared: Path, pair: Path, tmp_path: Path) -> None:
    model = Run(pair).model
    assert isinstance(model, Ensemble)
    rows = [json.loads(line) for line in (pair / "history.jsonl").read_text().splitlines()]
    for number, member in enumerate(model.members):
        train(sim_prepared, tmp_path / str(number), f"training.seed={number}")
        alone = Run(tmp_path / str(number)).model
        assert all(torch.equal(a, b) for a, b in zip(member.parameters(), alone.parameters(), strict=True))
        own = [(row["train_nll"], row["tuning_nll"]) for row in rows if row["member"] == number + 1]
        assert own == losses(tmp_path / str(number))
    manifest = read_manifest(pair, what="a run")
    assert [member["seed"] for member in manifest["members"]] == [0, 1]
    # The mean hazard is at least as likely as the members are on average: −log and Jensen.
    assert manifest["tuning_nll"] <= np.mean([member["tuning_nll"] for member in manifest["members"]]) + 1e-6
    assert sorted(p.name for p in pair.iterdir() if p.is_dir()) == []
