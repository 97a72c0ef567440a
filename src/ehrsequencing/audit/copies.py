"""People who are in the data twice: whole copies, and copies with shifted dates and lost visits."""

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.core.arrays import Bools, Ints, hash_u64
from ehrsequencing.core.disclosure import count_text, shareable_rate
from ehrsequencing.records.events import SECOND_US
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.timelines import Timelines, joined

FEWEST_RARE = 3  # distinct visits that only the people with this very record have
MOST_LOST, MOST_ALIKE = 3, 0.7  # visits lost in a row, and pairs of visits that a copy shares
MOST_COPIES = 10  # people with one record; what more have is a schedule
CHANCE = 0.05  # pairs of people expected to share so much by chance; codes and times may be few
TOLERATED = 0.001  # share of a split: twins, and the odd person with two ids, are worth a warning
Hashes = NDArray[np.uint64]


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
        return judge(
            repeated,
            of=len(timelines),
            what="subjects are in more than one split, or twice in one",
            clean="",
            tested=tested,
        )
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
    shared, able = _copies_with_losses(timelines, split, is_asked)
    is_copy |= shared
    judged = is_copy[is_asked & (split > 0)]
    share = float(judged.mean()) if len(judged) else 0.0
    if not judged.any():
        return Finding("passed", "nobody is in two splits", tested, 0.0, TOLERATED)
    return Finding(
        "leak" if share > TOLERATED else "warning",
        f"{count_text(int(judged.sum()))} of the {count_text(len(judged))} tuning and held-out people have the record "
        "of somebody in another split, the same codes in the same order or after the same times"
        f"{_extrapolated(is_copy & able, able)}; keep one of each, and prepare again",
        tested,
        shareable_rate(share, len(judged)),
        TOLERATED,
    )


def _extrapolated(is_copy: Bools, able: Bools) -> str:
    """How many copies there are among all, if those with short records are copied as often, in words."""
    share = is_copy.sum() / max(able.sum(), 1)
    more = int(share * len(able)) - int(is_copy.sum())
    return (
        f" (of short records that cannot be compared, another {count_text(more)} may be)"
        if more > 0
        else ""
    )


def _copies_with_losses(timelines: Timelines, split: Ints, is_asked: Bools) -> tuple[Bools, Bools]:
    """Who has nearly all visits of somebody in a split before, with the same times between them; some may be lost.

    What is compared are pairs of visits: their codes and the seconds between. Neighbours in a copy lie up to
    `MOST_LOST` visits apart in the other record. Pairs that many people have prove little: of all pairs of people,
    fewer than `CHANCE` may be expected to share these if each pair of visits is had independently.

    Returns:
        (S,) whether a subject is such a copy; (S,) who has enough such pairs to be found.
    """
    owner, start = timelines.owner, timelines.start_us // SECOND_US
    visit = _sums(hash_u64(timelines.codes.astype(np.uint64)), timelines.visit_offsets)
    hashes, owners, adjacent = list[Hashes](), list[Ints](), list[Bools]()
    for lag in range(1, MOST_LOST + 2):
        first = np.flatnonzero(owner[lag:] == owner[:-lag])
        gap = (start[first + lag] - start[first]).astype(np.uint64)
        pair = hash_u64(visit[first] + hash_u64(visit[first + lag] + hash_u64(gap)))
        hashes.append(pair)
        owners.append(owner[first])
        adjacent.append(np.full(len(first), lag == 1))
    order = np.lexsort((np.concatenate(owners), np.concatenate(hashes)))
    pairs, who = np.concatenate(hashes)[order], np.concatenate(owners)[order]
    is_next = np.concatenate(adjacent)[order]
    is_new = np.diff(pairs, prepend=~pairs[:1]) != 0
    is_holder = is_new | (np.diff(who, prepend=-1) != 0)
    group = np.cumsum(is_new) - 1
    others = np.bincount(group, is_holder)[group] - 1  # (pairs,) how many more people have it
    rarity = np.log(np.maximum(others, 1) / len(timelines))
    own = np.bincount(who[is_next], minlength=len(timelines))
    able = is_asked & (split > 0) & (own >= FEWEST_RARE)
    matches = list[Ints]()
    for lag in range(1, MOST_COPIES):
        same = np.flatnonzero((pairs[lag:] == pairs[:-lag]) & (who[lag:] != who[:-lag]))
        for one, other in ((same, same + lag), (same + lag, same)):
            here = is_next[one] & (split[who[one]] > split[who[other]]) & is_asked[who[other]]
            matches.append(np.stack([who[one[here]], who[other[here]], group[one[here]]]))
    distinct = np.unique(np.concatenate(matches, axis=1), axis=1)
    people, same, count = np.unique(distinct[:2], axis=1, return_inverse=True, return_counts=True)
    rarity = rarity[np.flatnonzero(is_new)][distinct[2]]
    by_chance = np.bincount(same.ravel(), rarity, len(count)) + 2 * np.log(len(timelines))
    is_same = (count >= FEWEST_RARE) & (count >= MOST_ALIKE * own[people[0]])
    is_same &= by_chance < np.log(CHANCE)
    is_copy = np.zeros(len(timelines), dtype=np.bool_)
    is_copy[people[0, is_same]] = True
    return is_copy & able, able


def _fingerprints(timelines: Timelines, *, timed: bool) -> tuple[Hashes, Bools]:
    """Of each subject: a fingerprint of the record, and whether chance cannot explain that somebody else has it.

    A record is its visits in their order: their codes, and with `timed` also the times between them, to the second.
    """
    owner, start = timelines.owner, timelines.start_us
    place = np.arange(len(owner)) - timelines.subject_offsets[owner]
    visit = _sums(hash_u64(timelines.codes.astype(np.uint64)), timelines.visit_offsets)
    if timed:
        gap = np.where(place > 0, np.diff(start, prepend=0) // SECOND_US, -1)
        visit = hash_u64(visit + hash_u64(gap.astype(np.uint64)))
    placed = visit + hash_u64(place.astype(np.uint64))
    record = _sums(hash_u64(placed), timelines.subject_offsets)
    _, same, alike = np.unique(record, return_inverse=True, return_counts=True)
    pairs = np.unique(np.stack([visit, owner.astype(np.uint64)]), axis=1)
    _, kind, people = np.unique(pairs[0], return_inverse=True, return_counts=True)
    owner = pairs[1].astype(np.int64)
    rare = np.bincount(owner, people[kind] == alike[same[owner]], len(record))
    return record, (rare >= FEWEST_RARE) & (alike[same] <= MOST_COPIES)


CHECK = Check("splits", "Is nobody in both training and test, under one id or under two?", splits)
