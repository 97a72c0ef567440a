"""Codes of two vocabularies: by name, then by ancestor."""

import numpy as np

from ehrsequencing.config import ValuesConfig
from ehrsequencing.records.scales import KNOTS
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.transfer import MATCHES, match_vocabularies


def vocabulary(codes: tuple[str, ...], *, numeric: tuple[str, ...] = (), carry: bool = False) -> Vocabulary:
    has = np.array([code in numeric for code in codes])
    n = int(has.sum()) * (3 if carry else 1)
    kinds = tuple(sorted({code.partition("//")[0] for code in codes}))
    values = ValuesConfig(mode="bins", bins=2, carry=carry)
    return Vocabulary(kinds, codes, has, np.tile(np.linspace(0, 1, KNOTS), (n, 1)), np.zeros(n), np.ones(n), values)


def test_each_code_is_found_by_the_first_rule_that_applies() -> None:
    ours = vocabulary(("DX//A", "DX//A1", "LAB//X", "RX//NEW", "ZZ//LOST"), numeric=("LAB//X",), carry=True)
    theirs = vocabulary(("DX//A", "DX//UP", "LAB//Y", "RX//OLD"), numeric=("LAB//Y",), carry=True)
    parents = {"DX//A": ["DX//UP"], "DX//A1": ["DX//MID"], "DX//MID": ["DX//UP"], "LAB//X": ["LAB//Y"]}
    match = match_vocabularies(ours, theirs, parents=parents)
    names = {
        name: (theirs.tokens[match.source[token]] if match.source[token] >= 0 else None, MATCHES[match.how[token]])
        for token, name in enumerate(ours.tokens)
    }
    assert names["DX//A"] == ("DX//A", "name")
    assert names["DX//A1"] == ("DX//UP", "ancestor")
    assert names["LAB//X//Q2"] == ("LAB//Y//Q2", "ancestor")
    assert names["LAST//LAB//X"] == ("LAST//LAB//Y", "ancestor")
    assert names["RX//NEW"] == (None, "none")
    assert names["[UNK//RX]"] == ("[UNK//RX]", "name")
    assert names["[UNK//ZZ]"] == (None, "none")
    weight = np.zeros(len(ours), dtype=np.int64)
    weight[[ours.index["DX//A"], ours.index["ZZ//LOST"]]] = 3, 1
    overlap = match.overlap(ours, weight)
    assert (overlap["name"], overlap["none"]["share"]) == ({"codes": 1, "share": 0.75}, 0.25)
    assert sum(each["codes"] for each in overlap.values()) == 5
