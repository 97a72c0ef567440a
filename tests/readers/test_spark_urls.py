"""A Spark that cannot be opened as an OMOP source is refused in one line."""

import importlib.util
import sys
from pathlib import Path

import pytest

from ehrsequencing.core.errors import EhrseqError
from helpers.command_line import ehrseq
from helpers.spark import needs_spark

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop import import_omop


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("spark://127.0.0.1:1/cdm", "the Spark database: no master answers"),
        ("spark://me:SECRET@127.0.0.1:1/cdm", "takes neither a user nor settings"),
        ("spark://local/cdm?password=SECRET", "takes neither a user nor settings"),
    ],
)
def test_a_url_that_cannot_be_opened_is_refused_in_one_line(tmp_path: Path, url: str, said: str) -> None:
    needs_spark()
    result = ehrseq("import", "omop", url, tmp_path / "meds")
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert "SECRET" not in result.output
    assert not list(tmp_path.iterdir())


def test_without_pyspark_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("pyspark"):
        for name in ("pyspark", "pyspark.errors", "pyspark.sql"):
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EhrseqError, match=r"needs pyspark.*ehrsequencing\[omop,spark\]"):
        import_omop("spark://local/cdm", tmp_path / "meds")
