"""Module 4: visits in time → contextual visit states."""

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.config.parts import timeline
from ehrsequencing.models import plans
from ehrsequencing.models.rotary import rotation
from ehrsequencing.models.segments import dropout, gather_rows, to_device
from ehrsequencing.models.transformer import TransformerLayer


@timeline("transformer", uses=("history_dropout", "attention"))
class TransformerTimeline(nn.Module):
    """Transformer over a subject's visits: causal, with a sliding window of `max_visits`; queries are seen by none.

    With `rotary`, attention knows the days and visits between two rows (`models.rotary`).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.window, self.bidirectional = config.max_visits, config.attention == "bidirectional"
        self.rotary, self.head_dim = config.rotary, config.dim // config.heads
        layers = (
            TransformerLayer(config, value_dropout=config.history_dropout)
            for _ in range(config.layers)
        )
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, x: Tensor, batch: VisitBatch) -> Tensor:
        """(N, d) visits with their time signals → (N, d) contextual states."""
        plan = plans.visits_plan(batch, window=self.window, bidirectional=self.bidirectional)
        turn = rotation(batch, head_dim=self.head_dim, dtype=x.dtype) if self.rotary else None
        for layer in self.layers:
            x = layer(x, plan, turn)
        z: Tensor = self.norm(x)
        return z

    def at_rows(self, x: Tensor, batch: VisitBatch, rows: Tensor) -> Tensor:
        """(R, d) states of some rows (R,): the last layer computes no others."""
        if self.bidirectional or plans.is_ragged(x.device):
            every: Tensor = self(x, batch)
            return every.index_select(0, rows)
        turn = rotation(batch, head_dim=self.head_dim, dtype=x.dtype) if self.rotary else None
        *before, last = self.layers
        if before:
            plan = plans.visits_plan(batch, window=self.window)
            for layer in before:
                x = layer(x, plan, turn)
        z: Tensor = self.norm(
            last(x, plans.rows_plan(batch, rows, window=self.window), turn, rows=rows)
        )
        return z


@timeline("lstm", defaults={"history_dropout": 0.0}, has_window=False)
class LSTMTimeline(nn.Module):
    """LSTM over a subject's real visits, from the first one on; it has no window.

    A query is one step from the state after the visits before it. That step's state is discarded.
    Per layer, with gates i, f, g, o:

        i, f, g, o = W_ih x_v + b_ih + W_hh h_{v−1} + b_hh
        c_v = σ(f)·c_{v−1} + σ(i)·tanh(g),   h_v = σ(o)·tanh(c_v)

    Parameters and equations are those of `torch.nn.LSTM`, which gives no states between visits and so no queries.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.lstm = nn.LSTM(config.dim, config.dim, num_layers=config.layers)
        self.dropout = config.dropout  # between layers

    def forward(self, x: Tensor, batch: VisitBatch) -> Tensor:
        """(N, d) visits with their time signals → (N, d) the top layer's states."""
        steps = _Steps(batch)
        for layer in range(self.lstm.num_layers):
            if layer:
                x = dropout(x, self.dropout, training=self.training)
            x = self._layer(x, layer, steps)
        return x

    def _layer(self, x: Tensor, layer: int, steps: "_Steps") -> Tensor:
        """One layer: all visits with the same index at once, then all queries at once."""
        names = (
            f"weight_ih_l{layer}",
            f"weight_hh_l{layer}",
            f"bias_ih_l{layer}",
            f"bias_hh_l{layer}",
        )
        w_ih, w_hh, b_ih, b_hh = (getattr(self.lstm, name) for name in names)
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(w_ih.dtype)
            inputs = x @ w_ih.T + (b_ih + b_hh)
            # row 0: the state before the first visit
            states = [inputs.new_zeros(1, 2 * x.shape[1])]
            h = c = inputs.new_zeros(steps.sizes[0] if steps.sizes else 0, x.shape[1])
            for part in torch.split(gather_rows(inputs, steps.rows), steps.sizes):
                h, c = _cell(part + h[: len(part)] @ w_hh.T, c[: len(part)])
                states.append(torch.cat([h, c], 1))
            all_states = torch.cat(states)
            h, c = gather_rows(all_states, steps.state_before_query).chunk(2, 1)
            of_queries, _ = _cell(gather_rows(inputs, steps.query_rows) + h @ w_hh.T, c)
            answers = torch.cat([all_states[:, : x.shape[1]], of_queries])
        return gather_rows(answers, steps.answer_row)


def _cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 4d) gates and (n, d) cells → (n, d) new hidden states and cells."""
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class _Steps:
    """A batch's rows in the order in which an LSTM reads them: all first visits, then all second visits, and so on.

    Longer subjects come first within a step, so that the subjects of a step are the first rows of the step before.
    Computed on the CPU, so that the device need not be waited for.
    """

    def __init__(self, batch: VisitBatch) -> None:
        device, batch = batch.codes.device, batch.host
        real = (~batch.is_query).nonzero().squeeze(1)
        subject = batch.subject_of_visit[real]
        length = subject.bincount(minlength=batch.n_subjects)
        rank = length.argsort(descending=True, stable=True).argsort()  # of each subject
        place = batch.visits_before[real]
        order = (place * max(batch.n_subjects, 1) + rank[subject]).argsort()
        rows = real[order]  # (real visits,) packed rows in the order of steps
        self.sizes: list[int] = place.bincount().tolist()
        step_of_row = torch.zeros(batch.n_visits, dtype=torch.int64)
        step_of_row[rows] = torch.arange(1, len(order) + 1)
        query_rows = batch.is_query.nonzero().squeeze(1)
        before = batch.visits_before[query_rows]  # real visits that each query sees
        first = length.cumsum(0) - length
        last_seen = (
            real[(first[batch.subject_of_visit[query_rows]] + before - 1).clamp(min=0)]
            if len(real)
            else before
        )
        state_before_query = (
            step_of_row[last_seen].masked_fill(before == 0, 0) if len(real) else before * 0
        )
        step_of_row[query_rows] = len(order) + 1 + torch.arange(len(query_rows))
        self.rows, self.query_rows = to_device(rows, device), to_device(query_rows, device)
        self.state_before_query, self.answer_row = (
            to_device(state_before_query, device),
            to_device(step_of_row, device),
        )
