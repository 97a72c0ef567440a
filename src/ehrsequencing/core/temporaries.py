"""Temporary files and folders: their names, who can read them, and recovery from a killed process.

A temporary is called `.tmp-OWNER.RANDOM-ROLE-NAME`. OWNER tells host, boot, process and its start (`owners.py`), and
the time of its last change tells its age. The next write of NAME recovers what a killed process left:

| role | what it is | recovery |
|---|---|---|
| `new` | being written, or just replaced; only its owner can read it | remove it |
| `del` | being removed | remove it |
| `old` | the earlier folder, moved aside until the new one has its name | move it back, unless the new one is there |
| `out` | the earlier files of a folder that cannot be renamed (a mount point) | the same, file by file |
| `put` | the complete new files, on their way into such a folder | move the rest of them in |

What a living process makes is never touched. A process of another host or container cannot be seen: what it left is
recovered by whoever holds the lock of the same output (`locks.py`), and else after `ABANDONED_DAYS`.
"""

import errno
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.output_kinds import LOCK, MANIFEST
from ehrsequencing.core.owners import PATTERN, Owner, is_running, this_process

ABANDONED_DAYS = 7  # after so long without a change, what a process of another host or container made is an orphan
# earlier versions wrote only the number of the process
_NAME = re.compile(
    rf"\.tmp-(?:{PATTERN}\.[0-9a-f]{{8}}|(?P<number>\d+))-(?:(?P<role>new|del|old|out|put)-)?(?P<name>.*)",
    re.DOTALL,
)
_ORDER = ("put", "out", "old", "new", "del", None)  # of recovery; earlier versions wrote no role
INSIDE = "content"  # NAME of a temporary inside the folder that it is for
_NOT_OURS = {"lost+found", LOCK}  # the first is in the root of a file system
_SCRATCH = "ehrseq"  # NAME of a folder in the system's folder of temporary files
_in_use: set[Path] = set()  # temporaries of this process


def is_temporary(path: Path) -> bool:
    """Whether a path has the name of a temporary, or of a lock."""
    return path.name == LOCK or _NAME.fullmatch(path.name) is not None


def is_in_use(path: Path) -> bool:
    """Whether this process is writing a temporary."""
    return _key(path) in _in_use


def is_inside_one(path: Path) -> bool:
    """Whether a path lies in a temporary folder that this process is filling."""
    parent = path.parent.resolve()
    return any(folder in _in_use for folder in (parent, *parent.parents))


def temporary_name(path: Path, role: str) -> Path:
    """A new name of a temporary of this process beside a path."""
    return path.with_name(f".tmp-{this_process()}.{secrets.token_hex(4)}-{role}-{_parts(path)[1]}")


def _parts(path: Path) -> tuple[str | None, str]:
    """Role of a temporary and the NAME that it is for; no role and its own name for any other path."""
    found = _NAME.fullmatch(path.name)
    return (found["role"], found["name"]) if found else (None, path.name)


def _key(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _is_orphan(path: Path) -> bool:
    """Whether the process that made a temporary has ended."""
    found = _NAME.fullmatch(path.name)
    if found is None or is_in_use(path):
        return False
    if found["number"] is not None:
        return int(found["number"]) == os.getpid() or not is_running(int(found["number"]))
    owner = Owner(found["host"], found["boot"], int(found["pid"]), int(found["start"]))
    if owner == this_process():
        return True  # of a write that failed, and could not be removed then
    alive = owner.is_alive
    return _days_unchanged(path) > ABANDONED_DAYS if alive is None else not alive


def _days_unchanged(path: Path) -> float:
    """Days since the last change of a file, or of anything in a folder."""
    changed = [0.0]
    for inside in (path, *path.rglob("*")):
        with suppress(OSError):
            changed.append(inside.lstat().st_mtime)
    return (time.time() - max(changed)) / 86_400


@contextmanager
def private(path: Path, *, is_folder: bool = False, like: Path | None = None) -> Iterator[int]:
    """Make a temporary that only its owner can read. Remove it at the end if it is still there.

    Args:
        path: Its name.
        is_folder: Whether to make a folder.
        like: What it will replace, if that is there.

    Yields:
        The mode to give it when it is complete: that of what it replaces, else the umask's.
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


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder in the system's folder of temporary files (`TMPDIR`), which is removed at the end.

    Only its owner can read it. What killed processes of this user left there is removed first.

    Raises:
        EhrseqError: No folder can be made there.
    """
    with ExitStack() as stack:
        try:
            place = Path(tempfile.gettempdir())
            for path in place.glob(f".tmp-*-{_SCRATCH}"):
                if _parts(path) == ("new", _SCRATCH) and _is_own(path) and _is_orphan(path):
                    _discard(path)
            folder = temporary_name(place / _SCRATCH, "new")
            stack.enter_context(private(folder, is_folder=True))
        except OSError as error:
            fix = f"name a folder with room in TMPDIR: {error.strerror or 'check the disk'}"
            raise EhrseqError("no temporary folder can be made", where="TMPDIR", fix=fix) from error
        yield folder


def _is_own(path: Path) -> bool:
    """Whether this user made a file or folder."""
    with suppress(OSError):
        return not hasattr(os, "getuid") or path.lstat().st_uid == os.getuid()
    return False


def remove_folder(folder: Path) -> None:
    """Rename a folder to a temporary, then remove it, so that a kill never leaves a half-removed folder under its name.

    Raises:
        EhrseqError: The disk refused.
    """
    gone = temporary_name(folder, "del")
    try:
        os.replace(folder, gone)
    except OSError as error:
        raise EhrseqError(
            "cannot be removed", where=str(folder), fix=error.strerror or "check the disk"
        ) from error
    _discard(gone)


def recover(orphan: Path) -> None:
    """Undo or finish an interrupted replacement, as the table above says."""
    role, name = _parts(orphan)
    target = orphan.with_name(name)
    if not os.path.lexists(orphan):
        return
    if role == "old" and not os.path.lexists(target):
        os.replace(orphan, target)
    elif (
        role == "old" and target.is_dir() and not entries(target)
    ):  # somebody has locked an output that was missing
        move_entries(orphan, target)
        _discard(orphan)
    elif role == "put" or (role == "out" and not (orphan.parent / MANIFEST).exists()):
        move_entries(orphan, orphan.parent)
        _discard(orphan)
    elif role in ("old", "out"):
        remove_folder(orphan)  # renames it first, so that a folder called `old` is always whole
    else:
        _discard(orphan)


def _recover_all(orphans: Iterable[Path], *, where: Path) -> None:
    try:
        for orphan in sorted(orphans, key=lambda path: _ORDER.index(_parts(path)[0])):
            recover(orphan)
    except OSError as error:
        fix = f"look into the folders .tmp-* there: {error.strerror or 'check the disk'}"
        raise EhrseqError(
            "an interrupted replacement cannot be undone", where=str(where), fix=fix
        ) from error


def recover_for(path: Path, *, exclusive: bool = False) -> None:
    """Recover what interrupted writes of one file or folder left beside it or in it, and sweep other files there.

    A name may be used once only, so the unfinished files of dead processes beside it are removed whatever their name.

    Args:
        path: The file or folder.
        exclusive: Whether this process holds its lock. Then nobody else can be writing it.
    """
    around = list(path.parent.glob(".tmp-*"))
    beside = [p for p in around if _parts(p)[1] == path.name and _NAME.fullmatch(p.name)]
    for other in around:
        if other not in beside and _is_unfinished_file(other) and _is_orphan(other):
            _discard(other)
    inside = [
        p
        for p in path.glob(f".tmp-*-{INSIDE}")
        if path.is_dir() and _parts(p)[0] and _parts(p)[1] == INSIDE
    ]
    found = [p for p in (*beside, *inside) if (exclusive and not is_in_use(p)) or _is_orphan(p)]
    _recover_all(found, where=path)


def _is_unfinished_file(path: Path) -> bool:
    """Whether a path is a file that some process was writing, by a name that tells which."""
    found = _NAME.fullmatch(path.name)
    return (
        found is not None and found["number"] is None and found["role"] == "new" and path.is_file()
    )


def sweep_temporaries(folder: Path) -> None:
    """Recover what interrupted writes left anywhere in a folder."""
    _recover_all(filter(_is_orphan, folder.rglob(".tmp-*")), where=folder)


def entries(folder: Path) -> list[Path]:
    """The content of a folder except what this process is writing; the manifest comes last."""
    found = [p for p in sorted(folder.iterdir()) if not is_in_use(p) and p.name not in _NOT_OURS]
    return sorted(found, key=lambda p: p.name == MANIFEST)


def move_entries(source: Path, target: Path, *, manifest_first: bool = False) -> None:
    """Move everything, so that a folder has its manifest only while it is whole."""
    found = [entry for entry in entries(source) if not is_temporary(entry)]
    for entry in reversed(found) if manifest_first else found:
        if os.path.lexists(target / entry.name):
            raise FileExistsError(errno.EEXIST, f"{entry.name} is in the way")
        os.replace(entry, target / entry.name)
    fsync(target)


def fsync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and its missing parents, each flushed to the disk; returns those that were made, outermost first.

    Raises:
        OSError: The disk refused.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
    for path in missing:
        path.mkdir(exist_ok=True)
        fsync(path.parent)
    return missing
