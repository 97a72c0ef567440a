"""A Spark session for as long as a block lasts: of a standalone master, or of this machine alone.

Spark reads its own settings (memory, catalogs, keys) from `SPARK_CONF_DIR/spark-defaults.conf`.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.ports import check_answer

LOCAL = "local"
_TRIES = 4  # of a task on this machine, as on a cluster
_SETTINGS = {
    "spark.ui.enabled": "false",  # it listens on all addresses
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",  # its messages may quote patients' values
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@contextmanager
def spark_session(place: str) -> Iterator[Any]:
    """A session of `HOST:PORT`, or of `local`, with a state of its own. Where this process has one, it stays open.

    Raises:
        ImportError: pyspark is not installed.
        ConnectionError: The master does not answer.
        EhrseqError: Spark does not start, or this process has a session of another master.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    there: Any = SparkSession.getActiveSession()
    if there is not None:
        if not _is_of(place, there.sparkContext.master):
            fix = "stop it, or name its master"
            raise EhrseqError(
                "this process already has a session of another master", where="Spark", fix=fix
            )
        yield there.newSession()
        return
    if place != LOCAL:
        check_answer(place)
    handler = signal.getsignal(signal.SIGINT)
    try:
        session = _builder(place).getOrCreate()
    except PySparkException as error:
        fix = "install Java 17 or later, and set JAVA_HOME if it is not found"
        raise EhrseqError("does not start on this machine", where="Spark", fix=fix) from error
    except Exception as error:  # of py4j, which is there only with pyspark
        raise ConnectionError("the master gives no session") from error
    finally:
        with suppress(ValueError):  # not the main thread, where Spark leaves the handler alone
            signal.signal(signal.SIGINT, handler)
    session.sparkContext.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
    try:
        yield session.newSession()
    finally:
        session.stop()


def _is_of(place: str, master: str) -> bool:
    return master.partition("[")[0] == LOCAL if place == LOCAL else master == f"spark://{place}"


def _builder(place: str) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.master(
        f"{LOCAL}[*,{_TRIES}]" if place == LOCAL else f"spark://{place}"
    ).appName("ehrseq")
    for name, value in (_SETTINGS | (_LOOPBACK if place == LOCAL else {})).items():
        builder = builder.config(name, value)
    return builder
