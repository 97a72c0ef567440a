"""Arrays on disk that grow while they are written."""

import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


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
