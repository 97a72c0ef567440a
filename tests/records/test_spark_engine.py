"""`prepare` on Spark: the same bytes as one process, also where a worker or an executor dies; clear errors."""

import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records import prepared as prepared_room
from ehrsequencing.records.engines import Engine
from ehrsequencing.records.prepared import prepare
from helpers.clusters import STUDY, fragile
from helpers.meds import write_meds
from helpers.shards import TASK, files, rows_of
from helpers.spark import needs_spark, spark_cluster

quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone master and two workers on loopback."""
    needs_spark()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with spark_cluster(tmp_path_factory.mktemp("cluster")) as place:
            yield f"spark://{place}"


@pytest.mark.slow
@quiet
@pytest.mark.parametrize("place", ["local", "cluster"])
def test_spark_makes_the_same_bytes(
    sharded: Path, of_one_process: dict[str, bytes], tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    needs_spark()
    engine = "spark://local" if place == "local" else request.getfixturevalue("cluster")
    prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine=engine)
    assert files(tmp_path / "set") == of_one_process


@pytest.mark.slow
@quiet
def test_an_error_of_a_worker_is_the_error_of_one_process(tmp_path: Path) -> None:
    needs_spark()
    broken = write_meds(tmp_path / "data", rows_of(20), shards=3)
    shard = sorted(broken.rglob("*.parquet"))[1]
    shard.write_bytes(shard.read_bytes()[:-40])
    told = []
    for engine in ("processes", "spark://local"):
        with pytest.raises(EhrseqError) as error:
            prepare(broken, tmp_path / "set", study=STUDY, tasks=[TASK], engine=engine)
        told.append(str(error.value))
        assert not (tmp_path / "set").exists()
    assert told[0] == told[1]


@pytest.mark.slow
@quiet
@pytest.mark.parametrize("victim", ["worker", "executor"])
def test_what_is_killed_in_each_pass_loses_nothing(
    sharded: Path,
    of_one_process: dict[str, bytes],
    cluster: str,
    tmp_path: Path,
    victim: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    died = tmp_path / "died"
    died.mkdir()
    monkeypatch.setattr(prepared_room, "ShardWork", fragile(died, victim))
    prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine=cluster)
    assert sorted(path.name for path in died.iterdir()) == ["encode", "fit"]
    program = {"worker": b"pyspark.daemon", "executor": b"CoarseGrainedExecutorBackend"}[victim]
    assert all(program in path.read_bytes() for path in died.iterdir())
    assert files(tmp_path / "set") == of_one_process


@pytest.mark.slow
@quiet
def test_a_session_that_is_there_stays_open(tmp_path: Path) -> None:
    needs_spark()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        with Engine.of("spark://local").connected() as call_all:
            assert call_all(abs, [-1, 2, -3]) == [1, 2, 3]
        with pytest.raises(EhrseqError, match="session of another master"), Engine.of("spark://10.0.0.7:1").connected():
            pass
        assert session.range(3).count() == 3
    finally:
        session.stop()


def test_a_master_that_does_not_answer_is_said(sharded: Path, tmp_path: Path) -> None:
    needs_spark()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        for place in (f"127.0.0.1:{closed.getsockname()[1]}", "127.0.0.1", "127.0.0.1:99999"):
            with pytest.raises(EhrseqError, match=f"--engine spark, {place}: no scheduler answers"):
                prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine=f"spark://{place}")
    assert not (tmp_path / "set").exists()


def test_without_pyspark_the_extra_is_named(sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("pyspark"):
        for name in ("pyspark", "pyspark.errors", "pyspark.sql"):
            monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(EhrseqError, match=r"needs pyspark.*ehrsequencing\[spark\]"):
        prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine="spark://local")
