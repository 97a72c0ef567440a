"""The packed engine and the plain models are the same functions of the same weights: values and gradients, to 1e-10."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ehrsequencing import BEHRTForSurvival, HierarchicalBEHRTForSurvival, ModelConfig, VisitBatch, nn
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models import to_packed, to_plain
from ehrsequencing.models.segments import CodeVectors

B, V, C, L, D, HEADS, N_CODES = 3, 4, 5, 9, 8, 2, 20
TOLERANCE = {"rtol": 0, "atol": 1e-10}
NAN = float("nan")


def shaken(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64 with random weights that are not zero, but for the engine's vector of queries."""
    torch.manual_seed(5)
    for name, weight in module.double().named_parameters():
        torch.nn.init.normal_(weight, std=0.4) if not name.endswith("query") else torch.nn.init.zeros_(weight)
    return module.eval()


def padded() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Ragged visits, pads last, an empty visit and an unknown age among them."""
    torch.manual_seed(1)
    n_codes = torch.tensor([[3, 1, 5, 2], [4, 0, 2, 0], [1, 0, 0, 0]])
    code_mask = torch.arange(C) < n_codes.unsqueeze(-1)
    visit_mask = torch.arange(V) < torch.tensor([4, 3, 1]).unsqueeze(1)
    ages = (30 + 30 * torch.rand(B, V)).double()
    ages[1, 2] = NAN
    days = (600 * torch.rand(B, V)).double()
    days[:, 0] = 0
    return torch.randint(1, N_CODES, (B, V, C)), code_mask, ages, days, visit_mask


def tokens() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ragged token streams, pads last."""
    torch.manual_seed(2)
    ids = torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3, 3], [0, 1, 1, 2, 2, 2, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0]])
    mask = torch.arange(L) < torch.tensor([9, 6, 2]).unsqueeze(1)
    ages = (40 + ids.double() * 1.7).masked_fill(~mask, 0)
    return torch.randint(1, N_CODES, (B, L)), ages, ids, mask


def check_gradients(plain: torch.nn.Module, packed: torch.nn.Module, out: Tensor, packed_out: Tensor) -> None:
    """The same values, and the same gradient of every weight, by a random projection."""
    torch.testing.assert_close(packed_out, out, **TOLERANCE)
    projection = torch.randn_like(out)
    theirs = dict(packed.named_parameters())
    names = [renamed(name, plain) for name, _ in plain.named_parameters()]
    assert {*theirs} - {*names} <= {name for name in theirs if name.endswith("query")}
    ours = torch.autograd.grad((out * projection).sum(), list(plain.parameters()))
    others = torch.autograd.grad((packed_out * projection).sum(), [theirs[name] for name in names])
    for name, gradient, other in zip(names, ours, others, strict=True):
        assert gradient.any() or "table" in name, name
        torch.testing.assert_close(other, gradient, **TOLERANCE)


def renamed(name: str, plain: torch.nn.Module) -> str:
    if isinstance(plain, nn.BEHRTForSurvival):
        return name if name.startswith("head.") else f"encoder.{name}"
    return name.replace("visit_encoder.", "visit_encoder.pooling.")


HIERARCHICAL: dict[str, Callable[[], torch.nn.Module]] = {
    "as it stands": lambda: nn.HierarchicalBEHRTForSurvival(N_CODES, D, HEADS),
    "bottleneck, waves": lambda: nn.HierarchicalBEHRTForSurvival(
        N_CODES, D, HEADS, visit_encoder=nn.AttnPoolingVisitEncoder(D, "bottleneck"), use_sinusoidal=True
    ),
    "mean, two layers": lambda: nn.HierarchicalBEHRTForSurvival(
        N_CODES, D, HEADS, layers=2, visit_encoder=nn.MeanPoolingVisitEncoder(), age_bin_size=2
    ),
    "transformer, no places": lambda: nn.HierarchicalBEHRTForSurvival(
        N_CODES, D, HEADS, visit_encoder=nn.TransformerVisitEncoder(D, HEADS), max_codes_per_visit=0
    ),
    "both ways": lambda: nn.HierarchicalBEHRTForSurvival(N_CODES, D, HEADS, causal=False),
}
FLAT: dict[str, Callable[[], torch.nn.Module]] = {
    "as it stands": lambda: nn.BEHRTForSurvival(N_CODES, D, HEADS),
    "waves, both ways": lambda: nn.BEHRTForSurvival(N_CODES, D, HEADS, causal=False, use_sinusoidal=True),
}


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_the_hierarchical_model(name: str) -> None:
    plain = shaken(HIERARCHICAL[name]())
    packed = to_packed(plain)
    assert isinstance(packed, HierarchicalBEHRTForSurvival)
    visits = padded()
    batch = VisitBatch.from_padded(*visits)
    hazards = plain(*visits)
    check_gradients(plain, packed, hazards, batch.to_padded(packed(batch).sigmoid()))
    again = to_plain(packed)
    assert torch.equal(again(*visits), hazards)


@pytest.mark.parametrize("name", FLAT)
def test_the_flat_model(name: str) -> None:
    plain = shaken(FLAT[name]())
    packed = to_packed(plain)
    assert isinstance(packed, BEHRTForSurvival)
    stream = tokens()
    batch = VisitBatch.from_flat(*stream)
    hazards = plain(*stream)
    check_gradients(plain, packed, hazards, batch.to_padded(packed(batch).sigmoid()))
    assert torch.equal(to_plain(packed)(*stream), hazards)


def test_the_loss_is_the_engines() -> None:
    plain = shaken(nn.HierarchicalBEHRTForSurvival(N_CODES, D, HEADS))
    visits = padded()
    t, event = torch.tensor([3, 2, 0]), torch.tensor([1, 0, 1])
    loss = nn.DiscreteTimeSurvivalLoss(from_logits=True)(plain(*visits, return_logits=True), t, event, visits[4])
    at_risk = visits[4] & (torch.arange(V) <= t.unsqueeze(1))
    cause = (torch.arange(V) == t.unsqueeze(1)).long() * event.unsqueeze(1)
    batch = VisitBatch.from_padded(*visits, at_risk=at_risk, cause=cause)
    torch.testing.assert_close(to_packed(plain).loss(batch, divisor=B), loss, **TOLERANCE)


# ---- parts -----------------------------------------------------------------------------------------------------------


def packed_codes(e: Tensor, real: Tensor) -> CodeVectors:
    rows = e[real]
    return CodeVectors(rows, torch.arange(len(rows)))


@pytest.mark.parametrize("encoder", ["mean", "query", "bottleneck", "transformer"])
def test_visit_encoders(encoder: str) -> None:
    plain = {
        "mean": nn.MeanPoolingVisitEncoder,
        "query": lambda: nn.AttnPoolingVisitEncoder(D),
        "bottleneck": lambda: nn.AttnPoolingVisitEncoder(D, "bottleneck"),
        "transformer": lambda: nn.TransformerVisitEncoder(D, HEADS),
    }[encoder]()
    packed = to_packed(shaken(plain))
    codes, code_mask, ages, days, visit_mask = padded()
    batch = VisitBatch.from_padded(codes, code_mask, ages, days, visit_mask)
    e = torch.randn(B, V, C, D, dtype=torch.float64)
    real = code_mask & visit_mask.unsqueeze(-1)
    u = plain(e, real)
    got = batch.to_padded(packed(packed_codes(e, real), batch))
    torch.testing.assert_close(got, u, **TOLERANCE)
    assert type(to_plain(packed)) is type(plain)


def test_embeddings_timeline_and_head() -> None:
    codes, code_mask, ages, days, visit_mask = padded()
    batch = VisitBatch.from_padded(codes, code_mask, ages, days, visit_mask)
    real = code_mask & visit_mask.unsqueeze(-1)
    u = torch.randn(B, V, D, dtype=torch.float64).masked_fill(~visit_mask.unsqueeze(-1), 0)
    code = shaken(nn.CodeEmbedding(N_CODES, D))
    rows = code(codes.masked_fill(~real, 0))[real]
    torch.testing.assert_close(to_packed(code)(batch).expand(), rows, **TOLERANCE)
    typed = shaken(nn.CodeEmbedding(N_CODES, D, n_types=3))
    types = codes % 3
    with_types = VisitBatch.from_padded(codes, code_mask, ages, days, visit_mask, code_types=types)
    rows = typed(codes.masked_fill(~real, 0), types)[real]
    torch.testing.assert_close(to_packed(typed)(with_types).expand(), rows, **TOLERANCE)
    time = shaken(nn.VisitTimeEmbedding(D))
    got = batch.to_padded(to_packed(time)(u[visit_mask], batch))
    torch.testing.assert_close(got, time(u, ages, days, visit_mask), **TOLERANCE)
    timeline = shaken(nn.TimelineEncoder(D, HEADS))
    got = batch.to_padded(to_packed(timeline)(u[visit_mask], batch))
    torch.testing.assert_close(got, timeline(u, visit_mask), **TOLERANCE)
    head = shaken(nn.SurvivalHead(D))
    torch.testing.assert_close(to_packed(head)(u.flatten(0, 1)).view(B, V).sigmoid(), head(u), **TOLERANCE)
    for delta in (shaken(nn.DeltaTEmbedding(D)), shaken(nn.DeltaTEmbedding(D, bin_days=7.0))):
        got = to_packed(delta)(batch.delta_days, batch.visit_index == 0)
        torch.testing.assert_close(batch.to_padded(got)[visit_mask], delta(days)[visit_mask], **TOLERANCE)
    age = shaken(nn.AgeEmbedding(D, age_bin_size=1))
    torch.testing.assert_close(to_packed(age)(ages.flatten()), age(ages).flatten(0, 1), **TOLERANCE)
    flat = shaken(nn.BEHRTEmbedding(N_CODES, D))
    assert type(to_plain(to_packed(flat))) is nn.BEHRTEmbedding


# ---- what is refused -------------------------------------------------------------------------------------------------

SEEDS = {"n_codes": N_CODES, "dim": D, "heads": HEADS}
LACKING = {
    "rotary": {"rotary": True},
    "visit_encoder.mlp": {"visit_mlp": True},
    "table": {"table_dim": 3, "table_columns": N_CODES},
    "value_table": {"values": "polynomial"},
    "head=horizon": {"head": "horizon", "edges_days": (30.0,)},
    "wide_head": {"wide_head": True},
    "history_dropout": {"history_dropout": 0.2},
    "code_dropout": {"code_dropout": 0.2},
    "PoolingVisitEncoder": {"visit_encoder": "sum"},
    "delta_bins=linear": {"delta_bins": "linear"},
    "delta_bins=none": {"delta_bins": "none"},
    "position=none": {"position": "none"},
    "age_bin_years=0": {"age_bin_years": 0},
    "age.terms": {"age_polynomial": True},
}


@pytest.mark.parametrize("what", LACKING)
def test_what_the_plain_model_lacks_is_refused_by_name(what: str) -> None:
    model = HierarchicalBEHRTForSurvival(ModelConfig.as_seeds(**{**SEEDS, **LACKING[what]}))
    with pytest.raises(EhrseqError, match=what):
        to_plain(model)


def test_a_trained_vector_of_queries_is_refused() -> None:
    model = HierarchicalBEHRTForSurvival(ModelConfig.as_seeds(**SEEDS))
    to_plain(model)
    torch.nn.init.ones_(model.visit_time_embedding.query)
    with pytest.raises(EhrseqError, match="query"):
        to_plain(model)


def test_what_the_engine_lacks_is_refused_by_name() -> None:
    own = torch.nn.Identity()
    for what, plain in {
        "Identity": nn.HierarchicalBEHRTForSurvival(N_CODES, D, HEADS, visit_encoder=own),
        "heads of its own": nn.HierarchicalBEHRTForSurvival(
            N_CODES, D, HEADS, visit_encoder=nn.TransformerVisitEncoder(D, heads=4)
        ),
        "position_table": nn.HierarchicalBEHRTForSurvival(N_CODES, D, HEADS, max_codes_per_visit=30),
        "VisitEmbedding": nn.VisitEmbedding(D),
        "other bins": nn.DeltaTEmbedding(D, bin_days=30.0),
        "layers.1": nn.TransformerVisitEncoder(D, HEADS, 2),
        "Linear": torch.nn.Linear(2, 2),
    }.items():
        with pytest.raises(EhrseqError, match=what):
            to_packed(plain)


def test_plain_arguments_of_a_packed_model_are_answered_by_the_plain_class() -> None:
    for model in (HierarchicalBEHRTForSurvival, BEHRTForSurvival):
        with pytest.raises(EhrseqError, match=rf"eh\.nn\.{model.__name__}\(n_codes, d\)"):
            model(N_CODES, D)


def test_every_packed_twin_is_of_the_configuration_that_is_documented() -> None:
    packed = to_packed(nn.HierarchicalBEHRTForSurvival(N_CODES, D, HEADS, layers=3))
    assert packed.config == ModelConfig.as_seeds(N_CODES, dim=D, heads=HEADS, layers=3, max_visits=512)
