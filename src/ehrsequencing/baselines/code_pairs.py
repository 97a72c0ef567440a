"""Codes that share a visit: which pairs are worth a feature, chosen without outcomes, and the visits that hold them."""

from collections.abc import Iterator, Sequence

import numpy as np

from ehrsequencing.core.arrays import Ints, Ints32
from ehrsequencing.records.timelines import Timelines

Pair = tuple[int, int]


def shared_visits(part: Timelines, known: Ints, codes: Sequence[int]) -> Ints:
    """How many subjects have two codes in one visit.

    A subject costs (visits × codes²) multiplications of 0 and 1 at most, however many codes its visits hold.

    Args:
        part: Visits of some subjects.
        known: Positions of the tokens that count, rising.
        codes: (C,) token ids that may make a pair.

    Returns:
        (C, C), symmetric, 0 on the diagonal.
    """
    column = column_of(part, codes)[part.codes[known]]
    token, column = known[column >= 0], column[column >= 0].astype(np.int64)
    visit = np.searchsorted(part.visit_offsets, token, side="right") - 1
    bounds = np.searchsorted(visit, part.subject_offsets)
    out = np.zeros((len(codes), len(codes)), dtype=np.int64)
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if stop - start < 2:
            continue
        own, place = np.unique(column[start:stop], return_inverse=True)
        held = np.zeros((int(visit[stop - 1] - visit[start]) + 1, len(own)), dtype=np.float32)
        held[visit[start:stop] - visit[start], place] = 1.0
        out[own[:, None], own] += held.T @ held > 0
    np.fill_diagonal(out, 0)
    return out


def most_shared(
    subjects: Ints, codes: Sequence[int], limit: int, *, enough: int = 1
) -> tuple[Pair, ...]:
    """The pairs that most subjects have in a visit, by falling number; ties go to the smaller ids.

    Args:
        subjects: (C, C) of `shared_visits`.
        codes: (C,) their token ids, rising.
        limit: Pairs at most.
        enough: Subjects that a pair needs.
    """
    first, second = np.triu_indices(len(codes), 1)
    count = subjects[first, second]
    order = np.argsort(-count, kind="stable")[:limit]
    return tuple(
        (int(codes[first[k]]), int(codes[second[k]])) for k in order[count[order] >= enough]
    )


def visits_of_pairs(part: Timelines, pairs: Sequence[Pair]) -> Iterator[Ints]:
    """For each pair the visits that hold both codes, rising, each visit once."""
    codes = sorted({code for pair in pairs for code in pair})
    column = column_of(part, codes)[part.codes]
    token = np.flatnonzero(column >= 0)
    visit = np.searchsorted(part.visit_offsets, token, side="right") - 1
    holding = {code: np.unique(visit[column[token] == k]) for k, code in enumerate(codes)}
    for first, second in pairs:
        yield np.intersect1d(holding[first], holding[second], assume_unique=True)


def column_of(part: Timelines, codes: Sequence[int]) -> Ints32:
    """Column of each token id among some codes, -1 for the others."""
    out = np.full(
        max(int(part.codes.max(initial=0)), max(codes, default=0)) + 1, -1, dtype=np.int32
    )
    out[list(codes)] = np.arange(len(codes))
    return out
