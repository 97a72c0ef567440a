"""What both contenders of scikit-survival share: one model a cause, whose steps are read at the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from exchange import Array, Fitted, Question, search
from sksurv.util import Surv


def at_grid(values: Array, times_days: Array, grid_days: Array) -> Array:
    """Step functions (n, T), known at rising times, read at the grid: (n, G), 0 before the first time."""
    at = np.searchsorted(times_days, grid_days, side="right")
    return np.concatenate([np.zeros((len(values), 1)), values], axis=1)[:, at]


def one_a_cause(
    question: Question,
    trials: Sequence[Mapping[str, Any]],
    make: Callable[..., Any],
    seconds: float,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The best trial of a model on the features at the prediction time; as of `exchange.contend`."""
    x = {split: values.astype(np.float32) for split, values in question.filled().items()}

    def fit(settings: Mapping[str, Any]) -> Fitted:
        models = []
        for number in range(1, len(question.causes) + 1):
            label = Surv.from_arrays(
                question.cause["train"] == number, question.duration_days["train"]
            )
            model = make(max_features="sqrt", random_state=question.seed, **settings)
            models.append(model.fit(x["train"], label))

        def predict(split: str) -> Array:
            steps = [
                at_grid(
                    model.predict_cumulative_hazard_function(x[split], return_array=True),
                    model.unique_times_,
                    question.grid_days,
                )
                for model in models
            ]
            return np.stack(steps, axis=1)

        return predict

    return search(question, trials, fit, seconds=seconds)
