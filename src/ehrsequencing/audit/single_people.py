"""Checks that nothing stored with the model reveals single people, counted again from the records.

A run holds its vocabulary: names of codes and code types, and numbers about their values. A blend also holds names,
cuts and ranges of history features. Every name must be that of enough training subjects, and no number may be a value
that fewer have.
"""

from collections.abc import Iterator

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, count_text, judge, no_source
from ehrsequencing.audit.source import Source
from ehrsequencing.audit.stored_features import of_few_people
from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.records.events import DAY_US, STATIC, Events
from ehrsequencing.records.vocabulary import SUMMARIES, Vocabulary

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
