"""The last step of training: boldness fixed on the tuning split, as far as it is known, and folded into the head."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ehrsequencing.config import StudyConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.hazards import exposure
from ehrsequencing.models.ensemble import load_model
from ehrsequencing.models.hazards import horizon_nll
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.recalibration import Labels, Recalibration, fit_recalibration
from ehrsequencing.records.prepared import Prepared
from helpers.known_hazards import EDGES, log_hazards, world
from helpers.models import make_model
from helpers.rows import nll_of_rows
from helpers.strategies import pack, sample_records
from helpers.training import NetworkTrainer as Trainer

Floats = NDArray[np.float64]
World = tuple[Floats, Floats, NDArray[np.int64], Floats]
WIDE = 100.0  # a prior that asks for nothing
ARCHITECTURES = [
    {},
    {"architecture": "flat"},
    {"wide_head": True},
    {"architecture": "flat", "wide_head": True},
    {"wide_head": True, "code_effects": True},
    {"causes": 1, "visit_encoder": "mean"},
]


def fit(given: World, *, prior_sd: float, subject: NDArray[np.int64] | None = None) -> Recalibration:
    eta, duration, cause, entry = given
    labels = Labels(duration, cause, entry, np.arange(len(cause)) if subject is None else subject)
    return fit_recalibration(eta, EDGES, labels, prior_sd=prior_sd)


def fixed(found: Recalibration, eta: Floats) -> Floats:
    return np.asarray(found.intercept + found.slope * eta)


def test_a_known_miscalibration_is_undone_bin_by_bin() -> None:
    eta, *labels = world(30_000, seed=1)
    slope = np.array([[0.6, 0.8, 1.0], [1.5, 1.2, 0.9]])  # straight lines over the grid
    days, wrong = exposure(EDGES, labels[2], labels[0])[:, None], eta
    for _ in range(50):  # too low by .3, and stretched about its own weighted mean in each bin
        weight = days * np.exp(wrong)
        mean = (weight * wrong).sum(0) / weight.sum(0)
        wrong = (eta - 0.3 + (slope - 1) * mean) / slope
    found = fit((wrong, *labels), prior_sd=WIDE)
    np.testing.assert_allclose(found.slope, slope, rtol=0.08)
    assert np.abs((fixed(found, wrong) - eta).mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(found.level, 0.3, atol=0.03)
    assert found.trend[0] > 0.1 > -0.1 > found.trend[1]
    np.testing.assert_array_equal(found.subjects, np.bincount(labels[1])[1:])
    right = fit((eta, *labels), prior_sd=WIDE)
    np.testing.assert_allclose(right.slope, 1.0, atol=0.06)


def nll(log_hazard: Tensor, labels: list[NDArray[np.generic]]) -> Tensor:
    duration, cause, entry = (torch.from_numpy(np.asarray(values)) for values in labels)
    return horizon_nll(log_hazard, EDGES, duration_days=duration, cause=cause, entry_days=entry)


def reference(given: World, subject: NDArray[np.int64], *, prior_sd: float) -> Floats:
    """θ* of both causes (2, 3) from the model's own likelihood, by automatic differentiation."""
    eta, *labels = given
    x, place = torch.from_numpy(eta), torch.linspace(-1, 1, eta.shape[2], dtype=torch.float64)
    low, high = torch.tensor([0.0, *EDGES]).double(), torch.tensor([*EDGES, float("inf")]).double()
    duration, entry = torch.from_numpy(labels[0]), torch.from_numpy(labels[2])
    days = (duration[:, None].minimum(high) - entry[:, None].maximum(low)).clamp(min=0)
    weight = days[:, None] * x.exp()
    centre = (weight * x).sum(0) / weight.sum(0)
    _, owner = np.unique(subject, return_inverse=True)

    def by_subject(theta: Tensor) -> Tensor:
        level, stretch, trend = theta.view(2, 3).T[:, :, None]
        terms = nll(x + level + (stretch + trend * place) * (x - centre), labels)
        return torch.zeros(int(owner.max()) + 1, dtype=torch.float64).index_add(0, torch.from_numpy(owner), terms)

    theta = torch.zeros(6, dtype=torch.float64)
    for _ in range(30):
        gradient = torch.autograd.functional.jacobian(lambda t: by_subject(t).sum(), theta)
        hessian = torch.autograd.functional.hessian(lambda t: by_subject(t).sum(), theta)
        theta = theta - torch.linalg.solve(hessian, gradient)
    score, bread = torch.autograd.functional.jacobian(by_subject, theta), torch.linalg.inv(hessian)
    out = []
    for e in range(2):  # causes share no parameter, and each is shrunk by its own covariance
        own = slice(3 * e, 3 * e + 3)
        inverse = bread[own, own]
        covariance = inverse @ score[:, own].T @ score[:, own] @ inverse
        eye = torch.eye(3, dtype=torch.float64) * prior_sd**2
        out.append(eye @ torch.linalg.solve(eye + covariance, theta[own]))
    return torch.stack(out).numpy()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("prior_sd", [WIDE, 0.05])
def test_it_is_the_posterior_mean_by_the_models_own_likelihood(seed: int, prior_sd: float) -> None:
    eta, *labels = world(400, seed=seed)
    given = (0.7 * eta - 2.0, *labels)
    subject = np.random.default_rng(seed).integers(0, 150, 400)
    found = fit(given, prior_sd=prior_sd, subject=subject)
    theta = np.stack([found.level, found.stretch, found.trend], axis=1)
    np.testing.assert_allclose(theta, reference(given, subject, prior_sd=prior_sd), rtol=1e-5, atol=1e-8)


def test_copies_of_a_subjects_prediction_times_say_nothing_new() -> None:
    eta, *labels = world(500, seed=2)
    given = (0.7 * eta - 2.0, *labels)
    thrice: World = tuple(np.repeat(part, 3, axis=0) for part in given)  # type: ignore[assignment]
    once = fit(given, prior_sd=0.05)
    same = fit(thrice, prior_sd=0.05, subject=np.repeat(np.arange(500), 3))
    np.testing.assert_allclose(same.slope, once.slope, rtol=1e-9)
    np.testing.assert_allclose(same.intercept, once.intercept, rtol=1e-9)
    broken = fit(thrice, prior_sd=0.05)  # as if they were of three subjects
    assert np.abs(broken.slope - 1).sum() > 1.2 * np.abs(once.slope - 1).sum()


def test_equal_hazards_and_a_bin_that_nobody_reaches() -> None:
    eta, duration, cause, entry = world(600, seed=5)
    flat = fit((np.full_like(eta, -5.0), duration, cause, entry), prior_sd=WIDE)
    np.testing.assert_allclose(flat.slope, 1.0, atol=1e-9)
    days = (duration - entry).sum()
    np.testing.assert_allclose(np.exp(flat.level - 5.0), np.bincount(cause)[1:] / days, rtol=1e-4)
    early = np.minimum(duration, 390.0)
    found = fit((0.5 * eta, early, np.where(duration > 390.0, 0, cause), entry), prior_sd=0.05)
    assert np.isfinite(found.intercept).all()
    shift = fixed(found, 0.5 * eta)[:, :, 2].mean(0) - 0.5 * eta[:, :, 2].mean(0)
    np.testing.assert_allclose(shift, found.level, atol=1e-9)  # the empty bin is stretched about its own mean


@pytest.mark.parametrize("settings", ARCHITECTURES, ids=str)
def test_folded_into_the_head_it_is_the_recalibrated_model(settings: dict[str, object]) -> None:
    model, batch = make_model(**settings), pack(sample_records())
    before, shape = model(batch), (model.config.causes, model.config.bins)
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(shape, generator=generator, dtype=torch.float64)
    b = 1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    names = set(model.state_dict())
    model.recalibrate(a, b)
    torch.testing.assert_close(model(batch), a + b * before)
    assert set(model.state_dict()) == names
    model.head.recalibrate(a, b)  # broken: the head alone, or the bias left as it was
    is_wrong = not torch.allclose(model(batch), a + b * (a + b * before))
    assert is_wrong == (model.wide_head is not None)


def test_what_cannot_be_folded_is_refused() -> None:
    model = make_model()
    shape = (model.config.causes, model.config.bins)
    with pytest.raises(EhrseqError, match="expected finite numbers of shape"):
        model.recalibrate(torch.zeros(shape).T, torch.ones(shape))
    with pytest.raises(EhrseqError, match="expected finite numbers of shape"):
        model.recalibrate(torch.zeros(shape), torch.full(shape, torch.nan))
    with pytest.raises(EhrseqError, match="visit head"):
        make_model(head="visit").recalibrate(torch.zeros(1, 1), torch.ones(1, 1))


def trained(prepared: Path, out: Path, study: StudyConfig, **changes: object) -> Path:
    settings = study.training.model_copy(update=changes)
    Trainer(Prepared(prepared), "simulated", out, study=study.model_copy(update={"training": settings})).fit()
    return out


def test_a_trained_run_is_fixed_and_says_how(sim_prepared: Path, tiny_study: StudyConfig, tmp_path: Path) -> None:
    plain = trained(sim_prepared, tmp_path / "plain", tiny_study, recalibration=0.0)
    run = trained(sim_prepared, tmp_path / "run", tiny_study, recalibration=0.2)
    assert (plain / "history.jsonl").read_text() != ""
    told = [json.loads((folder / "manifest.json").read_text()) for folder in (plain, run)]
    assert "recalibration" not in told[0]
    assert told[0]["best_epoch"] == told[1]["best_epoch"]
    store = Prepared(sim_prepared)
    tuning = store.records("simulated", "tuning")
    types = Run(run).code_types
    before, after = (log_hazards(load_model(folder), tuning, code_types=types) for folder in (plain, run))
    config = load_model(run).config
    labels = Labels.of(tuning.rows, np.arange(len(tuning)))
    expected = fit_recalibration(before, config.edges_days, labels, prior_sd=0.2)
    np.testing.assert_allclose(after, fixed(expected, before), atol=2e-5)
    assert np.abs(expected.slope - 1).max() > 1e-3  # else nothing was tested
    causes = store.task("simulated").causes
    stored, wanted = told[1]["recalibration"], expected.as_json(causes)
    for name in causes:
        assert stored[name].keys() == wanted[name].keys()
        for key, number in wanted[name].items():
            assert stored[name][key] == pytest.approx(number, abs=1e-5)
    intercept = np.array([stored[name]["intercept"] for name in causes])
    np.testing.assert_allclose((after - intercept) / expected.slope, before, atol=5e-5)  # the manifest undoes the fold
    nlls = [float(nll_of_rows(load_model(folder), tuning).mean()) for folder in (plain, run)]
    assert nlls[1] < nlls[0]
    assert told[1]["tuning_nll"] == pytest.approx(nlls[1], abs=1e-5)
