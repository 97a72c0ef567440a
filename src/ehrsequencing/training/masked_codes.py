"""The masked-code objective: predict a code of a visit from its other codes. Trained beside the hazards."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, TrainingConfig
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.segments import to_device

# most visits of a batch: the softmax compares each with all others, at quadratic cost
MOST_VISITS = 1024
CLIP_NORM = 1.0  # a gradient with a larger Euclidean norm is scaled down to it


@dataclass(frozen=True)
class MaskedVisits:
    """Visits that lack one of their codes, and what it was."""

    batch: VisitBatch  # M visits without the code, in all its copies, that was taken away
    targets: Tensor  # (M,) token ids of what was taken


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
        masked, device = mask_codes(batch.host), batch.codes.device
        if masked is None:
            return batch.age_years.new_zeros(())
        visits = masked.batch
        visits = (visits.pin_memory() if device.type == "cuda" else visits).to(
            device, non_blocking=True
        )
        targets = to_device(masked.targets, device)
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
        self.gradients: list[Tensor | None] = [None] * len(self.parameters)  # of this step so far

    def loss(self, batch: VisitBatch) -> Tensor:
        """Summed loss of a batch's masked visits over `divisor`."""
        return self.objective(self.model, batch) / self.divisor

    def backward(self, loss: Tensor) -> None:
        """Add a batch's gradient to those of this step; the hazards' gradients are left alone."""
        if not loss.requires_grad:  # nothing could be masked
            return
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        pairs = zip(self.gradients, gradients, strict=True)
        self.gradients = [
            old if new is None else new if old is None else old + new for old, new in pairs
        ]

    def step(self, learning_rate: float) -> None:
        """One step along the gradients of all batches since the last one.

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


def mask_codes(batch: VisitBatch) -> MaskedVisits | None:
    """Take one code, with all its copies, from each visit that then still has one; None below two such visits.

    Queries are left out, and at most `MOST_VISITS` are kept. All on the CPU, by torch's random numbers.

    Args:
        batch: On the CPU.
    """
    count, first = batch.codes_per_visit, batch.visit_offsets[:-1]
    place = (torch.rand(len(count)) * count).long().minimum((count - 1).clamp(min=0))
    target = torch.full_like(count, -1)
    has_codes = count > 0
    target[has_codes] = batch.codes[(first + place)[has_codes]]
    left = batch.codes != target[batch.visit_of_code]
    n_left = torch.zeros_like(count).index_add_(0, batch.visit_of_code, left.long())
    chosen = (n_left > 0) & ~batch.is_query
    if int(chosen.sum()) > MOST_VISITS:
        some = chosen.nonzero().squeeze(1)
        chosen = torch.zeros_like(chosen)
        chosen[some[torch.randperm(len(some))[:MOST_VISITS]]] = True
    if int(chosen.sum()) < 2:
        return None
    return MaskedVisits(_only(batch, chosen, n_left[chosen], left), target[chosen])


def _only(batch: VisitBatch, chosen: Tensor, n_codes: Tensor, left: Tensor) -> VisitBatch:
    """Visits as those of one subject, without ages: (N,) which, (M,) how many codes they keep, (K,) which codes."""
    kept = left & chosen[batch.visit_of_code]
    nothing = batch.age_years.new_zeros(len(n_codes))
    return VisitBatch(
        codes=batch.codes[kept],
        visit_offsets=F.pad(n_codes.cumsum(0), (1, 0)),
        subject_offsets=torch.tensor([0, len(n_codes)]),
        age_years=nothing,
        delta_days=nothing,
        values=None if batch.values is None else batch.values[kept],
        code_types=None if batch.code_types is None else batch.code_types[kept],
    )
