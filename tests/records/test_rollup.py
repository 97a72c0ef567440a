"""Ontology roll-up: against a plain twin and by hand, broken rules, and the whole way into the prepared store."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ehrsequencing.config import StudyConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.vocabulary import UNK, Vocabulary
from ehrsequencing.records.vocabulary_fit import Parents, ancestors, fit_rollup
from helpers.cohorts import a_task
from helpers.meds import Row, load_arrays, record, stored_subjects, token_names, write_meds

Who = Mapping[str, set[int]]


def no(code: str) -> bool:
    return False


NODES = [f"N{n}" for n in range(9)]


@st.composite
def ontologies(draw: st.DrawFn) -> tuple[dict[str, set[int]], dict[str, list[str]], int]:
    """Draw an ontology without cycles (parents have smaller numbers), who has which code, and how many are enough."""
    parents = {}
    for n, node in enumerate(NODES):
        if n == 0 or draw(st.integers(0, 5)):
            parents[node] = draw(st.lists(st.sampled_from(NODES[:n]), max_size=2, unique=True)) if n else []
    who = st.sets(st.integers(0, 6), max_size=4)
    carriers = {node: draw(who) for node in [*NODES, "LONE"] if draw(st.booleans())}
    return carriers, parents, draw(st.integers(1, 5))


@given(ontologies())
def test_every_token_of_a_rollup_has_enough_subjects(drawn: tuple[Who, Parents, int]) -> None:
    carriers, parents, enough = drawn
    made = fit_rollup(carriers, parents=parents, enough=enough, excluded=no)
    at: dict[str, set[int]] = {}
    for code, who in carriers.items():
        at.setdefault(made.get(code, code), set()).update(who)
    for code, up in made.items():
        assert len(at[up]) >= enough, code
        assert up in ancestors(code, parents)


#: R ─ M ─ a, b;  R ─ c;  a frequent one below R: d. Three subjects are enough.
TREE = {"a": ["M"], "b": ["M"], "M": ["R"], "c": ["R"], "d": ["R"], "R": []}
HAND: list[tuple[str, dict[str, set[int]], dict[str, str]]] = [
    ("two siblings meet", {"a": {1, 2}, "b": {3}}, {"a": "M", "b": "M"}),
    (
        "the same people are not enough",
        {"a": {1, 2}, "b": {2}, "c": {3}},
        {"a": "R", "b": "R", "M": "R", "c": "R", "d": "R"},
    ),
    ("nearest first", {"a": {1, 2}, "b": {3}, "c": {4}}, {"a": "M", "b": "M"}),
    ("own subjects count at a node", {"a": {1}, "M": {2, 3}}, {"a": "M", "b": "M"}),
    ("a frequent ancestor takes what comes", {"a": {1}, "R": {4, 5, 6}}, dict.fromkeys("abMcd", "R")),
    ("a frequent code below lends nothing", {"c": {1, 2}, "d": {4, 5, 6}}, {}),
    ("nobody", {"a": set()}, {}),
]


@pytest.mark.parametrize(("carriers", "expected"), [case[1:] for case in HAND], ids=[case[0] for case in HAND])
def test_rollups_counted_by_hand(carriers: Who, expected: dict[str, str]) -> None:
    assert fit_rollup(carriers, parents=TREE, enough=3, excluded=no) == expected


def test_cycles_and_strange_ontologies_do_no_harm() -> None:
    parents = {"a": ["b"], "b": ["c"], "c": ["a", "R"], "d": ["d", "gone"], "R": []}
    made = fit_rollup({"a": {1}, "b": {2}, "d": {3}}, parents=parents, enough=2, excluded=no)
    assert set(made) == {"a", "b", "c"} - set(made.values())
    assert fit_rollup({"a": {1, 2}}, parents={"a": ["b"]}, enough=3, excluded=no) == {}
    parents = {"a": ["M"], "b": ["M"], "M": ["R"]}
    banned = fit_rollup({"a": {1}, "b": {2}}, parents=parents, enough=2, excluded=lambda code: code == "M")
    assert banned == {"a": "R", "b": "R"}


# ---- in the prepared store -------------------------------------------------------------------------------------------

PARENTS = {
    "DX//a": ["DX//M"],
    "DX//b": ["DX//M"],
    "DX//M": ["DX//R"],
    "DX//c": ["DX//R"],
    "LAB//x": ["LAB//R"],
    "LAB//y": ["LAB//R"],
    "LAB//R": [],
}


def hospital() -> list[Row]:
    """DX//a, DX//b and LAB//x have two training subjects each; DX//R five; LAB//R and LAB//y many, with numbers."""
    rows = []
    for s in range(12):
        text = "0 LAB//R=4, 0.25 LAB//y=5, 1 IDX, 2 A, 9 OUT"
        text += {
            0: ", 0.5 DX//a",
            1: ", 0.5 DX//a, - DX//b",
            2: ", 0.5 DX//b, 0.75 LAB//x=900",
            3: ", 0.5 LAB//x=900",
        }.get(s, "")
        rows += record(s, text + (", 0.5 DX//R" if s in (4, 5, 6) else ""))
    rows += record(20, "0 DX//b, 0.5 DX//c, 1 IDX, 2 DX//new, 3 LAB//x=7, 9 OUT")  # held out
    return rows


def made(tmp: Path, mode: str, *more: str, parents: dict[str, list[str]] | None = PARENTS) -> Path:
    splits = {s: "held_out" if s == 20 else "train" for s in (*range(12), 20)}
    data = write_meds(tmp / "data", hospital(), splits=splits, shards=2, parents=parents)
    config: StudyConfig = load_study(None, ["vocabulary.min_subjects=3", f"vocabulary.rollup={mode}", *more])
    prepare(data, tmp / "out", study=config, tasks=[a_task()])
    return tmp / "out"


def codes_of(store: Path, subject: int, visit: int) -> list[str]:
    return [name for name, _ in stored_subjects(store)[subject].codes[visit]]


def test_rare_codes_become_their_ancestor(tmp_path: Path) -> None:
    store = made(tmp_path, "on")
    assert codes_of(store, 0, 0) == ["DX//M", "LAB//R", "LAB//y"]
    assert stored_subjects(store)[1].static_codes == ["DX//M"]
    assert codes_of(store, 4, 0) == ["DX//R", "LAB//R", "LAB//y"]
    assert codes_of(store, 20, 0) == ["DX//M", "DX//R"]  # held out; DX//c: nobody had it, but R is frequent
    assert codes_of(store, 20, 2) == ["[UNK//DX]"]  # unknown to the ontology
    assert not {"DX//a", "DX//b", "LAB//x"} & set(token_names(store))
    numbers = {name: (rank, z) for name, rank, z in stored_subjects(store)[2].values[0]}
    assert set(numbers) == {"LAB//R", "LAB//y"}  # a number of LAB//x means nothing on the scale of LAB//R
    assert ("LAB//R", False) in stored_subjects(store)[2].codes[0]
    vocabulary = Prepared(store).vocabulary
    scale = vocabulary.scale[vocabulary.index["LAB//R"]]
    assert (vocabulary.knots[scale].min(), vocabulary.knots[scale].max()) == (4, 4)


def test_numbers_of_rolled_codes_are_not_carried(tmp_path: Path) -> None:
    """LAB//x becomes LAB//R, which has summaries; its own 900s are none of them."""
    on, off = made(tmp_path / "on", "on"), made(tmp_path / "off", "off")
    for name in ("carry_offsets", "carry_values"):
        arrays = [load_arrays(store / "tasks" / "t" / "train")[name] for store in (on, off)]
        np.testing.assert_array_equal(*arrays)
    held_out = load_arrays(on / "tasks" / "t" / "held_out")
    assert len(held_out["prediction_us"]) > 0
    assert len(held_out["carry_codes"]) == 0  # subject 20 has the number of LAB//x only


def test_a_rollup_is_fitted_on_training_subjects_only_and_travels_with_the_vocabulary(tmp_path: Path) -> None:
    store = made(tmp_path, "on")
    vocabulary = Prepared(store).vocabulary
    rows = [row for row in hospital() if row.subject != 20] + record(
        20, "0 DX//c, 0 DX//c, 1 IDX, 1 DX//a, 2 DX//a, 9 OUT"
    )
    data = write_meds(
        tmp_path / "other",
        rows,
        splits={s: "held_out" if s == 20 else "train" for s in (*range(12), 20)},
        parents=PARENTS,
    )
    config = load_study(None, ["vocabulary.min_subjects=3", "vocabulary.rollup=on"])
    prepare(data, tmp_path / "again", study=config, tasks=[a_task()])
    assert Prepared(tmp_path / "again").vocabulary.digest == vocabulary.digest
    vocabulary.save(tmp_path)
    read = Vocabulary.load(tmp_path)
    assert read.rollup == vocabulary.rollup
    assert read.digest == vocabulary.digest
    plain = made(tmp_path / "off", "off")
    assert Prepared(plain).vocabulary.digest != vocabulary.digest
    codes = ("DX//a", "DX//c", "LAB//x", "DX//other", "A")
    names = [vocabulary.tokens[i] for i in vocabulary.ids(codes)]
    assert names == ["DX//M", "DX//R", "LAB//R", "[UNK//DX]", "A"]
    assert vocabulary.is_unknown(vocabulary.ids(codes)).tolist() == [name.startswith(UNK[:-1]) for name in names]


def test_a_rollup_needs_an_ontology(tmp_path: Path) -> None:
    for n, parents in enumerate((None, {"DX//a": []})):
        with pytest.raises(EhrseqError, match=r"names no parents of codes.*parent_codes"):
            made(tmp_path / str(n), "on", parents=parents)
        assert not (tmp_path / str(n) / "out").exists()


def test_holes_in_an_ontology_are_no_parents(tmp_path: Path) -> None:
    holes: dict[str, Any] = {**PARENTS, "DX//a": [None, "DX//M", ""], "DX//new": [None]}
    store, whole = made(tmp_path / "a", "on", parents=holes), made(tmp_path / "b", "on")
    assert (store / "vocabulary.json").read_bytes() == (whole / "vocabulary.json").read_bytes()
