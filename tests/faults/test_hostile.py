"""Folders and files of strangers: nothing is executed, no memory is taken, and the answer is one clear error."""

import gzip
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ehrsequencing.config import load_task
from ehrsequencing.core import files
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, sha256
from ehrsequencing.core.outputs import MANIFEST, save_manifest
from ehrsequencing.prediction.run import Run
from ehrsequencing.readers.fhir import import_fhir
from ehrsequencing.readers.fhir.survey import fhir_files
from ehrsequencing.readers.omop.reader import import_omop
from ehrsequencing.readers.table_files import BLOCK_BYTES, open_table
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.labels import read_index_times
from ehrsequencing.records.meds import MedsReader
from helpers.omop import SMALL, write_csv
from helpers.settings import examples

# Calls that run what a file holds (pickle, eval, torch.load …) are banned by ruff (pyproject.toml).

# ---- model folders ---------------------------------------------------------------------------------------------------


def tensors(header: bytes | dict[str, object], body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
FILES: dict[str, tuple[str, bytes, str]] = {
    "an absurd shape": (
        "model.safetensors",
        tensors({"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 4]}}, b"\0" * 4),
        "not a safetensors",
    ),
    "a deep header": ("model.safetensors", tensors(b"[" * 100_000), "not a safetensors"),
    "a deep vocabulary": ("vocabulary.json", b'{"a":' * 100_000, "nested too deeply"),
    "an object of Python": ("config.yaml", b'!!python/object/apply:os.system ["touch /tmp/ehrseq-executed"]', "YAML"),
    "a bomb of aliases": ("config.yaml", BOMB.encode(), "has an alias"),
}


def hostile(sim_run: Path, folder: Path, name: str, content: bytes) -> Path:
    """A run whose owner has changed a file, and the manifest with it."""
    run = Path(shutil.copytree(sim_run, folder / "run"))
    (run / name).write_bytes(content)
    manifest = read_json(run / MANIFEST)
    manifest["files"][name] = sha256(run / name)
    save_manifest(run, manifest)
    return run


@pytest.mark.parametrize("kind", FILES)
def test_a_hostile_model_folder_is_refused(sim_run: Path, tmp_path: Path, kind: str) -> None:
    name, content, says = FILES[kind]
    with pytest.raises(EhrseqError, match=says):
        Run(hostile(sim_run, tmp_path, name, content)).model  # noqa: B018
    assert not Path("/tmp/ehrseq-executed").exists()


def test_a_link_out_of_a_model_folder_is_refused(sim_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sim_run, tmp_path / "run"))
    shutil.move(run / "vocabulary.json", tmp_path / "elsewhere.json")
    (run / "vocabulary.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(EhrseqError, match="names a file outside its folder"):
        Run(run)


# ---- data ------------------------------------------------------------------------------------------------------------


def test_no_pattern_takes_long() -> None:
    """Python's own engine needs years for the first one: this test would not end."""
    for pattern in ("re:(a+)+$", "re:(a|aa)+$", "re:(.*a){20}$", "re:([a-z]+)*[0-9]"):
        assert not CodeMatcher([pattern])("a" * 60 + "!")
    for pattern in ("re:(", r"re:(a)\1", "re:(?=a)b", "re:(a{1000}){1000}"):
        with pytest.raises(EhrseqError, match="is not a regular expression"):
            CodeMatcher([pattern])


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("re:a|bc", ["a", "bc"], ["ac", "abc", "b"]),
        ("re:(?i)icd.*", ["ICD10//I50"], ["xICD"]),
        (r"re:DX//\d{2}\.?", ["DX//12", "DX//12."], ["DX//123"]),
        ("re:é.", ["éa"], ["e"]),
        ("re:", [""], ["a"]),
    ],
)
def test_a_pattern_means_whole_codes(pattern: str, yes: list[str], no: list[str]) -> None:
    matcher = CodeMatcher([pattern])
    assert [matcher(code) for code in yes + no] == [True] * len(yes) + [False] * len(no)
    assert matcher.mask(tuple(yes + no)).tolist() == [True] * len(yes) + [False] * len(no)


def test_a_long_line_in_a_gzip_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "person.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(6):
            file.write(b"a" * BLOCK_BYTES)
    with pytest.raises(EhrseqError, match="cannot be read as CSV"):
        open_table(path)


def fhir_of(path: Path) -> object:
    return [list(file.entries()) for file in fhir_files(path.parent)]


GZIP: dict[str, tuple[str, bytes, bytes, Callable[[Path], object]]] = {  # file, its begin, what repeats, who reads it
    "index times": ("cohort.csv.gz", b"subject_id,prediction_time\n", b"1,2020-01-01 00:00:00\n", read_index_times),
    "a FHIR bundle": ("bundle.json.gz", b'{"resourceType": "Bundle", "entry": []', b" " * 40, fhir_of),
}


@pytest.mark.parametrize("what", GZIP)
def test_a_gzip_file_that_holds_far_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    name, begin, again, read = GZIP[what]
    path = tmp_path / name
    with gzip.open(path, "wb") as file:
        file.write(begin + again * 100_000 + (b"}" if name == "bundle.json.gz" else b""))
    read(path)  # small enough to be harmless
    monkeypatch.setattr(files, "UNPACKED_BYTES", 100_000)
    with pytest.raises(EhrseqError, match=r"holds more than .* GiB when it is unpacked") as error:
        read(path)
    assert (name in str(error.value)) == (name != "bundle.json.gz"), "a document may be called after its patient"


@pytest.mark.parametrize("name", ["data", "metadata/subject_splits.parquet", "metadata/codes.parquet"])
def test_data_that_ehrseq_wrote_is_read_as_it_was_written(sim_data: Path, tmp_path: Path, name: str) -> None:
    """A flipped bit, a cut or a missing file is refused: Parquet may see nothing."""
    data = Path(shutil.copytree(sim_data, tmp_path / "data"))
    path = next((data / name).rglob("*.parquet")) if name == "data" else data / name
    content = path.read_bytes()
    middle = len(content) // 3
    for spoilt in (content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :], content[:-9], None):
        path.unlink() if spoilt is None else path.write_bytes(spoilt)
        with pytest.raises(EhrseqError, match=f"{path.name}: (has changed|a file is missing|cannot be read)"):
            list(MedsReader(data))


# ---- Task files, MEDS schemas, OMOP tables and FHIR files that nobody would write: read, or refused with a clear error


ROOT = Path(__file__).parents[2]
FOLDERS = (Path(__file__).parent / "corpus", ROOT / "examples" / "tasks")
CORPUS = sorted(path for folder in FOLDERS for path in folder.iterdir() if path.suffix == ".yaml")
ODD = ["", "&a ", "*a", "!!python/name:os.system ", "{", "[" * 50, "\x1b[2J", "\0", ": ", "- ", "1e999", "re:("]
FUZZ = settings(max_examples=examples(160), deadline=None, suppress_health_check=list(HealthCheck))


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
    kinds=st.tuples(*[st.sampled_from(TYPES)] * 4),
    nulls=st.booleans(),
    rows=st.integers(0, 4),
    names=st.lists(st.sampled_from(["subject_id", "time", "code", "numeric_value", "x"]), min_size=4, max_size=4),
    usual=st.booleans(),
)
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
