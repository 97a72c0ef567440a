"""Simulated records and runs as those of people: nothing says any more that they are simulated."""

import shutil
from pathlib import Path

from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST, save_manifest


def as_real(folder: Path) -> Path:
    """A prepared set or a run whose manifest no longer says that its people are simulated."""
    save_manifest(folder, read_json(folder / MANIFEST) | {"simulated": False})
    return folder


def records_of_people(simulation: Path, out: Path) -> Path:
    """The records of a simulation in a folder without its manifest and its truth."""
    ignored = shutil.ignore_patterns("truth*", MANIFEST)
    return Path(shutil.copytree(simulation, out, ignore=ignored))
