"""A model's whole shape."""

from typing import Any, Literal

from pydantic import Field, model_validator

from ehrsequencing.config.base import Settings


class ModelConfig(Settings):
    """A model's whole shape (docs/models.md). `size` sets `dim`, `layers` and `heads`; what else is given wins."""

    size: Literal["small", "medium", "large"] | None = None  # d64 2 layers | d128 4 layers | d256 6 layers
    vocab_size: int = Field(2, ge=2)  # token ids, 0 = [PAD]; `train` fills it in
    architecture: Literal["hierarchical", "flat"] = "hierarchical"
    dim: int = Field(128, ge=4)  # width d of every vector
    heads: int = Field(4, ge=1)
    layers: int = Field(4, ge=1)  # of the timeline, or of the flat encoder
    dropout: float = Field(0.0, ge=0, lt=1)  # residual and feed-forward; never on attention weights
    code_dropout: float = Field(0.0, ge=0, lt=1)  # of whole codes of a visit (not static ones), in training
    history_dropout: float = Field(0.3, ge=0, lt=1)  # of whole visits (flat: codes) as values of attention over time;
    # ... 0 for flat and the LSTM unless given
    visit_encoder: Literal["attention", "mean", "transformer", "sum", "scaled_sum", "max"] = "attention"
    visit_mlp: bool = True  # residual MLP after the pooling; off = the seeds' encoder
    scorer: Literal["query", "bottleneck"] = "query"  # of attention pooling: q·tanh(W e + b) | W2 tanh(W1 e + b1) + b2
    visit_layers: int = Field(1, ge=1)  # of the mini-transformer
    visit_pool: Literal["mean", "cls"] = "mean"  # of the mini-transformer
    timeline: Literal["transformer", "lstm"] = "transformer"
    wide_head: bool = False  # zero-initialised linear head on the timeline's input
    attention: Literal["causal", "bidirectional"] = "causal"
    head: Literal["horizon", "visit"] = "horizon"
    causes: int = Field(1, ge=1)
    edges_days: tuple[float, ...] = ()  # inner edges of the hazard's bins; the last bin is open
    position: Literal["learned", "sinusoidal", "none"] = "learned"  # of the visit index; flat: of the token
    rotary: bool = True  # attention between visits knows the days and visits between them; not of lstm and flat
    code_position: bool = False  # a code's place within its visit
    code_types: bool = False  # an embedding of the code's kind (its MEDS prefix)
    n_code_types: int = Field(1, ge=1)  # `train` fills it in
    age_bin_years: float = Field(5.0, ge=0)  # 0 = no age embedding
    age_polynomial: bool = False  # beside the bins, a cubic in age: what is lost inside a bin
    delta_bins: Literal["log", "linear", "none"] = "log"
    delta_bin_days: float = Field(7.0, gt=0)  # delta_bins=linear: the seeds' 7 d bins up to 365 d; or 30 d up to 5 y
    delta_top_days: float = Field(365.0, gt=0)
    max_visits: int = Field(512, ge=1)  # sliding window: a visit and the max_visits - 1 before it
    max_tokens: int = Field(2048, ge=1)  # flat: whole visits back, up to so many tokens
    values: Literal["polynomial", "interpolate", "none"] = "polynomial"
    value_bins: int = Field(5, ge=2)  # knots of `interpolate`
    frozen: tuple[Literal["age", "visit"], ...] = ()  # embeddings that training leaves as they are
    members: int = Field(1, ge=1)  # of an ensemble (models/ensemble.py); `train` fills it in from training.members

    @model_validator(mode="before")
    @classmethod
    def _expand_size(cls, data: Any) -> Any:
        sizes = {"small": (64, 4, 2), "medium": (128, 4, 4), "large": (256, 8, 6)}
        if isinstance(data, dict) and isinstance(data.get("size"), str) and data["size"] in sizes:
            dim, heads, layers = sizes[data["size"]]
            data = {"dim": dim, "heads": heads, "layers": layers, **data}
        if isinstance(data, dict) and (data.get("timeline") == "lstm" or data.get("architecture") == "flat"):
            data = {"history_dropout": 0.0, **data}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must be a multiple of heads={self.heads}")
        if self.head == "visit" and (self.causes != 1 or self.edges_days):
            raise ValueError("head=visit gives one hazard per visit: causes must be 1 and edges_days empty")
        if not all(a < b < float("inf") for a, b in zip((0.0, *self.edges_days), self.edges_days, strict=False)):
            raise ValueError("edges_days must be positive, finite and rising")
        if self.timeline == "lstm" and self.attention == "bidirectional":
            raise ValueError("timeline=lstm reads forward only: attention must be causal")
        if self.timeline == "lstm" and self.history_dropout:
            raise ValueError(f"history_dropout={self.history_dropout} belongs to timeline=transformer")
        self._refuse_idle()
        return self

    def _refuse_idle(self) -> None:
        """A setting that the chosen parts do not have is a misunderstanding, not a wish."""
        homes = {
            "architecture=hierarchical": (self.architecture == "hierarchical", _HIERARCHICAL_ONLY),
            "architecture=flat": (self.architecture == "flat", ("max_tokens",)),
            "visit_encoder=attention": (self.visit_encoder == "attention", ("scorer",)),
            "visit_encoder=transformer": (self.visit_encoder == "transformer", ("visit_layers", "visit_pool")),
            "code_types=true": (self.code_types, ("n_code_types",)),
            "age_bin_years above 0": (self.age_bin_years > 0, ("age_polynomial",)),
            "delta_bins=linear": (self.delta_bins == "linear", ("delta_bin_days", "delta_top_days")),
        }
        for home, (is_there, names) in homes.items():
            for name in names:
                if not is_there and getattr(self, name) != ModelConfig.model_fields[name].default:
                    raise ValueError(f"{name}={getattr(self, name)} belongs to {home}")

    @property
    def bins(self) -> int:
        """Number of hazard bins K: one more than the inner edges, since the last bin is open."""
        return len(self.edges_days) + 1


# Settings of the two-level model alone: flat BEHRT has no visit encoder, no timeline and no time-gap embedding.
_HIERARCHICAL_ONLY = ("visit_encoder", "visit_mlp", "scorer", "timeline", "code_position", "delta_bins")
