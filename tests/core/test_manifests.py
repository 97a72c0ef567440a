"""Manifests: a folder that was damaged, altered or made by somebody hostile is refused, and never silently used."""

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_bytes, write_json
from ehrsequencing.core.outputs import (
    CHECKPOINT,
    MANIFEST,
    altered,
    complete_folder,
    read_manifest,
    save_manifest,
    write_manifest,
)
from ehrsequencing.prediction.run import add_to_run
from helpers.storage import SET, make_set


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
    assert name == MANIFEST
    assert changed == manifest, "only white space may change"


def make_run(folder: Path) -> Path:
    """A folder with one file that is needed and one that is not."""
    with complete_folder(folder, SET) as temporary:
        write_bytes(temporary / "model.bin", b"weights")
        write_bytes(temporary / "report.html", b"page")
        write_manifest(temporary, {**SET.facts, "kind": "my run"}, required=["model.bin"])
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
    assert (manifest["kind"], manifest["required"]) == ("my run", ["model.bin"])
    with pytest.raises(EhrseqError, match=r"report\.html: has changed since it was written"):
        add_to_run(folder, "report.html", lambda path: write_bytes(path, b"new page"))
    (folder / "report.html").unlink()
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
    "a path out": {"files": {"../secret": sha256(b"secret").hexdigest()}, "required": []},
    "an absolute path": {"files": {"/etc/hostname": "0"}, "required": []},
    "a path with NUL": {"files": {"a\0b": "0"}, "required": []},
    "a hash of another type": {"files": {"model.bin": ["0"], "report.html": "0"}},
    "the folder itself": {"files": {".": "0"}, "required": ["."]},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_manifest_is_refused(tmp_path: Path, kind: str) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "secret").write_bytes(b"secret")
    save_manifest(folder, read_json(folder / MANIFEST) | HOSTILE[kind])  # whoever is hostile can compute a digest
    with pytest.raises(EhrseqError, match=r"is damaged|names a file outside|has changed|is missing"):
        read_manifest(folder, what="a set")


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "3", "null", '{"files": {}, "files": {}}'])
def test_an_odd_manifest_is_refused(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / MANIFEST).write_text(text)
    with pytest.raises(EhrseqError, match="is damaged"):
        read_manifest(folder, what="a set")


@pytest.mark.parametrize(
    "change", [{"kind": "other"}, {"subjects": 3}, {"files": {}, "required": []}, {"digest": None}]
)
def test_an_edited_entry_of_a_manifest_is_seen(tmp_path: Path, change: dict[str, object]) -> None:
    folder = make_run(tmp_path / "run")
    facts = {name: value for name, value in (read_json(folder / MANIFEST) | change).items() if value is not None}
    write_json(folder / MANIFEST, facts)
    with pytest.raises(EhrseqError, match=r"manifest.json: has changed since it was written"):
        read_manifest(folder, what="a set")


@pytest.mark.parametrize("number", [0, 1, 2, 99, None, "3", True])
def test_another_format_is_refused_by_its_name(tmp_path: Path, number: object) -> None:
    write_manifest(tmp_path, CHECKPOINT.facts | {"format": number})
    with pytest.raises(EhrseqError, match=r"was made by ehrsequencing 1\.x, which alone reads it"):
        read_manifest(tmp_path, what="a checkpoint")
