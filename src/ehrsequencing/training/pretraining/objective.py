"""What an objective of pretraining is. Each is one class with `@objective("name")`, in any file of this folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ehrsequencing.batches.loader import Step
from ehrsequencing.config import ModelConfig, PretrainingConfig
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.behrt import BEHRTForSurvival
from ehrsequencing.models.embeddings import CodeEmbedding
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.records.timelines import Timelines
from ehrsequencing.training.pretraining.targets import Rates, TargetCodes

MOST_SCORES = 2**21  # of visits times codes in one step: 8 MiB
MOST_VISITS = 1024  # that one objective predicts from, in one step
TOP = (1, 5, 10)  # the k of recall@k


@dataclass(frozen=True)
class World:
    """What all objectives of one pretraining share."""

    config: ModelConfig
    settings: PretrainingConfig
    codes: TargetCodes
    rates: Rates

    @property
    def most_visits(self) -> int:
        """At most so many visits of a step are predicted from, so that memory does not grow with the vocabulary."""
        return max(16, min(MOST_VISITS, MOST_SCORES // len(self.codes)))


@dataclass(frozen=True)
class Glance:
    """One batch, and what its targets are looked up in."""

    model: SurvivalModel
    step: Step  # `rows` are visits of `timelines`, `positions` their rows in the batch
    timelines: Timelines
    codes: TargetCodes
    # (N, d) after the timeline; None where no objective looks at the whole record
    states: Tensor | None


@dataclass
class Tally:
    """Sums of what was measured, with how many terms each has."""

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
            ranks: Who guesses (`model`, `frequency`, `last visit`) → (P,) how many codes were guessed before each
                target.
            subject: (P,) whose target it is.
        """
        for k in TOP:
            for name, of_name in ranks.items():
                self.add(f"{name} recall@{k}", float((of_name < k).sum()), len(of_name))
            gain = (ranks["model"] < k).astype(np.float64) - (ranks["frequency"] < k)
            self.add_gain(f"recall@{k}", gain, subject)

    def add_gain(self, name: str, gain: Floats, subject: Ints) -> None:
        """Add how much better than frequencies the model is.

        Args:
            name: Of the measure.
            gain: (P,) of each term.
            subject: (P,) whose it is.
        """
        who, of_term = np.unique(subject, return_inverse=True)
        columns = (_sums(of_term, gain), _sums(of_term, np.ones(len(gain))))
        self.by_subject.setdefault(name, []).append((who, *columns))

    @property
    def gains(self) -> dict[str, dict[str, float | None]]:
        """Mean gain over frequencies of each measure, with its 95 % interval over subjects (`ratio_interval`)."""
        found: dict[str, dict[str, float | None]] = {}
        for name, parts in self.by_subject.items():
            whose = np.concatenate([who for who, _, _ in parts])
            # the parts of a long record are one subject's
            _, of_part = np.unique(whose, return_inverse=True)
            total, terms = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
            found[name] = ratio_interval(_sums(of_part, total), _sums(of_part, terms))
        return found

    @property
    def means(self) -> dict[str, float]:
        """Mean of each measure."""
        return {name: total / max(self.counts[name], 1) for name, total in self.sums.items()}


def _sums(group: Ints, values: Floats) -> Floats:
    """Sum of each group's values."""
    found: Floats = np.bincount(group.reshape(-1), weights=values).astype(np.float64)
    return found


def ratio_interval(total: Floats, terms: Floats) -> dict[str, float | None]:
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


class Objective(nn.Module):
    """Guesses something that a record holds. Its own weights live here; a pretrained model has none of them.

    Attributes:
        sees_ahead: Whether it may be used with `model.attention=bidirectional`.
        needs_states: Whether it looks at the states of the whole record (`Glance.states`).
    """

    sees_ahead = False
    needs_states = True

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def forward(self, glance: Glance, tally: Tally | None = None) -> Tensor:
        """The mean loss of a batch, in nats; 0 without a gradient where it has no target.

        Args:
            glance: The batch.
            tally: Where to add `loss` and the recalls of the model and its baselines; None in training.
        """
        raise NotImplementedError


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


def target_rows(glance: Glance) -> Tensor:
    """(C, d) embeddings of the target codes."""
    table = code_embedding(glance.model).table
    rows: Tensor = table(torch.from_numpy(glance.codes.tokens).to(table.weight.device))
    return rows


def subjects_of(glance: Glance, visits: Ints) -> Ints:
    """(n,) the subject of each of some visits of `glance.timelines`."""
    found: Ints = np.searchsorted(glance.timelines.subject_offsets, visits, side="right") - 1
    return found


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
