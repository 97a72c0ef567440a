"""The plain models: shapes, pads, causality, likelihood, and the errors of wrong input."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ehrsequencing import VisitBatch, models, nn
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


def test_the_gradient_is_that_of_the_loss() -> None:
    hazards = torch.tensor([[0.2, 0.5, 0.9], [0.1, 0.3, 0.4]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 7]), torch.tensor([1, 0]), torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    assert torch.autograd.gradcheck(lambda h: nn.DiscreteTimeSurvivalLoss()(h, *labels), (hazards,))


@pytest.mark.parametrize("hazard", [0.0, 1e-30, 1e-9, 1 - 1e-9, 1.0])
@pytest.mark.parametrize("event", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_an_extreme_hazard_still_learns(hazard: float, event: int, dtype: torch.dtype) -> None:
    h = torch.full((1, 3), hazard, dtype=dtype, requires_grad=True)
    loss = nn.DiscreteTimeSurvivalLoss()(
        h, torch.tensor([2 if event else 3]), torch.tensor([event]), torch.ones(1, 3).bool()
    )
    loss.backward()
    assert h.grad is not None
    assert bool(loss.isfinite())
    assert bool(h.grad.isfinite().all())
    assert bool((h.grad[0, :2] > 0).all())  # a smaller hazard fits survival better
    assert bool((h.grad[0, 2] < 0) == bool(event))


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

SIZES = {"n_codes": 20, "d": D}
SOUND: dict[str, dict[str, object]] = {
    "MeanPoolingVisitEncoder": {},
    "AttnPoolingVisitEncoder": {"d": D},
    "TransformerVisitEncoder": {"d": D, "heads": HEADS, "layers": 1, "dropout": 0.0},
    "TransformerLayer": {"d": D, "heads": HEADS, "dropout": 0.0},
    "TimelineEncoder": {"d": D, "heads": HEADS, "layers": 1, "dropout": 0.0},
    "SurvivalHead": {"d": D, "dropout": 0.0},
    "CodeEmbedding": {**SIZES, "max_codes_per_visit": 4, "n_types": 2},
    "AgeEmbedding": {"d": D, "age_bin_size": 5},
    "DeltaTEmbedding": {"d": D, "bin_days": 7.0, "top_days": 365.0},
    "PositionalEmbedding": {"d": D, "max_length": 5},
    "VisitEmbedding": {"d": D, "max_visits": 5},
    "VisitTimeEmbedding": {"d": D, "max_visits": 5, "age_bin_size": 5},
    "BEHRTEmbedding": {**SIZES, "age_bin_size": 5, "max_visits": 5, "max_length": 9, "dropout": 0.0},
    "BEHRTForSurvival": {**SIZES, "heads": HEADS, "layers": 1, "age_bin_size": 5, "max_length": 9, "dropout": 0.0},
    "HierarchicalBEHRTForSurvival": {**SIZES, "heads": HEADS, "layers": 1, "max_codes_per_visit": 4, "dropout": 0.0},
    "DiscreteTimeSurvivalLoss": {},
}
WITHOUT = {"PositionalEmbedding", "VisitEmbedding", "DiscreteTimeSurvivalLoss"}  # no packed class has this name


@pytest.mark.parametrize("name", SOUND)
def test_a_configuration_or_a_batch_is_answered_by_the_class_that_takes_it(name: str) -> None:
    of_plain, sound = getattr(nn, name), SOUND[name]
    packed = "HierarchicalBEHRTForSurvival" if name in WITHOUT else name
    assert hasattr(models, packed)
    config, batch = ModelConfig(vocab_size=9), VisitBatch.from_padded(*visits())
    module = of_plain(**sound)
    for call in (lambda: of_plain(config), lambda: of_plain(**{**sound, "d": config}), lambda: module(batch)):
        with pytest.raises(ValueError, match=rf"belongs to ehrsequencing\.models\.{packed}$"):
            call()


@pytest.mark.parametrize(("name", "argument"), [(name, one) for name, sound in SOUND.items() for one in sound])
def test_an_impossible_size_is_a_value_error(name: str, argument: str) -> None:
    """Zero says none of dropout, and of places within a visit."""
    of_plain, sound = getattr(nn, name), SOUND[name]
    of_plain(**{one: np.array(value)[()] for one, value in sound.items()})  # NumPy's numbers are numbers
    for wrong in (-1, 0, math.nan, "8", [8]):
        if wrong != 0 or argument not in ("dropout", "max_codes_per_visit"):
            with pytest.raises(ValueError, match=r"must be|takes numbers"):
                of_plain(**{**sound, argument: wrong})


def test_wrong_tensors_are_value_errors() -> None:
    codes, code_mask, ages, days, visit_mask = visits()
    stream, token_ages, ids, token_mask = tokens()
    model, flat = nn.HierarchicalBEHRTForSurvival(20, D, HEADS), nn.BEHRTForSurvival(20, D, HEADS)
    encoder, timeline, time = nn.AttnPoolingVisitEncoder(D), nn.TimelineEncoder(D, HEADS), nn.VisitTimeEmbedding(D)
    typed, loss, u = nn.CodeEmbedding(20, D, n_types=3), nn.DiscreteTimeSurvivalLoss(), torch.ones(2, 3, D)
    h, t, event = torch.full((2, 3), 0.1), torch.tensor([1, 0]), torch.tensor([0, 1])
    wrong = [
        ("codes must be from 0 on and below 20", lambda: model(codes + 20, code_mask, ages, days, visit_mask)),
        ("codes must be from 0", lambda: model(codes - 20, code_mask, ages, days, visit_mask)),
        ("codes must be whole", lambda: model(codes.double(), code_mask, ages, days, visit_mask)),
        ("takes tensors, got list", lambda: model(codes.tolist(), code_mask, ages, days, visit_mask)),
        ("code_mask must have", lambda: model(codes, code_mask[..., :1], ages, days, visit_mask)),
        ("code_mask must have", lambda: model(codes[0], code_mask[0], ages, days, visit_mask)),
        ("ages must have", lambda: model(codes, code_mask, ages[:, :1], days, visit_mask)),
        ("time_deltas must have", lambda: model(codes, code_mask, ages, days[0], visit_mask)),
        ("visit_mask must have", lambda: model(codes, code_mask, ages, days, None)),
        ("mask must have", lambda: nn.MeanPoolingVisitEncoder()(u, CODE_MASK)),
        ("e must be floats", lambda: encoder(torch.ones(*CODE_MASK.shape, D + 1), CODE_MASK)),
        ("x must be floats", lambda: nn.TransformerVisitEncoder(D, HEADS)(torch.ones(2, 3, 3, D + 1), CODE_MASK)),
        ("visit_mask must have", lambda: timeline(u, CODE_MASK)),
        ("x must be floats", lambda: timeline(u.long(), VISIT_MASK)),
        ("z must be floats", lambda: nn.SurvivalHead(D)(u[..., 1:])),
        ("u must be floats", lambda: time(u[..., :1], ages, days)),
        ("visit_mask must have", lambda: time(u, ages, days, VISIT_MASK[:, :1])),
        ("is_first must have", lambda: nn.DeltaTEmbedding(D)(days, VISIT_MASK[:, :1])),
        ("positions must be from 0", lambda: nn.PositionalEmbedding(D)(torch.tensor([-1]))),
        ("ages must have", lambda: flat(stream[:, 0], token_ages[:, :2], ids[:, :3], token_mask[:, :3])),
        ("ages must have", lambda: flat(stream[0], token_ages[0], ids[0], token_mask[0])),
        ("visit_ids must be from 0", lambda: flat(stream, token_ages, ids - 1, token_mask)),
        ("ages must have", lambda: nn.BEHRTEmbedding(20, D)(stream, token_ages[:, :1], ids)),
        ("visit_ids must be whole", lambda: flat.aggregate_visits(torch.ones(1, 2, D), torch.ones(1, 2))),
        ("visit_ids must be from 0", lambda: flat.aggregate_visits(torch.ones(1, 2, D), torch.tensor([[0, -1]]))),
        ("visit_ids must have", lambda: flat.aggregate_visits(torch.ones(1, 2), torch.tensor([[0, 1]]))),
        ("n_types belong", lambda: typed(codes)),
        ("types must have", lambda: typed(codes, codes[..., :1] % 3)),
        ("types must be from 0 on and below 3", lambda: typed(codes, codes + 3)),
        ("scorer must be", lambda: nn.AttnPoolingVisitEncoder(D, scorer="dot")),
        ("multiple of heads", lambda: nn.TimelineEncoder(D, heads=3)),
        ("event_indicators must be 0 or 1", lambda: loss(h, t, event + 1, VISIT_MASK)),
        ("event_times must be whole", lambda: loss(h, t + 0.5, event, VISIT_MASK)),
        ("event_times must have the shape", lambda: loss(h, t[:, None], event, VISIT_MASK)),
        ("event_indicators must have the shape", lambda: loss(h, t, event[:1], VISIT_MASK)),
        ("mask must have the shape", lambda: loss(h, t, event, VISIT_MASK[:1])),
        ("not there", lambda: loss(h, t - 2, event - event, VISIT_MASK)),
        ("from_logits=True", lambda: loss(h + 1, t, event, VISIT_MASK)),
        ("from_logits=True", lambda: loss(h - 1, t, event, VISIT_MASK)),
    ]
    for message, call in wrong:
        with pytest.raises(ValueError, match=message):
            call()
    assert nn.DeltaTEmbedding(D, bin_days=7.0).bins(torch.tensor([-9.0, math.nan])).tolist() == [0, 0]


def test_the_plain_models_import_nothing_of_ours() -> None:
    for path in Path(nn.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert all(n.startswith("ehrsequencing.nn") for n in names if n.startswith("ehrsequencing")), path.name
