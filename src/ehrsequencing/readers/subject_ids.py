"""Ids of patients that are text → the whole numbers that MEDS wants, and the table of both."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ehrsequencing.core.errors import EhrseqError

SUBJECT_IDS = "metadata/subject_ids.parquet"


def subject_ids(names: pa.ChunkedArray) -> pa.Array:
    """The first 63 bits of the SHA-256 of each name, so that a patient has the same id in every export.

    >>> subject_ids(pa.chunked_array([["a", "a", None]])).to_pylist()
    [7299139317422481125, 7299139317422481125, None]
    """
    names = names.combine_chunks().dictionary_encode()
    names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    hashes = [
        int.from_bytes(hashlib.sha256(n.encode()).digest()[:8], "big") >> 1
        for n in names.dictionary.to_pylist()
    ]
    return pa.array(hashes, pa.int64()).take(names.indices)


class SubjectNames:
    """The patients' names in a source."""

    def __init__(self) -> None:
        self._names: list[pa.Array] = []

    def add(self, names: pa.ChunkedArray) -> None:
        """Take the names of a block of patients."""
        self._names.append(pc.unique(names).drop_null())

    def write(self, folder: Path) -> None:
        """Write `metadata/subject_ids.parquet`: subject ids and the patients' names.

        Raises:
            EhrseqError: Two patients have the same id.
        """
        names = pc.unique(pa.chunked_array(self._names, pa.string()))
        ids = subject_ids(pa.chunked_array([names]))
        if len(pc.unique(ids)) != len(names):
            fix = "import the patients in two parts"
            raise EhrseqError("two patients' hashed ids coincide", where="patients", fix=fix)
        path = folder / SUBJECT_IDS
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.table({"subject_id": ids, "source_id": names}).sort_by("subject_id"), path
        )
