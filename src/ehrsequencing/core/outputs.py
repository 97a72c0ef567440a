"""What ehrseq writes: the kinds of outputs, when one may be replaced, and folders with a manifest of hashes.

A folder's `manifest.json` is written last. It names the folder's kind and lists the SHA-256 of every file and of
itself; no folder is loaded without it. A single file says of itself what it is. An output that exists is refused,
unless it may be overwritten: a folder if it is of the same kind and still as it was written, a file if it is of that
kind.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    ASIDE,
    atomic_path,
    disk_errors,
    entries,
    fsync,
    is_special,
    is_temporary,
    mode_for,
    read_json,
    remove_folder,
    require_name,
    sha256,
    temporary_in,
    write_json,
)

FORMAT = 4  # of manifests, since 2.0.0
MANIFEST = "manifest.json"  # of a folder: its kind and the hash of each file
HISTORY = "history.jsonl"  # of a run: one line per epoch
# The files of a run that prediction needs. Its other files may be deleted or edited.
RUN_NEEDS = (
    "config.json",
    "config.yaml",
    "model.safetensors",
    "vocabulary.json",
    "vocabulary.safetensors",
)
BLEND_FILE, ARRAYS_FILE = "blend.json", "blend.safetensors"  # trees and Cox, of a run that has them
NETWORK_FILES = {"config.json", "model.safetensors"}  # those of them that hold the network
_AGAIN = "make the folder again"
_HASHING = 4  # files that are hashed at once
_DIGEST = "digest"  # entry of a manifest: the hash of all others
_LOOKED_AT = 4096  # bytes at the beginning of a file that may hold the mark of its kind
KIND_NOTE = b"ehrsequencing.kind"  # entry of a Parquet file's metadata: the kind's name


@dataclass(frozen=True)
class Kind:
    """One kind of output.

    Attributes:
        name: `kind` in its manifest.
        what: The name in messages.
        marks: Of a kind that is a file: what one of them holds within its first bytes, where it is not Parquet.
    """

    name: str
    what: str
    marks: tuple[bytes, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The entries of a manifest that name the kind."""
        return {"kind": self.name, "format": FORMAT}

    def is_of(self, facts: object) -> bool:
        """Whether a manifest names this kind."""
        return isinstance(facts, dict) and facts.get("kind") == self.name


PREPARED = Kind("prepared", "a prepared data set")
IMPORTED = Kind("imported data set", "an imported data set")
SIMULATION = Kind("simulation", "a simulated data set")
RUN = Kind("run", "a run")
SHARED_RUN = Kind("shared run", "a shared model")
UNFINISHED_RUN = Kind("unfinished run", "an unfinished run")
PRETRAINED = Kind("pretraining", "a pretrained model")
UNFINISHED_PRETRAINING = Kind("unfinished pretraining", "an unfinished pretraining")
CHECKPOINT = Kind("checkpoint", "a checkpoint")
EXTERNAL = Kind("external validation", "an external validation")
POOLED = Kind("pooled sites", "a pooling of sites")
SCORE = Kind("score", "a score of predictions")
TASKS = Kind("tasks", "a folder of task files")
CHECK = Kind("check", "a report of ehrseq check", (b'"kind": "check"',))
PREDICTIONS = Kind(
    "predictions",
    "predictions",
    (b'"subject_id","prediction_time","cause","horizon_days","risk","kind","index_time"',),
)
JOURNAL = Kind("journal", "a journal of predictions")
MONITOR = Kind("monitor", "a page of ehrseq monitor", (b"<title>Watch of ",))
METRICS_FILE = Kind("metrics", "metrics of ehrseq monitor", (b"# ehrseq monitor",))
LIST = Kind("list", "a summary of predictions", (b'"kind": "list"', b"<title>Predictions of "))
EXPLORER = Kind("explorer", "an explorer", (b"ehrsequencing explorer</title>",))
EXPLANATION = Kind(
    "explanation",
    "a table of ehrseq explain",
    (
        b'"kind","code","visit","time","rows","change_in_risk"',
        b'"code","against","carriers","change_in_risk"',
    ),
)
KINDS = tuple(value for value in list(globals().values()) if isinstance(value, Kind))


def is_json_of(path: Path, kind: Kind) -> bool:
    """Whether a file is JSON of this kind, as a manifest."""
    try:
        return kind.is_of(read_json(path))
    except EhrseqError:
        return False


def refuse_existing(out: Path, kind: Kind, *, overwrite: bool = False) -> None:
    """Refuse an output that exists, unless it may be overwritten. An empty folder counts as none.

    Args:
        out: The file or folder that the user names.
        kind: What will be written there.
        overwrite: Whether a folder of this kind that is still as ehrseq wrote it, or a file of this kind, may be
            replaced.

    Raises:
        EhrseqError: It may not be replaced. Links, mount points and devices never are.
    """
    require_name(out)
    if not os.path.lexists(out):
        return
    fix = "nothing was touched; name another output, or remove this one"
    if out.is_symlink() or is_special(out):
        raise EhrseqError("is a link, a mount point or a device", where=str(out), fix=fix)
    if out.is_dir() and not entries(out):
        return
    if not overwrite:
        raise EhrseqError(
            "is there already",
            where=str(out),
            fix=f"name another output, or add --overwrite, which replaces {kind.what}"
            + (" that nobody has changed" if out.is_dir() else ""),
        )
    says, why = b"", None
    if out.is_dir():
        why = _why_foreign_folder(out, kind)
    else:
        # Parquet names its kind in its metadata, and another file has a mark at its beginning
        with suppress(OSError, pa.ArrowException):
            if out.suffix == ".parquet":
                says = (pq.read_schema(out).metadata or {}).get(KIND_NOTE, b"")
            else:
                says = pa.input_stream(out).read(_LOOKED_AT)
        if says != kind.name.encode() and not any(mark in says for mark in kind.marks):
            why = f"is not {kind.what} that ehrseq wrote"
    if why is not None:
        raise EhrseqError(why, where=str(out), fix=fix)


def _why_foreign_folder(folder: Path, kind: Kind) -> str | None:
    try:
        manifest = _whole_manifest(folder / MANIFEST)
    except OfAnotherVersion as error:
        return error.what
    except EhrseqError:
        return f"is not empty, and not {kind.what} that ehrseq made"
    if not kind.is_of(manifest):
        names = {other.name: other.what for other in KINDS}
        return f"holds {names.get(str(manifest.get('kind')), 'something else')}, not {kind.what}"
    files = manifest["files"]
    ours = {*files, *manifest.get("writing", [])}  # the latter a killed command was writing
    known = {MANIFEST, *ours, *(up.as_posix() for name in ours for up in Path(name).parents)}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not is_temporary(path) and (name not in known or path.is_symlink()):
            return f"holds {name!r}, which ehrseq did not write"
        if name in files and not (path.is_file() and sha256(path) == files[name]):
            return f"holds {name!r}, which has changed since it was written"
    return None


def remove_existing(out: Path, kind: Kind) -> None:
    """Remove an output of a kind that nobody has changed, for a command that writes into its folder step by step.

    Raises:
        EhrseqError: As of `refuse_existing`, or the disk refused.
    """
    refuse_existing(out, kind, overwrite=True)
    if out.is_dir():
        remove_folder(out)


@contextmanager
def output_file(
    out: Path, kind: Kind, *, overwrite: bool = False, owner_only: bool = False
) -> Iterator[Path]:
    """Yield a temporary file. On success it becomes `out`, a file that the user names; on failure it is removed.

    Args:
        out: The file; its folder is made.
        kind: What it is.
        overwrite: As of `refuse_existing`.
        owner_only: Whether nobody else may read it (mode 600).

    Raises:
        EhrseqError: As of `refuse_existing`, or the disk refused.
    """
    refuse_existing(out, kind, overwrite=overwrite)
    with atomic_path(out, owner_only=owner_only) as temporary:
        yield temporary
        refuse_existing(out, kind, overwrite=overwrite)  # it may have changed meanwhile


@contextmanager
def complete_folder(folder: Path, kind: Kind, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder. On success it becomes `folder`; on failure it is removed.

    Args:
        folder: The output; its parents are made.
        kind: Its kind, which its manifest names.
        overwrite: As of `refuse_existing`. The old folder is removed when the new one has its name.

    Raises:
        EhrseqError: As of `refuse_existing`, or the disk refused.
    """
    aside = folder.parent / f".{folder.name}{ASIDE}"
    with disk_errors("cannot be written", folder):
        if aside.is_dir() and not folder.exists():  # a kill came between the renames
            os.replace(aside, folder)
        refuse_existing(folder, kind, overwrite=overwrite)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_in(folder.parent, is_folder=True) as temporary:
            yield temporary
            for path in [*temporary.rglob("*"), temporary]:
                fsync(path)
            refuse_existing(folder, kind, overwrite=overwrite)  # it may have changed meanwhile
            temporary.chmod(mode_for(folder, 0o777))
            if folder.exists() and entries(folder):
                if aside.is_dir():  # a kill came after the renames
                    remove_folder(aside)
                os.replace(folder, aside)
                try:
                    os.replace(temporary, folder)
                except OSError:
                    os.replace(aside, folder)
                    raise
                remove_folder(aside)
            else:
                os.replace(temporary, folder)
            fsync(folder.parent)


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
    if files is None:
        files = [path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST]
    listed = sorted(
        path
        for path in files
        if not any(map(is_temporary, (path, *path.relative_to(folder).parents)))
    )
    names = [path.relative_to(folder).as_posix() for path in listed]
    with ThreadPoolExecutor(_HASHING) as threads:
        hashes = dict(zip(names, threads.map(sha256, listed), strict=True))
    needs = {} if required is None else {"required": sorted(required)}
    save_manifest(folder, {**facts, **needs, "files": hashes})


def save_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest with the digest of its own entries, which tells whether one of them has changed."""
    write_json(folder / MANIFEST, sealed(manifest))


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of its other entries; one that is as it was sealed stays the same."""
    content = json.loads(json.dumps({k: v for k, v in value.items() if k != _DIGEST}))
    own = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {**content, _DIGEST: own}


def read_sealed(path: Path) -> dict[str, Any]:
    """A JSON object as it was sealed and written; empty where there is none, or where it has changed."""
    with suppress(EhrseqError):
        value = read_json(path)
        if isinstance(value, dict) and value == sealed(value):
            return value
    return {}


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
        raise EhrseqError(
            f"is not {what}, or was interrupted before it was complete",
            where=str(folder),
            fix="make it again",
        )
    manifest = _whole_manifest(path)
    files, required = manifest["files"], manifest.get("required", list(manifest["files"]))
    if not isinstance(required, list) or not set(map(str, required)) <= files.keys():
        raise EhrseqError("is damaged", where=str(path), fix=_AGAIN)
    resolved = os.path.realpath(folder)
    for name in files:
        if "\0" in name or not Path(os.path.realpath(folder / name)).is_relative_to(resolved):
            raise EhrseqError(
                "names a file outside its folder", where=str(path), fix="do not trust this folder"
            )
    for name in required:
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
    """A manifest of this version whose entries are as they were written."""
    manifest = read_json(path)
    is_ours = isinstance(manifest, dict) and "format" in manifest
    if not is_ours or not isinstance(manifest.get("files"), dict):
        raise EhrseqError("is damaged", where=str(path), fix=_AGAIN)
    require_format(manifest, path)
    if manifest != sealed(manifest):
        raise EhrseqError("has changed since it was written", where=str(path), fix=_AGAIN)
    del manifest[_DIGEST]
    return manifest


def require_format(manifest: Mapping[str, Any], path: Path) -> None:
    """Refuse a manifest, or the mark of an unfinished output, that another major version wrote.

    Raises:
        OfAnotherVersion: Names the version that reads it.
    """
    if manifest.get("format") != FORMAT:
        run, prepared = manifest.get("versions"), manifest.get("version")
        named = run.get("ehrsequencing") if isinstance(run, dict) else prepared
        raise of_another_version(str(named or "1.x"), path)


class OfAnotherVersion(EhrseqError):
    """Another major version wrote this file or folder."""


def of_another_version(version: str, path: Path) -> OfAnotherVersion:
    """That another version wrote a file or a folder."""
    return OfAnotherVersion(
        f"was made by ehrsequencing {version}, which alone reads it",
        where=str(path),
        fix="make it again, or use that version",
    )


def require_facts(folder: Path, manifest: Mapping[str, Any], facts: Mapping[str, type]) -> None:
    """Refuse a manifest that lacks an entry of `facts` (name → type), or has it with another type."""
    for name, kind in facts.items():
        if not isinstance(manifest.get(name), kind):
            raise EhrseqError(
                f"is damaged: its entry {name!r} is missing or invalid",
                where=str(folder / MANIFEST),
                fix=_AGAIN,
            )


def altered(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Files outside `required` that were deleted or edited: name → `is missing` or `has changed since …`.

    A file that this user may not read is left out: the owner's exact numbers have mode 600.
    """
    faults = {}
    for name in set(manifest["files"]) - set(manifest.get("required", manifest["files"])):
        path = folder / name
        if not path.is_file():
            faults[name] = "is missing"
        elif os.access(path, os.R_OK) and sha256(path) != manifest["files"][name]:
            faults[name] = "has changed since it was written"
    return dict(sorted(faults.items()))
