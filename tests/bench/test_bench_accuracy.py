"""`bench/accuracy.py`, `demo_seeds.py`, `worlds.py`: tables name the strongest baseline that the metrics name."""

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


def test_the_accuracy_table_names_the_strongest_and_the_nll_of_all() -> None:
    text = load_bench("accuracy").section("nafld", found())
    assert "| landmark Cox (strongest) |" in text
    assert "Ours − landmark Cox: C +0.020 (+0.010 to +0.030) *better*" in text
    assert "NLL +0.0200 (+0.0100 to +0.0300) *worse*" in text  # lower is better
    assert "NLL, ours − each: landmark Cox +0.0200" in text
    assert "boosted visits -0.0050 (-0.0150 to +0.0050) *not distinguishable*" in text
    assert "Tuning NLL of the baselines: landmark Cox 1.2000, boosted visits 1.3000." in text
    assert "Ours − boosted" not in text


def test_nll_and_its_difference_over_splits_are_means_over_landmarks() -> None:
    bench, one = load_bench("accuracy"), found()

    def split_row(row: dict[str, Any], values: list[float]) -> dict[str, Any]:
        return {**row, "mean": sum(values) / 2, "values": values}

    rows = [split_row(long(name, "nll", 0, landmark=at, horizon=None), [1.0 + at, 2.0 + at]) for name in MODELS
            for at in (0.0, 1.0)]  # fmt: skip
    gaps = [split_row(long(name, "nll", 0, landmark=at, horizon=None), [at, at]) for name in MODELS[1:]
            for at in (0.0, 1.0)]  # fmt: skip
    one["repeated_splits"] = {"splits": 2, "rows": rows, "differences": gaps, "held_out_subjects": [60, 60],
                              "train_subjects": [240, 240]}  # fmt: skip
    text = bench.many_splits(one)
    assert "| 2.0000 (" in text  # mean of 1, 2, 2, 3
    assert "NLL, ours − each: landmark Cox +0.5000 (+0.5000 to +0.5000) *worse*" in text


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
