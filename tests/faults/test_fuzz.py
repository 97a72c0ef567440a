"""Task files, MEDS schemas and OMOP cells that nobody would write: read, or refused with one clear error."""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ehrsequencing.config import load_task
from ehrsequencing.errors import EhrseqError
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


CELLS = ["9" * 30, "-1", "0000-00-00", "2010-13-45", "NaN", '"', "a,b", "\x1b[31m", "1e400", "31/12/2010"]


@pytest.mark.faults
@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_an_omop_cell_of_any_text_is_imported_or_refused(data: st.DataObject) -> None:
    tables = {name: [dict(row) for row in rows] for name, rows in SMALL.items()}
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(sorted(tables)))
        row = data.draw(st.sampled_from(tables[name]))
        odd = st.sampled_from(
            ["9" * 30, "-1", "0000-00-00", "2010-13-45", "NaN", '"', "a,b", "\x1b[31m", "1e400", "31/12/2010"]
        )
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(odd | st.text(max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        try:
            import_omop(write_csv(tables, Path(folder) / "omop"), Path(folder) / "out")
        except EhrseqError:
            assert not (Path(folder) / "out").exists()
