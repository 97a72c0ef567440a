"""What follows each visit, beside a slow reference in plain Python; and batches of whole records."""

import math

import numpy as np
from hypothesis import given, settings, strategies as st

from ehrsequencing.training.pretraining.targets import TargetCodes, times_to_codes
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
