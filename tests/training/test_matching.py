"""Codes of two vocabularies: by name, ancestor and description; the map from descriptions, beside plain refits."""

import numpy as np
import pytest

from ehrsequencing.config import ValuesConfig
from ehrsequencing.records.scales import KNOTS
from ehrsequencing.records.vocabulary import Vocabulary
from ehrsequencing.training.matching import REASONS, DescriptionMap, Wording, match_vocabularies


def vocabulary(codes: tuple[str, ...], *, numeric: tuple[str, ...] = (), carry: bool = False) -> Vocabulary:
    has = np.array([code in numeric for code in codes])
    n = int(has.sum()) * (3 if carry else 1)
    kinds = tuple(sorted({code.partition("//")[0] for code in codes}))
    values = ValuesConfig(mode="bins", bins=2, carry=carry)
    return Vocabulary(kinds, codes, has, np.tile(np.linspace(0, 1, KNOTS), (n, 1)), np.zeros(n), np.ones(n), values)


def test_each_code_is_found_by_the_first_rule_that_applies() -> None:
    ours = vocabulary(("DX//A", "DX//A1", "LAB//X", "RX//NEW", "ZZ//LOST"), numeric=("LAB//X",), carry=True)
    theirs = vocabulary(("DX//A", "DX//UP", "LAB//Y", "RX//OLD"), numeric=("LAB//Y",), carry=True)
    match = match_vocabularies(
        ours,
        theirs,
        parents={"DX//A": ["DX//UP"], "DX//A1": ["DX//MID"], "DX//MID": ["DX//UP"]},
        our_descriptions={"LAB//X": "Creatinine, serum", "RX//NEW": "Aspirin 100", "DX//A1": "Same as old"},
        their_descriptions={"LAB//Y": "creatinine SERUM", "RX//OLD": "Aspirin 75", "DX//A": "Same as old"},
    )
    names = {
        name: (theirs.tokens[match.source[token]] if match.found[token] else None, REASONS[match.reason[token]])
        for token, name in enumerate(ours.tokens)
    }
    assert names["DX//A"] == ("DX//A", "name")
    assert names["DX//A1"] == ("DX//UP", "ancestor")  # before the description
    assert names["LAB//X"] == ("LAB//Y", "description")
    assert names["LAB//X//Q2"] == ("LAB//Y//Q2", "description")
    assert names["LAST//LAB//X"] == ("LAST//LAB//Y", "description")
    assert names["RX//NEW"] == (None, "none")
    assert names["[UNK//RX]"] == ("[UNK//RX]", "name")
    assert names["[UNK//ZZ]"] == (None, "none")
    weight = np.zeros(len(ours), dtype=np.int64)
    weight[[ours.index["DX//A"], ours.index["ZZ//LOST"]]] = 3, 1
    overlap = match.overlap(ours, weight)
    assert (overlap["name"], overlap["none"]["share"]) == ({"codes": 1, "share": 0.75}, 0.25)
    assert sum(each["codes"] for each in overlap.values()) == 5


def test_renamed_codes_with_their_descriptions_keep_their_vectors() -> None:
    old = tuple(f"DX//{k}" for k in range(30))
    new = tuple(f"LOCAL//{k:03d}" for k in range(30))
    text = {f"{k}": f"Disease number {k} of organ {k % 7}" for k in range(30)}
    match = match_vocabularies(
        vocabulary(new),
        vocabulary(old),
        parents={},
        our_descriptions={code: text[str(int(code.partition("//")[2]))] for code in new},
        their_descriptions={code: text[code.partition("//")[2]] for code in old},
    )
    found = match.source[[vocabulary(new).index[code] for code in new]]
    assert found.tolist() == [vocabulary(old).index[code] for code in old]


def test_the_same_words_in_another_order_are_the_same_description() -> None:
    """A word that one side adds to all says nothing; one that changes the meaning does."""
    old = tuple(f"DX//{k}" for k in range(10, 40))
    new = tuple(f"LOCAL//{k}" for k in range(10, 50))
    text = {k: f"Disease number {k} of organ {k % 7}" for k in range(10, 50)}
    match = match_vocabularies(
        vocabulary(new),
        vocabulary(old),
        parents={},
        our_descriptions={f"LOCAL//{k}": f"organ {k % 7}, disease number {k} NOS" for k in range(10, 50)},
        their_descriptions={f"DX//{k}": text[k] for k in range(10, 40)},
    )
    place = vocabulary(new).index
    found = {k: int(match.source[place[f"LOCAL//{k}"]]) for k in range(10, 50)}
    assert {k: found[k] for k in range(10, 40)} == {k: vocabulary(old).index[f"DX//{k}"] for k in range(10, 40)}
    assert all(found[k] == -1 for k in range(40, 50))  # the other site has no disease of that number
    reasons = {REASONS[int(match.reason[place[f"LOCAL//{k}"]])] for k in range(10, 40)}
    assert reasons == {"similar description"}


def test_the_strength_is_chosen_by_refits_without_each_code() -> None:
    """The leave-one-out error by its formula, beside 40 fits that each lack a code."""
    rng = np.random.default_rng(0)
    words = ["heart", "kidney", "failure", "acute", "chronic", "left", "injury", "of", "unspecified"]
    texts = [" ".join(rng.choice(words, 4)) for _ in range(40)]
    ngrams = Wording.of(texts).rows
    vectors = ngrams(texts) @ rng.normal(size=(1024, 3)) + 0.1 * rng.normal(size=(40, 3))
    fitted = DescriptionMap.fit(texts, vectors)
    assert fitted is not None
    x, y = ngrams(texts), vectors - vectors.mean(0)
    residual = np.zeros_like(y)
    for k in range(40):
        rest = np.delete(np.arange(40), k)
        gram = x[rest] @ x[rest].T + fitted.strength * np.eye(39)
        residual[k] = y[k] - x[k] @ x[rest].T @ np.linalg.solve(gram, y[rest])
    assert fitted.explained == pytest.approx(1 - np.square(residual).sum() / np.square(y).sum(), abs=1e-6)
    assert fitted.explained > 0.3
    dual = vectors.mean(0) + ngrams(["acute heart injury"]) @ x.T @ np.linalg.solve(
        x @ x.T + fitted.strength * np.eye(40), y
    )
    np.testing.assert_allclose(fitted(["acute heart injury"]), dual, atol=1e-8)


def test_descriptions_that_say_nothing_make_no_map() -> None:
    rng = np.random.default_rng(1)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    texts = ["".join(rng.choice(letters, 12)) for _ in range(60)]
    assert DescriptionMap.fit(texts, rng.normal(size=(60, 4))) is None
    assert DescriptionMap.fit(texts[:5], rng.normal(size=(5, 4))) is None
