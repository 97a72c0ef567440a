"""A model's own answers, row by row, through torch: an independent way to what predictors derive from hazards."""

from collections.abc import Sequence

import numpy as np
import torch

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Floats, Floats32, Ints
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.predictors.network import VISIT_BUDGET
from ehrsequencing.records.timelines import TaskRecords


@torch.no_grad()
def risk_of_rows(
    model: SurvivalModel,
    records: TaskRecords,
    *,
    horizons_days: Sequence[float] | Floats,
    code_types: Ints | None = None,
    start_days: float = 0.0,
) -> Floats32:
    """Risk (R, causes, horizons) at every prediction time; of the `visit` head (R, 1, 1), NaN without an answer."""
    is_visit = model.config.head == "visit"
    days = [float(horizon) for horizon in horizons_days]
    shape = (1, 1) if is_visit else (model.config.causes, len(days))
    out = np.full((len(records), *shape), np.nan, dtype=np.float32)
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    for step in loader.in_order(visit_budget=VISIT_BUDGET):
        if is_visit:
            answers = model(step.batch).double().sigmoid()[:, None, None]
        else:
            answers = model.risk(step.batch, horizons_days=days, start_days=start_days)
        out[step.rows] = answers.numpy()[step.positions]
    return out


@torch.no_grad()
def nll_of_rows(model: SurvivalModel, records: TaskRecords, *, code_types: Ints | None = None) -> Floats:
    """Negative log-likelihood (R,) of every labelled prediction time; NaN for rows that the head does not answer."""
    out = np.full(len(records), np.nan)
    loader = SubjectLoader.of_model(model.config, records, code_types=code_types)
    for step in loader.in_order(visit_budget=VISIT_BUDGET):
        out[step.rows] = model.nll(step.batch).double().numpy()[step.positions]
    return out
