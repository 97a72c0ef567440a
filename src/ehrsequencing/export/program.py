"""The network for one subject as a graph that `torch.export` can write: the model's own modules, attention as one mask.

A training step packs many subjects into blocks that the CPU plans from the data, which no graph can hold. One subject
needs no plan: its N rows attend to one another under an (N, N) mask. Everything else is the model's own modules.
"""

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.attention_blocks import AttentionPlan, Block
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import mean_hazard_logits
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.rotary import rotation
from ehrsequencing.models.timeline import TransformerTimeline


class SubjectProgram(nn.Module):
    """One subject's packed record → the logits of its hazards. Members of an ensemble run one after another.

    Args:
        model: A hierarchical model with a transformer over visits, or an ensemble of such models; in evaluation mode.

    Raises:
        EhrseqError: The model is of another kind.
    """

    def __init__(self, model: SurvivalModel) -> None:
        super().__init__()
        found = getattr(model, "members", None)
        members = list(found) if isinstance(found, nn.ModuleList) else [model]
        for member in members:
            _require_exportable(member)
        self.members = nn.ModuleList(members)
        self.is_visit_head = model.config.head == "visit"

    def forward(
        self,
        codes: Tensor,
        visit_offsets: Tensor,
        age_years: Tensor,
        delta_days: Tensor,
        is_query: Tensor,
        values: Tensor,
        code_types: Tensor,
        static_codes: Tensor,
        static_weights: Tensor,
    ) -> Tensor:
        """Logits of every row.

        Args:
            codes: (K,) token ids of all rows' codes, one row after another.
            visit_offsets: (N+1,) row n owns `codes[visit_offsets[n]:visit_offsets[n+1]]`.
            age_years: (N,) float32, NaN where unknown.
            delta_days: (N,) float32 days since the end of the visit before, 0 for the first.
            is_query: (N,) True for a prediction time that is no visit: it sees the past, and nobody sees it.
            values: (K, 2) float32 rank and standardised value of a code's number, NaN without one.
            code_types: (K,) type of each code; anything where the model has no types.
            static_codes: (M,) token ids without a time.
            static_weights: (M,) float32 1 / their number; 0 for padding.

        Returns:
            (N, causes, bins) log-hazards per day; for the `visit` head (N,) logits of the hazard until the next visit.
        """
        ones = torch.ones_like(is_query, dtype=torch.int64)
        batch = VisitBatch(
            codes,
            visit_offsets,
            torch.stack([0 * ones[0], ones.sum()]),
            age_years,
            delta_days,
            is_query=is_query,
            values=values,
            code_types=code_types,
        )
        logits = [_logits(member, batch, static_codes, static_weights) for member in self.members]
        return (
            logits[0]
            if len(logits) == 1
            else mean_hazard_logits(torch.stack(logits), is_probability=self.is_visit_head)
        )


def _require_exportable(model: nn.Module) -> None:
    parts = isinstance(model, HierarchicalBEHRTForSurvival) and isinstance(
        model.timeline, TransformerTimeline
    )
    if parts and isinstance(model, SurvivalModel) and not model.config.relates_codes:
        return
    what = "only hierarchical models with model.timeline=transformer and a pooling visit encoder can be exported"
    raise EhrseqError(what, where="ehrseq export", fix="train such a model, or predict with ehrseq")


def _logits(
    model: nn.Module, batch: VisitBatch, static_codes: Tensor, static_weights: Tensor
) -> Tensor:
    """As `HierarchicalBEHRTForSurvival.forward`, for the one subject of a batch."""
    assert isinstance(model, HierarchicalBEHRTForSurvival)
    assert isinstance(model.timeline, TransformerTimeline)
    e = model.code_embedding.each(batch)
    static = static_weights @ model.code_embedding.table(static_codes)  # (d,)
    x = model.visit_time_embedding(model.visit_encoder(e, batch) + static, batch)
    z = _timeline(model.timeline, x, batch)
    return model.hazard_logits(z, wide=x)


def _timeline(timeline: TransformerTimeline, x: Tensor, batch: VisitBatch) -> Tensor:
    """As `TransformerTimeline.forward`, with all rows in one block."""
    n = x.shape[0]
    every = torch.arange(n)
    mask = seen(batch, window=timeline.window, bidirectional=timeline.bidirectional)
    plan = AttentionPlan(every, every, every, (Block(1, n, n, mask[None, None]),))
    turn = rotation(batch, head_dim=timeline.head_dim, dtype=x.dtype) if timeline.rotary else None
    for layer in timeline.layers:
        x = layer(x, plan, turn)
    z: Tensor = timeline.norm(x)
    return z


def seen(batch: VisitBatch, *, window: int, bidirectional: bool) -> Tensor:
    """(N, N) which row (first) sees which (second): itself, and the real visits within the window."""
    real = ~batch.is_query
    number = real.long().cumsum(0) - real.long()  # real visits before each row
    back = number.unsqueeze(1) - number.unsqueeze(0)
    past = (back > 0) & (back < window)
    ahead = (back < 0) & (-back < window) & real.unsqueeze(1)
    own = torch.eye(number.shape[0], dtype=torch.bool)
    return own | (real.unsqueeze(0) & (past | ahead if bidirectional else past))
