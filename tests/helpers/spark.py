"""Spark for tests: a standalone master with two workers on loopback, each a process of its own."""

import importlib.util
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.omop import Tables, kinds_of

_START_SECONDS = 120
_MASTER, _WORKER = (f"org.apache.spark.deploy.{name}" for name in ("master.Master", "worker.Worker"))


def needs_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("needs the extra spark")


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """HOST:PORT of a master with two workers of one core."""
    with ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(_server(log, _MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"))
        url = _wait_for(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[0]
        for number in range(2):
            words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g")
            work = folder / f"worker-{number}"
            stack.enter_context(_server(folder / f"{number}.log", _WORKER, *words, "--work-dir", str(work), url))
        _wait_for(log, r"Registering worker", count=2)
        yield url.removeprefix("spark://")


@contextmanager
def _server(log: Path, *words: str) -> Iterator[None]:
    import pyspark

    home = Path(pyspark.__file__).parent
    own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    with open(log, "w") as file:
        server = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *words],
            env={**os.environ, **own},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(server.pid, signal.SIGTERM)  # a worker ends its executors
            server.wait(_START_SECONDS)


def _wait_for(log: Path, pattern: str, count: int = 1) -> list[str]:
    end = time.monotonic() + _START_SECONDS
    while len(found := re.findall(pattern, log.read_text())) < count:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return found


SPARK_TYPES = {"TEXT": "STRING", "NUMERIC": "DECIMAL(20,6)", "TIMESTAMP": "TIMESTAMP_NTZ"}


def write_spark(tables: Tables, session: Any, database: str, types: Mapping[str, str] = SPARK_TYPES) -> None:
    """A new database of the session's catalog, with a table of real types for each table."""
    session.sql(f"CREATE DATABASE {database}")
    for name, rows in tables.items():
        kinds = {column: types.get(kind, kind) for column, kind in kinds_of(rows).items()}
        texts = [tuple(None if value is None else str(value) for value in row.values()) for row in rows]
        frame = session.createDataFrame(texts, ", ".join(f"{column} STRING" for column in kinds))
        typed = frame.selectExpr(*(f"CAST({column} AS {kind}) AS {column}" for column, kind in kinds.items()))
        typed.write.saveAsTable(f"{database}.{name}")
