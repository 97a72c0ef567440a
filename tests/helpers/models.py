"""Small models of every kind, and the one way to make them."""

import numpy as np
import torch
from torch import Tensor

from ehrsequencing.config import ModelConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.behrt import BEHRTForSurvival
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from helpers.strategies import CODE_TYPES, VOCAB

Settings = dict[str, object]

ENCODERS: dict[str, Settings] = {
    "query": {"visit_encoder": "attention"},
    "bottleneck": {"visit_encoder": "bottleneck"},
    "mean": {"visit_encoder": "mean"},
    "sum": {"visit_encoder": "sum"},
    "scaled_sum": {"visit_encoder": "scaled_sum"},
    "max": {"visit_encoder": "max"},
    "transformer": {"visit_encoder": "transformer"},
}
REACHES = (512, 9, 4, 1)  # flat: tokens
# One model of each kind, for the checks of what must not move it and what must.
MODELS: dict[str, Settings] = {
    **ENCODERS,
    "the seeds": {"visit_mlp": False, "values": "none", "delta_bins": "linear", "max_visits": 3},
    "code types": {"code_types": True, "wide_head": True},
    "table": {"table_dim": 6, "wide_head": True},
    "query follows": {"query_follows_visit": True, "wide_head": True},
    "code effects": {"code_effects": True, "wide_head": True},
    "sinusoidal": {"position": "sinusoidal", "max_visits": 3},
    "flat": {"architecture": "flat"},
    **{f"flat {reach}": {"architecture": "flat", "max_tokens": reach} for reach in REACHES[1:]},
    "flat sinusoidal": {"architecture": "flat", "position": "sinusoidal", "code_types": True, "wide_head": True},
    "flat table": {"architecture": "flat", "table_dim": 5},
}


def make_model(*, seed: int = 0, **settings: object) -> SurvivalModel:
    """A small float64 model in evaluation mode; all weights are random, for a zero could hide an error."""
    grid: Settings = {"causes": 2, "edges_days": (10.0, 30.0, 365.25)} if settings.get("head") != "visit" else {}
    types: Settings = {"n_code_types": CODE_TYPES} if settings.get("code_types") else {}
    common: Settings = {"vocab_size": VOCAB, "dim": 8, "heads": 2, "layers": 2}
    config = ModelConfig.model_validate({**common, **grid, **types, **settings})
    build = BEHRTForSurvival if config.architecture == "flat" else HierarchicalBEHRTForSurvival
    model = build(config).double().eval()
    if model.table is not None:
        every = np.arange(config.vocab_size)
        model.table.set_columns(every, every)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
            if "norm.weight" in name or name.endswith("_scale"):
                parameter.add_(1.0)
            if name == "code_effects.effect":  # five times as large in the logits, which are exact up to 20
                parameter.div_(5.0)
        code_table(model)[0] = 0.0
    return model


def code_table(model: SurvivalModel) -> Tensor:
    """(vocabulary, d) of either architecture."""
    return model.get_parameter(code_table_name(model.config))


def code_table_name(config: ModelConfig) -> str:
    flat = config.architecture == "flat"
    return "encoder.embedding.code.table.weight" if flat else "code_embedding.table.weight"
