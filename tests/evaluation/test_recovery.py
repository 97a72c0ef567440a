"""What a model can know beyond age and sex: nothing where there is nothing, and something where there is."""

from pathlib import Path

import pytest

from ehrsequencing.config import load_study, load_task
from ehrsequencing.evaluation.evaluate import evaluate
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.training.train import Trainer

NOTHING = {
    "pair_effect": 0, "gap_effect": 0, "order_effect": 0, "decay_effect": 0, "chronic_effect": 0, "lab_effect": 0,
}  # fmt: skip
SETTINGS = ("model.size=small", "training.epochs=6", "training.learning_rate=1e-3", "evaluation.bootstrap=200")


def lead_over_age_and_sex(folder: Path, **knobs: float) -> dict[str, list[tuple[float, float]]]:
    """Paired differences in C and IPA, at the index and at all prediction times, by a year and later: (low, high).

    By 90 days seven of the held-out people have the event: no interval is to be trusted, and age + sex itself is behind
    a constant risk there (as are the true hazards).
    """
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
            if row["model"] == "age + sex"
            and row["cause"] == metrics["causes"][0]
            and row["metric"] == name
            and row["horizon_days"] > 90
        ]
        for name in ("c", "ipa")
    }
    assert all(len(spans) == 2 * (len(metrics["horizons_days"]) - 1) for spans in found.values())
    return found


@pytest.mark.slow
def test_with_every_mechanism_at_zero_nothing_beats_age_and_sex(tmp_path: Path) -> None:
    for spans in lead_over_age_and_sex(tmp_path).values():
        for low, high in spans:
            assert low <= 0
            assert high < 0.05


@pytest.mark.slow
def test_with_chronic_conditions_there_is_something_to_know(tmp_path: Path) -> None:
    """The control: the same data and the same model find what is there."""
    for spans in lead_over_age_and_sex(tmp_path, chronic_effect=1.0).values():
        assert all(low > 0 for low, _ in spans)
