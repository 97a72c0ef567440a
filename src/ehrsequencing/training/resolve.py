"""What the data decides: defaults for small cohorts, vocabulary, causes, the time grid, where outcomes start."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ehrsequencing.config import (
    ModelConfig,
    ModelSettings,
    ModelShape,
    StudyConfig,
    TaskConfig,
    TrainingConfig,
    TransferConfig,
)
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.hazard_model import refuse_bidirectional
from ehrsequencing.models.outcomes import OutcomeLabels, events_and_days, starting_rates
from ehrsequencing.records.outcomes import ROWS_AT_ONCE, outcome_labels, with_outcome_events
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.scales import grid_edges
from ehrsequencing.records.timelines import TaskRecords, TaskRows

# Fewer training subjects with an event of interest than this get the settings of a small cohort. The number of events
# and not of subjects bounds what a survival model can learn (Harrell's events per variable). The rule was chosen on
# tuning splits of real patients (docs/lab-notes/trials.md); a setting that is given always wins.
FEW_EVENTS = 2_000
OF_FEW_EVENTS: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "size": "small",
        "dropout": 0.3,
        "wide_head": True,
        "age_polynomial": True,
    },
}
# Few events and records that are mostly measurements: these stand side by side, and half of the loss comes from boosted
# visits and Cox, which find in them what so few events do not teach a network. Hiding codes is for measurements too:
# many tell the same. A record of codes loses with a code the pairs that it is part of. Which codes meet in a visit says
# nothing here, and the training has a length: a rate that falls to 0 needs no patience (docs/lab-notes/29).
OF_FEW_EVENTS_AND_NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "model": {**OF_FEW_EVENTS["model"], "code_dropout": 0.3, "table_dim": 128},
    "training": {
        "distillation": 0.5,
        "masked_codes": 0.0,
        "schedule": "falling",
        "epochs": 16,
        "learning_rate": 2e-3,
    },
}
_ENOUGH_CODES = 1_000_000
Changes = Mapping[str, Mapping[str, Any]]  # section → setting → value


def resolve_model(
    model: ModelSettings,
    prepared: Prepared,
    task: TaskConfig,
    train: TaskRecords,
    settings: TrainingConfig,
) -> ModelConfig:
    """The model with what the data decides: vocabulary, causes and the hazard's grid."""
    refuse_bidirectional(model)
    shape = shape_of_inputs(model, prepared).model_dump() | {
        "members": settings.members,
        "causes": len(task.causes),
    }
    if task.outcomes is not None and model.head == "visit":
        raise EhrseqError(
            "outcomes have hazards per day, and head=visit has none",
            where=f"task {task.name}, outcomes",
            fix="use head=horizon",
        )
    if model.head == "visit":
        if len(task.causes) > 1 or task.index.which == "every" or task.recurrent:
            raise EhrseqError(
                "head=visit takes one cause and one index per subject",
                where=f"task {task.name}",
                fix="use model.head=horizon",
            )
    else:
        shape["edges_days"] = training_edges(prepared, task, train.rows, bins=settings.grid_bins)
        # a query of measurements carries summaries of them, and does not need the last ones again
        shape["query_follows_visit"] = not are_measurements(train.timelines.values)
        shape["outcomes"] = len(prepared.outcomes(task.name))
    return ModelConfig.of(model, ModelShape.model_validate(shape))


def training_edges(
    prepared: Prepared, task: TaskConfig, rows: TaskRows | None = None, *, bins: int
) -> tuple[float, ...]:
    """The inner edges of the hazard's bins that the durations of the training rows give."""
    rows = prepared.rows(task.name, "train") if rows is None else rows
    duration, cause, subject = rows.duration_days, rows.cause, rows.subject
    if task.outcomes is not None:
        duration, cause, subject = with_outcome_events(prepared.outcome_records(task.name, "train"))
    return grid_edges(
        duration,
        cause,
        horizons_days=task.horizons,
        bins=bins,
        subject=subject,
        enough=prepared.study.vocabulary.min_subjects,  # the edges go with the model
    )


def starting_outcome_hazards(config: ModelConfig, records: TaskRecords) -> Tensor:
    """Hazards (C, K) that the outcomes start at: the training rates of their codes."""
    assert records.outcomes is not None
    rows, shape = records.rows, (config.outcomes, config.bins)
    events, exposed = torch.zeros(2, *shape, dtype=torch.float64)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chosen = np.arange(start, min(start + ROWS_AT_ONCE, len(rows)))
        listed = outcome_labels(records.outcomes, rows, chosen)
        entry, stop, days = (
            torch.from_numpy(np.asarray(x, dtype=np.float64))
            for x in (rows.entry_days[chosen], rows.duration_days[chosen], listed.days)
        )
        labels = OutcomeLabels(torch.from_numpy(listed.row), torch.from_numpy(listed.code), days)
        more_events, more_days = events_and_days(
            config.edges_days, labels, outcomes=config.outcomes, stop_days=stop, entry_days=entry
        )
        events += more_events
        exposed += more_days
    return starting_rates(events, exposed.clamp(min=0))


def shape_of_inputs(model: ModelSettings, prepared: Prepared) -> ModelShape:
    """What a prepared set decides without a task: vocabulary, values and types of codes."""
    vocabulary, values = prepared.vocabulary, prepared.study.values
    return ModelShape(
        vocab_size=len(vocabulary),
        values="none" if values.mode == "bins" else values.mode,
        value_bins=values.bins,
        table_columns=max(1, int(vocabulary.value_columns.max()) + 1) if model.table_dim else 0,
        n_code_types=int(vocabulary.code_types.max()) + 1 if model.code_types else 1,
    )


# ---- defaults for small cohorts


def study_for_cohort(
    study: StudyConfig, task: TaskConfig, train: TaskRecords, *, transfers: bool = False
) -> StudyConfig:
    """The study with the defaults for the cohort that it is trained on.

    Args:
        study: Settings; what was given in a file or on the command line counts as set.
        task: The question.
        train: Its training split, which decides.
        transfers: Whether training starts from another model, which decides instead.

    Raises:
        EhrseqError: A setting of the transfer is given without a model to start from.
    """
    if transfers:
        return study
    if study.transfer != (nothing := TransferConfig()):
        given = study.transfer.model_dump()
        name = next(n for n, value in nothing.model_dump().items() if given[n] != value)
        raise EhrseqError(
            "needs a model to start from",
            where=f"transfer.{name}",
            fix="name the model with --init, or leave the setting out",
        )
    if subjects_with_event(train.rows) >= FEW_EVENTS:
        return study
    has_hazards_of_trees = study.model.head == "horizon" and task.outcomes is None
    if has_hazards_of_trees and are_measurements(train.timelines.values):
        return with_defaults(study, OF_FEW_EVENTS_AND_NUMBERS)
    return with_defaults(study, OF_FEW_EVENTS)


def subjects_with_event(rows: TaskRows) -> int:
    """Subjects with the event of interest after one of their prediction times."""
    return len(np.unique(np.asarray(rows.subject)[np.asarray(rows.cause) == 1]))


def are_measurements(values: NDArray[np.floating]) -> bool:
    """Whether half of a split's codes or more carry a number, by its first million.

    Args:
        values: (codes, 2) the numbers of a split's codes; NaN where a code has none.

    >>> are_measurements(np.array([[0.5, 0.1], [np.nan, np.nan]])), are_measurements(np.full((3, 2), np.nan))
    (True, False)
    """
    numbers = np.isfinite(values[:_ENOUGH_CODES, 0])
    return bool(2 * numbers.sum() >= max(len(numbers), 1))


def with_defaults(study: StudyConfig, changes: Changes) -> StudyConfig:
    """The study with other defaults: a setting that was given stays.

    >>> given = StudyConfig.model_validate({"model": {"dropout": 0.1}})
    >>> changed = with_defaults(given, {"model": {"dropout": 0.3, "wide_head": True}})
    >>> changed.model.dropout, changed.model.wide_head
    (0.1, True)
    """
    sections = {}
    for section, values in changes.items():
        old = getattr(study, section)
        given = {name: getattr(old, name) for name in old.model_fields_set}
        sections[section] = type(old).model_validate({**values, **given})
    return study.model_copy(update=sections)
