"""Records with planted leaks in codes and copies, and their clean twins."""

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

LOOKS = {"static_codes", "event_after_code", "splits"}
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


def findings(folder: Path, rows: list[Row], splits: dict[int, str], **changes: Any) -> dict[str, Finding]:
    """Run the checks on codes and copies; the task is death, unless `changes` say otherwise."""
    prepared = make_set(folder, rows, splits=splits, **(DEATH | changes))
    run = Run(assemble(prepared, folder / "run", "training.recalibration=0"))
    data = AuditData(run, Prepared(prepared), split="held_out", subjects=5, seed=0)
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


def after_index(rows: list[Row], index: dict[int, int], chosen: list[int], rng: np.random.Generator) -> dict[int, int]:
    """A moment of some visit after the index of each of the chosen."""
    out = {}
    for subject in chosen:
        times = [r.time for r in rows if r.subject == subject and r.time and r.time > index[subject]]
        out[subject] = int(rng.choice(times))
    return out


# ---- codes that come just before events ------------------------------------------------------------------------------


@planted(event_after_code="leak")
def discharge_code_two_hours_before_death() -> Records:
    rows, died, _, rng = hospital()
    return with_splits([*rows, *(Row(who, died[who] - 2 * HOUR_US, "DISCHARGE//DIED") for who in some(died, 0.4, rng))])


@clean
def discharge_code_of_some_visit() -> Records:
    rows, _, index, rng = hospital()
    visits = after_index(rows, index, some(index, 0.2, rng), rng)
    return with_splits([*rows, *(Row(who, when, "DISCHARGE//HOME") for who, when in visits.items())])


@planted(event_after_code="leak")
def chart_closed_once_before_the_index_for_everybody() -> Records:
    """Its first sight is the index, where it means nothing: only its later records do."""
    rows, died, index, rng = hospital()
    rows += [Row(who, when - 50 * DAY_US, "CHART//CLOSED") for who, when in index.items()]
    return with_splits([*rows, *(Row(who, died[who] - 2 * HOUR_US, "CHART//CLOSED") for who in some(died, 0.4, rng))])


@planted(event_after_code="leak")
def order_three_days_before_death() -> Records:
    rows, died, _, rng = hospital()
    return with_splits([*rows, *(Row(who, died[who] - 3 * DAY_US, "ORDER//LAST") for who in some(died, 0.4, rng))])


@planted(event_after_code="warning")
def code_of_the_last_hours_that_is_sometimes_wrong() -> Records:
    rows, died, index, rng = hospital()
    dying = some(died, 0.5, rng)
    rows += [Row(who, died[who] - 2 * HOUR_US, "COMFORT_CARE") for who in dying]
    others = sorted(set(index) - set(died))[: int(0.55 * len(dying))]
    return with_splits(
        [*rows, *(Row(who, when, "COMFORT_CARE") for who, when in after_index(rows, index, others, rng).items())]
    )


@clean
def code_at_the_end_of_follow_up() -> Records:
    """Of those who have it, nobody is followed for a day without the event; yet most of them leave alive."""
    rows, died, _, rng = hospital()
    ends = {row.subject: row.time for row in rows if row.code == "END" and row.time}
    leaving = {who: ends[who] for who in some(ends, 0.4, rng)} | {who: died[who] for who in some(died, 0.4, rng)}
    return with_splits([*rows, *(Row(who, when - 2 * HOUR_US, "TRANSFER") for who, when in leaving.items())])


# ---- codes without a time --------------------------------------------------------------------------------------------


def with_flag(share_of_dead: float, share_of_others: float) -> Records:
    rows, died, index, rng = hospital()
    flagged = [who for who in index if rng.random() < (share_of_dead if who in died else share_of_others)]
    return with_splits([*rows, *(Row(who, None, "REGISTRY") for who in flagged)])


@planted(static_codes="leak")
def registry_flag_of_those_with_the_event() -> Records:
    return with_flag(0.85, 0.02)


@planted(static_codes="warning")
def consent_that_only_survivors_could_give() -> Records:
    return with_flag(0.1, 0.8)


@clean
def registry_flag_of_anybody() -> Records:
    return with_flag(0.4, 0.4)


@clean
def ward_of_those_who_are_followed_for_a_month() -> Records:
    """Whoever is followed longer has more events: that is no leak."""
    rows, _, index, rng = hospital(subjects=400)
    short = {who for who in index if rng.random() < 0.6}
    end = {who: index[who] + 30 * DAY_US for who in short}
    rows = [r for r in rows if r.subject not in short or r.time is None or r.time < end[r.subject]]
    rows += [Row(who, when, "END") for who, when in end.items()]
    return with_splits([*rows, *(Row(who, None, "WARD//SHORT") for who in short)])


# ---- one record under two ids ----------------------------------------------------------------------------------------


def copied(split: str, change: Callable[[Row], Row]) -> Records:
    """Half of a split's people once more, among the training people, under new ids."""
    rows = many_rows(subjects=200, seed=4)
    splits = hospital_splits(rows)
    chosen = [who for who, where in splits.items() if where == split][::2]
    new = {who: FIRST_ID + 50_000 + k for k, who in enumerate(chosen)}
    copies = [change(row)._replace(subject=new[row.subject]) for row in rows if row.subject in new]
    return [*rows, *copies], splits | {who: "train" for who in new.values()}


@planted(splits="leak")
def held_out_people_copied_under_new_ids_and_dates() -> Records:
    return copied("held_out", lambda row: row._replace(time=row.time + 391 * DAY_US if row.time else None))


@planted(splits="leak")
def tuning_people_copied_with_another_sex_birth_and_numbers() -> Records:
    def change(row: Row) -> Row:
        if row.time is None:
            return row._replace(code="SEX//M")
        if row.code == "MEDS_BIRTH":
            return row._replace(time=row.time + 1000 * DAY_US)
        return row._replace(value=None if row.value is None else row.value + 0.1)

    return copied("tuning", change)


@clean
def many_people_with_the_same_short_record() -> Records:
    rows, _, index, _ = hospital(subjects=200)
    who, start = FIRST_ID + 60_000, min(index.values())
    for k in range(100):
        moment = start + k * DAY_US
        rows += [Row(who + k, moment, "INDEX"), Row(who + k, moment + HOUR_US, "DX//0")]
        rows += [Row(who + k, moment + day * DAY_US, "DX//1") for day in (7, 14)]
        rows += [Row(who + k, moment + 900 * DAY_US, "END")]
    return with_splits(rows)
