"""Looks for a person in two splits: by id, or by a record that somebody in another split has too."""

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.audit.data import SPLITS, AuditData, Check, Finding, judge
from ehrsequencing.core.arrays import Bools, Ints, Ints32
from ehrsequencing.core.disclosure import SMALLEST_COUNT, count_text
from ehrsequencing.records.timelines import Timelines, joined

FEWEST_RARE = 3  # distinct visits that only the people with this very record have
MOST_COPIES = 10  # people with one record; what more have is a schedule
TOLERATED = 0.001  # share of a split: twins, and the odd person with two ids, are worth a warning
SECOND_US = 1_000_000
Hashes = NDArray[np.uint64]


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


def splits(data: AuditData) -> Finding:
    """Nobody is in two splits, or twice in one, under one id or under two."""
    parts = [data.records[name] for name in SPLITS]
    timelines = joined([part.timelines for part in parts])
    repeated = len(timelines) - len(np.unique(timelines.subject_id))
    tested = {"subjects": len(timelines) - repeated}
    if repeated:
        what = "subjects are in more than one split, or twice in one"
        return judge(repeated, of=len(timelines), what=what, clean="", tested=tested)
    split = np.repeat(np.arange(len(SPLITS)), [len(part.timelines) for part in parts])
    is_asked = np.concatenate([np.diff(part.rows.row_offsets) > 0 for part in parts])
    is_copy = np.zeros(len(timelines), dtype=np.bool_)
    for timed in (False, True):
        record, is_rare = _fingerprints(timelines, timed=timed)
        is_rare &= is_asked
        for number in (
            1,
            2,
        ):  # tuning, held out: who is among the people of the splits before it, too
            here = is_rare & (split == number)
            is_copy |= here & np.isin(record, record[is_rare & (split < number)])
    judged = is_copy[is_asked & (split > 0)]
    share = float(judged.mean()) if len(judged) else 0.0
    if not judged.any():
        return Finding("passed", "nobody is in two splits", tested, 0.0, TOLERATED)
    return Finding(
        "leak" if share > TOLERATED else "warning",
        f"{count_text(int(judged.sum()))} of the {count_text(len(judged))} tuning and held-out people have the record "
        "of somebody in another split, the same codes in the same order; keep one of each, and prepare again",
        tested,
        round(share, 3) if judged.sum() >= SMALLEST_COUNT else None,
        TOLERATED,
    )


def _fingerprints(timelines: Timelines, *, timed: bool) -> tuple[Hashes, Bools]:
    """Of each subject: a fingerprint of the record, and whether chance cannot explain that somebody else has it.

    A record is its visits in their order: their codes, and with `timed` also the times between them, to the second.
    """
    owner, start = timelines.owner, timelines.start_us
    place = np.arange(len(owner)) - timelines.subject_offsets[owner]
    visit = _sums(_mixed(timelines.codes), timelines.visit_offsets)
    if timed:
        gap = np.where(place > 0, np.diff(start, prepend=0) // SECOND_US, -1)
        visit = _mixed(visit + _mixed(gap))
    record = _sums(_mixed(visit + _mixed(place)), timelines.subject_offsets)
    _, same, alike = np.unique(record, return_inverse=True, return_counts=True)
    pairs = np.unique(np.stack([visit, owner.astype(np.uint64)]), axis=1)
    _, kind, people = np.unique(pairs[0], return_inverse=True, return_counts=True)
    owner = pairs[1].astype(np.int64)
    rare = np.bincount(owner, people[kind] == alike[same[owner]], len(record))
    return record, (rare >= FEWEST_RARE) & (alike[same] <= MOST_COPIES)


CHECK = Check("splits", "Is nobody in both training and test, under one id or under two?", splits)
