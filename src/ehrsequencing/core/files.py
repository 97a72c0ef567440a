"""The one writer of files: a file is complete or absent, and its earlier content stays until then.

A file is written under a temporary name in its folder, flushed to the disk and renamed; then the folder is flushed.
Only its owner can read a temporary. Beside it lies a lock file that its process holds. The system releases the lock
when the process ends, however it ends: a free lock is the proof that nobody works on the temporary any more. The next
write in the folder removes both.
"""

import errno
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import yaml
from filelock import BaseFileLock, FileLock, Timeout
from pydantic import BaseModel

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.text import BadText, parse_json

Content = TypeVar("Content")  # a type of the keys
UNPACKED_BYTES = 4 << 30  # that a gzip file may hold which is read at once
LOCK = ".ehrseq-lock"  # in a folder that a command is writing
ASIDE = ".ehrseq-old"  # ends the name of a folder between the two renames that replace it
PENDING = ".ehrseq-new"  # ends the name of a folder with files that are whole and get their names
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}(\.lock)?|\..+\.ehrseq-(old|new)")


def is_temporary(path: Path) -> bool:
    """Whether a path has the name of a temporary or of a lock."""
    return path.name == LOCK or _TEMPORARY.fullmatch(path.name) is not None


def entries(folder: Path) -> list[Path]:
    """The content of a folder without temporaries and locks."""
    return [path for path in sorted(folder.iterdir()) if not is_temporary(path)]


@contextmanager
def disk_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one that names the path."""
    try:
        yield
    except OSError as error:
        raise EhrseqError(
            what, where=str(path), fix=error.strerror or "check the path and the disk"
        ) from error


@contextmanager
def temporary_in(place: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Make an empty temporary that only its owner can read, and remove it at the end if it is still there.

    Args:
        place: The folder that it is made in. What killed processes left there is removed first.
        is_folder: Whether to make a folder.
    """
    for left in filter(is_temporary, place.glob(".tmp-*.lock")):
        # a held lock raises Timeout, an OSError
        with suppress(OSError), FileLock(left, timeout=0):
            _discard(Path(str(left).removesuffix(".lock")))
            _discard(left)
    temporary = place / f".tmp-{secrets.token_hex(8)}"
    lock = FileLock(f"{temporary}.lock", mode=0o600)
    _acquire(lock, timeout=-1)
    try:
        if is_folder:
            temporary.mkdir(mode=0o700)
        else:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
    finally:
        _discard(temporary)
        _discard(Path(lock.lock_file))
        lock.release()


def _acquire(lock: BaseFileLock, *, timeout: float) -> None:
    """Take a lock; on a file system without locks go on without it.

    Raises:
        Timeout: Another process holds it.
    """
    try:
        lock.acquire(timeout=timeout)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise


def _discard(path: Path) -> None:
    """Remove a file or folder, if it is there and the disk allows it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder in the system's folder of temporary files (`TMPDIR`), which is removed at the end.

    Raises:
        EhrseqError: No folder can be made there.
    """
    with ExitStack() as stack:
        with disk_errors("no temporary folder can be made", Path("TMPDIR")):
            place = Path(tempfile.gettempdir())
            folder = stack.enter_context(temporary_in(place, is_folder=True))
        yield folder


def remove_folder(folder: Path) -> None:
    """Rename a folder to a temporary, then remove it: a kill never leaves a half-removed folder under its name.

    Raises:
        EhrseqError: The disk refused.
    """
    with (
        disk_errors("cannot be removed", folder),
        temporary_in(folder.parent, is_folder=True) as temporary,
    ):
        os.replace(folder, temporary)


@contextmanager
def locked(folder: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of an output folder while a command writes into it; a thread that holds it already passes.

    A folder that is not there is made, and removed at the end if it is still empty.

    Args:
        folder: The output.
        wait_seconds: How long to wait for another process.

    Raises:
        EhrseqError: Another process holds it, or the disk refused.
    """
    path = Path(os.path.realpath(folder)) / LOCK
    with disk_errors("cannot be written", folder):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, mode=0o600, is_singleton=True)
        try:
            _acquire(lock, timeout=wait_seconds)
        except Timeout as error:
            raise EhrseqError(
                "is being written by another process",
                where=str(folder),
                fix="wait until it has ended, stop it, or name another folder",
            ) from error
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            _discard(path)  # who waits for it notices, and makes a new one
        lock.release()
        if is_new:
            with suppress(OSError):  # it holds something
                folder.rmdir()


@contextmanager
def atomic_path(path: Path, *, owner_only: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside `path`. On success it becomes `path`; on failure it is removed.

    A link at `path` is replaced, not its target. What the user names goes through `output_file`, which refuses more.

    Args:
        path: The file; its folder is made.
        owner_only: Whether nobody else may read it (mode 600).

    Raises:
        EhrseqError: The disk refused (full, read-only, no permission), or the path is a folder, a device or a mount
            point. The earlier file at `path` is untouched.
    """
    require_name(path)
    if is_special(path) or path.is_dir():
        raise EhrseqError(
            "is a folder, a device or a mount point",
            where=str(path),
            fix="name a file in another folder",
        )
    with disk_errors("cannot be written", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_in(path.parent) as temporary:
            yield temporary
            temporary.chmod(0o600 if owner_only else mode_for(path, 0o666))
            fsync(temporary)
            os.replace(temporary, path)
        fsync(path.parent)


def mode_for(path: Path, default: int) -> int:
    """The mode that a new file or folder gets: that of what it replaces, else the default less the umask."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return default & ~mask


def is_special(path: Path) -> bool:
    """Whether something is at a path that must never be replaced: a mount point, or neither file, folder nor link."""
    if not os.path.lexists(path):
        return False
    return os.path.ismount(path) or not (path.is_file() or path.is_dir() or path.is_symlink())


def fsync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_name(path: Path) -> None:
    """Refuse, before any work is done, an output path that nothing can be renamed to.

    Raises:
        EhrseqError: It is `.`, `..` or `/`, or the file system cannot hold it.
    """
    if path.name in ("", ".."):
        raise EhrseqError(
            "is not a name for an output",
            where=str(path),
            fix="name a file or folder to make, as in --out results",
        )
    with disk_errors("cannot be written", path), suppress(FileNotFoundError):
        path.lstat()  # fails without permission, for a name that is too long, or where a parent is a file


def refuse_overlap(out: Path, *inputs: Path) -> None:
    """Refuse an output that is, contains or lies inside an input; links are followed.

    Raises:
        EhrseqError: They overlap.
    """
    path = Path(os.path.realpath(out))
    for given in inputs:
        source = Path(os.path.realpath(given))
        if given.exists() and (path.is_relative_to(source) or source.is_relative_to(path)):
            raise EhrseqError(
                f"the output overlaps the input {given}",
                where=str(out),
                fix="name an output folder outside the input that does not contain it",
            )


def write_bytes(path: Path, data: bytes, *, owner_only: bool = False) -> None:
    """Write a file atomically; arguments as of `atomic_path`."""
    with atomic_path(path, owner_only=owner_only) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: object, *, owner_only: bool = False) -> None:
    """Write JSON atomically. NaN raises an error, since other programs cannot read it."""
    text = json.dumps(value, allow_nan=False) + "\n"
    write_bytes(path, text.encode(), owner_only=owner_only)


class Shareable(dict[str, Any], Generic[Content]):
    """Content that may leave the hospital: only `results.redaction` makes it."""

    @property
    def content(self) -> Content:
        """Itself, by the type of its keys."""
        return cast(Content, self)

    def drawn(self, draw: Callable[[Content], str]) -> "Page":
        """The page that a function draws from it."""
        return Page(draw(self.content))


class Page(str):
    """A page that was drawn from shareable content alone."""


def write_shareable(path: Path, content: Shareable[Any] | Page) -> None:
    """Write a file that may leave the hospital: JSON, or a page.

    Raises:
        TypeError: The content has not been redacted.
    """
    if isinstance(content, Page):
        write_bytes(path, content.encode())
    elif isinstance(content, Shareable):
        write_json(path, content)
    else:
        raise TypeError("a file that may be shared holds what has been redacted")


def write_settings(path: Path, settings: BaseModel, *, only: set[str] | None = None) -> None:
    """Write settings, or only some of their sections, as YAML with durations in days."""
    data = settings.model_dump(mode="json", include=only, exclude_none=True)
    write_bytes(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode())


def read_json_lines(path: Path) -> list[Any]:
    """Read a file with one JSON value per line; errors as of `read_json`."""
    lines: list[Any] = read_json(
        path, lambda data: [parse_json(line) for line in data.splitlines()]
    )
    return lines


def read_json(path: Path, parse: Callable[[bytes], Any] = parse_json) -> Any:
    """Read a JSON file; `parse` makes its value of its bytes.

    Raises:
        EhrseqError: The file cannot be read, or is not JSON.
    """
    if path.exists() and not path.is_file():
        raise EhrseqError("is no file", where=str(path), fix="make it one: a pipe cannot be read")
    try:
        with disk_errors("cannot be read", path):
            return parse(path.read_bytes())
    except BadText as error:
        raise EhrseqError(
            f"is damaged: it {error.what}", where=str(path), fix="make this file again"
        ) from error


def read_unpacked(path: Path, *, where: str = "") -> bytes:
    """The bytes of a file; a gzip file may hold at most `UNPACKED_BYTES`.

    Args:
        path: The file.
        where: What the message names; default: the file.

    Raises:
        EhrseqError: It cannot be read to its end, or holds more.
    """
    where = where or str(path)
    if path.suffix.lower() != ".gz":
        with disk_errors("cannot be read", Path(where)):
            return path.read_bytes()
    try:
        with gzip.open(path) as file:
            data = file.read(UNPACKED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise EhrseqError(
            "cannot be read", where=where, fix="copy the file again: it is cut off or damaged"
        ) from error
    if len(data) > UNPACKED_BYTES:
        raise EhrseqError(
            f"holds more than {UNPACKED_BYTES / 2**30:g} GiB when it is unpacked",
            where=where,
            fix="look at what it holds; if you trust it, unpack it",
        )
    return data


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with disk_errors("cannot be read", path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered(key: object, make: Callable[[], Any]) -> Any:
    """A JSON value that is made once for each key, and kept in the user's cache (`EHRSEQ_CACHE`).

    A cache that cannot be read or written is done without.
    """
    cache = os.environ.get("EHRSEQ_CACHE") or os.path.expanduser("~/.cache/ehrsequencing")
    path = Path(cache, f"{digest(key)}.json")
    with suppress(EhrseqError):
        if path.is_file():
            return read_json(path)
    value = make()
    with suppress(EhrseqError):
        write_json(path, value, owner_only=True)
    return value


def digest(value: object) -> str:
    """Short stable hash of a JSON-like value (configurations, vocabularies, label sets)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
