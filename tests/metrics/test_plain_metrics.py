"""The metrics on plain arrays are those of the evaluation, which other libraries check."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ehrsequencing as eh
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.metrics import discrimination
from ehrsequencing.metrics.outcomes import ScoredRows


def drawn(seed: int, n: int = 120, causes: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    risk = rng.uniform(0.05, 0.9, n)
    return rng.exponential(300 / (0.3 + risk)) + 1, rng.integers(0, causes + 1, n), risk


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), causes=st.integers(1, 3))
def test_they_are_those_of_scored_rows(seed: int, causes: int) -> None:
    time, cause, risk = drawn(seed, causes=causes)
    risks = np.full((len(time), causes, 1), 0.01)
    risks[:, 0, 0] = risk
    rows = ScoredRows.of(time, cause, risks, [200.0])
    assert eh.metrics.concordance(time, cause, risk, horizon=200) == discrimination.wolbers_c(rows)[0, 0]
    assert eh.metrics.auc(time, cause, risk, horizon=200) == discrimination.cumulative_dynamic_auc(rows)[0, 0]
    scores = 40 * risk - 7  # only the order counts
    assert eh.metrics.concordance(time, cause, scores, horizon=200) == discrimination.wolbers_c(rows)[0, 0]


def test_another_cause_is_not_ignored() -> None:
    """A competing event keeps its subject as event-free; taken for censored, C would differ."""
    time, cause, risk = drawn(5)
    as_censored = np.where(cause == 2, 0, cause)
    right, wrong = (eh.metrics.concordance(time, c, risk, horizon=400) for c in (cause, as_censored))
    assert abs(right - wrong) > 1e-3


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(EhrseqError, match="one risk a row"):
        eh.metrics.brier([1.0], [1], [[0.5]], horizon=2)
    with pytest.raises(EhrseqError, match=r"outside 0\.\.1"):
        eh.metrics.brier([1.0, 2.0], [1, 0], [0.5, 1.5], horizon=2)
    with pytest.raises(EhrseqError, match=r"missing or outside"):
        eh.metrics.concordance([1.0, 2.0], [1, 0], [0.5, np.nan], horizon=2)
