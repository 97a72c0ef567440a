"""Configuration or folder → model, whichever its architecture."""

from pathlib import Path

from ehrsequencing.config import ModelConfig
from ehrsequencing.models.base import SurvivalModel, read_config
from ehrsequencing.models.behrt import BEHRTForSurvival
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival

_CLASSES: dict[str, type[SurvivalModel]] = {
    model.architecture: model for model in (HierarchicalBEHRTForSurvival, BEHRTForSurvival)
}


def build_model(config: ModelConfig) -> SurvivalModel:
    """A new model of the configured architecture."""
    return _CLASSES[config.architecture](config)


def load_model(path: str | Path) -> SurvivalModel:
    """The model in a folder, in evaluation mode; errors as `SurvivalModel.from_pretrained`."""
    return _CLASSES[read_config(Path(path)).architecture].from_pretrained(path)
