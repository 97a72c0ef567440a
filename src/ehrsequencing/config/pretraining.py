"""Settings of pretraining on records without labels, and of training that starts from a pretrained model."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ehrsequencing.config import parts
from ehrsequencing.config.base import Settings


def _as_weights(value: object) -> object:
    """One name, or a list of names, as weights of 1."""
    names = [value] if isinstance(value, str) else value
    return dict.fromkeys(names, 1.0) if isinstance(names, list | tuple) else value


def _checked(weights: dict[str, float]) -> dict[str, float]:
    if not weights:
        raise ValueError(f"name at least one of {', '.join(parts.objective.parts)}")
    return {parts.objective.checked(name): weight for name, weight in weights.items()}


Objectives = Annotated[
    dict[str, Annotated[float, Field(gt=0)]], BeforeValidator(_as_weights), AfterValidator(_checked)
]


class PretrainingConfig(Settings):
    """What a model learns from records without labels (docs/pretraining.md)."""

    # Name → weight of its loss; a list means weights of 1.
    objectives: Objectives = Field(
        default_factory=lambda: {"masked_codes": 1.0, "time_to_code": 1.0}
    )
    # masked_codes: share of visits that lose one of their codes
    masked_share: float = Field(0.5, gt=0, le=1)
    exclude: Literal["related", "none"] = "related"  # with --task: which codes are no targets


class TransferConfig(Settings):
    """How `ehrseq train --init` uses the weights of another model (docs/pretraining.md)."""

    # full: all weights are trained. frozen: only the head, and what the other model never learned. lora: these, and
    # low-rank updates of the frozen matrices.
    mode: Literal["full", "frozen", "lora"] = "full"
    lora_rank: int = Field(8, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> "TransferConfig":
        if self.mode != "lora" and self.lora_rank != 8:
            raise ValueError(f"lora_rank does nothing with mode={self.mode}: set mode=lora")
        return self
