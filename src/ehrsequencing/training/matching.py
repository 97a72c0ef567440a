"""Which token of another model's vocabulary each of our tokens corresponds to: by name, by ancestor, by description.

A site may call a code by another name. Then its description decides: equal descriptions, and those of nearly the same
words, are the same code. Other ones that are similar to a known one get a vector from a linear map of hashed character
n-grams. The source learned that map while it was pretrained (`pretraining/described.py`), or it is a ridge regression
fitted to the vectors that the source learned; its strength is chosen by leave-one-out error, that is by how well a
code's vector is foretold by the descriptions of all other codes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ehrsequencing.core.arrays import Bools, Floats, Ints
from ehrsequencing.records.vocabulary import Vocabulary

WIDTH = 1024  # hashed n-grams
LENGTHS = (3, 4, 5)  # characters of an n-gram
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of the ridge, on rows of norm 1
SAME_WORDS = 0.9  # cosine from which two descriptions have nearly the same words
_AT_ONCE = 1000  # descriptions compared at once
LEAST_DESCRIBED = 20  # codes with a description below which no map is fitted
REASONS = ("name", "ancestor", "description", "similar description", "none")


@dataclass(frozen=True)
class Match:
    """For each of our V tokens, where its vector comes from."""

    source: Ints  # (V,) token id of the other vocabulary; -1 without one
    reason: Ints  # (V,) index into `REASONS`

    @property
    def found(self) -> Bools:
        """(V,) whether there is a token to copy."""
        return self.source >= 0

    def overlap(self, vocabulary: Vocabulary, weight: Ints) -> dict[str, dict[str, float]]:
        """Reason → how many codes, and which share of the records' codes they are.

        Args:
            vocabulary: Ours.
            weight: (V,) how often each token is in the training records.
        """
        is_code = np.zeros(len(vocabulary), dtype=np.bool_)
        is_code[list(vocabulary.index.values())] = True
        base_weight = np.bincount(vocabulary.base, weights=weight, minlength=len(vocabulary))
        total = max(float(base_weight[is_code].sum()), 1.0)
        return {
            reason: {
                "codes": int((is_code & (self.reason == number)).sum()),
                "share": float(base_weight[is_code & (self.reason == number)].sum()) / total,
            }
            for number, reason in enumerate(REASONS)
        }


def match_vocabularies(
    ours: Vocabulary,
    theirs: Vocabulary,
    *,
    parents: Mapping[str, list[str]],
    our_descriptions: Mapping[str, str],
    their_descriptions: Mapping[str, str],
) -> Match:
    """Find each of our tokens among theirs.

    A code corresponds to the code of that name; else to its nearest ancestor that has a token there; else to the code
    with the same description (case, punctuation and blanks apart), or with nearly the same words (a cosine of
    `SAME_WORDS` between their n-grams). Bins and summaries follow their code.

    Args:
        ours: The vocabulary to fill.
        theirs: That of the other model.
        parents: Our ontology.
        our_descriptions: Code → description; empty to match by name and ancestor alone.
        their_descriptions: The same of the other site.
    """
    by_text: dict[str, str] = {}
    for code in theirs.codes:
        if text := normal(their_descriptions.get(code, "")):
            by_text.setdefault(text, code)
    source = np.full(len(ours), -1, dtype=np.int64)
    reason = np.full(len(ours), REASONS.index("none"), dtype=np.int64)
    source[:2], reason[:2] = np.arange(2), 0  # padding and unknown
    for place, kind in enumerate(ours.kinds):
        if kind in theirs.kinds:
            source[2 + place], reason[2 + place] = 2 + theirs.kinds.index(kind), 0
    made = {key: token for token, key in enumerate(_keys(theirs))}
    found: dict[str, tuple[str, int]] = {}
    for code in ours.codes:
        if code in theirs.index:
            found[code] = (code, 0)
        elif (up := _nearest(code, parents, theirs)) is not None:
            found[code] = (up, 1)
        elif (same := by_text.get(normal(our_descriptions.get(code, "")))) is not None:
            found[code] = (same, 2)
    near = list(_other_wordings(ours, found, our_descriptions, theirs, their_descriptions))
    found |= {code: (same, 3) for code, same in near}
    for token, key in enumerate(_keys(ours)):
        if key is None or key[0] not in found:
            continue
        other, why = found[key[0]]
        source[token] = made.get((other, *key[1:]), -1)
        reason[token] = why if source[token] >= 0 else REASONS.index("none")
    return Match(source, reason)


def _other_wordings(
    ours: Vocabulary,
    found: Mapping[str, Any],
    our_descriptions: Mapping[str, str],
    theirs: Vocabulary,
    their_descriptions: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Our codes without a counterpart and the code there that is described in nearly the same words, if there is one.

    Words count by their rarity on both sides, so that a word which one side adds to every description says little.
    """
    left = [
        code for code in ours.codes if code not in found and normal(our_descriptions.get(code, ""))
    ]
    known = [code for code in theirs.codes if normal(their_descriptions.get(code, ""))]
    if not left or not known:
        return
    texts, asked = (
        [their_descriptions[code] for code in known],
        [our_descriptions[code] for code in left],
    )
    wording = Wording.of([*texts, *asked])
    rows = wording.rows(texts)
    for start in range(0, len(left), _AT_ONCE):
        cosine = wording.rows(asked[start : start + _AT_ONCE]) @ rows.T
        for code, one in zip(left[start : start + _AT_ONCE], cosine, strict=True):
            if one.max() >= SAME_WORDS:
                yield code, known[int(one.argmax())]


def _keys(vocabulary: Vocabulary) -> list[tuple[str, int, int] | None]:
    """Of each token: its code, the number of its summary or -1, and of its bin or -1; None for unknown tokens."""
    keys: list[tuple[str, int, int] | None] = [None] * vocabulary.n_unknown
    keys += [(code, -1, -1) for code in vocabulary.codes]
    names = vocabulary.tokens
    return keys + [(names[code], summary, bin_) for code, summary, bin_ in vocabulary.made_of]


def _nearest(code: str, parents: Mapping[str, list[str]], theirs: Vocabulary) -> str | None:
    """The nearest ancestor that has a token there; of several at one distance the first named."""
    level, seen = [code], {code}
    while level:
        level = [up for one in level for up in parents.get(one, ()) if up not in seen]
        seen.update(level)
        for up in level:
            if up in theirs.index:
                return up
    return None


def normal(text: str) -> str:
    """A description without case, punctuation and surplus blanks.

    >>> normal("  Heart-failure,  NOS ")
    'heart failure nos'
    """
    return " ".join(re.sub(r"[\W_]+", " ", text.casefold()).split())


@dataclass(frozen=True)
class Wording:
    """Descriptions as hashed character n-grams of their words, weighted by how rare an n-gram is among them.

    A word that nearly all descriptions have tells codes apart no better than none: n-gram g of n descriptions, d_g of
    which have it, weighs `log((1 + n) / (1 + d_g))`.

    Attributes:
        weight: (1024,) of each hashed n-gram.
    """

    weight: Floats

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Wording":
        """The weights among some descriptions; empty ones do not count.

        >>> wording = Wording.of([f"Pair {k}: first half" for k in range(10, 40)])
        >>> a, b, c = wording.rows(["Pair 17, first half", "half, first: pair 17", "Pair 38: first half"])
        >>> bool(a @ b > 0.99), bool(a @ c < 0.1)
        (True, True)
        """
        found, count = np.zeros(WIDTH), 0
        for text in texts:
            columns = _hashed(text)[0]
            found[columns] += 1.0
            count += len(columns) > 0
        return cls(np.log((1.0 + count) / (1.0 + found)))

    def row(self, text: str) -> tuple[Ints, Floats]:
        """Columns (g,) and numbers (g,) of one description, of norm 1; both empty without text."""
        columns, numbers = _hashed(text)
        numbers = numbers * self.weight[columns]
        return columns, numbers / max(float(np.linalg.norm(numbers)), 1e-12)

    def rows(self, texts: Sequence[str]) -> Floats:
        """(n, 1024) n-grams of descriptions, rows of norm 1, or of norm 0 without text."""
        out = np.zeros((len(texts), WIDTH))
        for place, text in enumerate(texts):
            columns, numbers = self.row(text)
            out[place, columns] = numbers
        return out


def _hashed(text: str) -> tuple[Ints, Floats]:
    """Columns below `WIDTH` of a description's n-grams, and their signed numbers.

    N-grams do not cross words, so that the order of words does not matter.
    """
    row: dict[int, float] = {}
    for word in normal(text).split():
        padded = f" {word} "
        for length in LENGTHS:
            for start in range(len(padded) - length + 1):
                hashed = crc32(padded[start : start + length].encode())
                column = hashed % WIDTH
                row[column] = row.get(column, 0.0) + (1.0 if hashed & 2**31 else -1.0)
    return np.fromiter(row, np.int64, len(row)), np.fromiter(row.values(), np.float64, len(row))


@dataclass(frozen=True)
class DescriptionMap:
    """Ridge regression from descriptions to vectors: `vector = mean + n-grams · W`."""

    wording: Wording
    mean: Floats  # (d,)
    weights: Floats  # (1024, d)
    strength: float
    explained: float  # share of the vectors' variance that the other codes' descriptions explain (leave-one-out)

    @classmethod
    def fit(cls, texts: list[str], vectors: NDArray[np.floating]) -> "DescriptionMap | None":
        """Fit to (n, d) vectors; None below `LEAST_DESCRIBED` codes or where descriptions explain nothing.

        With x the n-grams, y the centred vectors and H = x (xᵀx + λI)⁻¹ xᵀ, the leave-one-out residual of code i is
        `(y_i − ŷ_i) / (1 − H_ii)`.
        """
        if len(texts) < LEAST_DESCRIBED:
            return None
        wording, y = Wording.of(texts), np.asarray(vectors, dtype=np.float64)
        x = wording.rows(texts)
        mean = y.mean(0)
        y = y - mean
        left, singular, right = np.linalg.svd(x, full_matrices=False)
        squares, projected = np.square(singular), left.T @ y
        best: tuple[float, float] | None = None
        for strength in STRENGTHS:
            shrunk = left * (squares / (squares + strength))
            own = np.minimum((shrunk * left).sum(1), 1 - 1e-9)
            left_out = (y - shrunk @ projected) / (1 - own)[:, None]
            explained = 1.0 - float(np.square(left_out).sum() / max(np.square(y).sum(), 1e-12))
            if best is None or explained > best[0]:
                best = explained, strength
        assert best is not None
        if best[0] <= 0:
            return None
        weights = right.T @ ((singular / (squares + best[1]))[:, None] * projected)
        return cls(wording, mean, weights, best[1], best[0])

    def __call__(self, texts: list[str]) -> Floats:
        """(n, d) vectors of descriptions."""
        return np.asarray(self.mean + self.wording.rows(texts) @ self.weights)
