"""What pretraining predicts at each visit: its target codes, and when each code comes next.

Targets are codes, not tokens: a joint token (`CODE//Q3`) counts as its code. Unknown tokens, summaries and excluded
codes are never targets, but a model still reads them. Everything is looked up in the whole record, so that it does not
depend on how the loader cuts long records.
"""

from dataclasses import dataclass

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints, spans
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary

MOST_SAMPLED = 20_000  # visits that starting rates are counted on
MOST_WAITS = 4_000  # visits of these from which the times to every code are counted
SHORTEST_DAYS = 1 / 1440  # one minute: no time to a code is shorter


@dataclass(frozen=True)
class TargetCodes:
    """The C codes that may be predicted."""

    tokens: Ints  # (C,) their token ids, rising
    number: Ints  # (V,) 0 … C-1 for a target's token and the joint tokens of its values, -1 for all others

    def __len__(self) -> int:
        return len(self.tokens)


def target_codes(vocabulary: Vocabulary, excluded: Ints) -> TargetCodes:
    """All codes of a vocabulary but those with the token ids `excluded`."""
    size, base = len(vocabulary), vocabulary.base
    is_code = np.arange(size) >= vocabulary.n_unknown
    is_code &= base == np.arange(size)
    is_code[excluded] = False
    number = np.full(size, -1, dtype=np.int64)
    number[is_code] = np.arange(int(is_code.sum()))
    of_bins = number[base]
    bins = vocabulary.settings.bins if vocabulary.settings.mode == "bins" else 0
    summaries = vocabulary.summary_tokens
    for first in summaries[summaries >= 0].tolist():
        # a summary and its bins say nothing of the visit itself
        of_bins[first : first + 1 + bins] = -1
    return TargetCodes(np.flatnonzero(is_code), of_bins)


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


def codes_of_visits(timelines: Timelines, visits: Ints, codes: TargetCodes) -> tuple[Ints, Ints]:
    """Target codes of some visits, each once a visit: place of the visit among these, and the code."""
    start = timelines.visit_offsets[visits]
    items, offsets = spans(start, timelines.visit_offsets[visits + 1] - start)
    code = codes.number[timelines.codes[items]]
    row = np.repeat(np.arange(len(visits)), np.diff(offsets))
    is_target = code >= 0
    pairs = np.unique(row[is_target] * len(codes) + code[is_target])
    return pairs // len(codes), pairs % len(codes)


@dataclass(frozen=True)
class TimesToCodes:
    """For r visits that are not their subject's last: days until each target code is next recorded."""

    chosen: Ints  # (r,) which of the given visits
    stop_days: Floats  # (r,) days from the end of the visit to the end of the record: the exposure
    row: Ints  # (P,) 0 … r-1, ascending: pairs of a visit and a code that is recorded after it
    code: Ints  # (P,) rising within a row; each once
    days: (
        Floats  # (P,) from the end of the visit to the start of the first later visit with the code
    )


def times_to_codes(
    timelines: Timelines, visits: Ints, codes: TargetCodes, *, most: int | None = None
) -> TimesToCodes:
    """Look up when each code comes next after some visits.

    Args:
        timelines: The records.
        visits: (n,) visits, rising; those that are their subject's last are left out.
        codes: What may be predicted.
        most: At most so many visits, evenly spread over those that have a next one.
    """
    offsets, n = timelines.subject_offsets, len(codes)
    subject = np.searchsorted(offsets, visits, side="right") - 1
    chosen = np.flatnonzero(visits + 1 < offsets[subject + 1])
    if most is not None and len(chosen) > most:
        chosen = chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
    visits, subject = visits[chosen], subject[chosen]

    # every code of these subjects, sorted by subject, code and visit
    owners, local = np.unique(subject, return_inverse=True)
    seen, seen_offsets = spans(offsets[owners], offsets[owners + 1] - offsets[owners])
    place, code = codes_of_visits(timelines, seen, codes)
    owner = np.searchsorted(seen_offsets, place, side="right") - 1
    width = len(timelines.end_us) + 1
    entry = np.sort((owner * n + code) * width + seen[place])

    # for each visit, all codes of its subject, and the first entry of each after the visit
    subject_code = np.unique(entry // width)
    first = np.searchsorted(subject_code, np.arange(len(owners) + 1) * n)
    candidates, bounds = spans(first[local], np.diff(first)[local])
    row = np.repeat(np.arange(len(visits)), np.diff(bounds))
    key = subject_code[candidates]
    at = np.searchsorted(entry, key * width + visits[row], side="right")
    is_later = at < len(entry)
    is_later[is_later] = entry[at[is_later]] // width == key[is_later]
    row, key, next_visit = row[is_later], key[is_later], entry[at[is_later]] % width

    last = offsets[subject + 1] - 1
    stop = (timelines.end_us[last] - timelines.end_us[visits]) / DAY_US
    days = (timelines.start_us[next_visit] - timelines.end_us[visits[row]]) / DAY_US
    return TimesToCodes(
        chosen=chosen,
        stop_days=np.maximum(stop, SHORTEST_DAYS),
        row=row,
        code=key % n,
        days=np.maximum(days, SHORTEST_DAYS),
    )


@dataclass(frozen=True)
class Rates:
    """How often codes occur in training: where the objectives start, and the frequency baseline."""

    share: Floats  # (C,) of all pairs of visit and target code, those with this code
    waits: TimesToCodes  # times to every code, from some visits


def training_rates(timelines: Timelines, codes: TargetCodes, *, seed: int) -> Rates:
    """Counted on at most `MOST_SAMPLED` visits of whole training subjects drawn at random.

    Half an occurrence is added to each count, so that no rate is 0 or 1.
    """
    order = np.random.default_rng([seed, len(timelines)]).permutation(len(timelines))
    total = np.cumsum(np.diff(timelines.subject_offsets)[order])
    subjects = np.sort(order[: max(1, int(np.searchsorted(total, MOST_SAMPLED)))])
    start = timelines.subject_offsets[subjects]
    visits, _ = spans(start, timelines.subject_offsets[subjects + 1] - start)
    _, code = codes_of_visits(timelines, visits, codes)
    counts = np.bincount(code, minlength=len(codes)) + 0.5
    return Rates(
        share=counts / counts.sum(),
        waits=times_to_codes(timelines, visits, codes, most=MOST_WAITS),
    )
