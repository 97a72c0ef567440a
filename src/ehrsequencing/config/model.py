"""A model: what a user sets (`ModelSettings`), what data and task decide (`ModelShape`), and both (`ModelConfig`)."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ehrsequencing.config import base as parts
from ehrsequencing.config.base import Settings
from ehrsequencing.core.errors import EhrseqError

# what other libraries call our settings
_ELSEWHERE = {
    "d_model": "dim",
    "hidden_size": "dim",
    "n_heads": "heads",
    "num_attention_heads": "heads",
    "n_layers": "layers",
    "num_hidden_layers": "layers",
    "num_layers": "layers",
    "hidden_dropout_prob": "dropout",
    "max_position_embeddings": "max_visits",
    "n_codes": "vocab_size",
}
VisitEncoder = Annotated[str, AfterValidator(parts.visit_encoder.checked)]


class ModelSettings(Settings):
    """The parts and sizes of a model (docs/models.md). `size` is the default of `dim`, `layers` and `heads`."""

    # d64 2 layers | d128 4 layers | d256 6 layers
    size: Literal["small", "medium", "large"] | None = None
    # hierarchical: codes become visits, and visits a timeline; flat: all codes of a subject are one sequence
    architecture: Literal["hierarchical", "flat"] = "hierarchical"
    dim: int = Field(default=128, ge=4)  # width d of every vector
    heads: int = Field(default=4, ge=1)  # attention heads; they divide dim
    layers: int = Field(default=4, ge=1)  # of the timeline, or of the flat encoder
    # of residual branches and the head, not of attention weights
    dropout: float = Field(default=0.0, ge=0, lt=1)
    # probability that training drops a code of a visit (not a static code)
    code_dropout: float = Field(default=0.0, ge=0, lt=1)
    # Probability that training hides a visit (flat: a code) from attention over time. Default 0 for flat.
    history_dropout: float = Field(default=0.3, ge=0, lt=1)
    # how a visit's codes become one vector: attention, bottleneck, mean, sum, scaled_sum, max, transformer, or your own
    visit_encoder: VisitEncoder = "attention"
    visit_mlp: bool = True  # residual MLP after the visit encoder
    wide_head: bool = False  # linear head on the input of the timeline; starts at zero
    # width of the table branch, which sums the numbers of each visit and query; 0: none
    table_dim: int = Field(default=0, ge=0)
    # causal: no visit sees a later one; bidirectional: for pretraining, hazards cannot be fitted with it
    attention: Literal["causal", "bidirectional"] = "causal"
    # horizon: hazards per day of each cause, so risk by any day; visit: hazard of an event before the next visit
    head: Literal["horizon", "visit"] = "horizon"
    # embedding of the visit's index; flat: of the token's
    position: Literal["learned", "sinusoidal", "none"] = "learned"
    rotary: bool = True  # attention knows the days and visits between two visits; not flat
    code_position: bool = False  # embedding of a code's position within its visit
    code_types: bool = False  # embedding of a code's type (its MEDS prefix)
    age_bin_years: float = Field(default=5.0, ge=0)  # 0 = no age embedding
    age_polynomial: bool = False  # adds a cubic in age to the bins
    # embedding of the time since the visit before: log bins from an hour to 10 years, linear bins, or none
    delta_bins: Literal["log", "linear", "none"] = "log"
    max_visits: int = Field(
        default=512, ge=1
    )  # attention window: a visit and the max_visits - 1 before it
    max_tokens: int = Field(
        default=2048, ge=1
    )  # flat: attention window in tokens, cut at whole visits

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in set(data) & set(_ELSEWHERE):
            if _ELSEWHERE[name] in cls.model_fields:
                raise ValueError(f"unknown setting {name!r}: did you mean {_ELSEWHERE[name]}?")
        sizes = {"small": (64, 4, 2), "medium": (128, 4, 4), "large": (256, 8, 6)}
        size = sizes.get(str(data.get("size")))
        of_size = {} if size is None else dict(zip(("dim", "heads", "layers"), size, strict=True))
        of_flat = {"history_dropout": 0.0} if data.get("architecture") == "flat" else {}
        return {**of_size, **of_flat, **data}

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSettings":
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must be a multiple of heads={self.heads}")
        return self

    def refuse_bidirectional(self) -> None:
        """Refuse to fit hazards with a timeline in which visits see later ones.

        Raises:
            EhrseqError: The attention is bidirectional.
        """
        if self.attention == "bidirectional":
            raise EhrseqError(
                "a hazard at a visit would have seen the visits after it, and would score better than the truth",
                where="ModelConfig.attention=bidirectional",
                fix="fit hazards with attention=causal; bidirectional is for pretraining",
            )

    @property
    def relates_codes(self) -> bool:
        """Whether the cost grows with the square of the number of codes in a visit."""
        return self.architecture == "flat" or self.visit_encoder == "transformer"


class ModelShape(Settings):
    """What data, task and the number of members decide of a model; `train` finds it out."""

    vocab_size: int = Field(default=2, ge=2)  # number of token ids, 0 = [PAD]
    table_columns: int = Field(default=0, ge=0)  # tokens that carry numbers
    causes: int = Field(default=1, ge=1)  # outcome and competing events
    edges_days: tuple[float, ...] = ()  # inner edges of the hazard's bins; the last bin is open
    outcomes: int = Field(default=0, ge=0)  # codes that have hazards of their own
    n_code_types: int = Field(default=1, ge=1)
    # how a code's number enters its vector
    values: Literal["polynomial", "interpolate", "none"] = "polynomial"
    value_bins: int = Field(default=5, ge=2)  # values=interpolate: number of knots
    members: int = Field(default=1, ge=1)  # size of the ensemble
    # whether a query begins with the vector of the visit that it follows
    query_follows_visit: bool = False
    # whether every code has additive effects beside the network
    code_effects: bool = False

    @model_validator(mode="after")
    def _rising(self) -> "ModelShape":
        if not all(
            a < b < float("inf")
            for a, b in zip((0.0, *self.edges_days), self.edges_days, strict=False)
        ):
            raise ValueError("edges_days must be positive, finite and rising")
        return self

    @property
    def bins(self) -> int:
        """Number of hazard bins K: one more than the inner edges, since the last bin is open."""
        return len(self.edges_days) + 1


class ModelConfig(ModelSettings, ModelShape):
    """What a model is built from: settings and shape."""

    if not TYPE_CHECKING:  # a type checker finds names that are not there by itself

        def __getattr__(self, name: str) -> Any:
            if name in _ELSEWHERE:
                raise AttributeError(f"a configuration has no {name!r}: use {_ELSEWHERE[name]}")
            return super().__getattr__(name)

    @classmethod
    def of(cls, settings: ModelSettings, shape: ModelShape) -> "ModelConfig":
        """Both in one."""
        return cls.model_validate(settings.model_dump() | shape.model_dump())

    @classmethod
    def as_seeds(cls, n_codes: int, dim: int = 128, **settings: Any) -> "ModelConfig":
        """The configuration with which the engine is the plain model of `ehrsequencing.nn`.

        Args:
            n_codes: Number of token ids, 0 = the pad.
            dim: Width.
            settings: Others, such as architecture, heads, layers, visit_encoder, position.
        """
        plain = {
            "head": "visit",
            "visit_mlp": False,
            "rotary": False,
            "values": "none",
            "history_dropout": 0.0,
            "code_position": settings.get("architecture") != "flat",
        }
        return cls(vocab_size=n_codes, dim=dim, **{**plain, **settings})
