"""Task files, MEDS schemas, OMOP tables and FHIR files that nobody would write: read, or refused with a clear error."""

import gzip
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ehrsequencing.config import load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.fhir.reader import import_fhir
from ehrsequencing.readers.omop.reader import import_omop
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.meds import MedsReader
from helpers.omop import SMALL, write_csv

ROOT = Path(__file__).parents[2]
FOLDERS = (Path(__file__).parent / "corpus", ROOT / "examples" / "tasks")
CORPUS = sorted(path for folder in FOLDERS for path in folder.iterdir() if path.suffix == ".yaml")
ODD = ["", "&a ", "*a", "!!python/name:os.system ", "{", "[" * 50, "\x1b[2J", "\0", ": ", "- ", "1e999", "re:("]
FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_the_corpus_is_read_or_refused(path: Path) -> None:
    read_task(path)


def read_task(path: Path) -> None:
    try:
        task = load_task(path)
        for patterns in (task.index.code or (), *task.outcome.values(), *task.competing.values()):
            CodeMatcher([patterns] if isinstance(patterns, str) else patterns)
    except EhrseqError:
        return


@pytest.mark.parametrize("path", sorted((FOLDERS[0] / "omop").iterdir()), ids=lambda path: path.stem)
def test_the_corpus_of_omop_tables_is_imported_or_refused(path: Path, tmp_path: Path) -> None:
    """Each replaces some tables of a small database; null leaves one out, and a cell that it lacks is empty."""
    tables: dict[str, Any] = {**SMALL, **json.loads(path.read_text(encoding="utf-8"))}
    whole = {name: square(rows) or [{"person_id": None}] for name, rows in tables.items() if rows is not None}
    imported(import_omop, write_csv(whole, tmp_path / "omop"), tmp_path / "out")


def square(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("path", sorted((FOLDERS[0] / "fhir").iterdir()), ids=lambda path: path.name)
def test_the_corpus_of_fhir_files_is_imported_or_refused(path: Path, ending: str, tmp_path: Path) -> None:
    (tmp_path / "fhir").mkdir()
    content = path.read_bytes()
    (tmp_path / "fhir" / (path.name + ending)).write_bytes(gzip.compress(content) if ending else content)
    imported(import_fhir, tmp_path / "fhir", tmp_path / "out")


def imported(read: Callable[..., object], source: Path, out: Path) -> None:
    with suppress(EhrseqError):
        read(source, out)
        return
    assert not out.exists()


@FUZZ
@given(source=st.sampled_from(CORPUS), data=st.data())
def test_a_spoilt_task_file_is_read_or_refused(source: Path, data: st.DataObject) -> None:
    text = source.read_text(encoding="utf-8", errors="replace")
    for _ in range(data.draw(st.integers(1, 3))):
        start, end = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        with_text = st.sampled_from(ODD) | st.text(max_size=5) | st.just(text[start:end] * 2)
        text = text[:start] + data.draw(with_text) + text[min(end, start + 30) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.yaml"
        path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
        read_task(path)


LIST, WORD = pa.list_(pa.int64()), pa.dictionary(pa.int8(), pa.string())
TYPES = [
    *(pa.int64(), pa.int8(), pa.uint64(), pa.float64(), pa.string(), pa.large_string(), pa.bool_(), pa.null()),
    *(pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.date32(), pa.time64("us"), pa.binary()),
    *(pa.struct([("a", pa.int64())]), pa.duration("s"), pa.decimal128(38, 30), LIST, WORD),
]
VALUES: dict[Any, Any] = {pa.bool_(): True, pa.binary(): b"\xff", LIST: [1], WORD: "A"}


def column(kind: pa.DataType, rows: int, *, nulls: bool) -> pa.Array:
    if pa.types.is_struct(kind) or pa.types.is_null(kind):
        return pa.nulls(rows, kind)
    value = VALUES.get(kind, "A" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else 1)
    return pa.array([None if nulls and n % 2 else value for n in range(rows)], kind)


@FUZZ
@given(
    kinds=st.tuples(*[st.sampled_from(TYPES)] * 4), nulls=st.booleans(), rows=st.integers(0, 4),
    names=st.lists(st.sampled_from(["subject_id", "time", "code", "numeric_value", "x"]), min_size=4, max_size=4),
    usual=st.booleans(),
)  # fmt: skip
def test_a_table_of_any_types_is_read_or_refused(
    kinds: tuple[pa.DataType, ...], nulls: bool, rows: int, names: list[str], usual: bool
) -> None:
    names = ["subject_id", "time", "code", "numeric_value"] if usual else names
    table = pa.Table.from_arrays([column(kind, rows, nulls=nulls) for kind in kinds], names=names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data" / "train" / "0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table, path)
        with suppress(EhrseqError):
            list(MedsReader(Path(folder)))
