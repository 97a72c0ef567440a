"""What small cohorts need: `code_dropout`, by which training loses whole codes, and `age_polynomial`."""

import math

import pytest
import torch

from ehrsequencing.config import ModelConfig
from ehrsequencing.models.embeddings import AgeEmbedding, CodeEmbedding
from ehrsequencing.models.segments import CodeVectors
from helpers.model_checks import check_changes_in_training_only
from helpers.models import make_model
from helpers.strategies import pack, sample_records


def test_whole_codes_are_dropped_and_the_others_grow() -> None:
    torch.manual_seed(0)
    vectors = CodeVectors(torch.randn(50, 8, dtype=torch.float64), torch.randint(50, (20_000,)))
    whole, found = vectors.expand(), vectors.dropped(0.3).expand()
    gone = (found == 0).all(dim=1)
    assert abs(float(gone.double().mean()) - 0.3) < 0.015
    torch.testing.assert_close(found[~gone], whole[~gone] / 0.7, rtol=1e-4, atol=0)
    of_one_row = gone[vectors.index == vectors.index[0]]  # codes that share a row are dropped one by one
    assert 0 < int(of_one_row.sum()) < len(of_one_row)


def test_it_is_for_training_only_and_spares_static_codes() -> None:
    torch.manual_seed(0)
    batch = pack(sample_records())
    embedding = CodeEmbedding(ModelConfig(vocab_size=200, dim=8, heads=2, code_dropout=0.5)).eval()
    still, static = embedding(batch).expand(), embedding.of_static(batch)
    assert torch.equal(embedding(batch).expand(), still)
    assert not (still == 0).all(dim=1).any()
    embedding.train()
    assert 0 < int((embedding(batch).expand() == 0).all(dim=1).sum()) < batch.n_codes
    assert torch.equal(embedding.of_static(batch), static)


@pytest.mark.parametrize("architecture", ["hierarchical", "flat"])
def test_it_reaches_both_architectures(architecture: str) -> None:
    torch.manual_seed(0)
    check_changes_in_training_only(make_model(architecture=architecture, dropout=0, code_dropout=0.5))


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
