"""Atomic writes of files and folders, and manifests with hashes, so that an output is complete or absent.

A file is written under a temporary name in its folder, flushed to the disk and renamed; then the folder is flushed.
A folder's `manifest.json` is written last and lists the SHA-256 of every file and of itself. No folder is loaded
without it. A command replaces a file or folder only if ehrseq wrote it and nothing was added to it, and holds the
folder's lock meanwhile (`locks.py`). The next write recovers what a killed process left (`temporaries.py`).
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.locks import locked
from ehrsequencing.core.output_kinds import KINDS, MANIFEST, Kind
from ehrsequencing.core.replacing import is_mounted, must_stay, replace_content, replace_folder
from ehrsequencing.core.temporaries import (
    INSIDE,
    entries,
    fsync,
    is_inside_one,
    is_temporary,
    make_folders,
    private,
    recover_for,
    temporary_name,
)
from ehrsequencing.core.text import BadText, parse_json

_AGAIN = "make the folder again"
_HASHING = 4  # files that are hashed at once
_DIGEST = "digest"  # entry of a manifest: the hash of all others


@contextmanager
def _disk_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one that names the path."""
    try:
        yield
    except OSError as error:
        raise EhrseqError(
            what, where=str(path), fix=error.strerror or "check the path and the disk"
        ) from error


@contextmanager
def atomic_path(path: Path, *, owner_only: bool = False, follow: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside `path`. On success it becomes `path`; on failure it is removed.

    Until then, only its owner can read it; with `owner_only` (mode 600), after it too.

    Args:
        path: The file; its folder is made.
        owner_only: Whether nobody else may read it.
        follow: Whether a link stays, and its target is replaced: for files that the user names. In a folder of ours
            a link is replaced, since a stranger may have put it there.

    Raises:
        EhrseqError: The disk refused (full, read-only, no permission), the path is a mount point, or its links go in a
            circle. The earlier file at `path` is untouched.
    """
    require_name(path)
    if path.is_dir():
        raise EhrseqError("cannot be written", where=str(path), fix="it is a folder: name a file")
    _require_replaceable(path)
    given, path = path, Path(os.path.realpath(path)) if follow else path
    temporary = temporary_name(path, "new")
    with _disk_errors("cannot be written", given):
        make_folders(path.parent)
        recover_for(path)
        with private(temporary, like=path) as mode:
            yield temporary
            temporary.chmod(0o600 if owner_only else mode)
            if is_inside_one(path):  # `complete_folder` flushes all of its files at its end
                os.replace(temporary, path)
                return
            fsync(temporary)
            os.replace(temporary, path)
        fsync(path.parent)


def _require_replaceable(path: Path) -> None:
    """Refuse, before any work is done, a file that no rename can replace.

    Raises:
        EhrseqError: It is a mount point, or its links go in a circle.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise EhrseqError(
            "cannot be written", where=str(path), fix="its links go in a circle: name another file"
        )
    if target.is_file() and is_mounted(target):
        what = "is a file that is mounted, which cannot be replaced in one step"
        raise EhrseqError(what, where=str(path), fix="mount its folder, and name a file in it")


def refuse_foreign_file(path: Path, is_ours: Callable[[Path], bool]) -> None:
    """Refuse to overwrite a file that ehrseq did not write.

    Raises:
        EhrseqError: Something is there, and `is_ours` does not recognise it; or nothing can replace it.
    """
    _require_replaceable(path)
    if path.exists() and not (path.is_file() and is_ours(path)):
        fix = "name another file, or remove this one"
        raise EhrseqError("is there already, and ehrseq did not write it", where=str(path), fix=fix)


def refuse_overlap(out: Path, *inputs: Path) -> None:
    """Refuse an output that is, contains or lies inside an input; links are followed.

    Raises:
        EhrseqError: They overlap.
    """
    for given in inputs:
        if given.exists() and (_is_among(given, _up(out)) or _is_among(out, _up(given))):
            fix = "name an output folder outside the input that does not contain it"
            raise EhrseqError(f"the output overlaps the input {given}", where=str(out), fix=fix)


def _up(path: Path) -> list[Path]:
    target = Path(os.path.realpath(path))
    return [target, *target.parents]


def _is_among(path: Path, others: list[Path]) -> bool:
    return path.exists() and any(other.exists() and path.samefile(other) for other in others)


def write_bytes(path: Path, data: bytes, *, owner_only: bool = False, follow: bool = False) -> None:
    """Write a file atomically; arguments as of `atomic_path`."""
    with atomic_path(path, owner_only=owner_only, follow=follow) as temporary:
        temporary.write_bytes(data)


def write_json(
    path: Path, value: object, *, owner_only: bool = False, follow: bool = False
) -> None:
    """Write JSON atomically. NaN raises an error, since other programs cannot read it."""
    text = json.dumps(value, indent=1, sort_keys=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode(), owner_only=owner_only, follow=follow)


def write_settings(path: Path, settings: BaseModel, *, only: set[str] | None = None) -> None:
    """Write settings, or only some of their sections, as YAML with durations in days."""
    data = settings.model_dump(mode="json", include=only, exclude_none=True)
    write_bytes(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        EhrseqError: The file cannot be read, or is not JSON.
    """
    return _parsed(path, parse_json)


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with one JSON value per line; errors as of `read_json`."""
    values: list[Any] = _parsed(path, lambda data: [parse_json(line) for line in data.splitlines()])
    return values


def _parsed(path: Path, parse: Callable[[bytes], Any]) -> Any:
    try:
        with _disk_errors("cannot be read", path):
            return parse(path.read_bytes())
    except BadText as error:
        raise EhrseqError(
            f"is damaged: it {error.what}", where=str(path), fix="make this file again"
        ) from error


def require_name(path: Path) -> None:
    """Refuse, before any work is done, an output path that nothing can be renamed to.

    Raises:
        EhrseqError: It is `.`, `..` or `/`, or the file system cannot hold it.
    """
    if path.name in ("", ".."):
        fix = "name a file or folder to make, as in --out results"
        raise EhrseqError("is not a name for an output", where=str(path), fix=fix)
    with _disk_errors("cannot be written", path), suppress(FileNotFoundError):
        path.lstat()  # fails without permission, for a name that is too long, or where a parent is a file


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with _disk_errors("cannot be read", path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: object) -> str:
    """Short stable hash of a JSON-like value (configurations, vocabularies, label sets)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def write_manifest(
    folder: Path,
    facts: Mapping[str, Any],
    *,
    files: list[Path] | None = None,
    required: Sequence[str] | None = None,
) -> None:
    """Hash the files of a folder and write its manifest last, which makes it complete.

    Args:
        folder: The folder.
        facts: Entries of the manifest, `Kind.facts` first.
        files: Which files to list; default: all. Temporaries are never listed.
        required: Names of the files that must stay as they are for the folder to load. The others may be deleted or
            edited. By default every file is required.
    """
    chosen = (
        files
        if files is not None
        else [p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST]
    )
    listed = sorted(
        p for p in chosen if not any(map(is_temporary, (p, *p.relative_to(folder).parents)))
    )
    needs = {} if required is None else {"required": sorted(required)}
    names = [path.relative_to(folder).as_posix() for path in listed]
    with ThreadPoolExecutor(_HASHING) as threads:
        hashes = dict(zip(names, threads.map(sha256, listed), strict=True))
    save_manifest(folder, {**facts, **needs, "files": hashes})


def save_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest with the digest of its own entries, which tells whether one of them has changed."""
    content = json.loads(
        json.dumps({name: value for name, value in manifest.items() if name != _DIGEST})
    )
    write_json(folder / MANIFEST, {**content, _DIGEST: _own_digest(content)})


def _own_digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, *, what: str, verify: bool = True) -> dict[str, Any]:
    """Read a complete manifest and check its own digest and the hash of every required file.

    Args:
        folder: The folder that the manifest describes.
        what: What the folder should be ("a prepared data set"), for the message.
        verify: Whether to hash the files. Otherwise a flipped bit is silent in most of a Parquet file.

    Raises:
        EhrseqError: The manifest is missing or damaged, or a required file is missing or has changed.
    """
    path = folder / MANIFEST
    if not path.is_file():
        what = f"is not {what}, or was interrupted before it was complete"
        raise EhrseqError(what, where=str(folder), fix="make it again")
    manifest = _whole_manifest(path)
    required = manifest.get("required", list(manifest["files"]))
    if not isinstance(required, list) or not all(
        name in manifest["files"] for name in map(str, required)
    ):
        raise EhrseqError("is damaged", where=str(path), fix=_AGAIN)
    kind = next((known for known in KINDS if known.name == manifest.get("kind")), None)
    if lost := [name for name in (kind.needs if kind else ()) if name not in required]:
        raise EhrseqError(f"is damaged: it does not list {lost[0]}", where=str(path), fix=_AGAIN)
    for name in manifest["files"]:
        if not _is_inside(folder / name, folder):
            raise EhrseqError(
                "names a file outside its folder", where=str(path), fix="do not trust this folder"
            )
    for name in map(str, required):
        if not (folder / name).is_file():
            raise EhrseqError("a file is missing", where=str(folder / name), fix=_AGAIN)
        if verify:
            require_unchanged(folder, manifest, name)
    return manifest


def require_unchanged(
    folder: Path, manifest: Mapping[str, Any], name: str, *, fix: str = _AGAIN
) -> None:
    """Refuse a file that has changed since a manifest listed it; one that it does not list passes.

    Raises:
        EhrseqError: Its bytes are others.
    """
    if name in manifest["files"] and sha256(folder / name) != manifest["files"][name]:
        raise EhrseqError("has changed since it was written", where=str(folder / name), fix=fix)


def _whole_manifest(path: Path) -> dict[str, Any]:
    """A manifest whose entries are as they were written, in a format that this version reads."""
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise EhrseqError("is damaged", where=str(path), fix=_AGAIN)
    noted = manifest.pop(_DIGEST, None)
    if noted is None and manifest.get("format") == 1:
        return manifest  # of a version that wrote no digest
    if noted != _own_digest(manifest):
        raise EhrseqError("has changed since it was written", where=str(path), fix=_AGAIN)
    kind = next((known for known in KINDS if known.name == manifest.get("kind")), None)
    if kind is not None and not kind.is_of(manifest):
        what = f"has format {manifest.get('format')!r}, and ehrseq reads {kind.what} up to {kind.format}"
        raise EhrseqError(
            what, where=str(path), fix="use the version of ehrseq that wrote it, or make it again"
        )
    return manifest


def require_facts(folder: Path, manifest: Mapping[str, Any], facts: Mapping[str, type]) -> None:
    """Refuse a manifest that lacks an entry of `facts` (name → type), or has it with another type."""
    for name, kind in facts.items():
        if not isinstance(manifest.get(name), kind):
            where = str(folder / MANIFEST)
            raise EhrseqError(
                f"is damaged: its entry {name!r} is missing or invalid", where=where, fix=_AGAIN
            )


def _is_inside(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # an impossible name, or links in a circle
        return False


def altered(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Files outside `required` that were deleted or edited: name → `is missing` or `has changed since …`."""
    found = {}
    for name in set(manifest["files"]) - set(manifest.get("required", manifest["files"])):
        if not (folder / name).is_file():
            found[name] = "is missing"
        elif sha256(folder / name) != manifest["files"][name]:
            found[name] = "has changed since it was written"
    return dict(sorted(found.items()))


def refuse_foreign_folder(folder: Path, kind: Kind) -> None:
    """Refuse to replace anything but an empty folder or one of this kind that ehrseq wrote, with nothing added.

    Raises:
        EhrseqError: It is a file, its manifest is not of this kind, or it holds something that its manifest lacks.
    """
    target = Path(os.path.realpath(folder))  # `missing/..` exists even where `missing` does not
    if target.exists() and not target.is_dir():
        raise EhrseqError("is a file", where=str(folder), fix="name a folder")
    if target.is_dir() and entries(target) and (why := _why_foreign(target, kind)):
        fix = "nothing was touched; name another output folder, or remove this one"
        raise EhrseqError(why, where=str(folder), fix=fix)


def _why_foreign(folder: Path, kind: Kind) -> str | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        manifest = {"files": {}}
    if manifest.get("kind") != kind.name:
        other = [known.what for known in KINDS if known.name == manifest.get("kind")]
        return (
            f"holds {other[0]}, not {kind.what}"
            if other
            else f"is not empty, and not {kind.what} that ehrseq made"
        )
    if not kind.is_of(manifest):
        return f"holds {kind.what} of another version of ehrseq"
    strange = _unlisted(folder, manifest["files"])
    return f"holds {strange!r}, which ehrseq did not write" if strange else None


def _unlisted(folder: Path, files: Mapping[str, Any]) -> str | None:
    """The first file, folder or link in a folder that its manifest does not list."""
    known = {MANIFEST, *files}
    known |= {parent.as_posix() for name in files for parent in Path(name).parents}

    def fail(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=fail):
        if Path(here) == folder:
            mine = {path.name for path in entries(folder)}
            folders[:], names[:] = (
                [name for name in found if name in mine] for found in (folders, names)
            )
        for name in sorted([*folders, *names]):
            path = Path(here) / name
            inside = path.relative_to(folder).as_posix()
            if inside not in known or path.is_symlink():
                return inside
    return None


@contextmanager
def complete_folder(folder: Path, kind: Kind) -> Iterator[Path]:
    """Yield a temporary folder. On success it becomes `folder`; on failure it is removed.

    For a link, its target is replaced. For a mount point or the working directory, the content is replaced. Even if
    the process is killed, the earlier folder or the new one is there, or is recovered by the next write.

    Args:
        folder: The output; its parents are made.
        kind: Its kind. An earlier folder of this kind is replaced if it holds nothing else.

    Raises:
        EhrseqError: The folder is not one to replace, another process is writing it, or the disk refused.
    """
    with _disk_errors("cannot be written", folder):
        target = Path(os.path.realpath(folder))
        recover_for(target)
        refuse_foreign_folder(folder, kind)
    with locked(folder), _disk_errors("cannot be written", folder):
        recover_for(target, exclusive=True)
        refuse_foreign_folder(folder, kind)
        stays = must_stay(target)
        temporary = temporary_name(target / INSIDE if stays else target, "new")
        with private(temporary, is_folder=True, like=target) as mode:
            yield temporary
            for path in [*temporary.rglob("*"), temporary]:
                fsync(path)
            refuse_foreign_folder(folder, kind)  # somebody may have changed it meanwhile
            if stays:
                replace_content(target, temporary)
            else:
                temporary.chmod(mode)
                replace_folder(target, temporary)
