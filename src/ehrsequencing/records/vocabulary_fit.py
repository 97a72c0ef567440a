"""Fit a vocabulary: shards in, training subjects per code and bounded samples of their numbers kept, `Vocabulary` out.

At least `vocabulary.min_subjects` training subjects have each thing in it: a code; any code of a type, for the type's
unknown token; numbers of a code, for its scale, bins and summaries (`scales.py`).
"""

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from ehrsequencing.config import ValuesConfig, VocabularyConfig
from ehrsequencing.core.arrays import Bools, Ints, hash_u64
from ehrsequencing.core.disclosure import nearest, shareable_count
from ehrsequencing.records.account import PeopleCounts, Rounded
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.events import (
    DAY_US,
    STATIC,
    Events,
    OfCodes,
    group_order,
    opens_run,
    pieces,
)
from ehrsequencing.records.scales import KNOTS, Sample, Scale, Values, fit_scale
from ehrsequencing.records.vocabulary import Vocabulary

# about so many rows are added to a fit at once: they fit the processor's cache
_PIECE_ROWS = 1 << 17
FEWEST_CARRIERS = 100  # training subjects of a code whose number is kept


class VocabularyFit:
    """Collects, shard by shard, what the vocabulary is fitted on. Memory grows with codes, not with subjects.

    Args:
        settings: Which codes get a token.
        values: What values become.
        excluded: Codes that make no token (birth, death, censoring, ignored).
    """

    def __init__(
        self,
        settings: VocabularyConfig,
        values: ValuesConfig,
        *,
        excluded: Callable[[str], bool],
    ) -> None:
        self.settings, self.value_settings, self.excluded = settings, values, excluded
        self.number: dict[str, int] = {}  # every code of the data set → a number
        self.people = 0  # training subjects
        self.subjects = np.zeros(0, np.int64)  # training subjects per code
        self.rows = np.zeros(0, np.int64)  # their rows per code
        self.numbered = np.zeros(0, np.int64)  # training subjects with a number of the code
        # each type of codes → a number; codes without a type and excluded ones have number 0
        self.kinds = {"": 0}
        # training subjects of each type, counted until they are enough
        self.kind_subjects = np.array([settings.min_subjects])
        self._kind = np.zeros(0, np.int64)  # type of each code
        self.numbers = OfCodes(self._numbers)  # the number of each code, a new one for a new code
        # numbers of training subjects that are kept; the key of a code is its number
        self.numbers_kept, self._gaps, self._counts = Sample(), Sample(), Sample()
        self._samples = self.numbers_kept, self._gaps, self._counts

    def update(self, events: Events, subject: Ints, is_training: Bools) -> None:
        """Add a shard.

        Args:
            events: The shard's events.
            subject: (n,) subject row of each event.
            is_training: (n,) whether the event's subject is in the training split.
        """
        self.numbers(events.codes)  # also where no row is left
        ids = np.zeros(int(subject.max(initial=-1)) + 1, np.int64)
        ids[subject.take(events.starts)] = events.subject_id.take(events.starts)
        of_person = hash_u64(ids.view(np.uint64))
        self.people += int(is_training.take(events.starts).sum())
        for piece in pieces(events.starts, len(events), _PIECE_ROWS):
            rows = np.flatnonzero(is_training[piece]) + piece.start
            code = self.numbers(events.codes).take(events.code.take(rows))
            order = group_order(code, len(self.number))
            rows, code = rows.take(order), code.take(order)  # by code, subject and time
            first = np.flatnonzero(opens_run(code, subject.take(rows)))
            self.subjects += np.bincount(code[first], minlength=len(self.number))
            self.rows += np.bincount(code, minlength=len(self.number))
            # the subjects of each type that few people have yet; soon there is none
            kind = self._kind.take(code.take(first))
            few = np.flatnonzero(self.kind_subjects.take(kind) < self.settings.min_subjects)
            who = subject.take(rows.take(first.take(few)))
            pairs = np.unique(np.stack([kind.take(few), who]), axis=1)
            self.kind_subjects += np.bincount(pairs[0], minlength=len(self.kinds))
            if self.value_settings.mode == "none":
                continue
            valued = np.flatnonzero(~np.isnan(events.value.take(rows)))
            rows, code = rows.take(valued), code.take(valued)
            time, value, owner = (
                events.time_us.take(rows),
                events.value.take(rows),
                subject.take(rows),
            )
            with_number = code[opens_run(code, owner)]
            self.numbered += np.bincount(with_number, minlength=len(self.number))
            identity = of_person.take(owner)
            hashed = hash_u64(
                identity ^ time.view(np.uint64) ^ value.astype(np.float64).view(np.uint64)
            )
            # half of the hash as the owner: two people may share it and count as one, but never one as two
            half = (identity >> np.uint64(32)).astype(np.uint32)
            self.numbers_kept.add(code, hashed, value, half)
            if self.value_settings.carry:
                # scales of SINCE (gaps between a subject's values of one code) and COUNT (their number)
                timed = np.flatnonzero(time != STATIC)
                code, owner, time = code.take(timed), owner.take(timed), time.take(timed)
                hashed, half = hashed.take(timed), half.take(timed)
                opens = opens_run(code, owner)
                first, later = np.flatnonzero(opens), np.flatnonzero(~opens)
                gaps = (time[later] - time[later - 1]) / DAY_US
                self._gaps.add(code[later], hashed[later], gaps, half[later])
                counts = np.diff(first, append=len(code)).astype(np.float64)
                self._counts.add(code[first], hashed[first], counts, half[first])

    def _numbers(self, codes: tuple[str, ...]) -> Ints:
        kinds = []
        for code in codes:
            if code not in self.number:
                self.number[code] = len(self.number)
                kind = "" if self.excluded(code) else code_type(code)
                kinds.append(self.kinds.setdefault(kind, len(self.kinds)))
        self._kind = np.append(self._kind, np.array(kinds, dtype=np.int64))
        self.subjects = _longer(self.subjects, len(self.number))
        self.rows = _longer(self.rows, len(self.number))
        self.numbered = _longer(self.numbered, len(self.number))
        self.kind_subjects = _longer(self.kind_subjects, len(self.kinds))
        return np.array([self.number[c] for c in codes], dtype=np.int64)

    def merge(self, other: "VocabularyFit") -> None:
        """Add what another fit has collected from other subjects: the same as having seen them."""
        numbers = self.numbers(tuple(other.number))
        self.people += other.people
        self.subjects[numbers] += other.subjects
        self.rows[numbers] += other.rows
        self.numbered[numbers] += other.numbered
        for kind, number in other.kinds.items():
            self.kind_subjects[self.kinds[kind]] += other.kind_subjects[number]
        for sample, its in zip(self._samples, other._samples, strict=True):
            key, hashed, value, owner = its.rows()
            sample.add(numbers[key], hashed, value, owner)

    def common_codes(self) -> list[str]:
        """Codes that enough training subjects have to be named in messages."""
        return [c for c, n in self.number.items() if self.subjects[n] >= self.settings.min_subjects]

    def finish(self) -> Vocabulary:
        """Fit: choose tokens in the order of their names, and a scale for every code with numbers of enough people."""
        enough = self.settings.min_subjects
        codes = tuple(sorted(c for c in self.common_codes() if not self.excluded(c)))
        kinds = {kind for kind, n in self.kinds.items() if self.kind_subjects[n] >= enough}
        values, gaps, counts = (sample.by_key() for sample in self._samples)
        since, count = _or_pooled(gaps, enough), _or_pooled(counts, enough)
        scales: list[Scale] = []
        has_numbers = np.zeros(len(codes), dtype=bool)
        for place, code in enumerate(codes):
            number = self.number[code]
            own = fit_scale(*values.of(number), enough=enough)
            if own is not None:
                has_numbers[place] = True
                scales.append(own)
                if self.value_settings.carry:
                    scales += [since(number), count(number)]
        carriers_of = [self.subjects[self.number[c]] for c in codes]
        # tenths, of fewer than 50 people halves: no count of a few people can be read off
        parts = 10 if self.people >= 50 else 2
        return Vocabulary(
            kinds=tuple(sorted(kinds - {""})),
            codes=codes,
            has_numbers=has_numbers,
            knots=np.array([s.knots for s in scales]).reshape(-1, KNOTS),
            mean=np.array([s.mean for s in scales]),
            sd=np.array([s.sd for s in scales]),
            settings=self.value_settings,
            share=np.array(carriers_of, dtype=np.int64) * parts // max(self.people, 1) / parts,
        )

    def carriers_to_keep(self) -> PeopleCounts[Rounded]:
        """Content of `people.json`: training subjects, and those who have a code and a number of it, from 100 on."""
        counts = zip(self.number, self.subjects.tolist(), self.numbered.tolist(), strict=True)
        kept = carriers_to_keep(one for one in counts if not self.excluded(one[0]))
        return {"people": shareable_count(self.people), "codes": kept}

    def known_share(self, vocabulary: Vocabulary) -> float | None:
        """Share of the training subjects' rows that have a token of their own; None without rows."""
        codes = tuple(self.number)
        counted = np.where([self.excluded(c) for c in codes], 0, self.rows)
        known = vocabulary.ids(codes) >= vocabulary.n_unknown
        return float(counted[known].sum() / counted.sum()) if counted.any() else None


def carriers_to_keep(counts: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Rounded counts of people with a code, and with a number of it, of codes that enough people have."""
    return {
        code: (nearest(n), nearest(numbered) if numbered >= FEWEST_CARRIERS else 0)
        for code, n, numbered in sorted(counts)
        if n >= FEWEST_CARRIERS
    }


def _or_pooled(values: Values, enough: int) -> Callable[[int], Scale]:
    """The scale of a code's own numbers, and where too few people have them, that of the numbers of all codes."""

    @cache
    def pooled() -> Scale:
        every = fit_scale(values.value.astype(np.float64), values.owner, enough=enough)
        return every or Scale(np.zeros(KNOTS), 0.0, 1.0)

    return lambda number: fit_scale(*values.of(number), enough=enough) or pooled()


def _longer(counts: Ints, n: int) -> Ints:
    return np.append(counts, np.zeros(n - len(counts), np.int64))
