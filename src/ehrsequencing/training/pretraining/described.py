"""Codes that are known by their description: a branch beside the table of codes, while a model is pretrained.

A code's vector is then the sum of a row of its own and of what its description says. In each step some codes lose
their row, so that the description alone must do. Afterwards both are added up into an ordinary table, and the
projection is kept: another site's code has a vector from its description, though no row of that name exists.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.embeddings import CodeEmbedding
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.matching import WIDTH, Wording


class DescribedEmbedding(nn.Embedding):
    """A table of codes with a projection of their descriptions beside it.

        e_c = m_c · E_c + Σ_g x_{c,g} P_g,    m_c ~ Bernoulli(1 − share) in training, else 1

    with x_c the weighted n-grams of c's description (`Wording`). A code without a description keeps its row. P
    starts at 0.

    Args:
        table: (V, d) the rows E, which are taken over.
        described: For each of the V tokens the columns (g,) and numbers (g,) of its n-grams.
        share: Of the codes that lose their row, in [0, 1).
    """

    columns: Tensor
    numbers: Tensor
    starts: Tensor
    counts: Tensor

    def __init__(
        self, table: nn.Embedding, described: list[tuple[np.ndarray, np.ndarray]], *, share: float
    ) -> None:
        super().__init__(
            table.num_embeddings,
            table.embedding_dim,
            padding_idx=table.padding_idx,
            _weight=table.weight.detach(),
        )
        self.share = share
        self.projection = nn.Parameter(torch.zeros(WIDTH, table.embedding_dim))
        counts = np.array([len(columns) for columns, _ in described], dtype=np.int64)
        fixed = {
            "columns": torch.from_numpy(
                np.concatenate([columns for columns, _ in described]).astype(np.int64)
            ),
            "numbers": torch.from_numpy(
                np.concatenate([numbers for _, numbers in described]).astype(np.float32)
            ),
            "starts": torch.from_numpy(np.cumsum(counts) - counts),
            "counts": torch.from_numpy(counts),
        }
        for name, tensor in fixed.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Vectors (…, d) of token ids (…,)."""
        ids = input.reshape(-1)
        rows = F.embedding(ids, self.weight, self.padding_idx)
        if self.training and self.share:
            lost = (torch.rand(len(ids), device=ids.device) < self.share) & (self.counts[ids] > 0)
            rows = rows * (~lost).unsqueeze(1)
        return (rows + self.of_descriptions(ids)).reshape(*input.shape, self.embedding_dim)

    def of_descriptions(self, ids: Tensor) -> Tensor:
        """(n, d) what the descriptions of some tokens say."""
        counts = self.counts[ids]
        starts = counts.cumsum(0) - counts
        place = torch.arange(int(counts.sum()), device=ids.device)
        place = place + torch.repeat_interleave(self.starts[ids] - starts, counts)
        return F.embedding_bag(
            self.columns[place],
            self.projection,
            starts,
            mode="sum",
            per_sample_weights=self.numbers[place].to(self.projection.dtype),
        )

    @torch.no_grad()
    def folded(self) -> nn.Embedding:
        """An ordinary table with the same vectors."""
        every = torch.arange(self.num_embeddings, device=self.weight.device)
        whole = self.weight + self.of_descriptions(every)
        return nn.Embedding(
            self.num_embeddings, self.embedding_dim, padding_idx=self.padding_idx, _weight=whole
        )


def describe_codes(
    model: SurvivalModel, vocabulary: Vocabulary, descriptions: Mapping[str, str], *, share: float
) -> int:
    """Put the branch beside a model's table of codes; returns how many codes have a description.

    Args:
        model: Flat or hierarchical.
        vocabulary: Whose tokens the table has.
        descriptions: Code → text.
        share: See `DescribedEmbedding`.
    """
    described = [(np.zeros(0, dtype=np.int64), np.zeros(0))] * len(vocabulary)
    known = {
        vocabulary.index[code]: text
        for code, text in descriptions.items()
        if code in vocabulary.index
    }
    wording = Wording.of(known.values())
    for token, text in known.items():
        described[token] = wording.row(text)
    for embedding in _code_embeddings(model):
        embedding.table = DescribedEmbedding(embedding.table, described, share=share)
    return sum(len(columns) > 0 for columns, _ in described)


def fold_descriptions(model: SurvivalModel) -> Tensor | None:
    """Make the tables of codes ordinary ones; the projection (1024, d), or None where there was no branch."""
    projection = None
    for embedding in _code_embeddings(model):
        if isinstance(embedding.table, DescribedEmbedding):
            projection = embedding.table.projection.detach().clone()
            embedding.table = embedding.table.folded()
    return projection


def _code_embeddings(model: SurvivalModel) -> Iterator[CodeEmbedding]:
    return (module for module in model.modules() if isinstance(module, CodeEmbedding))
