"""What pretraining predicts at each visit: target codes of the next visit, and what the subject had before it.

Targets are codes, not tokens: a joint token (`CODE//Q3`) counts as its code. Unknown tokens, summaries and excluded
codes are never targets, but a model still reads them. Everything is looked up in the whole record, so that it does not
depend on how the loader cuts long records.
"""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Bools, Floats, Floats32, Ints, spans
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

MOST_SAMPLED = 20_000  # visits that starting rates are counted on
MOST_WAITS = 4_000  # visits of these from which the times to every code are counted


@dataclass(frozen=True)
class TargetCodes:
    """The C codes that may be predicted."""

    tokens: Ints  # (C,) their token ids, rising
    number: Ints  # (V,) 0 … C-1 for a target's token and the joint tokens of its values, -1 for all others
    kind: Ints  # (C,) number of the code's type (its MEDS prefix)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of(cls, vocabulary: Vocabulary, excluded: Ints) -> "TargetCodes":
        """All codes of a vocabulary but some.

        Args:
            vocabulary: Of the prepared set.
            excluded: Token ids of codes that must not be predicted.
        """
        size, base = len(vocabulary), vocabulary.base
        is_code = np.arange(size) >= vocabulary.n_unknown
        is_code &= base == np.arange(size)
        is_code[excluded] = False
        number = np.full(size, -1, dtype=np.int64)
        number[is_code] = np.arange(int(is_code.sum()))
        summaries = vocabulary.summary_tokens
        of_bins = number[base]
        bins = vocabulary.settings.bins if vocabulary.settings.mode == "bins" else 0
        for first in summaries[
            summaries >= 0
        ].tolist():  # a summary and its bins say nothing of the visit itself
            of_bins[first : first + 1 + bins] = -1
        return cls(np.flatnonzero(is_code), of_bins, vocabulary.code_types[is_code])


@dataclass(frozen=True)
class NextVisits:
    """For r visits that have a next one: its target codes, and the codes that the subject had until then."""

    chosen: Ints  # (r,) which of the visits that were asked about
    gap_days: Floats  # (r,) days from the end of the visit to the start of the next one; at least one minute
    next_row: Ints  # (P,) 0 … r-1, whose next visit
    next_code: Ints  # (P,) target codes in it, each once a visit, rising within a visit
    next_rank: Floats32  # (P,) rank of the code's number (scaled to sd 1); NaN without one
    is_repeat: Bools  # (P,) whether the subject had the code before
    had_row: Ints  # (H,) 0 … r-1
    had_code: Ints  # (H,) the different target codes that the subject had by the end of the visit
    had_next: Bools  # (H,) whether the code is in the next visit
    last_row: Ints  # (L,) 0 … r-1
    last_code: Ints  # (L,) target codes of the visit itself, each once
    carried_rank: Floats32  # (P,) the last rank that the subject had of the code by the end of the visit; NaN without


def visit_rows(timelines: Timelines) -> TaskRows:
    """Every visit as a prediction time without a label, so that `SubjectLoader` makes batches of whole records."""
    n_visits = len(timelines.end_us)
    first = np.repeat(timelines.subject_offsets[:-1], np.diff(timelines.subject_offsets))
    nothing, none = np.zeros(n_visits, dtype=np.float32), np.zeros(n_visits, dtype=np.int32)
    return TaskRows(
        row_offsets=timelines.subject_offsets,
        prediction_us=timelines.end_us,
        index_us=timelines.end_us,
        is_query=np.zeros(n_visits, dtype=np.bool_),
        visits_before=(np.arange(n_visits) - first + 1).astype(np.int32),
        age_years=nothing,
        delta_days=nothing,
        unfinished_codes=none,
        duration_days=np.full(n_visits, np.nan),
        entry_days=nothing,
        cause=np.zeros(n_visits, dtype=np.int8),
        carry_offsets=np.zeros(n_visits + 1, dtype=np.int64),
        carry_codes=np.zeros(0, dtype=np.int32),
        carry_values=np.zeros((0, 2), dtype=np.float32),
    )


def next_visits(
    timelines: Timelines, visits: Ints, codes: TargetCodes, *, most: int | None = None
) -> NextVisits:
    """Look up what follows each of some visits.

    Args:
        timelines: The records.
        visits: (n,) visits, rising; those that are their subject's last are left out.
        codes: What may be predicted.
        most: At most so many visits, evenly spread over those that have a next one.
    """
    offsets, n = timelines.subject_offsets, len(codes)
    chosen, visits, subject = _with_next(timelines, visits, most=most)
    row, code, rank = _codes_of(timelines, visits + 1, codes)
    last_row, last_code, _ = _codes_of(timelines, visits, codes)

    owners, local = np.unique(subject, return_inverse=True)
    until = np.zeros(len(owners), dtype=np.int64)
    np.maximum.at(until, local, visits + 1)
    # visits until the last one asked about
    seen, seen_offsets = spans(offsets[owners], until - offsets[owners])
    place, had, had_rank = _codes_of(timelines, seen, codes)
    owner = np.searchsorted(seen_offsets, place, side="right") - 1
    # each code of a subject, and where it is first
    key, at = np.unique(owner * n + had, return_index=True)
    first_visit = seen[place[at]]
    first_key = np.searchsorted(key, np.arange(len(owners) + 1) * n)
    entry, entry_offsets = spans(first_key[local], np.diff(first_key)[local])
    had_row = np.repeat(np.arange(len(visits)), np.diff(entry_offsets))
    known = first_visit[entry] <= visits[had_row]
    had_row, had_code = had_row[known], (key[entry] % n)[known]
    pairs, had_pairs = row * n + code, had_row * n + had_code
    return NextVisits(
        chosen=chosen,
        gap_days=np.maximum(
            timelines.start_us[visits + 1] - timelines.end_us[visits], DAY_US / 1440
        )
        / DAY_US,
        next_row=row,
        next_code=code,
        next_rank=rank,
        is_repeat=np.isin(pairs, had_pairs),
        had_row=had_row,
        had_code=had_code,
        had_next=np.isin(had_pairs, pairs),
        last_row=last_row,
        last_code=last_code,
        carried_rank=_carried(
            local[row] * n + code, visits[row], owner * n + had, seen[place], had_rank
        ),
    )


@dataclass(frozen=True)
class ComingCodes:
    """For r visits that are not their subject's last: days until each target code is next recorded."""

    chosen: Ints  # (r,) which of the visits that were asked about
    stop_days: (
        Floats  # (r,) days from the end of the visit to the end of the record, where exposure ends
    )
    row: Ints  # (P,) 0 … r-1, ascending: pairs of a visit and a code that is recorded after it
    code: Ints  # (P,) rising within a row; each once
    days: (
        Floats  # (P,) from the end of the visit to the start of the first later visit with the code
    )


def coming_codes(
    timelines: Timelines, visits: Ints, codes: TargetCodes, *, most: int | None = None
) -> ComingCodes:
    """Look up when each code comes next after some visits; arguments as in `next_visits`."""
    chosen, visits, subject = _with_next(timelines, visits, most=most)
    offsets, n = timelines.subject_offsets, len(codes)
    owners, local = np.unique(subject, return_inverse=True)
    seen, seen_offsets = spans(offsets[owners], offsets[owners + 1] - offsets[owners])
    place, code, _ = _codes_of(timelines, seen, codes)
    owner, wide = np.searchsorted(seen_offsets, place, side="right") - 1, len(timelines.end_us) + 1
    entry = np.sort((owner * n + code) * wide + seen[place])  # by subject, code and visit
    key = np.unique(entry // wide)  # each code of a subject
    first_key = np.searchsorted(key, np.arange(len(owners) + 1) * n)
    asked, bounds = spans(first_key[local], np.diff(first_key)[local])
    row = np.repeat(np.arange(len(visits)), np.diff(bounds))
    at = np.searchsorted(entry, key[asked] * wide + visits[row], side="right")
    found = entry[np.minimum(at, len(entry) - 1)] if len(entry) else at
    later = (
        (at < len(entry)) & (found // wide == key[asked])
        if len(entry)
        else np.zeros(0, dtype=np.bool_)
    )
    row, when = row[later], found[later] % wide
    days = (timelines.start_us[when] - timelines.end_us[visits[row]]) / DAY_US
    last = offsets[subject + 1] - 1
    stop = (timelines.end_us[last] - timelines.end_us[visits]) / DAY_US
    shortest = 1 / 1440
    return ComingCodes(
        chosen=chosen,
        stop_days=np.maximum(stop, shortest),
        row=row,
        code=key[asked][later] % n,
        days=np.maximum(days, shortest),
    )


def _with_next(timelines: Timelines, visits: Ints, *, most: int | None) -> tuple[Ints, Ints, Ints]:
    """Which of some visits are not their subject's last (at most so many, evenly spread); they and their subjects."""
    offsets = timelines.subject_offsets
    subject = np.searchsorted(offsets, visits, side="right") - 1
    chosen = np.flatnonzero(visits + 1 < offsets[subject + 1])
    if most is not None and len(chosen) > most:
        chosen = chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
    return chosen, visits[chosen], subject[chosen]


def _codes_of(
    timelines: Timelines, visits: Ints, codes: TargetCodes
) -> tuple[Ints, Ints, Floats32]:
    """Target codes of some visits, each once a visit: place of the visit, code, and its last rank there (or NaN)."""
    start = timelines.visit_offsets[visits]
    items, offsets = spans(start, timelines.visit_offsets[visits + 1] - start)
    code = codes.number[timelines.codes[items]]
    row: Ints = np.repeat(np.arange(len(visits)), np.diff(offsets))
    rank: Floats32 = np.asarray(timelines.values[:, 0].take(items))
    kept = code >= 0
    row, code, rank = row[kept], code[kept], rank[kept]
    # a number after none: the last one wins
    order = np.lexsort((np.arange(len(row)), ~np.isnan(rank), code, row))
    row, code, rank = row[order], code[order], rank[order]
    is_last = np.r_[
        (np.diff(row) != 0) | (np.diff(code) != 0), np.ones(min(1, len(row)), dtype=bool)
    ]
    return row[is_last], code[is_last], rank[is_last]


def _carried(
    key: Ints, visit: Ints, known_key: Ints, known_visit: Ints, known_rank: Floats32
) -> Floats32:
    """The last rank with each key at or before a visit; NaN without one."""
    numeric = ~np.isnan(known_rank)
    known_key, known_visit, known_rank = (
        known_key[numeric],
        known_visit[numeric],
        known_rank[numeric],
    )
    if not len(known_key):
        return np.full(len(key), np.nan, dtype=np.float32)
    wide = int(max(known_visit.max(), visit.max(initial=0))) + 2
    known, wanted = known_key * wide + known_visit, key * wide + visit
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known[order], wanted, side="right") - 1
    found = order[np.maximum(at, 0)]
    fits = (at >= 0) & (known_key[found] == key)
    return np.where(fits, known_rank[found], np.float32(np.nan)).astype(np.float32)


@dataclass(frozen=True)
class Rates:
    """How often codes occur in training: where the objectives start, and the frequency baseline."""

    share: Floats  # (C,) of all pairs of visit and target code, those with this code
    onset: Floats  # (C,) chance that the next visit has the code, for a subject who never had it
    repeat: Floats  # (C,) ... for a subject who had it
    gap_days: Floats  # (g,) gaps between visits, at random
    waits: ComingCodes  # times to every code, from some visits

    @classmethod
    def of(cls, timelines: Timelines, codes: TargetCodes, *, seed: int) -> "Rates":
        """Counted on the training subjects, at most `MOST_SAMPLED` visits of whole subjects drawn at random.

        Half an occurrence is added to each count, so that no rate is 0 or 1.
        """
        order = np.random.default_rng([seed, len(timelines)]).permutation(len(timelines))
        total = np.cumsum(np.diff(timelines.subject_offsets)[order])
        subjects = np.sort(order[: max(1, int(np.searchsorted(total, MOST_SAMPLED)))])
        start = timelines.subject_offsets[subjects]
        visits, _ = spans(start, timelines.subject_offsets[subjects + 1] - start)
        n = len(codes)
        _, code, _ = _codes_of(timelines, visits, codes)
        found = next_visits(timelines, visits, codes)
        had = np.bincount(found.had_code, minlength=n)
        again = np.bincount(found.had_code[found.had_next], minlength=n)
        new = np.bincount(found.next_code[~found.is_repeat], minlength=n)
        counts = np.bincount(code, minlength=n) + 0.5
        return cls(
            share=counts / counts.sum(),
            onset=(new + 0.5) / (len(found.chosen) - had + 1.0),
            repeat=(again + 0.5) / (had + 1.0),
            gap_days=found.gap_days,
            waits=coming_codes(timelines, visits, codes, most=MOST_WAITS),
        )


def codes_of_visits(timelines: Timelines, visits: Ints, codes: TargetCodes) -> tuple[Ints, Ints]:
    """Target codes of some visits, each once a visit: place of the visit among these, and the code."""
    row, code, _ = _codes_of(timelines, visits, codes)
    return row, code
