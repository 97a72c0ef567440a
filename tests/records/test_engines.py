"""`prepare` on clusters: the same bytes as one process, a lost worker loses nothing, clear errors."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records import engines, parallel
from ehrsequencing.records import prepared as prepared_room
from ehrsequencing.records.engines import Engine
from ehrsequencing.records.plain_results import read_result
from ehrsequencing.records.prepared import prepare
from helpers.clusters import STUDY, fragile
from helpers.meds import write_meds
from helpers.shards import TASK, files, rows_of

quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def dask() -> Any:
    """A scheduler and two worker processes on loopback."""
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0",
        silence_logs=50,
    ) as cluster:  # fmt: skip
        yield cluster


def engine_of(cluster: Any) -> str:
    return "dask://" + cluster.scheduler_address.removeprefix("tcp://")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_dask_makes_the_same_bytes(
    sharded: Path, of_one_process: dict[str, bytes], dask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a relative folder is the same folder for workers that run elsewhere
    prepare(sharded, Path("set"), study=STUDY, tasks=[TASK], engine=engine_of(dask))
    assert files(tmp_path / "set") == of_one_process


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_error_of_a_worker_is_the_error_of_one_process(dask: Any, tmp_path: Path) -> None:
    broken = write_meds(tmp_path / "data", rows_of(20), shards=3)
    shard = sorted(broken.rglob("*.parquet"))[1]
    shard.write_bytes(shard.read_bytes()[:-40])
    told = []
    for engine in ("processes", engine_of(dask)):
        with pytest.raises(EhrseqError) as error:
            prepare(broken, tmp_path / "set", study=STUDY, tasks=[TASK], engine=engine)
        told.append(str(error.value))
        assert not (tmp_path / "set").exists()
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.5])
def test_a_killed_worker_loses_nothing(
    sharded: Path, of_one_process: dict[str, bytes], tmp_path: Path, seconds: float
) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    kind = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": ":0"}
    with distributed.LocalCluster(processes=True, silence_logs=50, **kind) as cluster:
        killer = threading.Timer(seconds, os.kill, (cluster.workers[0].pid, signal.SIGKILL))
        killer.start()
        prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine=engine_of(cluster))
        killer.join()
    made = files(tmp_path / "set")
    assert sorted(made) == sorted(of_one_process)
    assert [name for name in of_one_process if made[name] != of_one_process[name]] == []


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a Ray of its own with two workers on loopback."""
    pytest.importorskip("ray", reason="needs the extra ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    words = ["--num-cpus", "2", "--include-dashboard", "false", "--node-ip-address", "127.0.0.1"]
    words += ["--port", "0", "--ray-client-server-port", str(port)]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *words]
    log = tmp_path_factory.mktemp("ray") / "log"
    with log.open("w") as file:
        head = subprocess.Popen(start, env=own, stdout=file, stderr=file)
    try:
        end = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()  # it ends its own processes
        head.wait(60)


@pytest.mark.slow
@quiet
@pytest.mark.parametrize("place", ["local", "cluster"])
def test_ray_makes_the_same_bytes(
    sharded: Path, of_one_process: dict[str, bytes], tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    engine = "ray://" + (place if place == "local" else request.getfixturevalue("ray_cluster"))
    prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine=engine)
    assert files(tmp_path / "set") == of_one_process


@pytest.mark.slow
@quiet
def test_a_killed_worker_of_ray_loses_nothing(
    sharded: Path, of_one_process: dict[str, bytes], ray_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = tmp_path / "died"
    died.mkdir()
    monkeypatch.setattr(prepared_room, "ShardWork", fragile(died, "worker"))
    prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine=f"ray://{ray_cluster}")
    assert sorted(path.name for path in died.iterdir()) == ["encode", "fit"]
    assert all(path.read_bytes().startswith(b"ray::") for path in died.iterdir())
    assert files(tmp_path / "set") == of_one_process


@pytest.mark.slow
@quiet
def test_a_ray_that_is_there_stays_open() -> None:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with Engine.of("ray://local").connected() as call_all:
            assert call_all(abs, [-1, 2, -3]) == [1, 2, 3]
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.slow
@quiet
def test_a_ray_that_does_not_answer_is_said(sharded: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    with pytest.raises(EhrseqError, match=r"no scheduler answers.*RAY_AUTH_MODE"):
        prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine="ray://127.0.0.1:1")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("hangs", [0, 1, 2])
def test_a_proxy_of_ray_that_hangs_once_is_asked_again(hangs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Ray, whose own proxy hangs only now and then."""
    asked: list[str] = []

    def init(address: str, **_: Any) -> None:
        asked.append(address)
        if len(asked) <= hangs:
            raise ConnectionError

    stand_in = SimpleNamespace(init=init, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setattr(engines, "check_answer", lambda place: None)
    expected = nullcontext() if hangs < 2 else pytest.raises(EhrseqError, match="no scheduler answers")
    with expected, Engine.of("ray://10.0.0.7:10001").connected():
        pass
    assert asked == ["ray://10.0.0.7:10001"] * min(hangs + 1, 2)


def test_calls_that_joblib_makes_in_this_process_make_the_same_bytes(
    sharded: Path, of_one_process: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does with Dask where a lost worker leaves one core."""
    monkeypatch.setitem(engines._CONNECT, "dask", lambda address: nullcontext(lambda do, items: [*map(do, items)]))
    prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine="dask://127.0.0.1:1")
    assert files(tmp_path / "set") == of_one_process


def test_a_cluster_that_does_not_answer_is_said(sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs the extra dask")
    monkeypatch.setattr("ehrsequencing.records.engines._WAIT_SECONDS", 1)
    with pytest.raises(EhrseqError, match="no scheduler answers"):
        prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine="dask://127.0.0.1:1")
    assert not (tmp_path / "set").exists()


def test_a_package_that_is_not_installed_is_named(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("ray"):
        monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(EhrseqError, match=r"needs ray.*ehrsequencing\[ray\]"):
        prepare(sharded, tmp_path / "set", study=STUDY, tasks=[TASK], engine="ray://127.0.0.1:1")


@pytest.mark.parametrize("text", ["", "dask", "dask://", "yarn://a:1", "dask://a b"])
def test_anything_else_is_no_engine(text: str) -> None:
    with pytest.raises(EhrseqError, match="is no engine"):
        Engine.of(text)


def test_addresses_are_those_of_the_packages() -> None:
    assert Engine.of("processes") == Engine()
    assert Engine.of("ray://10.0.0.7:10001").address == "ray://10.0.0.7:10001"
    assert Engine.of("ray://local").address == "local"
    assert Engine.of("spark://10.0.0.7:7077").address == "10.0.0.7:7077"


def test_an_import_error_of_the_work_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only connecting may ask for the extra."""
    monkeypatch.setitem(engines._CONNECT, "dask", lambda address: nullcontext())
    with pytest.raises(ImportError, match="of the work"), Engine.of("dask://127.0.0.1:1").connected():
        raise ImportError("of the work")

    def absent(address: str) -> Any:
        raise ImportError("of the package")

    monkeypatch.setitem(engines._CONNECT, "dask", absent)
    with pytest.raises(EhrseqError, match="needs distributed"), Engine.of("dask://127.0.0.1:1").connected():
        pass


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    """What a worker of the cluster does first: without the shared folder it returns the error and writes nothing."""
    work = SimpleNamespace(folder=tmp_path / "set", count=lambda: 3)
    call = ((), tmp_path / "set" / "count-0.result")
    answer = parallel._call_on(work, "count", call)  # type: ignore[arg-type]
    assert isinstance(answer, EhrseqError)
    assert "does not see the output folder" in str(answer)
    work.folder.mkdir()
    assert parallel._call_on(work, "count", call) is None  # type: ignore[arg-type]
    assert [path.name for path in work.folder.iterdir()] == ["count-0.result"]
    assert read_result(call[1]) == 3
