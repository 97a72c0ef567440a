"""The one writer: outputs are complete or absent, nothing of somebody else is touched, and a kill loses nothing."""

import gzip
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import LOCK, atomic_path, locked, read_json, write_bytes, write_json
from ehrsequencing.core.outputs import (
    FORMAT,
    KIND_NOTE,
    MANIFEST,
    complete_folder,
    output_file,
    save_manifest,
    write_manifest,
)
from helpers.storage import SET, everything, in_a_process, make_set, snapshot

# ---- what may be replaced --------------------------------------------------------------------------------------------


def manifest_says(folder: Path, **facts: object) -> None:
    save_manifest(folder, {**read_json(folder / MANIFEST), **facts})


FOREIGN: dict[str, Callable[[Path], object]] = {
    "another file": lambda folder: (folder / "notes.txt").write_text("mine"),
    "another file deep down": lambda folder: (folder / "part" / "notes.txt").write_text("mine"),
    "an empty folder": lambda folder: (folder / "mine").mkdir(),
    "an edited file": lambda folder: (folder / "part" / "x.bin").write_bytes(b"mine"),
    "a link": lambda folder: (folder / "link").symlink_to("/etc"),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "another kind": lambda folder: manifest_says(folder, kind="run"),
    "a kind that is no text": lambda folder: manifest_says(folder, kind=["set"]),
    "another format": lambda folder: manifest_says(folder, format=FORMAT + 1),
    "no list of files": lambda folder: manifest_says(folder, files=None),
    "half a manifest": lambda folder: (folder / MANIFEST).write_text('{"kind": "set", "for'),
    "a manifest of a thousand brackets": lambda folder: (folder / MANIFEST).write_text("[" * 100_000),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_that_is_not_as_we_wrote_it_is_never_touched(tmp_path: Path, kind: str) -> None:
    make_set(tmp_path / "set", b"one")
    FOREIGN[kind](tmp_path / "set")
    before = snapshot(tmp_path)
    with pytest.raises(EhrseqError):
        make_set(tmp_path / "set", b"two")
    assert snapshot(tmp_path) == before


def test_what_appears_in_the_folder_meanwhile_is_kept(tmp_path: Path) -> None:
    make_set(tmp_path / "set", b"one")
    with pytest.raises(EhrseqError, match=r"'notes\.txt', which ehrseq did not write"):
        make_set(tmp_path / "set", b"two", then=lambda: (tmp_path / "set" / "notes.txt").write_text("mine") and None)
    assert set(everything(tmp_path)) == {"set/manifest.json", "set/part/x.bin", "set/notes.txt"}


def make_file(out: Path, content: bytes, *, overwrite: bool = True) -> None:
    with output_file(out, SET, overwrite=overwrite) as temporary:
        temporary.write_bytes(content)


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_a_file_is_replaced_only_if_it_is_of_the_same_kind(tmp_path: Path, name: str) -> None:
    packed = gzip.compress if name.endswith(".gz") else bytes
    out = tmp_path / "a" / name
    make_file(out, packed(b"a set of one"), overwrite=False)
    with pytest.raises(EhrseqError, match=r"is there already .*--overwrite"):
        make_file(out, b"two", overwrite=False)
    make_file(out, packed(b"a set of two, " + b"2" * 10_000))
    make_file(out, packed(b"a set of three"))
    assert set(everything(tmp_path)) == {f"a/{name}"}, "nothing is written beside it"
    for strange in (packed(b"mine"), packed(b"-" * 10_000 + b"a set of "), b"", packed(b"mine")[:-1] + b"?"):
        out.write_bytes(strange)
        with pytest.raises(EhrseqError, match="is not a set that ehrseq wrote"):
            make_file(out, b"four")
        assert out.read_bytes() == strange


@pytest.mark.parametrize("notes", [None, {}, {"ehrsequencing.kind": "run"}, {"ehrsequencing.version": "2.0"}])
def test_a_parquet_file_names_its_kind_in_its_metadata(tmp_path: Path, notes: dict[str, str] | None) -> None:
    out, table = tmp_path / "x.parquet", pa.table({"a set of ": [1]})
    pq.write_table(table.replace_schema_metadata({KIND_NOTE: SET.name}), out)
    make_file(out, b"a set of no Parquet")
    with pytest.raises(EhrseqError, match="is not a set that ehrseq wrote"):
        make_file(out, b"three")
    pq.write_table(table.replace_schema_metadata(notes), out)
    before = everything(tmp_path)
    with pytest.raises(EhrseqError, match="is not a set that ehrseq wrote"):
        make_file(out, b"three")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("target", ["a set", "an empty folder", "nothing"])
def test_a_link_is_no_output(tmp_path: Path, target: str) -> None:
    if target == "a set":
        make_set(tmp_path / "disk", b"one")
    elif target == "an empty folder":
        (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    before = everything(tmp_path)
    for make in (make_set, make_file):
        with pytest.raises(EhrseqError, match="is a link"):
            make(tmp_path / "link", b"two")
    assert everything(tmp_path) == before


def test_a_link_in_a_folder_of_ours_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A stranger may have put it there."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", [".", "..", "/", "a/..", "x" * 300, "file/below"])
def test_an_output_needs_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for make in (lambda: make_set(Path(name), b"one"), lambda: write_bytes(Path(name), b"one")):
        with pytest.raises(EhrseqError, match=r"is not a name|cannot be written"):
            make()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_new_folder_that_cannot_get_its_name_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_set(tmp_path / "set", b"one")
    before, replace = everything(tmp_path), os.replace

    def refuse_new(source: Path, target: Path) -> None:
        if target.name == "set" and source.name.startswith(".tmp-"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_new)
    with pytest.raises(EhrseqError, match="No space left on device"):
        make_set(tmp_path / "set", b"two", then=lambda: None)
    assert everything(tmp_path) == before


# ---- kills, orphans and locks ----------------------------------------------------------------------------------------


def test_no_kill_loses_the_old_folder_and_the_new_one(tmp_path: Path) -> None:
    command, env = in_a_process("print(kill_everywhere(Path(sys.argv[1])))")
    done = subprocess.run([*command, tmp_path / "sets"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4


def test_the_next_write_removes_orphans_whose_lock_is_free_and_no_others(tmp_path: Path) -> None:
    for orphan in ("0", "1"):
        (tmp_path / f".tmp-{orphan * 16}").write_bytes(b"half")
        (tmp_path / f".tmp-{orphan * 16}.lock").touch()
    (tmp_path / ".tmp-notes.lock").touch()  # not called as ours are
    with filelock.FileLock(tmp_path / f".tmp-{'1' * 16}.lock"):
        write_bytes(tmp_path / "x", b"whole")
        assert set(everything(tmp_path)) == {f".tmp-{'1' * 16}", f".tmp-{'1' * 16}.lock", ".tmp-notes.lock", "x"}
    write_bytes(tmp_path / "x", b"again")
    assert set(everything(tmp_path)) == {".tmp-notes.lock", "x"}


HOLD = "from ehrsequencing.core.files import locked\n"
HOLD += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder's lock until its input ends, or it is killed."""
    command, env = in_a_process(HOLD)
    with subprocess.Popen([*command, folder], env=env, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_one_process_writes_a_folder_until_it_dies(tmp_path: Path) -> None:
    out = tmp_path / "set"
    with holding(out):
        with pytest.raises(EhrseqError, match="set: is being written by another process"), locked(out):
            pass
        with locked(tmp_path / "other"):  # another output is free
            pass
    assert (out / LOCK).is_file(), "a killed process cannot remove its file"
    with holding(out) as other:
        assert other.stdin is not None
        other.stdin.close()
        with locked(out, wait_seconds=30), locked(out):
            pass
    assert everything(tmp_path) == {}


# ---- how it is written -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_only_the_owner_reads_temporaries_and_final_files_have_the_usual_mode(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with complete_folder(tmp_path / "set", SET) as temporary:
            assert mode(temporary) == 0o700
            with atomic_path(temporary / "x") as file:
                file.write_bytes(b"a patient's")
                assert mode(file) == 0o600
            write_manifest(temporary, SET.facts)
        assert mode(tmp_path / "set") == 0o777 & ~umask
        assert mode(tmp_path / "set" / "x") == 0o666 & ~umask
        (tmp_path / "set").chmod(0o700)
        make_set(tmp_path / "set", b"two")
        assert mode(tmp_path / "set") == 0o700, "what its owner has closed is not opened again"
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_failure_leaves_the_earlier_file_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "x.json", 1)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", float("nan"))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(EhrseqError, match="No space left on device"):
        write_json(tmp_path / "x.json", 2)
    assert everything(tmp_path) == {"x.json": b"1\n"}


def test_temporaries_never_enter_a_manifest(tmp_path: Path) -> None:
    draft = f".tmp-{'a' * 16}"
    for name in (draft, f"part/{draft}", f"{'.tmp-' + 'b' * 16}/inside", "x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    write_manifest(tmp_path, SET.facts)
    assert list(read_json(tmp_path / MANIFEST)["files"]) == ["x"]
