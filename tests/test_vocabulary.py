"""Types of tokens: what the type embedding is told about each code."""

from pathlib import Path
from typing import Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ehrsequencing.config import ValuesConfig
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import SUMMARIES, Vocabulary


def vocabulary(*tokens: str, mode: Literal["polynomial", "bins"] = "polynomial") -> Vocabulary:
    none, scale = np.zeros(0), np.full(len(tokens), -1, np.int32)
    return Vocabulary(tokens, scale, none.reshape(0, 129), none, none, ValuesConfig(mode=mode))


def test_types_are_prefixes_in_order_and_zero_is_none() -> None:
    tokens = ("[PAD]", "[UNK]", "[UNK//LAB]", "RX//B", "DX//A//1", "LAB//1", "plain", "RX//A", "LAST//LAB//1", "//x")
    assert vocabulary(*tokens).code_types.tolist() == [0, 0, 2, 4, 1, 2, 0, 4, 3, 0]


def test_a_bin_of_values_has_the_type_of_its_code() -> None:
    tokens = ("[PAD]", "[UNK]", "LAB//1", "LAB//1//Q1", "weight", "weight//Q1", "weight//Q2", "Q//Q1")
    assert vocabulary(*tokens, mode="bins").code_types.tolist() == [0, 0, 1, 1, 0, 0, 0, 2]


def test_a_vocabulary_without_prefixes_has_one_type() -> None:
    assert vocabulary("[PAD]", "[UNK]", "A", "B").code_types.tolist() == [0, 0, 0, 0]


heads = st.sampled_from(["", "A", "B", "LAB", "Z z", "é"])


@given(st.lists(st.tuples(heads, st.integers(0, 9)), max_size=12, unique=True))
def test_same_prefix_same_type(codes: list[tuple[str, int]]) -> None:
    types = vocabulary("[PAD]", "[UNK]", *(f"{head}//{n}" if head else str(n) for head, n in codes)).code_types[2:]
    for (head, _), kind in zip(codes, types.tolist(), strict=True):
        assert (kind == 0) == (head == "")
        assert [h for (h, _), k in zip(codes, types.tolist(), strict=True) if k == kind] == [
            h for h, _ in codes if h == head
        ]
    assert set(types.tolist()) | {0} == set(range(len({h for h, _ in codes} | {""})))  # dense: no row goes unused


def test_types_of_a_prepared_set(sim_prepared: Path) -> None:
    found = Prepared(sim_prepared).vocabulary
    assert found.code_types.dtype == np.int64
    assert not found.code_types[:2].any()  # padding and the unknown without a type
    types: dict[str, set[int]] = {}
    for token, kind in zip(found.tokens[found.n_unknown :], found.code_types[found.n_unknown :].tolist(), strict=True):
        types.setdefault(token.partition("//")[0] if "//" in token else "", set()).add(kind)
    assert {"DX", "PROC", "RX", "LAB", *SUMMARIES} <= set(types)  # carried summaries are kinds of their own
    assert all(len(kinds) == 1 for kinds in types.values())
    assert len(set.union(*types.values())) == len(types)


def test_types_survive_saving(sim_prepared: Path, tmp_path: Path) -> None:
    found = Prepared(sim_prepared).vocabulary
    found.save(tmp_path)
    np.testing.assert_array_equal(Vocabulary.load(tmp_path).code_types, found.code_types)
