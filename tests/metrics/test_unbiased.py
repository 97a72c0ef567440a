"""With censored data the estimators hit, on average, what the uncensored data would have shown.

Each simulated cohort is evaluated twice by the same code: with everyone followed to the event (the truth of that
cohort), and censored. The mean difference over cohorts must lie within two of its standard errors. Counting competing
events as censoring must not: that is the mistake these metrics exist to avoid.
"""

from __future__ import annotations

import numpy as np
import pytest

from ehrsequencing.metrics.accuracy import decision_curve
from ehrsequencing.metrics.calibration import calibration_intercept_slope
from ehrsequencing.metrics.outcomes import ScoredRows
from helpers.metric_table import metric_table

HORIZONS = np.array([1.0, 3.0])


def cohort(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """True time and cause, censored duration and cause, and somewhat wrong risks (n, 2, horizons)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    hazard = np.array([0.12, 0.16]) * np.exp(x * [0.9, 0.6])
    total = hazard.sum(axis=1)
    time = rng.exponential(1.0 / total)
    cause = np.where(rng.random(n) < hazard[:, 0] / total, 1, 2)
    censored_at = np.minimum(rng.exponential(6.0, size=n), rng.uniform(2.0, 8.0, size=n))
    share = (hazard / total[:, None])[:, :, None]
    truth = share * (1.0 - np.exp(-total[:, None, None] * HORIZONS))
    wrong = 0.8 * truth * np.exp(0.3 * rng.normal(size=(n, 2, 1)))
    return time, cause, np.minimum(time, censored_at), np.where(time <= censored_at, cause, 0), np.minimum(wrong, 0.99)


def everything(duration: np.ndarray, cause: np.ndarray, risk: np.ndarray) -> dict[str, np.ndarray]:
    table = metric_table(duration, cause, risk, HORIZONS)
    rows = ScoredRows.of(duration, cause, risk, HORIZONS)
    table["intercept"], table["slope"] = calibration_intercept_slope(rows)
    table["net_benefit"] = decision_curve(rows, [0.2]).net_benefit
    return table


def standardised_bias(n_cohorts: int, n: int, *, competing_is_censoring: bool) -> dict[str, float]:
    """Mean of censored − uncensored over its standard error, per metric; first cause, last horizon."""
    differences: dict[str, list[float]] = {}
    for seed in range(n_cohorts):
        time, cause, duration, seen, risk = cohort(seed, n)
        if competing_is_censoring:
            seen = np.where(seen == 2, 0, seen)
        truth, estimate = everything(time, cause, risk), everything(duration, seen, risk)
        for name in truth:
            differences.setdefault(name, []).append(float((estimate[name] - truth[name])[0, -1].item()))
    return {
        name: float(np.mean(values) / (np.std(values, ddof=1) / np.sqrt(len(values))))
        for name, values in differences.items()
        if name != "oe"  # of wrong risks it depends on how long people are followed; test_known_truth has right ones
    }


@pytest.mark.parametrize(
    ("n_cohorts", "n"), [(40, 300), pytest.param(800, 1000, marks=pytest.mark.slow)], ids=["fast", "thorough"]
)
def test_unbiased_within_two_standard_errors(n_cohorts: int, n: int) -> None:
    bias = standardised_bias(n_cohorts, n, competing_is_censoring=False)
    assert {name: z for name, z in bias.items() if abs(z) > 2} == {}


def test_competing_events_treated_as_censored_are_biased() -> None:
    bias = standardised_bias(20, 600, competing_is_censoring=True)
    # Who had the competing event is thought to be at risk of this one still: too many events, too large an error.
    for name in ("observed", "brier", "null_brier", "intercept", "net_benefit"):
        assert bias[name] > 5, name
