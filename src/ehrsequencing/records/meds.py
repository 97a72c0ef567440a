"""Read a MEDS data set: find its shards, check their columns, and turn each shard into clean `Events`.

`parquet_rows.py` reads a file: events as they stand there. Here each step then drops, renames or reorders rows, and
counts what it did. docs/data.md lists what happens to each kind of bad input.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ehrsequencing.config import DataConfig, StudyConfig, ValuesConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import (
    MANIFEST,
    read_manifest,
    require_unchanged,
)
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.deaths import keep_lifetimes, settle_deaths
from ehrsequencing.records.events import (
    BIRTH,
    BIRTH_NAMES,
    DAY_US,
    DEATH,
    DEATH_NAMES,
    ENDS,
    MAX_US,
    SECOND_US,
    STATIC,
    Events,
    opens_run,
    parse_date_us,
)
from ehrsequencing.records.parquet_rows import are_named, check_schemas, read_events
from ehrsequencing.records.scales import canonical_unit

__all__ = ["MedsReader"]

SPLITS = ("train", "tuning", "held_out")
IMPORT_SETTINGS = "ehrseq_import"  # of `metadata/dataset.json`; other readers of MEDS ignore it
FIXES = {
    "time_unit": "times given as dates or in another unit than microseconds were converted",
    "time_zone": "times with a time zone were read as clock times of data.time_zone",
    "value_type": "values of another type than float32 were converted",
    "birth_name": "rows whose code has another name for birth were renamed to MEDS_BIRTH",
    "death_name": "rows whose code has another name for death were renamed to MEDS_DEATH",
    "unsorted": "subjects whose rows were not in time order were sorted",
    "not_contiguous": "subjects whose rows were scattered in a shard were gathered",
    "duplicates": "rows that repeat another row exactly were dropped",
    "bad_year": "rows with a year up to 1900 or from 9999 were dropped (births excepted)",
    "after_end": "rows after the data's end, few and far behind all others, were dropped; data.extracted sets that end",
    "late_birth": "births after all other rows of their subject were dropped",
    "early_death": "deaths before birth were dropped",
    "life_day": "dates on the day of a birth or death were put at its time, within life",
    "before_birth": "rows before birth were dropped",
    "after_death": "rows after death were dropped",
    "bad_value": "values that are NaN, infinite or beyond 1e37 were dropped, their codes kept",
    "missing_value": "numbers that values.missing names were set aside, their codes kept",
    "static_value": "numbers of rows without a time were ignored, their codes kept",
    "undated_death": "people are known to be dead without a date: they are never alive after their last sign of life",
    "filled_death": "deaths on 1 January, 31 December or a 15th went to a discharge by death, or the last sign of life",
    "doubtful_death": "deaths were dropped: their people were seen on two days or more, over 60 days later",
    "static_only": "subjects without any timed row were dropped",
    "absent_split": "splits of subjects without data were ignored",
    "old_age": "ages over 120 years were taken as unknown",
    "after_censoring": "outcomes after the end of follow-up were ignored",
}
# deaths from this day on, so long after all other rows, are open ends: nobody has died yet
OPEN_DAY, OPEN_GAP_DAYS = 29_220, 3652  # 2050-01-01
MIN_US = int(datetime(1901, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US
_YEAR_1_US = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US
_EDITED = f"fetch or import it again; if you changed the data on purpose, remove its {MANIFEST}"


# ---- the files -------------------------------------------------------------------------------------------------------


def find_shards(data: Path) -> list[Path]:
    """The Parquet files under `DATA/data`, sorted by path; folders in between (splits, Spark's output) do not matter.

    Raises:
        EhrseqError: No such folder, no shard in it, a folder that cannot be listed, or a link that leads out of the
            data set, to another folder or nowhere.
    """
    # it may be a source that an import reads
    listed = os.listdir(data) if data.is_dir() else [data.name] if data.is_file() else []
    names = {name.lower().removesuffix(".gz") for name in listed}
    endings = {name.rpartition(".")[2] for name in names}
    kinds = {
        "omop": any(name.partition(".")[0] == "person" for name in names),
        "synthea": {"patients.csv", "encounters.csv"} <= names,
        "fhir": MANIFEST not in names and not endings.isdisjoint({"ndjson", "json"}),
        "csv": data.is_file() and not endings.isdisjoint({"csv", "tsv", "parquet"}),
    }
    kind = next((kind for kind, is_so in kinds.items() if is_so), None)
    fix = "name the folder of a MEDS data set"
    if kind is not None:
        more = " --map map.yaml" if kind == "csv" else ""
        fix = f"make one with ehrseq import {kind} {data}{more} meds"
    if not data.is_dir():
        raise EhrseqError("is not a folder", where=str(data), fix=fix)
    shards = parquet_files(data / "data")
    if not shards:
        raise EhrseqError("holds no data/**/*.parquet", where=str(data), fix=fix)
    for path in (*shards, *parquet_files(data / "metadata")):
        if not path.resolve().is_relative_to(data.resolve()):
            raise EhrseqError(
                "is a link out of the data set",
                where=str(path),
                fix="copy the file into the folder",
            )
    return shards


def parquet_files(root: Path) -> list[Path]:
    """The Parquet files under a folder, sorted by path, without hidden files; none where there is no folder.

    Raises:
        EhrseqError: A folder cannot be listed, a link leads to a folder or nowhere, or something is no file.
    """
    paths: list[Path] = []
    for folder, folders, files in os.walk(root, onerror=_refuse_unlisted):
        for path in (Path(folder, name) for name in folders + files):
            is_folder = path.is_dir() and not path.is_symlink()
            # else a link that `os.walk` passes, or a pipe to wait for
            if not (is_folder or path.is_file()):
                raise EhrseqError(
                    "is a link to a folder or to nothing, or a pipe, a socket or a device",
                    where=str(path),
                    fix="copy what it means into the folder, or remove it",
                )
        names = (name for name in files if name.endswith(".parquet") and not name.startswith("."))
        paths += [Path(folder, name) for name in names]
    return sorted(paths)


def _refuse_unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise EhrseqError(
            f"cannot be listed: {error.strerror}",
            where=str(error.filename),
            fix="make it a folder you can read",
        ) from error


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


class MedsReader:
    """The shards of one data set, checked and fixed one by one.

    Attributes:
        fixes: How often each fix of `FIXES` was applied by the shards read so far.
        causes: What to count of them as well, by name: codes that end or are the question of a task.
        people: How many have such a code in the files (`before NAME`), and in what is read (`after NAME`).
        late: Rows that are dropped, since they come long after all others; `survey` sets it. None without any.

    Raises:
        EhrseqError: No shards, shards whose columns differ in type, or files that are not as ehrseq wrote them.
    """

    def __init__(
        self, data: Path, settings: DataConfig | None = None, study: StudyConfig | None = None
    ) -> None:
        study = study or StudyConfig()
        visits, self.values = study.visits, study.values
        settings = settings or DataConfig()
        self.data = data
        self.encounter_column = visits.column if visits.by == "encounter" else None
        self.time_zone = settings.time_zone
        self.shards = find_shards(data)
        found = read_json(data / MANIFEST) if (data / MANIFEST).is_file() else None
        self._manifest: dict[str, Any] = {"files": {}}
        if isinstance(found, dict) and "digest" in found:  # else it is another program's
            self._manifest = read_manifest(data, what="a MEDS data set", verify=False)
        for name in self._manifest["files"]:
            if name.startswith("metadata/"):
                require_unchanged(data, self._manifest, name, fix=_EDITED)
        self._is_import = IMPORT_SETTINGS in read_card(data)
        check_schemas(self.shards)
        self.fixes, self.people = Counter[str](), Counter[str]()
        self.causes: dict[str, CodeMatcher] = {}
        self.late: LateRows | None = None
        # codes that end a follow-up: after a death they stand at it
        self.ends, self.no_ends = CodeMatcher(ENDS), CodeMatcher(())
        # all of that day
        day_us = None if settings.extracted is None else parse_date_us(settings.extracted)
        self.declared_us = None if day_us is None else day_us + DAY_US - 1

    def __iter__(self) -> Iterator[Events]:
        ids: list[Ints] = []
        for path in self.shards:
            events = self.read(path)
            ids.append(events.subjects[0])
            yield events
        refuse_scattered(ids, self.shards)

    def read(self, path: Path) -> Events:
        """Read, check and fix one shard; where ehrseq wrote the data set, its bytes must be those of the manifest."""
        name = path.relative_to(self.data).as_posix()
        require_unchanged(self.data, self._manifest, name, fix=_EDITED)
        events = read_events(
            path,
            self.fixes,
            time_zone=self.time_zone,
            encounter_column=self.encounter_column,
            is_import=self._is_import,
        )
        until_us = None if self.late is None else self.late.until_us
        fixed = fix(
            events,
            path,
            self.fixes,
            declared_us=self.declared_us,
            until_us=until_us,
            ends=self.ends,
            no_ends=self.no_ends,
            values=self.values,
        )
        in_time = events.time_us <= (MAX_US if until_us is None else until_us)
        for name, matcher in self.causes.items():
            before = np.unique(events.subject_id[matcher.events(events) & in_time])
            self.people[f"before {name}"] += len(before)
            self.people[f"after {name}"] += len(np.unique(fixed.subject_id[matcher.events(fixed)]))
        return fixed


def read_card(data: Path) -> dict[str, Any]:
    """Content of `metadata/dataset.json`; empty without one."""
    path = data / "metadata" / "dataset.json"
    card = read_json(path) if path.is_file() else None
    return card if isinstance(card, dict) else {}


def data_name(data: Path) -> str:
    """What the data set calls itself, else its folder's name."""
    name = read_card(data).get("dataset_name")
    return name if isinstance(name, str) and name else data.name


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
        first, second = (shards[shard[order[twice[0] + k]]] for k in (0, 1))
        raise EhrseqError(
            f"a subject is in two shards, here and in {first} ({len(twice)} such cases)",
            where=str(second),
            fix="keep each subject's rows in one file",
        )


# ---- the rows of one shard -------------------------------------------------------------------------------------------


def fix(
    events: Events,
    path: Path,
    fixes: Counter[str],
    *,
    declared_us: int | None,
    until_us: int | None = None,
    ends: CodeMatcher | None = None,
    no_ends: CodeMatcher | None = None,
    values: ValuesConfig | None = None,
) -> Events:
    """Fix the events of one shard.

    Args:
        events: As they stand in the file.
        path: The file, for messages.
        fixes: How often each of `FIXES` was applied; counted on.
        declared_us: Rows after this moment are refused; None where the date of extraction is unknown.
        until_us: Rows after this moment are dropped; None where the data has no late rows.
        ends: Codes that end a follow-up.
        no_ends: Those of them that say more, and are dropped after a death as all rows are.
        values: Which numbers mean that there is none, and whether units are joined.

    Returns:
        Events sorted by subject and time.

    Raises:
        EhrseqError: Rows after the date of extraction, or a subject with two births.
    """
    events = _rename(events, BIRTH, BIRTH_NAMES, fixes, "birth_name")
    events = _rename(events, DEATH, DEATH_NAMES, fixes, "death_name")
    if declared_us is not None:
        # a year of 9999 means unknown, and is dropped later; static rows are early
        after = np.flatnonzero((events.time_us > declared_us) & (events.time_us < MAX_US))
        if len(after):
            raise EhrseqError(
                f"{len(after)} rows are after the date of extraction",
                where=f"{path}, row {after[0]}",
                fix="correct data.extracted or the data",
            )
    values = values or ValuesConfig()
    missing = np.isin(events.value, np.array(values.missing, np.float32))
    if missing.any():  # numbers that mean that there is none
        fixes["missing_value"] += int(missing.sum())
        events = replace(events, value=np.where(missing, np.float32(np.nan), events.value))
    if values.units == "join":
        names = [canonical_unit(code) for code in events.codes]
        codes, place = np.unique(names, return_inverse=True)
        code = place[events.code].astype(np.int32)
        events = replace(events, codes=tuple(codes.tolist()), code=code)
    events = _drop_bad_years(events, fixes)
    if until_us is not None and (events.time_us > until_us).any():
        # deaths as well: who has a late row was followed until then, dead or living
        late = events.time_us > until_us
        is_open = events.is_code(DEATH) & (events.time_us > until_us + OPEN_GAP_DAYS * DAY_US)
        is_open &= events.time_us >= OPEN_DAY * DAY_US  # an open end, which tells nothing
        fixes["after_end"] += int(late.sum())
        followed = late & ~is_open & ~events.is_code(BIRTH)
        events = replace(events.take(~late), beyond=np.unique(events.subject_id[followed]))
    backwards = (events.time_us[1:] < events.time_us[:-1]) & ~opens_run(events.subject_id)[1:]
    runs = events.subject_id.take(events.starts)  # the subject of each run of rows
    if backwards.any() or (np.diff(runs) <= 0).any():
        fixes["not_contiguous"] += int((np.unique(runs, return_counts=True)[1] > 1).sum())
        fixes["unsorted"] += len(np.unique(events.subject_id[1:][backwards]))
        events = events.take(np.lexsort((events.time_us, events.subject_id)))
    events = settle_deaths(_drop_duplicates(events, fixes), fixes)
    return keep_lifetimes(events, path, fixes, ends or CodeMatcher(ENDS), no_ends)


def _rename(
    events: Events, name: str, others: Sequence[str], fixes: Counter[str], label: str
) -> Events:
    """Give codes with another name for birth or death the MEDS name, in subjects who have no row of that name."""
    is_other = are_named(events.codes, others)
    if not is_other.any():
        return events
    timed = events.time_us != STATIC
    named = events.subject_id[events.is_code(name) & timed]
    chosen = is_other[events.code] & timed & ~np.isin(events.subject_id, named)
    if not chosen.any():
        return events
    fixes[label] += int(chosen.sum())
    codes = events.codes if name in events.codes else (*events.codes, name)
    code = np.where(chosen, codes.index(name), events.code)
    used, code = np.unique(code, return_inverse=True)  # the other name is no code any more
    codes = tuple(codes[k] for k in used.tolist())
    return replace(events, code=code.astype(np.int32), codes=codes)


def _drop_bad_years(events: Events, fixes: Counter[str]) -> Events:
    time = events.time_us
    early = np.count_nonzero(time < MIN_US)
    if early == np.count_nonzero(time == STATIC) and time.max(initial=STATIC) < MAX_US:
        return events
    is_birth = events.is_code(BIRTH)
    # births before the year 1, whose age (over 120 years) could overflow, become its first day
    ancient = is_birth & (time < _YEAR_1_US) & (time != STATIC)
    time = np.where(ancient, _YEAR_1_US, time)
    bad = (time != STATIC) & (((time < MIN_US) & ~is_birth) | (time >= MAX_US))
    fixes["bad_year"] += int(bad.sum())
    return replace(events, time_us=time).take(~bad)


def _drop_duplicates(events: Events, fixes: Counter[str]) -> Events:
    """Drop rows that equal another in subject, time, code, value and encounter; the first one stays."""
    opens = opens_run(events.subject_id, events.time_us)
    moment = np.cumsum(opens) * len(events.codes) + events.code  # one number a moment and code
    order = np.argsort(moment, kind="stable")  # nearly sorted already
    twice = np.flatnonzero(~opens_run(moment.take(order)))
    rows = order[np.union1d(twice - 1, twice)]  # that share subject, time and code with another
    few = pd.DataFrame({"moment": moment[rows], "value": events.value[rows].view(np.int32)})
    if events.encounter is not None:
        few["encounter"] = events.encounter[rows]
    repeats = rows[few.duplicated().to_numpy()]
    fixes["duplicates"] += len(repeats)
    return events.take(np.delete(np.arange(len(events)), repeats)) if len(repeats) else events
