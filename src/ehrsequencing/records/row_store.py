"""The fixed rows of every shard in files between the two passes of `prepare`: shards in, ranges of subjects out.

The second pass goes by subject id, in which the subjects of a prepared set stand, and a range may have rows in any
shard. A file holds 16 bytes a row (20 with encounters).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Ints, offsets, ragged
from ehrsequencing.records.events import Events, pieces

_ROW = [("time_us", np.int64), ("code", np.int32), ("value", np.float32)]
_ENCOUNTER = ("encounter", np.int32)


@dataclass(frozen=True)
class KeptRows:
    """The rows of one shard, or of a range of its subjects."""

    path: Path
    dtype: np.dtype[Any]  # of a row
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

    def read(self) -> NDArray[Any]:
        """The rows; codes get the data set's numbers."""
        first, stop = int(self.offsets[0]), int(self.offsets[-1])
        start = first * self.dtype.itemsize
        rows = np.fromfile(self.path, self.dtype, count=stop - first, offset=start)
        rows["code"] = self.numbers[rows["code"]]
        return rows


def keep(events: Events, path: Path, numbers: Ints) -> KeptRows:
    """Write the fixed rows of a shard to a file; `numbers` (C,) are those of its codes."""
    path.parent.mkdir(exist_ok=True)
    dtype = np.dtype(_ROW if events.encounter is None else [*_ROW, _ENCOUNTER])
    rows = np.empty(len(events), dtype)
    for name in dtype.names or ():
        rows[name] = getattr(events, name)
    rows.tofile(path)
    subject_id, subject = events.subjects
    bounds = offsets(subject, len(subject_id))
    return KeptRows(path, dtype, subject_id, bounds, events.beyond, numbers)


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
    stored = np.concatenate([shard.read() for shard in shards])
    subject_id = np.concatenate([shard.subject_id for shard in shards])
    counts = np.concatenate([np.diff(shard.offsets) for shard in shards])
    beyond = np.concatenate([shard.beyond for shard in shards])
    bounds = np.r_[0, np.cumsum(counts)]
    order = np.lexsort((subject_id, group(subject_id)))
    first_row = np.cumsum(counts[order]) - counts[order]
    for piece in pieces(first_row, len(stored), rows):
        first, stop = np.searchsorted(first_row, [piece.start, piece.stop])
        chosen = order[first:stop]
        own = stored.take(ragged(bounds, chosen)[0])
        columns = {name: np.ascontiguousarray(own[name]) for name in own.dtype.names or ()}
        who = np.repeat(subject_id[chosen], counts[chosen])
        yield Events(subject_id=who, codes=codes, beyond=beyond, **columns)


def ranges(shards: Sequence[KeptRows], parts: int) -> Iterator[list[KeptRows]]:
    """Cut all subjects, in the order of their ids, into at most so many ranges with about as many rows each.

    Ranges are made one at a time, since all of them together would be as many objects as ranges times shards.
    """
    ids = np.concatenate([shard.subject_id for shard in shards])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    rows = np.cumsum(np.concatenate([np.diff(shard.offsets) for shard in shards])[order])
    stops = np.searchsorted(rows, np.linspace(0, rows[-1], parts + 1)[1:])
    stops = np.unique(np.append(stops, len(ids) - 1))
    for before, last in pairwise([-1, *stops.tolist()]):
        inside = [shard.between(ids[before + 1], ids[last]) for shard in shards]
        yield [shard for shard in inside if len(shard.subject_id)]
