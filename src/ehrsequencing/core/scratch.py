"""Large arrays that a command needs until it ends: they live in a file without a name, so memory stays small.

The system keeps as much of such a file in memory as there is room for, and writes the rest to the disk of `TMPDIR`.
Nobody else can open it, and it is gone when the array is, also after `kill -9`.
"""

import os
from collections.abc import Iterator
from tempfile import TemporaryFile

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints

LARGE = 2**24  # bytes from which on an array lies in a file
ROWS_AT_ONCE = 20_000  # rows that are worked on together: no other array grows with their number


def scratch(*shape: int) -> Floats:
    """An array of NaN, in memory where it is small, else in a file.

    Where the folder of temporary files has no room, or the system cannot reserve it, the array is in memory after all.

    >>> scratch(2, 3).shape
    (2, 3)
    """
    size = 8 * int(np.prod(shape, dtype=np.int64))
    if size < LARGE or not hasattr(os, "posix_fallocate"):
        return np.full(shape, np.nan)
    try:
        with TemporaryFile(prefix="ehrseq-") as file:
            # a disk that is full later would kill the process
            os.posix_fallocate(file.fileno(), 0, size)
            out: Floats = np.asarray(np.memmap(file, dtype=np.float64, mode="r+", shape=shape))
    except OSError:
        return np.full(shape, np.nan)
    for some in parts(len(out)):
        out[some] = np.nan
    return out


def parts(count: int) -> Iterator[slice]:
    """Some rows at a time.

    >>> [(some.start, some.stop) for some in parts(30_000)]
    [(0, 20000), (20000, 30000)]
    """
    return (slice(at, min(at + ROWS_AT_ONCE, count)) for at in range(0, count, ROWS_AT_ONCE))


def selected(values: Floats, rows: Ints | slice, columns: Ints | slice) -> Floats:
    """`values[rows][:, :, columns]` of a (R, E, K) array; a copy unless both are slices."""
    if isinstance(rows, slice):
        if isinstance(columns, slice):
            return values[rows, :, columns]
        rows = np.arange(len(values))[rows]
    width = len(np.arange(values.shape[2])[columns])
    out = scratch(len(rows), values.shape[1], width)
    for some in parts(len(rows)):
        out[some] = values[rows[some]][:, :, columns]
    return out
