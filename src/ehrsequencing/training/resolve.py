"""Fill in the model settings that the data decides: vocabulary, causes, the time grid and the initial hazards."""

from typing import Any

import numpy as np

from ehrsequencing.config import ModelConfig, TaskConfig, TrainingConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.grid import grid_edges
from ehrsequencing.records.hazards import cohort_hazards
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows


def resolve_model(
    model: ModelConfig, prepared: Prepared, task: TaskConfig, rows: TaskRows, settings: TrainingConfig
) -> tuple[ModelConfig, np.ndarray[Any, np.dtype[np.float64]]]:
    """Fill in what the data decides: vocabulary, causes, the hazard's grid and its starting level (E, K)."""
    if model.members not in (1, settings.members):
        raise EhrseqError("is decided by training.members", where="model.members", fix="set training.members")
    filled = {**_of_inputs(model, prepared), "members": settings.members}
    if model.head == "visit":
        if len(task.causes) > 1 or task.index.which == "every" or task.recurrent:
            fix = "use model.head=horizon"
            raise EhrseqError(
                "head=visit takes one cause and one index per subject", where=f"task {task.name}", fix=fix
            )
        return _filled(model, filled, prepared), np.zeros((1, 1))
    duration, cause = rows.duration_days, rows.cause
    enough = prepared.study.vocabulary.min_subjects  # the edges go with the model
    edges = grid_edges(
        duration, cause, horizons_days=task.horizons, bins=settings.grid_bins, subject=rows.subject, enough=enough
    )
    filled |= {"causes": len(task.causes), "edges_days": edges}
    resolved = _filled(model, filled, prepared)
    return resolved, starting_hazards(resolved, rows)


def starting_hazards(config: ModelConfig, rows: TaskRows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The level (E, K) that the head of a resolved model starts at: the hazards of these rows."""
    if config.head == "visit":
        return np.zeros((1, 1))
    return cohort_hazards(
        config.edges_days, rows.entry_days, rows.duration_days, rows.cause, n_causes=config.causes
    )  # fmt: skip


def _filled(model: ModelConfig, filled: dict[str, Any], prepared: Prepared) -> ModelConfig:
    """The settings with what the data decides; a different value given by the user raises an error."""
    for name, value in filled.items():
        if getattr(model, name) not in (ModelConfig.model_fields[name].default, value):
            fix = "leave it out; values.mode and values.bins are settings of ehrseq prepare"
            raise EhrseqError("is decided by the prepared data", where=f"model.{name}, {prepared.folder}", fix=fix)
    return ModelConfig.model_validate(model.model_dump() | filled)


def resolve_inputs(model: ModelConfig, prepared: Prepared) -> ModelConfig:
    """The settings with what a prepared set decides without a task: vocabulary, values and types of codes."""
    return _filled(model, _of_inputs(model, prepared), prepared)


def _of_inputs(model: ModelConfig, prepared: Prepared) -> dict[str, Any]:
    modes = {"polynomial": "polynomial", "interpolate": "interpolate", "bins": "none", "none": "none"}
    values = prepared.study.values
    filled: dict[str, Any] = {
        "vocab_size": len(prepared.vocabulary), "values": modes[values.mode], "value_bins": values.bins,
    }  # fmt: skip
    if model.code_types:
        filled["n_code_types"] = int(prepared.vocabulary.code_types.max()) + 1
    return filled
