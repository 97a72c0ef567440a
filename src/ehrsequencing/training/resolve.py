"""Fill in the model settings that the data decides: vocabulary, causes, the time grid and the initial hazards."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ehrsequencing.config import ModelConfig, TaskConfig, TrainingConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.hazards import cohort_hazards
from ehrsequencing.models.hazards import exposure
from ehrsequencing.models.outcomes import starting_rates
from ehrsequencing.records.grid import grid_edges
from ehrsequencing.records.outcomes import ROWS_AT_ONCE, outcome_labels, with_outcome_events
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords, TaskRows


def resolve_model(
    model: ModelConfig,
    prepared: Prepared,
    task: TaskConfig,
    rows: TaskRows,
    settings: TrainingConfig,
) -> tuple[ModelConfig, np.ndarray[Any, np.dtype[np.float64]]]:
    """Fill in what the data decides: vocabulary, causes, the hazard's grid and its starting level (E, K)."""
    if model.members not in (1, settings.members):
        raise EhrseqError(
            "is decided by training.members", where="model.members", fix="set training.members"
        )
    filled = {**_of_inputs(model, prepared), "members": settings.members}
    if task.outcomes is not None:
        _refuse_with_outcomes(model, task)
    if model.head == "visit":
        if len(task.causes) > 1 or task.index.which == "every" or task.recurrent:
            fix = "use model.head=horizon"
            raise EhrseqError(
                "head=visit takes one cause and one index per subject",
                where=f"task {task.name}",
                fix=fix,
            )
        return _filled(model, filled, prepared), np.zeros((1, 1))
    duration, cause, subject = rows.duration_days, rows.cause, rows.subject
    if task.outcomes is not None:
        duration, cause, subject = with_outcome_events(prepared.outcome_records(task.name, "train"))
    enough = prepared.study.vocabulary.min_subjects  # the edges go with the model
    edges = grid_edges(
        duration,
        cause,
        horizons_days=task.horizons,
        bins=settings.grid_bins,
        subject=subject,
        enough=enough,
    )
    filled |= {
        "causes": len(task.causes),
        "edges_days": edges,
        "outcomes": len(prepared.outcomes(task.name)),
    }
    resolved = _filled(model, filled, prepared)
    return resolved, starting_hazards(resolved, rows)


def starting_hazards(config: ModelConfig, rows: TaskRows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The level (E, K) that the head of a resolved model starts at: the hazards of these rows."""
    if config.head == "visit":
        return np.zeros((1, 1))
    return cohort_hazards(
        config.edges_days, rows.entry_days, rows.duration_days, rows.cause, n_causes=config.causes
    )


def _refuse_with_outcomes(model: ModelConfig, task: TaskConfig) -> None:
    """What a task with outcomes cannot be trained with."""
    where = f"task {task.name}, outcomes"
    if model.head == "visit":
        raise EhrseqError(
            "outcomes have hazards per day, and head=visit has none",
            where=where,
            fix="use head=horizon",
        )


def starting_outcome_hazards(config: ModelConfig, records: TaskRecords) -> Tensor:
    """Hazards (C, K) that the outcomes start at: the training rates of their codes."""
    assert records.outcomes is not None
    rows, shape = records.rows, (config.outcomes, config.bins)
    events, exposed = (
        torch.zeros(shape, dtype=torch.float64),
        torch.zeros(shape, dtype=torch.float64),
    )
    edges = torch.tensor(config.edges_days, dtype=torch.float64)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chosen = np.arange(start, min(start + ROWS_AT_ONCE, len(rows)))
        listed = outcome_labels(records.outcomes, rows, chosen, recur=records.outcomes_recur)
        entry, stop, days = (
            torch.from_numpy(np.asarray(x, dtype=np.float64))
            for x in (rows.entry_days[chosen], rows.duration_days[chosen], listed.days)
        )
        row, code = torch.from_numpy(listed.row), torch.from_numpy(listed.code)
        # as if no outcome had happened; corrected pair by pair
        whole = exposure(config.edges_days, entry, stop)
        exposed += whole.sum(0)
        exposed.index_add_(0, code, exposure(config.edges_days, entry[row], days) - whole[row])
        happened = days > 0
        at = (code * config.bins + torch.bucketize(days, edges))[happened]
        events += at.bincount(minlength=events.numel()).view(shape)
    return starting_rates(events, exposed.clamp(min=0))


def _filled(model: ModelConfig, filled: dict[str, Any], prepared: Prepared) -> ModelConfig:
    """The settings with what the data decides; a different value given by the user raises an error."""
    for name, value in filled.items():
        if getattr(model, name) not in (ModelConfig.model_fields[name].default, value):
            fix = "leave it out; values.mode and values.bins are settings of ehrseq prepare"
            raise EhrseqError(
                "is decided by the prepared data", where=f"model.{name}, {prepared.folder}", fix=fix
            )
    return ModelConfig.model_validate(model.model_dump() | filled)


def resolve_inputs(model: ModelConfig, prepared: Prepared) -> ModelConfig:
    """The settings with what a prepared set decides without a task: vocabulary, values and types of codes."""
    return _filled(model, _of_inputs(model, prepared), prepared)


def _of_inputs(model: ModelConfig, prepared: Prepared) -> dict[str, Any]:
    modes = {
        "polynomial": "polynomial",
        "interpolate": "interpolate",
        "bins": "none",
        "none": "none",
    }
    values = prepared.study.values
    filled: dict[str, Any] = {
        "vocab_size": len(prepared.vocabulary),
        "values": modes[values.mode],
        "value_bins": values.bins,
    }
    if model.code_types:
        filled["n_code_types"] = int(prepared.vocabulary.code_types.max()) + 1
    return filled
