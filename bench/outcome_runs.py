"""Two runs with every outcome, on the same held-out people: `python bench/outcome_runs.py RUN OTHER [--split tuning]`.

Both runs were trained on the same prepared set with `outcomes`. For each diagnosis with 50 events or more, the AUC
within sex and age and O/E are those of `ehrseq evaluate`; a difference is RUN − OTHER, and its interval resamples
subjects, the same for both.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from delphi import told
from ehrsequencing.config import EvaluationConfig
from ehrsequencing.core.arrays import Floats
from ehrsequencing.evaluation.outcome_table import FEWEST_EVENTS, OutcomeRows
from ehrsequencing.prediction.run import Run


def tables(run: Run, split: str) -> dict[str, tuple[Floats, Floats]]:
    """Code → the AUC and O/E, of the whole and of every resample."""
    rows = OutcomeRows(run, run.prepared(), split, EvaluationConfig())
    chosen = [one for one in rows.outcomes() if one.events >= FEWEST_EVENTS]
    return {run.outcomes[one.number]: (one.auc.mean, one.observed / one.expected) for one in chosen}


def compare(
    first: dict[str, tuple[Floats, Floats]], second: dict[str, tuple[Floats, Floats]]
) -> dict[str, Any]:
    """Medians, and the differences over the outcomes."""
    if set(first) != set(second):
        raise SystemExit("the runs have other outcomes: train both on one prepared set")
    a, b = (np.stack([one[code][0] for code in sorted(first)]) for one in (first, second))
    oe = [np.stack([one[code][1][0] for code in sorted(first)]) for one in (first, second)]
    return {
        "outcomes": len(first),
        "median_auc": [told(np.nanmedian(auc, axis=0)) for auc in (a, b)],
        "difference_of_medians": told(np.nanmedian(a, axis=0) - np.nanmedian(b, axis=0)),
        "mean_difference": told(np.nanmean(a - b, axis=0)),
        "first_is_higher": float(np.mean(a[:, 0] > b[:, 0])),
        "oe_within_10_percent": [
            round(float(np.mean(np.abs(ratio - 1) <= 0.1)), 3) for ratio in oe
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--split", default="held_out", choices=["tuning", "held_out"])
    asked = parser.parse_args(arguments)
    first, second = (tables(Run(path), asked.split) for path in (asked.run, asked.other))
    print(json.dumps(compare(first, second), indent=1))


if __name__ == "__main__":
    main()
