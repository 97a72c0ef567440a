"""Records with planted leaks that no stamp gives away, and their clean twins; death, the outcome, has no token."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.audit.audit import CHECKS
from ehrsequencing.audit.data import AuditData, Finding
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from helpers.audit import FIRST_ID, assemble, hospital_rows, hospital_splits, make_set
from helpers.meds import DAY_US, HOUR_US, Row

LOOKS = {
    "static_codes",
    "event_after_code",
    "splits",
    "whole_record_values",
    "telling_token",
    "leaving",
    "immortal_time",
    "row_density",
    "events_by_level",
    "filled_backwards",
}
DEATH: dict[str, Any] = {"outcome": {"death": "MEDS_DEATH"}, "competing": {}}
Records = tuple[list[Row], dict[int, str]]
PLANTED: dict[str, tuple[Callable[[], Records], dict[str, str]]] = {}
CLEAN: dict[str, Callable[[], Records]] = {}


def planted(**found: str) -> Callable[[Callable[[], Records]], Callable[[], Records]]:
    """Register leaky records, with the verdict of every check that does not pass."""

    def register(make: Callable[[], Records]) -> Callable[[], Records]:
        PLANTED[make.__name__] = (make, found)
        return make

    return register


def clean(make: Callable[[], Records]) -> Callable[[], Records]:
    """Register records without a leak, in which every check must pass."""
    CLEAN[make.__name__] = make
    return make


def audited(folder: Path, rows: list[Row], splits: dict[int, str], **changes: Any) -> AuditData:
    """A run on records, as the checks see it; the task is death, unless `changes` say otherwise."""
    prepared = make_set(folder, rows, splits=splits, **(DEATH | changes))
    run = Run(assemble(prepared, folder / "run", "training.recalibration=0"))
    data = AuditData(run, Prepared(prepared), split="held_out", subjects=40, seed=0)
    data.read_source(None)
    return data


def findings(data: AuditData) -> dict[str, Finding]:
    """The answers of the checks on codes, numbers and copies."""
    return {check.name: check.make(data) for check in CHECKS if check.name in LOOKS}


# ---- who dies, and when ----------------------------------------------------------------------------------------------


many_rows = cache(hospital_rows)


def hospital(subjects: int = 300) -> tuple[list[Row], dict[int, int], dict[int, int], np.random.Generator]:
    """Rows; the moments of death and of the index; and a source of chance."""
    rows = list(many_rows(subjects=subjects, seed=4))
    left = {row.subject for row in rows if row.code == "END"}
    died = {row.subject: row.time for row in rows if row.code == "MEDS_DEATH" and row.time and row.subject not in left}
    index = {row.subject: row.time for row in rows if row.code == "INDEX" and row.time}
    return rows, died, index, np.random.default_rng(9)


def some(people: dict[int, int], share: float, rng: np.random.Generator) -> list[int]:
    return [subject for subject in people if rng.random() < share]


def with_splits(rows: list[Row]) -> Records:
    return rows, hospital_splits(rows)


def visits_after(rows: list[Row], index: dict[int, int], until: dict[int, int]) -> dict[int, list[int]]:
    """The moments of each person's visits between the index and some end."""
    out: dict[int, list[int]] = {}
    for row in rows:
        if row.time and index[row.subject] < row.time < until.get(row.subject, 2**62):
            out.setdefault(row.subject, []).append(row.time)
    return out


# ---- codes just before events ----------------------------------------------------------------------------------------

EARLY = {"DISCHARGE//DIED", "CHART//CLOSED", "ORDER//LAST"}
LAST = {"DISPOSITION", "BILLED", "LAB//ORDERED"}


def codes_before_death(planted: set[str]) -> Records:
    """Codes of the last hours or days (`EARLY`), or of the last visit at any lead (`LAST`), beside innocent ones.

    - DISCHARGE//DIED two hours, and ORDER//LAST three days before death. CHART//CLOSED two hours before, and once
      before the index for everybody, so that its first sight means nothing.
    - DISPOSITION, a discharge of those who die before they come again; BILLED, a diagnosis of the last stay that was
      coded after death and dated back to the admission; LAB//ORDERED, a test stamped at its order, which was made
      because of the fatal illness. Others have them now and then.
    - Innocent: DISCHARGE//HOME at some visit; TRANSFER, two hours before any end of a follow-up, or for `LAST` seldom.
    """
    rows, died, index, rng = hospital()
    ends = {row.subject: row.time for row in rows if row.code == "END" and row.time}
    visits = visits_after(rows, index, ends | died)
    leaving = [] if planted == LAST else some(ends, 0.4, rng) + some(died, 0.4, rng)
    new = [Row(who, int(rng.choice(visits[who])), "DISCHARGE//HOME") for who in some(index, 0.2, rng) if who in visits]
    new += [Row(who, (ends | died)[who] - 2 * HOUR_US, "TRANSFER") for who in leaving]
    if planted == EARLY:
        new += [Row(who, died[who] - 2 * HOUR_US, "DISCHARGE//DIED") for who in some(died, 0.4, rng)]
        new += [Row(who, died[who] - 3 * DAY_US, "ORDER//LAST") for who in some(died, 0.5, rng)]
        new += [Row(who, when - 50 * DAY_US, "CHART//CLOSED") for who, when in index.items()]
        new += [Row(who, died[who] - 2 * HOUR_US, "CHART//CLOSED") for who in some(died, 0.5, rng)]
    for code in sorted(planted & LAST):
        number = 1.0 if code == "LAB//ORDERED" else None
        new += [Row(who, max(visits[who]), code, number) for who in some(died, 0.8, rng) if who in visits]
        others = [who for who in some(index, 0.03, rng) if who in visits]
        new += [Row(who, int(rng.choice(visits[who])), code, number) for who in others]
    return with_splits([*rows, *new])


# ---- codes without a time --------------------------------------------------------------------------------------------


@planted(static_codes="leak", telling_token="warning")
def registry_flag_of_those_with_the_event() -> Records:
    rows, died, index, rng = hospital()
    flagged = [who for who in index if rng.random() < (0.85 if who in died else 0.02)]
    return with_splits([*rows, *(Row(who, None, "REGISTRY") for who in flagged)])


@planted(static_codes="warning", events_by_level="warning")
def region_whose_codes_tell_little_one_by_one() -> Records:
    """Ten regions, five of the registers of deaths: no region alone has an AUC above .60, all together have .85."""
    rows, died, index, rng = hospital(subjects=900)
    regions = {w: 2 * int(rng.integers(0, 5)) + (rng.random() < (0.85 if w in died else 0.15)) for w in index}
    return with_splits([*rows, *(Row(who, None, f"REGION//{region}") for who, region in regions.items())])


@planted(leaving="warning")
def ward_of_those_who_are_followed_for_a_month() -> Records:
    """Whoever is followed longer has more events: of them it says nothing. It looks like a date of last contact."""
    rows, _, index, rng = hospital(subjects=400)
    short = {who for who in index if rng.random() < 0.6}
    end = {who: index[who] + 30 * DAY_US for who in short}
    rows = [r for r in rows if r.subject not in short or r.time is None or r.time < end[r.subject]]
    rows += [Row(who, when, "END") for who, when in end.items()]
    rows += [Row(who, None, "REGISTRY") for who in some(index, 0.4, rng)]
    return with_splits([*rows, *(Row(who, None, "WARD//SHORT") for who in short)])


# ---- numbers ---------------------------------------------------------------------------------------------------------


@planted(whole_record_values="leak")
def numbers_standardised_with_the_whole_record() -> Records:
    rows, _, _, _ = hospital(subjects=150)
    of: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        if row.value is not None:
            of.setdefault((row.subject, row.code), []).append(row.value)

    def scaled(row: Row) -> Row:
        own = of.get((row.subject, row.code), [])
        return row if len(own) < 2 else row._replace(value=float((row.value - np.mean(own)) / np.std(own)))

    return with_splits([scaled(row) for row in rows])


# ---- one record under two ids ----------------------------------------------------------------------------------------


def copied(split: str, change: Callable[[Row], Row]) -> Records:
    """Half of a split's people once more, among the training people, under new ids."""
    rows = many_rows(subjects=200, seed=4)
    splits = hospital_splits(list(rows))
    chosen = [who for who, where in splits.items() if where == split][::2]
    new = {who: FIRST_ID + 50_000 + k for k, who in enumerate(chosen)}
    copies = [change(row)._replace(subject=new[row.subject]) for row in rows if row.subject in new]
    return [*rows, *copies], splits | {who: "train" for who in new.values()}


@planted(splits="leak")
def held_out_people_copied_under_new_ids_and_dates() -> Records:
    return copied("held_out", lambda row: row._replace(time=row.time + 391 * DAY_US if row.time else None))


@planted(splits="leak")
def held_out_people_copied_with_every_date_moved_a_little() -> Records:
    """Later dates move further, so that visits keep their order and no time between two of them is the same."""
    start = min(row.time for row in many_rows(subjects=200, seed=4) if row.time and row.code == "INDEX")

    def change(row: Row) -> Row:
        if row.time is None or row.time < start - 900 * DAY_US:
            return row
        day, rest = divmod(row.time, DAY_US)
        return row._replace(time=(day + (day - start // DAY_US) // 9) * DAY_US + rest)

    return copied("held_out", change)


@clean
def many_people_with_the_same_short_record() -> Records:
    rows, _, index, _ = hospital(subjects=200)
    who, start = FIRST_ID + 60_000, min(index.values())
    for k in range(100):
        moment = start + k * DAY_US
        rows += [Row(who + k, moment, "INDEX"), Row(who + k, moment + HOUR_US, "DX//0")]
        rows += [Row(who + k, moment + day * DAY_US, "DX//1") for day in (7, 14)]
        rows += [Row(who + k, moment + (900 + 13 * k) * DAY_US, "END")]
    return with_splits(rows)
