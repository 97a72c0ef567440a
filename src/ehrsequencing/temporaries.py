"""Temporary files and folders: how they are called, who can read them, and what becomes of those left behind.

They are called `.tmp-PID-ROLE-NAME`. What a killed process left is settled when NAME is written next:

| role | what it is | settled by |
|---|---|---|
| `new` | being written; only its owner can read it | removing it |
| `del` | being removed | removing it |
| `old` | the earlier folder, moved aside until the new one has its name | moving it back, unless the new one is there |
| `out` | the earlier files of a folder that cannot be renamed (a mount point) | the same, file by file |
| `put` | the complete new files, on their way into such a folder | moving the rest of them in |
"""

import errno
import glob
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ehrsequencing.errors import EhrseqError

MANIFEST = "manifest.json"
_NAME = re.compile(r"\.tmp-(\d+)-(?:(new|del|old|out|put)-)?(.*)", re.DOTALL)
_ORDER = ("put", "out", "old", "new", "del", None)  # in which they are settled; earlier versions gave no role
INSIDE = "content"  # NAME of temporaries inside the folder that they are for
_OF_A_DISK = "lost+found"  # at the top of a disk's file system
_in_use: set[Path] = set()  # temporaries of this process: one with its number that is not here is of an earlier one


def is_temporary(path: Path) -> bool:
    """Whether a path is called as our temporaries are."""
    return _NAME.fullmatch(path.name) is not None


def is_in_use(path: Path) -> bool:
    """Whether this process is writing a temporary."""
    return _key(path) in _in_use


def is_inside_one(path: Path) -> bool:
    """Whether a path lies in a temporary folder that this process is filling."""
    parent = path.parent.resolve()
    return any(folder in _in_use for folder in (parent, *parent.parents))


def temporary_name(path: Path, role: str) -> Path:
    """A temporary of this process beside a path."""
    return path.with_name(f".tmp-{os.getpid()}-{role}-{_parts(path)[1]}")


def _parts(path: Path) -> tuple[str | None, str]:
    """Role of a temporary, and the name of what it stands for; any other name stands for itself."""
    found = _NAME.fullmatch(path.name)
    return (found[2], found[3]) if found else (None, path.name)


def _key(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _is_orphan(path: Path) -> bool:
    """Whether the process that made a temporary has ended; in a container the next one often has its number."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return False
    if int(found[1]) == os.getpid():
        return not is_in_use(path)
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # another user's process
        return False
    return False


@contextmanager
def private(path: Path, *, is_folder: bool = False, like: Path | None = None) -> Iterator[int]:
    """Make a temporary that only its owner can read, and remove it in the end if it is still there.

    Args:
        path: Its name.
        is_folder: Whether to make a folder.
        like: What it will replace, if that is there.

    Yields:
        The mode that it should get when it is complete: that of what it replaces, else what the umask gives.
    """
    _in_use.add(_key(path))
    try:
        if is_folder:
            path.mkdir()
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        mode = (like if like is not None and like.exists() else path).stat().st_mode & 0o7777
        path.chmod(0o700 if is_folder else 0o600)
        yield mode
    finally:
        _discard(path)
        _in_use.discard(_key(path))


def _discard(path: Path) -> None:
    """Remove a temporary, if it is there and the disk allows it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the next sweep tries again


def remove_folder(folder: Path) -> None:
    """Remove a folder of ours under a temporary name, so that a kill leaves no half of it under its own.

    Raises:
        EhrseqError: The disk refused.
    """
    gone = temporary_name(folder, "del")
    _discard(gone)
    try:
        os.replace(folder, gone)
    except OSError as error:
        raise EhrseqError("cannot be removed", where=str(folder), fix=error.strerror or "check the disk") from error
    _discard(gone)


def settle(orphan: Path) -> None:
    """Undo or finish what an interrupted replacement left, as the table above says."""
    role, name = _parts(orphan)
    if not os.path.lexists(orphan):
        return
    if role == "old" and not os.path.lexists(orphan.with_name(name)):
        os.replace(orphan, orphan.with_name(name))
    elif role == "put" or (role == "out" and not (orphan.parent / MANIFEST).exists()):
        move_entries(orphan, orphan.parent)
        _discard(orphan)
    elif role in ("old", "out"):
        remove_folder(orphan)  # renamed first: what is called old is whole
    else:
        _discard(orphan)


def _settle_all(found: Iterable[Path], *, where: Path) -> None:
    try:
        for orphan in sorted(filter(_is_orphan, found), key=lambda path: _ORDER.index(_parts(path)[0])):
            settle(orphan)
    except OSError as error:
        fix = f"look into the folders .tmp-* there: {error.strerror or 'check the disk'}"
        raise EhrseqError("an interrupted replacement cannot be undone", where=str(where), fix=fix) from error


def settle_for(path: Path) -> None:
    """Settle what interrupted writes of one file or folder left beside it, or in it."""
    beside = [p for p in path.parent.glob(f".tmp-*-{glob.escape(path.name)}") if _parts(p)[1] == path.name]
    inside = [p for p in path.glob(f".tmp-*-{INSIDE}") if path.is_dir() and _parts(p)[0] and _parts(p)[1] == INSIDE]
    _settle_all([*beside, *inside], where=path)


def sweep_temporaries(folder: Path) -> None:
    """Settle what interrupted writes left anywhere in a folder of ours."""
    _settle_all(folder.rglob(".tmp-*"), where=folder)


def entries(folder: Path) -> list[Path]:
    """What is in a folder, apart from what this process is writing; the manifest comes last."""
    found = [p for p in sorted(folder.iterdir()) if not is_in_use(p) and p.name != _OF_A_DISK]
    return sorted(found, key=lambda p: p.name == MANIFEST)


def move_entries(source: Path, target: Path, *, manifest_first: bool = False) -> None:
    """Move everything; a folder has its manifest only while it is whole."""
    found = [entry for entry in entries(source) if not is_temporary(entry)]
    for entry in reversed(found) if manifest_first else found:
        if os.path.lexists(target / entry.name):
            raise FileExistsError(errno.EEXIST, f"{entry.name} is in the way")
        os.replace(entry, target / entry.name)
    fsync(target)


def fsync(path: Path) -> None:
    """Have the disk keep what was written to a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
