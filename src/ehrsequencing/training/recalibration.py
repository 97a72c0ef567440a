"""The last step of a training: what `predictors/recalibration.py` fits on the tuning split, folded into the head."""

import numpy as np
import torch

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Bools, Floats32, Ints
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.predictors.network import log_hazards
from ehrsequencing.predictors.recalibration import MOST_ROWS, Recalibration, fit_recalibration


def recalibrate_head(
    model: SurvivalModel,
    loader: SubjectLoader,
    *,
    prior_sd: float,
    visit_budget: int,
    device: torch.device,
) -> Recalibration:
    """Fit on all prediction times of a split, and fold the result into the model's head.

    Args:
        model: With the `horizon` head; changed in place.
        loader: The tuning split.
        prior_sd: Of what is fitted.
        visit_budget: Of one batch.
        device: Where the model is.
    """
    rows = loader.rows
    row, eta = labelled_log_hazards(model, loader, visit_budget=visit_budget, device=device)
    fitted = fit_recalibration(
        eta,
        model.config.edges_days,
        duration_days=rows.duration_days[row],
        cause=rows.cause[row],
        entry_days=rows.entry_days[row],
        subject=rows.subject[row],
        prior_sd=prior_sd,
    )
    model.recalibrate(
        *(torch.from_numpy(values).to(device) for values in (fitted.intercept, fitted.slope))
    )
    return fitted


def labelled_log_hazards(
    model: SurvivalModel, loader: SubjectLoader, *, visit_budget: int, device: torch.device
) -> tuple[Ints, Floats32]:
    """`log_hazards` of a split's labelled prediction times, of more than `MOST_ROWS` those of a sample."""
    subjects = loader.subjects[:: max(1, -(-len(loader.rows) // MOST_ROWS))]
    rows: Bools = ~np.isnan(loader.rows.duration_days)
    return log_hazards(
        model, loader, visit_budget=visit_budget, device=device, subjects=subjects, rows=rows
    )
