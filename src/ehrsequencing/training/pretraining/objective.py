"""What an objective of pretraining is, and what is measured of it on the tuning split.

Each objective is one class with `@objective("name")`, in any file of this folder. `PretrainingObjective` is their
weighted sum, which the training loop learns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ehrsequencing.batches.device import on_device
from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.config import ModelConfig, TrainingConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.behrt import BEHRTForSurvival
from ehrsequencing.models.embeddings import CodeEmbedding
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.records.timelines import Timelines
from ehrsequencing.training.loop import step_seed
from ehrsequencing.training.pretraining.targets import Rates, TargetCodes
from ehrsequencing.training.processes import autocast

MOST_SCORES = 2**21  # of visits times codes in one step: 8 MiB
MOST_VISITS = 1024  # that one objective predicts from, in one step
MASKED_SHARE = 0.5  # of the visits, which lose one of their codes
TOP = (1, 5, 10)  # the k of recall@k


@dataclass(frozen=True)
class ObjectiveInputs:
    """What an objective is made from."""

    config: ModelConfig
    codes: TargetCodes
    rates: Rates
    masked_share: float = MASKED_SHARE

    @property
    def most_visits(self) -> int:
        """At most so many visits of a step are predicted from, so that memory does not grow with the vocabulary."""
        return max(16, min(MOST_VISITS, MOST_SCORES // len(self.codes)))


@dataclass(frozen=True)
class RecordBatch:
    """One batch of whole records, and what its targets are looked up in."""

    model: SurvivalModel
    step: Step  # `rows` are visits of `timelines`, `positions` their rows in the batch
    timelines: Timelines
    codes: TargetCodes
    # (N, d) after the timeline; None where no objective looks at the whole record
    states: Tensor | None


class CodeObjective(nn.Module):
    """Guesses codes of a record. Its own weights live here; a pretrained model has none of them.

    Attributes:
        is_bidirectional: Whether it may be used with `model.attention=bidirectional`.
        needs_states: Whether it looks at the states of the whole record (`RecordBatch.states`).
    """

    is_bidirectional = False
    needs_states = True

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__()
        self.inputs = inputs

    def forward(self, batch: RecordBatch, measures: "Measures | None" = None) -> Tensor:
        """The mean loss of a batch, in nats; 0 without a gradient where it has no target.

        Args:
            batch: The batch.
            measures: Where to add `loss` and the recalls of the model and its baselines; None in training.
        """
        raise NotImplementedError


class PretrainingObjective:
    """The weighted sum of some objectives, for the training loop.

    Args:
        bundle: `model` and `objectives`, which are trained together.
        weights: Of each objective's loss.
        codes: What may be predicted.
        train: The training subjects, with their visits as rows.
        tuning: The tuning subjects, likewise.
        settings: Of the training.
        tuning_budget: Visits in a batch of the tuning split.
    """

    word = "loss"
    divisor = 1.0

    def __init__(
        self,
        bundle: nn.ModuleDict,
        weights: Mapping[str, float],
        codes: TargetCodes,
        train: SubjectLoader,
        tuning: SubjectLoader,
        settings: TrainingConfig,
        *,
        tuning_budget: int,
    ) -> None:
        self.bundle, self.weights, self.codes, self.train = bundle, dict(weights), codes, train
        self.tuning, self.settings, self.tuning_budget = tuning, settings, tuning_budget

    def loss(self, step: Step) -> Tensor:
        """The weighted sum of a batch's losses, each a mean over its targets."""
        losses = self._losses(self.bundle, step, self.train.timelines)
        return sum((self.weights[name] * one for name, one in losses.items()), torch.zeros(()))

    def terms(self, step: Step) -> int:
        """Each batch counts once."""
        return 1

    def tuning_losses(self, module: nn.Module, stop: Stop) -> dict[str, float]:
        """The weighted loss on the tuning split, and that of each objective."""
        measured = self.measure(module, stop)
        losses = {name: one.means.get("loss", 0.0) for name, one in measured.items()}
        total = sum(self.weights[name] * one for name, one in losses.items())
        return {"tuning_loss": total, **{f"tuning_{name}": one for name, one in losses.items()}}

    def measure(self, bundle: nn.Module, stop: Stop | None = None) -> "dict[str, Measures]":
        """What every objective measures on the tuning split, with the same masks each time."""
        measured = {name: Measures() for name in self.weights}
        device = next(bundle.parameters()).device
        bundle.eval()
        with (
            torch.no_grad(),
            autocast(device, self.settings.precision),
            torch.random.fork_rng(devices=[]),
        ):
            torch.manual_seed(step_seed(self.settings.seed, 2**32))
            steps = self.tuning.in_order(visit_budget=self.tuning_budget)
            for step in on_device(steps, device):
                self._losses(bundle, step, self.tuning.timelines, measured)
                if stop is not None:
                    stop.leave_if_asked()
        return measured

    def _losses(
        self,
        bundle: Any,
        step: Step,
        timelines: Timelines,
        measured: "dict[str, Measures] | None" = None,
    ) -> dict[str, Tensor]:
        """The loss of each objective; the states of the whole records are computed once for all of them."""
        model, objectives = bundle["model"], dict(bundle["objectives"].items())
        states = None
        if any(one.needs_states for one in objectives.values()):
            states = model.states(step.batch)[1]
        batch = RecordBatch(model, step, timelines, self.codes, states)
        return {
            name: one(batch, None if measured is None else measured[name])
            for name, one in objectives.items()
        }


# ---- scores of codes -------------------------------------------------------------------------------------------------


class CodeScores(nn.Module):
    """Scores of codes, tied to the model's code embedding: `b_c + (W_q LN z) · (W_k E_c) / √d`.

    Args:
        dim: d.
        start: (C,) b at the start.
    """

    def __init__(self, dim: int, start: Floats) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.W_q, self.W_k = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.W_q.weight, std=0.1 * dim**-0.5)  # starts near b
        nn.init.zeros_(self.W_q.bias)
        self.bias = nn.Parameter(torch.from_numpy(start).float())

    def forward(self, z: Tensor, rows: Tensor) -> Tensor:
        """(n, d) states and (C, d) rows of the code embedding → (n, C) scores, at least float32."""
        queries = self.W_q(self.norm(z)) * z.shape[1] ** -0.5
        scores = torch.addmm(self.bias.to(z.dtype), queries, self.W_k(rows).T)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


def code_embedding(model: SurvivalModel) -> CodeEmbedding:
    """The code embedding of either architecture."""
    if isinstance(model, BEHRTForSurvival):
        return model.encoder.embedding.code
    assert isinstance(model, HierarchicalBEHRTForSurvival)
    return model.code_embedding


def target_rows(batch: RecordBatch) -> Tensor:
    """(C, d) embeddings of the target codes."""
    table = code_embedding(batch.model).table
    return table(torch.from_numpy(batch.codes.tokens).to(table.weight.device))


# ---- what is measured ------------------------------------------------------------------------------------------------


@dataclass
class Measures:
    """Sums of what was measured of one objective, with how many terms each has."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    # Of each gain over frequencies: of some subjects at a time, who they are, their sums, and how many terms each has.
    by_subject: dict[str, list[tuple[Ints, Floats, Floats]]] = field(default_factory=dict)

    def add(self, name: str, total: float | Tensor, count: int) -> None:
        """Add a sum of so many terms."""
        value = float(total.detach()) if isinstance(total, Tensor) else float(total)
        self.sums[name] = self.sums.get(name, 0.0) + value
        self.counts[name] = self.counts.get(name, 0) + int(count)

    def add_recalls(self, ranks: Mapping[str, Ints], subject: Ints) -> None:
        """Add recall@k of some targets, and the model's gain over frequencies.

        Args:
            ranks: Who guesses (`model`, `frequency`) → (P,) how many codes were guessed before each target.
            subject: (P,) whose target it is.
        """
        who, of_term = np.unique(subject, return_inverse=True)
        terms = _sums(of_term, np.ones(len(subject)))
        for k in TOP:
            for name, of_name in ranks.items():
                self.add(f"{name} recall@{k}", float((of_name < k).sum()), len(of_name))
            gain = (ranks["model"] < k).astype(np.float64) - (ranks["frequency"] < k)
            of_subject = (who, _sums(of_term, gain), terms)
            self.by_subject.setdefault(f"recall@{k}", []).append(of_subject)

    @property
    def gains(self) -> dict[str, dict[str, Any]]:
        """Mean gain over frequencies of each measure, with its 95 % interval over subjects (`ratio_interval`)."""
        gains = dict[str, dict[str, Any]]()
        for name, parts in self.by_subject.items():
            whose = np.concatenate([who for who, _, _ in parts])
            # the parts of a long record are one subject's
            _, of_part = np.unique(whose, return_inverse=True)
            total, terms = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
            gains[name] = ratio_interval(_sums(of_part, total), _sums(of_part, terms))
        return gains

    @property
    def means(self) -> dict[str, float]:
        """Mean of each measure."""
        return {name: total / max(self.counts[name], 1) for name, total in self.sums.items()}


def _sums(group: Ints, values: Floats) -> Floats:
    """Sum of each group's values."""
    return np.bincount(group.reshape(-1), weights=values).astype(np.float64)


def ratio_interval(total: Floats, terms: Floats) -> dict[str, Any]:
    """The mean of clustered terms with its 95 % interval, by linearisation; no interval for fewer than two clusters.

        m = Σ_s T_s / Σ_s n_s,   se² = S / (S − 1) · Σ_s (T_s − m n_s)² / (Σ_s n_s)²

    Args:
        total: (S,) T, the sum of each cluster's terms.
        terms: (S,) n, how many it has.

    >>> ratio_interval(np.array([1.0, 1.0]), np.array([2.0, 2.0]))
    {'value': 0.5, 'low': 0.5, 'high': 0.5}
    """
    count, n = len(total), float(terms.sum())
    if not n:
        return {"value": None, "low": None, "high": None}
    mean = float(total.sum()) / n
    if count < 2:
        return {"value": mean, "low": None, "high": None}
    half = 1.96 * float(np.sqrt(count / (count - 1) * np.square(total - mean * terms).sum())) / n
    return {"value": mean, "low": mean - half, "high": mean + half}


def subjects_of(batch: RecordBatch, visits: Ints) -> Ints:
    """(n,) the subject of each of some visits of `batch.timelines`."""
    return np.searchsorted(batch.timelines.subject_offsets, visits, side="right") - 1


def ranks_of(scores: Tensor, row: Ints, code: Ints) -> Ints:
    """How many codes score higher than each target; a tie counts as half, so that equal scores are no skill.

    Args:
        scores: (n, C), on the CPU.
        row: (P,) 0 … n-1.
        code: (P,) 0 … C-1.
    """
    ranks = np.zeros(len(row), dtype=np.int64)
    size = max(1, MOST_SCORES // scores.shape[1])
    for start in range(0, len(row), size):  # memory does not grow with the number of targets
        part = slice(start, start + size)
        of_row = scores[torch.from_numpy(row[part])]
        own = of_row.gather(1, torch.from_numpy(code[part]).unsqueeze(1))
        above, tied = (of_row > own).sum(1), (of_row == own).sum(1) - 1
        ranks[part] = (above + tied // 2).numpy()
    return ranks
