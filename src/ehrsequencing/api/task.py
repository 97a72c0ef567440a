"""A task as people give it in Python."""

from pathlib import Path
from typing import Any

from ehrsequencing.api.frames import is_path
from ehrsequencing.config import TaskConfig, load_task, validated


def task_of(task: Any) -> TaskConfig:
    """A task from its file, its content as a mapping, or a `TaskConfig`.

    >>> task_of({"name": "t", "index": {"first_visit": True}, "outcome": {"hf": "I50"}, "horizons": ["1y"]}).causes
    ('hf',)

    Raises:
        EhrseqError: The file cannot be read, or a setting is unknown or missing.
    """
    if isinstance(task, TaskConfig):
        return task
    return load_task(Path(task)) if is_path(task) else validated(TaskConfig, task, where="task")
