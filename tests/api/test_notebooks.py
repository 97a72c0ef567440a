"""The notebooks of examples/: they run from the first cell to the last; outputs are kept where data is needed."""

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    return list(book["cells"])


def needs(path: Path) -> str | None:
    """The data set that a notebook needs, which is not in the repository."""
    found: str | None = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("needs")
    return found


def test_there_are_seven_and_the_page_lists_them() -> None:
    page = (EXAMPLES.parent / "docs" / "python.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 7
    assert all(path.name in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_only_where_data_is_needed(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        ast.parse("".join(cell["source"]))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert bool(outputs) == (needs(path) is not None)
    assert "error" not in {output["output_type"] for output in outputs}
    assert not [
        name for output in outputs for name in output.get("data", {}) if "subject_id" in str(output["data"][name])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(os.environ.get("EHRSEQ_DATA", EXAMPLES.parents[1] / "shared" / "data"))
    if (name := needs(path)) is not None and not (data / name).is_dir():
        pytest.skip(f"needs the third-party data at {data / name}")
    monkeypatch.setenv("EHRSEQ_DATA", str(data))
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for key, value in {"SUBJECTS": "300", "EPOCHS": "2", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(key, value)
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds
