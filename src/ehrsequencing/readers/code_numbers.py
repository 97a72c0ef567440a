"""Codes as numbers: the writer keeps each distinct code once, and its rows hold numbers of four bytes."""

import numpy as np
import pyarrow as pa

from ehrsequencing.readers.rows import encoded


class CodeNumbers:
    """Numbers the codes of an import in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, code: pa.ChunkedArray) -> pa.Array:
        """(n,) int32 numbers of codes, null for null."""
        places = encoded(code)
        texts = places.dictionary.to_pylist()
        numbers = np.array([self._numbers.setdefault(text, len(self._numbers)) for text in texts], dtype=np.int32)
        return pa.array(numbers).take(places.indices)

    @property
    def texts(self) -> pa.Array:
        """The codes by number."""
        return pa.array(list(self._numbers), pa.string())
