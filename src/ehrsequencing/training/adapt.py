"""Defaults that follow from the size of the cohort: what a user does not set is set here, by a written rule.

    n = training subjects with an event of interest at one of their prediction times

    n < 2,000:  model.size=small, model.dropout=0.3, model.code_dropout=0.3,
                model.wide_head=true, model.age_polynomial=true
    otherwise:  the defaults of `ModelConfig`, which were measured with 20,000 to 100,000 simulated subjects

The number of events and not of subjects bounds what a survival model can learn (Harrell's events per variable). The
rule was chosen on tuning splits of real patients (docs/lab-notes/trials.md); a setting that is given always wins.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ehrsequencing.config import ModelConfig, StudyConfig
from ehrsequencing.config.parts import idle_settings
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows

FEW_EVENTS = 2_000
OF_FEW_EVENTS: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "size": "small",
        "dropout": 0.3,
        "code_dropout": 0.3,
        "wide_head": True,
        "age_polynomial": True,
    },
}
Changes = Mapping[str, Mapping[str, Any]]  # section → setting → value


def adapted(study: StudyConfig, prepared: Prepared, task_name: str) -> StudyConfig:
    """The study with the defaults for the cohort that it is trained on.

    Args:
        study: Settings; what was given in a file or on the command line counts as set.
        prepared: The data.
        task_name: Its training split decides.
    """
    rows = prepared.records(task_name, "train").rows
    return with_defaults(study, OF_FEW_EVENTS) if subjects_with_event(rows) < FEW_EVENTS else study


def subjects_with_event(rows: TaskRows) -> int:
    """Subjects with the event of interest after one of their prediction times."""
    return len(np.unique(np.asarray(rows.subject)[np.asarray(rows.cause) == 1]))


def with_defaults(study: StudyConfig, changes: Changes) -> StudyConfig:
    """The study with other defaults: a setting that was given stays, and one that no chosen part uses is left out.

    >>> given = StudyConfig.model_validate({"model": {"dropout": 0.1, "age_bin_years": 0}})
    >>> changed = with_defaults(given, {"model": {"dropout": 0.3, "wide_head": True, "age_polynomial": True}})
    >>> changed.model.dropout, changed.model.wide_head, changed.model.age_polynomial
    (0.1, True, False)
    """
    sections = {}
    for section, values in changes.items():
        old = getattr(study, section)
        given = {name: getattr(old, name) for name in old.model_fields_set}
        if isinstance(old, ModelConfig):
            # "size" is only the default of three others: those that are set already keep their values.
            values = {
                name: value
                for name, value in values.items()
                if name not in idle_settings(dict(old))
            }
        sections[section] = type(old).model_validate({**values, **given})
    return study.model_copy(update=sections)
