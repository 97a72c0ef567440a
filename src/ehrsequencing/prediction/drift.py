"""How new people differ from a run's training people: a broken feed, another mix of patients, or neither.

A feed is broken where codes, their units or their numbers are not what they were. Another mix of patients has the same
codes and numbers, and other shares of people have them. Nothing here names a code that fewer than 11 people have.
Counts of people are hidden or rounded first, and sizes, limits, alarms and the order follow from what is shown, so that
none of them tells more. It needs no torch.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import DataConfig, DriftConfig
from ehrsequencing.core.arrays import Bools, Floats
from ehrsequencing.core.disclosure import (
    SMALLEST_COUNT,
    Share,
    nearest,
    rounded,
    shareable_count,
)
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.account import TrainingPeople
from ehrsequencing.records.codes import (
    CodeMatcher,
    code_type,
    read_parents,
)
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.people import MEASURES, PEOPLE, People, visits_a_year
from ehrsequencing.records.survey import Progress, Steps, survey
from ehrsequencing.records.vocabulary import Vocabulary

# of the new people, and of a code: with fewer nothing is said
FEWEST_PEOPLE, FEWEST_NUMBERS = 30, 20
EXPECTED = 10.0  # people who should have a code: that nobody has it is then no chance
# standard errors of chance: of a share, and of a distance between distributions
SIGMAS, KS_SIGMAS = 4.0, 2.5
MANY_OUTSIDE = 0.3  # mean share of a person's numbers of a code there, beyond which it is an alarm
USUAL = 0.02  # share of the training people's numbers outside their 1st to 99th percentile
MUCH_UNKNOWN = 0.5  # share of rows with a code that the run does not know
MOST_NAMED = 5  # codes in one sentence
MOST_SHOWN = 8  # differences that are printed
NO_REFERENCE = (
    "only units and common codes were compared, since {} of the run {}: copy the run again"
)
# kinds of differences, in the order in which they are said: those of a broken feed, and of another mix of patients
BROKEN = {
    "unit": "{}",
    "kind": "no row has a code of the kind {}",
    "gone": "nobody has {}",
    "numbers": "numbers lie outside the 1st to 99th percentile of the training data: compare the units of {}",
    "no numbers": "no row has a number of {}",
    "new": "the run does not know {}",
    "unknown": "{} of a person's rows have a code that the run does not know and cannot use",
    "rate": "there are fewer {}",
}
MIX = {
    "share": "more or fewer people have {}",
    "people": "{}",
}
_TITLES = {
    "numbers": "numbers of {}",
    "no numbers": "a number of {}",
    "kind": "codes of the kind {}",
}
_LABELS = {"unit": "{0}", "numbers": "{0} ({2})", "new": "{0} ({2})", "unknown": "{2}"}
_COUNTED_OF_PEOPLE = {MEASURES[name] for name in ("rows", "visits", "codes")}
_OF_LENGTH = {"rows", "visits", "codes", "history"}  # measures that a cut of the records changes
# of a measure: values of the new people, quantiles of groups of 11 of them, and those of the training people
Sampled = tuple[Floats, Floats, Floats]


@dataclass(frozen=True)
class Difference:
    """One thing that was compared.

    Attributes:
        kind: A key of `BROKEN` or `MIX`.
        name: The code, or what was measured.
        size: How far apart, from 0 to 1: a difference of shares (at most), or the distance between two distributions.
        training: Of the training people: a share, or a median of `people`; None where it is not known.
        here: Of the new people; None where it would be of fewer than 11 people.
        is_alarm: Whether it lies beyond its limit and beyond chance.
    """

    kind: str
    name: str
    size: float
    training: float | None
    here: float | None
    is_alarm: bool = True

    @property
    def texts(self) -> tuple[str, str]:
        """Of the training people and of the new people, as text."""
        is_share = self.kind not in ("people", "rate")
        training, here = (
            "–"
            if one is None
            else f"{one:.0%}"
            if is_share
            else f"{one:,.{0 if one >= 10 else 2}f}"
            for one in (self.training, self.here)
        )
        return training, "hidden" if self.here is None else here

    @property
    def title(self) -> str:
        """What was compared, for a table."""
        return _TITLES.get(self.kind, "{}").format(self.name)

    @property
    def label(self) -> str:
        """What was compared with its numbers, for a sentence."""
        training, here = self.texts
        form = _LABELS.get(self.kind, "{} ({} in training, {} here)")
        return form.format(self.name, training, here)


@dataclass(frozen=True, repr=False)
class Drift:
    """New people beside a run's training people.

    Attributes:
        people: How many there are, as it may be shared.
        differences: The largest first; None where people are too few.
        histories: Median days from first to last visit of the training people and of these, where they were cut.
        notes: What could not be compared, and why.
    """

    people: int | str | None
    differences: list[Difference] | None
    histories: tuple[float, float] | None
    notes: list[str]

    @property
    def is_alarm(self) -> bool:
        """Whether something lies beyond its limit."""
        return any(one.is_alarm for one in self.differences or ())

    @property
    def passes(self) -> bool:
        """Whether everything was compared and nothing lies beyond its limit; `--strict` makes a list only then."""
        return self.differences is not None and not self.notes and not self.is_alarm

    def sentences(self, kinds: Mapping[str, str]) -> Iterator[str]:
        """What lies beyond its limit, one sentence a kind."""
        for kind, words in kinds.items():
            labels = [o.label for o in self.differences or () if o.kind == kind and o.is_alarm]
            more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
            if labels:
                yield words.format(", ".join(labels[:MOST_NAMED]) + more)

    @property
    def verdict(self) -> str:
        """One line: not compared, a broken feed, another mix of patients, a cut extract, or no alarm."""
        if self.differences is None:
            return f"Not compared: fewer than {FEWEST_PEOPLE} people are too few to say."
        text = "No alarm: these people are like the training people."
        if self.notes:
            text = f"Not compared, so nothing says that these people are like the training people: {self.notes[0]}."
        if mix := "; ".join(self.sentences(MIX)):
            why = "Another mix of patients, and no sign of a broken feed"
            # codes and rows beyond their limits; risks follow
            moved = [
                one
                for one in self.differences
                if one.is_alarm and (one.kind == "share" or one.name in _COUNTED_OF_PEOPLE)
            ]
            if moved and all((one.here or 0.0) < (one.training or 0.0) for one in moved):
                why = "Another mix of patients, or a part of the feed is missing"
            text = f"{why}: {mix}."
        if broken := "; ".join(self.sentences(BROKEN)):
            text = f"The feed looks broken: {broken}."
        if self.histories is None:
            return text
        training, here = (f"{days:,.0f}" for days in self.histories)
        medians = f"half of the histories are shorter than {here} days ({training} in training)"
        cut = f"The extract is cut ({medians}), so it is judged by rates a year."
        return f"{text} {cut}" if broken else f"{cut} {text}"

    def __repr__(self) -> str:
        rows = [
            f"  {one.title:<48} {one.texts[0]:>9} {one.texts[1]:>9}{'  alarm' * one.is_alarm}"
            for one in (self.differences or ())[:MOST_SHOWN]
        ]
        return "\n".join([self.verdict, *rows])

    def to_frame(self) -> Any:
        """All differences as a frame, the largest first: the fields of `Difference`."""
        import pandas as pd

        return pd.DataFrame([vars(one) for one in self.differences or ()])

    def as_json(self) -> dict[str, Any]:
        """For other programs; everything in it may be shared."""
        return {
            "verdict": self.verdict,
            "alarm": self.is_alarm,
            "passes": self.passes,
            "cut": self.histories is not None,
            "people": self.people,
            "differences": [dict(vars(one)) for one in self.differences or ()],
            "notes": self.notes,
        }


def compare(
    people: People,
    run: Run,
    *,
    parents: Mapping[str, list[str]],
    limits: DriftConfig,
    risks: dict[str, Sampled] | None = None,
    reference: TrainingPeople | None = None,
) -> Drift:
    """Compare new people with a run's training people, or with others.

    Args:
        people: The new ones, counted by the run's vocabulary.
        run: The run.
        parents: Parents of its codes.
        limits: Beyond which a difference is an alarm.
        risks: What is predicted → the risks, as another measure.
        reference: What the others were like; default: the training people.
    """
    reference, count = reference or run.training_people, shareable_count(people.total)
    notes = [] if reference else [NO_REFERENCE.format(PEOPLE, run.why_no_people)]
    if nearest(people.total) < FEWEST_PEOPLE:
        return Drift(count, None, None, notes)
    known, trained = (reference["measures"], reference["people"]) if reference else ({}, 1)
    sampled = {
        MEASURES[name]: (values, knots, np.array(known[name]))
        for name, (values, knots) in people.measured().items()
        if knots is not None and name in known
    }
    is_cut = False
    if reference and (history := sampled.get(MEASURES["history"])):
        # nearly all histories are shorter than those of a quarter of the training people
        is_cut = bool(np.quantile(history[0], 0.95) < history[2][96])
    # how far an extract reaches back is said apart
    unjudged = {MEASURES[name] for name in _OF_LENGTH} if is_cut else set()
    named = sampled | (risks or {})
    found = [
        _distance(name, own, trained, 1.0 if name in unjudged else limits.people)
        for name, own in named.items()
    ]
    found += [
        *_numbers(people),
        *_codes(people, run, reference, parents, limits, is_cut=is_cut),
    ]
    unknown = Share.of(people.unknown_share, people.total)
    size, is_alarm = unknown.most_from(0.0), unknown.least > MUCH_UNKNOWN
    found.append(Difference("unknown", "unknown codes", size, None, unknown.shown, is_alarm))
    # where a whole kind of codes is missing, that makes histories short
    is_cut = is_cut and not any(one.kind == "kind" for one in found)
    if reference and is_cut:
        visits, history_days = (sampled[MEASURES[name]][0] for name in ("visits", "history"))
        rate, usual = visits_a_year(visits, history_days), reference["visits_a_year"]
        size = max(1 - rate / max(usual, 1e-9), 0.0)  # a cut makes them seem more, never fewer
        is_alarm = size > limits.people
        found.append(
            Difference("rate", "visits a year", rounded(size), usual, rounded(rate), is_alarm)
        )
    found.sort(key=lambda one: (-one.size, one.kind, one.name))
    histories = None
    if is_cut:
        _, knots, training = sampled[MEASURES["history"]]
        histories = float(training[64]), float(knots[64])
    return Drift(count, found, histories, notes)


def _distance(name: str, own: Sampled, trained: int, limit: float) -> Difference:
    """The largest distance between two cumulative distributions."""
    values, knots, training = own
    at = np.sort(np.r_[training, values])
    below, below_here = (
        np.searchsorted(np.sort(some), at, side="right") / len(some) for some in (training, values)
    )
    size = float(np.abs(below - below_here).max())
    beyond = max(limit, KS_SIGMAS * np.sqrt(1 / trained + 1 / nearest(len(values))))
    medians = [rounded(float(curve[64]), 4) for curve in (training, knots)]
    return Difference("people", name, rounded(size), medians[0], medians[1], bool(size > beyond))


def _numbers(people: People) -> Iterator[Difference]:
    """Codes whose numbers lie outside the 1st to 99th percentile of the training people's."""
    vocabulary, in_groups = people.vocabulary, is_group(people.vocabulary)
    for code, n in people.judged.items():
        enough = n >= SMALLEST_COUNT and people.numbers[code] >= FEWEST_NUMBERS
        if enough and not in_groups[vocabulary.scale[vocabulary.index[code]]]:
            share = Share.of(people.outside[code], n)
            most, is_alarm = share.most_from(0.0), share.least > MANY_OUTSIDE
            size = rounded(max(most - USUAL, 0.0))
            yield Difference("numbers", code, size, USUAL, share.shown, is_alarm)


def is_group(vocabulary: Vocabulary) -> Bools:
    """Which scales are of so few people that all their numbers are one group: a mean and no percentiles."""
    return np.asarray((vocabulary.knots[:, 0] == vocabulary.knots[:, -1]) & (vocabulary.sd != 1.0))


def _chance(share: float, n: float, trained: float) -> float:
    """How far a share of n people may lie from that of the training people by chance."""
    return float(SIGMAS * np.sqrt(share * (1 - share) * (1 / n + 1 / trained)))


def _codes(
    people: People,
    run: Run,
    reference: TrainingPeople | None,
    parents: Mapping[str, list[str]],
    limits: DriftConfig,
    *,
    is_cut: bool,
) -> Iterator[Difference]:
    """Codes that people have more or less often, codes and numbers that are gone, and codes that are new."""
    n, known = nearest(people.total), run.vocabulary
    trained = reference["people"] if reference else np.inf
    shares = {c: (share, 0.0) for c, share in zip(known.codes, known.share, strict=False)}
    if reference:
        codes = reference["codes"].items()
        shares = {code: (had / trained, numbered / trained) for code, (had, numbered) in codes}
    # people asked about may not have had an outcome yet
    of_causes = run.task.patterns.values()
    outcomes = [CodeMatcher(some, parents=parents, confirmed=True) for some in of_causes]
    shares = {c: share for c, share in shares.items() if not any(one(c) for one in outcomes)}
    unknown = people.unknown(known, people.excluded).items()
    new = {c: m for c, m in unknown if m >= SMALLEST_COUNT and c not in shares}
    units = _units(people, new, parents)
    kinds = {
        code_type(code) for code, m in people.subjects.items() if m and not people.excluded(code)
    }
    here_of = {c: Share.of(people.subjects[c], people.total) for c in (*shares, *new)}
    rises = defaultdict[str, float](float)
    for code, (share, _) in shares.items():
        middle = (here_of[code].low + here_of[code].high) / 2
        rises[code_type(code)] += max(middle - share, 0.0)
    missing = dict[str, float]()
    for code, (share, with_number) in shares.items():
        here, kind = here_of[code], code_type(code)
        # in records that are cut a code is rarer, and one may have come early
        enough = EXPECTED / n * (4 if is_cut else 1)
        is_gone = here.shown == 0 and share >= enough and code not in units
        if is_gone and kind and kind not in kinds:
            missing[kind] = max(share, missing.get(kind, 0.0))
        elif is_gone and not is_cut and rises[kind] < 0.8 * share:  # no codes of its kind instead
            yield Difference("gone", code, rounded(share), rounded(share), 0.0)
        elif here.shown != 0 and with_number >= enough and not people.judged[code]:
            yield Difference("no numbers", code, rounded(with_number), rounded(with_number), 0.0)
        elif reference and code not in units:
            size = rounded(here.most_from(share))
            near = min(max(share, here.low), here.high)  # the nearest that it may be
            middle = (near * n + share * trained) / (n + trained)
            beyond = max(limits.people, _chance(middle, n, trained))
            is_alarm = not is_cut and abs(near - share) > beyond
            yield Difference("share", code, size, rounded(share), here.shown, is_alarm)
    yield from (Difference("kind", kind, share, share, 0.0) for kind, share in missing.items())
    usual = (SMALLEST_COUNT - 1) / min(trained, n)  # at most: else the run would know them
    old_of = {new: old for old, new in units.items()}
    for code in new:
        here, kind, name = here_of[code], "new", code
        beyond = max(limits.people, usual + _chance(usual, n, trained))
        beyond = beyond if reference else 1.0  # in few training people it may have been common
        if old := old_of.get(code):
            kind, beyond = "unit", usual
            # as in: the unit of LOINC//2345-7 changed (mg/dL is gone, mmol/L is new)
            ends = {
                one: other
                for one, other in ((code, old), (old, code))
                if other.startswith(f"{one}//")
            }
            parent = next(iter(ends), code.rpartition("//")[0])
            was, now = (one.removeprefix(parent).lstrip("/") or "no unit" for one in (old, code))
            gone = "" if people.subjects[old] else f"{was} is gone, "
            name = f"the unit of {parent} changed ({gone}{now} is new)"
        size, is_alarm = here.most_from(0.0), here.least > beyond
        yield Difference(kind, name, size, 0.0, here.shown, is_alarm)


def _units(
    people: People, new: Mapping[str, int], parents: Mapping[str, list[str]]
) -> dict[str, str]:
    """Known code with numbers → a new one of the same parent; units stand last, as in `LOINC//2345-7//mg/dL`."""
    known = people.vocabulary
    of_parent = defaultdict[str, list[str]](list)
    for place in np.flatnonzero(known.has_numbers).tolist():
        code = known.codes[place]
        of_parent[code].append(code)
        of_parent[code.rpartition("//")[0]].append(code)
    found = dict[str, str]()
    for code in new:
        up = code.rpartition("//")[0]
        ups = {code, up} if "//" in up or up in parents.get(code, ()) else {code}
        near = [old for one in ups for old in of_parent[one]]
        if near and people.numbers[code]:
            found[min(near, key=lambda old: nearest(people.subjects[old]))] = code
    return found


def compare_data(
    run: Run,
    data: Path,
    facts: DataConfig | None,
    limits: DriftConfig | None = None,
    progress: Progress | None = None,
) -> Drift:
    """Compare the people of MEDS data in one pass, without the model; `facts` is what its own files do not tell."""
    reader, parents = MedsReader(data, facts, run.study), read_parents(data)
    excluded, tick = (
        CodeMatcher(run.manifest["excluded"], parents=parents),
        Steps(reader, 0, progress),
    )
    found = survey(reader, lambda: People(run.vocabulary, excluded, run.study.visits), tick)
    limits = limits or DriftConfig()
    return compare(found.part, run, parents=parents, limits=limits)
