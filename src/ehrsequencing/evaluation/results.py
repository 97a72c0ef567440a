"""The files of an evaluation: `metrics.json`, which may be shared, and `metrics-individual.json`, which may not.

The exact result goes in. Of real people it is written to `metrics-individual.json`, which only its owner can read and
no command needs, and `metrics.json` holds what may be told of it (`core.disclosure.redact`). A simulation has no
people: there `metrics.json` is the exact result, and there is no other file.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ehrsequencing.core.disclosure import INDIVIDUAL, redact
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.prediction.run import Run, add_to_run

SHARED = "metrics.json"


def _files(result: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Name and writer of each file."""
    told = result
    if not result["data"].get("simulated"):
        told = redact(result)
        yield INDIVIDUAL, lambda path: write_json(path, result, owner_only=True)
    yield SHARED, lambda path: write_json(path, told)


def write_result(result: Mapping[str, Any], folder: Path) -> None:
    """Write the files of a result into a folder."""
    for name, write in _files(result):
        write(folder / name)


def add_result(result: Mapping[str, Any], run_folder: Path) -> None:
    """Write the files of a result into a finished run."""
    for name, write in _files(result):
        add_to_run(run_folder, name, write)


def read_result(run_folder: Path) -> dict[str, Any] | None:
    """`metrics.json` of a run; None where there is none, or somebody has changed or removed it."""
    run = Run(run_folder)
    if SHARED not in run.manifest["files"] or SHARED in run.altered:
        return None
    result: dict[str, Any] = read_json(run_folder / SHARED)
    return result
