"""Files are whole or absent, and changed bytes are seen."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.errors import EhrseqError
from ehrsequencing.storage import (
    MANIFEST,
    ArrayWriter,
    add_to_run,
    altered,
    atomic_path,
    complete_folder,
    read_json,
    read_manifest,
    sweep_temporaries,
    write_bytes,
    write_json,
    write_manifest,
)


def everything(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    before = everything(tmp_path)

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        fail()
    assert everything(tmp_path) == before
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, float("nan"))
    assert read_json(path) == {"a": 1}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_a_refusing_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    write_bytes(tmp_path / "x", b"old")

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(EhrseqError, match=str(error.strerror)):
        write_bytes(tmp_path / "x", b"new")
    assert everything(tmp_path) == {"x": b"old"}


def make_set(folder: Path, content: bytes) -> None:
    with complete_folder(folder, what="a set") as temporary:
        write_bytes(temporary / "part" / "x.bin", content)
        write_manifest(temporary, {"kind": "set"})


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    make_set(folder, b"one")
    before = everything(tmp_path)

    def fail() -> None:
        with complete_folder(folder, what="a set") as temporary:
            (temporary / "x").write_bytes(b"two")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert everything(tmp_path) == before
    make_set(folder, b"two")
    assert (folder / "part" / "x.bin").read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "thesis.txt").write_text("years of work")
    with pytest.raises(EhrseqError, match="not empty"):
        make_set(tmp_path / "set", b"one")
    assert everything(tmp_path) == {"set/thesis.txt": b"years of work"}


@settings(max_examples=60)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7), name=st.sampled_from(["part/x.bin", MANIFEST]))
def test_a_flipped_bit_is_never_silent(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int, name: str
) -> None:
    folder = tmp_path_factory.mktemp("flip") / "set"
    make_set(folder, bytes(range(200)))
    manifest = read_manifest(folder, what="a set")
    path = folder / name
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(bytes(data))
    try:
        changed = read_manifest(folder, what="a set")
    except EhrseqError:
        return
    assert name == MANIFEST  # only white space or a fact of the manifest itself can change without breaking a hash
    assert changed["files"] == manifest["files"]


@pytest.mark.parametrize("damage", ["missing manifest", "missing file", "truncated", "escape"])
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "set"
    make_set(folder, b"content")
    if damage == "missing manifest":
        (folder / MANIFEST).unlink()
    elif damage == "missing file":
        (folder / "part" / "x.bin").unlink()
    elif damage == "truncated":
        (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-9])
    else:
        (tmp_path / "secret").write_bytes(b"content")
        manifest = read_json(folder / MANIFEST)
        manifest["files"]["../secret"] = manifest["files"].pop("part/x.bin")
        write_json(folder / MANIFEST, manifest)
    with pytest.raises(EhrseqError):
        read_manifest(folder, what="a set")


def make_run(folder: Path) -> Path:
    """A folder with one file that is needed and one that is not."""
    with complete_folder(folder, what="a set") as temporary:
        write_bytes(temporary / "model.bin", b"weights")
        write_bytes(temporary / "report.html", b"page")
        write_manifest(temporary, {"kind": "run"}, required=["model.bin"])
    return folder


def test_a_file_that_nothing_needs_may_be_deleted_or_edited(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert altered(folder, read_manifest(folder, what="a set")) == {}
    (folder / "report.html").write_bytes(b"my page")
    assert altered(folder, read_manifest(folder, what="a set")) == {"report.html": "has changed since it was written"}
    (folder / "report.html").unlink()
    assert altered(folder, read_manifest(folder, what="a set")) == {"report.html": "is missing"}
    (folder / "model.bin").write_bytes(b"Weights")
    with pytest.raises(EhrseqError, match=r"model.bin: has changed since it was written"):
        read_manifest(folder, what="a set")
    (folder / "model.bin").unlink()
    with pytest.raises(EhrseqError, match=r"model.bin: a file is missing"):
        read_manifest(folder, what="a set")


def test_a_file_that_is_added_leaves_what_is_known_of_the_others(tmp_path: Path) -> None:
    """An edited file does not become ours because another one is written."""
    folder = make_run(tmp_path / "run")
    (folder / "report.html").write_bytes(b"my page")
    add_to_run(folder, "metrics.json", lambda path: write_json(path, {"c": 0.7}))
    manifest = read_manifest(folder, what="a set")
    assert list(altered(folder, manifest)) == ["report.html"]
    assert set(manifest["files"]) == {"metrics.json", "model.bin", "report.html"}
    assert (manifest["kind"], manifest["required"]) == ("run", ["model.bin"])
    add_to_run(folder, "report.html", lambda path: write_bytes(path, b"new page"))
    assert altered(folder, read_manifest(folder, what="a set")) == {}

    def fail(_: Path) -> None:
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        add_to_run(folder, "metrics.json", fail)
    assert "metrics.json" not in read_manifest(folder, what="a set")["files"]


HOSTILE = {
    "no files": {"files": 3},
    "a list of files": {"files": ["model.bin"]},
    "required is text": {"required": "model.bin"},
    "required is not listed": {"required": ["other.bin"]},
    "required is a number": {"required": [7]},
    "a path out": {"files": {"../secret": "0"}, "required": []},
    "an absolute path": {"files": {"/etc/hostname": "0"}, "required": []},
    "a path with NUL": {"files": {"a\0b": "0"}, "required": []},
    "a hash of another type": {"files": {"model.bin": ["0"], "report.html": "0"}},
    "the folder itself": {"files": {".": "0"}, "required": ["."]},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_manifest_is_refused(tmp_path: Path, kind: str) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "secret").write_bytes(b"secret")
    write_json(folder / MANIFEST, read_json(folder / MANIFEST) | HOSTILE[kind])
    with pytest.raises(EhrseqError, match="run"):
        read_manifest(folder, what="a set")


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "3", "null", '{"files": {}, "files": {}}'])
def test_an_odd_manifest_is_refused(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / MANIFEST).write_text(text)
    with pytest.raises(EhrseqError, match="is damaged"):
        read_manifest(folder, what="a set")


@pytest.mark.parametrize("name", [".", "..", "/", "a/..", "x" * 300, "file/below"])
def test_an_output_needs_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for make in (lambda: make_set(Path(name), b"one"), lambda: write_bytes(Path(name), b"one")):
        with pytest.raises(EhrseqError, match=r"no name|cannot be written"):
            make()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_orphans_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-x").write_bytes(b"half")
    (tmp_path / ".tmp-1-y").mkdir()
    (tmp_path / "x").write_bytes(b"whole")
    sweep_temporaries(tmp_path)
    assert everything(tmp_path) == {"x": b"whole"}


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=6))
def test_appended_rows_read_back(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[int]]) -> None:
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    with ArrayWriter(path, np.int64, (2,)) as writer:
        for block in blocks:
            writer.append(np.repeat(np.array(block, dtype=np.int64), 2).reshape(-1, 2))
    flat = [value for block in blocks for value in block]
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), np.repeat(flat, 2).reshape(-1, 2))
