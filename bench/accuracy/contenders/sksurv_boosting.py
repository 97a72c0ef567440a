"""scikit-survival's gradient boosting (Cox loss), one for each cause, on the features at the prediction time."""

from __future__ import annotations

from functools import partial
from typing import Any

from exchange import Array, Question, contend
from sksurv.ensemble import GradientBoostingSurvivalAnalysis
from sksurv_trees import one_a_cause

TRIALS = [
    {"max_depth": depth, "n_estimators": trees}
    for depth, trees in ((2, 100), (3, 50), (2, 200), (1, 200), (3, 100), (4, 50))
]


def answer(question: Question, seconds: float) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `exchange.contend`."""
    boosting = partial(
        GradientBoostingSurvivalAnalysis, learning_rate=0.1, subsample=0.5, min_samples_leaf=5
    )
    return one_a_cause(question, TRIALS, boosting, seconds)


if __name__ == "__main__":
    contend(__doc__, answer, "scikit-survival", "scikit-learn")
