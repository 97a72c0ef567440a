"""OMOP from a standalone Spark cluster: the workers, processes of their own, read the rows. Slow, as Spark is."""

import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.meds import written
from helpers.omop import SMALL, write_duckdb
from helpers.spark import needs_spark, spark_cluster, write_spark

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop import import_omop


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_the_same_bytes_from_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_spark()
    from pyspark.sql import SparkSession

    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    import_omop(write_duckdb(SMALL, tmp_path / "cdm.duckdb"), tmp_path / "one")
    with spark_cluster(tmp_path) as place:
        builder: Any = SparkSession.builder
        builder = builder.master(f"spark://{place}").config("spark.ui.enabled", "false")
        session = builder.config("spark.sql.warehouse.dir", str(tmp_path / "warehouse")).getOrCreate()
        try:
            session.sparkContext.pythonExec = sys.executable
            write_spark(SMALL, session, "cdm")
            import_omop(f"spark://{place}/cdm", tmp_path / "two")
        finally:
            session.stop()
    assert written(tmp_path / "two") == written(tmp_path / "one")
