"""A new source format is one file: this one defines a format, imports with it, and gets a MEDS set without problems."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ehrsequencing.cli.app import app
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.registry import Import, all_readers, reader
from ehrsequencing.readers.rows import CodeFacts, Role
from ehrsequencing.readers.table_files import open_table

ROWS = """person,date,code,value
1,1950-03-01,BIRTH,
1,2010-02-01,A1C,7.5
1,2012-02-01,FLU,
2,1960-01-01,BIRTH,
2,2011-05-05,FLU,
,2011-05-05,FLU,
"""


@reader("lines", help="A table with one event per line.", source="A CSV file with person, date, code and value")
def import_lines(source: str, job: Import) -> None:
    table, columns = open_table(Path(source)), ["person", "date", "code", "value"]
    table.check(*([name] for name in columns))
    with job.writer(Path(source), encounter=pa.string()) as writer:
        writer.code_facts = lambda seen: {"A1C": CodeFacts("Haemoglobin A1c", ("LAB",)), "LAB": CodeFacts("Laboratory")}
        for counts in job.tables(["events"]):
            dates = job.survey([table], counts, ["date"])
            for block in job.blocks([table], counts, columns, dates):
                code = block.text("code")
                is_birth = pc.fill_null(pc.equal(code, "BIRTH"), False)
                rows = {
                    "subject_id": block.whole("person"),
                    "time": block.times("date"),
                    "role": pc.if_else(is_birth, int(Role.PERSON), int(Role.EVENT)),
                    "code": pc.if_else(is_birth, "MEDS_BIRTH", code),
                    "numeric_value": block.numbers("value"),
                    "source": block.source,
                }
                writer.add(pa.table(rows))


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text(ROWS)
    return path


def test_a_new_format_is_a_command_that_makes_a_valid_meds_set(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "meds"
    done = run("import", "lines", source, out)
    assert done.exit_code == 0, done.output
    assert "read: events 6" in done.output
    assert (
        "dropped from events: 1 of 6 rows (the person id is missing or cannot be read "
        "(in FHIR, an `identifier` alone cannot be followed); first: events.csv, row 6)" in done.output
    )
    shards = [pq.read_table(path) for path in sorted((out / "data").rglob("*.parquet"))]
    rows = pa.concat_tables(shards).sort_by([("subject_id", "ascending"), ("time", "ascending")])
    assert rows["code"].to_pylist() == ["MEDS_BIRTH", "A1C", "FLU", "MEDS_BIRTH", "FLU"]
    assert rows["numeric_value"].to_pylist() == [None, 7.5, None, None, None]
    codes = pq.read_table(out / "metadata" / "codes.parquet").to_pylist()
    assert {row["code"]: row["parent_codes"] for row in codes}["A1C"] == ["LAB"]
    report = json.loads((out / "metadata" / "import_report.json").read_text())
    assert report["source"] == "lines"
    assert report["rows"]["events"]["rows_out"] == 5
    checked = run("check", out)
    assert checked.exit_code == 0, checked.output
    assert run("import", "lines", source, out).exit_code == 2
    assert run("import", "lines", source, out, "--overwrite").exit_code == 0


def test_a_new_format_is_a_function_too(source: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = import_lines(source, tmp_path / "meds", progress=lambda done, total: steps.append((done, total)))
    assert (report.subjects, report.rows, report.tables["events"].rows_in) == (2, 5, 6)
    assert steps == [(1, 2), (2, 2)]
    with pytest.raises(EhrseqError, match="overlaps"):
        import_lines(source, source)
    assert source.read_text() == ROWS


def test_a_taken_name_is_refused() -> None:
    again = reader("lines", help="", source="")(import_lines.read)  # again in a notebook: the last one counts
    assert all_readers()["lines"] is again
    with pytest.raises(EhrseqError, match=r"@reader\('omop'\): is the name of another format"):
        reader("omop", help="", source="")(import_lines.read)
    assert all_readers()["omop"].read.__module__ == "ehrsequencing.readers.omop.reader"
