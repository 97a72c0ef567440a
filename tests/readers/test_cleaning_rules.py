"""Which rows belong to their visit: those of its days and of the day before and after; what was known only later."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.readers import rows as reader_rows
from ehrsequencing.readers.rows import NO_TIME, Role, combinations, ordered_rows
from helpers.cleaning import DAY, SECOND, Row, cleaned_person
from helpers.settings import examples

START, END = dt.datetime(2011, 5, 3, 22), dt.datetime(2011, 5, 6, 10)


def visit(end: dt.datetime | None = END, start: dt.datetime = START) -> Row:
    return {"role": Role.VISIT, "time": start, "end": end, "code": "VISIT", "encounter_id": 7}


def event(time: dt.datetime, role: Role = Role.EVENT, end: dt.datetime | None = None, code: str = "X") -> Row:
    return {"role": role, "time": time, "end": end, "code": code, "encounter_id": 7}


def of_code(rows: list[Row], code: str = "X") -> list[tuple[dt.datetime, int | None]]:
    return [(row["time"], row["encounter_id"]) for row in rows if row["code"] == code]


OUTSIDE = [dt.datetime(2011, 5, 1, 23, 59), dt.datetime(2011, 5, 1), dt.datetime(2011, 5, 8), dt.datetime(2012, 1, 1)]


@pytest.mark.parametrize("time", OUTSIDE)
@pytest.mark.parametrize("role", [Role.EVENT, Role.SPAN])
def test_rows_far_from_their_visit_lose_it(time: dt.datetime, role: Role) -> None:
    rows, counts = cleaned_person(visit(), event(time, role))
    assert [encounter for _, encounter in of_code(rows)] == [None]
    assert counts["outside_visit"] == 1
    rows, counts = cleaned_person(event(time, role), visit(), visit(time))  # several rows of one visit are one span
    assert [encounter for _, encounter in of_code(rows)] == [7 if time > END else None]


def test_a_stay_on_a_ward_that_ends_long_after_the_visit_does_not_stretch_it() -> None:
    rows, _ = cleaned_person(visit(), event(START, Role.SPAN, END + 9 * DAY))
    assert of_code(rows, "X//END") == [(END + 9 * DAY, None)]


@pytest.mark.parametrize("end", [None, START - 2 * DAY])
def test_a_visit_without_a_valid_end_may_go_on(end: dt.datetime | None) -> None:
    rows, counts = cleaned_person(visit(end), event(START + 40 * DAY), event(START - 2 * DAY))
    assert of_code(rows) == [(START - 2 * DAY, None), (START + 40 * DAY, 7)]
    assert counts["outside_visit"] == 1


def test_a_row_that_lost_its_visit_is_not_said_twice() -> None:
    far = END + 30 * DAY
    other = {**visit(far, far - DAY), "encounter_id": 8}
    rows, counts = cleaned_person(visit(), other, event(far), {**event(far), "encounter_id": 8})
    assert of_code(rows) == [(far, 8)]
    assert counts["duplicates"] == 1


REPORTED = [  # first and last day on which it began, when it was known
    ((dt.datetime(2009, 3, 1), None), END),
    ((dt.datetime(2011, 5, 3, 21), None), END),
    ((dt.datetime(2011, 5, 1), dt.datetime(2011, 5, 31)), END),  # in May
    ((dt.datetime(2011, 5, 3), None), dt.datetime(2011, 5, 3, 23, 59, 59)),
    ((dt.datetime(2011, 5, 4, 9), None), dt.datetime(2011, 5, 4, 9)),
]


@pytest.mark.parametrize(("began", "known"), REPORTED)
def test_what_began_before_its_visit_was_known_by_the_visits_end(
    began: tuple[dt.datetime, dt.datetime | None], known: dt.datetime
) -> None:
    rows, counts = cleaned_person(visit(), event(began[0], Role.REPORTED, began[1]))
    assert of_code(rows) == [(known, 7)]
    assert counts["began_before"] == (known == END)


def test_without_a_visit_it_was_known_when_it_had_begun() -> None:
    row = event(dt.datetime(2009, 1, 1), Role.REPORTED, dt.datetime(2009, 12, 31))
    rows, counts = cleaned_person({**row, "encounter_id": None}, {**row, "encounter_id": 9, "code": "Y"})
    assert of_code(rows) == of_code(rows, "Y") == [(dt.datetime(2009, 12, 31, 23, 59, 59), None)]
    assert not counts["began_before"]


TIMES = st.builds(lambda days, hours: START + days * DAY + hours * dt.timedelta(hours=1), *[st.integers(-4, 4)] * 2)


@given(st.lists(st.tuples(TIMES, st.none() | TIMES), min_size=1, max_size=3), TIMES)
@settings(max_examples=100, deadline=None)
def test_bounds_beside_plain_dates(spans: list[tuple[dt.datetime, dt.datetime | None]], time: dt.datetime) -> None:
    rows, _ = cleaned_person(*(visit(end, start) for start, end in spans), event(time))

    def late(time: dt.datetime) -> dt.datetime:
        return time + DAY - SECOND if time.time() == dt.time(0) else time

    valid = [late(end) for start, end in spans if end is not None and late(end) >= start]
    ends = [*valid, *(s for s, end in spans if end is None or late(end) < s)]
    near = time.date() >= min(start for start, _ in spans).date() - DAY
    near &= not valid or time.date() <= max(ends).date() + DAY
    assert [encounter for _, encounter in of_code(rows)] == [7 if near else None]


# ---- The order of imported rows against Python's own sort, packed or not; and combinations of values ----


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
