"""The plain models: shapes, pads, causality, likelihood, and the errors of wrong input."""

import ast
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ehrsequencing import nn
from ehrsequencing.config import ModelConfig

D, HEADS = 8, 2
CODE_MASK = torch.tensor([[[1, 1, 0], [1, 0, 0], [1, 1, 1]], [[1, 0, 0], [0, 0, 0], [0, 0, 0]]]).bool()
VISIT_MASK = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
VISIT_IDS = torch.tensor([[0, 0, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0]])
TOKEN_MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]).bool()
ENCODERS = {
    "mean": lambda: nn.MeanPoolingVisitEncoder(),
    "query": lambda: nn.AttnPoolingVisitEncoder(D),
    "bottleneck": lambda: nn.AttnPoolingVisitEncoder(D, scorer="bottleneck"),
    "transformer": lambda: nn.TransformerVisitEncoder(D, heads=HEADS, layers=2),
}


def shaken(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64 with random weights that are not zero."""
    torch.manual_seed(3)
    for weight in module.double().parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return module.eval()


def visits() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    codes = torch.randint(1, 20, CODE_MASK.shape).masked_fill(~CODE_MASK, 0)
    ages = torch.tensor([[40.2, 41.0, 44.0], [80.0, 0.0, 0.0]]).double()
    days = torch.tensor([[0.0, 300.0, 1100.0], [0.0, 0.0, 0.0]]).double()
    return codes, CODE_MASK, ages, days, VISIT_MASK


def tokens() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    codes = torch.randint(1, 20, VISIT_IDS.shape)
    return codes, torch.full(VISIT_IDS.shape, 60.0).double(), VISIT_IDS, TOKEN_MASK


@pytest.mark.parametrize("name", ENCODERS)
def test_visit_encoders_read_no_pads_and_give_zero_for_an_empty_visit(name: str) -> None:
    encoder = shaken(ENCODERS[name]())
    e = torch.randn(*CODE_MASK.shape, D).double()
    u = encoder(e, CODE_MASK.long())
    assert u.shape == (2, 3, D)
    assert not u[1, 1:].any()
    for junk in (1e30, math.nan, math.inf):
        assert torch.equal(encoder(e.masked_fill(~CODE_MASK.unsqueeze(-1), junk), CODE_MASK), u)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(encoder(e[:, :, order], CODE_MASK[:, :, order]), u, rtol=0, atol=1e-12)


def test_attention_weights_are_a_softmax_over_real_codes_of_scores_that_each_code_has_alone() -> None:
    encoder = shaken(nn.AttnPoolingVisitEncoder(D))
    e = torch.randn(*CODE_MASK.shape, D).double()
    u, alpha = encoder(e, CODE_MASK, return_weights=True)
    scores = torch.stack([encoder.q @ torch.tanh(encoder.W.weight @ e[0, 0, c] + encoder.W.bias) for c in range(2)])
    want = scores.exp()
    torch.testing.assert_close(alpha[0, 0, :2], want / want.sum(), rtol=0, atol=1e-12)
    torch.testing.assert_close(alpha.sum(-1), CODE_MASK.any(-1).double(), rtol=0, atol=1e-12)
    assert torch.equal(alpha > 0, CODE_MASK)
    torch.testing.assert_close(u, torch.einsum("bvc,bvcd->bvd", alpha, e), rtol=0, atol=1e-12)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_hazard_depends_on_nothing_later_and_on_nothing_in_pads(encoder: str) -> None:
    model = shaken(nn.HierarchicalBEHRTForSurvival(20, D, heads=HEADS, visit_encoder=ENCODERS[encoder]()))
    codes, code_mask, ages, days, visit_mask = visits()
    h = model(codes, code_mask, ages, days, visit_mask)
    assert h.shape == (2, 3)
    assert not h[1, 1:].any()
    assert bool(((h > 0) & (h < 1))[visit_mask].all())
    later = codes.clone()
    later[0, 2] = torch.tensor([7, 3, 11])
    moved = model(later, code_mask, ages + torch.tensor([[0.0, 0.0, 9.0]] * 2), days, visit_mask)
    assert torch.equal(moved[0, :2], h[0, :2])
    assert moved[0, 2] != h[0, 2]
    pads = codes.masked_fill(~CODE_MASK, 19)
    with_junk = model(pads, code_mask, ages.masked_fill(~visit_mask, math.nan), days, visit_mask)
    assert torch.equal(with_junk, h)


def test_without_causality_a_hazard_moves_with_the_future() -> None:
    model = shaken(nn.HierarchicalBEHRTForSurvival(20, D, heads=HEADS, causal=False))
    codes, *others = visits()
    later = codes.clone()
    later[0, 2] = torch.tensor([7, 3, 11])
    assert model(later, *others)[0, 0] != model(codes, *others)[0, 0]


@pytest.mark.parametrize("causal", [True, False])
def test_flat_behrt_is_causal_by_visits(causal: bool) -> None:
    model = shaken(nn.BEHRTForSurvival(20, D, heads=HEADS, causal=causal))
    codes, *others = tokens()
    h = model(codes, *others)
    assert h.shape == (2, 3)
    assert not h[1, 1:].any()
    later = codes.clone()
    later[0, 3:] = torch.tensor([5, 6, 7])
    assert torch.equal(model(later, *others)[0, :2], h[0, :2]) == causal
    same = codes.clone()
    same[0, 0] = codes[0, 0] % 19 + 1  # a code of the first visit moves the hazard of that visit's other codes
    assert model(same, *others)[0, 0] != h[0, 0]
    pads = codes.masked_fill(~TOKEN_MASK, 19)
    assert torch.equal(model(pads, *others), h)


def test_aggregated_visits_are_means_over_real_codes() -> None:
    states = torch.randn(2, 6, D).double()
    u = nn.BEHRTForSurvival.aggregate_visits(states, VISIT_IDS, TOKEN_MASK)
    want = torch.stack([states[0, :2].mean(0), states[0, 2], states[0, 3:].mean(0)])
    torch.testing.assert_close(u[0], want, rtol=0, atol=1e-12)
    torch.testing.assert_close(u[1, 0], states[1, :2].mean(0), rtol=0, atol=1e-12)
    assert not u[1, 1:].any()


def test_the_hazards_of_a_short_record_are_those_of_the_same_record_among_pads() -> None:
    model = shaken(nn.HierarchicalBEHRTForSurvival(20, D, heads=HEADS))
    codes, code_mask, ages, days, visit_mask = visits()
    h = model(codes, code_mask, ages, days, visit_mask)
    alone = model(codes[:1, :2, :2], code_mask[:1, :2, :2], ages[:1, :2], days[:1, :2], visit_mask[:1, :2])
    torch.testing.assert_close(alone[0], h[0, :2], rtol=0, atol=1e-12)


# ---- the likelihood ------------------------------------------------------------------------------------------------


def by_hand(h: Tensor, t: int, event: int, mask: Tensor) -> float:
    terms = [math.log1p(-float(h[v])) for v in range(len(h)) if v < t and mask[v]]
    return -sum(terms) - (math.log(float(h[t])) if event else 0.0)


def test_the_loss_is_the_likelihood_by_hand_from_hazards_and_from_logits() -> None:
    logits = torch.randn(4, 5).double()
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4]).unsqueeze(1)
    t, event = torch.tensor([4, 1, 0, 4]), torch.tensor([1, 1, 1, 0])
    want = sum(by_hand(logits[i].sigmoid(), int(t[i]), int(event[i]), mask[i]) for i in range(4)) / 4
    junk = logits.masked_fill(~mask, math.nan).requires_grad_()
    for loss, x in ((nn.DiscreteTimeSurvivalLoss(from_logits=True), junk), (nn.DiscreteTimeSurvivalLoss(), None)):
        value = loss(junk.sigmoid() if x is None else x, t, event, mask)
        assert float(value.detach()) == pytest.approx(want, abs=1e-12)
        (gradient,) = torch.autograd.grad(value, junk)
        assert not gradient[~mask].nan_to_num(0.0).any()
        assert bool(gradient[mask].isfinite().all())


def test_a_censored_subject_keeps_every_interval_that_was_observed_whole() -> None:
    h, mask = torch.full((1, 4), 0.2), torch.tensor([[1, 1, 1, 0]])
    loss = nn.DiscreteTimeSurvivalLoss()
    for t, whole in ((0, 0), (2, 2), (3, 3), (4, 3), (9, 3)):
        value = loss(h, torch.tensor([t]), torch.tensor([0]), mask)
        assert float(value) == pytest.approx(-whole * math.log(0.8))


def test_an_event_on_a_visit_that_is_not_there_is_an_error() -> None:
    h, mask = torch.full((1, 4), 0.2), torch.tensor([[1, 1, 1, 0]])
    for t in (3, 4):
        with pytest.raises(ValueError, match="not there"):
            nn.DiscreteTimeSurvivalLoss()(h, torch.tensor([t]), torch.tensor([1]), mask)


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_a_sinusoid_is_neither_stored_nor_trained_and_follows_the_type_of_the_module() -> None:
    wave = nn.PositionalEmbedding(6, use_sinusoidal=True)
    assert not list(wave.parameters())
    assert not wave.state_dict()
    assert wave(torch.arange(3)).dtype == torch.float32
    assert wave.double()(torch.arange(3)).dtype == torch.float64
    assert float(wave(torch.tensor([2]))[0, 2]) == pytest.approx(math.sqrt(1 / 3) * math.sin(2 / 10_000 ** (1 / 3)))


def test_later_places_share_the_last_row() -> None:
    for table in (nn.PositionalEmbedding(D, max_length=3), nn.VisitEmbedding(D, max_visits=3)):
        assert torch.equal(table(torch.tensor([2])), table(torch.tensor([900])))


@pytest.mark.parametrize(("days", "bin_"), [(0.0, 0), (6.9, 0), (7.0, 1), (364.9, 52), (365.0, 53), (9999.0, 53)])
def test_linear_gaps(days: float, bin_: int) -> None:
    assert nn.DeltaTEmbedding(D, bin_days=7.0).bins(torch.tensor([days])).tolist() == [bin_]


# ---- wrong input -----------------------------------------------------------------------------------------------------

CONFIG = ModelConfig(vocab_size=9)
WRONG = {
    "AttnPoolingVisitEncoder": lambda: nn.AttnPoolingVisitEncoder(CONFIG),
    "TransformerVisitEncoder": lambda: nn.TransformerVisitEncoder(CONFIG),
    "CodeEmbedding": lambda: nn.CodeEmbedding(CONFIG, D),
    "TimelineEncoder": lambda: nn.TimelineEncoder(CONFIG),
    "SurvivalHead": lambda: nn.SurvivalHead(CONFIG),
    "BEHRTEmbedding": lambda: nn.BEHRTEmbedding(CONFIG, D),
    "HierarchicalBEHRTForSurvival": lambda: nn.HierarchicalBEHRTForSurvival(CONFIG, D),
    "BEHRTForSurvival": lambda: nn.BEHRTForSurvival(CONFIG, D),
    "AgeEmbedding": lambda: nn.AgeEmbedding(CONFIG),
    "DeltaTEmbedding": lambda: nn.DeltaTEmbedding(0),
    "VisitTimeEmbedding": lambda: nn.VisitTimeEmbedding(CONFIG),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_configuration_is_answered_by_the_class_that_takes_it(name: str) -> None:
    with pytest.raises(ValueError, match=rf"ehrsequencing\.models\.{name}"):
        WRONG[name]()


def test_wrong_tensors_are_value_errors() -> None:
    codes, code_mask, ages, days, visit_mask = visits()
    model, flat = nn.HierarchicalBEHRTForSurvival(20, D, HEADS), nn.BEHRTForSurvival(20, D, HEADS)
    calls = {
        "outside the 20 codes": lambda: model(codes + 20, code_mask, ages, days, visit_mask),
        "whole numbers": lambda: model(codes.double(), code_mask, ages, days, visit_mask),
        r"e \(B, V, C, d\)": lambda: nn.MeanPoolingVisitEncoder()(torch.ones(2, 3, D), CODE_MASK),
        r"u \(B, V, d\)": lambda: nn.TimelineEncoder(D)(torch.ones(2, 3, D), CODE_MASK),
        "shape of codes": lambda: flat(codes[:, 0], ages[:, :2], VISIT_IDS[:, :3], TOKEN_MASK[:, :3]),
        "visit_ids must be whole": lambda: flat.aggregate_visits(torch.ones(1, 2, D), torch.ones(1, 2)),
        "n_types belong": lambda: nn.CodeEmbedding(9, D, n_types=3)(torch.ones(1, 1, 1).long()),
        "scorer must be": lambda: nn.AttnPoolingVisitEncoder(D, scorer="dot"),
        "multiple of heads": lambda: nn.TimelineEncoder(D, heads=3),
        "event_indicators must be 0 or 1": lambda: nn.DiscreteTimeSurvivalLoss()(
            torch.full((1, 2), 0.1), torch.tensor([1]), torch.tensor([2]), torch.ones(1, 2)
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_the_plain_models_import_nothing_of_ours() -> None:
    for path in Path(nn.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert all(n.startswith("ehrsequencing.nn") for n in names if n.startswith("ehrsequencing")), path.name
