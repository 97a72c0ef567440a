"""`ehrseq import omop --show-sql` prints what an import would send, and does nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from helpers.command_line import ehrseq
from helpers.omop import SMALL, postgres_server, write_csv, write_duckdb, write_parquet, write_postgres

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop import import_omop
from ehrsequencing.readers.omop.source import Source
from ehrsequencing.readers.omop.sql import source_sql


def statements(sql: list[str]) -> list[str]:
    """The statements without their comments."""
    return [text.partition("\n")[2] for text in sql]


def sent(source: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement of an import."""
    found: list[str] = []

    def note(self: Source, expression: Any) -> None:
        found.append(self.connection.compile(expression, pretty=True).strip() + ";")

    stream, one_row = Source.stream, Source.one_row

    def streamed(self: Source, expression: Any, part: Any) -> Iterator[Any]:
        note(self, expression)
        yield from stream(self, expression, part)

    def rowed(self: Source, expression: Any, part: Any) -> dict[str, Any]:
        note(self, expression)
        return one_row(self, expression, part)

    monkeypatch.setattr(Source, "stream", streamed)
    monkeypatch.setattr(Source, "one_row", rowed)
    import_omop(source, out)
    return found


def test_a_database_gets_these_statements_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_duckdb(SMALL, tmp_path / "cdm.duckdb")
    shown = statements(source_sql(source))
    assert len(shown) > len(SMALL)
    assert sorted(set(shown)) == sorted(set(sent(source, tmp_path / "meds", monkeypatch)))


def test_postgresql_gets_its_own_dialect(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        source = write_postgres(SMALL, url)
        found = ehrseq("import", "omop", source, tmp_path / "out", "--show-sql")
        assert found.exit_code == 0
        assert "DOUBLE PRECISION" in found.stdout
        assert "-- table measurement: rows" in found.stdout
        assert url not in found.stdout
        assert "omop@" not in found.stdout
        assert not (tmp_path / "out").exists()
        import psycopg

        with psycopg.connect(url) as connection:
            for text in statements(source_sql(source)):
                connection.execute(text)


def test_statements_on_files_run_in_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_parquet(SMALL, tmp_path / "files"))
    rows = [duckdb.sql(text).fetchall() for text in statements(source_sql("."))]
    assert all(rows)


def test_show_sql_writes_nothing(tmp_path: Path) -> None:
    source = write_csv(SMALL, tmp_path / "csv")
    out = tmp_path / "out"
    found = ehrseq("import", "omop", source, out, "--show-sql", "--json")
    told = json.loads(found.stdout)
    assert any(text.startswith("-- death.csv: rows") for text in told["result"]["sql"])
    assert told["wrote"] == {}
    assert not out.exists()


def test_an_output_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    source, out = write_csv(SMALL, tmp_path / "csv"), tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert ehrseq("import", "omop", source, out, "--show-sql").exit_code == 0
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("notes.txt", "mine")]
