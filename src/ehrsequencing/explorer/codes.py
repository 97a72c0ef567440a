"""The codes that a page shows: words, units, lanes; codes of few patients under one name; which codes go together."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from ehrsequencing.core.arrays import Bools, Ints
from ehrsequencing.explorer.patients import Patients
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.reporting.patient import kind_of

RARE = "rare code"
COMMON = 10  # a code goes along with another if `COMMON` times as many patients have the first as lack the second
MOST_PAIRED = 2000  # codes that are compared with each other


@dataclass(frozen=True)
class ShownCodes:
    """D codes of a page.

    Attributes:
        names: (D,) codes; `RARE` stands for all that few patients have.
        words: (D,) descriptions; the names where there are none.
        units: (D,) units of their numbers, empty where none is known.
        lanes: (D,) kinds of codes, in the field's words.
        is_known: (D,) whether the model has a token for it.
        n_common: How many of them are codes of the data; the others stand for rare ones.
        of_code: (C,) the shown code of each code of the data.
        together: (·, 2) pairs (a, b) of shown codes: hardly any patient has a without b. (b, b): hardly any lacks b.
    """

    names: tuple[str, ...]
    words: tuple[str, ...]
    units: tuple[str, ...]
    lanes: tuple[str, ...]
    is_known: Bools
    n_common: int
    of_code: Ints
    together: Ints


def shown_codes(
    patients: Patients,
    codes: tuple[str, ...],
    vocabulary: Vocabulary,
    descriptions: Mapping[str, str],
    *,
    fewest: int,
) -> ShownCodes:
    """What a page calls each code, with those that fewer than `fewest` patients have under one name."""
    has = _carriers(patients, len(codes))
    people = np.asarray(has.sum(axis=0)).ravel()
    common = np.flatnonzero(people >= fewest)
    of_code = np.full(len(codes), len(common), dtype=np.int64)
    of_code[common] = np.arange(len(common))
    names = [codes[k] for k in common.tolist()]
    known = (
        ~vocabulary.is_unknown(vocabulary.ids(tuple(names))) if names else np.zeros(0, dtype=bool)
    )
    words, units = _words(names, descriptions), [unit_of(name) for name in names]
    lanes = [kind_of(name) for name in names]
    if ((people > 0) & (people < fewest)).any():
        names, words, units, lanes = (
            [*names, RARE],
            [*words, RARE],
            [*units, ""],
            [*lanes, "rare codes"],
        )
        known = np.r_[known, True]
    together = _together(has[:, common], fewest=fewest)
    return ShownCodes(
        tuple(names),
        tuple(words),
        tuple(units),
        tuple(lanes),
        known,
        len(common),
        of_code,
        together,
    )


def _words(names: list[str], descriptions: Mapping[str, str]) -> list[str]:
    """Descriptions; codes that share one also have their names."""
    words = [descriptions.get(name, name) for name in names]
    several = {text for text, count in Counter(words).items() if count > 1}
    return [
        f"{text} ({name})" if text in several else text
        for text, name in zip(words, names, strict=True)
    ]


def unit_of(code: str) -> str:
    """The unit in the name of a code, as `LAB//50912//mg/dL` has it; empty where there is none.

    >>> unit_of("LAB//50912//mg/dL"), unit_of("LAB//227969//UNK"), unit_of("LAB//MARKER")
    ('mg/dL', '', '')
    """
    parts = code.split("//")
    return (
        parts[-1]
        if len(parts) >= 3 and parts[0].upper() in _MEASURED and parts[-1] != "UNK"
        else ""
    )


_MEASURED = {"LAB", "MEASUREMENT", "VITAL", "OBSERVATION"}


def _carriers(patients: Patients, n_codes: int) -> csr_matrix:
    """(S, C) which patient has which code, at any time or without one."""
    owner = np.repeat(np.arange(len(patients)), np.diff(patients.visit_offsets))
    owner = np.repeat(owner, np.diff(patients.item_offsets))
    static = np.repeat(np.arange(len(patients)), np.diff(patients.static_offsets))
    at = np.r_[owner, static], np.r_[patients.item_code, patients.static_code]
    found = csr_matrix((np.ones(len(at[0]), dtype=np.int32), at), shape=(len(patients), n_codes))
    found.data[:] = 1
    return found


def _together(has: csr_matrix, *, fewest: int) -> Ints:
    """(·, 2) pairs (a, b): fewer than `fewest` patients have a without b, and many have a.

    A record with a and without b is then unlike any that was seen.
    """
    people = np.asarray(has.sum(axis=0)).ravel()
    chosen = np.sort(np.argsort(-people, kind="stable")[:MOST_PAIRED])
    both = (has[:, chosen].T @ has[:, chosen]).toarray()
    lack = people[chosen][:, None] - both
    pairs = np.argwhere((lack < fewest) & (people[chosen][:, None] >= COMMON * fewest))
    pairs = chosen[pairs[pairs[:, 0] != pairs[:, 1]]]
    always = np.flatnonzero((people > 0) & (has.shape[0] - people < fewest))
    return np.concatenate([np.asarray(pairs, dtype=np.int64), np.stack([always, always], axis=1)])
