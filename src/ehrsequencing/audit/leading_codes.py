"""Checks for codes that come just before events, which may have been recorded because of the event.

Both checks look at the labels of the training and the tuning subjects, all of them. Rates are life-table (actuarial)
rates: somebody whose follow-up ends within the window counts as half a person, a competing event as no event. With
blanking, windows begin where it ends, as the labels do. A rate is held against the base rate: that of all prediction
times, in which every person has the same weight.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betainc

from ehrsequencing.audit.data import FITTED, AuditData, Check, Finding, Verdict
from ehrsequencing.config import format_days
from ehrsequencing.core.arrays import Bools, Floats, Ints, ragged
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords, TaskRows, Timelines
from ehrsequencing.records.visits import count_at_or_before

WINDOWS_DAYS = (1.0, 2.0, 7.0)
SURE_RATE, HIGH_RATE = 0.95, 0.5  # of the event after a code is first seen: a leak, a warning
LEAD_DAYS = 1.0
LEAD_SHARE = 0.2  # of those with the event, who must have the code in the last day before it
SURE_LEAD = 0.8  # of the records of such a code, followed by the event within a day: a leak; a warning as above
FEWEST_CARRIERS = 10
LEAST_ODDS_RATIO = 3.0  # of a suspicious rate and the base rate: where all have the event soon, no code gives it away
BY_CHANCE = 0.01  # how many codes may look like this although they tell nothing: the binomial tail times the codes
MOST_NAMED = 5
ADVICE = (
    "ask how it comes to be recorded; if it is written because of the event, add it to the task's outcome or to "
    "visits.ignore, or set blanking"
)


@dataclass(frozen=True)
class _Labels:
    """What followed some moments."""

    cause: Ints  # (n,) cause of the event, 0 where there is none
    days: Floats  # (n,) until the event or the end of follow-up, from the end of any blanking

    @classmethod
    def of(cls, rows: TaskRows, chosen: Ints) -> "_Labels":
        days = rows.duration_days[chosen] - rows.entry_days[chosen]
        return cls(rows.cause.astype(np.int64)[chosen], days)

    def within(self, cause: int, days: float) -> tuple[Floats, Floats]:
        """(n,) 1 where the event falls in the window; (n,) persons at risk: ½ where follow-up ends in it, else 1."""
        lost = (self.cause == 0) & (self.days < days)
        return ((self.cause == cause) & (self.days <= days)).astype(np.float64), 1.0 - 0.5 * lost


def _base_rate(data: AuditData, cause: int, days: float) -> float:
    """Rate of a cause within some days of a prediction time of an average person."""
    events = at_risk = 0.0
    for split in FITTED:
        rows = data.records[split].rows
        event, present = _Labels.of(rows, np.arange(len(rows))).within(cause, days)
        each = 1.0 / np.maximum(np.diff(rows.row_offsets), 1)[rows.subject]
        events, at_risk = (
            events + float((each * event).sum()),
            at_risk + float((each * present).sum()),
        )
    return events / at_risk if at_risk else 0.0


@dataclass(frozen=True)
class _Counts:
    """Of every token: persons at risk, events among them, and distinct people behind that; and the base rate."""

    at_risk: Floats
    events: Floats
    people: Ints
    base: float

    @property
    def rate(self) -> Floats:
        return np.divide(
            self.events, self.at_risk, out=np.zeros_like(self.events), where=self.at_risk > 0
        )

    def beyond_base(self, questions: int) -> Bools:
        """(V,) which tokens have more events than the base rate explains, by far, with so many comparisons made."""
        tail = np.ones(len(self.events))
        some = self.events > 0
        events, rest = self.events[some], np.maximum(self.at_risk[some] - self.events[some], 0.0)
        tail[some] = betainc(events, rest + 1.0, min(self.base, 1.0))
        by_far = self.rate * (1 - self.base) >= LEAST_ODDS_RATIO * self.base * (1 - self.rate)
        return by_far & (tail * questions < BY_CHANCE)


@dataclass(frozen=True)
class _Suspect:
    """A code, how often the event follows it, and that in words."""

    token: int
    people: int
    rate: float
    words: str

    def told(self, data: AuditData) -> str:
        """The code, and how often the event follows it; no name where too few people have it."""
        named = self.people >= SMALLEST_COUNT
        name = (
            repr(data.vocabulary.tokens[self.token])
            if named
            else "a code of too few people to be named"
        )
        return f"{name} ({self.words})"


def _often(rate: float, base: float) -> str:
    """A rate and its lift."""
    lift = rate / base
    return f"{rate:.0%}, {lift:,.{0 if lift >= 10 else 1}f} times the base rate"


def _verdict(
    data: AuditData, suspects: list[_Suspect], *, sure: float, after: str, tested: dict[str, int]
) -> Finding:
    """Leak or warning, with the codes of the highest rates."""
    suspects = sorted(suspects, key=lambda suspect: (-suspect.rate, suspect.token))
    told = ", ".join(suspect.told(data) for suspect in suspects[:MOST_NAMED])
    more = f" and {len(suspects) - MOST_NAMED:,} more" if len(suspects) > MOST_NAMED else ""
    worst = suspects[0].rate
    verdict: Verdict = "leak" if worst > sure else "warning"
    often = "almost always" if verdict == "leak" else "often"
    return Finding(verdict, f"{after} {often}: {told}{more}; {ADVICE}", tested, worst, HIGH_RATE)


# ---- after the first sight of a code ---------------------------------------------------------------------------------


def event_after_code(data: AuditData) -> Finding:
    """The rate of each cause within 1, 2 and 7 days of the first prediction time that sees a code."""
    tokens, causes, durations = list[Ints](), list[Ints](), list[Floats]()
    for split in FITTED:
        presence, rows = data.presence[split], data.records[split].rows
        seen = presence.start < presence.stop  # one row for each person and token
        tokens.append(presence.token[seen])
        labels = _Labels.of(rows, presence.start[seen])
        causes.append(labels.cause)
        durations.append(labels.days)
    token, size = np.concatenate(tokens), len(data.vocabulary)
    after = _Labels(np.concatenate(causes), np.concatenate(durations))
    people = np.bincount(token, minlength=size)
    enough = people >= FEWEST_CARRIERS
    questions = int(enough.sum()) * len(WINDOWS_DAYS) * len(data.task.causes)
    tested = {"codes": int(enough.sum()), "prediction times": len(token)}
    if not questions or not (after.cause > 0).any():
        few = f"no code is first seen by {FEWEST_CARRIERS} people, or nobody has an event after one"
        return Finding("not_tested", few, tested)
    worst: dict[int, _Suspect] = {}
    highest = 0.0
    for number, cause in enumerate(data.task.causes, start=1):
        for days in WINDOWS_DAYS:
            counts = _counts(
                token, people, after.within(number, days), _base_rate(data, number, days)
            )
            rate = counts.rate
            highest = max(highest, float(rate[enough].max(initial=0.0)))
            for k in np.flatnonzero(
                enough & (rate > HIGH_RATE) & counts.beyond_base(questions)
            ).tolist():
                if k not in worst or rate[k] > worst[k].rate:
                    words = (
                        f"{cause} within {format_days(days)}: {_often(float(rate[k]), counts.base)}"
                    )
                    worst[k] = _Suspect(k, int(people[k]), float(rate[k]), words)
    if worst:
        words = "after the first sight of a code the event follows"
        return _verdict(data, list(worst.values()), sure=SURE_RATE, after=words, tested=tested)
    clean = "no code, when it is first seen, announces an event within 7 days"
    return Finding("passed", clean, tested, highest, HIGH_RATE)


def _counts(token: Ints, people: Ints, found: tuple[Floats, Floats], base: float) -> _Counts:
    events, at_risk = (
        np.asarray(np.bincount(token, part, len(people)), np.float64) for part in found
    )
    return _Counts(at_risk, events, people, base)


# ---- in the last hours before an event -------------------------------------------------------------------------------


def code_before_event(data: AuditData) -> Finding:
    """Codes in the last day before many events, and seldom elsewhere; every record of a code counts, not the first."""
    split_visits = [_Visits.of(data.records[split]) for split in FITTED]
    size, suspects, highest, able = len(data.vocabulary), list[_Suspect](), 0.0, 0
    tested = {"visits": sum(len(visits.subject) for visits in split_visits)}
    found = [
        _records_before(data, split_visits, number)
        for number in range(1, len(data.task.causes) + 1)
    ]
    questions = sum(int((counts.people >= FEWEST_CARRIERS).sum()) for counts, _ in found)
    for cause, (counts, with_event) in zip(data.task.causes, found, strict=True):
        if with_event < FEWEST_CARRIERS:
            continue
        able += 1
        leads = (counts.people >= FEWEST_CARRIERS) & (counts.people >= LEAD_SHARE * with_event)
        highest = max(highest, float(counts.rate[leads].max(initial=0.0)))
        leads &= (counts.rate > HIGH_RATE) & counts.beyond_base(max(questions, 1))
        for k in np.flatnonzero(leads).tolist():
            rate, share = float(counts.rate[k]), counts.people[k] / with_event
            words = f"{share:.0%} of those with {cause} have it in the day before; "
            words += f"{cause} within a day of its records: "
            suspects.append(
                _Suspect(k, int(counts.people[k]), rate, words + _often(rate, counts.base))
            )
    tested["codes"] = size
    if not able:
        return Finding(
            "not_tested", f"no cause has {FEWEST_CARRIERS} people with the event", tested
        )
    if suspects:
        return _verdict(
            data,
            suspects,
            sure=SURE_LEAD,
            after="within hours of a code the event follows",
            tested=tested,
        )
    clean = "no code is frequent on the day before an event and rare elsewhere"
    return Finding("passed", clean, tested, highest, HIGH_RATE)


@dataclass(frozen=True)
class _Visits:
    """The visits of one split that a prediction time sees within a day of their end."""

    timelines: Timelines  # of the split
    visit: Ints  # (n,) the visits
    subject: Ints  # (n,) their subjects
    labels: _Labels  # what followed their ends
    with_event: dict[int, int]  # cause → how many subjects have it after some prediction time

    @classmethod
    def of(cls, records: TaskRecords) -> "_Visits":
        timelines, rows = records.timelines, records.rows
        offsets, owner = timelines.subject_offsets, timelines.owner
        place = np.arange(len(owner)) - offsets[owner]
        before, first = count_at_or_before(
            rows.subject, rows.visits_before.astype(np.int64), owner, place
        )
        row = first + before
        visit = np.flatnonzero(row < rows.row_offsets[owner + 1])
        row = row[visit]
        waited = (rows.prediction_us[row] - timelines.end_us[visit]) / DAY_US
        soon = waited <= LEAD_DAYS
        visit, row, waited = visit[soon], row[soon], waited[soon]
        labels = _Labels.of(rows, row)
        cause, subject = rows.cause, rows.subject
        having = {int(c): len(np.unique(subject[cause == c])) for c in np.unique(cause) if c > 0}
        return cls(
            timelines, visit, owner[visit], _Labels(labels.cause, labels.days + waited), having
        )


def _records_before(data: AuditData, visits: list[_Visits], cause: int) -> tuple[_Counts, int]:
    """Of each token, its records and those that the event follows within a day; and how many people have the event."""
    size = len(data.vocabulary)
    at_risk, events = np.zeros(size), np.zeros(size)
    people = np.zeros(size, np.int64)
    for some in visits:
        event, present = some.labels.within(cause, LEAD_DAYS)
        lengths = np.diff(some.timelines.visit_offsets)
        weight = np.zeros(len(lengths))
        for total, part in ((at_risk, present), (events, event)):
            weight[some.visit] = part
            total += np.bincount(some.timelines.codes, np.repeat(weight, lengths), size)
        hit = some.visit[event > 0]
        codes, _ = ragged(some.timelines.visit_offsets, hit)
        token = some.timelines.codes.astype(np.int64)[codes]
        distinct = np.unique(
            np.stack([token, np.repeat(some.subject[event > 0], lengths[hit])]), axis=1
        )
        people += np.bincount(distinct[0], minlength=size)
    counts = _Counts(at_risk, events, people, _base_rate(data, cause, LEAD_DAYS))
    return counts, sum(some.with_event.get(cause, 0) for some in visits)


CHECKS = (
    Check(
        "event_after_code",
        "Does an event follow as soon as a code is first seen?",
        event_after_code,
    ),
    Check(
        "code_before_event",
        "Does a code mark the hours before many events, and little else?",
        code_before_event,
    ),
)
