"""Read MEDS: find shards, check the schema, fix what can be fixed (and count it), refuse what cannot.

A shard becomes `Events`: plain NumPy columns, one row per event, sorted by subject and time. `dialect.py` reads the
file, `fixes.py` fixes its rows; what happens to which kind of bad input is the table of docs/data.md.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.arrays import Ints
from ehrsequencing.config import DataConfig, DialectConfig, SplitsConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.data_end import DayCounts, LateRows, find_late_rows
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    DEATH,
    SECOND_US,
    STATIC,
    Events,
    first_time,
    hash_u64,
    parse_date_us,
)
from ehrsequencing.records.files import listed, parquet_files
from ehrsequencing.records.fixes import FIXES, FixLog, fix
from ehrsequencing.records.parquet_rows import check_schemas, read_events, read_table, subject_ids

__all__ = [
    "BIRTH",
    "DAY_US",
    "DEATH",
    "FIXES",
    "SECOND_US",
    "SPLITS",
    "STATIC",
    "DayCounts",
    "Events",
    "LateRows",
    "MedsReader",
    "SplitLookup",
    "find_shards",
    "first_time",
    "hash_splits",
    "hash_u64",
    "parse_date_us",
    "read_table",
]  # fmt: skip
SPLITS = ("train", "tuning", "held_out")
_METADATA = ("subject_splits.parquet", "codes.parquet")
_OTHER_SPLITS = ("test", "val", "valid", "validation", "dev", "tune", "holdout", "training")


def find_shards(data: Path) -> list[Path]:
    """The Parquet files under `DATA/data`, sorted by path; folders in between (splits, Spark's output) do not matter.

    Raises:
        EhrseqError: No such folder, no shard in it, a folder that cannot be listed, the folder of a split that holds
            other files only, or a link that leads out of the data set, to another folder or nowhere.
    """
    if not data.is_dir():
        raise EhrseqError("is not a folder", where=str(data), fix="name the folder of a MEDS data set")
    root, home = data / "data", data.resolve()
    shards = parquet_files(root)
    if not shards:
        raise EhrseqError("holds no data/**/*.parquet", where=str(data), fix="name the folder of a MEDS data set")
    for path in (*shards, *listed(data / "metadata")):
        if not path.resolve().is_relative_to(home):
            raise EhrseqError("is a link out of the data set", where=str(path), fix="copy the file into the folder")
        if path.name in _METADATA and path.is_dir():  # would be taken for no such file
            raise EhrseqError("is a folder", where=str(path), fix="write it as one Parquet file")
    _refuse_lost_splits(root, shards)
    return shards


def _refuse_lost_splits(root: Path, shards: list[Path]) -> None:
    """Refuse what has the name of a split but gives no rows: a plain file, or a folder with files of another kind."""
    for path in (root / name for name in SPLITS):
        if path.is_file():
            raise EhrseqError("is a file", where=str(path), fix="a split is a folder of Parquet files")
        if any(shard.is_relative_to(path) for shard in shards):
            continue
        others = [other for other in listed(path) if not other.name.startswith((".", "_"))]
        if others:
            what = f"holds no .parquet file, but {others[0].name}"
            raise EhrseqError(what, where=str(path), fix="write its rows as Parquet, or remove the folder")


class Survey(Protocol):
    """What a pass over all shards found."""

    @property
    def days(self) -> DayCounts:
        """Rows by day."""


Found = TypeVar("Found", bound=Survey)


class MedsReader:
    """The shards of one data set, checked and fixed one by one.

    Args:
        data: Folder of the data set.
        settings: What the files do not tell (date of extraction, dialect).
        encounter_column: Extra column that names the encounter, where visits are cut by it.

    Attributes:
        fixes: How often each fix of `FIXES` was applied by the shards read so far, and where first.
        late: Rows that are dropped, since they come long after all others; None before `settle`, or without any.

    Raises:
        EhrseqError: No shards, or shards whose columns differ in type.
    """

    def __init__(self, data: Path, settings: DataConfig | None = None, *, encounter_column: str | None = None) -> None:
        self.data, self.encounter_column = data, encounter_column
        settings = settings or DataConfig()
        self.dialect = settings.dialect or DialectConfig()
        self.shards = find_shards(data)
        check_schemas(self.shards, self.dialect)
        self.fixes = FixLog()
        self.late: LateRows | None = None
        self.declared_us = parse_date_us(settings.extracted) if settings.extracted else None

    def __iter__(self) -> Iterator[Events]:
        ids: list[Ints] = []
        for path in self.shards:
            events = self.read(path)
            ids.append(events.subjects[0])
            yield events
        refuse_scattered(ids, self.shards)

    def read(self, path: Path) -> Events:
        """Read, check and fix one shard."""
        events = read_events(path, self.fixes, dialect=self.dialect, encounter_column=self.encounter_column)
        return fix(
            events, path, self.fixes, dialect=self.dialect,
            extracted_us=None if self.declared_us is None else self.declared_us + DAY_US,
            until_us=None if self.late is None else self.late.until_us,
        )  # fmt: skip

    def settle(self, survey: Callable[[], Found]) -> Found:
        """Make a pass over all shards; where it finds late rows, make it again without them.

        Late rows are seldom there, and one pass is then enough. Where `data.extracted` tells the data's end, later
        rows are refused and none is late.

        Args:
            survey: Reads every shard, from the first on, and counts its days.

        Returns:
            What the last pass found; from now on `read` drops the late rows.
        """
        found = survey()
        self.late = find_late_rows(found.days) if self.declared_us is None else None
        if self.late is not None:
            self.fixes = FixLog()
            found = survey()
        return found

    def end_us(self, days: DayCounts) -> int:
        """The data's end: as `data.extracted` says, else the last timestamp.

        Args:
            days: Of all shards, as `settle` found them.
        """
        return days.last_us if self.declared_us is None else self.declared_us


def refuse_scattered(ids: list[Ints], shards: list[Path]) -> None:
    """Refuse a subject with rows in two shards: neither would hold the whole record.

    Args:
        ids: The distinct subject ids of each shard.
        shards: The shards.

    Raises:
        EhrseqError: Names the two files, not the subject.
    """
    every = np.concatenate([*ids, np.zeros(0, np.int64)])
    order = np.argsort(every, kind="stable")
    twice = np.flatnonzero(every[order][1:] == every[order][:-1])
    if len(twice):
        shard = np.repeat(np.arange(len(ids)), [len(part) for part in ids])
        first, second = shard[order[twice[0]]], shard[order[twice[0] + 1]]
        what = f"a subject is in two shards, here and in {shards[first]} ({len(twice)} such cases)"
        raise EhrseqError(what, where=str(shards[second]), fix="keep each subject's rows in one file")


class SplitLookup:
    """The split of every subject: as `assigned`, from `metadata/subject_splits.parquet`, or by hashed subject id.

    Args:
        data: Folder of the data set.
        settings: `by: file` falls back to `hash` where there is no file.
        assigned: Sorted ids and their splits, as `records.splits` finds them by folder, date or site.
    """

    def __init__(
        self,
        data: Path,
        settings: SplitsConfig,
        *,
        assigned: tuple[Ints, NDArray[np.int8]] | None = None,
    ) -> None:
        self.settings, self.path = settings, data / "metadata" / "subject_splits.parquet"
        self.from_file = settings.by == "file" and self.path.is_file()
        self._by_hash = not self.from_file and assigned is None
        if self._by_hash and settings.by in ("date", "site"):
            raise EhrseqError("needs the records", where=f"splits.by={settings.by}", fix="use splits.by=hash here")
        nobody = np.zeros(0, np.int64), np.zeros(0, np.int8)
        self._ids, self._split = assigned or (self._read() if self.from_file else nobody)

    def _read(self) -> tuple[Ints, NDArray[np.int8]]:
        table = read_table(self.path)
        if not {"subject_id", "split"} <= set(table.column_names):
            raise EhrseqError("needs the columns subject_id and split", where=str(self.path), fix="see the MEDS schema")
        ids = subject_ids(table["subject_id"], self.path).to_numpy()
        names = table["split"].to_pylist()
        unknown = [row for row, name in enumerate(names) if name not in SPLITS]
        if unknown:
            word = names[unknown[0]]
            shown = f" {word!r}" if word in _OTHER_SPLITS else ""  # anything else may be a patient's
            where = f"{self.path}, row {unknown[0]}"
            raise EhrseqError(f"unknown split{shown}", where=where, fix=f"use {', '.join(SPLITS)}")
        pairs = np.unique(np.stack([ids, np.array([SPLITS.index(n) for n in names], dtype=np.int64)]), axis=1)
        if len(np.unique(pairs[0])) != pairs.shape[1]:
            raise EhrseqError("a subject is in two splits", where=str(self.path), fix="keep one row per subject")
        return pairs[0], pairs[1].astype(np.int8)

    def __call__(self, subject_ids: Ints) -> NDArray[np.int8]:
        """(S,) position in `SPLITS` of each subject."""
        if self._by_hash:
            return hash_splits(subject_ids, self.settings)
        position = np.searchsorted(self._ids, subject_ids)
        found = position < len(self._ids)
        found[found] = self._ids[position[found]] == subject_ids[found]
        if not found.all():
            what = f"{int((~found).sum())} subjects of the data have no split"
            raise EhrseqError(what, where=str(self.path), fix="add them, or use splits.by=hash")
        return self._split[position]

    def absent(self, subject_ids: Ints) -> int:
        """How many subjects of the split file are not among these."""
        return int(len(self._ids) - np.isin(self._ids, subject_ids).sum())


def hash_splits(subject_ids: Ints, settings: SplitsConfig) -> NDArray[np.int8]:
    """Split by a hash of the subject id: the same subject always lands in the same split.

    The seed is hashed itself before it moves the ids: added as it is, the seeds 1, 2, 3 … would slide one pattern
    along consecutive ids. Seed 0 moves nothing.
    """
    seeds = hash_u64(np.array([0, settings.seed % 2**64], dtype=np.uint64))
    unit = hash_u64(subject_ids.view(np.uint64) + (seeds[1:] - seeds[:1])) / 2.0**64
    return np.searchsorted([settings.train, settings.train + settings.tuning], unit, side="right").astype(np.int8)
