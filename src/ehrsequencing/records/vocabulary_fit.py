"""What a vocabulary is fitted on: training subjects per code, and bounded samples of their numbers, shard by shard."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.config import ValuesConfig, VocabularyConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.events import DAY_US, STATIC, Events, OfCodes, group_order, hash_u64, opens_run, pieces
from ehrsequencing.records.rollup import Carriers, Rollup, fit_rollup
from ehrsequencing.records.samples import Sample
from ehrsequencing.records.vocabulary import PAD, QUANTILES, SUMMARIES, UNK, Vocabulary

_PIECE_ROWS = 1 << 17  # about so many rows are added to a fit at once: they fit the processor's cache


@dataclass(frozen=True)
class FitPart:
    """What a fit has collected, as plain arrays: it goes from one process to another (`VocabularyFit.merge`)."""

    codes: tuple[str, ...]
    subjects: NDArray[np.int64]
    samples: tuple[tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.floating[Any]]], ...]
    carriers: tuple[NDArray[np.int64], NDArray[np.int64]] | None


class VocabularyFit:
    """Collects, shard by shard, what the vocabulary is fitted on. Memory grows with codes, not with subjects.

    Args:
        settings: Which codes get a token.
        values: What values become.
        excluded: Codes that make no token (birth, death, censoring, ignored).
        parents: Parents of each code, for `vocabulary.rollup`.

    Raises:
        EhrseqError: A roll-up is asked for, and there are no parents.
    """

    def __init__(
        self,
        settings: VocabularyConfig,
        values: ValuesConfig,
        *,
        excluded: Callable[[str], bool],
        parents: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.settings, self.value_settings, self.excluded = settings, values, excluded
        self.parents = parents or {}
        if settings.rollup != "off" and not any(self.parents.values()):
            mend = "write parent_codes in metadata/codes.parquet, or set vocabulary.rollup=off"
            raise EhrseqError("the data set names no parents of codes", where="vocabulary.rollup", mend=mend)
        self._carriers = Carriers(settings.min_subjects) if settings.rollup != "off" else None
        self.number: dict[str, int] = {}  # every code of the data set → a number
        self.subjects = np.zeros(0, np.int64)  # training subjects per code
        self.numbers = OfCodes(self._numbers)  # the number of each code, a new one for a new code
        self._values, self._gaps, self._counts = Sample(), Sample(), Sample()

    def update(self, events: Events, subject: NDArray[np.int64], is_training: NDArray[np.bool_]) -> None:
        """Add a shard.

        Args:
            events: The shard's events.
            subject: (n,) subject row of each event.
            is_training: (n,) whether the event's subject is in the training split.
        """
        self.numbers(events.codes)  # also where no row is left
        ids = np.zeros(int(subject.max(initial=-1)) + 1, np.int64)
        ids[subject.take(events.starts)] = events.subject_id.take(events.starts)
        hashed = hash_u64(ids.view(np.uint64))
        for piece in pieces(events.starts, len(events), _PIECE_ROWS):
            rows = np.flatnonzero(is_training[piece]) + piece.start
            self._update(events, rows, subject, hashed)

    def _update(
        self, events: Events, rows: NDArray[np.int64], subject: NDArray[np.int64], hashed_id: NDArray[np.uint64]
    ) -> None:
        """Add some rows, of whole subjects."""
        code = self.numbers(events.codes).take(events.code.take(rows))
        order = group_order(code, len(self.number))
        rows, code = rows.take(order), code.take(order)  # by code, subject and time
        first = np.flatnonzero(opens_run(code, subject.take(rows)))
        self.subjects += np.bincount(code[first], minlength=len(self.number))
        if self._carriers is not None:
            self._carriers.add(code[first], events.subject_id[rows[first]])
        if self.value_settings.mode == "none":
            return
        valued = np.flatnonzero(~np.isnan(events.value.take(rows)))
        rows, code = rows.take(valued), code.take(valued)
        time, value, owner = events.time_us.take(rows), events.value.take(rows), subject.take(rows)
        identity = hashed_id.take(owner) ^ time.view(np.uint64)
        hashed = hash_u64(identity ^ value.astype(np.float64).view(np.uint64))
        self._values.add(code, hashed, value)
        if self.value_settings.carry:
            timed = np.flatnonzero(time != STATIC)
            self._update_summaries(code.take(timed), owner.take(timed), time.take(timed), hashed.take(timed))

    def _numbers(self, codes: tuple[str, ...]) -> NDArray[np.int64]:
        numbers = np.array([self.number.setdefault(c, len(self.number)) for c in codes], dtype=np.int64)
        self.subjects = np.r_[self.subjects, np.zeros(len(self.number) - len(self.subjects), np.int64)]
        return numbers

    def _update_summaries(
        self, code: NDArray[np.int64], subject: NDArray[np.int64], time: NDArray[np.int64], hashed: NDArray[np.uint64]
    ) -> None:
        """Scales of SINCE (gaps between a subject's values of one code) and COUNT (their number)."""
        first = np.flatnonzero(opens_run(code, subject))
        same = np.ones(len(code), dtype=bool)
        same[first] = False
        later = np.flatnonzero(same)
        self._gaps.add(code[later], hashed[later], (time[later] - time[later - 1]) / DAY_US)
        counts = np.diff(first, append=len(code)).astype(np.float64)
        self._counts.add(code[first], hashed[first], counts)

    def part(self) -> FitPart:
        """What was collected so far, for another fit to merge."""
        carriers = None
        if self._carriers is not None:
            who = [sorted(self._carriers.of(number)) for number in range(len(self.number))]
            codes = np.repeat(np.arange(len(who)), [len(ids) for ids in who])
            carriers = codes, np.array([one for ids in who for one in ids], dtype=np.int64)
        samples = tuple(sample.rows() for sample in (self._values, self._gaps, self._counts))
        return FitPart(tuple(self.number), self.subjects, samples, carriers)

    def merge(self, part: FitPart) -> None:
        """Add what another fit has collected from other subjects: the same as having seen their shards."""
        numbers = self.numbers(part.codes)
        self.subjects[numbers] += part.subjects
        for sample, (key, hashed, value) in zip((self._values, self._gaps, self._counts), part.samples, strict=True):
            sample.add(numbers[key], hashed, value)
        if self._carriers is not None and part.carriers is not None:
            code, subject_id = numbers[part.carriers[0]], part.carriers[1]
            order = np.argsort(code, kind="stable")
            self._carriers.add(code[order], subject_id[order])

    def common_codes(self) -> list[str]:
        """Codes that enough training subjects have to be named in messages."""
        return [c for c, n in self.number.items() if self.subjects[n] >= self.settings.min_subjects]

    def finish(self) -> Vocabulary:
        """Fit: choose tokens in the order of their names, and a scale for every code with enough numbers."""
        rollup = self._fit_rollup()
        frequent = {c for c in self.common_codes() if not self.excluded(c)}
        codes = sorted(frequent.union(*rollup.to.values()))
        kinds = sorted({code_type(c) for c in self.number if not self.excluded(c)} - {""})
        tokens = [PAD, UNK, *(f"[UNK//{kind}]" for kind in kinds), *codes]
        scales: list[NDArray[np.float64]] = []
        rows: dict[str, int] = {}

        def add(token: str, row: int) -> None:
            if self.value_settings.mode == "bins":
                joint = [f"{token}//Q{k + 1}" for k in range(self.value_settings.bins)]
                tokens.extend(joint)
                rows.update(dict.fromkeys(joint, -1))
            if token not in rows:
                rows[token] = row

        values, gaps, counts = self._values.by_key(), self._gaps.by_key(), self._counts.by_key()
        every_gap, every_count = gaps.all(), counts.all()
        for code in codes:
            sample = values.of(self.number.get(code, -1))  # an ancestor need not be in the data
            if len(sample) < self.settings.min_subjects:
                continue
            scales.append(sample)
            add(code, len(scales) - 1)
            if not self.value_settings.carry:
                continue
            own = len(scales) - 1
            for summary, other in (("SINCE", gaps), ("COUNT", counts)):
                sample = other.of(self.number[code])
                pooled = every_gap if summary == "SINCE" else every_count
                enough = sample if len(sample) >= self.settings.min_subjects else pooled
                scales.append(enough if len(enough) else np.zeros(1))
            for summary in SUMMARIES:
                row = own + {"SINCE": 1, "COUNT": 2}.get(summary, 0)
                tokens.append(f"{summary}//{code}")
                add(tokens[-1], row)
        return replace(_build(tokens, rows, scales, self.value_settings), rollup=rollup)

    def _fit_rollup(self) -> Rollup:
        if self._carriers is None or self.settings.rollup == "off":
            return Rollup()
        carriers = {c: self._carriers.of(n) for c, n in self.number.items() if not self.excluded(c)}
        return fit_rollup(
            self.settings.rollup, carriers, parents=self.parents, enough=self.settings.min_subjects,
            excluded=self.excluded,
        )  # fmt: skip


def _quantiles(value: NDArray[np.float64]) -> NDArray[np.float64]:
    """`np.quantile` at 0, 1/128 … 1 of sorted numbers, to the last bit, without sorting them again."""
    place = np.linspace(0, 1, QUANTILES + 1) * (len(value) - 1)
    low = np.floor(place).astype(np.int64)
    at_low, at_high, share = value[low], value[np.minimum(low + 1, len(value) - 1)], place - low
    step = at_high - at_low
    return np.where(share >= 0.5, at_high - step * (1 - share), at_low + step * share)


def _build(
    tokens: list[str], rows: dict[str, int], scales: list[NDArray[np.float64]], settings: ValuesConfig
) -> Vocabulary:
    if len(set(tokens)) < len(tokens):
        mend = "rename the codes of the data that begin with LAST//, COUNT// … or end with //Q1 …"
        raise EhrseqError("a code has the name of a token that the vocabulary makes itself", mend=mend)
    distinct = {id(s): s for s in scales}  # many codes share the pooled scales
    found = {key: (_quantiles(s), s.mean(), s.std()) for key, s in distinct.items()}
    facts = [found[id(s)] for s in scales]
    sd = np.array([own for _, _, own in facts])
    return Vocabulary(
        tokens=tuple(tokens),
        scale=np.array([rows.get(t, -1) for t in tokens], dtype=np.int32),
        knots=np.array([own for own, _, _ in facts]).reshape(-1, QUANTILES + 1),
        mean=np.array([own for _, own, _ in facts]),
        sd=np.where(sd > 0, sd, 1.0),
        settings=settings,
    )
