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
