"""Leaks that the audit must find: a run with a leak, by its name, and the checks that find it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.audit import (
    assemble,
    hospital_rows,
    make_set,
)

Make = Callable[[Path, Path, pytest.MonkeyPatch], Path]


PLANTED: dict[str, tuple[Make, set[str]]] = {}


def planted(*found_by: str) -> Callable[[Make], Make]:
    """Register a leaky pipeline: (honest prepared set, scratch folder, monkeypatch) → run; and who must find it."""

    def register(make: Make) -> Make:
        PLANTED[make.__name__] = (make, set(found_by))
        return make

    return register


def assemble_with(
    folder: Path, patch: pytest.MonkeyPatch, owner: object, name: str, change: Callable[..., Any], *settings: str
) -> Path:
    """Prepare and assemble a run while one function of the preparation is replaced."""
    with patch.context() as during:
        during.setattr(owner, name, change)
        prepared = make_set(folder, hospital_rows(), *settings)
    return assemble(prepared, folder / "run")
