"""Array types, arithmetic of ragged arrays, a writer for arrays of unknown length, and scratch space on disk.

A ragged array has flat values and offsets (n + 1,): row i is `values[offsets[i]:offsets[i + 1]]`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

LARGE_BYTES = 2**21  # from which on a scratch array lies in a file
BLOCK_ROWS = 5_000  # rows that are worked on at once: no other array grows with their number


def detached(values: ArrayLike) -> NDArray[Any]:
    """Values as an array: also those of a tensor of torch that has a gradient, or lies on a GPU.

    >>> detached([0.5, 1]).tolist()
    [0.5, 1.0]
    """
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def offsets(owner: Ints, n_owners: int) -> Ints:
    """Offsets (n_owners + 1,) of items sorted by owner.

    >>> import numpy as np
    >>> offsets(np.array([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    out = np.zeros(n_owners + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=n_owners), out=out[1:])
    return out


def ragged(offsets: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    """Items of the chosen owners, one after another, and their new offsets.

    >>> import numpy as np
    >>> ragged(np.array([0, 2, 5]), np.array([1, 0]))
    (array([2, 3, 4, 0, 1]), array([0, 3, 5]))
    """
    start = offsets[chosen]
    return spans(start, offsets[chosen + 1] - start)


def spans(start: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Items of several spans, one after another, and the spans' offsets.

    >>> import numpy as np
    >>> spans(np.array([2, 0]), np.array([3, 1]))
    (array([2, 3, 4, 0]), array([0, 3, 4]))
    """
    new = np.r_[0, np.cumsum(length)].astype(np.int64)
    return np.arange(new[-1]) + np.repeat(start - new[:-1], length), new


def hash_u64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser: a fast, well-mixed hash of 64-bit integers."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class ArrayWriter:
    """Append rows to a `.npy` file. NumPy leaves room in the header for the first axis, which is written on close.

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
        np.lib.format.write_array_header_1_0(
            self._file, {**header, "shape": (self.rows, *self.columns)}
        )

    def append(self, rows: NDArray[np.generic]) -> None:
        """Append rows along the first axis."""
        self._file.write(np.ascontiguousarray(rows, dtype=self.dtype).data)
        self.rows += len(rows)
        self.last = rows[-1] if len(rows) else self.last

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is None:
            self._file.seek(0)
            self._write_header()
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()


def scratch(*shape: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """An array of NaN, in memory where it is small, else in a file without a name.

    The system keeps as much of such a file in memory as there is room for, and writes the rest to the disk of `TMPDIR`.
    Nobody else can open it, and it is gone when the array is, also after `kill -9`.
    Where the folder of temporary files has no room, or the system cannot reserve it, the array is in memory after all.

    >>> scratch(2, 3).shape
    (2, 3)
    """
    size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    if size < LARGE_BYTES or not hasattr(os, "posix_fallocate"):
        return np.full(shape, np.nan, dtype)
    try:
        with TemporaryFile(prefix="ehrseq-") as file:
            # reserves the space: a disk that is full later would kill the process
            os.posix_fallocate(file.fileno(), 0, size)
            out = np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=shape))
    except OSError:
        return np.full(shape, np.nan, dtype)
    for some in row_blocks(len(out)):
        out[some] = np.nan
    return out


def row_blocks(count: int) -> Iterator[slice]:
    """Slices of at most `BLOCK_ROWS` rows, one after another.

    >>> [(some.start, some.stop) for some in row_blocks(8_000)]
    [(0, 5000), (5000, 8000)]
    """
    return (slice(at, min(at + BLOCK_ROWS, count)) for at in range(0, count, BLOCK_ROWS))


def selected(values: Floats, rows: Ints | slice, columns: Ints | slice) -> Floats:
    """`values[rows][:, :, columns]` of a (R, E, K) array; a copy unless both are slices."""
    if isinstance(rows, slice):
        if isinstance(columns, slice):
            return values[rows, :, columns]
        rows = np.arange(len(values))[rows]
    width = len(np.arange(values.shape[2])[columns])
    out = scratch(len(rows), values.shape[1], width)
    for some in row_blocks(len(rows)):
        out[some] = values[rows[some]][:, :, columns]
    return out
