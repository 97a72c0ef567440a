"""Adds the competing-risk forest to splits that `bench/real.py` has kept: `python bench/real_forest.py DATA OUT SET …`.

The forest needs a split's subjects, its time grid and nothing of the trained model. So each kept split is prepared
again, a network is trained for one epoch to have its grid, and only the forest's numbers are taken. Beside them
landmark Cox is fitted again: its numbers must be those that were kept, which shows that subjects, labels and grid are
the same. `--settings` names the trial, as in `training.blend=true`.
"""

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _real_numbers import COLUMNS
from _real_results import keep, kept_splits, lengthened, shortened
from ehrsequencing.baselines.forest import CompetingForest
from ehrsequencing.baselines.landmark_cox import LandmarkCox
from ehrsequencing.core.process import keep_freed_memory
from ehrsequencing.evaluation.repeated_splits import one_split
from real import SETS, Trial, study_of

QUICK = (
    "training.epochs=1",
    "training.min_steps=1",
    "model.size=small",
    "evaluation.explained_subjects=0",
)


def forest_of(trial: Trial, data: Path, kept: Mapping[str, Any]) -> dict[str, Any]:
    """A kept split with the forest's numbers.

    Raises:
        SystemExit: Landmark Cox has other numbers than were kept.
    """
    seed, quick = int(kept["seed"]), study_of(trial.name, QUICK)
    settings = trial.judged_by.model_copy(update={"tuning_trials": 1})
    folder = trial.out / trial.name / f"seed-{seed}"
    found = one_split(
        data / f"{trial.name}_meds", folder, study=quick, seed=seed, settings=settings
    )
    fresh, merged = (
        shortened(found, COLUMNS),
        {key: dict(kept[key]) for key in ("values", "tuning_nll")},
    )
    if (
        differs(fresh["values"][LandmarkCox.name], kept["values"][LandmarkCox.name])
        or fresh["places"] != kept["places"]
    ):
        raise SystemExit(f"{trial.name}, seed {seed}: landmark Cox is not the one that was kept")
    merged["values"][CompetingForest.name] = fresh["values"][CompetingForest.name]
    merged["tuning_nll"][CompetingForest.name] = fresh["tuning_nll"][CompetingForest.name]
    return {**kept, **merged}


def differs(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two models' numbers differ by more than rounding."""
    pairs = [pair for metric in other for pair in zip(one[metric], other[metric], strict=True)]
    return any(
        (a is None) != (b is None) or (a is not None and not math.isclose(a, b, abs_tol=2e-5))
        for a, b in pairs
    )


def main() -> None:
    """Add the forest where it is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder that holds pbc2_meds, nafld_meds …")
    parser.add_argument("out", type=Path, help="for unfinished work")
    parser.add_argument("sets", nargs="+", choices=sorted(SETS))
    parser.add_argument("--settings", nargs="*", default=["training.blend=true"])
    arguments = parser.parse_args()
    keep_freed_memory()
    for name in arguments.sets:
        trial = Trial(name, tuple(arguments.settings), "forest", arguments.out)
        for seed, kept in kept_splits(trial.kept_at).items():
            if CompetingForest.name not in kept["values"]:
                print(f"{name} {seed}", file=sys.stderr, flush=True)
                keep(
                    trial.kept_at,
                    arguments.settings,
                    [lengthened(forest_of(trial, arguments.data, kept))],
                    COLUMNS,
                )


if __name__ == "__main__":
    main()
