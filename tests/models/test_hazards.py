"""Likelihoods against enumeration and integration, risks against their definition, extremes, and impossible labels."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, TrainingConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.hazards import HazardsOverTime, SurvivalHead, cumulative_incidence, horizon_nll, visit_nll
from ehrsequencing.training.loop import make_optimizer
from helpers.models import make_model
from helpers.strategies import Subject, Visit, pack, sample_records
from reference.likelihood import horizon_term

seeds = st.integers(0, 10_000)
EDGES = (10.0, 30.0, 365.25)


def log_hazards(seed: int, *, rows: int = 1, causes: int = 2, bins: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, causes, bins, generator=generator, dtype=torch.float64) * 1.5 - 5


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def subject_nll(logits: Tensor, at_risk: Tensor, *, cause: Tensor, subject_offsets: Tensor) -> Tensor:
    """(S,) the visit head's NLL of each subject."""
    terms = visit_nll(logits, at_risk, cause=cause, subject_offsets=subject_offsets)
    return torch.segment_reduce(terms, "sum", offsets=subject_offsets)


def survival(logits: Tensor, days: float) -> Tensor:
    edges = [0.0, *EDGES, math.inf]
    overlap = column(*(max(0.0, min(days, high) - low) for low, high in pairwise(edges)))
    return (-(logits.exp().sum(1) * overlap).sum(1)).exp()


# ---- the `visit` head ------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_visit_nll_is_the_enumerated_likelihood(seed: int) -> None:
    """Every possible history of one subject: the probabilities are those of the formula and sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    visits = 5
    logits = torch.randn(visits, generator=generator, dtype=torch.float64) * 2
    hazards = [1 / (1 + math.exp(-float(x))) for x in logits]
    offsets = torch.tensor([0, visits])
    total = 0.0
    for last in range(visits):
        at_risk = torch.arange(visits) <= last
        survived = math.prod(1 - h for h in hazards[:last])
        for event in (0, 1):
            cause = torch.zeros(visits, dtype=torch.int64)
            cause[last] = event
            nll = float(subject_nll(logits, at_risk, cause=cause, subject_offsets=offsets))
            expected = survived * (hazards[last] if event else 1.0)
            assert abs(nll + math.log(expected)) < 1e-8, (last, event)
            total += expected if event else 0.0
    total += survived * (1 - hazards[-1])
    assert abs(total - 1) < 1e-12


def test_visit_nll_of_several_subjects() -> None:
    """At-risk rows may have gaps (queries, blanking); a subject never at risk adds 0; rows not at risk may be NaN."""
    logits = torch.tensor([0.3, float("nan"), -1.0, 0.7, 2.0, float("nan")], requires_grad=True)
    at_risk = torch.tensor([True, False, True, True, True, False])
    cause = torch.tensor([0, 0, 1, 0, 0, 0])
    offsets = torch.tensor([0, 3, 3, 5, 6])
    nll = subject_nll(logits, at_risk, cause=cause, subject_offsets=offsets)
    h = torch.sigmoid(logits.detach())
    expected = torch.stack([-(1 - h[0]).log() - h[2].log(), torch.tensor(0.0), -(1 - h[3]).log(), torch.tensor(0.0)])
    torch.testing.assert_close(nll, expected)
    (gradient,) = torch.autograd.grad(nll.sum(), logits)
    torch.testing.assert_close(gradient, torch.stack([h[0], *h.new_zeros(1), h[2] - 1, h[3], *h.new_zeros(2)]))


@pytest.mark.parametrize(
    ("at_risk", "cause", "message"),
    [
        ([1, 1, 1], [0, 1, 0], "not the subject's last at risk"),
        ([1, 1, 0], [0, 0, 1], "not at risk"),
        ([1, 1, 1], [0, 0, 2], "causes 0 and 1"),
        ([1, 1, 1], [0, 0, -1], "causes 0 and 1"),
        ([1, 1], [0, 0], "one entry a visit"),
    ],
)
def test_visit_nll_refuses_impossible_labels(at_risk: list[int], cause: list[int], message: str) -> None:
    with pytest.raises(EhrseqError, match=message):
        subject_nll(
            torch.zeros(3),
            torch.tensor(at_risk, dtype=torch.bool),
            cause=torch.tensor(cause),
            subject_offsets=torch.tensor([0, 3]),
        )


# ---- the `horizon` head ----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seeds, st.sampled_from([0.0, 7.0, 10.0, 12.0]), st.sampled_from([13.0, 30.0, 77.0, 365.25, 5000.0]))
def test_horizon_nll_is_the_sum_bin_by_bin(seed: int, entry: float, stop: float) -> None:
    logits = log_hazards(seed)
    for cause in (0, 1, 2):
        found = horizon_nll(
            logits, EDGES, duration_days=column(stop), cause=torch.tensor([cause]), entry_days=column(entry)
        )
        expected = horizon_term(logits[0], EDGES, entry, stop, cause)
        torch.testing.assert_close(found[0], expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([0.0, 4.0, 10.0]), st.sampled_from([11.0, 30.0, 200.0, 500.0]))
def test_horizon_likelihood_integrates_to_one(seed: int, start: float, stop: float) -> None:
    """Every possible outcome: ∫ exp(−NLL) over event times, plus survival, is 1; per cause it is the incidence."""
    logits = log_hazards(seed)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    cuts = sorted({start, stop, *(edge for edge in EDGES if start < edge < stop)})
    pieces = max(1, int(4 * float(logits.exp().sum(1).max()) * (stop - start)))
    times, lengths = [], []
    for low, high in pairwise(cuts):
        for a, b in pairwise(np.linspace(low, high, pieces + 1)):
            times += [*(a + (b - a) * (nodes + 1) / 2)]
            lengths += [*(weights * (b - a) / 2)]
    duration = column(*times)
    everywhere = logits.expand(len(times), -1, -1)
    entry = torch.full_like(duration, start)
    incidence = cumulative_incidence(logits, EDGES, horizons_days=[stop], start_days=start)[0, :, 0]
    for cause in (1, 2):
        nll = horizon_nll(
            everywhere, EDGES, duration_days=duration, cause=torch.full((len(times),), cause), entry_days=entry
        )
        assert abs(float(((-nll).exp() * column(*lengths)).sum()) - float(incidence[cause - 1])) < 1e-8, cause
    censored = horizon_nll(logits, EDGES, duration_days=column(stop), cause=torch.tensor([0]), entry_days=column(start))
    assert abs(float(incidence.sum() + (-censored).exp()) - 1) < 1e-12


def test_horizon_nll_gradcheck() -> None:
    labels = {
        "duration_days": column(3.0, 10.0, 400.0, 31.0),
        "cause": torch.tensor([0, 1, 2, 2]),
        "entry_days": column(0.0, 7.0, 7.0, 0.0),
    }
    logits = log_hazards(0, rows=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: horizon_nll(x, EDGES, **labels), logits, atol=1e-8)
    assert torch.autograd.gradcheck(
        lambda x: cumulative_incidence(x, EDGES, horizons_days=[5.0, 30.0, 999.0], start_days=2.0), logits, atol=1e-8
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_days": column(7.0, 9.0)}, "duration_days: must be finite and above the entry"),
        ({"duration_days": column(-1.0, 9.0), "entry_days": None}, "duration_days"),
        ({"duration_days": column(0.0, 9.0), "entry_days": None}, "duration_days"),
        ({"duration_days": column(float("nan"), 9.0)}, "duration_days"),
        ({"duration_days": column(float("inf"), 9.0)}, "duration_days"),
        ({"duration_days": column(9.0)}, "one entry a prediction time"),
        ({"entry_days": column(-1.0, 0.0)}, "entry_days: must not be negative"),
        ({"entry_days": column(float("nan"), 0.0)}, "entry_days"),
        ({"cause": torch.tensor([3, 0])}, "cause: must be 0 or one of 2"),
        ({"cause": torch.tensor([-1, 0])}, "cause"),
    ],
)
def test_horizon_nll_refuses_impossible_labels(changes: dict[str, Tensor], message: str) -> None:
    labels = {"duration_days": column(8.0, 9.0), "cause": torch.tensor([0, 2]), "entry_days": column(7.0, 0.0)}
    horizon_nll(log_hazards(0, rows=2), EDGES, **labels)
    with pytest.raises(EhrseqError, match=message):
        horizon_nll(log_hazards(0, rows=2), EDGES, **{**labels, **changes})


def test_the_grid_must_fit_the_logits() -> None:
    for edges in ((), EDGES[:2], (*EDGES, 999.0)):
        with pytest.raises(EhrseqError, match="expected logits"):
            cumulative_incidence(log_hazards(0), edges, horizons_days=[1.0])


# ---- risk ------------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_risk(seed: int) -> None:
    """S + Σ F = 1, S never rises, F never falls, and conditioning is the quotient of its definition."""
    logits = log_hazards(seed, rows=6)
    horizons = [1.0, 10.0, 20.0, 30.0, 100.0, 365.25, 3000.0]
    risk = cumulative_incidence(logits, EDGES, horizons_days=horizons)
    assert risk.shape == (6, 2, 7)
    assert (risk >= 0).all()
    assert (risk.diff(dim=2) >= 0).all()
    for h, days in enumerate(horizons):
        torch.testing.assert_close(risk[:, :, h].sum(1) + survival(logits, days), torch.ones(6).double())
    start = 15.0
    at_start = cumulative_incidence(logits, EDGES, horizons_days=[start])
    given_start = cumulative_incidence(logits, EDGES, horizons_days=horizons, start_days=start)
    # Compared as F(t | s) · S(s): dividing by a tiny S(s) would blow up the rounding of the difference.
    gained = given_start * survival(logits, start).view(-1, 1, 1)
    torch.testing.assert_close(gained, (risk - at_start).clamp(min=0), rtol=1e-9, atol=1e-13)
    assert (given_start[:, :, :2] == 0).all()  # horizons before the start
    starts = column(0.0, 1.0, 15.0, 15.0, 31.0, 400.0)
    each = cumulative_incidence(logits, EDGES, horizons_days=horizons, start_days=starts)
    for n in range(6):
        alone = cumulative_incidence(logits[n : n + 1], EDGES, horizons_days=horizons, start_days=float(starts[n]))
        torch.testing.assert_close(each[n : n + 1], alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("horizons", "start", "where"),
    [
        ([0.0], None, "horizons_days"),
        ([-3.0], None, "horizons_days"),
        ([float("nan")], None, "horizons_days"),
        ([float("inf")], None, "horizons_days"),
        ([1.0], -1.0, "start_days"),
        ([1.0], float("nan"), "start_days"),
        ([1.0], torch.zeros(3), "start_days"),
    ],
)
def test_risk_refuses(horizons: list[float], start: float | Tensor | None, where: str) -> None:
    with pytest.raises(EhrseqError, match=where):
        cumulative_incidence(log_hazards(0), EDGES, horizons_days=horizons, start_days=start)


# ---- extremes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [8.0, 20.0, 60.0, 100.0])
def test_extreme_logits(size: float, dtype: torch.dtype) -> None:
    """Finite losses, and gradients that point the right way wherever the loss is not already at its floor."""
    for sign in (-1.0, 1.0):
        eta = torch.full((2,), sign * size, dtype=dtype, requires_grad=True)
        for event in (0, 1):
            nll = subject_nll(
                eta,
                torch.ones(2, dtype=torch.bool),
                cause=torch.tensor([0, event]),
                subject_offsets=torch.tensor([0, 2]),
            )
            (gradient,) = torch.autograd.grad(nll.sum(), eta)
            assert nll.dtype == torch.float32
            assert nll.isfinite().all()
            assert gradient.isfinite().all()
            assert gradient[0] > 0 if sign > 0 else gradient[0] >= 0  # survival wants the hazard down
            assert (gradient[1] < 0 if sign < 0 else gradient[1] <= 0) if event else gradient[1] == 0
        logits = torch.full((3, 2, 4), sign * size, dtype=dtype, requires_grad=True)
        labels = {"duration_days": torch.tensor([50.0, 50.0, 400.0]), "cause": torch.tensor([0, 1, 2])}
        nll = horizon_nll(logits, EDGES, **labels)
        (gradient,) = torch.autograd.grad(nll.sum(), logits)
        assert nll.isfinite().all()
        assert gradient.isfinite().all()
        assert (gradient[0] >= 0).all()
        if sign > 0:  # every exposed bin of every cause wants down, the event's own bin too
            assert (gradient[0, :, :3] > 0).all()
            assert gradient[1, 0, 2] > 0
        else:  # no exposure counts, the event wants its own bin up
            assert gradient[1, 0, 2] < 0
            assert gradient[2, 1, 3] < 0
        risk = cumulative_incidence(logits, EDGES, horizons_days=[5.0, 365.0, 4000.0])
        assert risk.isfinite().all()
        assert ((risk >= 0) & (risk <= 1)).all()
        (gradient,) = torch.autograd.grad(risk.sum(), logits)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("late", [5.0, 40.0, 100.0])
def test_a_late_hazard_is_kept_apart(late: float) -> None:
    """A huge hazard in a late bin must not wipe out the survival of the bins before it."""
    logits = torch.log(column(0.05, 1e-9, 1e-9, 1e-9)).view(1, 1, 4).clone()
    logits[0, 0, 3] = late
    risk = cumulative_incidence(logits, EDGES, horizons_days=[10.0, 1000.0])
    torch.testing.assert_close(risk[0, 0], column(1 - math.exp(-0.5), 1.0), rtol=1e-7, atol=0)
    logits = torch.full((1, 2, 4), -100.0, dtype=torch.float64)
    assert (cumulative_incidence(logits, EDGES, horizons_days=[1000.0]) > 0).all()  # tiny, not zero


# ---- the head and the model's use of the losses ----------------------------------------------------------------------


def test_bias_starts_at_the_cohorts_own_hazards() -> None:
    """Where the hidden layer is silent, the head gives `hazards`; at events / exposure the NLL's gradient is 0."""
    generator = torch.Generator().manual_seed(0)
    duration = torch.rand(500, generator=generator, dtype=torch.float64) * 900 + 1
    cause = torch.randint(0, 3, (500,), generator=generator)
    edges = [0.0, *EDGES, math.inf]
    hazards = torch.zeros(2, 4, dtype=torch.float64)
    for k, (low, high) in enumerate(pairwise(edges)):
        days = (duration.clamp(max=high) - low).clamp(min=0).sum()
        for e in (1, 2):
            hazards[e - 1, k] = ((cause == e) & (duration > low) & (duration <= high)).sum() / days
    head = make_model().head
    head.W2.stretch(torch.zeros(2, 4))  # nobody has an effect
    head.set_bias(hazards)
    logits = head(torch.randn(500, 8, dtype=torch.float64))
    torch.testing.assert_close(logits[7].exp(), hazards)
    nll = horizon_nll(logits, EDGES, duration_days=duration, cause=cause)
    (gradient,) = torch.autograd.grad(nll.sum(), head.W2.bias)
    assert float(gradient.abs().max()) < 1e-9
    head.set_bias(torch.zeros(2, 4))
    assert head.W2.bias.isfinite().all()
    visit_head = make_model(head="visit").head
    visit_head.set_bias(torch.tensor(0.2))
    torch.testing.assert_close(visit_head.W2.bias.sigmoid(), column(0.2))
    for wrong in (torch.zeros(4, 2), torch.zeros(3), torch.full((2, 4), -1.0), torch.full((2, 4), float("nan"))):
        with pytest.raises(EhrseqError, match="set_bias"):
            head.set_bias(wrong)


@pytest.mark.parametrize("head", ["horizon", "visit"])
def test_loss_is_the_mean_over_labelled_prediction_times(head: str) -> None:
    model, subjects = make_model(head=head), sample_records()
    batch = pack(subjects, visit_labels=head == "visit")
    assert batch.at_risk is not None
    counted = batch.at_risk & ~batch.is_query if head == "visit" else batch.at_risk
    nll = model.nll(batch)
    assert nll.shape == (batch.n_visits,)
    assert nll.isfinite().all()
    assert (nll[~counted] == 0).all()
    torch.testing.assert_close(model.loss(batch), nll[counted].mean())
    torch.testing.assert_close(model.loss(batch, divisor=1000.0), nll.sum() / 1000)
    if head == "visit":
        assert batch.cause is not None
        per_subject = subject_nll(
            model(batch), counted, cause=batch.cause * counted, subject_offsets=batch.subject_offsets
        )
        torch.testing.assert_close(per_subject.sum(), nll.sum())


def test_loss_without_prediction_times_is_zero_with_zero_gradient() -> None:
    model = make_model()
    loss = model.loss(pack([Subject((Visit(codes=(1,), numbers=(None,), at_risk=False),))]))
    assert loss == 0
    loss.backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


BATCH = pack(sample_records(), visit_labels=True)
INPUTS = ("codes", "visit_offsets", "subject_offsets", "age_years", "delta_days")
UNLABELLED = type(BATCH)(*(getattr(BATCH, name) for name in INPUTS))
EVENT_EARLY = pack([Subject((Visit(cause=1), Visit(cause=1)))])


@pytest.mark.parametrize(
    ("settings", "batch", "says"),
    [
        ({"attention": "bidirectional"}, BATCH, r"would have seen the visits after it.*causal"),
        ({}, UNLABELLED, "no at_risk, cause, duration_days"),
        ({"head": "visit"}, UNLABELLED, "no at_risk, cause"),
        ({"vocab_size": 5}, BATCH, "vocabulary of 5"),
        ({"head": "visit"}, EVENT_EARLY, "last at risk"),
    ],
)
def test_models_refuse_what_cannot_be_learned(settings: dict[str, Any], batch: VisitBatch, says: str) -> None:
    with pytest.raises(EhrseqError, match=says):
        make_model(**settings).loss(batch)


def test_a_risk_needs_days_and_no_labels() -> None:
    assert make_model().risk(UNLABELLED, horizons_days=[30.0]).shape == (BATCH.n_visits, 2, 1)
    with pytest.raises(EhrseqError, match="has no days"):
        make_model(head="visit").risk(BATCH, horizons_days=[30.0])


# ---- effects over time: smooth where the data say nothing else, and any shape where they do --------------------------


BINS = 20
PLACE = torch.arange(BINS) / (BINS - 1)
HIGH = math.log(3.0)
# log hazard ratio of the second of two groups, bin by bin
WORLDS = {
    "by the clock": 2.4 * (torch.arange(BINS) % 2) - 1.2,
    "an operation: harm, then gain": torch.where(PLACE < 0.1, math.log(4.0), -math.log(2.0)),
    "a late effect": torch.where(PLACE < 0.6, 0.0, HIGH),
    "a cure": torch.where(PLACE < 0.5, 0.0, -math.log(50.0)),
}


def lost(ratio: Tensor, *, free: bool = True) -> float:
    """NLL above the truth after a training on infinitely many people of both groups."""
    torch.manual_seed(0)
    true = (math.log(0.1) + torch.stack([-ratio / 2, ratio / 2])).exp()  # (groups, bins), a day in each bin
    alive = torch.cat([torch.ones(2, 1), torch.exp(-true.cumsum(1))], 1)
    days = (alive[:, :-1] - alive[:, 1:]) / true
    edges = tuple(float(k) for k in range(1, BINS))
    head, z = SurvivalHead(ModelConfig(vocab_size=2, size="small", edges_days=edges)), torch.randn(2, 64)
    head.set_bias(((true * days).sum(0) / days.sum(0)).unsqueeze(0))
    assert isinstance(head.W2, HazardsOverTime)
    head.W2.weight.requires_grad_(free)
    optimizer = make_optimizer(head, TrainingConfig())

    def nll(log_hazard: Tensor) -> Tensor:
        return ((log_hazard.exp() - true * log_hazard) * days).sum(1).mean()

    for _ in range(600):
        optimizer.zero_grad()
        nll(head(z)[:, 0]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(nll(head(z)[:, 0]) - nll(true.log()))


@pytest.mark.parametrize("world", WORLDS)
def test_free_bins_find_what_no_curve_can_be(world: str) -> None:
    assert lost(WORLDS[world]) <= 0.002
    assert lost(WORLDS[world], free=False) > 0.004  # the mutant: three curves alone


def test_what_one_bin_says_moves_all_bins_until_they_object() -> None:
    """One step on an event in one bin; free bins alone would leave the others where they are."""
    for curves in (True, False):
        layer = HazardsOverTime(4, 1, BINS)
        layer.curves.requires_grad_(curves)
        optimizer = make_optimizer(layer, TrainingConfig())
        layer(torch.ones(1, 4))[0, BINS // 2].neg().backward()
        optimizer.step()
        moved = layer.effects().detach().abs().sum(1) > 1e-6
        assert int(moved.sum()) == (BINS if curves else 1)


def test_a_stretched_layer_has_the_same_answers_times_the_slope() -> None:
    layer, slope = HazardsOverTime(6, 2, 5), torch.rand(2, 5)
    for weights in layer.parameters():
        torch.nn.init.normal_(weights)
    x = torch.randn(7, 6)
    wanted = (layer(x) - layer.bias) * slope.flatten() + layer.bias
    layer.stretch(slope)
    torch.testing.assert_close(layer(x), wanted)
    assert not layer.curves.any()  # no curve of time is left that a slope of each bin could bend
