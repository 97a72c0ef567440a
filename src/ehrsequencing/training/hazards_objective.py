"""What a training of hazards learns, the likelihood of prediction times or a loss of one's own, and when it stops."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ehrsequencing.batches.device import on_device
from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import TrainingConfig
from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.hazards import expected_nll, horizon_nll
from ehrsequencing.models.segments import to_device
from ehrsequencing.training.processes import ALONE, Processes, autocast

LossFunction = Callable[[Any, VisitBatch], Tensor]


class HazardsObjective:
    """Negative log-likelihood of a batch's labelled prediction times.

        loss = Σ_rows NLL / divisor

    The NLL is that of the model's head (`models/hazards.py`); a model with outcomes adds theirs (`models/outcomes.py`).
    With a teacher's hazards it is `(1 − a) · NLL + a · expected NLL`, a being `training.distillation`.

    Args:
        model: That is trained.
        tuning: The tuning split.
        divisor: Prediction times expected in a step.
        settings: Of the training.
        processes: Each computes a part of the tuning NLL, and all get the mean over all parts.
    """

    word = "nll"

    def __init__(
        self,
        model: SurvivalModel,
        tuning: SubjectLoader,
        *,
        divisor: float,
        settings: TrainingConfig,
        processes: Processes = ALONE,
    ) -> None:
        self.model, self.tuning, self.divisor = model, tuning, divisor
        self.settings, self.processes = settings, processes
        # (R, causes, bins) a teacher's hazards at the training rows
        self.taught: Floats32 | None = None

    def loss(self, step: Step) -> Tensor:
        """Summed NLL over `divisor`."""
        if self.taught is None:
            return self.model.loss(step.batch, divisor=self.divisor)
        batch, share, edges = step.batch, self.settings.distillation, self.model.config.edges_days
        assert batch.duration_days is not None
        assert batch.cause is not None
        device = batch.codes.device
        rows = to_device(torch.from_numpy(step.positions), device)
        hazards = to_device(torch.from_numpy(self.taught[step.rows]), device)
        logits, duration_days = self.model.logits_at(batch, rows), batch.duration_days[rows]
        entry_days = None if batch.entry_days is None else batch.entry_days[rows]
        seen = horizon_nll(
            logits,
            edges,
            duration_days=duration_days,
            cause=batch.cause[rows],
            entry_days=entry_days,
        )
        expected = expected_nll(
            logits, edges, hazards=hazards, duration_days=duration_days, entry_days=entry_days
        )
        return ((1 - share) * seen + share * expected).sum() / self.divisor

    def terms(self, step: Step) -> int:
        """Prediction times of the batch."""
        return len(step.rows)

    def tuning_losses(self, module: nn.Module, stop: Stop) -> dict[str, float]:
        """The mean tuning NLL of the averaged weights, over all processes."""
        assert isinstance(module, SurvivalModel)
        return {"tuning_nll": self.tuning_nll(module, stop, self.processes)}

    def tuning_nll(
        self,
        model: SurvivalModel,
        stop: Stop | None = None,
        processes: Processes = ALONE,
        *,
        loss: LossFunction | None = None,
    ) -> float:
        """Mean NLL of a model at the prediction times, or the mean of a loss over batches.

        Args:
            model: On its device.
            stop: Asked after each batch.
            processes: All must call it.
            loss: In the place of the NLL.

        Raises:
            Stopped: A signal has come.
        """
        model.eval()
        device = next(model.parameters()).device
        total, count = 0.0, 0.0
        mine = processes.share(self.tuning.subjects)
        steps = self.tuning.in_order(visit_budget=self.settings.visit_budget, subjects=mine)
        with torch.no_grad(), autocast(device, self.settings.precision):
            for step in on_device(steps, device):
                if loss is None:
                    nll = model.nll(step.batch).double().cpu().numpy()
                    total += float(nll[step.positions].sum())
                    count += len(step.positions)
                else:
                    total += float(loss(model, step.batch))
                    count += 1
                if stop is not None:
                    stop.leave_if_asked()
        total, count = processes.totals(total, count)
        return total / max(count, 1)


class OwnObjective:
    """A loss of one's own, as the function gives it; its mean over the tuning batches decides the early stop.

    Args:
        function: (model, batch) → a scalar.
        hazards: What would be learned without it.

    Raises:
        EhrseqError: The function fails on one batch, or gives no scalar that depends on the model's weights.
    """

    word = "loss"
    divisor = 1.0

    def __init__(self, function: LossFunction, hazards: HazardsObjective) -> None:
        self.function, self.hazards = function, hazards
        steps = hazards.tuning.in_order(visit_budget=hazards.settings.visit_budget)
        device = next(hazards.model.parameters()).device
        try:
            self.loss(next(on_device(steps, device))).backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise EhrseqError(
                f"failed on the first batch, {type(error).__name__}: {error}",
                where="loss(model, batch)",
                fix="write def loss(model, batch): return model.loss(batch), or another scalar tensor",
            ) from error
        hazards.model.zero_grad()

    def loss(self, step: Step) -> Tensor:
        """Of one batch."""
        return self.function(self.hazards.model, step.batch)

    def terms(self, step: Step) -> int:
        """One a batch, so that the history has the mean over batches."""
        return 1

    def tuning_losses(self, module: nn.Module, stop: Stop) -> dict[str, float]:
        """The mean over the tuning batches, and the NLL beside it."""
        hazards, model = self.hazards, cast(SurvivalModel, module)
        mean = hazards.tuning_nll(model, stop, hazards.processes, loss=self.function)
        return {"tuning_loss": mean, **hazards.tuning_losses(module, stop)}


def provenance(function: LossFunction) -> dict[str, str]:
    """What a run notes of a loss: its name and the hash of its source; "unknown" where no file has the source."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = digest(inspect.getsource(named))
    except (OSError, TypeError):
        source = "unknown"
    return {"name": named.__qualname__, "source": source}
