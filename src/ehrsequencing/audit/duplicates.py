"""Checks for one record under two ids: whole timelines that subjects of two splits share.

A timeline's fingerprint is made of its codes and of the times between its visits. Ids, dates, births, codes without a
time and numbers have no part in it, so that a copy under a new id and with shifted dates is found. Short timelines
agree by chance. A pair counts only where chance does not explain it: see `_Common.by_chance`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding
from ehrsequencing.core.arrays import Ints, Ints32
from ehrsequencing.core.disclosure import SMALLEST_COUNT
from ehrsequencing.records.timelines import TaskRecords, Timelines

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


CHECKS = (
    Check("duplicate_timelines", "Is no record in two splits under two ids?", duplicate_timelines),
)
