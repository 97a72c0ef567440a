"""Read settings from YAML files and `section.key=value`; an error is one line that names the setting."""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ehrsequencing.config.base import Settings, SettingsT
from ehrsequencing.config.study import StudyConfig
from ehrsequencing.config.task import TaskConfig
from ehrsequencing.core.elsewhere import right_way
from ehrsequencing.core.errors import EhrseqError, quoted
from ehrsequencing.core.text import LONGEST_YAML, BadText, parse_yaml


def read_yaml(path: Path, *, see: str = "examples/tasks") -> dict[str, Any]:
    """Read one YAML mapping; dates stay text, so that they validate like any other setting.

    Args:
        path: The file.
        see: Where such files are shown, for messages.
    """
    try:
        with path.open(encoding="utf-8") as file:
            data = parse_yaml(file.read(LONGEST_YAML + 1))
    except OSError as error:
        raise EhrseqError(
            "cannot be read", where=str(path), fix=error.strerror or "check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise EhrseqError("is not UTF-8 text", where=str(path), fix="save it as UTF-8") from error
    except BadText as error:
        raise EhrseqError(
            error.what,
            where=f"{path}, line {error.line}" if error.line is not None else str(path),
            fix=f"correct it; {see} has examples",
        ) from error
    if not isinstance(data, dict):
        raise EhrseqError("must hold a mapping of settings", where=str(path), fix=f"see {see}")
    return data


def load_task(path: Path) -> TaskConfig:
    """Read a task file; the path of its `index.file` is relative to the task file's folder."""
    if not path.exists():
        raise EhrseqError(
            "is no task file",
            where=str(path),
            fix="name a file: ehrseq check DATA --suggest --out tasks writes some",
        )
    return _located(validated(TaskConfig, read_yaml(path), where=str(path)), path)


def _located(task: TaskConfig, path: Path) -> TaskConfig:
    """The task with an absolute `index.file`, so that it means the same file wherever the task is kept."""
    if task.index.file is None:
        return task
    index = task.index.model_copy(update={"file": str((path.parent / task.index.file).resolve())})
    return task.model_copy(update={"index": index})


def agreed_tasks(tasks: list[TaskConfig], study: StudyConfig) -> list[TaskConfig]:
    """The tasks that were named, else that of the study.

    Raises:
        EhrseqError: The study has a task that is none of those that were named.
    """
    if tasks and study.task is not None and study.task not in tasks:
        raise EhrseqError(
            f"the settings hold the task {study.task.name!r}, which is none of these",
            where="task",
            fix="leave out one of the two",
        )
    return tasks or ([study.task] if study.task is not None else [])


def load_study(
    path: Path | None = None, overrides: Iterable[str] = (), *, is_of_run: bool = False
) -> StudyConfig:
    """Settings from an optional study file, then `section.key=value` overrides.

    Args:
        path: The study file.
        overrides: Settings that win over the file.
        is_of_run: Whether a finished run has them.

    Raises:
        EhrseqError: A setting is unknown, or its value is not allowed.
    """
    where = str(path) if path is not None else "settings"
    data = without_former(read_yaml(path), is_of_run=is_of_run) if path is not None else {}
    study = validated(StudyConfig, _overridden(data, overrides), where=where)
    if path is None or study.task is None:
        return study
    return study.model_copy(update={"task": _located(study.task, path)})


# Settings that have left since 2.0, which runs, prepared sets and study files of 2.0 name, with the values that ask for
# nothing, and the default. With another value they are unknown, and `core/elsewhere.toml` says what to use.
FORMER: Mapping[str, Collection[Any]] = {
    "drift.numbers": (0.3,),
    "evaluation.explained_subjects": (200, 0),
    "evaluation.recalibrate": (False,),
    "evaluation.trajectories": (None, 0),
    "pretraining.exclude": ("related",),
    "training.bootstrap": (False,),
    "training.ema": (0.9999,),
    "vocabulary.rollup": ("off",),
}
# of these, what a run asked for while it was made: finished, it answers without
OF_MAKING = ("training.ema", "task.index.cohort_id")


def without_former(
    data: dict[str, Any], section: str = "", *, is_of_run: bool = False
) -> dict[str, Any]:
    """The settings of a file without those that have left and asked for nothing.

    >>> without_former({"evaluation": {"recalibrate": False, "bootstrap": 9}, "model": {"recalibrate": False}})
    {'evaluation': {'bootstrap': 9}, 'model': {'recalibrate': False}}
    """
    if not isinstance(data, dict):  # what it must be is said elsewhere
        return data
    kept = dict[str, Any]()
    for name, value in data.items():
        whole = f"{section}{name}"
        if value in FORMER.get(whole, ()) or (is_of_run and whole in OF_MAKING):
            continue
        if isinstance(value, dict):
            value = without_former(value, f"{whole}.", is_of_run=is_of_run)
        kept[name] = value
    return kept


def read_settings(path: Path | None, overrides: Iterable[str]) -> dict[str, Any]:
    """A YAML file's mapping with `key=value` overrides, `a.b=value` reaching into section `a`."""
    return _overridden(read_yaml(path) if path is not None else {}, overrides)


def _overridden(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise EhrseqError(
                "is not a setting",
                where=repr(text),
                fix="write section.key=value, as in model.dim=64; a task is --task FILE, and ehrseq check DATA "
                "--suggest --out tasks writes some",
            )
        *parents, key = name.strip().split(".")
        node = data
        for part in parents:
            if node.get(part) is None:  # also a section with nothing in it
                node[part] = {}
            node = node[part]
            if not isinstance(node, dict):
                raise EhrseqError(
                    "is not a section", where=repr(part), fix="write section.key=value"
                )
        try:
            node[key] = parse_yaml(value)
        except BadText as error:
            raise EhrseqError(
                f"{error.what} after the equals sign", where=repr(text), fix="quote it"
            ) from error
    return data


_SHAPES = {
    "model_type": "must hold settings, as in key: value",
    "dict_type": "must hold settings, as in key: value",
    "tuple_type": "must be a list, as in [a, b]",
}


def validated(kind: type[SettingsT], data: Mapping[str, Any], *, where: str) -> SettingsT:
    """Validate, and turn pydantic's report into one line that names the setting and the fix."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first, *_ = found = error.errors(include_url=False)
        names = [
            ".".join(str(part) for part in one["loc"])
            for one in found
            if one["type"] == "extra_forbidden"
        ]
        if names:
            raise EhrseqError(
                f"unknown setting{'s' * (len(names) > 1)}{','.join(map(quoted, names))}",
                where=where,
                fix="; ".join(dict.fromkeys(_what_comes_close(kind, one) for one in names)),
            ) from error
        name = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        text = _SHAPES.get(first["type"], text)
        raise EhrseqError(
            f"{name}: {text}" if name else text, where=where, fix="correct this setting"
        ) from error


def setting_names(kind: type[BaseModel]) -> list[str]:
    """Every section and setting as people write it, as in `training` and `training.epochs`."""
    names = []
    for name, field in kind.model_fields.items():
        names.append(name)
        for held in getattr(field.annotation, "__args__", ()) or (field.annotation,):
            if isinstance(held, type) and issubclass(held, BaseModel):  # a section
                names += [f"{name}.{inner}" for inner in setting_names(held)]
    return names


def settings_named(kind: type[BaseModel], last: str) -> list[str]:
    """The settings whose last part is this."""
    return [name for name in setting_names(kind) if name.rpartition(".")[2] == last]


def _what_comes_close(kind: type[BaseModel], unknown: str) -> str:
    """The settings that somebody may have meant, else the first part of all names."""
    last = unknown.rpartition(".")[2]
    for owner in (kind.__name__, "settings"):
        if way := right_way(owner, last):
            return way
    named, way = settings_named(kind, last), right_way("arguments", last)
    near = [one for one in named if one.count(".") < 2] or settings_named(kind, way)
    if way and not near:
        return f"use {way}"
    near = near or named or get_close_matches(unknown, setting_names(kind), n=1, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known here: {', '.join(kind.model_fields)}"


# ---- which command uses which sections; it refuses settings that it does not use ----

_RECORDS = ("data", "dialect")
_PREPARE = (*_RECORDS, "visits", "values", "vocabulary", "splits", "task")
COMMANDS: dict[str, tuple[str, ...]] = {
    "codes": _RECORDS,
    "check": _PREPARE,
    "prepare": _PREPARE,
    "run": (*_PREPARE, "model", "training", "evaluation"),
    "pretrain": ("model", "training", "pretraining"),
    # a run keeps `evaluation` as the defaults of `evaluate`
    "train": ("model", "training", "transfer", "evaluation"),
    "evaluate": ("evaluation",),
    "evaluate --data": ("evaluation", *_RECORDS),
    "drift": (*_RECORDS, "drift"),
    "predict": (*_RECORDS, "drift"),
    "monitor": (*_RECORDS, "drift"),
    "explain": _RECORDS,
    "explore": _RECORDS,
    "score": (*_RECORDS, "visits", "values", "vocabulary", "splits", "evaluation"),
    "score --prepared": ("evaluation",),
}
# Sections that a prepared set or a run has fixed. The section `evaluation` is never fixed.
_OF_PREPARED = ("data", "visits", "values", "vocabulary", "splits")
_OF_RUN = (*_OF_PREPARED, "model", "training")


def refuse_unused(settings: Iterable[str], command: str) -> None:
    """Refuse `section.key=value`, or a section by its name, for a command that does not use the section.

    Raises:
        EhrseqError: Names the commands that take the setting.
    """
    for text in settings:
        name = text.partition("=")[0].strip()
        section = name.partition(".")[0]
        takers = [f"ehrseq {other}" for other, sections in COMMANDS.items() if section in sections]
        if takers and section not in COMMANDS[command]:
            raise EhrseqError(
                f"{name} belongs to {' and '.join(takers)}",
                where=f"ehrseq {command}",
                fix="leave it out here, and give it to that command",
            )


def refuse_changes(
    given: StudyConfig, settled: StudyConfig, command: str, *, file: Path | None, by: Path
) -> None:
    """Refuse settings that contradict what a prepared set or a run was made with.

    Args:
        given: Settings; those that were left out contradict nothing.
        settled: Settings that the prepared set or the run records. With a task it is a run's.
        command: The command that takes the settings, a key of `COMMANDS`: its own sections may differ.
        file: The study file that holds them; without one nothing else than the command's own sections is given.
        by: Folder of the prepared set or the run.

    Raises:
        EhrseqError: Names the setting, the file and the folder. What is equal or left out is fine.
    """
    fixed = _OF_PREPARED if settled.task is None else _OF_RUN
    for section in (one for one in fixed if one not in COMMANDS[command]):
        of_both = getattr(given, section), getattr(settled, section)
        for key in sorted(of_both[0].model_fields_set):
            ours, theirs = (getattr(one, key) for one in of_both)
            if ours != theirs:
                shown = [one if isinstance(one, Settings) else repr(one) for one in (ours, theirs)]
                raise EhrseqError(
                    f"{section}.{key} is {shown[0]}, but {by} was made with {shown[1]}",
                    where=str(file or "study"),
                    fix="leave it out, or make that folder again with it",
                )
    if file is not None and given.task is not None and settled.task is not None:
        refuse_other_task(given.task, settled.task, file=file, by=by)


def refuse_other_task(given: TaskConfig, known: TaskConfig, *, file: Path, by: Path) -> None:
    """Refuse the task of a study file where a prepared set or a run has another one.

    Raises:
        EhrseqError: Names the first setting that differs, the file and the folder.
    """
    ours, theirs = given.model_dump(), known.model_dump()
    ours["index"].pop("file"), theirs["index"].pop("file")  # the same file may lie elsewhere by now
    for name in ours:
        if ours[name] != theirs[name]:
            raise EhrseqError(
                f"task.{name} differs from that of {by}",
                where=str(file),
                fix="leave the task out, or make that folder again with it",
            )
