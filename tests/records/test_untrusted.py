"""`--untrusted`: files of strangers are decoded in a child process whose memory and time are limited."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import DataConfig, VisitsConfig
from ehrsequencing.core import limited
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import private_folder
from ehrsequencing.core.limited import Limits, in_limited_child
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.plain_copy import plain_copy
from helpers.command_line import ehrseq
from helpers.meds import Row, write_meds
from helpers.omop import SMALL, write_csv

GIB = 1 << 30
SMALL_LIMITS = Limits(memory_bytes=2 * GIB, seconds=120, file_bytes=GIB, shard_bytes=GIB // 32)


def bomb(path: Path, *, code: str, rows: int) -> None:
    """A Parquet file of equal rows: each column is a dictionary of one value, and one run of its number."""
    none = pa.array(np.zeros(rows, np.int8))

    def all_equal(value: pa.Array) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(none.cast(pa.int32()), value)

    table = pa.table({
        "subject_id": pa.array(np.ones(rows, np.int64)), "time": pa.array(np.ones(rows, np.int64), pa.timestamp("us")),
        "code": all_equal(pa.array([code])), "numeric_value": pa.array(np.ones(rows, np.float32)),
    })  # fmt: skip
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, write_statistics=False, compression="zstd", store_schema=False, row_group_size=rows)


@pytest.mark.parametrize(
    ("code", "rows"), [("LAB//x", 2_000_000), ("L" * 900_000, 1_000_000)], ids=["many rows", "long codes"]
)
def test_a_parquet_bomb_is_one_clear_error(tmp_path: Path, code: str, rows: int) -> None:
    """The second one has 900 kB of text for every row: 0.9 TB of them in less than a megabyte."""
    path = tmp_path / "data" / "data" / "train" / "0.parquet"
    bomb(path, code=code, rows=rows)
    assert path.stat().st_size < 2_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        pytest.raises(EhrseqError, match=r"decoded|memory") as found,
        plain_copy(tmp_path / "data", limits=SMALL_LIMITS),
    ):
        pytest.fail("it was taken")
    assert "leave out --untrusted" in found.value.fix
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, "this process decodes nothing"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 3_000_000


def test_a_copy_gives_the_same_events(sim_data: Path, tmp_path: Path) -> None:
    facts = DataConfig()
    with plain_copy(sim_data, facts=facts, visits=VisitsConfig(), keep=tmp_path / "kept") as copy:
        assert copy == tmp_path / "kept"
    with plain_copy(sim_data) as copy:
        pairs = [list(MedsReader(folder)) for folder in (sim_data, copy, tmp_path / "kept")]
        assert [path.name for path in copy.iterdir() if path.name == MANIFEST] == []
    assert not copy.exists()
    assert sum(len(events) for events in pairs[0]) > 1000
    for other in pairs[1:]:
        for own, copied in zip(pairs[0], other, strict=True):
            assert own.codes == copied.codes
            for name in ("subject_id", "time_us", "code", "value"):
                np.testing.assert_array_equal(getattr(own, name), getattr(copied, name))
    kept = next((tmp_path / "kept" / "data").rglob("*.parquet"))
    content = bytearray(kept.read_bytes())
    content[len(content) // 3] ^= 1
    kept.write_bytes(content)
    with pytest.raises(EhrseqError, match="has changed"):
        list(MedsReader(tmp_path / "kept"))


def test_columns_that_ehrseq_does_not_use_stay_behind(tmp_path: Path) -> None:
    data = write_meds(tmp_path / "data", [Row(1, 1_577_836_800_000_000, "A")])
    path = next((data / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    deep = pa.array([[[["secret"]]]] * len(table))
    pq.write_table(table.append_column("note", deep), path)
    with plain_copy(data) as copy:
        copied = next((copy / "data").rglob("*.parquet"))
        assert b"secret" in path.read_bytes()
        assert b"secret" not in copied.read_bytes()
        assert pq.read_table(copied)["code"].to_pylist() == pq.read_table(path)["code"].to_pylist()


def test_damaged_files_are_named(sim_data: Path, tmp_path: Path) -> None:
    data = write_meds(tmp_path / "data", [Row(1, 1_577_836_800_000_000, "A")])
    path = next((data / "data").rglob("*.parquet"))
    content = path.read_bytes()
    for spoilt in (content[:40], content[:-30] + bytes(30)):
        path.write_bytes(spoilt)
        with pytest.raises(EhrseqError, match="cannot be read as Parquet") as found, plain_copy(data):
            pass
        assert found.value.where == str(path)


@pytest.mark.parametrize(
    ("work", "arguments", "match"),
    [
        ("eat", {"gib": 4}, "needs too much memory: the limit is 1 GiB"),
        ("sleep", {"seconds": 60}, "takes too long: the limit is 3 s"),
        ("crash", {}, "crash"),
        ("write", {"mib": 8}, "would become too large"),
        ("refuse", {}, "is refused"),
    ],
)
def test_a_child_that_misbehaves_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, arguments: dict[str, int], match: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setattr(limited, "_CHILD", "helpers.misbehaving")
    limits = Limits(memory_bytes=GIB, seconds=3 if work == "sleep" else 100, file_bytes=1 << 20)
    with pytest.raises(EhrseqError, match=match):
        in_limited_child(work, {**arguments, "folder": str(tmp_path)}, where="x", limits=limits)


def test_a_killed_command_takes_its_child_with_it_and_the_next_one_removes_what_they_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", "from helpers.misbehaving import wait_for; wait_for('')"]
    with subprocess.Popen(command, env=env) as parent:
        while not (written := list(tmp_path.rglob("written"))) or not written[0].read_text():
            assert parent.poll() is None
            time.sleep(0.05)
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        parent.kill()
    child = int(written[0].read_text().split()[0])
    if sys.platform.startswith("linux"):
        while Path(f"/proc/{child}/cmdline").is_file() and Path(f"/proc/{child}/cmdline").read_bytes():
            time.sleep(0.05)  # the system tells the child; a dead one has no command
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder() as mine, private_folder() as beside:
        assert {*tmp_path.iterdir()} == {mine, beside}, "those of living processes stay"
    assert list(tmp_path.iterdir()) == []


def test_commands_read_untrusted_data(sim_data: Path, sim_run: Path, tmp_path: Path) -> None:
    """The same results as without; and only the copy is read by the command itself."""
    task = sim_data / "task.yaml"
    found = [
        json.loads(ehrseq("check", sim_data, "--task", task, "--json", *words).stdout)["result"]
        for words in ((), ("--untrusted", "--copy", tmp_path / "copy"))
    ]
    assert found[0] == found[1]
    assert (tmp_path / "copy" / MANIFEST).is_file()
    for words in ((), ("--untrusted",)):
        done = ehrseq("predict", sim_run, sim_data, "--at", "last", "--out", tmp_path / f"{len(words)}.csv", *words)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "0.csv").read_bytes() == (tmp_path / "1.csv").read_bytes()


@pytest.mark.slow
def test_an_import_in_a_limited_child_is_the_same(tmp_path: Path) -> None:
    write_csv(SMALL, tmp_path / "omop")
    for name, words in (("plain", ()), ("limited", ("--untrusted",))):
        done = ehrseq("import", "omop", tmp_path / "omop", tmp_path / name, *words)
        assert done.exit_code == 0, done.output
        assert "rows" in done.stdout
    first, second = ({p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n / "data").rglob("*.parquet")}
                     for n in ("plain", "limited"))  # fmt: skip
    assert first == second != {}


def test_a_copy_needs_untrusted(sim_data: Path, tmp_path: Path) -> None:
    done = ehrseq("check", sim_data, "--copy", tmp_path / "copy")
    assert done.exit_code == 2
    assert "--copy needs --untrusted" in done.output
    assert not (tmp_path / "copy").exists()
