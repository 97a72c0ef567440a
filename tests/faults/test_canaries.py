"""Canaries: one person's id, birth, rare code and free text go through every command, and are looked for afterwards."""

import datetime as dt
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.output_kinds import MANIFEST
from helpers.command_line import ehrseq
from helpers.faults.driver import TINY

ID, BIRTH = 987_654_321_012_345, dt.datetime(1947, 11, 13, 4, 5, 6)
CODES = ("RARE//canary-7f3a", "NOTE//Mr Canary of Elm Street 7")
BIRTH_US = int((BIRTH - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1))
FOUND_AS = {
    "the id": (str(ID).encode(), f"{ID:,}".encode(), np.int64(ID).tobytes()),
    "the birth": (b"1947-11-13", b"13.11.1947", np.int64(BIRTH_US).tobytes(), str(BIRTH_US).encode()),
    "a rare code": (b"canary-7f3a",),
    "free text": (b"Mr Canary", b"Elm Street"),
}


def canaries_in(content: bytes) -> set[str]:
    return {name for name, forms in FOUND_AS.items() if any(form in content for form in forms)}


@pytest.fixture(scope="module")
def data(sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated records in which one training subject has the canaries."""
    folder = Path(shutil.copytree(sim_data, tmp_path_factory.mktemp("canaries") / "data"))
    (folder / MANIFEST).unlink()  # the data is changed on purpose
    splits = pq.read_table(folder / "metadata" / "subject_splits.parquet")
    chosen = splits.filter(pa.compute.equal(splits["split"], "train"))["subject_id"][0].as_py()
    _rewrite(folder / "metadata" / "subject_splits.parquet", chosen)
    for path in (folder / "data").rglob("*.parquet"):
        table = _rewrite(path, chosen)
        own = np.flatnonzero(table["subject_id"].to_numpy() == ID)
        if not len(own):
            continue
        code, time = table["code"].to_pylist(), table["time"].to_pylist()
        time[code.index("MEDS_BIRTH", own[0])] = BIRTH
        timed = [row for row in own.tolist() if code[row] not in ("MEDS_BIRTH", "MEDS_DEATH") and time[row] is not None]
        for row, name in zip(timed[1:], CODES, strict=False):
            code[row] = name
        table = table.set_column(table.schema.get_field_index("code"), "code", pa.array(code, table["code"].type))
        table = table.set_column(table.schema.get_field_index("time"), "time", pa.array(time, table["time"].type))
        pq.write_table(table, path)
    return folder


def _rewrite(path: Path, chosen: int) -> pa.Table:
    table = pq.read_table(path)
    ids = np.where(table["subject_id"].to_numpy() == chosen, ID, table["subject_id"].to_numpy())
    table = table.set_column(table.schema.get_field_index("subject_id"), "subject_id", pa.array(ids))
    pq.write_table(table, path)
    return table


def test_the_canaries_are_in_the_data(data: Path) -> None:
    rows = [row for path in (data / "data").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    own = [row for row in rows if row["subject_id"] == ID]
    assert {*CODES} <= {row["code"] for row in own}
    assert BIRTH in [row["time"] for row in own]


@pytest.mark.faults
@pytest.mark.slow
def test_no_command_tells_a_canary(data: Path, tmp_path: Path) -> None:
    """What is printed, and every file of a run: results, report, history, weights, vocabulary, checkpoints."""
    task, prepared, run = data / "task.yaml", tmp_path / "prepared", tmp_path / "run"
    told = []
    for words in (
        ("check", data, "--task", task, "--out", tmp_path / "check.json"),
        ("codes", data, "a"),
        ("prepare", data, "--task", task, "--out", prepared),
        ("train", prepared, "--out", run, *TINY),
        ("evaluate", run, "--baselines", "none", "evaluation.bootstrap=20"),
        ("audit", run, "--subjects", 3),
        ("predict", run, data, "--at", "last", "--out", tmp_path / "risks.csv"),
        ("export", run, "--format", "share", "--out", tmp_path / "shared"),
    ):
        done = ehrseq(*words)
        assert done.exit_code in (0, 1), done.output
        told.append(done.output + done.stderr)
    assert canaries_in("".join(told).encode()) == set()
    assert canaries_in((tmp_path / "check.json").read_bytes()) == set()
    found = {path.name: canaries_in(path.read_bytes()) for path in run.rglob("*") if path.is_file()}
    found |= {path.name: canaries_in(path.read_bytes()) for path in (tmp_path / "shared").iterdir()}
    assert {name: what for name, what in found.items() if what} == {}
    assert "README.md" in found
    assert "the id" in canaries_in((tmp_path / "risks.csv").read_bytes()), "predictions are by subject: they stay"
    inside = set().union(*(canaries_in(path.read_bytes()) for path in prepared.rglob("*") if path.is_file()))
    assert inside == {"the id", "the birth"}, "a prepared set holds records, but no code of one person"


@pytest.mark.parametrize("spoil", ["a code with a line break", "a second birth", "no time"])
def test_no_error_and_no_traceback_tells_a_canary(data: Path, tmp_path: Path, spoil: str) -> None:
    broken = Path(shutil.copytree(data, tmp_path / "data"))
    for path in (broken / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        rows = table.to_pylist()
        for row in rows:
            if row["subject_id"] != ID:
                continue
            if spoil == "a code with a line break" and row["code"] in CODES:
                row["code"] += "\n"
            if spoil == "a second birth" and row["code"] in CODES:
                row["code"] = "MEDS_BIRTH"
            if spoil == "no time":
                row["subject_id"] = None
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    for debug in ((), ("--debug",)):
        done = ehrseq("prepare", broken, "--task", data / "task.yaml", "--out", tmp_path / "set", *debug)
        assert done.exit_code == 2, done.output
        assert canaries_in((done.output + done.stderr).encode()) == set()
