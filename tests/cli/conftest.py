"""Fixtures of the command line's tests."""

from pathlib import Path

import pytest

from helpers.command_line import TASK


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.yaml"
    path.write_text(TASK)
    return path
