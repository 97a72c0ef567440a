"""The tutorial runs as it is written: its Python, its task file and its commands, in order, in an empty folder."""

import doctest
import re
from pathlib import Path
from textwrap import dedent

import pyarrow.parquet as pq
import pytest

from ehrsequencing.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"


def commands(text: str) -> list[list[str]]:
    """Every line of the page that is a command of ours, as arguments."""
    return [line.split()[1:] for line in re.findall(r"^    (ehrseq .+)$", text, re.MULTILINE)]


def first_rows(meds: Path) -> list[str]:
    """The first six rows of patient 1, as the page prints them."""
    tables = [pq.read_table(path) for path in sorted((meds / "data").rglob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist() if row["subject_id"] == 1][:6]
    times = [f"{row['time']:%Y-%m-%d %H:%M}" if row["time"] else "" for row in rows]
    numbers = ["" if row["numeric_value"] is None else f"{row['numeric_value']:g}" for row in rows]
    return [f"1,{t},{row['code']},{n}" for t, row, n in zip(times, rows, numbers, strict=True)]


@pytest.mark.slow
def test_a_reader_who_types_everything_gets_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    results = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert results.attempted > 3
    assert results.failed == 0
    for name, first in {"death.yaml": "name: death", "map.yaml": "subject: id"}.items():
        (block,) = re.findall(rf"(?m)^    {first}\n(?:    .+\n)+", text)
        Path(name).write_text(dedent(block), encoding="utf-8")
    typed = commands(text)
    assert [arguments[0] for arguments in typed] == [
        "import",
        "check",
        "prepare",
        "train",
        "evaluate",
        "audit",
        "predict",
    ]
    for arguments in typed:
        monkeypatch.setattr("sys.argv", ["ehrseq", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, arguments
        if arguments[0] == "import":
            assert "\n".join(f"    {row}" for row in first_rows(Path("meds"))) in text
    assert Path("run/report.html").stat().st_size > 0
    assert Path("risks.csv").read_text(encoding="utf-8").startswith('"subject_id","prediction_time","cause"')
