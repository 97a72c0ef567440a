"""The tutorial's examples run in a folder of their own, because they write files."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.path.name == "tutorial.md":
        monkeypatch.chdir(tmp_path)
