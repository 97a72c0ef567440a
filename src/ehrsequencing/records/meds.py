"""Read a MEDS data set: find its shards, check their columns, and turn each shard into clean `Events`.

`parquet_rows.py` reads a file and `fixes.py` fixes its rows. docs/data.md lists what happens to each kind of bad input.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from ehrsequencing.records.events import BIRTH, DAY_US, DEATH, STATIC, Events, parse_date_us
from ehrsequencing.records.fixes import fix
from ehrsequencing.records.parquet_rows import check_schemas, read_events

SPLITS = ("train", "tuning", "held_out")
_EDITED = f"fetch or import it again; if you changed the data on purpose, remove its {MANIFEST}"


def find_shards(data: Path) -> list[Path]:
    """The Parquet files under `DATA/data`, sorted by path; folders in between (splits, Spark's output) do not matter.

    Raises:
        EhrseqError: No such folder, no shard in it, a folder that cannot be listed, or a link that leads out of the
            data set, to another folder or nowhere.
    """
    fix = _import_of(data) or "name the folder of a MEDS data set"
    if not data.is_dir():
        raise EhrseqError("is not a folder", where=str(data), fix=fix)
    shards, home = parquet_files(data / "data"), data.resolve()
    if not shards:
        raise EhrseqError("holds no data/**/*.parquet", where=str(data), fix=fix)
    for path in (*shards, *parquet_files(data / "metadata")):
        if not path.resolve().is_relative_to(home):
            what, fix = "is a link out of the data set", "copy the file into the folder"
            raise EhrseqError(what, where=str(path), fix=fix)
    return shards


_IMPORT_OF = {"csv": "csv", "tsv": "csv", "parquet": "csv", "ndjson": "fhir", "json": "fhir"}


def _import_of(source: Path) -> str | None:
    """The import that reads a file or folder which is no MEDS data set; None for one that none reads."""
    names = [source.name] if source.is_file() else os.listdir(source) if source.is_dir() else []
    plain = {name.lower().removesuffix(".gz") for name in names}
    kind = None
    if source.is_file():
        kind = _IMPORT_OF.get(plain.pop().rpartition(".")[2])
    elif any(name.partition(".")[0] == "person" for name in plain):
        kind = "omop"
    elif {"patients.csv", "encounters.csv"} <= plain:
        kind = "synthea"
    elif any(name.endswith((".ndjson", ".json")) for name in plain):
        kind = "fhir"
    more = " --map map.yaml" if kind == "csv" else ""
    return f"make one with ehrseq import {kind} {source}{more} meds" if kind else None


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


# A few rows long after all others (an open end written as 2099-12-31, a typing error) must not extend everybody's
# follow-up. They are late if they are few, of few subjects, and follow a gap far longer than those between other rows,
# since dates that were shifted person by person are spread thinly everywhere.
FEWEST_SUBJECTS = 10  # with fewer, a late row looks like a thin record
FEW_SUBJECTS, SMALL_GAP_DAYS = 100, 3652  # below so many subjects, only a gap of ten years counts
GAP_DAYS = 365
MOST_ROWS, MOST_SUBJECTS = (
    0.01,
    0.05,
)  # shares that late rows and their subjects are at most; one is always few
OPEN_DAY = 29_220  # 2050-01-01: no earlier death is taken for an open end
TIMES_LONGER = 3  # than any gap that has more than `MOST_ROWS` on both sides


@dataclass(frozen=True)
class DayCounts:
    """Rows on each day that has any, so that shards can be added up in any order."""

    day: Ints  # (D,) int64 days since 1970, rising
    rows: Ints  # (D,) rows but births
    births: Ints  # (D,) births
    deaths: Ints  # (D,) deaths, which `rows` count too
    leaving: Ints  # (D,) subjects whose last row it is
    last_us: int  # the latest time; `STATIC` without any
    static: int  # rows without a time
    with_number: int  # rows with a number

    @property
    def years(self) -> list[int]:
        """The first and the last year with a row but births; empty without any."""
        recorded = self.day[self.rows > 0]
        return [_year(int(recorded[0])), _year(int(recorded[-1]))] if len(recorded) else []


def count_days(events: Events) -> DayCounts:
    """Count a shard, which holds whole subjects."""
    last = events.time_us[np.append(events.starts[1:], len(events))[: len(events.starts)] - 1]
    timed = events.time_us != STATIC
    day = events.time_us[np.flatnonzero(timed)] // DAY_US
    first = int(day.min()) if len(day) else 0
    n = int(day.max()) - first + 1 if len(day) else 1
    born = events.time_us[np.flatnonzero(events.is_code(BIRTH) & timed)] // DAY_US
    died = events.time_us[np.flatnonzero(events.is_code(DEATH) & timed)] // DAY_US
    rows, births, deaths = (np.bincount(days - first, minlength=n) for days in (day, born, died))
    leaving = np.bincount(last[last != STATIC] // DAY_US - first, minlength=n)
    kept = np.flatnonzero(rows)
    last_us = int(events.time_us.max(initial=STATIC))
    return DayCounts(
        day=kept + first,
        rows=(rows - births)[kept],
        births=births[kept],
        deaths=deaths[kept],
        leaving=leaving[kept],
        last_us=last_us,
        static=int(np.count_nonzero(~timed)),
        with_number=int(np.count_nonzero(~np.isnan(events.value))),
    )


def add_days(parts: Sequence[DayCounts]) -> DayCounts:
    """The counts of all parts together."""
    day, place = np.unique(np.concatenate([part.day for part in parts]), return_inverse=True)
    sums = {}
    for name in ("rows", "births", "deaths", "leaving"):
        sums[name] = np.zeros(len(day), dtype=np.int64)
        np.add.at(sums[name], place, np.concatenate([getattr(part, name) for part in parts]))
    return DayCounts(
        day,
        **sums,
        last_us=max(part.last_us for part in parts),
        static=sum(part.static for part in parts),
        with_number=sum(part.with_number for part in parts),
    )


@dataclass(frozen=True)
class LateRows:
    """Rows so long after all others that the data ends before them."""

    until_us: int  # the last microsecond of the last day before them
    rows: int  # how many
    subjects: int  # of how many subjects
    gap_days: int  # days without any row before them
    years: tuple[int, int]  # the first and the last of their years

    @property
    def text(self) -> str:
        """The rows in words; dates are shown as years only."""
        years = " to ".join(map(str, dict.fromkeys(self.years)))
        what = f"{self.rows:,} rows of {self.subjects:,} subjects, in {years}"
        return f"{what}, after {self.gap_days:,} days without any row"


def find_late_rows(days: DayCounts) -> LateRows | None:
    """The late rows of a data set; None where there are none.

    Births do not count, since they need not fall into the time that was recorded, unless they follow all other rows.
    """
    n_subjects = int(days.leaving.sum())
    recorded = days.day[days.rows > days.deaths]
    if not len(recorded):
        return None
    # deaths written as 2099-12-31, however many: nobody has died yet
    is_open = (days.day > recorded[-1] + SMALL_GAP_DAYS) & (days.day >= OPEN_DAY)
    if (is_open & (days.deaths > 0)).any():
        return _late(days, int(np.argmax(is_open)))
    if n_subjects < FEWEST_SUBJECTS:
        return None
    recorded = days.day[days.rows > 0]
    counted = days.rows + np.where(days.day > recorded[-1], days.births, 0)
    kept = np.flatnonzero(counted)
    day, rows = days.day[kept], np.cumsum(counted[kept])
    # subjects with a row on that day or later
    staying = (n_subjects - np.cumsum(days.leaving) + days.leaving)[kept]
    gap, before, after = np.diff(day), rows[:-1], rows[-1] - rows[:-1]
    few = max(1, int(MOST_ROWS * rows[-1]))
    usual = int(gap[(before > few) & (after > few)].max(initial=0))
    enough = max(GAP_DAYS if n_subjects >= FEW_SUBJECTS else SMALL_GAP_DAYS, TIMES_LONGER * usual)
    is_late = (
        (after <= few) & (staying[1:] <= max(1, int(MOST_SUBJECTS * n_subjects))) & (gap > enough)
    )
    if not is_late.any():
        return None
    return _late(days, int(np.searchsorted(days.day, day[np.argmax(is_late) + 1])))


def _late(days: DayCounts, first: int) -> LateRows:
    """The rows from the `first` day of those counted on."""
    recorded = days.day[:first][days.rows[:first] > 0]
    last = int(recorded[-1]) if len(recorded) else int(days.day[first - 1])
    return LateRows(
        until_us=(last + 1) * DAY_US - 1,
        rows=int((days.rows + days.births)[first:].sum()),
        subjects=int(days.leaving[first:].sum()),
        gap_days=int(days.day[first]) - last,
        years=(_year(int(days.day[first])), _year(int(days.day[-1]))),
    )


def _year(day: int) -> int:
    return int(np.datetime64(day, "D").astype("datetime64[Y]").astype(np.int64)) + 1970


class MedsReader:
    """The shards of one data set, checked and fixed one by one.

    Attributes:
        fixes: How often each fix of `FIXES` was applied by the shards read so far.
        late: Rows that are dropped, since they come long after all others; `survey` sets it. None without any.

    Raises:
        EhrseqError: No shards, shards whose columns differ in type, or files that are not as ehrseq wrote them.
    """

    def __init__(
        self, data: Path, settings: DataConfig | None = None, visits: VisitsConfig | None = None
    ) -> None:
        self.data = data
        visits, settings = visits or VisitsConfig(), settings or DataConfig()
        self.encounter_column = visits.column if visits.by == "encounter" else None
        self.dialect = settings.dialect or DialectConfig()
        self.shards = find_shards(data)
        self._manifest = _own_manifest(data)
        check_schemas(self.shards, self.dialect)
        self.fixes = Counter[str]()
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
        column, dialect = self.encounter_column, self.dialect
        events = read_events(path, self.fixes, dialect=dialect, encounter_column=column)
        ends = {
            "extracted_us": None if self.declared_us is None else self.declared_us + DAY_US,
            "until_us": None if self.late is None else self.late.until_us,
        }
        return fix(events, path, self.fixes, dialect=dialect, **ends)

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


def parquet_files(root: Path) -> list[Path]:
    """The Parquet files under a folder, sorted by path, without hidden files; none where there is no folder.

    Raises:
        EhrseqError: A folder cannot be listed, or a link leads to a folder or nowhere.
    """
    found: list[Path] = []
    for folder, folders, files in os.walk(root, onerror=_refuse):
        for path in (Path(folder, name) for name in folders + files):
            if path.is_symlink() and not path.is_file():  # `os.walk` would pass it in silence
                fix = "copy what it means into the folder, or remove it"
                raise EhrseqError("is a link to a folder or to nothing", where=str(path), fix=fix)
        names = (name for name in files if name.endswith(".parquet") and not name.startswith("."))
        found += [Path(folder, name) for name in names]
    return sorted(found)


def _refuse(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):
        return
    what, fix = f"cannot be listed: {error.strerror}", "make it a folder you can read"
    raise EhrseqError(what, where=str(error.filename), fix=fix) from error
