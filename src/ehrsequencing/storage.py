"""Files that are whole or absent: atomic writes, and manifests with hashes.

Every file goes to a temporary name in its own folder, is fsynced and renamed, and the folder is fsynced. A folder's
`manifest.json` is written last and lists the sha256 of every file: without a complete manifest nothing is loaded.
A command replaces a folder or a file only where it can tell that ehrseq wrote it, and nothing else is in it.
What a killed process leaves is settled when the same file or folder is written next (`ehrsequencing.temporaries`).
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ehrsequencing.config import BadText, Settings, parse_json
from ehrsequencing.errors import EhrseqError
from ehrsequencing.kinds import (
    CHECK,
    CHECKPOINT,
    EXTERNAL,
    IMPORTED,
    KINDS,
    PREDICTIONS,
    PREPARED,
    RUN,
    SIMULATION,
    UNFINISHED_RUN,
    Kind,
    is_json_of,
    is_parquet_of,
    parquet_mark,
)  # fmt: skip
from ehrsequencing.temporaries import (
    INSIDE,
    MANIFEST,
    entries,
    fsync,
    is_inside_one,
    is_temporary,
    move_entries,
    private,
    remove_folder,
    settle,
    settle_for,
    sweep_temporaries,
    temporary_name,
)

__all__ = [
    "CHECK", "CHECKPOINT", "EXTERNAL", "HISTORY", "IMPORTED", "MANIFEST", "PREDICTIONS", "PREPARED", "RUN",
    "RUN_NEEDS", "SIMULATION", "UNFINISHED_RUN", "Kind", "altered", "atomic_path",
    "complete_folder", "digest", "is_json_of", "is_parquet_of", "is_temporary", "parquet_mark", "read_json",
    "read_json_lines", "read_manifest", "refuse_foreign_file", "refuse_foreign_folder", "refuse_overlap",
    "remove_folder", "require_facts", "require_name", "sha256", "sweep_temporaries", "write_bytes",
    "write_json", "write_manifest", "write_settings",
]  # fmt: skip
HISTORY = "history.jsonl"  # of a run: one line an epoch
# All of a run that prediction needs; its other files may be deleted or edited.
RUN_NEEDS = ("config.json", "config.yaml", "model.safetensors", "vocabulary.json", "vocabulary.safetensors")


@contextmanager
def atomic_path(path: Path, *, owner_only: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside `path`; on success it becomes `path`, on any failure it is removed.

    Only its owner can read it until then, and with `owner_only` (mode 600) after it too.

    Raises:
        EhrseqError: The disk refused (full, read-only, no permission); what stood at `path` still stands.
    """
    require_name(path)
    if path.is_dir():
        raise EhrseqError("cannot be written", where=str(path), fix="it is a folder: name a file")
    temporary = temporary_name(path, "new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        settle_for(path)
        with private(temporary, like=path) as mode:
            yield temporary
            temporary.chmod(0o600 if owner_only else mode)
            if is_inside_one(path):  # `complete_folder` has the disk keep all of its files at once
                os.replace(temporary, path)
                return
            fsync(temporary)
            os.replace(temporary, path)
        fsync(path.parent)
    except OSError as error:
        raise EhrseqError("cannot be written", where=str(path), fix=error.strerror or "check the disk") from error


def refuse_foreign_file(path: Path, is_ours: Callable[[Path], bool]) -> None:
    """Refuse to overwrite a file that we did not write.

    Raises:
        EhrseqError: Something is there, and `is_ours` does not know it.
    """
    if path.exists() and not (path.is_file() and is_ours(path)):
        fix = "name another file, or remove this one"
        raise EhrseqError("is there already, and ehrseq did not write it", where=str(path), fix=fix)


def refuse_overlap(out: Path, *inputs: Path) -> None:
    """Refuse an output that is an input, lies inside one, or holds one; links are followed.

    Raises:
        EhrseqError: They overlap.
    """
    for given in inputs:
        if given.exists() and (_is_among(given, _up(out)) or _is_among(out, _up(given))):
            fix = "name an output folder that is neither the input, nor in it, nor around it"
            raise EhrseqError(f"the output overlaps the input {given}", where=str(out), fix=fix)


def _up(path: Path) -> list[Path]:
    place = Path(os.path.realpath(path))
    return [place, *place.parents]


def _is_among(path: Path, others: list[Path]) -> bool:
    return path.exists() and any(other.exists() and path.samefile(other) for other in others)


def write_bytes(path: Path, data: bytes, *, owner_only: bool = False) -> None:
    """Write a file atomically; with `owner_only` nobody else can read it."""
    with atomic_path(path, owner_only=owner_only) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: object, *, owner_only: bool = False) -> None:
    """Write JSON atomically; NaN is refused, since other programs cannot read it."""
    text = json.dumps(value, indent=1, sort_keys=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode(), owner_only=owner_only)


def write_settings(path: Path, settings: Settings, *, only: set[str] | None = None) -> None:
    """Write settings, or some of their sections, as YAML; durations are days."""
    data = settings.model_dump(mode="json", include=only, exclude_none=True)
    write_bytes(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode())


def read_json(path: Path) -> Any:
    """Read JSON, with a clear error."""
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise EhrseqError("cannot be read", where=str(path), fix=error.strerror or "check the path") from error
    except BadText as error:
        raise EhrseqError(f"is damaged: it {error.what}", where=str(path), fix="make this file again") from error


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with one JSON value a line, with a clear error."""
    try:
        return [parse_json(line) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise EhrseqError("cannot be read", where=str(path), fix=error.strerror or "check the path") from error
    except BadText as error:
        raise EhrseqError(f"is damaged: it {error.what}", where=str(path), fix="make this file again") from error


def require_name(path: Path) -> None:
    """Refuse an output path that nothing can be renamed to: `.`, `..`, `/`, or one that the system cannot hold.

    Raises:
        EhrseqError: Says so before any work is done.
    """
    if path.name in ("", ".."):
        fix = "name a file or folder to make, as in --out results"
        raise EhrseqError("is not a name for an output", where=str(path), fix=fix)
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # no permission, too long, or a file stands where a folder should
        raise EhrseqError("cannot be written", where=str(path), fix=error.strerror or "check the path") from error


def sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EhrseqError("cannot be read", where=str(path), fix=error.strerror or "check the disk") from error


def digest(value: object) -> str:
    """Short stable hash of a JSON-like value (configurations, vocabularies, label sets)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def write_manifest(
    folder: Path, facts: Mapping[str, Any], *, files: list[Path] | None = None, required: Sequence[str] | None = None
) -> None:
    """Hash the folder's files and write the manifest last, which makes the folder complete.

    Args:
        folder: The folder.
        facts: What the manifest says; `Kind.facts` first.
        files: Which files; default: all. Temporaries are never listed.
        required: Names of the files without which, or with other bytes in which, the folder is refused. The others may
            be deleted and edited. By default every file is required.
    """
    chosen = files if files is not None else [p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST]
    listed = sorted(p for p in chosen if not any(map(is_temporary, (p, *p.relative_to(folder).parents))))
    needs = {} if required is None else {"required": sorted(required)}
    hashes = {p.relative_to(folder).as_posix(): sha256(p) for p in listed}
    write_json(folder / MANIFEST, {**facts, **needs, "files": hashes})


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
            f"is not {what}, or was interrupted before it was complete", where=str(folder), fix="make it again"
        )
    manifest: dict[str, Any] = read_json(path)
    is_whole = isinstance(manifest, dict) and isinstance(manifest.get("files"), dict)
    required = manifest.get("required", list(manifest["files"])) if is_whole else None
    if not isinstance(required, list) or not all(name in manifest["files"] for name in map(str, required)):
        raise EhrseqError("is damaged", where=str(path), fix="make the folder again")
    for name in manifest["files"]:
        if not _is_inside(folder / name, folder):
            raise EhrseqError("names a file outside its folder", where=str(path), fix="do not trust this folder")
    for name in map(str, required):
        file = folder / name
        if not file.is_file():
            raise EhrseqError("a file is missing", where=str(file), fix="make the folder again")
        if verify and sha256(file) != manifest["files"][name]:
            raise EhrseqError("has changed since it was written", where=str(file), fix="make the folder again")
    return manifest


def require_facts(folder: Path, manifest: Mapping[str, Any], facts: Mapping[str, type]) -> None:
    """Refuse a manifest that lacks a fact, or has one of another type than `facts` names."""
    for name, kind in facts.items():
        if not isinstance(manifest.get(name), kind):
            where = str(folder / MANIFEST)
            raise EhrseqError(f"is damaged: it does not tell {name!r}", where=where, fix="make the folder again")


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


def refuse_foreign_folder(folder: Path, kind: Kind) -> None:
    """Refuse to replace anything but an empty folder, or a folder of this kind that we made, with nothing else in it.

    Raises:
        EhrseqError: It is a file, or its manifest is not of this kind, or it holds something that is not listed there.
    """
    place = Path(os.path.realpath(folder))  # `missing/..` is a folder that is there, though `missing` is not
    if place.exists() and not place.is_dir():
        raise EhrseqError("is a file", where=str(folder), fix="name a folder")
    if place.is_dir() and entries(place) and (why := _why_foreign(place, kind)):
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
        return f"holds {other[0]}, not {kind.what}" if other else f"is not empty, and not {kind.what} that ehrseq made"
    if not kind.is_of(manifest):
        return f"holds {kind.what} of another version of ehrseq"
    strange = _unlisted(folder, manifest["files"])
    return f"holds {strange!r}, which ehrseq did not write" if strange else None


def _unlisted(folder: Path, files: Mapping[str, Any]) -> str | None:
    """The first file, folder or link in a folder that its manifest does not know."""
    known = {MANIFEST, *files}
    known |= {parent.as_posix() for name in files for parent in Path(name).parents}

    def fail(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=fail):
        if Path(here) == folder:
            mine = {path.name for path in entries(folder)}
            folders[:] = [name for name in folders if name in mine]
        for name in sorted([*folders, *names]):
            path = Path(here) / name
            inside = path.relative_to(folder).as_posix()
            if inside not in known or path.is_symlink():
                return inside
    return None


@contextmanager
def complete_folder(folder: Path, kind: Kind) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` when the block succeeds, and vanishes when it fails.

    A link stays and its target is replaced; a mount point, or the folder that the process works in, stays and its
    content is replaced. However the process ends, the earlier folder or the new one is there, or is put there when
    the folder is next written.

    Args:
        folder: Where it will be; its parents are made.
        kind: What it is; an earlier folder of this kind, with nothing else in it, is replaced.

    Raises:
        EhrseqError: What stands there is not ours to replace, or the disk refused.
    """
    try:
        place = Path(os.path.realpath(folder))
        settle_for(place)
        refuse_foreign_folder(folder, kind)
        place.parent.mkdir(parents=True, exist_ok=True)
        stays = place.is_dir() and _must_stay(place)
        temporary = temporary_name(place / INSIDE if stays else place, "new")
        with private(temporary, is_folder=True, like=place) as mode:
            yield temporary
            for path in [*temporary.rglob("*"), temporary]:
                fsync(path)
            refuse_foreign_folder(folder, kind)  # somebody may have used it meanwhile
            if stays:
                _replace_content(place, temporary)
            else:
                temporary.chmod(mode)
                _replace_folder(place, temporary)
    except OSError as error:
        raise EhrseqError("cannot be written", where=str(folder), fix=error.strerror or "check the disk") from error


def _must_stay(folder: Path) -> bool:
    """Whether a folder cannot be renamed (a mount point) or should not be (somebody works in it)."""
    mounts = Path("/proc/self/mountinfo")
    mounted = [line.split()[4] for line in mounts.read_text().splitlines()] if mounts.is_file() else []
    if os.path.ismount(folder) or str(folder).replace(" ", "\\040") in mounted:
        return True
    return not os.access(folder.parent, os.W_OK) or Path.cwd().is_relative_to(folder)


def _replace_folder(place: Path, new: Path) -> None:
    old = temporary_name(place, "old")
    try:
        if place.exists():
            os.replace(place, old)
        os.replace(new, place)
        fsync(place.parent)
    finally:
        if old.exists():
            settle(old)


def _replace_content(place: Path, new: Path) -> None:
    """Move the old content out, then the new content in; `put` says that the first is done."""
    out, put = (temporary_name(place / INSIDE, role) for role in ("out", "put"))
    try:
        out.mkdir(mode=0o700)
        move_entries(place, out, manifest_first=True)
        os.replace(new, put)
        move_entries(put, place)
    finally:
        for left in (put, out):
            if left.exists():
                settle(left)
