"""XGBoost's accelerated failure time model, one for each cause, on the features at the prediction time.

XGBoost predicts μ of log T = μ + σ Z with Z normal, logistic or of the smallest extreme value. The cumulative hazard is
−log(1 − F_Z((log t − μ) / σ)). Boosting stops by the package's own loss on tuning rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from itertools import product
from typing import Any

import numpy as np
import xgboost
from exchange import Array, Fitted, Question, contend, search
from scipy.stats import norm

TRIALS = [
    {"distribution": distribution, "scale": scale, "depth": depth}
    for scale, depth, distribution in product((1.5, 0.8), (2, 4), ("extreme", "logistic", "normal"))
]
ROUNDS, PATIENCE = 500, 20
CUMULATIVE: dict[str, Callable[[Array], Array]] = {
    "normal": lambda z: -norm.logsf(z),
    "logistic": lambda z: np.logaddexp(0.0, z),
    "extreme": lambda z: np.exp(np.minimum(z, 50.0)),
}


def answer(question: Question, seconds: float) -> tuple[dict[str, Array], dict[str, Any]]:
    """See `exchange.contend`."""
    log_grid = np.log(question.grid_days)

    def matrix(split: str, number: int) -> xgboost.DMatrix:
        found = xgboost.DMatrix(question.features[split], feature_names=None, missing=np.nan)
        if split in question.cause:
            days = np.maximum(question.duration_days[split], 1e-3)
            found.set_float_info("label_lower_bound", days)
            found.set_float_info(
                "label_upper_bound", np.where(question.cause[split] == number, days, np.inf)
            )
        return found

    def fit(settings: Mapping[str, Any]) -> Fitted:
        models = []
        for number in range(1, len(question.causes) + 1):
            given = {
                "objective": "survival:aft",
                "eval_metric": "aft-nloglik",
                "tree_method": "hist",
                "nthread": 1,
                "aft_loss_distribution": settings["distribution"],
                "aft_loss_distribution_scale": settings["scale"],
                "max_depth": settings["depth"],
                "learning_rate": 0.1,
                "subsample": 0.8,
                "colsample_bynode": 0.5,
                "min_child_weight": 1.0,
                "seed": question.seed,
            }
            tuning = matrix("tuning", number)
            models.append(
                xgboost.train(
                    given,
                    matrix("train", number),
                    num_boost_round=ROUNDS,
                    evals=[(tuning, "tuning")],
                    early_stopping_rounds=PATIENCE,
                    verbose_eval=False,
                )
            )

        def predict(split: str) -> Array:
            found = []
            for number, model in enumerate(models, start=1):
                rounds = (0, model.best_iteration + 1)
                margin = model.predict(
                    matrix(split, number), output_margin=True, iteration_range=rounds
                )
                z = (log_grid - margin[:, None].astype(np.float64)) / settings["scale"]
                found.append(CUMULATIVE[settings["distribution"]](z))
            return np.stack(found, axis=1)

        return predict

    return search(question, TRIALS, fit, seconds=seconds)


if __name__ == "__main__":
    names = {found.metadata["Name"] for found in metadata.distributions()}
    # one library, without GPU code
    contend(__doc__, answer, "xgboost-cpu" if "xgboost-cpu" in names else "xgboost")
