"""Files that are whole or absent: atomic writes, streamed arrays, and manifests with hashes.

Every file goes to a temporary name in its own folder, is fsynced and renamed, and the folder is fsynced. A folder's
`manifest.json` is written last and lists the sha256 of every file: without a complete manifest nothing is loaded.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import yaml
from numpy.typing import DTypeLike, NDArray

from ehrsequencing.config import BadText, Settings, parse_json
from ehrsequencing.errors import EhrseqError

MANIFEST = "manifest.json"
HISTORY = "history.jsonl"  # of a run: one line an epoch
# All of a run that prediction needs; its other files may be deleted or edited.
RUN_NEEDS = ("config.json", "config.yaml", "model.safetensors", "vocabulary.json", "vocabulary.safetensors")
_TEMPORARY = ".tmp-"


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`, on any failure it is removed.

    Raises:
        EhrseqError: The disk refused (full, read-only, no permission); what stood at `path` still stands.
    """
    require_name(path)
    if path.is_dir():
        raise EhrseqError("cannot be written", where=str(path), mend="it is a folder: name a file")
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _fsync_folder(path.parent)
    except OSError as error:
        raise EhrseqError("cannot be written", where=str(path), mend=error.strerror or "check the disk") from error
    finally:
        temporary.unlink(missing_ok=True) if temporary.parent.is_dir() else None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically; NaN is refused, since other programs cannot read it."""
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=False, allow_nan=False) + "\n").encode())


def write_settings(path: Path, settings: Settings, *, only: set[str] | None = None) -> None:
    """Write settings, or some of their sections, as YAML; durations are days."""
    data = settings.model_dump(mode="json", include=only, exclude_none=True)
    write_bytes(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode())


def read_json(path: Path) -> Any:
    """Read JSON, with a clear error."""
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise EhrseqError("cannot be read", where=str(path), mend=error.strerror or "check the path") from error
    except BadText as error:
        raise EhrseqError(f"is damaged: it {error.what}", where=str(path), mend="make this file again") from error


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with one JSON value a line, with a clear error."""
    try:
        return [parse_json(line) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise EhrseqError("cannot be read", where=str(path), mend=error.strerror or "check the path") from error
    except BadText as error:
        raise EhrseqError(f"is damaged: it {error.what}", where=str(path), mend="make this file again") from error


def require_name(path: Path) -> None:
    """Refuse an output path that nothing can be renamed to: `.`, `..`, `/`, or one that the system cannot hold.

    Raises:
        EhrseqError: Says so before any work is done.
    """
    if path.name in ("", ".."):
        mend = "name a file or folder to make, as in --out results"
        raise EhrseqError("is no name for an output", where=str(path), mend=mend)
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # no permission, too long, or a file stands where a folder should
        raise EhrseqError("cannot be written", where=str(path), mend=error.strerror or "check the path") from error


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EhrseqError("cannot be read", where=str(path), mend=error.strerror or "check the disk") from error


def digest(value: object) -> str:
    """Short stable hash of a JSON-like value (configurations, vocabularies, label sets)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def sweep_temporaries(folder: Path) -> None:
    """Remove what an interrupted write left behind."""
    for orphan in folder.rglob(f"{_TEMPORARY}*"):
        orphan.unlink() if orphan.is_file() else shutil.rmtree(orphan, ignore_errors=True)


def write_manifest(
    folder: Path, facts: Mapping[str, Any], *, files: list[Path] | None = None, required: Sequence[str] | None = None
) -> None:
    """Hash the folder's files and write the manifest last, which makes the folder complete.

    Args:
        folder: The folder.
        facts: What else the manifest tells.
        files: The files to list; by default all.
        required: Names of the files without which, or with other bytes in which, the folder is refused. The others may
            be deleted and edited. By default every file is required.
    """
    chosen = files if files is not None else [p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST]
    hashes = {p.relative_to(folder).as_posix(): sha256(p) for p in sorted(chosen)}
    needs = {} if required is None else {"required": sorted(required)}
    write_json(folder / MANIFEST, {**facts, **needs, "files": hashes})


def add_to_run(folder: Path, name: str, write: Callable[[Path], None]) -> None:
    """Write a file into a finished run, so that the run is valid at every moment: unlist, write, list.

    What the manifest says of the other files stays as it is: a file that somebody has edited does not become ours.
    """
    manifest = read_json(folder / MANIFEST)
    others = {listed: known for listed, known in manifest["files"].items() if listed != name}
    write_json(folder / MANIFEST, {**manifest, "files": others})
    write(folder / name)
    write_json(folder / MANIFEST, {**manifest, "files": {**others, name: sha256(folder / name)}})


def read_manifest(folder: Path, *, what: str, verify: bool = True) -> dict[str, Any]:
    """Read a complete manifest and check the hash of every required file.

    Args:
        folder: The folder that the manifest describes.
        what: What the folder should be ("a prepared data set"), for the message.
        verify: Whether to hash the files; a flipped bit is otherwise silent in most of a Parquet file.

    Raises:
        EhrseqError: No manifest, a damaged one, a required file that is missing, or one whose bytes have changed.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise EhrseqError(
            f"is not {what}, or was interrupted before it was complete", where=str(folder), mend="make it again"
        )
    manifest: dict[str, Any] = read_json(path)
    is_whole = isinstance(manifest, dict) and isinstance(manifest.get("files"), dict)
    required = manifest.get("required", list(manifest["files"])) if is_whole else None
    if not isinstance(required, list) or not all(name in manifest["files"] for name in map(str, required)):
        raise EhrseqError("is damaged", where=str(path), mend="make the folder again")
    for name in manifest["files"]:
        if not _is_inside(folder / name, folder):
            raise EhrseqError("names a file outside its folder", where=str(path), mend="do not trust this folder")
    for name in map(str, required):
        file = folder / name
        if not file.is_file():
            raise EhrseqError("a file is missing", where=str(file), mend="make the folder again")
        if verify and sha256(file) != manifest["files"][name]:
            raise EhrseqError("has changed since it was written", where=str(file), mend="make the folder again")
    return manifest


def require_facts(folder: Path, manifest: Mapping[str, Any], facts: Mapping[str, type]) -> None:
    """Refuse a manifest that lacks a fact, or has one of another type than `facts` names."""
    for name, kind in facts.items():
        if not isinstance(manifest.get(name), kind):
            where = str(folder / MANIFEST)
            raise EhrseqError(f"is damaged: it does not tell {name!r}", where=where, mend="make the folder again")


def _is_inside(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # no name of a file, or links in a circle
        return False


def altered(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Files that nothing needs (`required` of the manifest) and that are not as they were written.

    Args:
        folder: The folder.
        manifest: Its manifest, as `read_manifest` gave it.

    Returns:
        Name → `is missing` or `has changed since it was written`.
    """
    found = {}
    for name in set(manifest["files"]) - set(manifest.get("required", manifest["files"])):
        if not (folder / name).is_file():
            found[name] = "is missing"
        elif sha256(folder / name) != manifest["files"][name]:
            found[name] = "has changed since it was written"
    return dict(sorted(found.items()))


@contextmanager
def complete_folder(folder: Path, *, what: str) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` when the block succeeds, and vanishes when it fails.

    A complete earlier `folder` is replaced in one rename; a folder that is not ours is refused.
    """
    require_name(folder)
    if folder.exists() and not folder.is_dir():
        raise EhrseqError("is a file", where=str(folder), mend="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise EhrseqError(f"is not empty and not {what}", where=str(folder), mend="name another output folder")
    temporary = folder.with_name(f"{_TEMPORARY}{os.getpid()}-{folder.name}")
    old = folder.with_name(f"{_TEMPORARY}{os.getpid()}-old-{folder.name}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if folder.exists():
            os.replace(folder, old)
        os.replace(temporary, folder)
        _fsync_folder(folder.parent)
    except OSError as error:
        raise EhrseqError("cannot be written", where=str(folder), mend=error.strerror or "check the disk") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


class ArrayWriter:
    """Append rows to a `.npy` file without knowing their number in advance.

    NumPy leaves room in the header for the first axis to grow, so the header is written again on close.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x.npy"
    >>> with ArrayWriter(path, np.int32) as writer:
    ...     writer.append(np.arange(3)); writer.append(np.arange(2))
    >>> np.load(path).tolist()
    [0, 1, 2, 0, 1]
    """

    def __init__(self, path: Path, dtype: DTypeLike, columns: tuple[int, ...] = ()) -> None:
        self.dtype, self.columns, self.rows = np.dtype(dtype), columns, 0
        self.last: Any = None  # the last row written
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 (closed by __exit__)
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, {**header, "shape": (self.rows, *self.columns)})

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows along the first axis."""
        self._file.write(np.ascontiguousarray(rows, dtype=self.dtype).data)
        self.rows += len(rows)
        self.last = rows[-1] if len(rows) else self.last

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self._file.seek(0)
            self._write_header()
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
