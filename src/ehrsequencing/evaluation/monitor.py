"""`ehrseq monitor`: how good a run's nightly predictions are today, before most of their outcomes are known.

    journal + newer records ──journalled──► times at risk ──► frozen days: events observed and expected
                                                          ──► e-process (`metrics/sequential.py`) → alarm
                                                          ──► expected accuracy, and what it turned out to be
    records of four weeks, and of the same weeks a quarter ago ──► drift

A day is closed when the declared reporting lag has passed, and then frozen in the journal's account: what is reported
later is counted apart, so that yesterday's alarm is never taken back or made up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import DataConfig, DriftConfig, format_days
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import SMALLEST_COUNT, nearest
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, locked, read_json, remembered, write_json
from ehrsequencing.core.outputs import JOURNAL
from ehrsequencing.evaluation.journalled import Joiner, Spells
from ehrsequencing.metrics.accuracy import brier, index_of_prediction_accuracy
from ehrsequencing.metrics.bootstrap import bootstrap_subjects, interval_around
from ehrsequencing.metrics.discrimination import wolbers_c
from ehrsequencing.metrics.hazards import cumulative_incidence, expected_accuracy
from ehrsequencing.metrics.outcomes import ScoredRows
from ehrsequencing.metrics.sequential import START_EVERY, THRESHOLD, Evidence, evidence
from ehrsequencing.prediction.drift import BROKEN, FEWEST_PEOPLE, MANY_OUTSIDE, Drift, compare
from ehrsequencing.prediction.journal import Journal, Night
from ehrsequencing.prediction.predict import Encoder
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.account import TrainingPeople
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.events import DAY_US, Events
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.people import People
from ehrsequencing.records.survey import Part, Progress, Steps, survey

ACCOUNT = "account.json"  # of a journal: the frozen days of each process
POINTS = 10  # of a curve of cumulative incidence, up to the horizon
MOST_PEOPLE = 1_000  # of a month whose accuracy is computed: pairs cost their square
FEWEST = 50  # people of a month of whom accuracy is said
RESAMPLES = 100
WINDOW, QUARTER = 28, 91  # days of records that are compared, with those so long before
_WAIT = 600.0  # seconds for another monitor


@dataclass(frozen=True)
class Watch:
    """What is known of a run's nightly predictions.

    Attributes:
        streams: Names of (group, cause), everybody first.
        days: (D,) frozen days since 1970.
        observed: (D, S) first events.
        expected: (D, S) what the hazards add up to.
        evidence: The e-process by day.
        number: Which process of this journal it is; each new version of the run begins one.
        later: Events that were reported after their day was frozen, of everybody.
        months: Four weeks each, from `start_day`: `people`, and (3, 3) C, Brier score and IPA with their intervals,
            `expected` and `realised`, None until the outcomes are known.
        gap: (3,) expected less realised C, Brier score and IPA of the held-out people; None where they are gone.
        drifts: Of these people against training, and of the last four weeks against the same a quarter ago.
        history: Night (day since 1970) → the largest difference of each.
    """

    run: str
    question: str
    lag_days: float
    streams: list[str]
    days: Ints
    observed: Floats
    expected: Floats
    evidence: Evidence
    number: int
    later: int
    months: list[dict[str, Any]]
    gap: Floats | None
    drifts: tuple[Drift, Drift]
    history: list[list[float]]

    @property
    def threshold(self) -> float:
        """What the e-process must reach: 20 for the first version of a run, twice as much for each later one."""
        return float(THRESHOLD * 2 ** (self.number - 1))

    @property
    def alarm_day(self) -> int | None:
        """The day since 1970 that raised the alarm."""
        place = self.evidence.alarm_day(self.threshold)
        return None if place is None else int(self.days[place])

    @property
    def is_broken(self) -> bool:
        """Whether codes, units or numbers are not what they were."""
        return any(any(drift.sentences(BROKEN)) for drift in self.drifts)

    @property
    def is_alarm(self) -> bool:
        """Whether somebody must look."""
        return self.alarm_day is not None or self.is_broken

    @property
    def is_high(self) -> bool:
        """Whether most of the evidence is of more events than predicted."""
        last = self.evidence.parts[-1].max(axis=1) if len(self.days) else np.zeros(2)
        return bool(last[0] > last[1])

    @property
    def action(self) -> str:
        """What to do: nothing, look, update or train again."""
        if self.is_broken:
            return "look"
        if self.alarm_day is not None:
            return "update" if self.is_high else "look"
        return "look" if any(drift.is_alarm for drift in self.drifts) else "nothing"

    @property
    def since_last_quarter(self) -> str:
        """The last four weeks of records against the same a quarter ago, in a line."""
        text = self.drifts[1].verdict.replace("in training", "a quarter ago")
        return f"Last four weeks: {text.replace('like the training people', 'as a quarter ago')}"

    @property
    def verdict(self) -> str:
        """One line."""
        if self.is_broken:
            trained = self.drifts[0]
            return trained.verdict if any(trained.sentences(BROKEN)) else self.since_last_quarter
        if not len(self.days):
            return f"Not compared: no day has been closed for {self.lag_days:g} days since the first night."
        if self.alarm_day is not None:
            more = "More" if self.is_high else "Fewer"
            return f"Alarm since {day_text(self.alarm_day)}: {more} events than predicted."
        return "No alarm: events are as frequent as predicted, within 10 %, or nothing shows otherwise yet."


def day_text(day: int) -> str:
    """A day since 1970 as a date."""
    return str(np.datetime64(day, "D"))


class Windows(Part):
    """Counts all people of a data set, their last four weeks, and the same weeks a quarter ago."""

    def __init__(self, new: Callable[[], People], end_us: int) -> None:
        self.all, self.recent, self.before = new(), new(), new()
        self.end_us = end_us

    def add(self, events: Events) -> None:
        """Count one shard."""
        self.all.add(events)
        for people, back in ((self.recent, 0), (self.before, QUARTER)):
            last_us = self.end_us - back * DAY_US
            inside = (events.time_us > last_us - WINDOW * DAY_US) & (events.time_us <= last_us)
            if inside.any():
                people.add(events.take(inside))


def monitor(
    run: Run,
    data: Path,
    journal: Journal,
    *,
    by: Sequence[str] = (),
    lag_days: float = 7.0,
    facts: DataConfig | None = None,
    limits: DriftConfig | None = None,
    progress: Progress | None = None,
) -> Watch:
    """Join the journal with newer records, freeze the days that are closed, and say how good the run is.

    Args:
        run: The run whose predictions were journalled.
        data: The newest MEDS records of the same people.
        journal: The journal, which gets the frozen days.
        by: Codes or patterns of groups that are watched too: who has one by the first night is in the group.
        lag_days: Days after which an event has been recorded; a day is closed then.
        facts: What the data set's own files do not tell.
        limits: Of drift.
        progress: Called with (shards done, shards to do).

    Raises:
        EhrseqError: Journal, run and data do not belong together, or the journal is empty.
    """
    newest = _newest_night(journal, run)
    reader, parents = MedsReader(data, facts, run.study), read_parents(data)
    encoder = Encoder(run, parents)
    people = partial(People, run.vocabulary, encoder.excluded, run.study.visits)
    windows = partial(Windows, people, newest.known_us)
    surveyed = survey(reader, windows, Steps(reader, 0, progress))
    open_day = int((surveyed.end_us - round(lag_days * DAY_US)) // DAY_US)
    drifts = _drifts(surveyed.part, run, parents, limits or DriftConfig())
    with locked(journal.folder, wait_seconds=_WAIT):
        account, process = _account(journal, newest.run, [newest.run, list(by), lag_days])
        frozen = len(process["observed"])
        days = np.arange(process["first_day"], max(process["first_day"] + frozen, open_day))
        matchers = [CodeMatcher([one], parents=parents) for one in by]
        end_us = (process["first_day"] + len(days)) * DAY_US
        joiner = Joiner(journal, newest.run, newest.edges_days, encoder, end_us, matchers)
        streams = [f"{one}, {cause}" for one in ("everybody", *by) for cause in run.task.causes]
        blanking, (observed, expected) = run.task.blanking, np.zeros((2, len(days), len(streams)))
        months = _Months(run, newest.edges_days, process["first_day"], end_us)
        for spells in joiner.spells(reader):
            counts = spells.observed(days, blanking, newest.edges_days[-1])
            hazards = spells.expected(days[frozen:], newest.edges_days, blanking)
            observed += counts.reshape(observed.shape)
            expected[frozen:] += hazards.reshape(expected[frozen:].shape)
            months.add(spells)
        joiner.require_joined()
        recounted = observed[:frozen].copy()
        for name, found in (("observed", observed), ("expected", expected)):
            found[:frozen] = np.reshape(process[name], (frozen, len(streams)))
            process[name] = found.tolist()
        largest = [max((d.size for d in one.differences or ()), default=0.0) for one in drifts]
        process["drift"].append([int(newest.known_us // DAY_US), *largest])
        write_json(journal.folder / ACCOUNT, account, owner_only=True)
    everybody = slice(len(run.task.causes))
    return Watch(
        run=run.folder.name,
        question=f"{run.task.causes[0]} by {format_days(run.main_horizon)}",
        lag_days=lag_days,
        streams=streams,
        days=days,
        observed=observed,
        expected=expected,
        evidence=evidence(observed, expected),
        number=account["processes"].index(process) + 1,
        later=round(float((recounted - observed[:frozen])[:, everybody].sum())),
        months=months.accuracy(),
        gap=_held_out_gap(run),
        drifts=drifts,
        history=process["drift"],
    )


def _newest_night(journal: Journal, run: Run) -> Night:
    """The newest night, which must be of the run.

    Raises:
        EhrseqError: There is none, or it is of another run.
    """
    if not journal.nights:
        raise EhrseqError(
            "not compared: the journal has no night yet",
            where=str(journal.folder),
            fix="add --journal to the nightly ehrseq predict",
        )
    newest = journal.nights[-1]
    if newest.run != run.fingerprint:
        raise EhrseqError(
            "not compared: the newest night of the journal is of another run",
            where=str(journal.folder),
            fix="name the run that the nightly list is made with",
        )
    return newest


def _account(journal: Journal, version: str, key: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The account of a journal, and in it the process of a version, groups and lag; a new one begins empty."""
    path = journal.folder / ACCOUNT
    account: Any = read_json(path) if path.is_file() else {**JOURNAL.facts, "processes": []}
    for known in account["processes"]:
        if known["key"] == digest(key):
            return account, known
    first_us = min(night.known_us for night in journal.nights if night.run == version)
    process: Any = {
        "key": digest(key),
        "first_day": first_us // DAY_US,
        "observed": [],
        "expected": [],
        "drift": [],
    }
    account["processes"].append(process)
    return account, process


# ------------------------------------------------------------------------------------------------------------ accuracy


class _Months:
    """Keeps some people of each four weeks: the curve that was predicted from the night on, and what followed."""

    def __init__(self, run: Run, edges_days: Sequence[float], first_day: int, end_us: int) -> None:
        self.edges_days, self.first_day, self.end_us = edges_days, first_day, end_us
        self.blanking, self.horizon = run.task.blanking, run.main_horizon
        self.kept: dict[int, list[Any]] = {}  # month → persons, curves, days, causes

    def add(self, spells: Spells) -> None:
        """Keep those of a shard who come first in the order of their names in the journal, which is one of chance."""
        month = (spells.known_us // DAY_US - self.first_day) // START_EVERY
        for number in np.unique(month).tolist():
            rows = np.flatnonzero(month == number)
            own = spells.take(rows[np.unique(spells.person[rows], return_index=True)[1]])
            age = np.maximum((own.known_us - own.prediction_us) / DAY_US, self.blanking)
            curve = _incidence(own.hazard, self.edges_days, age, self.horizon)
            days = (own.end_us - own.prediction_us) / DAY_US - age
            new = [one[days > 0] for one in (own.person, curve, days, own.cause)]
            old = self.kept.get(number, [one[:0] for one in new])
            both = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
            first = np.argsort(both[0], kind="stable")[:MOST_PEOPLE]
            self.kept[number] = [one[first] for one in both]

    def accuracy(self) -> list[dict[str, Any]]:
        """Expected and realised, month by month; of fewer people than `FEWEST` nothing is said."""
        out = []
        for number, (persons, curve, days, cause) in sorted(self.kept.items()):
            start = self.first_day + number * START_EVERY
            ends_us = (start + START_EVERY + self.horizon + self.blanking) * DAY_US
            if len(persons) >= FEWEST:
                expected, realised = _accuracy(curve, days, cause, self.horizon)
                out.append(
                    {
                        "start_day": start,
                        "people": len(persons),
                        "expected": expected,
                        "realised": realised if ends_us <= self.end_us else None,
                    }
                )
        return out


def _incidence(
    hazard: Floats, edges_days: Sequence[float], start_days: Floats, horizon_days: float
) -> Floats:
    """(n, POINTS) cumulative incidence of the first cause up to the horizon, from an age of each prediction on."""
    days = start_days + horizon_days * np.linspace(0.0, 1.0, POINTS + 1)[1:, None]
    return cumulative_incidence(hazard, edges_days, days, start_days=start_days)[:, 0]


def _accuracy(curve: Floats, days: Floats, cause: Ints, horizon: float) -> tuple[Floats, Floats]:
    """(3, 3) expected C, Brier score and IPA with their intervals over people, and the same as realised."""
    (drawn,) = bootstrap_subjects(np.arange(len(curve)), RESAMPLES, 0)
    weights = np.vstack([np.ones(len(curve)), drawn])
    risk = np.zeros((len(curve), max(int(cause.max(initial=0)), 1), 1))
    risk[:, 0, 0] = curve[:, -1]
    rows = ScoredRows.of(days, cause, risk, [horizon], weights=weights)
    metrics = (wolbers_c, brier, index_of_prediction_accuracy)
    real = np.stack([one(rows)[:, 0, 0] for one in metrics])
    expected, realised = (
        np.column_stack([found[:, 0], *interval_around(found[:, 0], found[:, 1:].T)])
        for found in (expected_accuracy(curve, weights), real)
    )
    return expected, realised


def _held_out_gap(run: Run) -> Floats | None:
    """(3,) expected less realised accuracy of the held-out people at their index; None where they are gone."""
    try:
        prepared = run.prepared()
    except EhrseqError:
        return None

    def gap() -> list[float] | None:
        records = prepared.records(run.task.name, "held_out").take(slice(MOST_PEOPLE))
        at = np.flatnonzero(records.rows.prediction_us == records.rows.index_us)
        if len(at) < FEWEST:
            return None
        hazard, start = run.predictor.all_hazards(records)[at], np.full(len(at), run.task.blanking)
        curve = _incidence(hazard, run.predictor.edges_days, start, run.main_horizon)
        days, cause = records.rows.duration_days[at] - start, records.rows.cause[at]
        expected, realised = _accuracy(curve, days, cause.astype(np.int64), run.main_horizon)
        return [float(one) for one in np.nan_to_num(expected - realised, nan=0.0)[:, 0]]

    found = remembered([run.fingerprint, "expected less realised", run.main_horizon], gap)
    return None if found is None else np.array(found)


# --------------------------------------------------------------------------------------------------------------- drift


def _drifts(
    windows: Windows, run: Run, parents: Mapping[str, list[str]], limits: DriftConfig
) -> tuple[Drift, Drift]:
    """All people against the training people, and the last four weeks against the same a quarter ago."""
    before = windows.before
    reference: TrainingPeople = {
        "people": nearest(before.total),
        "codes": {
            code: (nearest(n), nearest(before.judged[code]))
            for code, n in before.subjects.items()
            if n >= SMALLEST_COUNT
        },
        "measures": {
            name: knots.tolist()
            for name, (_, knots) in before.measured().items()
            if knots is not None and name in ("rows", "visits", "codes")
        },
        "visits_a_year": 0.0,
        "risks": {},
    }
    given: dict[str, Any] = {"parents": parents, "limits": limits}
    trained = compare(windows.all, run, **given)
    if before.total < FEWEST_PEOPLE:
        return trained, Drift(trained.people, None, None, [])
    recent = compare(windows.recent, run, **given, reference=reference)
    kept = [
        one
        for one in recent.differences or ()
        # numbers are judged by the training people's: what was unusual a quarter ago is no news
        if one.kind != "numbers"
        or before.outside[one.name] <= MANY_OUTSIDE * max(before.judged[one.name], 1)
    ]
    return trained, replace(recent, differences=None if recent.differences is None else kept)
