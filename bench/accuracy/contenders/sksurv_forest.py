"""scikit-survival's random survival forest, one for each cause, on the features at the prediction time."""

from __future__ import annotations

from functools import partial
from typing import Any

from exchange import Array, Question, contend
from sksurv.ensemble import RandomSurvivalForest
from sksurv_trees import one_a_cause

TRIALS = [{"min_samples_leaf": leaf} for leaf in (15, 5, 40, 3)]


def answer(question: Question, seconds: float) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `exchange.contend`."""
    forest = partial(RandomSurvivalForest, n_estimators=100, n_jobs=1)
    return one_a_cause(question, TRIALS, forest, seconds)


if __name__ == "__main__":
    contend(__doc__, answer, "scikit-survival", "scikit-learn")
