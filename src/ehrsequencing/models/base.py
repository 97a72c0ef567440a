"""The base class of all models: heads, likelihood, risks and files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, validated
from ehrsequencing.config.files import without_former
from ehrsequencing.core.elsewhere import Answering, lacks
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import disk_errors, read_json, write_bytes
from ehrsequencing.core.text import days_of
from ehrsequencing.metrics.hazards import cohort_hazards
from ehrsequencing.models.code_effects import CodeEffects
from ehrsequencing.models.embeddings import TableBranch
from ehrsequencing.models.hazards import (
    HazardsOverTime,
    SurvivalHead,
    cumulative_incidence,
    horizon_nll,
    last_layer,
    visit_nll,
)
from ehrsequencing.models.outcomes import OUTCOME_RANK, OutcomeHead, OutcomeLabels
from ehrsequencing.models.segments import to_device

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
Model = TypeVar("Model", bound=nn.Module)
_CLASSES = {"hierarchical": "HierarchicalBEHRTForSurvival", "flat": "BEHRTForSurvival"}


class SurvivalModel(Answering, nn.Module):
    """A network that gives the logits of hazards for every row of a `VisitBatch`; their likelihood, risks and files.

    A subclass declares its architecture, builds its parts (then `_add_head`), and defines `forward` and `states`.
    """

    architecture: ClassVar[str]  # its name in the settings
    head: SurvivalHead
    wide_head: nn.Linear | None
    code_effects: CodeEffects | None
    table: TableBranch | None
    outcomes: OutcomeHead | None

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
        has_effects = config.code_effects and config.head == "horizon"
        self.code_effects = CodeEffects(config) if has_effects else None
        self.outcomes = None
        if config.outcomes:
            self.outcomes = OutcomeHead(
                config.dim,
                outcomes=config.outcomes,
                rank=OUTCOME_RANK,
                edges_days=config.edges_days,
                dropout=config.dropout,
            )

    def _beside(self, batch: VisitBatch, x: Tensor, h: Tensor) -> Tensor:
        """What enters the hazards beside the timeline: its inputs, its numbers, and the sums of its codes' effects."""
        effects = [] if self.code_effects is None else [self.code_effects(batch)]
        return torch.cat([x, h, *effects], 1)

    def hazard_logits(self, z: Tensor, *, wide: Tensor | None) -> Tensor:
        """(N, d) states, and what stands beside them (`states`) → logits, of queries too."""
        logits: Tensor = self.head(z)
        if self.code_effects is not None and wide is not None:
            width = self.code_effects.width
            logits = logits + self.code_effects.over_time(wide[:, -width:]).to(logits.dtype)
            wide = wide[:, :-width]
        if self.wide_head is not None and wide is not None:
            logits = logits + self.wide_head(wide).view_as(logits)
        return logits

    def _without_queries(self, logits: Tensor, is_query: Tensor) -> Tensor:
        """Logits, NaN where a row is a query and the head is `visit`: no interval follows a query."""
        return logits.masked_fill(is_query, float("nan")) if self.config.head == "visit" else logits

    def forward(self, batch: VisitBatch) -> Tensor:
        """Logits per row: (N, causes, bins) log-hazards per day, or (N,) for the `visit` head (NaN for queries)."""
        raise NotImplementedError

    def states(self, batch: VisitBatch) -> tuple[Tensor, Tensor]:
        """What the wide head and the head turn into hazards.

        What stands beside the timeline (flat: the layers): the rows before it, their numbers, and the sums of their
        codes' effects, (N, d + width of the table + causes · curves); and the rows (N, d) after it.
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
        self.config.refuse_bidirectional()
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
            logits = self._without_queries(self.hazard_logits(z, wide=x), batch.is_query)
        else:
            logits = self(batch)
        if self.config.head == "visit":
            return visit_nll(
                logits,
                batch.at_risk & ~batch.is_query,
                cause=batch.cause.masked_fill(batch.is_query, 0),
                subject_offsets=batch.subject_offsets,
            )
        # counted on the CPU, since their number is a shape
        at_risk = cast(Tensor, batch.host.at_risk)
        rows = to_device(at_risk.nonzero().squeeze(1), logits.device)
        duration_days, entry_days = cast(Tensor, batch.duration_days), batch.entry_days
        terms = horizon_nll(
            logits.index_select(0, rows),
            self.config.edges_days,
            duration_days=duration_days[rows],
            cause=batch.cause[rows],
            entry_days=None if entry_days is None else entry_days[rows],
        )
        if z is not None:
            # of the rows at risk, summed over all outcomes
            columns = (batch.outcome_rows, batch.outcome_codes, batch.outcome_days)
            listed, codes, days = cast(tuple[Tensor, Tensor, Tensor], columns)
            place = rows.new_zeros(batch.n_visits).index_copy(
                0, rows, torch.arange(len(rows), device=rows.device)
            )
            terms = terms + cast(OutcomeHead, self.outcomes).nll(
                z.index_select(0, rows),
                stop_days=duration_days[rows],
                labels=OutcomeLabels(place[listed], codes, days),
                entry_days=None if entry_days is None else entry_days[rows],
            )
        return terms.new_zeros(batch.n_visits).index_copy(0, rows, terms)

    def loss(self, batch: VisitBatch, *, divisor: float | None = None) -> Tensor:
        """Sum of `nll` over `divisor`; by default over the number of labelled prediction times (the mean).

        Training divides by a constant: the number of prediction times in a step grows with survival.
        """
        nll = self.nll(batch)
        if divisor is None:
            counted = cast(Tensor, batch.host.at_risk)
            if self.config.head == "visit":
                counted = counted & ~batch.host.is_query
            divisor = max(int(counted.sum()), 1)
        return nll.sum() / divisor

    if not TYPE_CHECKING:  # a type checker finds names that are not there by itself

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_"):  # Python itself asks
                    raise
                raise AttributeError(lacks("SurvivalModel", name, dir(type(self)))) from None

    def __call__(self, batch: VisitBatch, *others: object, **named: object) -> Tensor:
        """`forward`, after a look at what is given.

        Raises:
            EhrseqError: It is no `VisitBatch`.
        """
        if others or named or not isinstance(batch, VisitBatch):
            form = "VisitBatch.from_padded(codes, code_mask, ages, time_deltas, visit_mask)"
            raise EhrseqError(
                f"expected a VisitBatch alone, got {', '.join([type(batch).__name__, *named])}",
                where=type(self).__name__,
                fix=f"write model({form}); see model.loss(batch), model.attention(batch), model.states(batch)",
            )
        return super().__call__(batch)

    def risk(
        self,
        batch: VisitBatch,
        horizons_days: Sequence[str | float],
        *,
        start_days: Tensor | float | None = None,
    ) -> Tensor:
        """Cumulative incidence of each cause by each horizon, from every row on.

        Args:
            batch: Labels are not needed.
            horizons_days: Days after the prediction time; `"1y"` is 365.25.
            start_days: Given no event for so long; one number or (N,).

        Returns:
            (N, causes, horizons) float64.

        Raises:
            EhrseqError: The head is `visit` (a visit has no clock), or a horizon is impossible.
        """
        if self.config.head == "visit":
            raise EhrseqError(
                "the visit head's hazard is 'before the next visit' and has no days",
                where="ModelConfig.head=visit",
                fix="use the sigmoid of the logits, or a model with head=horizon",
            )
        return cumulative_incidence(
            self(batch),
            self.config.edges_days,
            horizons_days=days_of(horizons_days),
            start_days=start_days,
        )

    def logits_at(self, batch: VisitBatch, rows: Tensor) -> Tensor:
        """Logits of some rows (R,) of the batch. A subclass may save work where few are asked."""
        return self(batch).index_select(0, rows)

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

    def start_at_rates(self, batch: VisitBatch) -> None:
        """Start a new model at the event rates of labelled prediction times, as training does.

        A new model's hazards are e^0 = 1 per day. Afterwards the head's bias is the log of events over days at risk,
        for each cause and bin. `batch` holds the training subjects, or a large random part of them, with their labels.

        Raises:
            EhrseqError: The head is `visit`, or there are no labels.

        Example:
            >>> from ehrsequencing import HierarchicalBEHRTForSurvival, ModelConfig
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
            raise EhrseqError(
                "the visit head has no rates per day",
                where="start_at_rates",
                fix="use model.head.set_bias(hazards) with the share of visits that an event follows",
            )
        host = batch.host
        if host.at_risk is None or host.duration_days is None or host.cause is None:
            raise EhrseqError("no labels", where="VisitBatch", fix="make the batch with its labels")
        at_risk = host.at_risk
        entry = torch.zeros_like(host.duration_days) if host.entry_days is None else host.entry_days
        hazards = cohort_hazards(
            self.config.edges_days,
            entry[at_risk].double().numpy(),
            host.duration_days[at_risk].double().numpy(),
            host.cause[at_risk].numpy(),
            n_causes=self.config.causes,
        )
        self.head.set_bias(torch.from_numpy(hazards))

    def recalibrate(self, intercept: Tensor, slope: Tensor) -> None:
        """Fold `log λ'_{e,k} = a_{e,k} + b_{e,k} · log λ_{e,k}`, (causes, bins) each, into the last layers.

        The model keeps its shape, its files and its cost.

        Raises:
            EhrseqError: The head is `visit`, a shape is another, or a number is not finite.
        """
        self.head.recalibrate(intercept, slope)
        if isinstance(self.wide_head, HazardsOverTime):
            self.wide_head.stretch(slope)
        if self.code_effects is not None:
            self.code_effects.slope *= slope

    def save_pretrained(self, path: str | Path) -> None:
        """Write `config.json` and `model.safetensors` into a folder, each in one rename."""
        folder, state = Path(path), self.state_dict()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        write_bytes(folder / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}))
        config = self.config.model_dump_json(indent=2) + "\n"
        write_bytes(folder / CONFIG_FILE, config.encode())

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Load a model from its folder, in evaluation mode. Reads JSON and safetensors only, never a pickle.

        Raises:
            EhrseqError: A file is missing or damaged, or the weights are not those of the configuration.
        """
        config = read_config(Path(path))
        return read_weights(Path(path), config, cls).eval()


# ---- files ----------------------------------------------------------------------------------------------------------


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a saved model."""
    path = folder / CONFIG_FILE
    return validated(ModelConfig, without_former(read_json(path), "model."), where=str(path))


def read_weights(folder: Path, config: ModelConfig, build: Callable[[ModelConfig], Model]) -> Model:
    """The model of a configuration with the weights of a folder; errors as of `SurvivalModel.from_pretrained`."""
    path = folder / WEIGHTS_FILE
    where, fix = str(path), "save the model again"
    try:
        with disk_errors("cannot be read", path), safe_open(path, framework="pt") as file:
            # cloned into memory of its own: aligned, so that sums round as before, and safe if the file is replaced
            weights = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise EhrseqError("is not a safetensors file", where=where, fix=fix) from error
    if config.layers * config.members > len(weights):  # before anything of that size is built
        raise EhrseqError(
            "holds fewer tensors than the configuration has layers", where=where, fix=fix
        )
    try:
        with (
            torch.device("meta"),
            _Unstarted(),
        ):  # shapes only: a hostile configuration allocates nothing
            model = build(config)
    except (
        OverflowError,
        RuntimeError,
        TypeError,
    ) as error:  # what torch raises for a size that is too big
        raise EhrseqError(
            "describes no possible model", where=str(folder / CONFIG_FILE), fix=fix
        ) from error
    columns = config.table_columns or config.vocab_size
    for name, tensor in model.state_dict().items():
        if name.endswith(".curves"):  # runs of 2.0 have free bins alone
            weights.setdefault(name, torch.zeros(tensor.shape, dtype=tensor.dtype))
        if name not in weights:
            raise EhrseqError(f"has no tensor {name}", where=where, fix=fix)
        stored = weights[name]
        kinds = (torch.float32, torch.float64) if tensor.is_floating_point() else (tensor.dtype,)
        if stored.shape != tensor.shape or stored.dtype not in kinds:
            kind = "float" if tensor.is_floating_point() else str(tensor.dtype)
            raise EhrseqError(
                f"{name}: expected {kind} of shape {tuple(tensor.shape)}, got {stored.dtype} {tuple(stored.shape)}",
                where=where,
                fix=fix,
            )
        if not tensor.is_floating_point() and bool((stored >= columns).any()):
            raise EhrseqError(f"{name}: a column outside the table", where=where, fix=fix)
        if not bool(stored.isfinite().all()):
            raise EhrseqError(f"{name}: not every weight is finite", where=where, fix=fix)
    unknown = sorted(set(weights) - set(model.state_dict()))
    if unknown:
        raise EhrseqError(f"holds an unknown tensor {unknown[0]!r}", where=where, fix=fix)
    model.load_state_dict(weights, assign=True)
    return model


class _Unstarted(TorchFunctionMode):
    """New parameters keep what is in their memory: a start on the meta device loads a compiler, for nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        if func is torch.arange:
            return torch.empty(*args, dtype=torch.int64)
        return func(*args, **given)
