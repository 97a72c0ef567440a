"""What is stored of numbers tells nothing of single people: against plain loops, by hand, and on real records."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import load_study
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.scales import Scale, fit_scale
from ehrsequencing.records.vocabulary import SUMMARIES, Vocabulary
from helpers.meds import DAY_US, Row, us, write_meds
from helpers.settings import examples
from reference import scales as twin

Pairs = list[tuple[float, int]]


def fitted(pairs: Pairs, enough: int) -> Scale | None:
    value, owner = (np.array([pair[k] for pair in pairs]) for k in (0, 1))
    return fit_scale(value.astype(np.float64), owner.astype(np.uint32), enough=enough)


few_values = st.integers(-3, 3).map(float)
float32 = st.floats(-1e4, 1e4, width=32)
some_pairs = st.lists(st.tuples(few_values | float32, st.integers(0, 9)), min_size=1, max_size=60)


@settings(max_examples=examples(800), deadline=None)
@given(pairs=some_pairs, enough=st.integers(1, 6), shuffle=st.randoms())
def test_scales_are_those_of_plain_loops(pairs: Pairs, enough: int, shuffle: "st.random.Random") -> None:
    found, expected = fitted(pairs, enough), twin.scale(pairs, enough)
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return
    knots, mean, sd = expected
    np.testing.assert_allclose(found.knots, knots, rtol=3e-7, atol=1e-9)
    np.testing.assert_allclose([found.mean, found.sd], [mean, sd], rtol=3e-7, atol=3e-4)
    assert (np.diff(found.knots) >= 0).all()
    shuffle.shuffle(pairs)
    again = fitted(pairs, enough)
    assert again is not None
    assert (again.knots.tolist(), again.mean, again.sd) == (found.knots.tolist(), found.mean, found.sd)


@settings(max_examples=examples(800), deadline=None)
@given(pairs=some_pairs, enough=st.integers(2, 6))
def test_no_stored_number_is_that_of_a_few_people(pairs: Pairs, enough: int) -> None:
    found = fitted(pairs, enough)
    if found is None:
        assert len({who for _, who in pairs}) < enough
        return
    for number in {*found.knots.tolist(), found.mean, *([found.sd] if found.sd != 1.0 else [])}:
        assert len({who for value, who in pairs if value == number}) in {0, *range(enough, 11)}


@settings(max_examples=100, deadline=None)
@given(pairs=some_pairs, enough=st.integers(2, 6), person=st.integers(0, 9), more=st.integers(1, 40))
def test_a_number_that_is_measured_again_and_again_is_one_persons(
    pairs: Pairs, enough: int, person: int, more: int
) -> None:
    """One person's many equal values never make a value shared: the same numbers of people are behind every group."""
    once = [pair for pair in pairs if pair[1] != person] + [(7.25, person)]
    often = once + [(7.25, person)] * more
    assert [g.shared for g in twin.groups(once, enough)] == [g.shared for g in twin.groups(often, enough)]
    found = fitted(often, enough)
    if found is not None:
        assert 7.25 not in found.knots or len({w for v, w in once if v == 7.25}) >= enough


# ---- from records to the store ---------------------------------------------------------------------------------------


def ward(*, lab: Callable[[int, int], float], people: int = 12) -> list[Row]:
    start = us("2015-01-01")
    return [
        Row(who, start + (who + 3 * k) * DAY_US, "LAB//A", lab(who, k))
        for who in range(people)
        for k in range(who % 4 + 1)
    ]


def vocabulary_of(tmp: Path, rows: list[Row], *settings: str, held_out: tuple[int, ...] = ()) -> Vocabulary:
    splits = {row.subject: "held_out" if row.subject in held_out else "train" for row in rows}
    data = write_meds(tmp / "data", rows, splits=splits, shards=3)
    prepare(data, tmp / "set", study=load_study(None, settings), tasks=[])
    return Prepared(tmp / "set").vocabulary


def test_nothing_of_a_few_people_gets_into_the_store(tmp_path: Path) -> None:
    """A prefix, a code and numbers of four training subjects, however often; and of any number of held-out ones."""
    start, rows = us("2016-01-01"), ward(lab=lambda who, k: 50.0 + 7 * who + k / 8)
    for who in range(20, 40):  # held out
        rows += [Row(who, start, "SECRET//PLANTED"), Row(who, start, "LAB//SECRET", 3.5)]
    for who in range(4):
        rows += [
            Row(who, start + k, code, 77.0 + who) for k in range(100) for code in ("FEW//SECRET", "FEW//B", "LAB//B")
        ]
    rows += [Row(who, start + 7, "LAB//B") for who in range(12)]  # a code of all, its numbers of four
    rows += [Row(who, start + 8, f"ALL//{who}") for who in range(12)]  # rare codes of a common type
    found = vocabulary_of(tmp_path, rows, "vocabulary.min_subjects=5", held_out=tuple(range(20, 40)))
    assert found.kinds == ("ALL", "LAB")
    assert found.codes == ("LAB//A", "LAB//B")
    assert found.has_numbers.tolist() == [True, False]
    assert len(found) == 2 + 2 + 2 + len(SUMMARIES)
    text = b"".join(path.read_bytes() for path in (tmp_path / "set").glob("*.*"))
    assert b"SECRET" not in text
    assert b"FEW" not in text
    values = {np.float64(np.float32(row.value)) for row in rows if row.value is not None}
    assert not values & {*found.knots[0].tolist(), *found.mean.tolist(), *found.sd.tolist()}
    lab_a = [row.value for row in rows if row.code == "LAB//A" and row.value is not None]
    assert min(lab_a) < found.knots[0, 0] < found.knots[0, -1] < max(lab_a)
