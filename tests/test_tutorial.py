"""The tutorial runs as it is written: its Python, its task file and its commands, in order, in an empty folder."""

import doctest
import re
from pathlib import Path
from textwrap import dedent

import pytest

from ehrsequencing.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"


def commands(text: str) -> list[list[str]]:
    """Every line of the page that is a command of ours, as arguments."""
    return [line.split()[1:] for line in re.findall(r"^    (ehrseq .+)$", text, re.MULTILINE)]


@pytest.mark.slow
def test_a_reader_who_types_everything_gets_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    results = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert results.attempted > 10
    assert results.failed == 0
    (task,) = re.findall(r"(?m)^    name: death\n(?:    .+\n)+", text)
    Path("death.yaml").write_text(dedent(task), encoding="utf-8")
    typed = commands(text)
    assert [arguments[0] for arguments in typed] == ["check", "prepare", "train", "evaluate", "audit", "predict"]
    for arguments in typed:
        monkeypatch.setattr("sys.argv", ["ehrseq", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, arguments
    assert Path("run/report.html").stat().st_size > 0
    assert Path("risks.csv").read_text(encoding="utf-8").startswith('"subject_id","prediction_time","cause"')
