"""History features equal plain loops on ragged records, and nothing after a prediction time moves them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import ValuesConfig
from ehrsequencing.core.arrays import offsets
from ehrsequencing.predictors import history
from ehrsequencing.predictors.history import OF_NUMBER, TIMING, FeatureSpec, fit_feature_spec, history_features
from ehrsequencing.records.events import DAY_US
from ehrsequencing.records.timelines import TaskRecords, TaskRows, Timelines
from ehrsequencing.records.vocabulary import Vocabulary
from helpers.settings import examples

Features = Callable[[TaskRecords, Vocabulary, FeatureSpec], npt.NDArray[np.float32]]
# (code, value) of each visit; days between visits; quarter days that each lasts; static codes
Subject = tuple[list[list[tuple[int, float]]], list[int], list[int], list[int]]
TOKENS = ("[PAD]", "[UNK]", "[UNK//LAB]", "DX//1", "DX//2", "LAB//X", "LAB//Y", "GENDER//F", "GENDER//M")
NUMERIC, PLAIN, STATIC = (5, 6), (1, 2, 3, 4), (7, 8)
ALL_CODES = FeatureSpec(
    codes=(3, 4, 5, 6),
    numeric=NUMERIC,
    static_codes=STATIC,
    names=(
        *TIMING,
        "static GENDER//F",
        "static GENDER//M",
        *(f"{s} {c}" for c in ("DX//1", "DX//2") for s in ("count", "days_since")),
        *(f"{s} {c}" for c in ("LAB//X", "LAB//Y") for s in ("count", "days_since", *OF_NUMBER)),
        *(f"{s} {c}" for c in ("DX//1 + DX//2", "DX//2 + LAB//X") for s in ("count", "days_since")),
    ),
    pairs=((3, 4), (4, 5)),
)


def vocabulary(mode: str = "polynomial") -> Vocabulary:
    numeric = np.isin(np.arange(3, len(TOKENS)), NUMERIC)
    knots = np.tile(np.linspace(0.0, 1.0, 129), (2, 1))
    values = ValuesConfig.model_validate({"mode": mode, "carry": False})
    return Vocabulary(("LAB",), TOKENS[3:], numeric, knots, np.zeros(2), np.ones(2), values)


def build(subjects: list[Subject]) -> Timelines:
    """Timelines of subjects."""
    counts, start, end, tokens, sizes, static = [], [], [], [], [], []
    for visits, gaps, lengths, still in subjects:
        clock = 0
        for visit, gap, length in zip(visits, gaps, lengths, strict=False):
            clock += gap * DAY_US
            start.append(clock)
            clock += length * DAY_US // 4
            end.append(clock)
            tokens += visit
            sizes.append(len(visit))
        counts.append(len(visits))
        static.append(still)
    delta = np.r_[0.0, (np.array(start[1:]) - np.array(end[:-1])) / DAY_US] if start else np.zeros(0)
    subject_offsets = np.r_[0, np.cumsum(counts)].astype(np.int64)
    delta[subject_offsets[:-1][np.diff(subject_offsets) > 0]] = 0.0
    numbers = np.array([value for _, value in tokens], np.float32)
    return Timelines(
        subject_id=np.arange(len(subjects)),
        birth_us=np.zeros(len(subjects), np.int64),
        subject_offsets=subject_offsets,
        start_us=np.array(start, np.int64),
        end_us=np.array(end, np.int64),
        age_years=np.full(len(start), 50, np.float32),
        delta_days=delta.astype(np.float32),
        visit_offsets=np.r_[0, np.cumsum(sizes)].astype(np.int64),
        codes=np.array([code for code, _ in tokens], np.int32),
        values=np.stack([numbers, numbers], axis=1),
        static_codes=np.array([c for still in static for c in still], np.int32),
        static_offsets=np.r_[0, np.cumsum([len(still) for still in static])].astype(np.int64),
    )


def every_moment(timelines: Timelines) -> TaskRows:
    """One row at each visit's end and a query a quarter of a day before the first and after each visit."""
    owner, moment, query, before = [], [], [], []
    for s in range(len(timelines)):
        first, last = timelines.subject_offsets[s : s + 2].tolist()
        owner += [s] * (1 + 2 * (last - first))
        moment.append(-DAY_US // 4)
        query.append(True)
        before.append(0)
        for v in range(first, last):
            moment += [int(timelines.end_us[v]), int(timelines.end_us[v]) + DAY_US // 4]
            query += [False, True]
            before += [v - first + 1] * 2
    n = len(owner)
    return TaskRows(
        row_offsets=offsets(np.array(owner, np.int64), len(timelines)),
        prediction_us=np.array(moment, np.int64),
        index_us=np.zeros(n, np.int64),
        is_query=np.array(query),
        visits_before=np.array(before, np.int32),
        age_years=np.linspace(20, 80, n, dtype=np.float32),
        delta_days=np.zeros(n, np.float32),
        unfinished_codes=np.zeros(n, np.int32),
        duration_days=np.full(n, 9.0),
        entry_days=np.zeros(n, np.float32),
        cause=np.zeros(n, np.int8),
        carry_offsets=np.zeros(n + 1, np.int64),
        carry_codes=np.zeros(0, np.int32),
        carry_values=np.zeros((0, 2), np.float32),
    )


@st.composite
def records(draw: st.DrawFn) -> Timelines:
    """Ragged records: subjects without visits, visits without codes, codes without numbers, numbers that tie."""
    value = st.sampled_from([float("nan"), -1.5, 0.0, 0.25, 1.75])
    numeric = st.tuples(st.sampled_from(NUMERIC), value)
    plain = st.tuples(st.sampled_from(PLAIN), st.just(float("nan")))
    visit = st.lists(st.one_of(numeric, plain), max_size=5)
    subject = st.tuples(
        st.lists(visit, max_size=6),
        st.lists(st.integers(1, 40), min_size=6, max_size=6),
        st.lists(st.integers(0, 3), min_size=6, max_size=6),
        st.lists(st.sampled_from(STATIC), unique=True),
    )
    return build(draw(st.lists(subject, min_size=1, max_size=5)))


def plain_loops(timelines: Timelines, rows: TaskRows, row: int) -> dict[str, float]:
    """Every feature of one row, by the definitions."""
    now = int(rows.prediction_us[row])
    (subject,) = (s for s in range(len(timelines)) if rows.row_offsets[s] <= row < rows.row_offsets[s + 1])
    first, last = timelines.subject_offsets[subject : subject + 2].tolist()
    known = [v for v in range(first, last) if timelines.end_us[v] <= now]
    static = timelines.static_codes[slice(*timelines.static_offsets[subject : subject + 2])].tolist()
    out = dict.fromkeys(ALL_CODES.names, float("nan"))
    out |= {"age_years": float(rows.age_years[row]), "days_since_index": (now - int(rows.index_us[row])) / DAY_US}
    out |= {"visits": float(len(known)), "is_query": float(rows.is_query[row])}
    out |= {f"static {TOKENS[code]}": float(code in static) for code in STATIC}
    if known:
        out["days_since_visit"] = (now - int(timelines.end_us[known[-1]])) / DAY_US
    if len(known) > 1:
        out["days_between_visits"] = int(timelines.start_us[known[-1]] - timelines.end_us[known[-2]]) / DAY_US
    for code in ALL_CODES.codes:
        name = TOKENS[code]
        seen = [
            (v, float(timelines.values[k, 0]))
            for v in known
            for k in range(*timelines.visit_offsets[v : v + 2].tolist())
            if timelines.codes[k] == code
        ]
        out[f"count {name}"] = float(len(seen))
        if seen:
            out[f"days_since {name}"] = (now - int(timelines.end_us[seen[-1][0]])) / DAY_US
        numbers = [value for _, value in seen if value == value]
        if numbers and code in NUMERIC:
            summaries = (numbers[-1], sum(numbers) / len(numbers), min(numbers), max(numbers))
            out |= {f"{s} {name}": value for s, value in zip(OF_NUMBER, summaries, strict=True)}
    for first_code, second_code in ALL_CODES.pairs:
        name = f"{TOKENS[first_code]} + {TOKENS[second_code]}"
        held = [
            v
            for v in known
            if {first_code, second_code} <= set(timelines.codes[slice(*timelines.visit_offsets[v : v + 2])].tolist())
        ]
        out[f"count {name}"] = float(len(held))
        if held:
            out[f"days_since {name}"] = (now - int(timelines.end_us[held[-1]])) / DAY_US
    return out


def features(records: TaskRecords, vocab: Vocabulary, spec: FeatureSpec) -> npt.NDArray[np.float32]:
    return history_features(records, chosen=np.arange(len(records)), columns=spec)


def all_visits(records: TaskRecords, vocab: Vocabulary, spec: FeatureSpec) -> npt.NDArray[np.float32]:
    """The mutant: every row sees its subject's whole record."""
    whole = np.diff(records.timelines.subject_offsets)[records.rows.subject].astype(np.int32)
    return features(replace(records, rows=replace(records.rows, visits_before=whole)), vocab, spec)


@given(timelines=records(), chunk=st.sampled_from([1, 7, 10**6]))
@settings(max_examples=examples(160), deadline=None)
def test_features_equal_plain_loops(timelines: Timelines, chunk: int) -> None:
    rows = every_moment(timelines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "CHUNK_ITEMS", chunk)
        found = features(TaskRecords(timelines, rows), vocabulary(), ALL_CODES)
    for row in range(len(rows)):
        expected = plain_loops(timelines, rows, row)
        np.testing.assert_allclose(found[row], [expected[name] for name in ALL_CODES.names], rtol=1e-5, atol=1e-6)


def future_moves_features(compute: Features, seed: int) -> bool:
    """Whether changing, at random, all that comes after p changes what is known at p."""
    rng = np.random.default_rng(seed)

    def subject(n_visits: int) -> Subject:
        visits = [
            [(int(c), float(rng.normal()) if c in NUMERIC else np.nan) for c in rng.choice((*PLAIN, *NUMERIC), size=3)]
            for _ in range(n_visits)
        ]
        return visits, rng.integers(1, 30, n_visits).tolist(), rng.integers(0, 4, n_visits).tolist(), [7]

    past, others = subject(4), [subject(3), subject(5)]
    answers = []
    for n_later in (3, 5):  # another future each time, in number, times, codes and values
        visits, gaps, lengths, _ = subject(n_later)
        whole = past[0] + visits, past[1] + gaps, past[2] + lengths, past[3]
        timelines = build([others[0], whole, others[1]])
        rows = every_moment(timelines)
        mine = rows.row_offsets[1] + np.arange(1 + 2 * 4)  # up to the query after the last visit of the past
        answers.append(
            compute(TaskRecords(timelines, replace(rows, age_years=0 * rows.age_years)), vocabulary(), ALL_CODES)[mine]
        )
    return not np.array_equal(answers[0], answers[1], equal_nan=True)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_after_a_prediction_time_moves_its_features(seed: int) -> None:
    assert not future_moves_features(features, seed)
    assert future_moves_features(all_visits, seed), "a look into the future must be noticed"


def one_code_per_subject(codes: list[list[int]]) -> Timelines:
    return build([([[(code, np.nan)] for code in own], [1] * len(own), [0] * len(own), [7]) for own in codes])


def test_codes_are_chosen_by_subjects_who_have_them_in_time_and_never_unknown_ones() -> None:
    timelines = one_code_per_subject([[4, 3, 3, 3], [4, 1, 5], [4, 2, 5], [1, 2, 6]])
    rows = every_moment(timelines)
    counted = fit_feature_spec(TaskRecords(timelines, rows), vocabulary(), max_codes=2)
    assert counted.codes == (4, 5)  # three and two subjects; three times DX//1 in one subject is one subject
    assert counted.static_codes == (7,)
    early = replace(rows, visits_before=np.minimum(rows.visits_before, 1))
    assert fit_feature_spec(TaskRecords(timelines, early), vocabulary()).codes == (
        4,
    )  # the rest comes after the last row
    assert not {1, 2} & set(fit_feature_spec(TaskRecords(timelines, rows), vocabulary(), max_codes=99).codes)


@pytest.mark.parametrize(("mode", "numeric"), [("polynomial", (5,)), ("interpolate", (5,)), ("bins", ()), ("none", ())])
def test_codes_carry_numbers_only_where_values_are_kept(mode: str, numeric: tuple[int, ...]) -> None:
    timelines = one_code_per_subject([[4, 5], [5, 3]])
    spec = fit_feature_spec(TaskRecords(timelines, every_moment(timelines)), vocabulary(mode))
    assert spec.numeric == numeric
    assert ("last LAB//X" in spec.names) == bool(numeric)
    assert features(TaskRecords(timelines, every_moment(timelines)), vocabulary(mode), spec).shape == (10, len(spec))


def subjects_with_both(timelines: Timelines, rows: TaskRows, first: int, second: int) -> int:
    """Plain loops: subjects who have both codes in one visit before their last row."""
    found = 0
    for s in range(len(timelines)):
        begin = int(timelines.subject_offsets[s])
        known = range(begin, begin + int(rows.visits_before[rows.row_offsets[s + 1] - 1]))
        visits = [set(timelines.codes[slice(*timelines.visit_offsets[v : v + 2])].tolist()) for v in known]
        found += any({first, second} <= visit for visit in visits)
    return found


@given(timelines=records(), most=st.sampled_from([1, 3, 99]))
@settings(max_examples=examples(160), deadline=None)
def test_pairs_are_those_that_most_subjects_have_in_a_visit(timelines: Timelines, most: int) -> None:
    rows = every_moment(timelines)
    spec = fit_feature_spec(TaskRecords(timelines, rows), vocabulary(), max_pairs=most)
    count = {pair: subjects_with_both(timelines, rows, *pair) for pair in itertools.combinations(spec.codes, 2)}
    ranked = sorted((pair for pair in count if count[pair]), key=lambda pair: (-count[pair], pair))
    assert list(spec.pairs) == ranked[:most]
    assert len(spec) == features(TaskRecords(timelines, rows), vocabulary(), spec).shape[1]
    blind = replace(rows, cause=1 - rows.cause, duration_days=rows.duration_days[::-1].copy())
    assert (
        fit_feature_spec(TaskRecords(timelines, blind), vocabulary(), max_pairs=most) == spec
    )  # no outcome is looked at
    assert fit_feature_spec(TaskRecords(timelines, rows), vocabulary()).pairs == ()
