"""Attrition of a task's cohort: counted over shards, stored as `attrition.json`, shown as text, with its warnings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.arrays import Bools
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.records.account import (
    Attrition,
    CohortCounts,
    OutcomeCounts,
    RecordsBefore,
    Step,
    Undated,
)
from ehrsequencing.records.cohort import ENDINGS, Cohort
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    DEATH,
    NEVER,
    UNDATED_DEATH,
    last_time,
    opens_run,
)
from ehrsequencing.records.follow_up import end_warnings, unknown_ends
from ehrsequencing.records.labels import eligibility_steps
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.unequal import unequal
from ehrsequencing.records.visits import Record, count_at_or_before

FEWEST_EVENTS, FEWEST_SUBJECTS = SMALLEST_COUNT, 50  # of an interval or a comparison
FEW_EVENTS = 100  # training subjects with the event, below which a model is unstable
SOME_SAME_DAY = (
    0.01  # share of events on the day of an index, of which nobody knows which came first
)
MUCH_IMMORTAL = 0.05  # share of a landmark's subjects whose first record comes after it, above which a warning is due


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
        self.undated: Undated | None = None  # of `undated_bounds`

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

    def as_json(self, outcomes: OutcomeCounts | None = None) -> Attrition:
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
    first, *steps = attrition["steps"]
    lines = [
        f"task {task.name}",
        followed_line(task, attrition),
        f"{first['subjects']:>10,}  {first['step']}{_with_event(first)}",
    ]
    lines.extend(
        f"{s['subjects']:>10,}  subjects: {s['step']} (−{s['excluded']:,}){_with_event(s)}"
        for s in steps
        if s["excluded"]
    )
    n, queries = attrition["prediction_times"], attrition["queries"]
    lines.append(f"{n:>10,}  prediction times, {queries:,} of them queries")
    for name, part in attrition["splits"].items():
        events = ", ".join(f"{count:,} {outcome}" for outcome, count in part["events"].items())
        times = f"with {part['prediction_times']:,} prediction times"
        lines.append(f"{sum(part['events'].values()):>10,}  subjects in {name}: {events}; {times}")
    if outcomes := attrition.get("outcomes"):
        lines.append(
            f"{'':>10}  outcomes: {outcomes['kept']:,} kept; left out: {outcomes['rare']:,} with too few events, "
            f"{outcomes['ends']:,} that are births, deaths, causes or censoring"
        )
    if later := attrition.get("followed", {}).get("rows_unobserved"):
        text = "of those not observed at the index have rows other than a death after it"
        lines.append(f"{later:>10,}  {text}")
    lines.extend(
        f"{none:>10,}  of {row['subjects']:,} subjects with a prediction {from_index(row['landmark_days'])} "
        f"have no record before; {row['first_record_later']:,} have their first one only later"
        for row in attrition.get("records_before", [])
        if (none := row["without_record_before"])
    )
    warnings = task_warnings(task, attrition) if warnings is None else warnings
    return lines + [f"warning: {text}" for text in warnings]


def _with_event(step: Step[int]) -> str:
    if "died" not in step:  # of an earlier version
        return ""
    return f"; {step['died']:,} of them died, {step['outcomes']:,} have the outcome"


def _unequal_steps(task: TaskConfig, attrition: Attrition) -> list[str]:
    """Warnings of rules that leave out another share of the people with the outcome than of those without.

    Not of an index, which says who is meant, nor of the last three, which know of outcomes: an earlier one, and a
    follow-up that an outcome may not outlast.
    """
    out, steps = list[str](), attrition["steps"]
    for before, step in pairwise(steps[1:-3]):
        if "outcomes" not in before:
            break
        with_it = before["outcomes"] - step["outcomes"], before["outcomes"]
        others = step["excluded"] - with_it[0], before["subjects"] - with_it[1]
        if unequal((with_it[0], others[0]), (with_it[1], others[1])):
            out.append(
                f"The rule “{step['step']}” acts unequally: it leaves out {count_text(with_it[0])} of "
                f"{count_text(with_it[1])} people with {' or '.join(task.outcome)} and {count_text(others[0])} of "
                f"{count_text(others[1])} without. If it selects by the outcome, risks are wrong."
            )
    return out


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
    out = [
        f"The pattern {pattern} of outcomes.codes matches no code of the data."
        for pattern in attrition.get("outcomes", {}).get("unmatched", ())
    ]
    if (nobody := nobody_left(task, attrition)) is not None:
        return [*out, f"The task {nobody[0]}. To help: {nobody[1]}."]
    alike = attrition.get("other_spellings", {}).items()
    named = ", ".join(f"{code} ({count_text(n)} training subjects)" for code, n in alike)
    splits = attrition["splits"]
    held_out, cause = splits["held_out"]["events"], task.causes[0]
    after, before = attrition.get("same_day", (0, 0))
    known = sum(n for name, n in attrition["events"].items() if name != "censored") + before
    rules = (
        (
            bool(alike),
            f"Codes of the data differ from codes of the task in dots, case or blanks only: {named}. If they mean the "
            "same, list them beside it, since codes match exactly.",
        ),
        (
            splits["train"]["events"][cause] < FEW_EVENTS,
            f"Fewer than {FEW_EVENTS} training subjects had the event: expect an unstable model.",
        ),
        (
            too_few(held_out[cause], sum(held_out.values())),
            f"Fewer than {FEWEST_SUBJECTS} subjects are held out, or fewer than {FEWEST_EVENTS} of them had the event: "
            "the evaluation will compare no models. Hold out more with splits.by=hash splits.train=0.6 "
            "splits.tuning=0.1, or repeat the split with ehrseq evaluate RUN --splits 25.",
        ),
        (
            attrition["outcomes_that_end_the_record"] > 0,
            "The task names no end of follow-up, so each subject's last event ends it, and some outcomes are that "
            "last event: deaths are counted, survival after the last visit is not. Risks are too high.",
        ),
        (
            task.same_day is None and after + before > SOME_SAME_DAY * known,
            f"{count_text(after + before)} of {count_text(known)} outcomes and competing events are dated by the day, "
            f"on the day of an index whose hour is known: {count_text(before)} are taken for earlier than it, "
            f"{count_text(after)} for later. Say what is right: same_day: before, after, or exclude (nobody's first "
            "day counts).",
        ),
    )
    out += [text for holds, text in rules if holds]
    out += _unequal_steps(task, attrition) + end_warnings(task, attrition)
    if attrition.get("ended_by_death"):
        out.append(
            "Some subjects die in follow-up, and death is no cause of the task: it is treated as censoring, so risks "
            "are too high. List it, as in competing: {death: MEDS_DEATH}."
        )
    if task.censoring.code and "followed" in attrition:
        out += unknown_ends(task, attrition["followed"])
    return out + [
        f"Some subjects with a prediction {from_index(row['landmark_days'])} have their first record only later: they "
        "are in the data because they lived to be recorded (immortal time), so risks are too low. Take an index that "
        "is itself a record, as in {first_visit: true} or {code: X}."
        for row in attrition.get("records_before", [])
        if row["first_record_later"] > MUCH_IMMORTAL * row["subjects"]
    ]


def from_index(landmark_days: float) -> str:
    """Where a landmark is, in words.

    >>> from_index(0.0), from_index(365.25)
    ('at the index', '1y after the index')
    """
    return f"{format_days(landmark_days)} after the index" if landmark_days else "at the index"
