"""Attrition of a task's cohort: counted over shards, stored as `attrition.json`, shown as text, with its warnings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.config.task import CensoringConfig
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.account import (
    Attrition,
    CohortCounts,
    RecordsBefore,
    Step,
    unequal,
)
from ehrsequencing.records.cohort import ENDINGS, Cohort
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    DEATH,
    NEVER,
    PERIOD_END,
    UNDATED_DEATH,
    last_time,
    opens_run,
)
from ehrsequencing.records.follow_up import MOST
from ehrsequencing.records.labels import eligibility_steps
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.visits import Record, count_at_or_before
from ehrsequencing.records.words import lines_of

FEWEST_EVENTS, FEWEST_SUBJECTS = SMALLEST_COUNT, 50  # of an interval or a comparison
_TEMPLATES = Path(__file__).with_name("templates")
_LIMITS: dict[str, Any] = {  # of warnings
    "FEWEST_EVENTS": FEWEST_EVENTS,
    "FEWEST_SUBJECTS": FEWEST_SUBJECTS,
    "FEW_EVENTS": 100,  # training subjects with the event, below which a model is unstable
    # share of events on the day of an index, of which nobody knows which came first
    "SOME_SAME_DAY": 0.01,
    # share of a landmark's subjects whose first record comes after it
    "MUCH_IMMORTAL": 0.05,
    "MOST": MOST,
    "ALONE_DAYS": 180,  # of deaths without other rows, above which a registry outlives the records
    "FEW_LOST": 0.01,  # share of the indexes that may have nothing after them where no end is named
    "MUCH_LOST": 0.01,  # share of an outcome's people who lose it at reading
    "MUCH_UNSURE": 0.1,  # share of an outcome's people whose diagnosis is not confirmed
    "PERIOD_END": PERIOD_END,
}


def cohort_steps(task: TaskConfig) -> tuple[str, ...]:
    """What a subject must have to get past each step of a task, in order."""
    cause = "a competing event" if task.recurrent else "an outcome or competing event"
    return (
        "with an index",
        *(("observed at the index",) if task.censoring.code else ()),
        *eligibility_steps(task.eligibility),
        f"without {cause} at or before the index",
        "followed up after the index",
        f"with a prediction time{' outside the blanking period' if task.blanking else ''}",
    )


def too_few(events: ArrayLike, subjects: ArrayLike) -> Bools:
    """Whether there are too few to compare: under 11 subjects with the event, or under 50 subjects.

    >>> too_few([10, 11, 200], [500, 50, 49]).tolist()
    [True, False, True]
    """
    return (np.asarray(events) < FEWEST_EVENTS) | (np.asarray(subjects) < FEWEST_SUBJECTS)


class Tally:
    """Counts of one task, step by step, per split; `ends` are those of `compare_end`."""

    def __init__(self, task: TaskConfig, ends: Mapping[str, int] | None = None) -> None:
        self.task, self.steps = task, cohort_steps(task)
        n, reached = len(SPLITS), len(self.steps) + 1
        shapes: dict[str, tuple[int, ...]] = {
            "subjects": (n, reached),  # that got so far
            "died": (n, reached),  # of these
            "outcomes": (n, reached),
            "indexes": (n, reached),
            "rows": (n,),
            "queries": (n,),
            "events": (n, len(task.causes) + 1),
            # subjects with a query, without a visit before it, and with one only after it
            "records_before": (n, len(task.landmarks), 3),
            "same_day": (
                2,
            ),  # indexes with a cause dated by their day: counted as after them, and as before
            "ends_record": (),  # outcomes that are their subject's last event, where that ends the follow-up
            # how the follow-up ends of each subject's first index that is in use
            "followed": (n, len(ENDINGS)),
            # subjects with an event who have no row but death after that index
            "deaths_alone": (n,),
            # subjects with an index: alive or dead, without and with a code of `censoring` or the start of a period
            "codes": (n, 4),
            # subjects not observed at the index, with rows other than a death later
            "rows_unobserved": (n,),
        }
        self.counts = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
        self.follow_up = Counter[str](ends)  # with those of `count_ends`
        # code that differs from one of the task in its spelling only → training subjects
        self.other_spellings: dict[str, int] = {}
        self.undated: dict[str, float] | None = None  # of `undated_bounds`

    def add_cohort(self, cohort: Cohort, split: NDArray[np.int8], record: Record) -> None:
        """Add a shard: its cohort, each subject's split (S,), and the records."""
        rows, owner, events = cohort.rows, cohort.index_owner, record.events
        first = np.flatnonzero(opens_run(rows.subject))
        row_split = split[rows.subject]
        is_row = ~(cohort.is_mark | events.is_code(BIRTH) | events.is_code(DEATH))
        last_us = last_time(events, is_row, record.subject, len(split))
        indexed = np.unique(owner)
        is_death = events.is_code(DEATH)
        died = np.isin(indexed, record.subject[is_death])
        is_dead = np.unique(record.subject[is_death | events.is_code(UNDATED_DEATH)])
        has_code = np.isin(indexed, record.subject[cohort.is_mark])
        # who had an event and lives needs no code
        has_code |= np.isin(indexed, rows.subject[first[rows.cause[first] > 0]]) & ~died
        is_missed = (cohort.index_reached == 1) & (cohort.reached[owner] == 1)
        missed = np.unique(owner[is_missed & (last_us[owner] > cohort.index_us)])
        # outcomes and events at each subject's first prediction time
        subject, is_event = rows.subject[first], rows.cause[first] > 0
        count, own = count_at_or_before(owner, cohort.index_us, subject, rows.index_us[first])
        ending = np.where(is_event, 0, cohort.index_ending[own + count - 1])
        alone = subject[is_event & (last_us[subject] <= rows.index_us[first])]
        for name, places in {
            "subjects": (split, cohort.reached),
            "indexes": (split[cohort.index_owner], cohort.index_reached),
            "rows": (row_split,),
            "queries": (row_split[rows.is_query],),
            "events": (row_split[first], rows.cause[first]),
            "died": (split[is_dead], cohort.reached[is_dead]),
            "outcomes": (split[cohort.has_outcome], cohort.reached[cohort.has_outcome]),
            "followed": (row_split[first], ending),
            "deaths_alone": (split[alone],),
            "codes": (split[indexed], 2 * died + has_code),
            "rows_unobserved": (split[missed],),
        }.items():
            np.add.at(self.counts[name], places, 1)
        self.counts["ends_record"] += cohort.ends_record
        is_undecided, is_history = cohort.undecided
        self.counts["same_day"] += np.bincount(is_history[is_undecided], minlength=2)
        start_us = np.full(len(split), NEVER)
        np.minimum.at(start_us, record.visits.subject, record.visits.start_us)
        start_us = start_us[rows.subject]
        for place, days in enumerate(self.task.landmarks):
            at_landmark = rows.is_query & (
                rows.prediction_us - rows.index_us == round(days * DAY_US)
            )
            none = at_landmark & (start_us > rows.prediction_us)
            for kind, chosen in enumerate((at_landmark, none, none & (start_us < NEVER))):
                who = np.unique(rows.subject[chosen])
                np.add.at(self.counts["records_before"], (split[who], place, kind), 1)

    def merge(self, other: "Tally") -> None:
        """Add the counts of other shards."""
        for name, counts in self.counts.items():
            counts += other.counts[name]
        self.follow_up.update(other.follow_up)

    def as_json(self, outcomes: dict[str, Any] | None = None) -> Attrition:
        """Content of `attrition.json`; `outcomes` are the counts of `choose_outcomes`."""
        every = self._counts(slice(None))
        content: Attrition = {
            "steps": every["steps"],
            "prediction_times": every["prediction_times"],
            "queries": every["queries"],
            "followed": every["followed"],
            "outcomes_that_end_the_record": int(self.counts["ends_record"]),
            "same_day": self.counts["same_day"].tolist(),
            "ended_by_death": every["followed"]["death"],
            "follow_up": dict(self.follow_up),
            "other_spellings": self.other_spellings,
            "records_before": every["records_before"],
            "events": every["events"],
            "splits": {name: self._counts(slice(k, k + 1)) for k, name in enumerate(SPLITS)},
        }
        if self.undated is not None:
            content["undated"] = self.undated
        if outcomes is not None:
            content["outcomes"] = outcomes
        return content

    def _counts(self, splits: slice) -> CohortCounts:
        whole = ("ends_record", "same_day")
        totals = {
            name: n[splits].sum(axis=0).tolist()
            for name, n in self.counts.items()
            if name not in whole
        }
        steps, before = list[Step[int]](), list[RecordsBefore[int]]()
        for number, step in enumerate(("all subjects", *self.steps)):
            subjects, indexes, died, outcomes = (
                sum(totals[name][number:]) for name in ("subjects", "indexes", "died", "outcomes")
            )
            steps.append(
                {
                    "step": step,
                    "subjects": subjects,
                    "excluded": steps[-1]["subjects"] - subjects if steps else 0,
                    "indexes": indexes,
                    "died": died,
                    "outcomes": outcomes,
                }
            )
        for days, counts in zip(self.task.landmarks, totals["records_before"], strict=True):
            subjects, without, later = counts
            before.append(
                {
                    "landmark_days": days,
                    "subjects": subjects,
                    "without_record_before": without,
                    "first_record_later": later,
                }
            )
        alive, _, died, died_with_code = totals["codes"]
        return {
            "steps": steps,
            "prediction_times": totals["rows"],
            "queries": totals["queries"],
            "followed": {
                **dict(zip(ENDINGS, totals["followed"], strict=True)),
                "deaths_alone": totals["deaths_alone"],
                "alive_without_code": alive,
                "died_without_code": died,
                "died_with_code": died_with_code,
                "with_index": sum(totals["codes"]),
                "rows_unobserved": totals["rows_unobserved"],
            },
            "events": dict(zip(["censored", *self.task.causes], totals["events"], strict=True)),
            "records_before": before,
        }


def attrition_lines(
    task: TaskConfig, attrition: Attrition, *, warnings: Sequence[str] | None = None
) -> list[str]:
    """A task's attrition, step by step, its events, and warnings (default: those of `task_warnings`)."""
    return lines_of(
        _TEMPLATES / "attrition.txt.jinja",
        task=task,
        a=attrition,
        followed=followed_line(task, attrition),
        from_index=from_index,
        warnings=task_warnings(task, attrition) if warnings is None else warnings,
    )


def followed_line(task: TaskConfig, attrition: Attrition) -> str:
    """Who is followed from when until when, and how many until what, in one line."""
    rule, counts, events = task.censoring, attrition["followed"], dict(attrition["events"])
    people, code = sum(events.values()), " or ".join(rule.code or ())
    other = rule.date or ("the last event" if rule.age is None else f"age {format_days(rule.age)}")
    del events["censored"]
    ends = {
        code: counts["code"],
        other: counts["other"],
        "a death that is no cause": counts["death"],
    }
    ends = {name: n for name, n in ends.items() if n or (name in (code, rule.date) and name)}
    ends |= events | {"the data's end": counts["data_end"]}
    *names, last = ends
    each = ", ".join(f"{n:,} {name}" for name, n in ends.items())
    return (
        f"followed: {people:,} people from {task.index.words} until {', '.join(names)} or {last}: {each}; "
        f"{counts['deaths_alone']:,} of the {sum(events.values()):,} events are deaths of people without any other "
        "row after the index"
    )


def nobody_left(task: TaskConfig, attrition: Attrition) -> tuple[str, str] | None:
    """Where a task that keeps no prediction time loses its last subject, and what may help; None if it keeps any."""
    if attrition["prediction_times"]:
        return None
    steps = attrition["steps"]
    lost = next((row["step"] for row in steps if not row["subjects"]), steps[-1]["step"])
    advice = {
        "observed at the index": "take an index within the time that censoring.code and censoring.start bound",
        "with an index": "look for the code of the index with ehrseq codes",
        "followed up after the index": "say when follow-up ends, as in censoring: {dataset_end: true}",
        "with a prediction time": "take another index",
        "with a prediction time outside the blanking period": "shorten blanking, or take another index",
    }
    fix = advice.get(lost, "loosen the rules of eligibility")
    if lost.startswith("without"):
        fix = (
            "set recurrent: true if an earlier outcome excludes nobody, as for a readmission; "
            "else take an earlier index"
        )
    return f"keeps nobody: no subject is left {lost}", fix


def task_warnings(task: TaskConfig, attrition: Attrition) -> list[str]:
    """What may make a task unsafe to learn from."""
    # Rules that leave out another share of the people with the outcome than of those without. Not of an index, which
    # says who is meant, nor of the last three, which know of outcomes: an earlier one, and a follow-up that an outcome
    # may not outlast. Steps of an earlier version have no outcomes.
    steps, unequal_steps = attrition["steps"], list[tuple[Any, ...]]()
    for before, step in pairwise(steps[1:-3]):
        had = before.get("outcomes", 0), before["subjects"] - before.get("outcomes", 0)
        lost = had[0] - step.get("outcomes", 0)
        touched = lost, step["excluded"] - lost
        if unequal(touched, had):
            unequal_steps.append((step["step"], touched, had))
    rule = task.censoring
    return lines_of(
        _TEMPLATES / "task_warnings.txt.jinja",
        task=task,
        a=attrition,
        nobody=nobody_left(task, attrition),
        unequal_steps=unequal_steps,
        ends=Counter[str](attrition.get("follow_up")),  # none of an earlier version: all zero
        rule=rule,
        code=" or ".join(rule.code or ()),
        is_last_but_code=rule == CensoringConfig(code=rule.code, start=rule.start),
        only_death=set().union(*task.outcome.values()) == {DEATH},
        asks_of_death=any(DEATH in codes for codes in task.patterns.values()),
        too_few=too_few,
        from_index=from_index,
        **_LIMITS,
    )


def from_index(landmark_days: float) -> str:
    """Where a landmark is, in words.

    >>> from_index(0.0), from_index(365.25)
    ('at the index', '1y after the index')
    """
    return f"{format_days(landmark_days)} after the index" if landmark_days else "at the index"
