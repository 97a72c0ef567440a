"""Codes as numbers: the writer keeps each distinct code once, and its rows hold numbers of four bytes."""

import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.readers.rows import encoded


class CodeNumbers:
    """Numbers the codes of an import in the order in which they are met."""

    def __init__(self) -> None:
        self.texts = pa.array([], pa.string())  # the codes by number

    def of(self, code: pa.ChunkedArray) -> pa.Array:
        """(n,) int32 numbers of codes, null for null."""
        places = encoded(code)
        texts = places.dictionary.cast(pa.string())
        numbers = pc.index_in(texts, self.texts)
        new = texts.filter(pc.and_(numbers.is_null(), texts.is_valid()))
        if len(new):
            self.texts = pa.concat_arrays([self.texts, pc.unique(new)])
            numbers = pc.index_in(texts, self.texts)
        return numbers.take(places.indices)
