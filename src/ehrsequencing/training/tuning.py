"""The loss on the tuning split, which decides the early stop."""

from typing import Literal

import torch

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.training.device import autocast, on_device
from ehrsequencing.training.distributed import Processes


def mean_nll(
    model: SurvivalModel,
    tuning: SubjectLoader,
    chosen: Bools,
    *,
    visit_budget: int,
    device: torch.device,
    precision: Literal["32", "bf16"],
    stop: Stop,
    processes: Processes,
) -> float:
    """Mean negative log-likelihood of a split's prediction times.

    Args:
        model: Whose.
        tuning: The split.
        chosen: (rows of the split,) which of them count.
        visit_budget: Of a batch.
        device: Where the model is.
        precision: As `training.precision`.
        stop: Asked after each batch.
        processes: Each computes a part, and all get the mean over all parts.

    Raises:
        Stopped: A signal has come.
    """
    model.eval()
    total, count = 0.0, 0.0
    mine = processes.share(tuning.subjects)
    with torch.no_grad(), autocast(device, precision):
        for step in on_device(tuning.in_order(visit_budget=visit_budget, subjects=mine), device):
            nll = model.nll(step.batch).double().cpu().numpy()
            here = chosen[step.rows]
            total, count = total + float(nll[step.positions[here]].sum()), count + int(here.sum())
            stop.leave_if_asked()
    total, count = processes.totals(total, count)
    return total / max(count, 1)
