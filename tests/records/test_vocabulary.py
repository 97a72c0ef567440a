"""Names of tokens, which never collide with codes, and types of tokens, of which the type embedding is told."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import ValuesConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.codes import code_type
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import SUMMARIES, Vocabulary
from helpers.meds import DAY_US, Row, scratch, stored_subjects, us, write_meds
from helpers.settings import examples

Mode = Literal["polynomial", "bins"]


def vocabulary(
    *codes: str, kinds: Iterable[str] = (), numeric: Iterable[str] = (), mode: Mode = "polynomial", carry: bool = False
) -> Vocabulary:
    has_numbers = np.array([code in set(numeric) for code in codes], dtype=bool)
    scales = int(has_numbers.sum()) * (3 if carry else 1)
    knots = np.arange(scales)[:, None] + np.linspace(0.0, 1.0, 129)
    values = ValuesConfig(mode=mode, carry=carry)
    return Vocabulary(tuple(kinds), codes, has_numbers, knots, np.zeros(scales), np.ones(scales), values)


LOOKS_SPECIAL = [
    "[PAD]",
    "[UNK]",
    "[UNK//LAB]",
    "[UNK//",
    "[D]Chest pain",
    "[",
    "[PAD]*",
    "LAB//A",
    "LAST//LAB//A",
    "LAST//LAB//A*",
    "LAB//A//Q1",
    "LAST//LAB//A//Q2",
    "COUNT//[PAD]",
    "[PAD]//Q1",
    "LAST//LAST//LAB//A",
]
any_code = st.sampled_from(LOOKS_SPECIAL) | st.text(min_size=1, max_size=6)


@settings(max_examples=examples(600), deadline=None)
@given(
    codes=st.lists(any_code, unique=True, max_size=12),
    unknown=st.lists(any_code, max_size=6),
    data=st.data(),
    mode=st.sampled_from(["polynomial", "bins"]),
    carry=st.booleans(),
)
def test_any_codes_become_tokens_and_come_back(
    codes: list[str], unknown: list[str], data: st.DataObject, mode: Mode, carry: bool
) -> None:
    """Whatever codes look like: code → id → code, before and after saving, and no token means two things."""
    numeric = [code for code in codes if data.draw(st.booleans())]
    kinds = sorted({code_type(code) for code in codes if data.draw(st.booleans())} - {""})
    made = vocabulary(*codes, kinds=kinds, numeric=numeric, mode=mode, carry=carry)
    with scratch() as folder:
        made.save(Path(folder))
        read = Vocabulary.load(Path(folder))
    assert read.digest == made.digest
    for found in (made, read):
        ids = found.ids(tuple(codes)).tolist()
        assert [found.tokens[i] for i in ids] == codes
        assert len(set(found.tokens)) == len(found.tokens) == len(found)
        assert min(ids, default=found.n_unknown) >= found.n_unknown
        new = tuple(code for code in unknown if code not in codes)
        for code, i in zip(new, found.ids(new).tolist(), strict=True):
            assert i == (2 + kinds.index(code_type(code)) if code_type(code) in kinds else 1)
        assert found.base[ids].tolist() == ids
        for code in numeric:  # what is made of a code leads back to it, and nothing else does
            own = found.index[code]
            summaries = [i for i in found.summary_tokens[own].tolist() if i >= 0]
            bins = [
                i for first in (own, *summaries) if mode == "bins" for i in range(5) if found._first_bin[first] >= 0
            ]
            assert len(summaries) == (len(SUMMARIES) if carry else 0)
            assert (found.base == own).sum() == 1 + len(summaries) + len(bins)
            assert set(found.base[summaries].tolist()) <= {own}
            values = np.array([found.knots[found.scale[own], 60]])
            made_of, pair = found.encode_values(np.array([own], np.int32), values)
            if mode in ("polynomial", "interpolate"):
                np.testing.assert_allclose(found.numbers_at(own, pair[:, 0]), values, rtol=1e-5, atol=1e-5)
            assert found.base[made_of].tolist() == [own]
            name = found.tokens[int(made_of[0])]
            if mode == "bins" and name != f"{code}//Q3":  # then a code, or another code's token, has that name
                assert found.base[found.tokens.index(f"{code}//Q3")] != own


def test_codes_that_look_special_are_prepared_as_themselves(tmp_path: Path) -> None:
    """The whole way: each of these codes reads back from the stored visits; before, all that began with [ were lost."""
    start, codes = us("2015-01-01"), ["[PAD]", "[UNK]", "[UNK//LAB]", "[D]Chest pain", "LAST//LAB//A", "LAB//A//Q1"]
    rows = [Row(who, start + who * DAY_US, code) for who in range(12) for code in codes]
    rows += [Row(who, start + (who + 1) * DAY_US, "LAB//A", float(who)) for who in range(12)]
    rows += [Row(11, start + 400 * DAY_US, "[RARE]"), Row(11, start + 400 * DAY_US, "LAB//rare")]
    data = write_meds(tmp_path / "data", rows, splits=dict.fromkeys(range(12), "train"))
    for mode in ("polynomial", "bins"):
        prepare(data, tmp_path / mode, study=load_study(None, [f"values.mode={mode}"]), tasks=[])
        found = stored_subjects(tmp_path / mode)[11].codes
        assert [name for name, _ in found[0]] == sorted(codes)
        assert [name for name, _ in found[2]] == ["[UNK//LAB]*", "[UNK]*"]
    assert "LAB//A//Q1*" in Prepared(tmp_path / "bins").vocabulary.tokens


def test_a_damaged_vocabulary_is_refused(tmp_path: Path) -> None:
    vocabulary("A").save(tmp_path)
    text = json.loads((tmp_path / "vocabulary.json").read_text())
    for change in (
        {"kinds": ["LAB"]},  # the codes are not where they were
        {"tokens": ["[PAD]", "[UNK]"]},
        {"tokens": ["[UNK]", "[PAD]", "A"]},
    ):
        (tmp_path / "vocabulary.json").write_text(json.dumps(text | change))
        with pytest.raises(EhrseqError, match="damaged"):
            Vocabulary.load(tmp_path)


def test_types_are_prefixes_in_order_and_zero_is_none() -> None:
    found = vocabulary("RX//B", "DX//A//1", "LAB//1", "plain", "RX//A", "//x", "[D]//x", "[D]y", kinds=["LAB"])
    assert found.code_types.tolist() == [0, 0, 2, 3, 1, 2, 0, 3, 0, 4, 0]


def test_what_is_made_of_a_code_has_its_type_and_summaries_their_own() -> None:
    """A code of the type LAST is no summary."""
    found = vocabulary("LAB//1", "weight", "LAST//1", numeric=["weight", "LAB//1"], mode="bins", carry=True)
    types = dict(zip(found.tokens, found.code_types.tolist(), strict=True))
    assert types["LAB//1//Q1"] == types["LAB//1"] != 0
    assert types["weight//Q5"] == types["weight"] == 0
    assert types["LAST//LAB//1//Q2"] == types["LAST//weight"] == types["LAST//LAB//1"]
    assert types["LAST//1"] != types["LAST//weight"]
    assert set(types.values()) == set(range(1 + 2 + len(SUMMARIES)))
