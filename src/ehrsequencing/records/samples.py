"""Bounded samples of values, one for each code, that do not depend on the order in which rows come."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Bools, Floats, Ints, Ints32
from ehrsequencing.records.events import group_order

Rows = tuple[Ints32, NDArray[np.uint64], NDArray[np.floating[Any]], NDArray[np.uint32]]
SAMPLE = 2048  # values kept per key
# rows that wait at least before a sample is cut down again; in a large one, half of what it holds
WAITING = 1 << 19


class Sample:
    """A bounded sample of values per key: those with the smallest hashes, whatever the order of the rows.

    Most rows of a large data set cost one comparison, since hashes above a key's limit are dropped at once.
    """

    def __init__(self) -> None:
        self._limit = np.zeros(0, np.uint64)  # per key, the largest hash that may still enter
        self._parts: list[Rows] = []
        self._waiting = self._kept = 0

    def add(
        self,
        key: Ints,
        hashed: NDArray[np.uint64],
        value: NDArray[np.floating[Any]],
        owner: NDArray[np.uint32],
    ) -> None:
        """Add rows: keys, hashes, values and owners (n,)."""
        missing = int(key.max(initial=-1)) + 1 - len(self._limit)
        if missing > 0:
            self._limit = np.r_[self._limit, np.full(missing, np.iinfo(np.uint64).max, np.uint64)]
        near = np.flatnonzero(hashed <= self._limit.take(key))
        self._parts.append(
            (key.take(near).astype(np.int32), hashed.take(near), value.take(near), owner.take(near))
        )
        self._waiting += len(near)
        if self._waiting > max(WAITING, self._kept // 2):
            self.rows()

    def rows(self) -> Rows:
        """Keys (sorted), hashes, values and owners of the sample."""
        if not self._parts:
            return (
                np.zeros(0, np.int32),
                np.zeros(0, np.uint64),
                np.zeros(0),
                np.zeros(0, np.uint32),
            )
        # parts are freed one by one
        columns, self._parts = (
            list(zip(*self._parts, strict=True)),
            [],
        )
        key, hashed, value, owner = (np.concatenate(columns.pop(0)) for _ in range(4))
        if self._waiting:
            order = group_order(key, len(self._limit))
            counts = np.bincount(key, minlength=len(self._limit))
            stop = np.cumsum(counts)
            keep = np.ones(len(order), dtype=bool)
            for k in np.flatnonzero(counts > SAMPLE).tolist():
                span = slice(stop[k] - counts[k], stop[k])
                keep[span] = self._smallest(
                    hashed[order[span]], value[order[span]], owner[order[span]]
                )
                self._limit[k] = hashed[order[span]][keep[span]].max()
            chosen = order[keep]
            key, hashed, value, owner = key[chosen], hashed[chosen], value[chosen], owner[chosen]
            self._waiting, self._kept = 0, len(key)
        self._parts = [(key, hashed, value, owner)]
        return key, hashed, value, owner

    @staticmethod
    def _smallest(
        hashed: NDArray[np.uint64], value: NDArray[np.floating[Any]], owner: NDArray[np.uint32]
    ) -> Bools:
        """(n,) True for the `SAMPLE` smallest hashes; of equal ones, those with the smallest value, then owner."""
        keep = hashed <= np.partition(hashed, SAMPLE - 1)[SAMPLE - 1]
        if keep.sum() > SAMPLE:
            keep[:] = False
            keep[np.lexsort((owner, value, hashed))[:SAMPLE]] = True
        return np.asarray(keep)

    def by_key(self) -> "Values":
        """The sample's values, key by key."""
        key, _, value, owner = self.rows()
        return Values(
            np.searchsorted(key, np.arange(len(self._limit) + 1, dtype=np.int32)), value, owner
        )


@dataclass(frozen=True)
class Values:
    """Values (n,) and their owners, key by key; key k has `[offsets[k]:offsets[k + 1]]`."""

    offsets: Ints
    value: NDArray[np.floating[Any]]
    owner: NDArray[np.uint32]

    def of(self, key: int) -> tuple[Floats, NDArray[np.uint32]]:
        """Values of one key, and their owners."""
        own = slice(*self.offsets[key : key + 2]) if 0 <= key < len(self.offsets) - 1 else slice(0)
        return self.value[own].astype(np.float64), self.owner[own]

    def all(self) -> tuple[Floats, NDArray[np.uint32]]:
        """The values of all keys together, and their owners."""
        return self.value.astype(np.float64), self.owner
