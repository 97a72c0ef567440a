"""Which codes and numbers of a run come from enough people, and its vocabulary and weights without the others.

Tokens keep their ids, so that the network keeps its shape. A code of too few people loses its name, and its row of the
code table becomes that of its type's unknown token: from then on the code is treated as one that was never seen. A
number of too few people loses its quantiles, and its rows of the value table become zero: it has no effect.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.embeddings import CodeEmbedding
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import Timelines
from ehrsequencing.records.vocabulary import SUMMARIES, Vocabulary

_CHUNK = 20_000  # subjects counted together
_GAPS = SUMMARIES.index("SINCE")


@dataclass(frozen=True)
class Carried:
    """How many training subjects each part of a vocabulary comes from.

    Attributes:
        codes: (V,) subjects with the code behind each token.
        kinds: Subjects with any code of each of `Vocabulary.kinds`.
        numbers: (V,) subjects with a number of the code behind each token.
        gaps: (V,) subjects with at least two of these numbers.
    """

    codes: Ints
    kinds: Ints
    numbers: Ints
    gaps: Ints


@dataclass(frozen=True)
class Rare:
    """What comes from too few people.

    Attributes:
        codes: Token ids of codes.
        kinds: Places in `Vocabulary.kinds`.
        scales: Token ids whose numbers are dropped, though the code stays.
    """

    codes: Ints
    kinds: Ints
    scales: Ints

    def __bool__(self) -> bool:
        return bool(len(self.codes) or len(self.kinds) or len(self.scales))


NOTHING = Rare(*(np.zeros(0, np.int64) for _ in range(3)))


def count_carriers(prepared: Prepared, vocabulary: Vocabulary) -> Carried:
    """Count the training subjects of a prepared set, some thousand at a time."""
    n, kinds = len(vocabulary), len(vocabulary.kinds)
    codes, numbers, gaps = (np.zeros(n, np.int64) for _ in range(3))
    of_kinds = np.zeros(kinds, np.int64)
    kind_of = _kind_of(vocabulary)
    timelines = prepared.timelines("train")
    for start in range(0, len(timelines), _CHUNK):
        part = timelines.take(slice(start, min(start + _CHUNK, len(timelines))))
        owner, token, has_number = _pairs(part, vocabulary)
        codes += _subjects(owner, token, n)
        of_kinds += _subjects(owner, kind_of.take(token), kinds + 1)[:kinds]
        numbers += _subjects(owner[has_number], token[has_number], n)
        gaps += _subjects(owner[has_number], token[has_number], n, at_least=2)
    return Carried(codes, of_kinds, numbers, gaps)


def _pairs(part: Timelines, vocabulary: Vocabulary) -> tuple[Ints, Ints, Bools]:
    """Of every code of some subjects: whose it is, the token of its code, and whether it has a number."""
    owner = np.concatenate([np.repeat(part.owner, np.diff(part.visit_offsets)), part.static_owner])
    token = np.concatenate([part.codes, part.static_codes]).astype(np.int64)
    base = vocabulary.base.take(token)
    has_number = np.zeros(len(token), dtype=bool)
    has_number[: len(part.codes)] = ~np.isnan(part.values[:, 0]) if len(part.codes) else False
    return owner, base, has_number | (base != token)  # a token of a bin stands for a number


def _subjects(owner: Ints, token: Ints, n: int, *, at_least: int = 1) -> Ints:
    """(n,) how many owners have each token at least so often."""
    pair, times = np.unique(owner * np.int64(n) + token, return_counts=True)
    return np.bincount(pair[times >= at_least] % n, minlength=n)


def _kind_of(vocabulary: Vocabulary) -> Ints:
    """(V,) the place in `kinds` of each token's type, or `len(kinds)`."""
    place = {kind: at for at, kind in enumerate(vocabulary.kinds)}
    other = len(vocabulary.kinds)
    own = [*range(other), *(place.get(code_type(code), other) for code in vocabulary.codes)]
    leading = np.array([other, other, *own], dtype=np.int64)
    return leading.take(vocabulary.base)


def rare_parts(carried: Carried, vocabulary: Vocabulary, *, enough: int) -> Rare:
    """What fewer than `enough` training subjects have."""
    codes = np.arange(vocabulary.n_unknown, vocabulary.n_unknown + len(vocabulary.codes))
    rare = codes[carried.codes[codes] < enough]
    of_codes = np.isin(vocabulary.base, rare)
    summary = np.full(len(vocabulary), -1, dtype=np.int64)
    summary[len(vocabulary) - len(vocabulary.made_of) :] = [
        number for _, number, _ in vocabulary.made_of
    ]
    people = np.where(summary == _GAPS, carried.gaps, carried.numbers).take(vocabulary.base)
    scales = np.flatnonzero((vocabulary.scale >= 0) & (people < enough) & ~of_codes)
    return Rare(rare, np.flatnonzero(carried.kinds < enough), scales)


def without(vocabulary: Vocabulary, rare: Rare) -> Vocabulary:
    """The vocabulary without names and numbers of few people, token by token as before."""
    renamed = _renamed_kinds(vocabulary, rare)
    codes = list(vocabulary.codes)
    for token in rare.codes.tolist():
        kind = code_type(codes[token - vocabulary.n_unknown])
        known = renamed.get(kind)  # a type without an unknown token has few people too
        prefix = f"{known}//" if known else ""
        codes[token - vocabulary.n_unknown] = f"{prefix}[removed {token}]"
    removed = {vocabulary.codes[token - vocabulary.n_unknown] for token in rare.codes.tolist()}
    rollup = {key: token for key, token in vocabulary.rollup.items() if token not in removed}
    knots, mean, sd = vocabulary.knots.copy(), vocabulary.mean.copy(), vocabulary.sd.copy()
    rows = vocabulary.scale[_without_numbers(vocabulary, rare)]
    rows = rows[rows >= 0]
    knots[rows], mean[rows], sd[rows] = 0.0, 0.0, 1.0
    return replace(
        vocabulary,
        kinds=tuple(renamed.values()),
        codes=tuple(codes),
        knots=knots,
        mean=mean,
        sd=sd,
        rollup=rollup,
    )


def _renamed_kinds(vocabulary: Vocabulary, rare: Rare) -> dict[str, str]:
    """Each type and what it is called from now on. Types are numbered in the order of their names, which stays."""
    every = sorted({*vocabulary.kinds, *SUMMARIES, *map(code_type, vocabulary.codes)})
    few = {vocabulary.kinds[place]: place for place in rare.kinds.tolist()}
    names, before = {}, ""
    for kind in every:
        before = f"{before} [removed {few[kind]}]".strip() if kind in few else kind
        names[kind] = before
    return {kind: names[kind] for kind in vocabulary.kinds}


def _without_numbers(vocabulary: Vocabulary, rare: Rare) -> Ints:
    """Tokens whose numbers have no effect any more: those of removed codes, and `rare.scales`."""
    return np.union1d(np.flatnonzero(np.isin(vocabulary.base, rare.codes)), rare.scales)


def forget_rare(model: SurvivalModel, vocabulary: Vocabulary, rare: Rare) -> None:
    """Change the rows of a network's code tables that were fitted to few people, in place.

    Args:
        model: With code tables of one row a token.
        vocabulary: The one that it was trained with.
        rare: What to forget.

    Raises:
        EhrseqError: It has no code table.
    """
    tables = [module for module in model.modules() if isinstance(module, CodeEmbedding)]
    if not tables:
        fix = "prepare the data with vocabulary.min_subjects=11 and train again"
        raise EhrseqError(
            "has no table of codes from which rare ones can be removed", where="model", fix=fix
        )
    gone = np.flatnonzero(np.isin(vocabulary.base, rare.codes))
    bins, unbinned = _bins_of(vocabulary, rare.scales)
    tokens = np.concatenate([gone, 2 + rare.kinds, bins])
    source = np.concatenate(
        [_unknown_of(vocabulary, rare)[gone], np.ones(len(rare.kinds), np.int64), unbinned]
    )
    silent = _without_numbers(vocabulary, rare)
    with torch.no_grad():
        for table in tables:
            weight = table.table.weight
            weight[torch.from_numpy(tokens)] = weight[torch.from_numpy(source)]
            if table.value_table is not None:
                rows = (silent[:, None] * table.terms + np.arange(table.terms)).ravel()
                table.value_table.weight[torch.from_numpy(rows)] = 0.0


def _bins_of(vocabulary: Vocabulary, tokens: Ints) -> tuple[Ints, Ints]:
    """Tokens of the bins of some tokens' numbers, and for each the token that has no number."""
    chosen, first = set(tokens.tolist()), len(vocabulary) - len(vocabulary.made_of)
    found: list[tuple[int, int]] = []
    plain = -1  # of a summary's bins: the summary stands before them
    for token, (code, summary, bin_) in enumerate(vocabulary.made_of, start=first):
        plain = plain if bin_ >= 0 else token
        unbinned = code if summary < 0 else plain
        if bin_ >= 0 and unbinned in chosen:
            found.append((token, unbinned))
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _unknown_of(vocabulary: Vocabulary, rare: Rare) -> Ints:
    """(V,) the unknown token that a code is read as once its name is gone."""
    kinds = {
        kind: 2 + place
        for place, kind in enumerate(vocabulary.kinds)
        if place not in set(rare.kinds.tolist())
    }
    own = [kinds.get(code_type(code), 1) for code in vocabulary.codes]
    leading = np.array([0, *[1] * (vocabulary.n_unknown - 1), *own], dtype=np.int64)
    return leading.take(vocabulary.base)
