"""What a model can know beyond age and sex: nothing where there is nothing, and something where there is."""

from pathlib import Path

import pytest

from ehrsequencing.config import load_study, load_task
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.records.prepared import Prepared, prepare
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.training.loop import Trainer

NOTHING = {
    "pair_effect": 0, "gap_effect": 0, "order_effect": 0, "decay_effect": 0, "chronic_effect": 0, "lab_effect": 0,
}  # fmt: skip
SETTINGS = ("model.size=small", "training.epochs=6", "training.learning_rate=1e-3", "evaluation.bootstrap=200")


def lead_over_age_and_sex(folder: Path, **knobs: float) -> dict[str, list[tuple[float, float]]]:
    """Paired differences in C and IPA, at the index and at all prediction times, by every horizon: (low, high)."""
    world = SimulationConfig(outcome_per_year=0.08, background_codes=40, truth_futures=4, **{**NOTHING, **knobs})
    simulate(folder / "data", subjects=3000, seed=5, config=world)
    study = load_study(None, SETTINGS)
    prepare(folder / "data", folder / "prepared", study=study, tasks=[load_task(folder / "data" / "task.yaml")])
    Trainer(Prepared(folder / "prepared"), "simulated", folder / "run", study=study).fit()
    metrics = evaluate(folder / "run")
    found = {
        name: [
            (row["low"], row["high"])
            for row in metrics["differences"]
            if row["model"] == "age + sex" and row["cause"] == metrics["causes"][0] and row["metric"] == name
        ]
        for name in ("c", "ipa")
    }
    assert all(len(spans) == 2 * len(metrics["horizons_days"]) for spans in found.values())
    return found


@pytest.mark.slow
def test_with_every_mechanism_at_zero_nothing_beats_age_and_sex(tmp_path: Path) -> None:
    found = lead_over_age_and_sex(tmp_path)
    assert sum(low > 0 for low, _ in found["c"]) <= 1  # of eight 95 % intervals
    assert all(low < 0.01 for low, _ in found["ipa"])  # by 90 days some .007 ahead, in level: nobody is ranked better
    for spans in found.values():
        assert sum(high >= 0.05 for _, high in spans) <= 1  # 90 days have few events, and a wide interval


@pytest.mark.slow
def test_with_chronic_conditions_there_is_something_to_know(tmp_path: Path) -> None:
    """The control: the same data and the same model find what is there."""
    for spans in lead_over_age_and_sex(tmp_path, chronic_effect=1.0).values():
        assert all(low > 0 for low, _ in spans)
