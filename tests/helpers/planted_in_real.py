"""Leaks planted in real records, as somebody would who had not read the audit's checks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ehrsequencing.audit.audit import CHECKS
from ehrsequencing.audit.data import AuditData, Finding
from ehrsequencing.config import load_study, load_task
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.meds import DAY_US, YEAR_US, Row, write_meds

TASKS = Path(__file__).resolve().parents[2] / "examples" / "tasks"
INDEX = {"pbc2": "ENROLLMENT", "nafld": "INDEX", "physionet2012": "ICU_ADMISSION"}
VISITS = {"physionet2012": ("visits.by=window", "visits.window=1h")}
#: The checks that look at the data alone.
OF_DATA = {
    "whole_record_values",
    "telling_token",
    "static_codes",
    "event_after_code",
    "leaving",
    "immortal_time",
    "row_density",
    "events_by_level",
    "filled_backwards",
}
Make = Callable[["Records"], list[Row]]
LEAKS: dict[str, tuple[str, Make]] = {}


def leak(data: str) -> Callable[[Make], Make]:
    """Register rows that are added to one of the shared sets; all rows where some are taken from it."""

    def register(make: Make) -> Make:
        LEAKS[make.__name__] = (data, make)
        return make

    return register


@dataclass(frozen=True)
class Records:
    """The rows of a shared set, and when each person's follow-up begins and ends."""

    rows: list[Row]
    index: dict[int, int]
    died: dict[int, int]
    left: dict[int, int]  # the end of follow-up of the others
    splits: dict[int, str]

    @cached_property
    def ends(self) -> dict[int, int]:
        return self.left | self.died

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(17)


def read(folder: Path, name: str) -> Records:
    """The rows of one of the shared sets."""
    rows = list[Row]()
    for path in sorted((folder / f"{name}_meds" / "data").rglob("*.parquet")):
        table = pq.read_table(path)
        time = table["time"].cast("timestamp[us]").cast("int64").to_pylist()
        columns = (table[column].to_pylist() for column in ("code", "numeric_value"))
        rows += map(Row, table["subject_id"].to_pylist(), time, *columns)
    split = pq.read_table(folder / f"{name}_meds" / "metadata" / "subject_splits.parquet")
    splits = dict(zip(split["subject_id"].to_pylist(), split["split"].to_pylist(), strict=True))
    index = {row.subject: row.time for row in rows if row.code == INDEX[name] and row.time is not None}
    died = {row.subject: row.time for row in rows if row.code == "MEDS_DEATH" and row.time is not None}
    last = {row.subject: row.time for row in rows if row.code in ("END_OF_FOLLOWUP", "TRANSPLANT") and row.time}
    return Records(rows, index, died, {who: when for who, when in last.items() if who not in died}, splits)


def prepared(folder: Path, name: str, records: Records, rows: list[Row]) -> Path:
    """The set with other rows, prepared for its task."""
    write_meds(folder / "data", rows, splits=records.splits)
    study = load_study(None, list(VISITS.get(name, ())))
    prepare(folder / "data", folder / "set", study=study, tasks=[load_task(TASKS / f"{name}.yaml")])
    return folder / "set"


def audit_data(folder: Path, *, seed: int = 0, share: float = 1.0) -> AuditData:
    """What the checks of the data look at, without a model; of a share of the people, drawn at random."""
    store = Prepared(folder)
    study = load_study(None, ["training.network=false"])
    task = store.task(store.tasks[0])
    run: Any = SimpleNamespace(task=task, vocabulary=store.vocabulary, study=study, manifest=store.manifest)
    data = AuditData(run, store, split="held_out", subjects=50, seed=seed)
    rng = np.random.default_rng(seed)
    for name in SPLITS[:2]:
        people = len(data.records[name].timelines)
        chosen = np.sort(rng.permutation(people)[: round(share * people)])
        data.records[name] = data.records[name].take(chosen)
    return data


def alarms(data: AuditData) -> Mapping[str, Finding]:
    """The checks of the data that neither pass nor are without something to look at."""
    found = {check.name: check.make(data) for check in CHECKS if check.name in OF_DATA and not check.needs_records}
    return {name: one for name, one in found.items() if one.verdict not in ("passed", "not_tested")}


# ---- the leaks -------------------------------------------------------------------------------------------------------


@leak("pbc2")
def year_of_last_contact(records: Records) -> list[Row]:
    """A column of the registry: filled in for everybody, at the end."""
    years = {who: 2000 + (when - records.index[who]) // YEAR_US for who, when in records.ends.items()}
    return [Row(who, None, f"LAST_CONTACT//{year}") for who, year in years.items()]


@leak("pbc2")
def charts_of_those_who_died_were_reviewed(records: Records) -> list[Row]:
    """Three more old results of each person who died, typed from paper."""
    rng = records.rng()
    return [
        Row(who, records.index[who] - int(rng.integers(30, 900)) * DAY_US, code, float(rng.lognormal(mean, 0.6)))
        for who in records.died
        for code, mean in (("LAB//serBilir", 0.3), ("LAB//albumin", 1.2))
        for _ in range(3)
    ]


@leak("physionet2012")
def disposition_at_admission(records: Records) -> list[Row]:
    """The discharge form overwrote a field of the admission."""
    rng = records.rng()
    rows = []
    for who, start in records.index.items():
        is_dead = who in records.died and records.died[who] - start < 40 * DAY_US
        where = "EXPIRED" if is_dead else rng.choice(["HOME", "SNF", "REHAB"])
        rows.append(Row(who, start, f"DISPOSITION//{where}"))
    return rows


@leak("pbc2")
def date_until_which_somebody_is_insured(records: Records) -> list[Row]:
    """The membership table, read in 2010: days until the insurance ended, with some weeks of notice."""
    rng = records.rng()
    return [
        Row(who, records.index[who], "INSURANCE//DAYS_LEFT", (end - records.index[who]) / DAY_US + rng.uniform(0, 90))
        for who, end in records.ends.items()
    ]


@leak("pbc2")
def ascites_ever(records: Records) -> list[Row]:
    """A flag of the abstract: ascites at any visit."""
    people = {row.subject for row in records.rows if row.code == "SIGN//ascites//Yes"}
    return [Row(who, None, "EVER//ASCITES") for who in sorted(people)]


@leak("pbc2")
def age_at_death(records: Records) -> list[Row]:
    """A column of the registry that is empty for the living."""
    born = {row.subject: row.time for row in records.rows if row.code == "MEDS_BIRTH" and row.time is not None}
    decades = {who: (when - born[who]) // YEAR_US // 10 for who, when in records.died.items()}
    return [Row(who, None, f"AGE_AT_DEATH//{10 * decade}") for who, decade in decades.items()]


@leak("nafld")
def hospice_referral_dated_back(records: Records) -> list[Row]:
    """The referral of half of those who die is dated to the day of entry, as the start of the case."""
    rng = records.rng()
    return [Row(who, records.index[who], "REFERRAL//HOSPICE") for who in records.died if rng.random() < 0.5]


@leak("pbc2")
def rows_of_the_last_year_are_missing(records: Records) -> list[Row]:
    """The charts of those who died were archived about a year before."""
    gone = {who: end - 380 * DAY_US for who, end in records.died.items()}
    return [
        row
        for row in records.rows
        if not row.code.startswith(("LAB//", "SIGN//"))
        or row.time is None
        or not max(gone.get(row.subject, 2**62), records.index[row.subject]) < row.time
    ]
