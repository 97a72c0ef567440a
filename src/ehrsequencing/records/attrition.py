"""Attrition of a task's cohort: counted over shards, stored as `attrition.json`, shown as text, with its warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ehrsequencing.config import TaskConfig, format_days
from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.records.cohort import NEVER, Cohort, CohortRows, cohort_steps
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
        self.task, self.steps, n = task, cohort_steps(task), len(SPLITS)
        # that got so far
        self.subjects, self.indexes = (
            np.zeros((n, len(self.steps) + 1), np.int64) for _ in range(2)
        )
        self.rows, self.queries = np.zeros(n, np.int64), np.zeros(n, np.int64)
        # outcomes that are their subject's last event, where that ends the follow-up
        self.ends_record = 0
        self.ended_by_death = 0  # subjects whose follow-up a death that is no cause ends
        self.outcomes = np.zeros((n, len(task.causes) + 1), np.int64)
        self.records_before = np.zeros((n, len(task.landmarks), 3), np.int64)

    def add_cohort(self, cohort: Cohort, split: NDArray[np.int8], visits: Visits) -> None:
        """Add a shard: its cohort, each subject's split (S,), and the visits."""
        self.ends_record += cohort.ends_record
        self.ended_by_death += cohort.ended_by_death
        rows, row_split = cohort.rows, split[cohort.rows.subject]
        first = np.flatnonzero(opens_run(rows.subject))
        self.subjects += _crossed(split, cohort.reached, self.subjects.shape)
        self.indexes += _crossed(
            split[cohort.index_owner], cohort.index_reached, self.indexes.shape
        )
        self.rows += np.bincount(row_split, minlength=len(SPLITS))
        self.queries += np.bincount(row_split[rows.is_query], minlength=len(SPLITS))
        self.outcomes += _crossed(row_split[first], rows.cause[first], self.outcomes.shape)
        self._add_records_before(rows, split, visits)

    def _add_records_before(
        self, rows: CohortRows, split: NDArray[np.int8], visits: Visits
    ) -> None:
        """Per split and landmark: subjects with a query, without a visit before it, and with one only after it."""
        start_us = np.full(len(split), NEVER)
        np.minimum.at(start_us, visits.subject, visits.start_us)
        for place, days in enumerate(self.task.landmarks):
            asked = rows.is_query & (rows.prediction_us - rows.index_us == round(days * DAY_US))
            none = asked & (start_us[rows.subject] > rows.prediction_us)
            for kind, chosen in enumerate((asked, none, none & (start_us[rows.subject] < NEVER))):
                who = np.unique(rows.subject[chosen])
                self.records_before[:, place, kind] += np.bincount(
                    split[who], minlength=len(SPLITS)
                )

    def merge(self, other: "Tally") -> None:
        """Add the counts of other shards."""
        self.ends_record += other.ends_record
        self.ended_by_death += other.ended_by_death
        for name in ("subjects", "indexes", "rows", "queries", "outcomes", "records_before"):
            getattr(self, name).__iadd__(getattr(other, name))

    def _flow(self, subjects: Ints, indexes: Ints) -> list[dict[str, Any]]:
        """Subjects and index times left after each step, from how many got how far (steps + 1,)."""
        left, times = int(subjects.sum()), int(indexes.sum())
        flow = [{"step": "all subjects", "subjects": left, "excluded": 0, "indexes": times}]
        for step, lost, lost_times in zip(
            self.steps, subjects[:-1].tolist(), indexes[:-1].tolist(), strict=True
        ):
            left, times = left - lost, times - lost_times
            flow.append({"step": step, "subjects": left, "excluded": lost, "indexes": times})
        return flow

    def _before(self, counts: Ints) -> list[dict[str, Any]]:
        names = ("subjects", "without_record_before", "first_record_later")
        rows = [dict(zip(names, row, strict=True)) for row in counts.tolist()]
        return [
            {"landmark_days": days, **row}
            for days, row in zip(self.task.landmarks, rows, strict=True)
        ]

    def as_json(self, outcomes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Content of `attrition.json`; `outcomes` are the counts of `choose_outcomes`."""
        every = self._counts(slice(None))
        events, before = every.pop("events"), every.pop("records_before")
        return {
            **every,
            "outcomes_that_end_the_record": self.ends_record,
            "ended_by_death": self.ended_by_death,
            "records_before": before,
            "events": events,
            "splits": {name: self._counts(slice(k, k + 1)) for k, name in enumerate(SPLITS)},
            **({} if outcomes is None else {"outcomes": outcomes}),
        }

    def _counts(self, splits: slice) -> dict[str, Any]:
        events = self.outcomes[splits].sum(axis=0).tolist()
        return {
            "steps": self._flow(
                self.subjects[splits].sum(axis=0), self.indexes[splits].sum(axis=0)
            ),
            "prediction_times": int(self.rows[splits].sum()),
            "queries": int(self.queries[splits].sum()),
            "events": dict(zip(["censored", *self.task.causes], events, strict=True)),
            "records_before": self._before(self.records_before[splits].sum(axis=0)),
        }


def _crossed(row: NDArray[np.int8], column: NDArray[np.int8], shape: tuple[int, ...]) -> Ints:
    """How often each pair of small numbers occurs."""
    counts = np.bincount(row * np.int64(shape[1]) + column, minlength=shape[0] * shape[1])
    return counts.reshape(shape)


def attrition_lines(
    task: TaskConfig, attrition: Mapping[str, Any], *, warnings: Sequence[str] | None = None
) -> list[str]:
    """A task's attrition, step by step, its events, and warnings (default: those of `task_warnings`)."""
    lines = [f"task {task.name}"]
    first, *steps = attrition["steps"]
    lines.append(f"{first['subjects']:>10,}  {first['step']}")
    lines += [
        f"{s['subjects']:>10,}  subjects: {s['step']} (−{s['excluded']:,})"
        for s in steps
        if s["excluded"]
    ]
    lines.append(
        f"{attrition['prediction_times']:>10,}  prediction times, {attrition['queries']:,} of them queries"
    )
    for name, part in attrition["splits"].items():
        events = ", ".join(f"{count:,} {outcome}" for outcome, count in part["events"].items())
        times = f"with {part['prediction_times']:,} prediction times"
        lines.append(f"{sum(part['events'].values()):>10,}  subjects in {name}: {events}; {times}")
    if outcomes := attrition.get("outcomes"):
        rare, ends = outcomes["rare"], outcomes["ends"]
        others = (
            f"{rare:,} with too few events, {ends:,} that are births, deaths, causes or censoring"
        )
        lines.append(f"{'':>10}  outcomes: {outcomes['kept']:,} kept; left out: {others}")
    if died := attrition.get("ended_by_death"):
        lines.append(f"{died:>10,}  follow-up ended by a death that is no cause")
    for row in attrition.get("records_before", []):
        if none := row["without_record_before"]:
            later = f"{row['first_record_later']:,} have their first one only later"
            of = f"of {row['subjects']:,} subjects with a prediction {from_index(row['landmark_days'])}"
            lines.append(f"{none:>10,}  {of} have no record before; {later}")
    return lines + [
        f"warning: {text}"
        for text in (task_warnings(task, attrition) if warnings is None else warnings)
    ]


def nobody_left(task: TaskConfig, attrition: Mapping[str, Any]) -> tuple[str, str] | None:
    """Where a task that keeps no prediction time loses its last subject, and what may help; None if it keeps any."""
    if attrition["prediction_times"]:
        return None
    steps = attrition["steps"]
    lost = next((row["step"] for row in steps if not row["subjects"]), steps[-1]["step"])
    advice = {
        "with an index": "look for the code of the index with ehrseq codes",
        "followed up after the index": "say when follow-up ends, as in censoring: {dataset_end: true}",
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
