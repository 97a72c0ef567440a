"""OMOP in a catalog of Spark → MEDS: the bytes of DuckDB, its own SQL, and clear errors. Slow, as Spark is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.command_line import ehrseq
from helpers.meds import written
from helpers.omop import SMALL, Tables, write_duckdb, write_parquet
from helpers.spark import SPARK_TYPES, needs_spark, write_spark

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop import import_omop
from ehrsequencing.readers.omop.sql import source_sql

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)
ALL_TEXT = {**SPARK_TYPES, **dict.fromkeys(("BIGINT", "INTEGER", "DATE", "TIMESTAMP", "NUMERIC"), "STRING")}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session in another time zone than UTC, whose tables lie in a temporary folder."""
    needs_spark()
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.session.timeZone": "America/New_York",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        made = builder.master("local[2]").getOrCreate()
    made.sparkContext.pythonExec = sys.executable
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("duckdb")
    import_omop(write_duckdb(SMALL, folder / "cdm.duckdb"), folder / "meds")
    return written(folder / "meds")


@pytest.mark.slow
@pytest.mark.parametrize(
    "types", [SPARK_TYPES, ALL_TEXT, {**SPARK_TYPES, "BIGINT": "DECIMAL(38,0)"}], ids=["types", "text", "decimals"]
)
def test_the_same_bytes_from_spark(
    session: Any, expected: dict[str, bytes], tmp_path: Path, types: dict[str, str]
) -> None:
    database = f"cdm_{tmp_path.name}"
    write_spark(SMALL, session, database, types)
    import_omop(f"spark://local/{database}", tmp_path / "meds")
    assert written(tmp_path / "meds") == expected
    assert session.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert session.catalog.currentDatabase() == "default"


@pytest.mark.slow
def test_instants_are_read_in_utc(session: Any, expected: dict[str, bytes], tmp_path: Path) -> None:
    """TIMESTAMP is an instant, whatever the time zone of the session that is there."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    write_spark(SMALL, session, "instants", {**SPARK_TYPES, "TIMESTAMP": "TIMESTAMP"})
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    import_omop("spark://local/instants", tmp_path / "meds")
    assert written(tmp_path / "meds") == expected


@pytest.mark.slow
def test_large_ids_beside_nulls_and_far_dates(session: Any, tmp_path: Path) -> None:
    """A pandas frame would round the ids, and lose the dates."""
    large = 2**53 + 1
    visit = {"person_id": large, "visit_concept_id": 9201, "visit_start_date": "2010-02-01"}
    end = {"visit_end_date": "2999-12-31"}
    tables: Tables = {
        "person": [{"person_id": large, "gender_concept_id": 8532, "year_of_birth": 1950}],
        "visit_occurrence": [
            {"visit_occurrence_id": large + 2, **visit, **end},
            {"visit_occurrence_id": None, **visit, **end},
        ],
    }
    write_spark(tables, session, "large")
    import_omop(write_duckdb(tables, tmp_path / "cdm.duckdb"), tmp_path / "one")
    report = import_omop("spark://local/large", tmp_path / "two")
    assert written(tmp_path / "two") == written(tmp_path / "one")
    assert report.counts["open_end"] == 2


@pytest.mark.slow
def test_dates_and_numbers_in_text(session: Any, tmp_path: Path) -> None:
    """Spark refuses 7.0 as a whole number, reads 7d as a number, and knows zones and dates that DuckDB does not."""
    numbers = {"04/05/2010": "7d", "31/05/2010 10:15": "1.5f", "30-05-2010 23:59:59": "1e2", "29.05.2010": "2.50"}
    rows = [
        {"person_id": "7.0", "measurement_concept_id": "77", "measurement_datetime": date, "value_as_number": number}
        for date, number in numbers.items()
    ]
    zoned = ("2010-05-05T10:00:00+02:00", "2010-05-05 23:30:00 Europe/Berlin", "2010-05-06 10:00:00", "2010-05-07Tx")
    started = [{"person_id": "7", "condition_concept_id": "77", "condition_start_datetime": text} for text in zoned]
    loose = ("2010-05-08Tx", "2010-05-09abc", "2010-02-30", "2010-05-11")
    done = [{"person_id": "7", "procedure_concept_id": "77", "procedure_date": text} for text in loose]
    tables: Tables = {
        "person": [{"person_id": " 7 ", "year_of_birth": "1950"}],
        "measurement": rows,
        "condition_occurrence": started,
        "procedure_occurrence": done,
    }
    import_omop(str(write_parquet(tables, tmp_path / "files")), tmp_path / "one")
    write_spark(tables, session, "texts", ALL_TEXT)
    import_omop("spark://local/texts", tmp_path / "two")
    assert written(tmp_path / "two") == written(tmp_path / "one")
    table = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "two" / "data").rglob("*.parquet")])
    hours = {(t.day, t.hour) for t in table["time"].to_pylist() if t.year == 2010}
    assert {(4, 23), (31, 10), (30, 23), (5, 8), (6, 10)} < hours  # a date without a clock is the end of the day
    assert {n for n in table["numeric_value"].to_pylist() if n is not None} == {100.0, 2.5}


@pytest.mark.slow
def test_the_sql_of_spark_is_shown_and_runs(session: Any, tmp_path: Path) -> None:
    write_spark(SMALL, session, "shown")
    found = ehrseq("import", "omop", "spark://local/shown", tmp_path / "out", "--show-sql")
    assert found.exit_code == 0
    assert "-- table measurement: rows" in found.stdout
    assert "AS DOUBLE" in found.stdout
    assert not (tmp_path / "out").exists()
    own = session.newSession()
    own.catalog.setCurrentDatabase("shown")
    sql = source_sql("spark://local/shown")
    assert len(sql) > len(SMALL)
    assert all(own.sql(text.rstrip(";")).count() for text in sql)


@pytest.mark.slow
def test_a_schema_that_is_not_there_is_refused(session: Any, tmp_path: Path) -> None:
    result = ehrseq("import", "omop", "spark://local/absent", tmp_path / "meds")
    assert result.exit_code == 2
    assert "the Spark database: cannot be opened" in result.output
    assert not list(tmp_path.iterdir())


TABLES = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from helpers.omop import SMALL
from helpers.spark import write_spark
session = SparkSession.builder.master("local[1]").getOrCreate()
session.sparkContext.pythonExec = sys.executable
write_spark(SMALL, session, "cdm")
session.stop()
"""


@pytest.mark.slow
def test_tables_of_a_metastore_with_a_spark_of_its_own(expected: dict[str, bytes], tmp_path: Path) -> None:
    """The tables are made by another process and found through spark-defaults.conf, as a hospital's are."""
    needs_spark()
    conf = tmp_path / "conf"
    conf.mkdir()
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": tmp_path / "warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true",
        "spark.ui.enabled": "false",
    }
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    tests = Path(__file__).parents[1]
    env = {**os.environ, "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}
    env["PYTHONPATH"] = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-c", TABLES)
    run("-m", "ehrsequencing", "import", "omop", "spark://local/cdm", str(tmp_path / "meds"))
    assert written(tmp_path / "meds") == expected
