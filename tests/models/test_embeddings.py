"""What small cohorts need: `code_dropout`, by which training loses whole codes, and `age_polynomial`."""

import math

import pytest
import torch
import torch.nn.functional as F

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.models import attention
from ehrsequencing.models.attention import TransformerLayer
from ehrsequencing.models.base import SurvivalModel as Model
from ehrsequencing.models.embeddings import AgeEmbedding
from ehrsequencing.models.segments import code_dropout, dropout
from helpers.model_checks import check_changes_in_training_only, every_model, outputs_and_gradients
from helpers.models import MODELS, make_model
from helpers.strategies import pack, sample_records


@pytest.mark.parametrize("architecture", ["hierarchical", "flat"])
def test_a_dropped_code_is_one_that_was_never_recorded(architecture: str) -> None:
    """In training the answer is that to the batch without some codes; static codes, labels and visits stay."""
    torch.manual_seed(0)
    batch = pack(sample_records())
    model = make_model(architecture=architecture, dropout=0, history_dropout=0, code_dropout=0.4)
    torch.manual_seed(1)
    found = model.train()(batch)
    torch.manual_seed(1)
    kept = dropout(torch.ones(batch.n_codes), 0.4, training=True) > 0
    assert 0 < int(kept.sum()) < batch.n_codes
    model.eval()
    torch.testing.assert_close(found, model(batch.with_codes(kept)))
    assert not torch.equal(found, model(batch))
    assert torch.equal(model(batch), model(batch.with_codes(torch.ones_like(kept))))


def test_codes_are_dropped_one_by_one_with_what_belongs_to_them() -> None:
    torch.manual_seed(0)
    n = 20_000
    batch = VisitBatch(
        codes=torch.arange(n) % 50,
        visit_offsets=torch.arange(0, n + 1, 10),
        subject_offsets=torch.tensor([0, n // 10]),
        age_years=torch.zeros(n // 10),
        delta_days=torch.zeros(n // 10),
        values=torch.arange(2.0 * n).view(n, 2),
        code_types=torch.arange(n) % 7,
    )
    seen = code_dropout(batch, 0.3)
    assert seen.values is not None
    assert seen.code_types is not None
    place = (seen.values[:, 0] / 2).long()  # of each code that is left
    assert abs(len(place) / n - 0.7) < 0.015
    assert bool((place.diff() > 0).all())
    assert torch.equal(seen.codes, place % 50)
    assert torch.equal(seen.code_types, place % 7)
    assert torch.equal(seen.visit_of_code, place // 10)
    assert abs(float((place % 50 == 3).sum()) / (n / 50) - 0.7) < 0.1  # of one code some go and some stay
    assert code_dropout(batch, 0.0) is batch


def test_age_polynomial_adds_a_cubic_to_the_bins() -> None:
    torch.manual_seed(0)
    embedding = AgeEmbedding(ModelConfig(dim=8, heads=2, age_polynomial=True)).double()
    ages = [0.0, 49.9, 50.0, 51.3, 67.25, 120.0, 300.0, float("nan")]
    found = embedding(torch.tensor(ages, dtype=torch.float64))
    assert embedding.terms is not None
    first, second, third = embedding.terms
    for age, vector in zip(ages, found, strict=True):
        wanted = embedding.table.weight[25 if math.isnan(age) else min(int(age // 5), 24)]
        if not math.isnan(age):
            a = (min(age, 120.0) - 50) / 20
            wanted = wanted + a * first + (a**2 - 1) * second + (a**3 - 3 * a) * third
        torch.testing.assert_close(vector, wanted, rtol=1e-12, atol=1e-12)
    plain = AgeEmbedding(ModelConfig(dim=8, heads=2)).double()
    years = torch.tensor([50.0, 54.9, 55.0], dtype=torch.float64)
    assert torch.equal(plain(years[:1]), plain(years[1:2]))  # within a bin all ages are one
    assert not torch.equal(embedding(years[:1]), embedding(years[1:2]))


# ---- the same bits for the same seed, dropout, and how far float32 and bfloat16 stray --------------------------------


LENGTHS = (9, 1, 14, 6)


@pytest.mark.parametrize(
    ("kind", "threads"),
    [("query", 1), ("query", 2), ("transformer", 1), ("max", 1), ("flat", 1), ("flat 9", 1)],
)
def test_same_seed_same_bits(kind: str, threads: int) -> None:
    subjects = sample_records(lengths=(12, 9, 3, 20, 1))
    torch.set_num_threads(threads)
    try:
        runs = []
        for _ in range(2):
            torch.manual_seed(0)
            model = make_model(**MODELS[kind], dim=32, dropout=0.2).float().train()
            runs.append(outputs_and_gradients(model, pack(subjects, dtype=torch.float32)))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    torch.manual_seed(0)
    ones = torch.ones(1001, 333, requires_grad=True)
    out = dropout(ones, 0.3, training=True)
    kept = out != 0
    assert abs(float(kept.double().mean()) - 0.7) < 0.005
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / 0.7), rtol=1e-4, atol=0)
    assert abs(float(kept.double().mean(0).std()) - (0.21 / 1001) ** 0.5) < 0.002  # no column is favoured
    (gradient,) = torch.autograd.grad(out.sum(), ones)
    assert torch.equal(gradient, out.detach())
    assert dropout(ones, 0.3, training=False) is ones


def test_history_dropout_drops_whole_rows_of_what_the_past_offers() -> None:
    """A layer in training equals itself in evaluation on values of which whole rows are gone."""
    config = ModelConfig(dim=16, heads=2, layers=1, dropout=0)
    batch = pack(sample_records())
    plan = attention.time_plan(batch, window=512, bidirectional=False)
    x = torch.randn(batch.n_visits, 16, dtype=torch.float64)
    layer = TransformerLayer(config, value_dropout=0.4).double()
    torch.manual_seed(3)
    found = layer.train()(x, plan)
    torch.manual_seed(3)
    kept = dropout(torch.ones(batch.n_visits, 1, dtype=torch.float64), 0.4, training=True)
    assert 0 < int((kept == 0).sum()) < batch.n_visits
    q, k, v = layer.qkv(layer.attention_norm(x)).chunk(3, dim=1)
    wanted = x + layer.attention_scale * layer.out(plan.attend(q, k, v * kept, heads=2))
    wanted = wanted + layer.mlp_scale * layer.W2(torch.nn.functional.gelu(layer.W1(layer.mlp_norm(wanted))))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert not torch.equal(found, layer.eval()(x, plan))


@pytest.mark.parametrize("architecture", ["hierarchical", "flat"])
def test_history_dropout_reaches_attention_over_time(architecture: str) -> None:
    torch.manual_seed(0)
    check_changes_in_training_only(make_model(architecture=architecture, dropout=0, history_dropout=0.5))


def strays(model: Model, coarse: torch.dtype) -> tuple[float, float]:
    """How far logits stray (relative norm), and the worst direction (cosine) of a parameter's gradient.

    Gradients below 1e-4 of the largest are rounding themselves and do not count.
    """
    fine_dtype = torch.float64 if coarse == torch.float32 else torch.float32
    model = model.to(fine_dtype)
    logits, gradients = outputs_and_gradients(model, pack(sample_records(lengths=LENGTHS), dtype=fine_dtype))
    batch = pack(sample_records(lengths=LENGTHS), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=coarse == torch.bfloat16):
        rough_logits, rough = outputs_and_gradients(model.float(), batch)
    assert rough_logits.dtype == coarse
    largest = max(float(g.norm()) for g in gradients)
    cosines = [
        float(F.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0))
        for a, b in zip(gradients, rough, strict=True)
        if float(a.norm()) > 1e-4 * largest
    ]
    return float(((rough_logits - logits).norm() / logits.norm()).detach()), min(cosines)


@every_model
def test_float32_stays_near_float64(kind: str) -> None:
    """Measured at most 7e-7, and 1 - 4e-12."""
    logits, cosine = strays(make_model(**MODELS[kind], dim=32), torch.float32)
    assert logits < 3e-6
    assert cosine > 1 - 1e-9


@every_model
def test_bf16_autocast_stays_near_float32(kind: str) -> None:
    """Measured at most .016, and .997: scores of pooling and attention are kept in float32."""
    logits, cosine = strays(make_model(**MODELS[kind], dim=32), torch.bfloat16)
    assert 0 < logits < 0.03
    assert cosine > 0.99
