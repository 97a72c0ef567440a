"""The order of imported rows against Python's own sort, packed or not; and combinations of values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.readers import rows as reader_rows
from ehrsequencing.readers.rows import NO_TIME, combinations, ordered_rows
from helpers.settings import examples

ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([NO_TIME, -5_000_000, 0, 1, 3_000_000]),
        st.integers(0, 2),
        st.sampled_from([None, -2.5, -1.0, 0.0, 7.25]),
        st.sampled_from([None, "a", "b", "é"]),
        st.sampled_from([None, 3, -1]),
    ),
    max_size=25,
)


def order_of(rows: Sequence[tuple[Any, ...]], lost: Sequence[bool] | None = None) -> list[int]:
    """The order of rows, each made of a row of its own."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(6)]
    subject, time_us, code = (np.array(column, dtype=np.int64) for column in columns[:3])
    types = {"value": pa.float32(), "text": pa.large_string(), "encounter": pa.int64()}
    rest = {name: pa.array(column, types[name]) for name, column in zip(types, columns[3:], strict=True)}
    removed = np.zeros(len(rows), dtype=bool) if lost is None else np.array(lost, dtype=bool)
    every, dated = np.arange(len(rows)), np.zeros(len(rows), dtype=bool)
    return ordered_rows((subject, time_us, code), rest, every, (every, dated, removed)).tolist()


def expected(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """The first of each of the equal rows, sorted with null last."""

    def key(place: int) -> tuple[Any, ...]:
        first, rest = rows[place][:3], rows[place][3:]
        return (*first, *((value is None, 0 if value is None else value) for value in rest))

    first = {key(place): place for place in reversed(range(len(rows)))}
    return [first[one] for one in sorted(first)]


@pytest.mark.parametrize("most", [1 << 62, 4])
@given(rows=ROWS, data=st.data())
@settings(max_examples=examples(240), deadline=None)
def test_rows_are_sorted_and_said_once(most: int, rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    """Also where next to nothing can be packed; a row that lost its encounter goes where another has one."""
    drawn = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    lost = [removed and row[5] is None for row, removed in zip(rows, drawn, strict=True)]
    others = {row[:5] for row, removed in zip(rows, lost, strict=True) if not removed}
    left = [place for place, row in enumerate(rows) if not (lost[place] and row[:5] in others)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_rows, "_MANY", most)
        assert order_of(rows) == expected(rows)
        assert order_of(rows, lost) == [left[at] for at in expected([rows[place] for place in left])]


def test_times_that_do_not_fit_are_not_packed() -> None:
    assert order_of([(7, 10**18 + 1, 2, None, None, None), (0, -(10**18), 0, None, None, None)]) == [1, 0]


@given(rows=st.lists(st.tuples(*(st.sampled_from([None, 1, 2, 3]) for _ in range(3))), max_size=25), many=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_combinations_are_those_of_the_rows(rows: list[tuple[Any, ...]], many: bool) -> None:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_rows, "_MANY", 4 if many else reader_rows._MANY)  # keys are numbered again in between
        few, place = combinations(
            {
                name: pa.chunked_array([pa.array(column, pa.int64())])
                for name, column in zip("abc", columns, strict=True)
            }
        )
    made = [tuple(row.values()) for row in few.to_pylist()]
    assert [made[at] for at in place] == rows
    assert len(set(made)) == len(made) <= max(len(rows), 1)
