"""What a training of hazards learns, the likelihood of prediction times or a loss of one's own, and when it stops."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.loader import Step, SubjectLoader, on_device
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, TrainingConfig
from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.hazards import expected_nll, horizon_nll
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.segments import batch_to_device, to_device
from ehrsequencing.training.processes import ALONE, Processes

LossFunction = Callable[[Any, VisitBatch], Tensor]


def training_device(name: str | None = None) -> torch.device:
    """The device of that name; None: the GPU of this process where there is one, else the CPU.

    Raises:
        EhrseqError: There is no such GPU.
    """
    if name is not None:
        device = torch.device(name)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise EhrseqError(
                f"{name} is not there", where="training.device", fix="write cpu, or leave it out"
            )
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def autocast(device: torch.device, precision: Literal["32", "bf16"]) -> torch.autocast:
    """The precision in which a model computes (`training.precision`); its weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


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

    word, of_rows = "nll", True

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
        device = batch.codes.device
        rows = to_device(torch.from_numpy(step.positions), device)
        hazards = to_device(torch.from_numpy(self.taught[step.rows]), device)
        duration_days = cast(Tensor, batch.duration_days)[rows]
        logits = self.model.logits_at(batch, rows)
        entry_days = None if batch.entry_days is None else batch.entry_days[rows]
        seen = horizon_nll(
            logits,
            edges,
            duration_days=duration_days,
            cause=cast(Tensor, batch.cause)[rows],
            entry_days=entry_days,
        )
        expected = expected_nll(
            logits, edges, hazards=hazards, duration_days=duration_days, entry_days=entry_days
        )
        return ((1 - share) * seen + share * expected).sum() / self.divisor

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

    word, of_rows = "loss", False
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

    def tuning_losses(self, module: nn.Module, stop: Stop) -> dict[str, float]:
        """The mean over the tuning batches, and the NLL beside it."""
        hazards, model = self.hazards, cast(SurvivalModel, module)
        mean = hazards.tuning_nll(model, stop, hazards.processes, loss=self.function)
        return {"tuning_loss": mean, **hazards.tuning_losses(module, stop)}


# ---- masked codes, beside the hazards --------------------------------------------------------------------------------


# most visits of a batch: the softmax compares each with all others, at quadratic cost
MOST_VISITS = 1024
CLIP_NORM = 1.0  # a gradient with a larger Euclidean norm is scaled down to it


@dataclass(frozen=True)
class Masked:
    """A batch from which codes were taken."""

    batch: VisitBatch
    row: Tensor  # (M,) rows of the batch that lack a code, rising
    code: Tensor  # (M,) the code that each lacks


def mask_codes(batch: VisitBatch, number: Tensor, among: Tensor, *, most: int) -> Masked | None:
    """Take one code, with all its copies, from each of some visits; None where there is none to take.

    All on the CPU, by torch's random numbers.

    Args:
        batch: The visits.
        number: (K,) the code that each token counts as; −1: it may not be taken.
        among: (N,) visits that lose a code where they have one. Queries must not be among them.
        most: At most so many visits, drawn at random.
    """
    may = (number >= 0) & among[batch.visit_of_code]
    order = torch.rand(batch.n_codes).masked_fill(~may, -1.0)
    best = torch.segment_reduce(order, "max", offsets=batch.visit_offsets, initial=-1.0)
    row = (best >= 0).nonzero().squeeze(1)
    if len(row) > most:
        row = row[torch.randperm(len(row))[:most].sort().values]
    if not len(row):
        return None
    picked = ((order == best[batch.visit_of_code]) & may).nonzero().squeeze(1)
    code = torch.full((batch.n_visits,), -2)
    code[batch.visit_of_code[picked]] = number[picked]
    taken = torch.full_like(code, -2)
    taken[row] = code[row]
    left = number != taken[batch.visit_of_code]
    return Masked(batch.with_codes(left), row, code[row])


def take_codes(batch: VisitBatch) -> tuple[VisitBatch, Tensor] | None:
    """Visits that lack one of their codes, and what it was (M,); None below two visits that then still have one.

    They are visits of one subject, without ages, gaps and labels: a visit encoder looks at nothing else. Queries are
    left out, and at most `MOST_VISITS` are kept.

    Args:
        batch: On the CPU.
    """
    several = ~batch.is_query & (batch.codes_per_visit > 1)
    masked = mask_codes(batch, batch.codes, several, most=MOST_VISITS)
    if masked is None:
        return None
    seen, count = masked.batch, masked.batch.codes_per_visit[masked.row]
    row, targets = masked.row[count > 0], masked.code[count > 0]
    if len(row) < 2:
        return None
    is_kept = torch.zeros(seen.n_visits, dtype=torch.bool)
    is_kept[row] = True
    items, nothing = is_kept[seen.visit_of_code], seen.age_years.new_zeros(len(row))
    visits = VisitBatch(
        codes=seen.codes[items],
        visit_offsets=F.pad(count[count > 0].cumsum(0), (1, 0)),
        subject_offsets=torch.tensor([0, len(row)]),
        age_years=nothing,
        delta_days=nothing,
        values=None if seen.values is None else seen.values[items],
        code_types=None if seen.code_types is None else seen.code_types[items],
    )
    return visits, targets


class MaskedCodes(nn.Module):
    """Guess the code that was taken from a visit, among all codes taken from the batch's visits.

    From each real visit v with two codes or more, one is taken at random. The visit encoder sees what is left:

        z_v = W_q LN(u_v),   k_c = W_k E_c,   loss_v = −log softmax over c of (z_v · k_c / √d), at v's own c

    over the different codes c taken in this batch, each as often as it was taken (an in-batch softmax, which learns
    how much more often codes meet than by chance). It finds codes that belong together without any
    outcome. Hazards alone find pairs of codes only after the timeline has begun to overfit (docs/decisions.md).
    It is BERT's masked token (Devlin et al. 2019; BEHRT: Li et al. 2020) within one visit, so it cannot see the
    future. Its own parameters live here: the trained model has none of them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.W_q, self.W_k = nn.Linear(config.dim, config.dim), nn.Linear(config.dim, config.dim)

    def forward(self, model: HierarchicalBEHRTForSurvival, batch: VisitBatch) -> Tensor:
        """Summed loss of the batch's masked visits; 0 where fewer than two visits can be masked."""
        taken, device = take_codes(batch.host), batch.codes.device
        if taken is None:
            return batch.age_years.new_zeros(())
        visits, targets = batch_to_device(taken[0], device), to_device(taken[1], device)
        u = model.visit_encoder(model.code_embedding(visits), visits)
        z, k = self.W_q(self.norm(u)), self.W_k(model.code_embedding.table(targets))
        with torch.autocast(z.device.type, enabled=False):
            wide = torch.promote_types(z.dtype, torch.float32)
            scores = (z.to(wide) @ k.to(wide).T) * z.shape[1] ** -0.5
            # the same code of another visit is no wrong answer
            same = targets.unsqueeze(1) == targets
            rows = torch.arange(len(z), device=scores.device)
            same[rows, rows] = False
            scores = scores.masked_fill(same, float("-inf"))
            return F.cross_entropy(scores, rows, reduction="sum")


class BesideHazards:
    """Trains the visit encoder on masked codes by an optimiser of its own.

    Adam divides each step by the size of the gradients it sees. Were the two losses added, hazards would move by their
    share of the sum: where the codes of a visit say nothing about one another, their noise alone would keep hazards
    from being learned (docs/decisions.md). With moments of their own both move at their own pace.

    Args:
        model: Whose codes and visit encoder are trained.
        settings: `masked_codes` is this optimiser's learning rate as a share of the hazards'.
        divisor: Of the loss: visits expected in a step.
    """

    def __init__(
        self, model: HierarchicalBEHRTForSurvival, settings: TrainingConfig, *, divisor: float = 1.0
    ) -> None:
        self.model, self.objective, self.settings = model, MaskedCodes(model.config), settings
        self.divisor = divisor
        self.objective.to(next(model.parameters()).device)
        trained = (model.code_embedding, model.visit_encoder, self.objective)
        self.parameters = [p for part in trained for p in part.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, weight_decay=0.0, fused=True
        )
        self.gradients: list[Tensor | None] = [None] * len(self.parameters)  # of this step

    def loss(self, batch: VisitBatch) -> Tensor:
        """Summed loss of a batch's masked visits over `divisor`."""
        return self.objective(self.model, batch) / self.divisor

    def backward(self, loss: Tensor) -> None:
        """Keep a batch's gradient for this step; the hazards' gradients are left alone."""
        if not loss.requires_grad:  # nothing could be masked
            return
        self.gradients = [*torch.autograd.grad(loss, self.parameters, allow_unused=True)]

    def step(self, learning_rate: float) -> None:
        """One step along the gradient of the batch.

        Args:
            learning_rate: Of the hazards' optimiser at this step.
        """
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.gradients = [None] * len(self.parameters)
        nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * self.settings.masked_codes
        self.optimizer.step()
