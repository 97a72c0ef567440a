"""The files of an evaluation: `metrics.json`, which may be shared, and `metrics-individual.json`, which may not.

The exact result goes in. Of real people it is written to `metrics-individual.json`, which only its owner can read, and
`metrics.json` holds what may be told of it (`ehrsequencing.disclosure.shared`). A simulation has no people: there
`metrics.json` is the exact result, and there is no other file.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.disclosure.shared import INDIVIDUAL, shared
from ehrsequencing.prediction.run import Run, add_to_run

SHARED = "metrics.json"


def _files(result: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Name and writer of each file."""
    told = result
    if not result["data"].get("simulated"):
        told = shared(result)
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
    """The exact result that a run holds; None where there is none, or somebody has changed or removed it."""
    run = Run(run_folder)
    for name in (INDIVIDUAL, SHARED):
        if name in run.manifest["files"]:
            result: dict[str, Any] = (
                {"individual": name} if name in run.altered else read_json(run_folder / name)
            )
            return None if "individual" in result else result
    return None
