"""Settings: frozen, typed, and an unknown key is an error. A study file holds them all; a `RUN` records its own.

Every setting can be given in a YAML file (`--config study.yaml`) or as `section.key=value` on the command line.
"""

from ehrsequencing.config.base import Settings
from ehrsequencing.config.files import (
    COMMANDS,
    load_study,
    load_task,
    read_settings,
    refuse_changes,
    refuse_other_task,
    refuse_unused,
    setting_names,
    settings_named,
    validated,
)
from ehrsequencing.config.importing import ImportConfig, load_import
from ehrsequencing.config.model import ModelConfig, ModelSettings, ModelShape
from ehrsequencing.config.study import (
    DataConfig,
    DriftConfig,
    EvaluationConfig,
    PretrainingConfig,
    SplitsConfig,
    StudyConfig,
    TrainingConfig,
    TransferConfig,
    ValuesConfig,
    VisitsConfig,
    VocabularyConfig,
)
from ehrsequencing.config.task import (
    CensoringConfig,
    EligibilityConfig,
    HistoryCode,
    IndexConfig,
    OutcomesConfig,
    TaskConfig,
)
from ehrsequencing.core.text import DAYS_PER_YEAR, BadText, format_days, parse_days, parse_json

__all__ = [
    "COMMANDS",
    "DAYS_PER_YEAR",
    "BadText",
    "CensoringConfig",
    "DataConfig",
    "DriftConfig",
    "EligibilityConfig",
    "EvaluationConfig",
    "HistoryCode",
    "ImportConfig",
    "IndexConfig",
    "ModelConfig",
    "ModelSettings",
    "ModelShape",
    "OutcomesConfig",
    "PretrainingConfig",
    "Settings",
    "SplitsConfig",
    "StudyConfig",
    "TaskConfig",
    "TrainingConfig",
    "TransferConfig",
    "ValuesConfig",
    "VisitsConfig",
    "VocabularyConfig",
    "format_days",
    "load_import",
    "load_study",
    "load_task",
    "parse_days",
    "parse_json",
    "read_settings",
    "refuse_changes",
    "refuse_other_task",
    "refuse_unused",
    "setting_names",
    "settings_named",
    "validated",
]
