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
}
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


def canaries_below(path: Path) -> dict[str, set[str]]:
    files = [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    found = {file.relative_to(file.parents[1]).as_posix(): canaries_of(file) for file in files}
    assert found, "nothing was written"
    return {name: what for name, what in found.items() if what}


@pytest.fixture(scope="module")
def data(sim_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated records in which a training and a held-out subject have the canaries."""
    folder = Path(shutil.copytree(sim_data, tmp_path_factory.mktemp("canaries") / "data"))
    (folder / MANIFEST).unlink()  # the data is changed on purpose
    splits = pq.read_table(folder / "metadata" / "subject_splits.parquet").to_pylist()
    kept = pa.array([row["subject_id"] for row in splits[::2]], pa.int64())
    splits = splits[::2]
    chosen = {next(row["subject_id"] for row in splits if row["split"] == name): own for name, own in IDS.items()}
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        if "subject_id" not in table.column_names:
            continue
        table = table.filter(pa.compute.is_in(table["subject_id"], kept))
        rows, names = table.to_pylist(), {one: iter(CODES) for one in chosen}
        for k, row in enumerate(rows):
            one = row["subject_id"]
            if one not in chosen:
                continue
            row["subject_id"] = chosen[one]
            if row.get("code") == "MEDS_BIRTH":
                row["time"] = BIRTH
            elif row.get("time") is not None and row["code"] != "MEDS_DEATH" and rows[k - 1]["code"] != "MEDS_BIRTH":
                row["code"] = next(names[one], row["code"])
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return folder


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

ROWS = {"the id"}
FEW = "--baselines none evaluation.bootstrap=20"
SMALL = " ".join(TINY)


@dataclass(frozen=True)
class Told:
    """One command of the data `{d}` and of the folder `{o}` that all commands share."""

    words: str
    needs: str | None = None  # the command that comes before it
    writes: str = ""  # what it writes in that folder
    holds: frozenset[str] = frozenset()  # what that holds by its nature; it is never printed
    quick: bool = False  # whether `make test` runs it


def _importing(name: str, source: str, more: str = "") -> Told:
    """The imported records hold what the source held; the report does not."""
    words = f"import {name} {{o}}/sources/{source} {{o}}/from-{name} {more}"
    return Told(words, writes=f"from-{name}/metadata/import_report.json", quick=name == "csv")


_PREPARED = frozenset({"the id", "the birth"})
COMMANDS: dict[str, Told] = {
    "check": Told("check {d} --task {d}/task.yaml --out {o}/check.json", writes="check.json", quick=True),
    "codes": Told("codes {d} a"),
    "prepare": Told(
        "prepare {d} --task {d}/task.yaml --out {o}/prepared vocabulary.min_subjects=11",
        writes="prepared",
        holds=_PREPARED,
        quick=True,
    ),
    "train": Told(f"train {{o}}/prepared --out {{o}}/run {SMALL}", "prepare", "run", quick=True),
    "pretrain": Told(f"pretrain {{o}}/prepared --out {{o}}/pretrained {SMALL}", "prepare", "pretrained"),
    "evaluate": Told(f"evaluate {{o}}/run {FEW}", "train", "run"),
    "evaluate --data": Told(f"evaluate {{o}}/run --data {{d}} --out {{o}}/external {FEW}", "train", "external"),
    "audit": Told("audit {o}/run --subjects 3", "train", "run"),
    "predict": Told("predict {o}/run {d} --at all --out {o}/all.csv.gz", "train", "all.csv.gz", frozenset(ROWS)),
    "score": Told(
        "score {o}/all.csv.gz {d} --task {d}/task.yaml --prepared {o}/prepared --out {o}/score " + FEW,
        "predict",
        "score",
    ),
    "explain": Told("explain {o}/run {d} --subjects 400 --out {o}/effects.csv", "train", "effects.csv", quick=True),
    "explain --subject": Told(
        f"explain {{o}}/run {{d}} --subject {ID} --out {{o}}/why.csv",
        "train",
        "why.csv",
        frozenset({"a rare code", "free text"}),
    ),  # of the record that was asked about
    "explore": Told("explore {o}/run {d} --out {o}/patients.html", "train", "patients.html"),
    "export --format share": Told("export {o}/run --format share --out {o}/shared", "train", "shared"),
    "import csv": _importing("csv", "flat.csv", "--map {o}/sources/map.yaml"),
    "import fhir": _importing("fhir", "fhir"),
    "import omop": _importing("omop", "omop"),
    "import synthea": _importing("synthea", "synthea"),
}
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
            done = ehrseq(*command.words.format(d=data, o=place).split())
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
    found = canaries_below(place / command.writes) if command.writes else {}
    assert {file: what for file, what in found.items() if what - command.holds} == {}
    assert set().union(*found.values()) == command.holds, "what holds them by its nature is seen to hold them"


@pytest.mark.faults
@pytest.mark.slow
def test_a_service_tells_no_canary(run: Run, data: Path, place: Path, tmp_path: Path) -> None:
    """Neither what it prints, nor its counts, its problems or any file, of good requests and of bad ones."""
    pytest.importorskip("fastapi", reason="needs the extra serve")
    run("train")
    rows = [{"time": BIRTH.isoformat(), "code": "MEDS_BIRTH"}, {"time": "2020-02-03T09:30:00", "code": "ENROLLMENT"}]
    rows += [{"time": "2020-02-03T09:40:00", "code": code} for code in CODES]
    patient = {"resourceType": "Patient", "id": str(ID), "birthDate": "1947-11-13T99", "name": [{"text": CODES[1]}]}
    requests: list[tuple[Any, ...]] = [
        ("POST", "/predict", {"rows": rows}),
        ("POST", "/predict", {"rows": [{**row, "subject_id": ID} for row in rows]}),
        ("POST", "/predict", {"rows": [*rows, rows[0] | {"time": CODES[1]}], "at": str(ID)}),
        (
            "POST",
            "/cds-services/ehrsequencing-risk",
            {"hook": "patient-view", "hookInstance": "7", "context": {}, "prefetch": {"patient": patient}},
        ),
        ("GET", f"/{ID}/1947-11-13"),
        ("POST", "/Mr%20Canary", {"rows": rows}),
    ]
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
        try:
            replies = [client.ask(*asked, timeout=120) for asked in requests]
            kept = [file for file in tmp_path.rglob("*") if file.is_file()]
        finally:  # else a request that fails is waited for without end
            process.send_signal(signal.SIGINT)
        told += process.communicate(timeout=120)[0]
    assert [canaries_of(file) for file in kept] == [set()] * len(kept)
    assert [reply.status for reply in replies] == [200, 200, 422, 422, 404, 404]
    assert b'unknown_rows":2' in replies[0].body, "the record was read"
    assert canaries_in(told.encode()) == set(), told
    assert [canaries_in(reply.body) for reply in replies] == [set()] * len(replies)
