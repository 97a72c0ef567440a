"""The same seed gives the same bytes: for any seed of hashes, order and cut of shards, number of processes.

The number of threads is one. Another number, or another kind of processor, may change the last digits.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.core.outputs import MANIFEST
from helpers.faults.driver import TINY, without_times
from helpers.storage import everything

MAKE = """
import sys
from pathlib import Path
from ehrsequencing.cli.app import app
from ehrsequencing.cli.console import run
from ehrsequencing.config import load_study, load_task
from ehrsequencing.records.prepare import prepare
data, out, processes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def ehrseq(*words):
    sys.argv = ["ehrseq", *map(str, words), "-q"]
    try:
        run(app)
    except SystemExit as stop:
        assert not stop.code, words

if __name__ == "__main__":
    tasks = [load_task(data / "task.yaml")]
    prepare(data, out / "set", study=load_study(None, []), tasks=tasks, processes=processes)
    ehrseq("train", out / "set", "--out", out / "run", *sys.argv[4:])
    ehrseq("predict", out / "run", data, "--at", "all", "--out", out / "risks.csv")
    ehrseq("evaluate", out / "run", "--baselines", "none", "evaluation.bootstrap=20")
"""
FIRST = ("0", 1, "as it is")
OTHERS = [("1", 1, "as it is"), ("random", 2, "reversed"), ("random", 3, "in fives"), ("7", 2, "shuffled")]


def recut(data: Path, how: str) -> None:
    """Other names, sizes and orders of shards; each subject's rows stay in one file and in their order."""
    for split in sorted((data / "data").iterdir()):
        table = pa.concat_tables(pq.read_table(path) for path in sorted(split.glob("*.parquet")))
        subject = table["subject_id"].to_numpy()
        every = np.unique(subject)
        if how == "as it is":
            continue
        pieces = {"reversed": every[::-1], "in fives": every, "shuffled": np.random.default_rng(3).permutation(every)}
        for path in split.glob("*.parquet"):
            path.unlink()
        for number, ids in enumerate(np.array_split(pieces[how], 5 if how == "in fives" else 2)):
            rows = np.concatenate([np.flatnonzero(subject == one) for one in ids.tolist()])
            pq.write_table(table.take(rows), split / f"{'zyxwv'[number]}.parquet")


def made(data: Path, folder: Path, *, seed: str, processes: int) -> dict[str, object]:
    """What other processes make: the bytes of a prepared set and of weights, the predictions, and the metrics."""
    env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = folder / "make.py"  # a file, so that its processes can import it
    script.write_text(MAKE)
    subprocess.run([sys.executable, script, data, folder, str(processes), *TINY], env=env, check=True)
    risks = (folder / "risks.csv").read_bytes().splitlines()
    found = {
        "prepared set": everything(folder / "set"), "weights": (folder / "run" / "model.safetensors").read_bytes(),
        "predictions": sorted(risks, key=split_row),  # they come in the order of the shards
        "metrics": without_times(json.loads((folder / "run" / "metrics.json").read_text())),
    }  # fmt: skip
    shutil.rmtree(folder / "set")
    shutil.rmtree(folder / "run")
    (folder / "risks.csv").unlink()
    return found


def numbers_differ_by(first: Any, second: Any) -> float:
    """The largest difference of risks. Another order of shards puts other people together in a batch."""
    (names, risks), (others, again) = (zip(*map(split_row, rows), strict=True) for rows in (first, second))
    assert names == others
    return float(np.abs(np.array(risks) - np.array(again)).max())


def split_row(row: bytes) -> tuple[tuple[bytes, ...], float]:
    """Subject, time, cause and horizon of a row, and its risk; the header has none."""
    *name, risk, start = row.split(b",")
    return (*name, start), 0.0 if b"risk" in risk else float(risk)


@pytest.mark.faults
@pytest.mark.slow
def test_neither_hashes_nor_shards_nor_processes_change_a_byte(inputs: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(inputs / "sim", tmp_path / "data"))
    (data / MANIFEST).unlink()  # the shards are cut anew on purpose
    first = made(data, tmp_path, seed=FIRST[0], processes=FIRST[1])
    assert len(first["weights"]) > 10_000  # type: ignore[arg-type]
    assert len(first["predictions"]) > 100  # type: ignore[arg-type]
    whole = first["predictions"]
    for seed, processes, how in OTHERS:
        recut(data, how)
        again = made(data, tmp_path, seed=seed, processes=processes)
        close = numbers_differ_by(first.pop("predictions"), again.pop("predictions"))
        assert close <= (0 if how == "as it is" else 1e-6), (seed, processes, how)
        assert [name for name in first if first[name] != again[name]] == [], (seed, processes, how)
        first["predictions"] = whole
    print(f"same bytes of prepared set and weights, same predictions and metrics: {[FIRST, *OTHERS]}")
