"""Records of one person in two splits, and what the run stores of fewer people than `vocabulary.min_subjects`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding, count_text, judge, no_source
from ehrsequencing.audit.source import Source, of_few_people
from ehrsequencing.core.arrays import Bools, Floats, Ints, Ints32
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.events import DAY_US, STATIC, Events
from ehrsequencing.records.timelines import TaskRecords, Timelines
from ehrsequencing.records.vocabulary import SUMMARIES, Vocabulary

BY_CHANCE = 0.01  # pairs that unrelated people may form in the whole data set
MOST_COMPARED = 500  # shared timelines of two splits whose chance is worked out, drawn at random
MOST_COPIES = 10  # people with one timeline; what more have is no rarity, but a schedule
# share of a split's people: twins, and the odd person with two ids, are worth a warning
TOLERATED = 0.001
SECOND_US = 1_000_000
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class _People:
    """One split: whose timelines are compared, and the fingerprints of timelines and visits."""

    timelines: Timelines  # of the split
    subject: Ints  # (A,) rows of the timelines: those with a visit and a prediction time
    whole: Hashes  # (S,) fingerprint of each whole timeline
    codes: Hashes  # (N,) fingerprint of each visit's codes
    gap_s: Ints  # (N,) seconds since the visit before, -1 for the first

    @classmethod
    def of(cls, records: TaskRecords) -> "_People":
        timelines, rows = records.timelines, records.rows
        offsets, start = timelines.subject_offsets, timelines.start_us
        end = timelines.end_us
        first = offsets[:-1][timelines.owner]
        codes = _sums(_mixed(timelines.codes), timelines.visit_offsets)
        since = _mixed((start - start[first]) // SECOND_US) + _mixed((end - start) // SECOND_US + 1)
        whole = _sums(_mixed(codes + since), offsets)
        gap = np.r_[-1, np.diff(start) // SECOND_US][: len(start)]
        gap[np.flatnonzero(first == np.arange(len(start)))] = -1
        asked = np.flatnonzero((np.diff(rows.row_offsets) > 0) & (np.diff(offsets) > 0))
        return cls(timelines, asked, whole, codes, gap)

    def visits(self, subject: int) -> slice:
        """Visits of a subject."""
        return slice(
            int(self.timelines.subject_offsets[subject]),
            int(self.timelines.subject_offsets[subject + 1]),
        )


def _mixed(numbers: Ints | Ints32 | Hashes) -> Hashes:
    """Spread numbers over 64 bits, so that their sums tell sets apart (the finaliser of SplitMix64)."""
    x = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _sums(numbers: Hashes, offsets: Ints) -> Hashes:
    """Sum of each owner's numbers, modulo 2**64."""
    total = np.zeros(len(numbers) + 1, dtype=np.uint64)
    np.cumsum(numbers, out=total[1:])
    return total[offsets[1:]] - total[offsets[:-1]]


def duplicate_timelines(data: AuditData) -> Finding:
    """People of one split whose whole timeline somebody of another split has, too."""
    people = {split: _People.of(data.records[split]) for split in SPLITS}
    common = _Common(data, people)
    tested = {"subjects": sum(len(some.subject) for some in people.values())}
    pairs = [("held_out", "train"), ("tuning", "train"), ("held_out", "tuning")]
    worst, told, shared = 0.0, list[str](), 0
    for judged, fitted in pairs:
        here, there = people[judged], people[fitted]
        known = here.subject[np.isin(here.whole[here.subject], there.whole[there.subject])]
        shared += len(known)
        limit = BY_CHANCE / max(len(here.subject) * len(there.subject), 1)
        looked_at = data.rng(20).permutation(known)[:MOST_COMPARED].tolist()
        copies = np.mean(
            [common.by_chance(here, subject) < limit for subject in looked_at] or [False]
        )
        share = float(copies) * len(known) / max(len(here.subject), 1)
        if share:
            worst = max(worst, share)
            many = share * len(here.subject) >= SMALLEST_COUNT
            some = f"{share:.0%}" if many else f"fewer than {SMALLEST_COUNT}"
            told.append(f"{some} of the {judged} people have the timeline of somebody in {fitted}")
    tested["shared timelines"] = shared
    if not tested["subjects"]:
        return Finding("not_tested", "no subject with a prediction time has a visit", tested)
    if not told:
        clean = (
            "no timeline is in two splits"
            if not shared
            else "only short timelines that chance explains are shared"
        )
        return Finding("passed", clean, tested, 0.0, TOLERATED)
    why = f"{', '.join(told)}: the same codes with the same times between them; keep one of each, and prepare again"
    return Finding("leak" if worst > TOLERATED else "warning", why, tested, worst, TOLERATED)


class _Common:
    """How common codes, sets of codes and times between visits are: what chance could give."""

    def __init__(self, data: AuditData, people: dict[str, _People]) -> None:
        self.codes, self.visits_with = _counted([some.codes for some in people.values()])
        self.gaps, self.visits_after = _counted([some.gap_s for some in people.values()])
        self.n_visits = max(int(self.visits_with.sum()), 1)
        self.whole, self.people_with = _counted([some.whole for some in people.values()])
        size = len(data.vocabulary)
        tokens = sum(np.bincount(some.timelines.codes, minlength=size) for some in people.values())
        self.log_token = np.log(np.minimum((np.asarray(tokens) + 1.0) / self.n_visits, 1.0))

    def by_chance(self, people: _People, subject: int) -> float:
        """Chance that somebody unrelated has this timeline: the product over its distinct kinds of visits.

        A kind is a set of codes and a time since the visit before, each as likely as it is common among all visits. Of
        a set of codes that only a few people with this very timeline have, the codes' own chances are multiplied; the
        square root of that counts, since codes come together.
        """
        visits = people.visits(subject)
        codes, gap = people.codes[visits], people.gap_s[visits]
        alike = self.people_with[np.searchsorted(self.whole, people.whole[subject])]
        with_codes = self.visits_with[np.searchsorted(self.codes, codes)]
        with_gap = self.visits_after[np.searchsorted(self.gaps, gap)]
        only_here = (with_codes == alike * _repeated(codes)) & (alike <= MOST_COPIES)
        _, kinds = np.unique(np.stack([codes, gap.astype(np.uint64)]), axis=1, return_index=True)
        log_chance = float(np.log(with_gap[kinds] / self.n_visits)[gap[kinds] >= 0].sum())
        for k in kinds.tolist():
            if only_here[k]:
                log_chance += self._log_together(people.timelines, visits.start + k)
            else:
                log_chance += float(np.log(with_codes[k] / self.n_visits))
        return float(np.exp(log_chance))

    def _log_together(self, timelines: Timelines, visit: int) -> float:
        low, high = (int(timelines.visit_offsets[v]) for v in (visit, visit + 1))
        tokens = np.unique(timelines.codes[low:high])
        return min(float(self.log_token[tokens].sum()) / 2, -float(np.log(self.n_visits)))


def _counted(parts: list[NDArray[Any]]) -> tuple[NDArray[Any], Ints]:
    """The distinct numbers in order, and how often each occurs."""
    return np.unique(np.concatenate(parts), return_counts=True)


def _repeated(numbers: NDArray[Any]) -> Ints:
    """(n,) how often each number occurs among them."""
    _, inverse, times = np.unique(numbers, return_inverse=True, return_counts=True)
    return times[inverse.reshape(-1)]


DUPLICATE_CHECKS = (
    Check("duplicate_timelines", "Is no record in two splits under two ids?", duplicate_timelines),
)


SINCE, COUNT = SUMMARIES.index("SINCE"), SUMMARIES.index("COUNT")


def single_people(data: AuditData) -> Finding:
    """People behind every token, and behind every stored number that is a value of the records."""
    if data.source is None:
        return no_source(data)
    needed, vocabulary = data.prepared.study.vocabulary.min_subjects, data.vocabulary
    if needed < 2:
        return Finding("not_tested", "vocabulary.min_subjects=1 protects nobody")
    training = data.prepared.timelines("train").subject_id
    people = np.zeros(len(vocabulary), dtype=np.int64)
    with_number = np.zeros(len(vocabulary), dtype=np.int64)
    numbers = _Numbers(vocabulary, needed)
    for events in data.source.events():
        learned = np.isin(events.subject_id, training)
        people += _people(data.source, vocabulary, events, np.flatnonzero(learned))
        valued = (
            learned & ~np.isnan(events.value) & vocabulary.keeps_number(events.codes)[events.code]
        )
        with_number += _people(data.source, vocabulary, events, np.flatnonzero(valued))
        numbers.add(events, learned)
    named = np.arange(2, vocabulary.n_unknown + len(vocabulary.codes))
    has_scale = named[vocabulary.scale[named] >= 0]
    few = int((people[named] < needed).sum() + (with_number[has_scale] < needed).sum())
    few += len(set(vocabulary.rollup) & set(data.source.codes))
    own = numbers.of_few()
    of_blend, in_blend, told = 0, 0, ""
    tested = {"names": len(named), "numbers": numbers.stored, "training subjects": len(training)}
    if data.run.blend is not None:
        of_blend, in_blend = of_few_people(data.run.blend, data.records["train"], needed)
        told = f", {count_text(of_blend)} names, cuts and ranges of the blend's features"
        tested["features of the blend"] = in_blend
    return judge(
        few + own + of_blend,
        of=len(named) + numbers.stored + in_blend,
        what=f"names and numbers are those of fewer than {needed} training subjects "
        f"({count_text(few)} names and {count_text(own)} numbers of the vocabulary{told})",
        tested=tested,
        clean=f"at least {needed} training subjects are behind every name, and share every number that is a value",
    )


def _people(source: Source, vocabulary: Vocabulary, events: Events, rows: Ints) -> Ints:
    """(V,) how many subjects have each token, of those whose rows these are; a type's token counts all its codes."""
    kinds = {kind: 2 + place for place, kind in enumerate(vocabulary.kinds)}
    index = {code: vocabulary.n_unknown + place for place, code in enumerate(vocabulary.codes)}
    pairs = []
    for number, code in enumerate(events.codes):
        name = vocabulary.rolled_up(code) or code
        tokens = [index[name]] if name in index else []
        head, separator, _ = code.partition("//")
        tokens += [kinds[head]] if separator and head in kinds else []
        pairs += [] if source.excluded(code) else [(number, token) for token in tokens]
    out = np.zeros(len(vocabulary), dtype=np.int64)
    if not pairs or not len(rows):
        return out
    of_code, token = np.array(pairs).T
    every, subject = np.unique(events.subject_id[rows], return_inverse=True)
    # distinct pairs of code and subject
    mine = np.unique(events.code[rows] * np.int64(len(every)) + subject)
    low, high = (np.searchsorted(mine, (of_code + step) * len(every)) for step in (0, 1))
    found = [
        t * len(every) + mine[a:b] % len(every) for t, a, b in zip(token, low, high, strict=True)
    ]
    return out + np.bincount(np.unique(np.concatenate(found)) // len(every), minlength=len(out))


class _Numbers:
    """Who has the values that a vocabulary's stored numbers equal.

    Numbers about gaps and counts are looked for among the gaps and counts of all codes, since codes with too few share
    one scale.
    """

    def __init__(self, vocabulary: Vocabulary, needed: int) -> None:
        self.vocabulary, self.needed = vocabulary, needed
        self.numbers: dict[
            int, Floats
        ] = {}  # of each code's token; and of all gaps (−1), and of all counts (−2)
        for token in np.flatnonzero(
            vocabulary.scale[: vocabulary.n_unknown + len(vocabulary.codes)] >= 0
        ).tolist():
            self._note(token, int(vocabulary.scale[token]))
            for key, summary in ((-1, SINCE), (-2, COUNT)):
                if (made := int(vocabulary.summary_tokens[token, summary])) >= 0:
                    self._note(key, int(vocabulary.scale[made]))
        self.stored = sum(map(len, self.numbers.values()))
        self._learned: dict[tuple[int, float], set[int]] = {}
        self._others: set[tuple[int, float]] = set()

    def _note(self, key: int, row: int) -> None:
        knots, mean, sd = (
            array[row]
            for array in (self.vocabulary.knots, self.vocabulary.mean, self.vocabulary.sd)
        )
        if knots.any() or mean:  # all zeros: the scale of what too few people have
            new = np.r_[knots, mean, sd if sd != 1.0 else mean]
            self.numbers[key] = np.unique(np.r_[self.numbers.get(key, new), new])

    def add(self, events: Events, learned: Bools) -> None:
        """Look at a shard; `learned` (n,) says which rows are of training subjects."""
        for key, rows, value in self._looked_for(events):
            hit = np.isin(value, self.numbers[key])
            who, value, known = events.subject_id[rows[hit]], value[hit], learned[rows[hit]]
            for number in np.unique(value).tolist():
                same = value == number
                holders = self._learned.setdefault((key, number), set())
                if len(holders) < self.needed:
                    holders.update(np.unique(who[same & known])[: self.needed].tolist())
                if not known[same].all():
                    self._others.add((key, number))

    def _looked_for(self, events: Events) -> Iterator[tuple[int, Ints, Floats]]:
        """Each key with rows of its values, and the values."""
        rows = np.flatnonzero(~np.isnan(events.value))
        token = self.vocabulary.ids(events.codes)[events.code[rows]] if len(rows) else rows
        own = self.vocabulary.keeps_number(events.codes)[events.code[rows]] if len(rows) else rows
        for key in np.unique(token).tolist():
            if key in self.numbers:
                some = rows[(token == key) & own]
                yield key, some, events.value[some].astype(np.float64)
        rows = rows[events.time_us[rows] != STATIC]
        rows = rows[np.lexsort((events.time_us[rows], events.code[rows], events.subject_id[rows]))]
        again = (np.diff(events.subject_id[rows]) == 0) & (np.diff(events.code[rows]) == 0)
        if -1 in self.numbers:
            yield -1, rows[1:][again], (np.diff(events.time_us[rows]) / DAY_US)[again]
        if -2 in self.numbers and len(rows):
            first = np.flatnonzero(np.r_[True, ~again])
            yield -2, rows[first], np.diff(np.r_[first, len(rows)]).astype(np.float64)

    def of_few(self) -> int:
        """How many stored numbers are values of somebody, and of too few training subjects."""
        return sum(
            len(holders) < self.needed and (bool(holders) or key in self._others)
            for key, holders in self._learned.items()
        )


CHECKS = (
    Check(
        "single_people",
        "Does all that the run stores come from at least vocabulary.min_subjects people?",
        single_people,
    ),
)
