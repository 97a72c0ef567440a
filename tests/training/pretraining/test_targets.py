"""What follows each visit, beside a slow reference in plain Python; and batches of whole records."""

import math

import numpy as np
from hypothesis import given, settings, strategies as st

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.batches.reach import Reach
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.pretraining.targets import TargetCodes, times_to_codes, visit_rows
from helpers.visits import Record, timelines_of

NUMBER = np.array([-1, -1, 0, 1, 2, -1, 1])  # of tokens 0 … 6: 5 is excluded, 6 is a joint token of 3's code
CODES = TargetCodes(np.array([2, 3, 4]), NUMBER)
RANKS = st.sampled_from([math.nan, -1.5, 0.25, 1.0])
VISITS = st.lists(st.tuples(st.integers(1, 6), RANKS), max_size=4).map(tuple)


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    found: list[Record] = []
    for _ in range(draw(st.integers(1, 4))):
        gaps = draw(st.lists(st.sampled_from([0.5, 3.0, 400.0]), max_size=5))
        found.append(tuple((float(day), draw(VISITS)) for day in np.cumsum(gaps)))
    return found


def targets_of(codes: tuple[tuple[int, float], ...]) -> dict[int, float]:
    """Target code → its last number in a visit."""
    out: dict[int, float] = {}
    for token, rank in codes:
        code = int(NUMBER[token])
        if code >= 0 and (not math.isnan(rank) or code not in out):
            out[code] = rank
    return out


@settings(max_examples=40)
@given(some_records())
def test_what_comes_is_what_a_slow_reader_finds(records: list[Record]) -> None:
    timelines = timelines_of(records)
    found = times_to_codes(timelines, np.arange(len(timelines.end_us)), CODES)
    expected: dict[tuple[int, int], float] = {}
    stops: list[float] = []
    for record in records:
        for place, (day, _) in enumerate(record[:-1]):
            for later, codes in reversed(record[place + 1 :]):  # the first one is written last
                expected |= {(len(stops), code): later - day for code in targets_of(codes)}
            stops.append(record[-1][0] - day)
    pairs = list(zip(found.row.tolist(), found.code.tolist(), strict=True))
    assert pairs == sorted(expected)
    np.testing.assert_allclose(found.days, [expected[pair] for pair in pairs], rtol=1e-6)
    np.testing.assert_allclose(found.stop_days, stops, rtol=1e-6)


def test_a_cut_of_the_record_changes_no_target() -> None:
    """The parts of a long record ask about some visits at a time."""
    rng = np.random.default_rng(0)
    record: Record = tuple(
        (float(day), tuple((int(t), float(r)) for t, r in zip(rng.integers(1, 7, 3), rng.normal(size=3), strict=True)))
        for day in range(40)
    )
    timelines = timelines_of([record])
    loader = SubjectLoader(TaskRecords(timelines, visit_rows(timelines)), reach=Reach(layers=1, window=4))
    whole = times_to_codes(timelines, np.arange(40), CODES)
    rows: list[int] = []
    for step in loader.steps(np.array([0]), visit_budget=8):
        part = times_to_codes(timelines, step.rows, CODES)
        mine = np.isin(whole.chosen, step.rows)
        assert np.array_equal(step.rows[part.chosen], whole.chosen[mine])
        assert np.array_equal(part.days, whole.days[mine[whole.row]])
        assert step.batch.codes_per_visit[step.positions].tolist() == [3] * len(step.rows)
        rows += step.rows.tolist()
    assert rows == list(range(40))
