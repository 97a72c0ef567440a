"""The base class of all models: likelihood, loss and risk."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.hazards import (
    cumulative_incidence,
    horizon_nll,
    observed_hazards,
    visit_nll,
)
from ehrsequencing.models.head import SurvivalHead
from ehrsequencing.models.outcomes import OutcomeHazards, OutcomeHead, OutcomeLabels
from ehrsequencing.models.saved import read_config, read_weights, write_model
from ehrsequencing.models.segments import to_device
from ehrsequencing.models.table import TableBranch

_CLASSES = {"hierarchical": "HierarchicalBEHRTForSurvival", "flat": "BEHRTForSurvival"}


class SurvivalModel(nn.Module):
    """A network that gives the logits of hazards for every row of a `VisitBatch`.

    A subclass declares its architecture, builds its parts (then `_add_head`), and defines `forward`.
    """

    architecture: ClassVar[str]  # its name in the settings
    head: SurvivalHead
    wide_head: nn.Linear | None
    table: TableBranch | None
    outcomes: OutcomeHazards | None

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
            self.wide_head = nn.Linear(width, config.causes * config.bins, bias=False)
            nn.init.zeros_(self.wide_head.weight)
        self.outcomes = None
        if config.outcomes:
            self.outcomes = OutcomeHead(
                config.dim,
                outcomes=config.outcomes,
                rank=config.outcome_rank,
                edges_days=config.edges_days,
                dropout=config.dropout,
            )

    def _with_table(self, x: Tensor, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """(N, d) rows → the same with what their numbers add, and h of the table branch, (N, width) or (N, 0)."""
        if self.table is None:
            return x, x[:, :0]
        h = self.table(batch)
        return x + self.table.W_x(h), h

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

    def logits_at(self, batch: VisitBatch, rows: Tensor) -> Tensor:
        """Logits of some rows (R,) of the batch. A subclass may save work where few are asked."""
        logits: Tensor = self(batch).index_select(0, rows)
        return logits

    def recalibrate(self, intercept: Tensor, slope: Tensor) -> None:
        """Fold `log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}` into the last layers.

        The model keeps its shape, its files and its cost; its hazards are those of `Recalibrated`.

        Args:
            intercept: (causes, bins) a.
            slope: (causes, bins) b.

        Raises:
            EhrseqError: The head is `visit`, a shape is another, or a number is not finite.
        """
        self.head.recalibrate(intercept, slope)
        if self.wide_head is not None:
            with torch.no_grad():
                self.wide_head.weight.mul_(slope.reshape(-1, 1))

    def start_at_rates(self, batch: VisitBatch) -> None:
        """Start a new model at the event rates of labelled prediction times, as training does.

        A new model's hazards are e^0 = 1 per day, far from any disease. Afterwards everybody's risk is about the
        observed incidence: the head's bias is the log of events over days at risk, for each cause and bin. The rest of
        the head is small at the start, so that predictions differ little between subjects.

        Args:
            batch: The training subjects, or a large random part of them, with their labels.

        Raises:
            EhrseqError: The head is `visit`, or there are no labels.

        Example:
            >>> from ehrsequencing import HierarchicalBEHRTForSurvival
            >>> model = HierarchicalBEHRTForSurvival(ModelConfig(vocab_size=9, size="small", edges_days=(30.0, 365.0)))
            >>> one = torch.ones(40, 1)
            >>> batch = VisitBatch.from_padded(
            ...     one.long().unsqueeze(2), one.bool().unsqueeze(2), 60 * one, 0 * one, one.bool(),
            ...     at_risk=one.bool(), duration_days=100 * one, cause=(torch.arange(40) % 4 == 0).long().unsqueeze(1),
            ... )
            >>> model.start_at_rates(batch)  # 10 events in 4,000 days
            >>> bool(model.eval().risk(batch, horizons_days=[100.0]).mean().sub(0.22).abs() < 0.05)
            True
        """
        if self.config.head == "visit":
            fix = "use model.head.set_bias(hazards) with the share of visits that an event follows"
            raise EhrseqError(
                "the visit head has no rates per day", where="start_at_rates", fix=fix
            )
        if batch.at_risk is None or batch.duration_days is None or batch.cause is None:
            raise EhrseqError("no labels", where="VisitBatch", fix="make the batch with its labels")
        rows, entry = batch.at_risk, batch.entry_days
        hazards = observed_hazards(
            self.config.edges_days,
            duration_days=batch.duration_days[rows],
            cause=batch.cause[rows],
            entry_days=None if entry is None else entry[rows],
            n_causes=self.config.causes,
        )
        self.head.set_bias(hazards)

    def _freeze(self, **modules: nn.Module | None) -> None:
        """Leave the embeddings that the configuration names as they are."""
        for name in self.config.frozen:
            module = modules[name]
            if module is not None:
                module.requires_grad_(False)

    def __call__(self, batch: VisitBatch, *others: object) -> Tensor:
        """`forward`, after a look at what is given.

        Raises:
            EhrseqError: It is no `VisitBatch`.
        """
        if others or not isinstance(batch, VisitBatch):
            fix = "write model(VisitBatch.from_padded(codes, code_mask, ages, time_deltas, visit_mask))"
            what = f"expected a VisitBatch, got {type(batch).__name__}"
            raise EhrseqError(what, where=type(self).__name__, fix=fix)
        logits: Tensor = super().__call__(batch)
        return logits

    def code_attention(self, batch: VisitBatch) -> Tensor:
        """(K,) the weight of each code in its visit's vector; they sum to 1 over a visit; an ensemble gives the mean.

        Raises:
            EhrseqError: The visit encoder has no such weights.
        """
        encoder = self.config.visit_encoder if self.architecture == "hierarchical" else "flat"
        raise EhrseqError(
            f"the visit encoder {encoder!r} has no attention weights",
            where="attention",
            fix="train with model={'visit_encoder': 'attention'}",
        )

    def attention(self, batch: VisitBatch) -> Tensor:
        """The weight of each code in its visit's vector, (B, V, C) with 0 in pads; see `code_attention`."""
        return batch.codes_to_padded(self.code_attention(batch))

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
        if self.config.attention == "bidirectional":
            raise EhrseqError(
                "a hazard at a visit would have seen the visits after it, and would score better than the truth",
                where="ModelConfig.attention=bidirectional",
                fix="fit hazards with attention=causal; bidirectional is for pretraining",
            )
        needed = ["at_risk", "cause"]
        if self.config.head == "horizon":
            needed.append("duration_days")
        missing = [name for name in needed if getattr(batch, name) is None]
        if missing or batch.at_risk is None or batch.cause is None:
            what, fix = f"no {', '.join(missing)}", "make the batch with its labels"
            raise EhrseqError(what, where="VisitBatch", fix=fix)
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

    def risk(
        self,
        batch: VisitBatch,
        *,
        horizons_days: Sequence[float],
        start_days: Tensor | float | None = None,
    ) -> Tensor:
        """Cumulative incidence of each cause by each horizon, from every row on.

        Args:
            batch: Labels are not needed.
            horizons_days: Days after the prediction time.
            start_days: Given no event for so long; one number or (N,).

        Returns:
            (N, causes, horizons) float64.

        Raises:
            EhrseqError: The head is `visit` (a visit has no clock), or a horizon is impossible.
        """
        if self.config.head == "visit":
            what = "the visit head's hazard is 'before the next visit' and has no days"
            fix = "use the sigmoid of the logits, or a model with head=horizon"
            raise EhrseqError(what, where="ModelConfig.head=visit", fix=fix)
        return cumulative_incidence(
            self(batch), self.config.edges_days, horizons_days=horizons_days, start_days=start_days
        )

    def save_pretrained(self, path: str | Path) -> None:
        """Write `config.json` and `model.safetensors` into a folder, each in one rename.

        Raises:
            EhrseqError: The folder cannot be written.
        """
        write_model(Path(path), self.config, self.state_dict())

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load a model from its folder, in evaluation mode. Reads JSON and safetensors only, never a pickle.

        Raises:
            EhrseqError: A file is missing or damaged, or the weights are not those of the configuration.
        """
        config = read_config(Path(path))
        return read_weights(Path(path), config, cls).eval()
