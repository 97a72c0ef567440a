"""The survey: one pass over all shards of a data set, before anything is made of its records.

Every survey collects the subjects and the rows by day, which tell where the data ends. Whatever
else a user needs is a `Part`. If a few rows lie far after all others (`meds.py`), the pass is made
again without them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import CodeMatcher
from ehrsequencing.records.events import Events
from ehrsequencing.records.meds import (
    DayCounts,
    MedsReader,
    add_days,
    count_days,
    find_late_rows,
    refuse_scattered,
)
from ehrsequencing.records.vocabulary import Vocabulary

Progress = Callable[[int, int], None]  # called with (pieces of work done, pieces to do)


class Part:
    """What a survey counts beside subjects and days."""

    def add(self, events: Events) -> None:
        """Count one shard."""

    def shards(self, reader: MedsReader) -> Iterator[tuple[Ints, DayCounts]]:
        """Read and count every shard; yields its distinct subject ids and its rows by day."""
        for path in reader.shards:
            events = reader.read(path)
            self.add(events)
            yield events.subjects[0], count_days(events)


Counted = TypeVar("Counted", bound=Part)


@dataclass(frozen=True)
class Survey(Generic[Counted]):
    """What is in a data set."""

    subject_id: Ints  # (S,) all subjects, sorted
    days: DayCounts  # rows by day
    part: Counted  # what else was counted


def survey(
    reader: MedsReader, new_part: Callable[[], Counted], tick: Callable[[], None] = lambda: None
) -> Survey[Counted]:
    """Survey a data set; from then on `reader` drops its late rows.

    With `data.extracted`, later rows are refused and none is late.

    Args:
        reader: The data set.
        new_part: Makes what else is counted, empty; called again for a second pass.
        tick: Called after each shard.

    Raises:
        EhrseqError: A shard cannot be used, a subject is in two of them, or nobody has a timed row.
    """
    found = _read_all(reader, new_part(), tick)
    if reader.declared_us is None:
        reader.late = find_late_rows(found.days)
    if reader.late is not None:
        reader.fixes = Counter()
        found = _read_all(reader, new_part(), tick)
    return found


def _read_all(reader: MedsReader, part: Counted, tick: Callable[[], None]) -> Survey[Counted]:
    ids, days = list[Ints](), list[DayCounts]()
    for subject_id, of_shard in part.shards(reader):
        ids.append(subject_id)
        days.append(of_shard)
        tick()
    refuse_scattered(ids, reader.shards)
    every = np.sort(np.concatenate(ids))
    if not len(every):
        what = "holds no subject with a timed row"
        raise EhrseqError(what, where=str(reader.data), fix="check the data set")
    return Survey(every, add_days(days), part)


class Steps:
    """Counts pieces of work for a progress bar: the shards of a survey, then `after` more."""

    def __init__(self, reader: MedsReader, after: int, progress: Progress | None) -> None:
        self.reader, self.after, self.progress, self.done = reader, after, progress, 0

    def __call__(self) -> None:
        """One more piece is done."""
        self.done += 1
        if self.progress is not None:
            passes = 1 if self.reader.late is None else 2
            self.progress(self.done, passes * len(self.reader.shards) + self.after)


class TokenRows(Part):
    """Counts rows that make a token, and those of them whose code a vocabulary does not know.

    Attributes:
        tokens: Rows that make a token.
        unknown: Those of them with an unknown code.
    """

    def __init__(self, vocabulary: Vocabulary, excluded: CodeMatcher) -> None:
        self.vocabulary, self.excluded = vocabulary, excluded
        self.tokens = self.unknown = self._subjects = 0
        self._shares = 0.0

    def add(self, events: Events) -> None:
        """Count one shard."""
        subject_id, subject = events.subjects
        makes_token = ~self.excluded.mask(events.codes)
        is_unknown = makes_token & self.vocabulary.is_unknown(self.vocabulary.ids(events.codes))
        tokens = np.bincount(subject[makes_token[events.code]], minlength=len(subject_id))
        unknown = np.bincount(subject[is_unknown[events.code]], minlength=len(subject_id))
        self.tokens += int(tokens.sum())
        self.unknown += int(unknown.sum())
        self._subjects += int(np.sum(tokens > 0))
        self._shares += float((unknown / np.maximum(tokens, 1)).sum())

    @property
    def unknown_of_subject(self) -> float:
        """Mean share of a subject's rows that is unknown: one person's many rows do not decide."""
        return self._shares / max(self._subjects, 1)


class CodeCounts(Part):
    """Counts the subjects and the rows of each code."""

    def __init__(self) -> None:
        self.subjects = Counter[str]()
        self.rows = Counter[str]()

    def add(self, events: Events) -> None:
        """Count one shard."""
        pairs = np.unique(np.stack([events.code.astype(np.int64), events.subject_id]), axis=1)
        for counter, codes in ((self.rows, events.code), (self.subjects, pairs[0])):
            counts = np.bincount(codes, minlength=len(events.codes)).tolist()
            counter.update(dict(zip(events.codes, counts, strict=True)))

    def unknown(self, vocabulary: Vocabulary, excluded: CodeMatcher) -> dict[str, int]:
        """Codes that make a token which `vocabulary` does not know → subjects, most first."""
        codes = tuple(code for code, _ in self.subjects.most_common() if not excluded(code))
        is_unknown = vocabulary.is_unknown(vocabulary.ids(codes))
        new = zip(codes, is_unknown, strict=True)
        return {code: self.subjects[code] for code, is_new in new if is_new}
