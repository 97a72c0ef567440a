"""People: who is in the data twice, how many are behind what is stored, and whom pretraining saw."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.audit.data import AuditData, Check, Finding, judge
from ehrsequencing.core.arrays import Bools, Ints, hash_u64
from ehrsequencing.core.disclosure import count_text, shareable_rate
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.events import SECOND_US
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import Timelines, joined
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.results.result_types import Origin
from ehrsequencing.training.pretraining.targets import excluded_targets, names_of
from ehrsequencing.training.run_folder import subjects_digest

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
    # if those with short records are copied as often
    found = int((is_copy & able).sum())
    more = int(found / max(able.sum(), 1) * len(able)) - found
    short = f" (of short records that cannot be compared, another {count_text(more)} may be)"
    return Finding(
        "leak" if share > TOLERATED else "warning",
        f"{count_text(int(judged.sum()))} of the {count_text(len(judged))} tuning and held-out people have the record "
        "of somebody in another split, the same codes in the same order or after the same times"
        f"{short if more > 0 else ''}; keep one of each, and prepare again",
        tested,
        shareable_rate(share, len(judged)),
        TOLERATED,
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


# ---- how many people are behind it ----------------------------------------------------------------------------------


def single_people(data: AuditData) -> Finding:
    """Training subjects behind every code and type, and behind every stored number that is one of their values."""
    needed, vocabulary = data.prepared.study.vocabulary.min_subjects, data.vocabulary
    if needed < 2:
        return Finding("not_tested", "vocabulary.min_subjects=1 protects nobody")
    fit = data.source.fit
    people = [int(fit.subjects[fit.number[c]]) for c in vocabulary.codes if c in fit.number]
    people += [int(fit.kind_subjects[fit.kinds[kind]]) for kind in vocabulary.kinds]
    few_names = sum(count < needed for count in people)
    # of the training subjects, those that the fit keeps
    sample, few_numbers = fit.numbers_kept.by_key(), 0
    for code, token in vocabulary.index.items():
        row = vocabulary.scale[token]
        if row < 0 or code not in fit.number:
            continue
        value, who = sample.of(fit.number[code])
        is_stored = np.isin(value, np.r_[vocabulary.knots[row], vocabulary.mean[row]])
        pairs = np.unique(np.stack([value, who.astype(np.float64)])[:, is_stored], axis=1)
        _, holders = np.unique(pairs[0], return_counts=True)
        few_numbers += int((holders < needed).sum())
    return judge(
        few_names + few_numbers,
        of=len(people) + vocabulary.knots.size,
        what=f"names and numbers are those of fewer than {needed} training subjects "
        f"({count_text(few_names)} names and {count_text(few_numbers)} numbers)",
        clean=f"at least {needed} training subjects are behind every name, and share every number that is a value",
        tested={"names": len(people), "scales": len(vocabulary.mean)},
    )


CHECKS = (
    Check("splits", "Is nobody in both training and test, under one id or under two?", splits),
    Check(
        "single_people",
        "Does all that the run stores of codes and values come from at least vocabulary.min_subjects people?",
        single_people,
        needs_records=True,
    ),
)


# ---- whom pretraining saw --------------------------------------------------------------------------------------------


def pretraining(data: AuditData) -> Finding:
    """Nobody held out was seen, and nothing of the outcome was a target, in any model that the run goes back to."""
    findings, place = list[Finding](), 0
    link: Origin | None = data.run.manifest["init"]
    while link is not None:
        place += 1
        parts = [unseen_subjects(data, link)]
        if "objectives" in link:  # made by ehrseq pretrain
            parts.append(excluded_codes(data, link))
        where = f" (model {place} that the run goes back to)" if place > 1 else ""
        findings += [replace(part, reason=part.reason + where) for part in parts]
        link = link.get("init")
    if all(one.verdict == "passed" for one in findings):
        return replace(findings[0], reason="; ".join(one.reason for one in findings))
    return min(
        findings, key=lambda one: ("leak", "warning", "not_tested", "passed").index(one.verdict)
    )


def unseen_subjects(data: AuditData, init: Origin) -> Finding:
    """No held-out subject of this run was learned from by one model before."""
    seen = init.get("subjects")
    held_out = data.records["held_out"].timelines.subject_id
    tested = {"held-out subjects": len(held_out)}
    if not isinstance(seen, dict):
        return Finding(
            "not_tested", "the model it started from does not record whom it saw", tested
        )
    same_data = init.get("data_path") == data.prepared.manifest.get("data_path")
    before = {split: data.records[split].timelines.subject_id for split in ("train", "tuning")}
    if not same_data or not _are_those(seen, before):
        try:
            theirs = Prepared(Path(init["prepared"]))
        except (EhrseqError, KeyError, OSError):
            return Finding("not_tested", "the prepared set of the pretraining is gone", tested)
        before = {split: theirs.timelines(split).subject_id for split in before}
    if not _are_those(seen, before):
        return Finding("not_tested", "the prepared set of the pretraining has changed", tested)
    finding = judge(
        len(np.intersect1d(np.concatenate(list(before.values())), held_out)),
        of=len(held_out),
        what="held-out subjects were seen in pretraining",
        clean="no held-out subject was seen in pretraining",
        tested=tested,
    )
    if finding.verdict == "leak" and not same_data:
        return replace(
            finding,
            verdict="warning",
            reason=f"{finding.reason}, by their ids; but in other data, so that they may be other people",
        )
    return finding


def _are_those(seen: Mapping[str, str], subjects: Mapping[str, Ints]) -> bool:
    return all(seen.get(split) == subjects_digest(ids) for split, ids in subjects.items())


def excluded_codes(data: AuditData, init: Origin) -> Finding:
    """The outcome's codes, its relatives and near-synonyms were no targets of one pretraining."""
    needed = names_of(excluded_targets(data.prepared, data.task.name), data.vocabulary)
    groups = {
        "the outcome's codes and their relatives": {*needed["outcome"], *needed["relatives"]},
        f"the run's {len(data.run.outcomes):,} outcomes": set(data.run.outcomes),
        "codes that stand beside the outcome in most subjects": set(needed["synonyms"]),
    }
    recorded = init.get("excluded_targets")
    excluded = {code for codes in (recorded or {}).values() for code in codes}
    known = None  # the codes that it knew, the only ones it can have predicted
    with suppress(EhrseqError, KeyError, OSError):
        vocabulary = Vocabulary.load(Path(init["folder"]))
        if vocabulary.digest == init.get("vocabulary"):
            known = set(vocabulary.tokens)
    targets = {
        name: [code for code in codes - excluded if known is None or code in known]
        for name, codes in groups.items()
    }
    whose = [name for name, codes in targets.items() if codes]
    tested = {"codes": sum(map(len, groups.values()))}
    if not whose:
        return Finding("passed", "nothing of the outcome was a target", tested)
    # a leak is an exclusion that missed the outcome; a pretraining without a task says that it excluded nothing
    is_leak = recorded is not None and next(iter(groups)) in whose
    return Finding(
        "leak" if is_leak else "warning",
        f"{' and '.join(whose)} were targets of the pretraining: part of its benefit is supervised learning",
        tested,
    )


PRETRAINING = Check(
    "pretraining",
    "Were held-out subjects, and codes of the outcome, kept out of the pretraining?",
    pretraining,
)
