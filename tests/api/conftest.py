"""The example folder of the root's conftest, as working directory; figures are drawn into memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib", reason="needs the extra notebook")
matplotlib.use("Agg")


@pytest.fixture
def here(example_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from matplotlib import pyplot

    monkeypatch.chdir(example_folder)
    yield example_folder
    pyplot.close("all")
