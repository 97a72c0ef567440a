"""What all models share on the way from records to the loss: heads, hazards of each row, and their likelihood."""

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, ModelSettings
from ehrsequencing.core.elsewhere import Answering
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.embeddings import TableBranch
from ehrsequencing.models.hazards import SurvivalHead, horizon_nll, last_layer, visit_nll
from ehrsequencing.models.outcomes import OUTCOME_RANK, OutcomeHazards, OutcomeHead, OutcomeLabels
from ehrsequencing.models.segments import to_device

_CLASSES = {"hierarchical": "HierarchicalBEHRTForSurvival", "flat": "BEHRTForSurvival"}


def refuse_bidirectional(config: ModelSettings) -> None:
    """Refuse to fit hazards with a timeline in which visits see later ones.

    Raises:
        EhrseqError: The attention is bidirectional.
    """
    if config.attention == "bidirectional":
        raise EhrseqError(
            "a hazard at a visit would have seen the visits after it, and would score better than the truth",
            where="ModelConfig.attention=bidirectional",
            fix="fit hazards with attention=causal; bidirectional is for pretraining",
        )


class HazardModel(Answering, nn.Module):
    """A network that gives the logits of hazards for every row of a `VisitBatch`, and their likelihood.

    A subclass declares its architecture, builds its parts (then `_add_head`), and defines `forward` and `states`.
    """

    architecture: ClassVar[str]  # its name in the settings
    head: SurvivalHead
    wide_head: nn.Linear | None
    table: TableBranch | None
    outcomes: OutcomeHazards | None

    def __new__(cls, *given: object, **named: object) -> Self:
        """An object, unless it is to be made as its plain twin is, from a number of codes and a width."""
        if given and isinstance(given[0], int):
            raise EhrseqError(
                "takes a ModelConfig, got a number",
                where=cls.__name__,
                fix=f"write eh.nn.{cls.__name__}(n_codes, d) for the plain model of padded tensors, or "
                f"eh.{cls.__name__}(eh.ModelConfig(vocab_size=n_codes, dim=d))",
            )
        return super().__new__(cls)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.architecture != self.architecture:
            raise EhrseqError(
                f"{type(self).__name__} is not {config.architecture!r}, which the configuration says",
                where="ModelConfig.architecture",
                fix=f"use {_CLASSES[config.architecture]}",
            )
        if config.members != 1:
            raise EhrseqError(
                "is one model", where=f"ModelConfig.members={config.members}", fix="use Ensemble"
            )
        self.config = config

    def _add_head(self) -> None:
        """The table branch, the hazard head, and the wide one beside it: linear on the inputs, zero at the start."""
        config = self.config
        self.table = TableBranch(config) if config.table_dim else None
        self.head = SurvivalHead(config)
        self.wide_head = None
        if config.wide_head:
            width = config.dim + config.table_dim
            self.wide_head = last_layer(config, width, bias=False)
            nn.init.zeros_(self.wide_head.weight)
        self.outcomes = None
        if config.outcomes:
            self.outcomes = OutcomeHead(
                config.dim,
                outcomes=config.outcomes,
                rank=OUTCOME_RANK,
                edges_days=config.edges_days,
                dropout=config.dropout,
            )

    def _of_table(self, batch: VisitBatch, x: Tensor) -> Tensor:
        """(N, width) h of the table branch; (N, 0) without one."""
        return x[:, :0] if self.table is None else self.table(batch)

    def _with_table(self, x: Tensor, h: Tensor) -> Tensor:
        """(N, d) rows → the same with what their numbers add."""
        return x if self.table is None else x + self.table.W_x(h)

    def hazard_logits(self, z: Tensor, *, wide: Tensor | None) -> Tensor:
        """(N, d) states, and what the wide head looks at → logits, of queries too."""
        logits: Tensor = self.head(z)
        if self.wide_head is not None and wide is not None:
            logits = logits + self.wide_head(wide).view_as(logits)
        return logits

    def _logits(self, z: Tensor, batch: VisitBatch, *, wide: Tensor | None) -> Tensor:
        return self._without_queries(self.hazard_logits(z, wide=wide), batch.is_query)

    def _without_queries(self, logits: Tensor, is_query: Tensor) -> Tensor:
        """Logits, NaN where a row is a query and the head is `visit`: no interval follows a query."""
        return logits.masked_fill(is_query, float("nan")) if self.config.head == "visit" else logits

    def forward(self, batch: VisitBatch) -> Tensor:
        """Logits per row: (N, causes, bins) log-hazards per day, or (N,) for the `visit` head (NaN for queries)."""
        raise NotImplementedError

    def states(self, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """What the wide head and the head turn into hazards.

        The rows (N, d + table's width) before the timeline (flat: the layers), and (N, d) after it.
        """
        raise NotImplementedError

    def nll(self, batch: VisitBatch) -> Tensor:
        """Negative log-likelihood of each prediction time, by the configured head.

        Args:
            batch: With `at_risk` and `cause`, and for the `horizon` head `duration_days` (`entry_days` optional). For
                the `visit` head the cause is on the subject's last at-risk visit; queries do not count. Where the
                model has outcomes and the batch has `outcome_rows`, theirs are added.

        Returns:
            (N,) in at least float32; 0 where not at risk.

        Raises:
            EhrseqError: Labels are missing or impossible, or the timeline is bidirectional.
        """
        refuse_bidirectional(self.config)
        needed = ["at_risk", "cause"]
        if self.config.head == "horizon":
            needed.append("duration_days")
        missing = [name for name in needed if getattr(batch, name) is None]
        if missing or batch.at_risk is None or batch.cause is None:
            raise EhrseqError(
                f"no {', '.join(missing)}", where="VisitBatch", fix="make the batch with its labels"
            )
        z = None
        if self.config.outcomes and batch.outcome_rows is not None:
            x, z = self.states(batch)
            logits = self._logits(z, batch, wide=x)
        else:
            logits = self(batch)
        if self.config.head == "visit":
            return visit_nll(
                logits,
                batch.at_risk & ~batch.is_query,
                cause=batch.cause.masked_fill(batch.is_query, 0),
                subject_offsets=batch.subject_offsets,
            )
        at_risk = batch.host.at_risk  # counted on the CPU, since their number is a shape
        assert at_risk is not None
        rows = to_device(at_risk.nonzero().squeeze(1), logits.device)
        duration_days, entry_days = batch.duration_days, batch.entry_days
        assert duration_days is not None
        terms = horizon_nll(
            logits.index_select(0, rows),
            self.config.edges_days,
            duration_days=duration_days[rows],
            cause=batch.cause[rows],
            entry_days=None if entry_days is None else entry_days[rows],
        )
        if z is not None:
            terms = terms + self._outcome_nll(z, rows, batch)
        return terms.new_zeros(batch.n_visits).index_copy(0, rows, terms)

    def _outcome_nll(self, z: Tensor, rows: Tensor, batch: VisitBatch) -> Tensor:
        """(n,) of the rows at risk, summed over all outcomes."""
        listed, codes, days = batch.outcome_rows, batch.outcome_codes, batch.outcome_days
        assert self.outcomes is not None
        assert listed is not None
        assert codes is not None
        assert days is not None
        assert batch.duration_days is not None
        place = rows.new_zeros(batch.n_visits).index_copy(
            0, rows, torch.arange(len(rows), device=rows.device)
        )
        return self.outcomes.nll(
            z.index_select(0, rows),
            stop_days=batch.duration_days[rows],
            labels=OutcomeLabels(place[listed], codes, days),
            entry_days=None if batch.entry_days is None else batch.entry_days[rows],
        )

    def loss(self, batch: VisitBatch, *, divisor: float | None = None) -> Tensor:
        """Sum of `nll` over `divisor`; by default over the number of labelled prediction times (the mean).

        Training divides by a constant: steps of randomly drawn subjects hold different numbers of prediction times,
        and that number grows with survival.
        """
        nll = self.nll(batch)
        if divisor is None:
            host = batch.host
            assert host.at_risk is not None
            counted = host.at_risk & ~host.is_query if self.config.head == "visit" else host.at_risk
            divisor = max(int(counted.sum()), 1)
        return nll.sum() / divisor
