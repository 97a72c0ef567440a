"""How often 95 % intervals hold what they estimate, with 30 events: `python -m bench coverage`."""

import argparse

import numpy as np

from ehrsequencing.evaluation.comparison import Comparison, draw_subjects
from ehrsequencing.evaluation.curves import decision_rows
from ehrsequencing.evaluation.estimates import metric_estimates
from ehrsequencing.metrics.registry import METRICS

KEYS = ("c", "auc", "brier", "ipa", "oe")
OPERATING = ("flagged", "sensitivity", "ppv")
HORIZON = 1.0
INCIDENCE = 0.15


def people(seed: int, n: int) -> Comparison:
    """True risks of one year, a constant hazard; a fifth leave before. The whole of `seed` 0 is the truth."""
    rng = np.random.default_rng(seed)
    rate = -np.log1p(-INCIDENCE) * np.exp(0.9 * rng.normal(size=n) - 0.3)
    event, end = rng.exponential(1 / rate), rng.exponential(4.0, n)
    end = np.where(seed == 0, np.inf, end)
    risk = -np.expm1(-rate * HORIZON)[:, None, None]
    cause, days = (event <= end).astype(np.int64), np.minimum(event, end)
    draws = draw_subjects(n, 0 if seed == 0 else 300, seed)
    return Comparison(0.0, np.arange(n), days, cause, np.array([HORIZON]), {"model": risk}, draws)


def intervals(scope: Comparison, thresholds: list[float]) -> dict[str, tuple[float, float, float]]:
    """Metric → value, lower and upper limit."""
    found = {}
    for key, one in metric_estimates(scope, "model", [METRICS[key] for key in KEYS]).items():
        found[key] = one.value[0, 0], one.interval[0][0, 0], one.interval[1][0, 0]
    row = decision_rows(scope, ["event"], models=["model"], thresholds=thresholds)[0]
    for key in OPERATING:
        found[key] = tuple(row[f"{key}{end}"][0] for end in ("", "_low", "_high"))
    return {key: tuple(np.nan if x is None else x for x in one) for key, one in found.items()}


def main() -> None:
    """Print a line for each metric."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--simulations", type=int, default=2_000)
    given.add_argument("--events", type=int, default=30)
    asked = given.parse_args()
    truth = intervals(people(0, 400_000), [0.2])
    n = round(asked.events * 100_000 / people(1, 100_000).subjects_with_event()[0, 0])
    drawn = [intervals(people(seed, n), [0.2]) for seed in range(1, asked.simulations + 1)]
    print("| metric | truth | coverage | below | above | undefined |\n|---|---|---|---|---|---|")
    for key, (value, *_) in truth.items():
        low, high = np.array([one[key][1:] for one in drawn]).T
        known = ~np.isnan(low)
        below, above = (high < value)[known].mean(), (low > value)[known].mean()
        cells = f"{1 - below - above:.3f} | {below:.3f} | {above:.3f} | {1 - known.mean():.3f}"
        print(f"| {key} | {value:.3f} | {cells} |")


if __name__ == "__main__":
    main()
