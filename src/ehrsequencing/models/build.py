"""Configuration or folder → model, of any architecture, or an ensemble."""

from pathlib import Path

from ehrsequencing.config import ModelConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import ARCHITECTURES, Ensemble
from ehrsequencing.models.saved import read_config


def build_model(config: ModelConfig) -> SurvivalModel:
    """A new model of the configured architecture, or an ensemble of them."""
    return _class_of(config)(config)


def load_model(path: str | Path) -> SurvivalModel:
    """The model in a folder, in evaluation mode; errors as `SurvivalModel.from_pretrained`."""
    return _class_of(read_config(Path(path))).from_pretrained(path)


def _class_of(config: ModelConfig) -> type[SurvivalModel]:
    return ARCHITECTURES[config.architecture] if config.members == 1 else Ensemble
