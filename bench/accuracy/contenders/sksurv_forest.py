"""scikit-survival's random survival forest, one for each cause, on the features at the prediction time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from exchange import Array, Fitted, Question, contend, search
from sksurv.ensemble import RandomSurvivalForest
from sksurv.util import Surv
from sksurv_steps import at_grid

TRIALS = [{"min_samples_leaf": leaf} for leaf in (15, 5, 40, 3)]
TREES = 100


def answer(question: Question, seconds: float) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `exchange.contend`."""
    filled, grid = question.filled(), question.grid_days

    def fit(settings: Mapping[str, Any]) -> Fitted:
        models = []
        for number in range(1, len(question.causes) + 1):
            label = Surv.from_arrays(
                question.cause["train"] == number, question.duration_days["train"]
            )
            model = RandomSurvivalForest(
                n_estimators=TREES,
                min_samples_leaf=settings["min_samples_leaf"],
                max_features="sqrt",
                n_jobs=1,
                random_state=question.seed,
            )
            models.append(model.fit(filled["train"].astype(np.float32), label))

        def predict(split: str) -> Array:
            x = filled[split].astype(np.float32)
            found = [
                at_grid(
                    model.predict_cumulative_hazard_function(x, return_array=True),
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
