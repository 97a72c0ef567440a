"""Counts the training subjects behind each name and number of the vocabulary: no few people may show in a run."""

from collections import defaultdict

import numpy as np

from ehrsequencing.audit.data import AuditData, Check, Finding, count_text, judge, no_source
from ehrsequencing.core.arrays import Floats
from ehrsequencing.records.vocabulary import Vocabulary


def single_people(data: AuditData) -> Finding:
    """People behind every code and type, and behind every stored number that is a value of the records."""
    if data.source is None:
        return no_source(data)
    needed, vocabulary = data.prepared.study.vocabulary.min_subjects, data.vocabulary
    if needed < 2:
        return Finding("not_tested", "vocabulary.min_subjects=1 protects nobody")
    fit = data.source.fit
    people = [int(fit.subjects[fit.number[c]]) for c in vocabulary.codes if c in fit.number]
    people += [int(fit.kind_subjects[fit.kinds[kind]]) for kind in vocabulary.kinds]
    few_names = sum(count < needed for count in people)
    numbers = _stored_numbers(vocabulary)
    holders = _holders(data, numbers, needed)
    few_numbers = sum(len(some) < needed for some in holders.values())
    stored = sum(map(len, numbers.values()))
    return judge(
        few_names + few_numbers,
        of=len(people) + stored,
        what=f"names and numbers are those of fewer than {needed} training subjects "
        f"({count_text(few_names)} names and {count_text(few_numbers)} numbers)",
        clean=f"at least {needed} training subjects are behind every name, and share every number that is a value",
        tested={"names": len(people), "numbers": stored},
    )


def _stored_numbers(vocabulary: Vocabulary) -> dict[int, Floats]:
    """Token of a code → what the run stores of its values; nothing where too few have it, which is all zeros."""
    stored = {}
    for place in np.flatnonzero(vocabulary.has_numbers).tolist():
        token = vocabulary.n_unknown + place
        scale = vocabulary.scale[token]
        numbers = np.r_[vocabulary.knots[scale], vocabulary.mean[scale], vocabulary.sd[scale]]
        if numbers[:-1].any():
            stored[token] = np.unique(numbers)
    return stored


def _holders(
    data: AuditData, numbers: dict[int, Floats], needed: int
) -> dict[tuple[int, float], set[int]]:
    """(token, number) that is somebody's value → the training subjects who have it, until these are enough."""
    assert data.source is not None
    training = data.prepared.timelines("train").subject_id
    found: dict[tuple[int, float], set[int]] = defaultdict(set)
    for events in data.source.events():
        of_code = data.vocabulary.ids(events.codes)
        is_own = data.vocabulary.keeps_number(events.codes)
        rows = np.flatnonzero(~np.isnan(events.value) & is_own[events.code])
        token, learned = of_code[events.code[rows]], np.isin(events.subject_id[rows], training)
        order = np.argsort(token, kind="stable")
        tokens, first = np.unique(token[order], return_index=True)
        for one, some in zip(tokens.tolist(), np.split(order, first[1:]), strict=False):
            value = events.value[rows[some]].astype(np.float64)
            for number in np.unique(value[np.isin(value, numbers.get(one, ()))]).tolist():
                hit = some[(value == number) & learned[some]]
                people = np.unique(events.subject_id[rows[hit]])[:needed]
                found[one, number].update(people.tolist())
    return found


CHECK = Check(
    "single_people",
    "Does all that the run stores of codes and values come from at least vocabulary.min_subjects people?",
    single_people,
)
