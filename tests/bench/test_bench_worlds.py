"""`bench/demo_seeds.py` and `worlds.py`: tables name the strongest baseline that the metrics name."""

from typing import Any

import pytest

from helpers.bench import load_bench

MODELS = ["ehrsequencing", "landmark Cox", "boosted visits"]
ORACLE = {"name": "true hazards", "gain_share": 0.7, "gain_share_expected": 0.6}


def long(model: str, metric: str, value: float, *, landmark: float | None = 0.0, horizon: float | None = 730.5,
         half: float = 0.01) -> dict[str, Any]:  # fmt: skip
    place = {"landmark_days": landmark, "horizon_days": horizon, "cause": "death"}
    return {"model": model, **place, "metric": metric, "value": value, "low": value - half, "high": value + half}


def found() -> dict[str, Any]:
    """Metrics in which landmark Cox is the strongest, and its NLL is better than ours."""
    metrics = [long(name, metric, 0.8 - 0.1 * k) for k, name in enumerate([*MODELS, "true hazards"]) for metric in
               ("c", "ipa")]  # fmt: skip
    metrics += [long(name, "nll", 2.0 + 0.1 * k, landmark=at, horizon=None) for k, name in enumerate(MODELS) for at in
                (0.0, None)]  # fmt: skip
    gaps = [long(name, metric, 0.02) for name in MODELS[1:] for metric in ("c", "ipa")]
    gaps += [long(name, "nll", value, landmark=at, horizon=None)
             for name, value in zip(MODELS[1:], (0.02, -0.005), strict=True) for at in (0.0, None)]  # fmt: skip
    return {
        "models": MODELS, "strongest": "landmark Cox", "causes": ["death"], "landmarks_days": [0.0],
        "horizons_days": [730.5], "metrics": metrics, "differences": gaps, "oracle": ORACLE,
        "events": {"train": {"death": 20}}, "at_risk": [{"subjects": 100}],
        "baselines": [{"model": "landmark Cox", "tuning_nll": 1.2}, {"model": "boosted visits", "tuning_nll": 1.3}],
    }  # fmt: skip


def test_seeds_of_the_demo_come_with_their_spread() -> None:
    bench = load_bench("demo_seeds")
    row = bench.numbers(found())
    assert row == pytest.approx([0.6, 0.7, 0.8, 0.7, 0.5, 0.02])
    text = bench.table({0: row, 1: [0.8, *row[1:]]})
    assert "| 0 | 0.600 | 0.700 | 0.800 | 0.700 | 0.500 | 0.020 |" in text
    assert "| mean ± SD | 0.700 ± 0.141 | 0.700 ± 0.000 |" in text


def test_worlds_are_told_with_their_strongest_baseline() -> None:
    bench = load_bench("worlds")
    ours, cox, boosted = bench.lines("additive", found())
    assert ours == "| additive | ehrsequencing | 0.800 | 0.800 | 2.0000 |  |"
    assert cox.startswith("| additive | landmark Cox (strongest baseline) | 0.700 | 0.700 | 2.1000 | +0.0200 (")
    assert "strongest" not in boosted
    assert bench.WORLDS["additive"] == ["pair_effect=0", "chronic_effect=0.8", "lab_effect=0.8"]
