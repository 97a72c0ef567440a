"""The order of imported rows against Python's own sort, packed or not; combinations of values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ehrsequencing.readers import row_order
from ehrsequencing.readers import rows as reader_rows
from ehrsequencing.readers.row_order import Keys, ordered_rows
from ehrsequencing.readers.rows import combinations

STATIC = np.iinfo(np.int64).min
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([STATIC, -5_000_000, 0, 1, 3_000_000]),
        st.integers(0, 2),
        st.sampled_from([None, -2.5, -1.0, 0.0, 7.25]),
        st.sampled_from([None, "a", "b", "é"]),
        st.sampled_from([None, 3, -1]),
    ),
    max_size=25,
)


def keys_of(rows: Sequence[tuple[Any, ...]], lost: Sequence[bool] | None = None) -> Keys:
    """Keys of rows, each made of a row of its own."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(6)]
    subject, time_us, code = (np.array(column, dtype=np.int64) for column in columns[:3])
    types = (pa.float32(), pa.large_string(), pa.int64())
    rest = [pa.array(column, kind) for column, kind in zip(columns[3:], types, strict=True)]
    removed = np.zeros(len(rows), dtype=bool) if lost is None else np.array(lost, dtype=bool)
    none = np.zeros(len(rows), dtype=bool)
    return Keys(subject, time_us, code, *rest, removed, np.arange(len(rows)), np.arange(len(rows)), none)


def expected(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """The first of each of the equal rows, sorted with null last."""

    def key(place: int) -> tuple[Any, ...]:
        first, rest = rows[place][:3], rows[place][3:]
        return (*first, *((value is None, 0 if value is None else value) for value in rest))

    first = {key(place): place for place in reversed(range(len(rows)))}
    return [first[one] for one in sorted(first)]


@pytest.mark.parametrize("bits", [63, 0])
@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_rows_are_sorted_and_said_once(bits: int, rows: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_order, "_KEY_BITS", bits)  # with 0, nothing can be packed
        assert ordered_rows(keys_of(rows)).tolist() == expected(rows)


@given(rows=ROWS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_that_lost_its_encounter_is_said_once_with_those_that_have_one(
    rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    lost = [removed and row[5] is None for row, removed in zip(rows, drawn, strict=True)]
    others = {row[:5] for row, removed in zip(rows, lost, strict=True) if not removed}
    left = [place for place, row in enumerate(rows) if not (lost[place] and row[:5] in others)]
    assert ordered_rows(keys_of(rows, lost)).tolist() == [left[at] for at in expected([rows[place] for place in left])]


def test_times_that_do_not_fit_are_not_packed() -> None:
    far = [(0, -(10**18), 0, None, None, None), (7, 10**18 + 1, 2, None, None, None)]
    assert ordered_rows(keys_of(far)).tolist() == [0, 1]


@given(rows=st.lists(st.tuples(*(st.sampled_from([None, 1, 2, 3]) for _ in range(3))), max_size=25), many=st.booleans())
@settings(max_examples=50, deadline=None)
def test_combinations_are_those_of_the_rows(rows: list[tuple[Any, ...]], many: bool) -> None:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_rows, "_MANY", 4 if many else reader_rows._MANY)  # keys are numbered again in between
        few, place = combinations({
            name: pa.chunked_array([pa.array(column, pa.int64())]) for name, column in zip("abc", columns, strict=True)
        })  # fmt: skip
    made = [tuple(row.values()) for row in few.to_pylist()]
    assert [made[at] for at in place] == rows
    assert len(set(made)) == len(made) <= max(len(rows), 1)


def test_mutants_of_the_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, texts or repeats left out of the order fail the first test on rows that Hypothesis would find."""
    same = (0, 0, 0)
    cases = {
        "value": [(*same, 7.25, None, None), (*same, -1.0, None, None), (*same, None, None, None)],
        "text": [(*same, None, "b", None), (*same, None, "a", None), (*same, None, None, 3)],
    }
    for rows in cases.values():
        assert ordered_rows(keys_of(rows)).tolist() == expected(rows)
        with monkeypatch.context() as patch:
            patch.setattr(row_order, "ranks", lambda column: np.zeros(len(column), dtype=np.int64))
            assert ordered_rows(keys_of(rows)).tolist() != expected(rows)
