"""The loss on the tuning split, which decides the early stop."""

from typing import Any

import torch

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.training.feed import feed
from ehrsequencing.training.processes import Processes


def mean_nll(
    model: SurvivalModel,
    tuning: SubjectLoader,
    chosen: Bools,
    *,
    visit_budget: int,
    fabric: Any,
    stop: Stop,
    processes: Processes,
) -> float:
    """Mean negative log-likelihood of a split's prediction times.

    Args:
        model: Whose.
        tuning: The split.
        chosen: (rows of the split,) which of them count.
        visit_budget: Of a batch.
        fabric: It knows device and precision.
        stop: Asked after each batch; with several processes at the end, so that all leave at the same moment.
        processes: Each computes a part, and all get the mean over all parts.

    Raises:
        Stopped: A signal has come.
    """
    model.eval()
    total, count = 0.0, 0.0
    mine = processes.stretch(tuning.subjects, tuning.cost[tuning.subjects])
    with torch.no_grad(), fabric.autocast():
        for step in feed(tuning.in_order(visit_budget=visit_budget, subjects=mine), fabric.device):
            nll = model.nll(step.batch).double().cpu().numpy()
            here = chosen[step.rows]
            total, count = total + float(nll[step.positions[here]].sum()), count + int(here.sum())
            if not processes.several:
                stop.leave_if_asked()
    if processes.several:
        total, count, asked = processes.totals(total, count, float(stop.asked))
        stop.join(asked > 0)
        if asked:
            stop.leave_if_asked()
    return total / max(count, 1)
