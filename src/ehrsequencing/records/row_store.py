"""Rows between the two passes of `prepare`: each shard's fixed rows in a file, read back by ranges of subjects.

Reading and fixing costs more than all that comes after, so it is done once. A shard's rows are sorted by subject, so
the rows of a range of subjects are one slice of its file. The second pass reads subjects in the order of their ids,
however the shards were cut, and its output needs no sorting.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Ints, offsets, ragged
from ehrsequencing.records.events import Events, pieces

_COLUMNS = {"time_us": np.int64, "code": np.int32, "value": np.float32, "encounter": np.int32}


@dataclass(frozen=True)
class KeptRows:
    """The rows of one shard, or of a range of its subjects; the file holds one column after another."""

    path: Path
    total: int  # rows in the file
    columns: tuple[str, ...]  # their names
    subject_id: Ints  # (S,) int64, sorted
    offsets: Ints  # (S+1,) int64; subject s owns rows `[offsets[s], offsets[s+1])` of the file
    beyond: Ints  # as in `Events`
    numbers: Ints  # (C,) the number that each of the shard's codes has in the data set

    def between(self, first: int, last: int) -> "KeptRows":
        """The rows of subjects whose ids are from `first` to `last`, both included."""
        start = np.searchsorted(self.subject_id, first)
        stop = np.searchsorted(self.subject_id, last, side="right")
        ids, offsets = self.subject_id[start:stop], self.offsets[start : stop + 1]
        return replace(self, subject_id=ids, offsets=offsets)

    def read_into(self, columns: dict[str, NDArray[Any]], place: slice) -> None:
        """Read these rows into a slice of arrays; codes get the data set's numbers."""
        start = 0
        with open(self.path, "rb") as file:  # buffered: it reads on until the column is full
            for name in self.columns:
                dtype = np.dtype(_COLUMNS[name])
                file.seek(start + dtype.itemsize * int(self.offsets[0]))
                file.readinto(columns[name][place].data)
                start += dtype.itemsize * self.total
        columns["code"][place] = self.numbers[columns["code"][place]]


def keep(events: Events, path: Path, numbers: Ints) -> KeptRows:
    """Write the fixed rows of a shard to a file; `numbers` (C,) are those of its codes."""
    path.parent.mkdir(exist_ok=True)
    columns = tuple(name for name in _COLUMNS if getattr(events, name) is not None)
    with open(path, "wb") as file:
        for name in columns:
            file.write(np.ascontiguousarray(getattr(events, name), dtype=_COLUMNS[name]).data)
    subject_id, subject = events.subjects
    bounds = offsets(subject, len(subject_id))
    return KeptRows(path, len(events), columns, subject_id, bounds, events.beyond, numbers)


def read_kept(
    shards: Sequence[KeptRows],
    codes: tuple[str, ...],
    *,
    group: Callable[[Ints], NDArray[np.int8]],
    rows: int,
) -> Iterator[Events]:
    """The rows of some subjects, from all shards that hold any, in pieces of whole subjects.

    Args:
        shards: As `KeptRows.between` gives them, none of them empty.
        codes: All codes of the data set.
        group: The group of each subject id (S,). Subjects come group by group, in each by their ids.
        rows: About so many rows make a piece, few enough for the processor's cache.

    Yields:
        Rows by subject and time.
    """
    lengths = [int(shard.offsets[-1] - shard.offsets[0]) for shard in shards]
    columns = {name: np.empty(sum(lengths), dtype=_COLUMNS[name]) for name in shards[0].columns}
    stop = 0
    for shard, length in zip(shards, lengths, strict=True):
        shard.read_into(columns, slice(stop, stop := stop + length))
    subject_id = np.concatenate([shard.subject_id for shard in shards])
    counts = np.concatenate([np.diff(shard.offsets) for shard in shards])
    beyond = np.concatenate([shard.beyond for shard in shards])
    bounds = np.r_[0, np.cumsum(counts)]
    order = np.lexsort((subject_id, group(subject_id)))
    first_row = np.cumsum(counts[order]) - counts[order]
    for piece in pieces(first_row, int(counts.sum()), rows):
        chosen = order[
            np.searchsorted(first_row, piece.start) : np.searchsorted(first_row, piece.stop)
        ]
        places, _ = ragged(bounds, chosen)
        own = {name: column.take(places) for name, column in columns.items()}
        rows_of = np.repeat(subject_id[chosen], counts[chosen])
        yield Events(subject_id=rows_of, codes=codes, beyond=beyond, **own)


def ranges(shards: Sequence[KeptRows], parts: int) -> Iterator[list[KeptRows]]:
    """Cut all subjects, in the order of their ids, into at most so many ranges with about as many rows each.

    Ranges are made one at a time, since all of them together would be as many objects as ranges times shards.
    """
    for first, last in _bounds(shards, parts):
        inside = [shard.between(first, last) for shard in shards]
        yield [shard for shard in inside if len(shard.subject_id)]


def _bounds(shards: Sequence[KeptRows], parts: int) -> list[tuple[int, int]]:
    ids = np.concatenate([shard.subject_id for shard in shards])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    rows = np.concatenate([np.diff(shard.offsets) for shard in shards])[order]
    np.cumsum(rows, out=rows)
    stops = np.searchsorted(rows, np.linspace(0, rows[-1], parts + 1)[1:])
    stops = np.unique(np.append(stops, len(ids) - 1))
    firsts = np.r_[0, stops[:-1] + 1]
    return list(zip(ids[firsts].tolist(), ids[stops].tolist(), strict=True))
