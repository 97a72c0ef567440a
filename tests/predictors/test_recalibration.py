"""Recalibration: a known miscalibration is undone; as the last step of training it is folded into the head."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics.hazards import exposure
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import load_model
from ehrsequencing.models.hazards import horizon_nll
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors import network
from ehrsequencing.predictors.recalibration import (
    ALPHA,
    FEWEST,
    FEWEST_EVENTS,
    METHODS,
    CauseUpdate,
    Labels,
    Recalibration,
    fit_recalibration,
    fit_update,
    largest_allowed,
)
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from helpers.models import make_model
from helpers.rows import nll_of_rows
from helpers.strategies import pack, sample_records
from helpers.training import NetworkTrainer as Trainer

EDGES = (100.0, 400.0)


def world(n: int, *, seed: int) -> tuple[Floats, Floats, NDArray[np.int64], Floats]:
    """True log-hazards (n, 2, 3) of two causes, and durations, causes and entries drawn from them."""
    rng = np.random.default_rng(seed)
    eta = np.log([2e-3, 1e-3])[None, :, None] + rng.normal(0, 0.8, (n, 2, 1)) + rng.normal(0, 0.3, (n, 2, 3))
    total, entry = np.exp(eta).sum(1), rng.choice([0.0, 30.0], n)
    left, now, duration = rng.exponential(size=n), entry.copy(), np.full(n, np.inf)
    for k, stop in enumerate((*EDGES, np.inf)):  # spend the unit exponential bin by bin
        days = np.where(np.isfinite(stop - now), np.maximum(stop - now, 0), np.inf)
        ends = np.isinf(duration) & (left < total[:, k] * days)
        duration[ends] = now[ends] + left[ends] / total[ends, k]
        left, now = left - total[:, k] * np.minimum(days, 1e12), np.maximum(now, stop)
    censoring = entry + rng.uniform(50, 1500, n)
    bins = np.searchsorted(EDGES, duration, side="right")
    share = np.exp(eta[np.arange(n), 0, bins]) / total[np.arange(n), bins]
    cause = np.where(duration > censoring, 0, np.where(rng.random(n) < share, 1, 2))
    return eta, np.minimum(duration, censoring), cause, entry


def log_hazards(model: SurvivalModel, records: TaskRecords, *, code_types: NDArray[np.int64] | None = None) -> Floats:
    """(R, causes, bins) at every prediction time, in the order of the rows."""
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    row, eta = network.log_hazards(model, loader, visit_budget=2048)
    out = np.empty((len(records), *eta.shape[1:]))
    out[row] = eta
    return out


# ---- the tests ------------------------------------------------------------------------------------------------------

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


def fit(given: World, *, prior_sd: float | None = None, subject: NDArray[np.int64] | None = None) -> Recalibration:
    """Each row is of another person, unless `subject` says otherwise."""
    eta, duration, cause, entry = given
    labels = Labels(duration, cause, entry, np.arange(len(cause)) if subject is None else subject)
    return fit_recalibration(eta, EDGES, labels, prior_sd=prior_sd)


def fixed(found: Recalibration, eta: Floats) -> Floats:
    return np.asarray(found.intercept + found.slope * eta)


def nll(log_hazard: Tensor, labels: list[NDArray[np.generic]]) -> Tensor:
    duration, cause, entry = (torch.from_numpy(np.asarray(values)) for values in labels)
    return horizon_nll(log_hazard, EDGES, duration_days=duration, cause=cause, entry_days=entry)


def loss(given: World) -> float:
    eta, *labels = given
    return float(nll(torch.from_numpy(eta), labels).sum())


def test_a_known_miscalibration_is_undone() -> None:
    eta, *labels = world(20_000, seed=1)
    a, b = np.array([-1.5, 0.7])[:, None], np.array([0.6, 1.4])[:, None]
    wrong = (eta - a) / b  # so that a + b · wrong is the truth
    found = fit((wrong, *labels))
    np.testing.assert_allclose(found.slope, np.repeat(b, 3, axis=1), rtol=0.06)
    undone = fixed(found, wrong)
    assert np.abs((undone - eta).mean(axis=(0, 2))).max() < 0.03
    assert loss((undone, *labels)) <= loss((eta, *labels)) < loss((wrong, *labels))
    np.testing.assert_array_equal(found.subjects, np.bincount(labels[1])[1:])
    right = fit((eta, *labels))
    np.testing.assert_allclose(right.slope, 1.0, atol=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_maximum_of_the_models_own_likelihood(seed: int) -> None:
    """An independent optimiser on `horizon_nll` itself, all causes at once, entries included."""
    eta, *labels = world(150, seed=seed)
    eta = 0.5 * eta - 3.0
    found = fit((eta, *labels))

    def loss_at(x: Floats) -> float:
        return loss((x[:2, None] + x[2:, None] * eta, *labels))

    own = np.r_[found.intercept[:, 0], found.slope[:, 0]]
    assert np.ptp(found.intercept, axis=1).max() == np.ptp(found.slope, axis=1).max() == 0  # alike in all bins
    assert np.abs(found.trend).max() == 0
    options = {"maxiter": 4000, "xatol": 1e-6}
    other = minimize(loss_at, np.array([0.0, 0.0, 1.0, 1.0]), method="Nelder-Mead", options=options)
    assert loss_at(own) <= other.fun + 1e-4
    for k in range(4):  # and a mutant a little beside it is worse
        for step in (-0.05, 0.05):
            assert loss_at(own + step * np.eye(4)[k]) > loss_at(own)


def test_few_events_and_equal_hazards_leave_the_slope_alone() -> None:
    eta, duration, cause, entry = world(300, seed=3)
    rare = np.where((cause == 2) & (np.cumsum(cause == 2) >= FEWEST), 0, cause)
    found = fit((eta, duration, rare, entry))
    assert set(found.intercept[1]) == {0.0}
    assert set(found.slope[1]) == {1.0}
    assert found.subjects[1] == FEWEST - 1
    assert found.slope[0, 0] != 1.0
    flat = np.full_like(eta, -5.0)
    found = fit((flat, duration, cause, entry))
    days = (duration - entry).sum()
    for e in range(2):
        assert set(found.slope[e]) == {1.0}
        assert np.exp(found.intercept[e, 0] - 5.0) == pytest.approx((cause == e + 1).sum() / days)


def test_a_recalibrated_predictor_is_a_predictor(sim_run: Path, sim_prepared: Path) -> None:
    run, records = Run(sim_run), Prepared(sim_prepared).records("simulated", "held_out")
    plain, a, b = run.predictor.all_hazards(records), np.array([-1.0, 2.0]), np.array([0.5, 1.5])
    changed = run.predictor.recalibrated(a, b)
    hazards = changed.all_hazards(records)
    np.testing.assert_allclose(np.log(hazards), a[:, None] + b[:, None] * np.log(plain))
    inner, last = changed.edges_days, changed.edges_days[-1] + 100.0
    spans = np.diff([0.0, *inner, last])
    survival = np.exp(-np.einsum("rek,k->r", hazards, spans))
    np.testing.assert_allclose(changed.risk(records, [last]).sum(axis=(1, 2)) + survival, 1.0, atol=1e-6)
    twice = changed.recalibrated(-a / b, 1 / b)
    np.testing.assert_allclose(twice.all_hazards(records), plain)


# ---- the last step of training: bin by bin, as far as it is known, and folded into the head --------------------------


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


# ---- updates for another hospital, on arrays: known shifts are found, and where there is none nothing is changed -----


UPDATE_EDGES = (50.0, 150.0, 400.0)
SLOW = pytest.mark.slow


def hospital(
    seed: int,
    people: int = 800,
    *,
    level: float = 0.0,
    slope: float = 1.0,
    rows: int = 1,
) -> tuple[Floats, Labels]:
    """Predicted log-hazards, and what happens under the true ones; a person's rows share the event."""
    rng = np.random.default_rng(seed)
    score = rng.normal(0, 0.7, (people, 1))
    eta = -7.2 + score + np.array([0.2, 0.0, -0.1, 0.1])
    truth = level + slope * (eta + 7.0) - 7.0
    days, rate = np.diff([0.0, *UPDATE_EDGES, 3000.0]), np.exp(truth)
    spent, until = rng.exponential(1, people), np.cumsum(rate * days, axis=1)
    bin_ = (spent[:, None] > until).sum(axis=1)
    inside = np.minimum(bin_, 3)
    before = np.c_[np.zeros(people), until][np.arange(people), inside]
    start = np.r_[0.0, UPDATE_EDGES][inside]
    event = np.where(bin_ < 4, start + (spent - before) / rate[np.arange(people), inside], np.inf)
    end = rng.uniform(100, 900, people)
    labels = Labels(
        np.repeat(np.minimum(event, end), rows),
        np.repeat((event <= end).astype(np.int8), rows),
        np.zeros(people * rows),
        np.repeat(np.arange(people), rows),
    )
    return np.repeat(eta, rows, axis=0), labels


def updated(seed: int, *, largest: int = 2, **world: float) -> CauseUpdate:
    eta, labels = hospital(seed, **world)  # type: ignore[arg-type]
    return fit_update(eta, UPDATE_EDGES, labels, cause=0, largest=largest)


@pytest.mark.parametrize(("largest", "rows"), [(1, 1), pytest.param(2, 1, marks=SLOW), (2, 4)])
def test_where_nothing_is_shifted_nothing_is_changed_at_the_nominal_rate(largest: int, rows: int) -> None:
    draws = 300
    changed = sum(updated(seed, largest=largest, people=400, rows=rows).method != "none" for seed in range(draws))
    spread = (ALPHA * (1 - ALPHA) * draws) ** 0.5
    assert abs(changed - ALPHA * draws) < 3 * spread


def test_a_known_level_is_found_and_no_more_is_taken() -> None:
    draws = 200
    found = [updated(seed, level=0.6) for seed in range(draws)]
    more, spread = sum(one.method != "level" for one in found), (ALPHA * (1 - ALPHA) * draws) ** 0.5
    assert abs(more - ALPHA * draws) < 3 * spread
    assert {one.slope for one in found if one.method == "level"} == {1.0}
    assert np.mean([one.level for one in found]) == pytest.approx(0.6, abs=0.05)
    eta = hospital(0, level=0.6)[0]
    one = next(one for one in found if one.method == "level")
    assert one.applied(eta) == pytest.approx(eta + one.level)


def test_a_known_slope_is_found() -> None:
    found = [updated(seed, level=-0.3, slope=0.5, people=1500) for seed in range(20)]
    assert {one.method for one in found} == {"level and slope"}
    assert np.mean([one.slope for one in found]) == pytest.approx(0.5, abs=0.05)
    predicted = [one.intercept + one.slope * -7.0 for one in found]
    assert np.mean(predicted) == pytest.approx(-7.3, abs=0.06)


def test_estimates_are_shrunk_most_where_the_evidence_is_weak() -> None:
    weak, strong = (
        [one.shrinkage for seed in range(30) if (one := updated(seed, level=level)).method != "none"]
        for level in (0.25, 0.9)
    )
    assert all(0.5 < one < 1 for one in weak)
    assert np.mean(weak) < np.mean(strong) < 1


def test_the_events_decide_what_may_be_fitted() -> None:
    for place, fewest in enumerate(FEWEST_EVENTS[1:], start=1):
        assert largest_allowed(fewest - 1) == place - 1
        assert METHODS[largest_allowed(fewest)] == METHODS[place]
    assert METHODS[largest_allowed(10_000)] == "level and slope"


def test_hazards_that_are_the_same_for_everybody_have_no_slope() -> None:
    eta, labels = hospital(0, level=0.8)
    flat = np.full_like(eta, -7.0)
    one = fit_update(flat, UPDATE_EDGES, labels, cause=0, largest=2)
    assert one.method == "level"
    no_event = Labels(labels.duration_days, 0 * labels.cause, labels.entry_days, labels.subject)
    assert fit_update(eta, UPDATE_EDGES, no_event, cause=0, largest=2).method == "none"
