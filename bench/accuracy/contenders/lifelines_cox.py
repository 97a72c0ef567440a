"""lifelines' Cox regression, one for each cause, on the features at the prediction time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from exchange import Array, Fitted, Question, contend, search
from lifelines import CoxPHFitter

# Ridge; the first is fitted whatever the time.
TRIALS = [{"penalizer": value} for value in (0.1, 1.0, 0.3, 0.03, 3.0, 0.01)]


def answer(question: Question, seconds: float) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `exchange.contend`."""
    filled, grid = question.filled(), question.grid_days
    duration = np.maximum(question.duration_days["train"], 1e-3)

    def fit(settings: Mapping[str, Any]) -> Fitted:
        models = []
        for number in range(1, len(question.causes) + 1):
            frame = pd.DataFrame(
                filled["train"], columns=[f"x{i}" for i in range(filled["train"].shape[1])]
            )
            frame["duration"], frame["event"] = duration, question.cause["train"] == number
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = CoxPHFitter(penalizer=settings["penalizer"], l1_ratio=0.0)
                models.append(model.fit(frame, duration_col="duration", event_col="event"))

        def predict(split: str) -> Array:
            frame = pd.DataFrame(
                filled[split], columns=[f"x{i}" for i in range(filled[split].shape[1])]
            )
            found = [
                model.predict_cumulative_hazard(frame, times=grid).to_numpy().T for model in models
            ]
            return np.stack(found, axis=1)

        return predict

    return search(question, TRIALS, fit, seconds=seconds)


if __name__ == "__main__":
    contend(__doc__, answer, "lifelines")
