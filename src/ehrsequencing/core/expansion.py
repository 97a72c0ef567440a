"""How far a gzip file may expand: a file of some megabytes can hold gigabytes, and fill the memory of who reads it."""

import gzip
import zlib
from pathlib import Path

from ehrsequencing.core.errors import EhrseqError

# what a small file may expand to; above it, how many times its own size
HARMLESS_BYTES, MOST_TIMES = (
    1 << 30,
    200,
)
_BLOCK = 1 << 20


def most_bytes(path: Path) -> int:
    """How many bytes a file may expand to."""
    return max(HARMLESS_BYTES, MOST_TIMES * path.stat().st_size)


def expands_too_much(where: str) -> EhrseqError:
    """The error about a file that expands to more than `most_bytes`."""
    fix = "look at what it holds; if you trust it, unpack it first"
    return EhrseqError(f"expands to more than {MOST_TIMES} times its size", where=where, fix=fix)


def refuse_expansion(path: Path, *, where: str | None = None) -> None:
    """Refuse a gzip file that expands to far more than its size, or is cut off or damaged; any other file passes.

    Its bytes are counted in blocks and not kept.

    Args:
        path: The file.
        where: What the message names; default: the file.

    Raises:
        EhrseqError: It expands too much, or cannot be read to its end.
    """
    if path.suffix.lower() != ".gz":
        return
    where, expanded = str(path) if where is None else where, 0
    try:
        most = most_bytes(path)
        with gzip.open(path) as file:
            while block := file.read(_BLOCK):
                expanded += len(block)
                if expanded > most:
                    raise expands_too_much(where)
    except (OSError, EOFError, zlib.error) as error:
        fix = "copy the file again: it is cut off or damaged"
        raise EhrseqError("cannot be read", where=where, fix=fix) from error
