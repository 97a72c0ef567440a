"""scikit-survival's gradient boosting (Cox loss), one for each cause, on the features at the prediction time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from exchange import Array, Fitted, Question, contend, search
from sksurv.ensemble import GradientBoostingSurvivalAnalysis
from sksurv.util import Surv
from sksurv_steps import at_grid

TRIALS = [
    {"max_depth": depth, "n_estimators": trees}
    for depth, trees in ((2, 100), (3, 50), (2, 200), (1, 200), (3, 100), (4, 50))
]


def answer(question: Question, seconds: float) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `exchange.contend`."""
    filled, grid = question.filled(), question.grid_days

    def fit(settings: Mapping[str, Any]) -> Fitted:
        models = []
        for number in range(1, len(question.causes) + 1):
            label = Surv.from_arrays(
                question.cause["train"] == number, question.duration_days["train"]
            )
            model = GradientBoostingSurvivalAnalysis(
                learning_rate=0.1,
                subsample=0.5,
                max_features="sqrt",
                min_samples_leaf=5,
                random_state=question.seed,
                **settings,
            )
            models.append(model.fit(filled["train"], label))

        def predict(split: str) -> Array:
            found = [
                at_grid(
                    model.predict_cumulative_hazard_function(filled[split], return_array=True),
                    model.unique_times_,
                    grid,
                )
                for model in models
            ]
            return np.stack(found, axis=1)

        return predict

    return search(question, TRIALS, fit, seconds=seconds)


if __name__ == "__main__":
    contend(__doc__, answer, "scikit-survival", "scikit-learn")
