"""Attrition of a task's cohort: counted over shards, stored as `attrition.json`, shown as text, with its warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.arrays import Bools
from ehrsequencing.records.cohort import NEVER, Cohort, cohort_steps
from ehrsequencing.records.events import DAY_US, opens_run
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.visits import Visits

FEWEST_EVENTS, FEWEST_SUBJECTS = 10, 50  # of an interval or a comparison
FEW_EVENTS = 100  # training subjects with the event, below which a model is unstable
MUCH_IMMORTAL = 0.05  # share of a landmark's subjects whose first record comes after it, above which a warning is due


def too_few(events: ArrayLike, subjects: ArrayLike) -> Bools:
    """Whether there are too few to compare: under 10 subjects with the event, or under 50 subjects.

    >>> too_few([9, 10, 200], [500, 50, 49]).tolist()
    [True, False, True]
    """
    return (np.asarray(events) < FEWEST_EVENTS) | (np.asarray(subjects) < FEWEST_SUBJECTS)


class Tally:
    """Counts of one task, step by step, per split."""

    def __init__(self, task: TaskConfig) -> None:
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

    def as_json(self, outcomes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Content of `attrition.json`; `outcomes` are the counts of `choose_outcomes`."""
        every = self._counts(slice(None))
        events, before = every.pop("events"), every.pop("records_before")
        return {
            **every,
            "outcomes_that_end_the_record": int(self.counts["ends_record"]),
            "ended_by_death": int(self.counts["ended_by_death"]),
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


def from_index(landmark_days: float) -> str:
    """Where a landmark is, in words.

    >>> from_index(0.0), from_index(365.25)
    ('at the index', '1y after the index')
    """
    return f"{format_days(landmark_days)} after the index" if landmark_days else "at the index"
