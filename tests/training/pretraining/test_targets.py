"""What follows each visit, beside a slow reference in plain Python; and batches of whole records."""

import math

import numpy as np
from hypothesis import given, settings, strategies as st

from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.pretraining.targets import (
    TargetCodes,
    _by_ontology,
    near_synonyms,
    target_codes,
    times_to_codes,
    visit_rows,
)
from helpers.visits import Record, timelines_of, vocabulary_of

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


# ---- which codes are no targets for a task: the outcome's own, its relatives, and what stands beside it --------------


NAN = math.nan


def test_relatives_are_all_ancestors_and_descendants_of_the_outcome() -> None:
    known = vocabulary_of("I21", "I21.0", "I21.01", "I2", "I25", "X", "LAB")
    parents = {
        "I21.01": ["I21.0"],
        "I21.0": ["I21"],
        "I21": ["I2"],
        "I25": ["I2"],
        "I2": ["I"],
        "I": ["I2"],
    }  # a circle

    def named(*patterns: str) -> tuple[set[str], set[str]]:
        own, relatives = _by_ontology(patterns, known, parents)
        return {known.tokens[t] for t in own}, {known.tokens[t] for t in relatives} - {known.tokens[t] for t in own}

    assert named("I21.0") == ({"I21.0"}, {"I21.01", "I21", "I2"})
    assert named("I21*") == ({"I21", "I21.0", "I21.01"}, {"I2"})  # I25 is a sibling, and stays
    assert named("under:I21") == ({"I21", "I21.0", "I21.01"}, {"I2"})
    assert named("LAB >= 6.5") == ({"LAB"}, set())  # the code, whatever its number


def test_near_synonyms_stand_beside_the_outcome_in_most_subjects() -> None:
    """Its other name and what follows at once are; what is everyday, rare or two days later is not."""
    known = vocabulary_of("TWIN", "STENT", "VISIT", "RARE", "LATER")
    everyday = ((4, NAN),)
    ill: Record = ((0.0, everyday), (100.0, ((2, NAN), (3, NAN), *everyday)), (102.0, ((6, NAN),)), (300.0, everyday))
    rare: Record = (*ill[:1], (100.0, ((5, NAN), *ill[1][1])), *ill[2:])
    well: Record = ((0.0, everyday), (50.0, ((3, NAN),)), (90.0, everyday))
    people = [rare, *[ill] * 7, *[well] * 9]
    timelines = timelines_of(people)
    rows = visit_rows(timelines)
    event = rows.prediction_us == 0
    event[timelines.subject_offsets[8] :] = False  # the first eight have the outcome on day 100
    duration = np.where(event, 100.0, 400.0)
    labelled = TaskRecords(
        timelines, rows.__class__(**{**rows.__dict__, "cause": event.astype(np.int8), "duration_days": duration})
    )
    found = near_synonyms(labelled, known, causes=1)
    assert [known.tokens[t] for t in found] == ["TWIN", "STENT"]
    none = TaskRecords(timelines, rows)
    assert len(near_synonyms(none, known, causes=1)) == 0
    assert rows.prediction_us.max() == round(300 * DAY_US)


def test_targets_are_codes_that_are_not_excluded_and_their_bins() -> None:
    known = vocabulary_of("A", "B", "C", numeric=("A", "B"), carry=True)
    codes = target_codes(known, np.array([known.index["B"]]))
    names = {known.tokens[token]: int(number) for token, number in enumerate(codes.number)}
    assert [known.tokens[t] for t in codes.tokens] == ["A", "C"]
    assert {name for name, number in names.items() if number == 0} == {"A", "A//Q1", "A//Q2"}
    assert {name for name, number in names.items() if number == 1} == {"C"}
