"""Make `tied_oracles.json`: metrics of outside libraries on data with ties, which the tests compare ours with.

The libraries are in no environment of ours, so their numbers are kept. They need no ties broken: each has the rule that
who is censored at an instant outlived the events of that instant. Run it again after a change of `random_sample`:

    python -m venv oracles
    oracles/bin/pip install SurvivalEVAL==0.9.0 survival==2.0.0 polarstate==0.1.10
    PYTHONPATH=tests oracles/bin/python -m reference.tied_oracles
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from reference.metrics_bruteforce import Sample, random_sample

FILE = Path(__file__).with_suffix(".json")
PACKAGES = ("SurvivalEVAL", "survival", "polarstate")
SEEDS = range(60)


def sample_of(seed: int) -> Sample:
    """One cause for each third seed, else two: with ties between events, censorings and horizons."""
    return random_sample(seed, n_causes=1 if seed % 3 == 0 else 2)


def fingerprint(sample: Sample) -> float:
    """A number that another sample would not have."""
    return float(sample.duration @ (1.0 + sample.cause) + sample.risk.sum() + sample.horizons.sum())


def usable_horizons(sample: Sample) -> list[int]:
    """Horizons before the last observed time, by which something happened."""
    first, last = sample.duration[sample.cause > 0].min(initial=np.inf), sample.duration.max()
    return [h for h, days in enumerate(sample.horizons) if first <= days < last]


def evaluated(sample: Sample, h: int) -> Iterator[tuple[str, int, float]]:
    """Brier score, AUC and Wolbers' C of each cause by SurvivalEVAL, weighted on the same rows."""
    from SurvivalEVAL.evaluators.competing_risks_evaluator import CompetingRisksEvaluator

    grid = np.array([sample.horizons[h], sample.duration.max() + 1.0])
    evaluator = CompetingRisksEvaluator(
        sample.risk[:, :, [h, h]],
        grid,
        sample.duration,
        sample.cause,
        train_event_times=sample.duration,
        train_event_indicators=sample.cause,
    )
    for e in range(1, sample.risk.shape[1] + 1):
        yield "brier", e, float(evaluator.brier_score_per_event(e, grid[0]))
        if len({bool(of) for of in (sample.cause == e) & (sample.duration <= grid[0])}) == 2:
            yield "auc", e, float(evaluator.auc_per_event(e, grid[0], method="IPCW"))
            found = evaluator.concordance_per_event(
                e, method="IPCW", tau=math.nextafter(grid[0], math.inf), predict_risk_method="CIF", target_time=grid[0]
            )  # its tau itself is excluded
            yield "wolbers", e, float(found[0])


def concordance(sample: Sample, h: int) -> float:
    """Uno's C by R's `concordance` with the weights n/G2, as the package survival ports it; one cause."""
    import survival

    outcome = survival.Surv(sample.duration.tolist(), (sample.cause == 1).astype(int).tolist())
    score = sample.risk[:, 0, h].tolist()
    found = survival.concordance(outcome, scores=score, timewt="n/G2", ymax=float(sample.horizons[h]), reverse=True)
    return float(np.ravel(found.concordance)[0])


def incidences(sample: Sample, h: int) -> list[float]:
    """Aalen–Johansen's incidence of two causes by polarstate."""
    import polars as pl
    import polarstate

    table = polarstate.prepare_event_table(pl.DataFrame({"times": sample.duration, "reals": sample.cause}))
    found = polarstate.predict_aj_estimates(table, pl.Series([float(sample.horizons[h])]))
    return [float(found[f"state_occupancy_probability_{e}"][0]) for e in (1, 2)]


def numbers(seed: int) -> Iterator[list[Any]]:
    """[metric, cause, horizon, number] of each number of a sample."""
    sample = sample_of(seed)
    for h in usable_horizons(sample):
        yield from ([name, e, h, number] for name, e, number in evaluated(sample, h))
        if sample.risk.shape[1] == 1:
            yield ["uno", 1, h, concordance(sample, h)]
        else:
            yield from (["incidence", e, h, number] for e, number in enumerate(incidences(sample, h), start=1))


def cox_rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Covariates (40, 2), entries, durations and events, with ties among and between all times."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-8, 9, (40, 2)) / 4.0
    entry = rng.integers(0, 6, 40) / 2.0
    return x, entry, entry + rng.integers(1, 12, 40) / 2.0, rng.random(40) < 0.6


def log_hazard_ratios(seed: int) -> list[float]:
    """Of R's `coxph(Surv(start, stop, event) ~ x)` with ties by Breslow, as the package survival ports it."""
    import survival

    x, entry, duration, event = cox_rows(seed)
    data = {"start": entry, "stop": duration, "event": event.astype(int), "a": x[:, 0], "b": x[:, 1]}
    found = survival.coxph(
        "Surv(start, stop, event) ~ a + b", data=data, ties="breslow", eps=1e-12, toler_chol=1e-14, iter_max=50
    )
    return [float(value) for value in survival.coef(found)]


def main() -> None:
    """Write the file."""
    warnings.simplefilter("ignore")
    rows = {}
    for seed in SEEDS:
        found = [row for row in numbers(seed) if math.isfinite(row[-1])]
        rows[str(seed)] = {"fingerprint": fingerprint(sample_of(seed)), "numbers": found}
    cox = {str(seed): log_hazard_ratios(seed) for seed in range(10)}
    versions = {name: version(name) for name in PACKAGES}
    FILE.write_text(json.dumps({"versions": versions, "samples": rows, "cox": cox}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
