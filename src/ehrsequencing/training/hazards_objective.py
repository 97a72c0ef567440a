"""What a training of hazards learns: the likelihood of labelled prediction times, and when it stops."""

import torch
from torch import Tensor, nn

from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.config import TrainingConfig
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.training.device import autocast, on_device
from ehrsequencing.training.processes import ALONE, Processes


class HazardsObjective:
    """Negative log-likelihood of a batch's labelled prediction times.

        loss = Σ_rows NLL / divisor

    The NLL is that of the model's head (`models/hazards.py`); a model with outcomes adds theirs (`models/outcomes.py`).

    Args:
        model: That is trained.
        tuning: The tuning split.
        decisive: (R,) which of its prediction times decide the early stop.
        divisor: Prediction times expected in a step.
        settings: Of the training.
        processes: Each computes a part of the tuning NLL, and all get the mean over all parts.
    """

    word = "nll"

    def __init__(
        self,
        model: SurvivalModel,
        tuning: SubjectLoader,
        decisive: Bools,
        *,
        divisor: float,
        settings: TrainingConfig,
        processes: Processes = ALONE,
    ) -> None:
        self.model, self.tuning, self.decisive, self.divisor = model, tuning, decisive, divisor
        self.settings, self.processes = settings, processes

    def loss(self, step: Step) -> Tensor:
        """Summed NLL over `divisor`."""
        return self.model.loss(step.batch, divisor=self.divisor)

    def terms(self, step: Step) -> int:
        """Prediction times of the batch."""
        return len(step.rows)

    def tuning_losses(self, module: nn.Module, stop: Stop) -> dict[str, float]:
        """The mean tuning NLL of the averaged weights, over all processes."""
        assert isinstance(module, SurvivalModel)
        return {"tuning_nll": self.tuning_nll(module, stop, self.processes)}

    def tuning_nll(
        self, model: SurvivalModel, stop: Stop | None = None, processes: Processes = ALONE
    ) -> float:
        """Mean NLL of a model at the decisive prediction times.

        Args:
            model: On its device.
            stop: Asked after each batch.
            processes: All must call it.

        Raises:
            Stopped: A signal has come.
        """
        model.eval()
        device = next(model.parameters()).device
        total, count = 0.0, 0.0
        mine = processes.share(self.tuning.subjects)
        steps = self.tuning.in_order(visit_budget=4 * self.settings.visit_budget, subjects=mine)
        with torch.no_grad(), autocast(device, self.settings.precision):
            for step in on_device(steps, device):
                nll = model.nll(step.batch).double().cpu().numpy()
                chosen = self.decisive[step.rows]
                total += float(nll[step.positions[chosen]].sum())
                count += int(chosen.sum())
                if stop is not None:
                    stop.leave_if_asked()
        total, count = processes.totals(total, count)
        return total / max(count, 1)
