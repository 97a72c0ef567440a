"""Folders and files of strangers: nothing is executed, no memory is taken, and the answer is one clear error."""

import gzip
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ehrsequencing.core import files
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, sha256
from ehrsequencing.core.outputs import MANIFEST, save_manifest
from ehrsequencing.prediction.run import Run
from ehrsequencing.readers.fhir.reader import fhir_files
from ehrsequencing.readers.table_files import BLOCK_BYTES, open_table
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.labels import read_index_times
from ehrsequencing.records.meds import MedsReader

# Calls that run what a file holds (pickle, eval, torch.load …) are banned by ruff (pyproject.toml).

# ---- model folders ---------------------------------------------------------------------------------------------------


def tensors(header: bytes | dict[str, object], body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
FILES: dict[str, tuple[str, bytes, str]] = {
    "an absurd shape": ("model.safetensors", tensors(
        {"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 4]}}, b"\0" * 4), "not a safetensors"),
    "a deep header": ("model.safetensors", tensors(b"[" * 100_000), "not a safetensors"),
    "a deep vocabulary": ("vocabulary.json", b'{"a":' * 100_000, "nested too deeply"),
    "an object of Python": ("config.yaml", b'!!python/object/apply:os.system ["touch /tmp/ehrseq-executed"]', "YAML"),
    "a bomb of aliases": ("config.yaml", BOMB.encode(), "has an alias"),
}  # fmt: skip


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


@pytest.mark.parametrize(("pattern", "yes", "no"), [
    ("re:a|bc", ["a", "bc"], ["ac", "abc", "b"]), ("re:(?i)icd.*", ["ICD10//I50"], ["xICD"]),
    (r"re:DX//\d{2}\.?", ["DX//12", "DX//12."], ["DX//123"]), ("re:é.", ["éa"], ["e"]), ("re:", [""], ["a"]),
])  # fmt: skip
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
}  # fmt: skip


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
