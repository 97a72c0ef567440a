"""The table branch: all numbers of a visit or query side by side, summed and not averaged."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.models.code_vectors import MOST_CELLS_A_CODE
from ehrsequencing.models.segments import dropout, to_device

TERMS = 4  # vectors of a column
TABLE_DROPOUT = 0.2  # probability that training hides a code's number and its summaries


class TableBranch(nn.Module):
    """Every number of a row adds vectors of its own column; then norm and MLP.

    A column is a token that carries numbers: a code, or one of the summaries that queries carry. With r_j the rank of
    column j's number (scaled to sd 1) and z_j its standardised value:

        t_v = Σ_j V0_j + r_j·V1_j + (r_j² − 1)·V2_j + z_j·V3_j      over the columns j that row v knows
        h_v = GELU(W1 LN(t_v)),   x_v += W_x h_v                    W_x starts at zero; the wide head sees h_v too

    Attention pooling takes the *mean* of a query's hundreds of summaries, so that each moves it by a hundredth; here
    each counts wholly. A row sees its own numbers alone, and one without numbers gets nothing. In training whole
    variables are dropped: a code's number with all of its summaries, which say nearly the same.
    """

    column: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, columns = config.table_dim, config.table_columns or config.vocab_size
        # (V,) the column of each token; -1: it carries no number
        self.register_buffer("column", torch.arange(config.vocab_size))
        self.variable: Tensor | None = None  # (V,) the code of each token; None: itself
        # vectors of norm 1 would turn with the first steps: a query sums hundreds of them
        self.vectors = nn.Embedding(columns * TERMS, width)
        self.norm = nn.LayerNorm(width)
        self.W1 = nn.Linear(width, width)
        self.W_x = nn.Linear(width, config.dim, bias=False)
        nn.init.zeros_(self.W_x.weight)
        self.table_dropout, self.dropout = TABLE_DROPOUT, config.dropout

    def set_columns(self, column: Ints, variable: Ints) -> None:
        """Take the columns of a vocabulary, and the code behind each of its tokens (V,)."""
        self.column.copy_(torch.from_numpy(column))
        self.variable = torch.from_numpy(variable)

    def forward(self, batch: VisitBatch) -> Tensor:
        """(N, width) h of each row; zero without numbers."""
        if batch.values is None or not batch.n_codes:
            return self.vectors.weight.new_zeros(batch.n_visits, self.W1.in_features)
        column = self.column[batch.codes]
        known = ~batch.values[:, 0].isnan() & (column >= 0)
        if self.training and self.table_dropout:
            known = known & self._kept(batch)
        numbers = batch.values.to(self.vectors.weight.dtype)
        rank, value = numbers.masked_fill(~known.unsqueeze(1), 0).unbind(1)
        weights = torch.stack([torch.ones_like(rank), rank, rank.square() - 1, value], 1)
        weights = weights * known.unsqueeze(1)
        column = column.clamp(min=0)  # without a choice of rows, for which a GPU would wait
        terms = column.unsqueeze(1) * TERMS + torch.arange(TERMS, device=column.device)
        counts = F.pad(known.cumsum(0), (1, 0))[batch.visit_offsets].diff()
        total = self._sum(terms, weights, batch)
        h = F.gelu(self.W1(self.norm(total)))
        return dropout(h, self.dropout, training=self.training) * (counts > 0).unsqueeze(1)

    def _sum(self, terms: Tensor, weights: Tensor, batch: VisitBatch) -> Tensor:
        """(N, width) Σ of the vectors of each visit's codes (K, TERMS), weighted; dense where its matrix is small."""
        width = len(self.vectors.weight)
        if batch.n_visits * width <= MOST_CELLS_A_CODE * batch.n_codes:
            place = batch.visit_of_code.unsqueeze(1) * width + terms
            matrix = weights.new_zeros(batch.n_visits * width)
            matrix.index_add_(0, place.flatten(), weights.flatten())
            with torch.autocast(weights.device.type, enabled=False):
                return matrix.view(-1, width) @ self.vectors.weight
        return F.embedding_bag(
            terms.flatten(),
            self.vectors.weight,
            batch.visit_offsets * TERMS,
            mode="sum",
            per_sample_weights=weights.flatten(),
            include_last_offset=True,
        )

    def _kept(self, batch: VisitBatch) -> Tensor:
        """(K,) one draw for each row and variable: a hash of both and of a random number."""
        variable = batch.codes
        if self.variable is not None:
            variable = to_device(self.variable, batch.codes.device)[batch.codes]
        key = batch.visit_of_code * len(self.column) + variable
        mixed = (key ^ int(torch.randint(2**62, ()))) * 0x9E3779B97F4A7C1
        mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B
        return (mixed >> 24 & 0xFFFFFF) >= round(self.table_dropout * 2**24)
