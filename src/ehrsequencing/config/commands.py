"""Which command uses which sections of the settings. A command refuses settings that it does not use."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ehrsequencing.config.base import Settings
from ehrsequencing.config.files import read_yaml
from ehrsequencing.config.study import StudyConfig
from ehrsequencing.config.task import TaskConfig
from ehrsequencing.core.errors import EhrseqError

_RECORDS = ("data", "dialect")
_PREPARE = (*_RECORDS, "visits", "values", "vocabulary", "splits", "task")
COMMANDS: dict[str, tuple[str, ...]] = {
    "codes": _RECORDS,
    "check": _PREPARE,
    "prepare": _PREPARE,
    "pretrain": ("preset", "model", "training", "pretraining"),
    # a run keeps `evaluation` as the defaults of `evaluate`
    "train": (
        "preset",
        "model",
        "training",
        "transfer",
        "evaluation",
    ),
    "evaluate": ("evaluation",),
    "evaluate --data": ("evaluation", *_RECORDS),
    "predict": _RECORDS,
    "explain": _RECORDS,
    "explore": _RECORDS,
    "score": (*_RECORDS, "visits", "values", "vocabulary", "splits", "evaluation"),
    "score --prepared": ("evaluation",),
}
# Sections that a prepared set or a run has fixed. The section `evaluation` is never fixed.
_OF_PREPARED = ("data", "visits", "values", "vocabulary", "splits")
_OF_RUN = (*_OF_PREPARED, "model", "training")


def refuse_unused(overrides: Iterable[str], command: str) -> None:
    """Refuse `section.key=value` on the command line of a command that does not use the section.

    Raises:
        EhrseqError: Names the commands that take the setting.
    """
    for text in overrides:
        name = text.partition("=")[0].strip()
        section = name.partition(".")[0]
        takers = [f"ehrseq {other}" for other, sections in COMMANDS.items() if section in sections]
        if takers and section not in COMMANDS[command]:
            what = f"{name} belongs to {' and '.join(takers)}"
            raise EhrseqError(
                what,
                where=f"ehrseq {command}",
                fix="leave it out here, and give it to that command",
            )


def refuse_changes(
    study: StudyConfig, settled: StudyConfig, command: str, *, file: Path | None, by: Path
) -> None:
    """Refuse a study file that contradicts what a prepared set or a run was made with.

    Args:
        study: Settings of the file and the command line.
        settled: Settings that the prepared set or the run records. With a task it is a run's.
        command: The command that reads them, a key of `COMMANDS`: its own sections may differ.
        file: The study file; without one there is nothing to contradict.
        by: Folder of the prepared set or the run.

    Raises:
        EhrseqError: Names the setting, the file and the folder. What is equal or left out is fine.
    """
    if file is None:
        return
    named = _named(file)
    sections = _OF_RUN if settled.task is not None else _OF_PREPARED
    for section in sections:
        ours, theirs = getattr(study, section), getattr(settled, section)
        known = set() if section in COMMANDS[command] else set(type(ours).model_fields)
        for key in sorted(named.get(section, set()) & known):
            given, made_with = getattr(ours, key), getattr(theirs, key)
            if given != made_with:
                what = f"{section}.{key} is {_shown(given)}, but {by} was made with {_shown(made_with)}"
                raise EhrseqError(
                    what, where=str(file), fix="leave it out, or make that folder again with it"
                )
    if "preset" in named and sections is _OF_RUN and study.preset != settled.preset:
        what = f"preset is {study.preset!r}, but {by} was made with {settled.preset!r}"
        raise EhrseqError(
            what, where=str(file), fix="leave it out, or make that folder again with it"
        )
    if settled.task is not None and study.task is not None:
        refuse_other_task(study.task, settled.task, file=file, by=by)


def refuse_other_task(given: TaskConfig, known: TaskConfig, *, file: Path, by: Path) -> None:
    """Refuse the task of a study file where a prepared set or a run has another one.

    Raises:
        EhrseqError: Names the first setting that differs, the file and the folder.
    """
    ours, theirs = given.model_dump(), known.model_dump()
    ours["index"].pop("file"), theirs["index"].pop("file")  # the same file may lie elsewhere by now
    for name in ours:
        if ours[name] != theirs[name]:
            what = f"task.{name} differs from that of {by}"
            raise EhrseqError(
                what, where=str(file), fix="leave the task out, or make that folder again with it"
            )


def _named(file: Path) -> dict[str, set[str]]:
    """Section → settings that a study file itself names, without those that come from a preset or a size."""
    raw = read_yaml(file)
    named = {
        section: set(body if isinstance(body, dict) else ())
        for section, body in raw.items()
        if body is not None
    }
    if "dialect" in raw:  # a part of `data`, by another name, like `from` of `from_date`
        named.setdefault("data", set()).add("dialect")
    if "from" in named.get("splits", ()):
        named["splits"].add("from_date")
    return named


def _shown(value: Any) -> str:
    return "other settings" if isinstance(value, Settings) else repr(value)
