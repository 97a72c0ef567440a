"""Read a MEDS data set: find its shards, check their columns, and turn each shard into clean `Events`.

`parquet_rows.py` reads a file and `fixes.py` fixes its rows. docs/data.md lists what happens to each kind of bad input.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import DataConfig, DialectConfig, VisitsConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import (
    IMPORTED,
    MANIFEST,
    SIMULATION,
    is_json_of,
    read_manifest,
    require_unchanged,
)
from ehrsequencing.records.data_end import DayCounts, LateRows
from ehrsequencing.records.events import DAY_US, Events, parse_date_us
from ehrsequencing.records.files import listed, parquet_files
from ehrsequencing.records.fixes import FixLog, fix
from ehrsequencing.records.parquet_rows import check_schemas, read_events

SPLITS = ("train", "tuning", "held_out")
_EDITED = f"fetch or import it again; if you changed the data on purpose, remove its {MANIFEST}"
_METADATA = ("subject_splits.parquet", "codes.parquet")


def find_shards(data: Path) -> list[Path]:
    """The Parquet files under `DATA/data`, sorted by path; folders in between (splits, Spark's output) do not matter.

    Raises:
        EhrseqError: No such folder, no shard in it, a folder that cannot be listed, the folder of a split that holds
            other files only, or a link that leads out of the data set, to another folder or nowhere.
    """
    if not data.is_dir():
        raise EhrseqError(
            "is not a folder", where=str(data), fix="name the folder of a MEDS data set"
        )
    root, home = data / "data", data.resolve()
    shards = parquet_files(root)
    if not shards:
        raise EhrseqError(
            "holds no data/**/*.parquet", where=str(data), fix="name the folder of a MEDS data set"
        )
    for path in (*shards, *listed(data / "metadata")):
        if not path.resolve().is_relative_to(home):
            raise EhrseqError(
                "is a link out of the data set",
                where=str(path),
                fix="copy the file into the folder",
            )
        if path.name in _METADATA and path.is_dir():  # would be taken for no such file
            raise EhrseqError("is a folder", where=str(path), fix="write it as one Parquet file")
    _refuse_lost_splits(root, shards)
    return shards


def _refuse_lost_splits(root: Path, shards: list[Path]) -> None:
    """Refuse what is named as a split but gives no rows: a plain file, or a folder with files of another kind."""
    for path in (root / name for name in SPLITS):
        if path.is_file():
            raise EhrseqError(
                "is a file", where=str(path), fix="a split is a folder of Parquet files"
            )
        if any(shard.is_relative_to(path) for shard in shards):
            continue
        others = [other for other in listed(path) if not other.name.startswith((".", "_"))]
        if others:
            what = f"holds no .parquet file, but {others[0].name}"
            raise EhrseqError(
                what, where=str(path), fix="write its rows as Parquet, or remove the folder"
            )


def _own_manifest(data: Path) -> dict[str, Any]:
    """The manifest of a data set that ehrseq wrote, once its metadata is as it lists it; else one without files.

    Raises:
        EhrseqError: The manifest is damaged, or a file of the data set is missing or has changed.
    """
    if not any(is_json_of(data / MANIFEST, kind) for kind in (IMPORTED, SIMULATION)):
        return {"files": {}}
    manifest = read_manifest(data, what="a MEDS data set", verify=False)
    for name in manifest["files"]:
        if name.startswith("metadata/"):
            require_unchanged(data, manifest, name, fix=_EDITED)
    return manifest


class MedsReader:
    """The shards of one data set, checked and fixed one by one.

    Attributes:
        fixes: How often each fix of `FIXES` was applied by the shards read so far, and where first.
        late: Rows that are dropped, since they come long after all others; `survey` sets it. None without any.

    Raises:
        EhrseqError: No shards, shards whose columns differ in type, or files that are not as ehrseq wrote them.
    """

    def __init__(
        self, data: Path, settings: DataConfig | None = None, visits: VisitsConfig | None = None
    ) -> None:
        self.data = data
        self.encounter_column = (
            visits.column if visits is not None and visits.by == "encounter" else None
        )
        settings = settings or DataConfig()
        self.dialect = settings.dialect or DialectConfig()
        self.shards = find_shards(data)
        self._manifest = _own_manifest(data)
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
        """Read, check and fix one shard; where ehrseq wrote the data set, its bytes must be those of the manifest."""
        require_unchanged(
            self.data, self._manifest, path.relative_to(self.data).as_posix(), fix=_EDITED
        )
        events = read_events(
            path, self.fixes, dialect=self.dialect, encounter_column=self.encounter_column
        )
        extracted_us = None if self.declared_us is None else self.declared_us + DAY_US
        until_us = None if self.late is None else self.late.until_us
        return fix(
            events,
            path,
            self.fixes,
            dialect=self.dialect,
            extracted_us=extracted_us,
            until_us=until_us,
        )

    def end_us(self, days: DayCounts) -> int:
        """The data's end: as `data.extracted` says, else the last timestamp of all shards' `days`."""
        return days.last_us if self.declared_us is None else self.declared_us


def refuse_scattered(ids: list[Ints], shards: list[Path]) -> None:
    """Refuse a subject with rows in two shards: neither would hold the whole record.

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
        raise EhrseqError(
            what, where=str(shards[second]), fix="keep each subject's rows in one file"
        )
