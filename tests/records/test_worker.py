"""`prepare --worker i/n`: workers that share a folder make the bytes of one process, and a dead one loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records import shared_work, worker
from ehrsequencing.records.prepared import prepare
from ehrsequencing.records.shard_work import ShardWork
from ehrsequencing.records.worker import Share, prepare_as_worker
from helpers.command_line import ehrseq
from helpers.meds import DAY_US, Row, us, write_meds
from helpers.shards import PARENTS, TASK, files, rows_of

SETTINGS = ["vocabulary.rollup=ancestors", "vocabulary.min_subjects=3"]
STUDY = load_study(None, SETTINGS)
# A worker in a process of its own: PAUSE seconds in each piece, which is announced by a file.
CHILD = """
import sys, time
from pathlib import Path
sys.path[:0] = {tests!r}
import ehrsequencing.records.prepared
from ehrsequencing.records.shard_work import ShardWork
from ehrsequencing.config import load_study
from helpers.shards import TASK
STUDY = load_study(None, {settings!r})
from ehrsequencing.records.worker import Share, prepare_as_worker
ehrsequencing.records.prepared._RANGE_ROWS = 200
data, out, share, pause, method = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5]
plain = getattr(ShardWork, method)
def slow(self, *item):
    (out.parent / f"busy-{{share.replace('/', '-')}}").touch()
    time.sleep(pause)
    return plain(self, *item)
slow.__name__ = method
setattr(ShardWork, method, slow)
print(prepare_as_worker(data, out, Share.of(share), study=STUDY, tasks=[TASK]))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    late = [Row(1, us("2010-01-01") + 20_000 * DAY_US, "DX//1")]  # so that the first pass has two rounds
    folder = tmp_path_factory.mktemp("workers") / "data"
    return write_meds(folder, [*rows_of(60), *late], shards=5, parents=PARENTS)


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("one") / "set"
    prepare(data, out, study=STUDY, tasks=[TASK], processes=1)
    assert json.loads((out / "manifest.json").read_text())["late_rows"] is not None
    return files(out)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ehrsequencing.records.prepared._RANGE_ROWS", 200)  # several pieces of the second pass


def child(data: Path, out: Path, share: str, *, pause: float = 0.0, method: str = "encode") -> subprocess.Popen[str]:
    code = CHILD.format(tests=[str(Path(__file__).parent.parent)], settings=SETTINGS)
    words = [sys.executable, "-c", code, str(data), str(out), share, str(pause), method]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def work(data: Path, out: Path, share: str = "1/1", study: StudyConfig = STUDY) -> bool:
    return prepare_as_worker(data, out, Share.of(share), study=study, tasks=[TASK])


def test_three_workers_make_the_bytes_of_one_process(data: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "set"
    workers = [child(data, out, f"{number}/3") for number in (1, 2, 3)]
    said = [worker.communicate(timeout=300)[0].strip() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert sorted(said)[-1] == "True"
    assert said.count("True") == 1
    assert files(out) == expected
    (tmp_path / "set.work" / "rows").mkdir(exist_ok=True)
    (tmp_path / "set.work" / "rows" / "0-0-slow.rows").touch()  # as a slow one leaves it that was killed
    assert not work(data, out)  # a late one finds nothing to do, and removes it
    assert {path.name for path in (tmp_path / "set.work").iterdir()} == {"work.json", "claims"}


@pytest.mark.parametrize("method", ["fit", "encode"])
def test_a_killed_worker_loses_nothing(
    data: Path, expected: dict[str, bytes], tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "set"
    killed = child(data, out, "1/2", pause=600, method=method)
    until = time.monotonic() + 120
    while not (tmp_path / "busy-1-2").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not out.exists()
    calls = counted(monkeypatch)
    assert work(data, out, "1/2")
    assert files(out) == expected
    assert method == "fit" or "fit" not in calls  # what the dead worker had done is not done again


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pieces' methods that are called from now on."""
    calls: list[str] = []
    for name in ("fit", "encode"):
        plain = getattr(ShardWork, name)

        def noted(self: ShardWork, *item: Any, _plain: Any = plain, _name: str = name) -> Any:
            calls.append(_name)
            return _plain(self, *item)

        noted.__name__ = name
        monkeypatch.setattr(ShardWork, name, noted)
    return calls


def test_a_killed_assembly_is_done_by_the_next_worker(
    data: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "set"
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_put_together", lambda *rest: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            work(data, out)
    calls = counted(monkeypatch)
    assert work(data, out)
    assert calls == []
    assert files(out) == expected


def test_what_others_have_claimed_is_left_to_them(data: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "set"
    slow = child(data, out, "1/2", pause=0.3, method="fit")
    until = time.monotonic() + 120
    while not (tmp_path / "busy-1-2").exists() and time.monotonic() < until:
        time.sleep(0.02)
    mine = work(data, out, "2/2")
    other = slow.communicate(timeout=300)[0].strip() == "True"
    assert mine != other
    assert files(out) == expected


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "-1/3", "a/b", "1/3 ", "1/3/4"])
def test_a_wrong_worker_is_refused(data: Path, tmp_path: Path, text: str) -> None:
    found = ehrseq("prepare", data, "--out", tmp_path / "set", "--worker", text)
    assert found.exit_code == 2
    assert "--worker" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_other_data_or_settings_are_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "set"
    monkeypatch.setattr(worker, "_put_together", lambda *rest: False)
    work(data, out)
    before = files(tmp_path / "set.work")
    other_data = write_meds(tmp_path / "other", rows_of(30), shards=2, parents=PARENTS)
    for source, study in ((other_data, STUDY), (data, load_study(None, ["vocabulary.min_subjects=4"]))):
        with pytest.raises(EhrseqError, match="unfinished work on other data, tasks or settings"):
            work(source, out, study=study)
    assert files(tmp_path / "set.work") == before
    shard = next(iter(sorted((data / "data").rglob("*.parquet"))))
    times = shard.stat()
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns + 1))  # written again, under the same name
    with pytest.raises(EhrseqError, match="unfinished work on other data"):
        work(data, out)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    work(data, out)


def test_a_folder_of_somebody_else_is_refused(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set.work"
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(EhrseqError, match="not a folder of unfinished work"):
        work(data, tmp_path / "set")
    (folder / "notes.txt").unlink()
    folder.chmod(0o770)
    with pytest.raises(EhrseqError, match="read or written by others"):
        work(data, tmp_path / "set")


def test_a_finished_folder_serves_another_set(data: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "set"
    assert work(data, out, study=load_study(None, ["vocabulary.min_subjects=4"]))
    assert files(out) != expected
    assert work(data, out)  # other settings, after the work before was done
    assert files(out) == expected
    assert not work(data, out)


def test_every_worker_begins_elsewhere() -> None:
    orders = [Share(number, 3).order(7) for number in (1, 2, 3)]
    assert [order[0] for order in orders] == [0, 2, 4]
    assert all(sorted(order) == list(range(7)) for order in orders)


def test_a_result_that_was_not_written_in_one_step_would_be_noticed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies while it writes a result leaves no result."""
    out = tmp_path / "set"

    def die(value: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(shared_work, "to_bytes", die)
    with pytest.raises(KeyboardInterrupt):
        work(data, out)
    assert list((tmp_path / "set.work" / "results").iterdir()) == []


def test_the_command_says_who_put_the_set_together(data: Path, tmp_path: Path) -> None:
    words = ("prepare", data, "--out", tmp_path / "set", "--worker", "1/1")
    first, second = ehrseq(*words), ehrseq(*words)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "ehrseq train" in first.stdout
    assert "no work is left" in second.stdout
    both = ehrseq(*words, "--engine", "ray://local")
    assert both.exit_code == 2
    assert "cannot go with --engine" in both.stderr
