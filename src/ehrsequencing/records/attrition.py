"""Attrition of a task's cohort: counted over shards, stored as `attrition.json`, shown as text, with its warnings.

An end of follow-up is only a claim, so it is held against the rows of people without the event: is it the last event of
most of them, does it lie years after their last row, do only deaths go on until it, or is it still to come?
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.arrays import Bools
from ehrsequencing.records.cohort import (
    NEVER,
    Cohort,
    CohortBuilder,
    CohortRows,
    cohort_steps,
    designed_end,
)
from ehrsequencing.records.events import (
    BIRTH,
    DAY_US,
    DEATH,
    STATIC,
    last_time,
    opens_run,
    parse_date_us,
)
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.survey import DayCounts
from ehrsequencing.records.visits import Record, Visits

FEWEST_EVENTS, FEWEST_SUBJECTS = 10, 50  # of an interval or a comparison
FEW_EVENTS = 100  # training subjects with the event, below which a model is unstable
MUCH_IMMORTAL = 0.05  # share of a landmark's subjects whose first record comes after it, above which a warning is due
MOST = 0.5  # share of the subjects without the event from which on their rows speak against an end of follow-up
LONG_DAYS = (
    730  # after somebody's last row, above which an end by design may have missed that they left
)
ALONE_DAYS = 180  # of deaths without other rows, above which a registry outlives the records
FEW_LOST = 0.01  # share of the indexes that may have nothing after them where no end is named


def too_few(events: ArrayLike, subjects: ArrayLike) -> Bools:
    """Whether there are too few to compare: under 10 subjects with the event, or under 50 subjects.

    >>> too_few([9, 10, 200], [500, 50, 49]).tolist()
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
            "indexes": (n, reached),
            "rows": (n,),
            "queries": (n,),
            "outcomes": (n, len(task.causes) + 1),
            # subjects with a query, without a visit before it, and with one only after it
            "records_before": (n, len(task.landmarks), 3),
            "ends_record": (),  # outcomes that are their subject's last event, where that ends the follow-up
            "ended_by_death": (),  # subjects whose follow-up a death that is no cause ends
        }
        self.counts = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
        self.follow_up = Counter[str](ends)  # with those of `count_ends`

    def add_cohort(self, cohort: Cohort, split: NDArray[np.int8], visits: Visits) -> None:
        """Add a shard: its cohort, each subject's split (S,), and the visits."""
        rows = cohort.rows
        first = np.flatnonzero(opens_run(rows.subject))
        row_split = split[rows.subject]
        for name, places in {
            "subjects": (split, cohort.reached),
            "indexes": (split[cohort.index_owner], cohort.index_reached),
            "rows": (row_split,),
            "queries": (row_split[rows.is_query],),
            "outcomes": (row_split[first], rows.cause[first]),
        }.items():
            np.add.at(self.counts[name], places, 1)
        self.counts["ends_record"] += cohort.ends_record
        self.counts["ended_by_death"] += cohort.ended_by_death
        start_us = np.full(len(split), NEVER)
        np.minimum.at(start_us, visits.subject, visits.start_us)
        start_us = start_us[rows.subject]
        for place, days in enumerate(self.task.landmarks):
            asked = rows.is_query & (rows.prediction_us - rows.index_us == round(days * DAY_US))
            none = asked & (start_us > rows.prediction_us)
            for kind, chosen in enumerate((asked, none, none & (start_us < NEVER))):
                who = np.unique(rows.subject[chosen])
                np.add.at(self.counts["records_before"], (split[who], place, kind), 1)

    def merge(self, other: "Tally") -> None:
        """Add the counts of other shards."""
        for name, counts in self.counts.items():
            counts += other.counts[name]
        self.follow_up.update(other.follow_up)

    def as_json(self, outcomes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Content of `attrition.json`; `outcomes` are the counts of `choose_outcomes`."""
        every = self._counts(slice(None))
        events, before = every.pop("events"), every.pop("records_before")
        return {
            **every,
            "outcomes_that_end_the_record": int(self.counts["ends_record"]),
            "ended_by_death": int(self.counts["ended_by_death"]),
            "follow_up": dict(self.follow_up),
            "records_before": before,
            "events": events,
            "splits": {name: self._counts(slice(k, k + 1)) for k, name in enumerate(SPLITS)},
            **({} if outcomes is None else {"outcomes": outcomes}),
        }

    def _counts(self, splits: slice) -> dict[str, Any]:
        found = {name: n[splits].sum(axis=0).tolist() for name, n in self.counts.items() if n.ndim}
        steps, before = [], []
        left, times = sum(found["subjects"]), sum(found["indexes"])
        losses = zip([0, *found["subjects"]], [0, *found["indexes"]], strict=True)
        for step, (lost, lost_times) in zip(("all subjects", *self.steps), losses, strict=False):
            left, times = left - lost, times - lost_times
            steps.append({"step": step, "subjects": left, "excluded": lost, "indexes": times})
        for days, counts in zip(self.task.landmarks, found["records_before"], strict=True):
            names = ("subjects", "without_record_before", "first_record_later")
            before.append({"landmark_days": days, **dict(zip(names, counts, strict=True))})
        return {
            "steps": steps,
            "prediction_times": found["rows"],
            "queries": found["queries"],
            "events": dict(zip(["censored", *self.task.causes], found["outcomes"], strict=True)),
            "records_before": before,
        }


def attrition_lines(
    task: TaskConfig, attrition: Mapping[str, Any], *, warnings: Sequence[str] | None = None
) -> list[str]:
    """A task's attrition, step by step, its events, and warnings (default: those of `task_warnings`)."""
    first, *steps = attrition["steps"]
    lines = [f"task {task.name}", f"{first['subjects']:>10,}  {first['step']}"]
    for s in steps:
        if s["excluded"]:
            lines.append(f"{s['subjects']:>10,}  subjects: {s['step']} (−{s['excluded']:,})")
    times, queries = attrition["prediction_times"], attrition["queries"]
    lines.append(f"{times:>10,}  prediction times, {queries:,} of them queries")
    for name, part in attrition["splits"].items():
        events = ", ".join(f"{count:,} {outcome}" for outcome, count in part["events"].items())
        times = f"with {part['prediction_times']:,} prediction times"
        lines.append(f"{sum(part['events'].values()):>10,}  subjects in {name}: {events}; {times}")
    if outcomes := attrition.get("outcomes"):
        lines.append(
            f"{'':>10}  outcomes: {outcomes['kept']:,} kept; left out: {outcomes['rare']:,} with too few events, "
            f"{outcomes['ends']:,} that are births, deaths, causes or censoring"
        )
    if died := attrition.get("ended_by_death"):
        lines.append(f"{died:>10,}  follow-up ended by a death that is no cause")
    for row in attrition.get("records_before", []):
        if none := row["without_record_before"]:
            lines.append(
                f"{none:>10,}  of {row['subjects']:,} subjects with a prediction {from_index(row['landmark_days'])} "
                f"have no record before; {row['first_record_later']:,} have their first one only later"
            )
    warnings = task_warnings(task, attrition) if warnings is None else warnings
    return lines + [f"warning: {text}" for text in warnings]


def nobody_left(task: TaskConfig, attrition: Mapping[str, Any]) -> tuple[str, str] | None:
    """Where a task that keeps no prediction time loses its last subject, and what may help; None if it keeps any."""
    if attrition["prediction_times"]:
        return None
    steps = attrition["steps"]
    lost = next((row["step"] for row in steps if not row["subjects"]), steps[-1]["step"])
    advice = {
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


def task_warnings(task: TaskConfig, attrition: Mapping[str, Any]) -> list[str]:
    """What may make a task unsafe to learn from."""
    out = [
        f"The pattern {pattern} of outcomes.codes matches no code of the data."
        for pattern in attrition.get("outcomes", {}).get("unmatched", ())
    ]
    if (nobody := nobody_left(task, attrition)) is not None:
        return [*out, f"The task {nobody[0]}. To help: {nobody[1]}."]
    trained = attrition["splits"]["train"]["events"][task.causes[0]]
    if trained < FEW_EVENTS:
        out.append(
            f"Fewer than {FEW_EVENTS} training subjects had the event: expect an unstable model."
        )
    held_out = attrition["splits"]["held_out"]["events"]
    if too_few(held_out[task.causes[0]], sum(held_out.values())):
        out.append(
            f"Fewer than {FEWEST_SUBJECTS} subjects are held out, or fewer than {FEWEST_EVENTS} of them had the event: "
            "the evaluation will compare no models. Hold out more with splits.by=hash splits.train=0.6 "
            "splits.tuning=0.1, or repeat the split with ehrseq evaluate RUN --splits 25."
        )
    if attrition["outcomes_that_end_the_record"]:
        out.append(
            "The task names no end of follow-up, so each subject's last event ends it, and some outcomes are that "
            "last event: deaths are counted, survival after the last visit is not. Risks are too high."
        )
    out += end_warnings(task, attrition)
    if attrition.get("ended_by_death"):
        out.append(
            "Some subjects die in follow-up, and death is no cause of the task: it is treated as censoring, so risks "
            "are too high. List it, as in competing: {death: MEDS_DEATH}."
        )
    for row in attrition.get("records_before", []):
        if row["first_record_later"] > MUCH_IMMORTAL * row["subjects"]:
            out.append(
                f"Some subjects with a prediction {from_index(row['landmark_days'])} have their first record only "
                "later: they are in the data because they lived to be recorded (immortal time), so risks are too low. "
                "Take an index that is itself a record, as in {first_visit: true} or {code: X}."
            )
    return out


# ---- the end of follow-up --------------------------------------------------------------------------------------------


def count_ends(
    builder: CohortBuilder, record: Record, rows: CohortRows, dataset_end_us: int
) -> dict[str, int]:
    """Hold the end of each subject's follow-up against their own rows.

    Args:
        builder: Of the task.
        record: A shard.
        rows: Its prediction times.
        dataset_end_us: End of the data set.

    Returns:
        `without_event`: subjects with no event after their first prediction time. `end_on_last_day`: those of them
        whose code of censoring is on the day of their last other row. `end_years_after`: those of them whose end by
        design is more than `LONG_DAYS` after their last row.
    """
    events, codes = record.events, builder.censoring_codes
    first = np.flatnonzero(opens_run(rows.subject) & (rows.cause == 0))
    end_us = np.full(len(record.subject_id), NEVER)
    end_us[rows.subject[first]] = rows.prediction_us[first] + np.rint(
        rows.duration_days[first] * DAY_US
    )
    is_end = codes.events(events) if codes is not None else np.zeros(len(events), dtype=bool)
    code_us, other_us, row_us = (
        last_time(events, chosen, record.subject, len(end_us))
        for chosen in (
            is_end & (events.time_us == end_us[record.subject]),
            ~builder.marks.events(events) & ~events.is_code(DEATH),
            ~events.is_code(BIRTH),
        )
    )
    is_last = (code_us != STATIC) & (code_us // DAY_US == other_us // DAY_US)
    designed_us = designed_end(builder.task.censoring, record.birth_us, dataset_end_us)
    is_late = (designed_us == end_us) & (row_us < end_us - LONG_DAYS * DAY_US) & (end_us != NEVER)
    return {
        "without_event": len(first),
        "end_on_last_day": int(is_last.sum()),
        "end_years_after": int(is_late.sum()),
    }


def compare_end(
    days: DayCounts, end_us: int, *, stated: str | None = None, today: str | None = None
) -> dict[str, int]:
    """Hold the end of a data set, or the date that a task states, against the calendar, and deaths against other rows.

    Args:
        days: Rows by day of the whole data set.
        end_us: The data's end.
        stated: The ISO date that takes its place.
        today: An ISO date; by default the day of this machine's clock.

    Returns:
        `beyond_today`: 1 where the median subject's last row lies after today, so that the records are not dated by the
        calendar (they are shifted, or simulated) and nothing is said of today; else 0. `days_after_today`: of the end;
        `rows_after_today`, and the `subjects_after_today` who have them. `deaths_alone`: days from the last other row
        to the last death, or to the end if that is earlier.
    """
    day = int(np.datetime64(today or "today", "D").astype(np.int64))
    end_day = (parse_date_us(stated) if stated else end_us) // DAY_US
    after = days.day > day
    is_beyond = bool(2 * days.leaving[after].sum() > days.leaving.sum())
    after &= not is_beyond
    last_death, last_other = (
        int(days.day[rows > 0].max(initial=days.day[0]))
        for rows in (days.deaths, days.rows - days.deaths)
    )
    return {
        "beyond_today": int(is_beyond),
        "days_after_today": 0 if is_beyond else max(0, end_day - day),
        "rows_after_today": int(days.rows[after].sum()),
        "subjects_after_today": int(days.leaving[after].sum()),
        "deaths_alone": min(last_death, end_day) - last_other,
    }


def end_warnings(task: TaskConfig, attrition: Mapping[str, Any]) -> list[str]:
    """What the records say against a task's end of follow-up."""
    rule, steps = task.censoring, attrition["steps"]
    ends = Counter[str](attrition.get("follow_up"))  # none of an earlier version: all zero
    without, same_day, years_after = (
        ends[name] for name in ("without_event", "end_on_last_day", "end_years_after")
    )
    came, left = (step["indexes"] for step in steps[-3:-1])  # before and after "followed up"
    rules = (
        (
            ends["days_after_today"] > 0 and rule.date is None,
            f"The data's end lies {ends['days_after_today']:,} days after today, and {ends['rows_after_today']:,} rows "
            f"of {ends['subjects_after_today']:,} subjects lie after today: time that is still to come counts as "
            "observed, so risks are too low. Remove such rows, and name the day of the export, as in "
            "data.extracted=2019-12-31.",
        ),
        (
            ends["days_after_today"] > 0 and rule.date is not None,
            f"censoring.date lies {ends['days_after_today']:,} days after today: nobody has been observed until then. "
            "Name a date that has passed.",
        ),
        (
            same_day >= max(1, MOST * without),
            f"For {same_day:,} of {without:,} subjects without the event, {' or '.join(rule.code or ())} is on the day "
            "of their last event, so that events after it count and time without one does not: risks are too high. "
            "Name an end of follow-up that no event sets, as in censoring: {date: 2019-12-31} or {dataset_end: true}.",
        ),
        (
            years_after >= max(1, MOST * without),
            f"For {years_after:,} of {without:,} subjects without the event, follow-up ends more than two years after "
            "their last row: if they left, or if dates are shifted, events of that time are missing and risks are too "
            "low. Name a code that ends their record, or an earlier date, under censoring.",
        ),
        (
            # a registry of deaths may outlive the records where death is all that is asked
            any((rule.date, rule.age, rule.dataset_end))
            and set().union(*task.outcome.values()) != {DEATH}
            and ends["deaths_alone"] > ALONE_DAYS,
            f"Deaths are recorded for {ends['deaths_alone']:,} days after all other rows: in that time nothing else "
            "can be observed, so risks of it are too low. End follow-up with the other rows, as in censoring: "
            "{date: 2019-12-31}.",
        ),
        (
            rule.is_last_event and came - left > FEW_LOST * came,
            f"The task names no end of follow-up, and nothing follows {came - left:,} of {came:,} indexes: these are "
            "left out, so that only people to whom something happens are left, and risks are too high. Say when "
            "follow-up ends, as in censoring: {dataset_end: true}.",
        ),
    )
    return [text for holds, text in rules if holds]


def from_index(landmark_days: float) -> str:
    """Where a landmark is, in words.

    >>> from_index(0.0), from_index(365.25)
    ('at the index', '1y after the index')
    """
    return f"{format_days(landmark_days)} after the index" if landmark_days else "at the index"
