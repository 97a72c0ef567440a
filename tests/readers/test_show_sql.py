"""`ehrseq import omop --show-sql` prints what an import of a database would send, and does nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.command_line import ehrseq, refused
from helpers.omop import SMALL, write_csv, write_duckdb

pytest.importorskip("ibis", reason="needs the extra omop")

import ibis

from ehrsequencing.readers.omop import import_omop
from ehrsequencing.readers.omop.reader import source_sql


def test_a_database_gets_these_statements_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_duckdb(SMALL, tmp_path / "cdm.duckdb")
    shown = source_sql(source)
    assert len(shown) > len(SMALL)
    sent, send = list[str](), ibis.backends.duckdb.Backend.to_pyarrow_batches

    def noted(self: Any, expression: Any, **options: Any) -> Any:
        sent.append(self.compile(expression, pretty=True).strip())
        return send(self, expression, **options)

    monkeypatch.setattr(ibis.backends.duckdb.Backend, "to_pyarrow_batches", noted)
    import_omop(source, tmp_path / "meds")
    assert set(sent) == {text.partition("\n")[2].removesuffix(";") for text in shown}


def test_show_sql_leaves_the_output_alone_and_needs_a_database(tmp_path: Path) -> None:
    source, out = write_duckdb(SMALL, tmp_path / "cdm.duckdb"), tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    told = json.loads(ehrseq("import", "omop", source, out, "--show-sql", "--json").stdout)
    assert any(text.startswith("-- table death\nSELECT") for text in told["result"]["sql"])
    assert told["wrote"] == {}
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("notes.txt", "mine")]
    assert "files are read without SQL" in refused(
        "import", "omop", write_csv(SMALL, tmp_path / "csv"), out, "--show-sql"
    )
