"""O/E of true risks is 1, however the hazard runs within the horizons and however many people leave before them."""

import numpy as np
import pytest

from ehrsequencing.metrics.accuracy import observed_over_expected
from ehrsequencing.metrics.hazards import expected_events
from ehrsequencing.metrics.outcomes import ScoredRows

YEARS = np.array([1.0, 3.0, 5.0])
SHAPES = (0.35, 0.6, 2.0, 3.0)


def world(
    shape: float, leaving: float, horizons: np.ndarray, *, n: int = 30_000
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Durations, causes and true risks; a share of the people leaves before the last horizon."""
    rng = np.random.default_rng([int(100 * shape), int(100 * leaving)])
    rate = 0.3 * np.exp(0.8 * rng.normal(size=n)) / 5.0**shape
    event = rng.exponential(1 / rate) ** (1 / shape)
    end = rng.exponential(-5.0 / np.log1p(-leaving), n)
    risk = -np.expm1(-rate[:, None] * horizons**shape)[:, None]
    return np.minimum(event, end), (event <= end).astype(np.int64), risk


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leaving", [0.5, 0.7])
@pytest.mark.parametrize("horizons", [YEARS[-1:], YEARS], ids=["one horizon", "three horizons"])
def test_true_risks_have_a_ratio_of_one(shape: float, leaving: float, horizons: np.ndarray) -> None:
    duration, cause, risk = world(shape, leaving, horizons)
    ratio = observed_over_expected(ScoredRows.of(duration, cause, risk, horizons))[0]
    assert abs(ratio[-1] - 1) < 0.03
    events = ((cause == 1)[:, None] & (duration[:, None] <= horizons)).sum(axis=0)
    assert (np.abs(ratio - 1) < 4 / np.sqrt(events)).all()  # few are early where hazards rise


def test_one_hazard_through_one_horizon_blames_them() -> None:
    """The mutant: what the number was until version 3."""
    worst = []
    for shape in SHAPES:
        duration, cause, risk = world(shape, 0.7, YEARS[-1:])
        through = expected_events(risk, YEARS[-1:], duration_days=duration, horizons_days=YEARS[-1:])
        rows = ScoredRows.of(duration, cause, risk, YEARS[-1:], expected=through)
        worst.append(observed_over_expected(rows)[0, 0])
    assert worst[0] > 1.2 > 0.9 > worst[2] > worst[3]
