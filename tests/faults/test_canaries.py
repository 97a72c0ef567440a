"""Canaries: ids, births, rare codes and free text of two people go through every command, and are looked for.

One is a training subject, one a held-out subject. Files are looked into as they are, and as what they hold: gzip,
Parquet, and the deflated base64 of the explorer.
"""

import base64
import datetime as dt
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.core.outputs import MANIFEST
from helpers.command_line import ehrseq
from helpers.faults.driver import TINY
from helpers.faults.sources import write_sources
from helpers.serve import Client

IDS, BIRTH = {"train": 987_654_321_012_345, "held_out": 876_543_210_123_456}, dt.datetime(1947, 11, 13, 4, 5, 6)
ID = IDS["train"]
CODES = ("RARE//canary-7f3a", "NOTE//Mr Canary of Elm Street 7")
BIRTH_US = int((BIRTH - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1))
FOUND_AS = {
    "the id": [form for n in IDS.values() for form in (str(n).encode(), f"{n:,}".encode(), np.int64(n).tobytes())],
    "the birth": [b"1947-11-13", b"13.11.1947", np.int64(BIRTH_US).tobytes(), str(BIRTH_US).encode()],
    "a rare code": [b"canary-7f3a"],
    "free text": [b"Mr Canary", b"Elm Street"],
}  # fmt: skip
PACKED = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")  # base64


def canaries_in(content: bytes) -> set[str]:
    return {name for name, forms in FOUND_AS.items() if any(form in content for form in forms)}


def canaries_of(path: Path) -> set[str]:
    """Those in a file, its name, and what it holds in compressed form."""
    content = path.read_bytes()
    found = canaries_in(content) | canaries_in(path.name.encode())
    if path.suffix == ".gz":
        found |= canaries_in(gzip.decompress(content))
    elif path.suffix == ".parquet":
        for column in pq.read_table(path).columns:
            found |= canaries_in("\n".join(map(str, column.to_pylist())).encode())
    elif path.suffix == ".html":
        for text in PACKED.findall(content):
            try:
                packed = base64.b64decode(text + b"=" * (-len(text) % 4))
                found |= canaries_in(packed) | canaries_in(zlib.decompress(packed, -15))
            except (ValueError, zlib.error):
                continue
    return found


def canaries_below(*paths: Path) -> dict[str, set[str]]:
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    found = {file.relative_to(file.parents[1]).as_posix(): canaries_of(file) for file in files}
    assert found, "nothing was written"
    return {name: what for name, what in found.items() if what}


@pytest.fixture(scope="module")
def data(sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated records in which a training and a held-out subject have the canaries."""
    folder = Path(shutil.copytree(sim_data, tmp_path_factory.mktemp("canaries") / "data"))
    (folder / MANIFEST).unlink()  # the data is changed on purpose
    splits = pq.read_table(folder / "metadata" / "subject_splits.parquet")
    chosen = {
        splits.filter(pa.compute.equal(splits["split"], split))["subject_id"][0].as_py(): own
        for split, own in IDS.items()
    }
    _rewrite(folder / "metadata" / "subject_splits.parquet", chosen)
    for path in (folder / "data").rglob("*.parquet"):
        table = _rewrite(path, chosen)
        code, moment = table["code"].to_pylist(), table["time"].to_pylist()
        for one in IDS.values():
            own = np.flatnonzero(table["subject_id"].to_numpy() == one)
            if not len(own):
                continue
            moment[code.index("MEDS_BIRTH", own[0])] = BIRTH
            timed = [
                row for row in own.tolist()
                if code[row] not in ("MEDS_BIRTH", "MEDS_DEATH") and moment[row] is not None
            ]  # fmt: skip
            for row, name in zip(timed[1:], CODES, strict=False):
                code[row] = name
        table = table.set_column(table.schema.get_field_index("code"), "code", pa.array(code, table["code"].type))
        table = table.set_column(table.schema.get_field_index("time"), "time", pa.array(moment, table["time"].type))
        pq.write_table(table, path)
    return folder


def _rewrite(path: Path, chosen: dict[int, int]) -> pa.Table:
    table = pq.read_table(path)
    ids = pa.array([chosen.get(one, one) for one in table["subject_id"].to_pylist()], pa.int64())
    table = table.set_column(table.schema.get_field_index("subject_id"), "subject_id", ids)
    pq.write_table(table, path)
    return table


def test_the_canaries_are_in_the_data(data: Path) -> None:
    rows = [row for path in (data / "data").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    for one in IDS.values():
        own = [row for row in rows if row["subject_id"] == one]
        assert {*CODES} <= {row["code"] for row in own}
        assert BIRTH in [row["time"] for row in own]
    assert canaries_below(data / "data"), "what is packed is looked into"


def test_what_is_packed_in_a_page_is_looked_into(tmp_path: Path) -> None:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = base64.b64encode(squeeze.compress(b"x" * 99 + CODES[0].encode() + str(ID).encode()) + squeeze.flush())
    (tmp_path / "page.html").write_bytes(b'<script type="text/plain">' + text + b"</script>")
    assert canaries_of(tmp_path / "page.html") == {"the id", "a rare code"}


# ---- every command ---------------------------------------------------------------------------------------------------

ROWS, RECORDS = {"the id"}, {"the id", "the birth", "a rare code", "free text"}
FEW = ("--baselines", "none", "evaluation.bootstrap=20")


@dataclass(frozen=True)
class Told:
    """One command.

    Attributes:
        words: Of the data and the folder that all commands share.
        needs: The command that comes before it.
        writes: What it writes in that folder.
        holds: What that holds by its nature; it is never printed.
        quick: Whether `make test` runs it.
    """

    words: Callable[[Path, Path], list[object]]
    needs: str | None = None
    writes: tuple[str, ...] = ()
    holds: frozenset[str] = frozenset()
    quick: bool = False


def _importing(name: str, *words: str) -> Told:
    """The table of a format, or the folder of its name; the imported records hold what the source held."""
    source = "flat.csv" if name == "csv" else name

    def all_words(data: Path, o: Path) -> list[object]:
        return [
            "import",
            name,
            o / "sources" / source,
            o / f"from-{name}",
            *(o / "sources" / word if word.endswith(".yaml") else word for word in words),
        ]

    return Told(all_words, writes=(f"from-{name}/metadata/import_report.json",), quick=name == "csv")


COMMANDS: dict[str, Told] = {
    "check": Told(
        lambda d, o: ["check", d, "--task", d / "task.yaml", "--out", o / "check.json"], writes=("check.json",),
        quick=True,
    ),
    "codes": Told(lambda d, o: ["codes", d, "a"]),
    "prepare": Told(
        lambda d, o: ["prepare", d, "--task", d / "task.yaml", "--out", o / "prepared", "vocabulary.min_subjects=11"],
        writes=("prepared",), holds=frozenset({"the id", "the birth"}), quick=True,
    ),
    "train": Told(
        lambda d, o: ["train", o / "prepared", "--out", o / "run", *TINY], needs="prepare", writes=("run",), quick=True
    ),
    "blend": Told(
        lambda d, o: ["train", o / "prepared", "--out", o / "blend", *TINY, "training.blend=true"], needs="prepare",
        writes=("blend",),
    ),
    "pretrain": Told(
        lambda d, o: ["pretrain", o / "prepared", "--out", o / "pretrained", *TINY], needs="prepare",
        writes=("pretrained",),
    ),
    "train --init": Told(
        lambda d, o: ["train", o / "prepared", "--init", o / "pretrained", "transfer.mode=lora", "--out", o / "lora",
                      *TINY],
        needs="pretrain", writes=("lora",),
    ),
    "evaluate": Told(lambda d, o: ["evaluate", o / "run", *FEW], needs="train", writes=("run",)),
    "evaluate --recalibrate": Told(
        lambda d, o: ["evaluate", o / "run", "--recalibrate", *FEW], needs="evaluate", writes=("run",)
    ),
    "evaluate --data": Told(
        lambda d, o: ["evaluate", o / "run", "--data", d, "--out", o / "external", *FEW], needs="train",
        writes=("external",),
    ),
    "audit": Told(lambda d, o: ["audit", o / "run", "--subjects", 3], needs="train", writes=("run",)),
    "predict": Told(
        lambda d, o: ["predict", o / "run", d, "--at", "last", "--out", o / "risks.csv.gz"], needs="train",
        writes=("risks.csv.gz",), holds=frozenset(ROWS),
    ),
    "score": Told(
        lambda d, o: ["score", o / "all.csv", d, "--task", d / "task.yaml", "--prepared", o / "prepared", "--out",
                      o / "score", *FEW],
        needs="predict --at all", writes=("score",),
    ),
    "predict --at all": Told(
        lambda d, o: ["predict", o / "run", d, "--at", "all", "--out", o / "all.csv"], needs="train",
        writes=("all.csv",), holds=frozenset(ROWS),
    ),
    "explain": Told(
        lambda d, o: ["explain", o / "run", d, "--subjects", 400, "--out", o / "effects.csv"], needs="train",
        writes=("effects.csv",), quick=True,
    ),
    "explain --subject": Told(
        lambda d, o: ["explain", o / "run", d, "--subject", ID, "--out", o / "why.csv"], needs="train",
        writes=("why.csv",),
        holds=frozenset({"a rare code", "free text"}),  # of the record of the person who was asked about
    ),
    "explore": Told(
        lambda d, o: ["explore", o / "run", d, "--out", o / "patients.html"], needs="train", writes=("patients.html",)
    ),
    "export --format share": Told(
        lambda d, o: ["export", o / "run", "--format", "share", "--out", o / "shared"], needs="train",
        writes=("shared",),
    ),
    "import csv": _importing("csv", "--map", "map.yaml"),
    "import fhir": _importing("fhir"),
    "import omop": _importing("omop"),
    "import synthea": _importing("synthea"),
}  # fmt: skip
LATER = [pytest.mark.faults, pytest.mark.slow]
Run = Callable[[str], str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("told")


@pytest.fixture(scope="module")
def run(data: Path, place: Path) -> Run:
    """Runs a command, and those that it needs, once; returns what it printed."""
    told: dict[str, str] = {}
    write_sources(place / "sources", person=ID, born="1947-11-13", code=CODES[0], text=CODES[1])

    def once(name: str) -> str:
        if name not in told:
            command = COMMANDS[name]
            if command.needs is not None:
                once(command.needs)
            done = ehrseq(*command.words(data, place))
            assert done.exit_code in (0, 1), done.output
            told[name] = done.output + done.stderr
        return told[name]

    return once


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if told.quick else LATER) for name, told in COMMANDS.items()]
)
def test_no_command_tells_a_canary(run: Run, place: Path, name: str) -> None:
    """What is printed, and every file: results, report, history, weights, vocabulary."""
    command = COMMANDS[name]
    said = run(name)
    printed = canaries_in(said.encode())
    if name == "explain --subject":  # it names the subject that was asked for
        printed -= ROWS
    assert printed == set(), said
    found = canaries_below(*(place / written for written in command.writes)) if command.writes else {}
    assert {file: what for file, what in found.items() if what - command.holds} == {}
    assert set().union(*found.values()) == command.holds, "what holds them by its nature is seen to hold them"


@pytest.mark.faults
@pytest.mark.slow
def test_a_checkpoint_holds_no_canary(run: Run, place: Path) -> None:
    """Of a training that is stopped in its middle."""
    run("prepare")
    settings = (*TINY, "training.epochs=500", "training.patience=500")
    words = ["train", place / "prepared", "--out", place / "stopped", *settings]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-m", "ehrsequencing", *map(str, words)], env=env, stderr=-1) as process:
        while process.poll() is None and not (place / "stopped" / "history.jsonl").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM
    assert list((place / "stopped" / "checkpoints").glob("step-*"))
    assert canaries_below(place / "stopped") == {}
    assert canaries_in(told) == set()


@pytest.mark.faults
@pytest.mark.slow
def test_a_service_tells_no_canary(run: Run, data: Path, place: Path, tmp_path: Path) -> None:
    """Neither what it prints, nor its counts, its problems or any file, of good requests and of bad ones."""
    pytest.importorskip("fastapi", reason="needs the extra serve")
    run("train")
    before = {file: file.read_bytes() for file in (place / "run").rglob("*") if file.is_file()}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "ehrsequencing", "serve", str(place / "run"), str(data), "--port", "0"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        told = ""
        while "listening on" not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        client = Client(int(re.findall(r"listening on http://127.0.0.1:(\d+)", told)[0]))
        replies = [client.ask(*asked, timeout=120) for asked in _requests_with_canaries()]
        kept = [*tmp_path.rglob("*")]
        process.send_signal(signal.SIGINT)
        told += process.communicate(timeout=120)[0]
    assert [reply.status for reply in replies] == [200, 200, 200, 422, 422, 422, 404, 404]
    assert b'unknown_rows":2' in replies[0].body, "the record was read"
    assert canaries_in(told.encode()) == set(), told
    assert [canaries_in(reply.body) for reply in replies] == [set()] * len(replies)
    assert [canaries_of(file) for file in kept if file.is_file()] == []
    assert {file: file.read_bytes() for file in (place / "run").rglob("*") if file.is_file()} == before


def _requests_with_canaries() -> list[tuple[Any, ...]]:
    """A record, counts, then records that cannot be read, and paths that are not there."""
    rows: list[dict[str, Any]] = [
        {"time": BIRTH.isoformat(), "code": "MEDS_BIRTH"},
        {"time": "2020-02-03T09:30:00", "code": "ENROLLMENT"},
        *({"time": "2020-02-03T09:40:00", "code": code} for code in CODES),
    ]
    patient = {"resourceType": "Patient", "id": str(ID), "birthDate": "1947-11-13T99", "name": [{"text": CODES[1]}]}
    bundle = {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": patient}, {"resource": patient}]}
    return [
        ("POST", "/predict", {"rows": rows}),
        ("GET", "/metrics"),
        ("POST", "/predict", {"rows": [{**row, "subject_id": ID} for row in rows]}),
        ("POST", "/predict", {"rows": [{**row, "time": CODES[1]} for row in rows]}),
        ("POST", "/predict", {"rows": [*rows, rows[0] | {"time": "1950-01-01"}], "at": str(ID)}),
        ("POST", "/fhir", bundle),
        ("GET", f"/{ID}/1947-11-13"),
        ("POST", "/Mr%20Canary", {"rows": rows}),
    ]


@pytest.mark.parametrize("spoil", ["a code with a line break", "a second birth", "no time"])
def test_no_error_and_no_traceback_tells_a_canary(data: Path, tmp_path: Path, spoil: str) -> None:
    broken = Path(shutil.copytree(data, tmp_path / "data"))
    for path in (broken / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        rows = table.to_pylist()
        for row in rows:
            if row["subject_id"] not in IDS.values():
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
