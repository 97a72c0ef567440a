"""Visits in the prepared store against plain loops over raw rows: starts, ends, codes, ages, gaps."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import StudyConfig, TaskConfig, load_study, validated
from ehrsequencing.records.prepare import prepare
from helpers.meds import (
    CODES,
    DAY_US,
    LABS,
    SPLITS,
    STARTS,
    YEAR_US,
    Row,
    data_sets,
    everything,
    record,
    scratch,
    stored_subjects,
    us,
    write_meds,
)
from helpers.settings import examples
from reference.records import Records, Token, Visit

WAYS = {
    "day": ["visits.by=day"],
    "hours": ["visits.by=window", "visits.window=1h"],
    "minutes": ["visits.by=window", "visits.window=50min"],
    "gap": ["visits.by=gap", "visits.gap=12h"],
    "gap in minutes": ["visits.by=gap", "visits.gap=20min"],
    "encounter": ["visits.by=encounter", "visits.column=stay"],
}
TASK = {"index": {"code": "IDX"}, "outcome": {"out": "OUT"}, "censoring": {"code": "CENS"}, "horizons": ["30d"]}

# way, record, its visits as (start day, end day, codes); `CENS` is silent by the task, `IGN` by visits.ignore
HAND_COUNTED: list[tuple[str, str, list[tuple[float, float, str]]]] = [
    ("day", "0 A, 0.9 B, 1 A", [(0, 0.9, "A B"), (1, 1, "A")]),
    ("day", "0.5 B, 1 A, 1.5 A", [(0.5, 0.5, "B"), (1, 1.5, "A")]),
    ("day", "0 A, 0 A, 0.5 A", [(0, 0.5, "A")]),
    ("day", "0 LAB//X=2, 0.5 LAB//X=2, 0.5 LAB//X, 0.6 LAB//X", [(0, 0.6, "LAB//X LAB//X=2 LAB//X=2")]),
    ("day", "0 LAB//X=2, 0 LAB//X=2, 0 LAB//X=3", [(0, 0, "LAB//X=2 LAB//X=3")]),
    ("day", "0 LAB//X=nan, 0 LAB//X=inf, 0 LAB//Y=1e38", [(0, 0, "LAB//X LAB//Y")]),
    ("day", "-9 MEDS_BIRTH, 1 A, 1.5 CENS, 1.6 IGN, 2 IGN, 3 CENS, 4 MEDS_DEATH", [(1, 1, "A")]),
    ("day", "1 A, 1.5 OUT, 2 OUT", [(1, 1.5, "A OUT"), (2, 2, "OUT")]),
    ("day", "1 A, 2 A, 2 MEDS_DEATH, 2.5 B, 3 A", [(1, 1, "A"), (2, 2, "A")]),
    ("day", "-9 MEDS_BIRTH, -10 A, 1 A, - B", [(1, 1, "A")]),
    ("day", "1 A, -50000 B", [(1, 1, "A")]),
    ("day", "1 A, 2914500 B", [(1, 1, "A")]),
    ("day", "-50000 MEDS_BIRTH, 1 A", [(1, 1, "A")]),
    ("day", "- MEDS_BIRTH, - A, 1 A", [(1, 1, "A")]),
    ("day", "- A, 0 CENS", []),
    ("hours", "0.01 A, 0.04 B, 0.05 A", [(0.01, 0.04, "A B"), (0.05, 0.05, "A")]),
    ("hours", "0.375 A, 0.4 B, 0.415 A, 0.41667 A", [(0.375, 0.415, "A B"), (0.41667, 0.41667, "A")]),
    ("minutes", "-18319.01 A, -18319.03 B, -18319 A", [(-18319.03, -18319.01, "A B"), (-18319, -18319, "A")]),
    ("gap", "0 A, 0.4 B, 0.9 A, 1.3 B", [(0, 0.4, "A B"), (0.9, 1.3, "A B")]),
    ("gap", "0 A, 0.4 IGN, 0.7 B", [(0, 0, "A"), (0.7, 0.7, "B")]),
    ("gap", "0 A, 0.4 B, 0.8 A, 1.2 B", [(0, 1.2, "A B")]),
    ("gap in minutes", "0 A, 0.0138 B, 0.1 A", [(0, 0.0138, "A B"), (0.1, 0.1, "A")]),
    ("encounter", "0 A @e, 2 B @e, 1 DX//1, 2.5 DX//2, 2.75 A", [(0, 2, "A B DX//1"), (2.5, 2.75, "A DX//2")]),
    ("encounter", "0 A @e, 2 B @e, 0 DX//1, 2 DX//2, 2.5 B", [(0, 2, "A B DX//1 DX//2"), (2.5, 2.5, "B")]),
    ("encounter", "0 A @e, 2 B @e, 1 DX//1 @f, 3 DX//2 @f", [(0, 3, "A B DX//1 DX//2")]),
    ("encounter", "0 A @e, 1 B @e, 1 DX//1 @f, 2 DX//2 @f", [(0, 1, "A B"), (1, 2, "DX//1 DX//2")]),
    ("encounter", "0 A @e, 1 B @e, 1 DX//1 @f, 2 DX//2 @f, 1 IDX", [(0, 1, "A B IDX"), (1, 2, "DX//1 DX//2")]),
    ("encounter", "0 A @e, 3 B @e, 1 DX//1 @f, 2 DX//2 @f", [(0, 3, "A B DX//1 DX//2")]),
    ("encounter", "0 A @e, 3 B @e, 1 DX//1 @f", [(0, 3, "A B DX//1")]),
    ("encounter", "0 A @e, 1 B @e, 1 DX//1 @f", [(0, 1, "A B DX//1")]),
    ("encounter", "0 A @e, 1 B @e, 0 DX//1 @f", [(0, 1, "A B DX//1")]),
    ("encounter", "0 A @e, 0 B @f, 0 DX//1", [(0, 0, "A B DX//1")]),
    ("encounter", "0 A @e, 1 B @e, 1 A @f, 2 B @f, 1 DX//1 @g", [(0, 2, "A B DX//1")]),
    ("encounter", "0 A @e, 1 B @e, 3 A @f, 4 B @f, 0.5 DX//1 @g, 3.5 DX//2 @g", [(0, 4, "A B DX//1 DX//2")]),
    ("encounter", "0.1 A, 0.9 B, 0.4 DX//1 @e, 0.6 DX//2 @e", [(0.1, 0.9, "A B DX//1 DX//2")]),
    ("encounter", "0.1 A, 0.7 B, 0.5 DX//1 @e, 1.5 DX//2 @e", [(0.1, 0.1, "A"), (0.5, 1.5, "B DX//1 DX//2")]),
    ("encounter", "0 A @e, 2 IGN @e, 1 B", [(0, 0, "A"), (1, 1, "B")]),
    ("encounter", "0 A, 0.5 B, 1 A", [(0, 0.5, "A B"), (1, 1, "A")]),
]


def study(way: str) -> StudyConfig:
    return load_study(None, [*WAYS[way], "vocabulary.min_subjects=1", "visits.ignore=[IGN]"])


def task() -> TaskConfig:
    return validated(TaskConfig, {"name": "t", **TASK}, where="test")


def day(n: float) -> int:
    return STARTS[1] + round(n * DAY_US)


def hand_rows(way: str) -> tuple[list[Row], dict[int, list[Visit]]]:
    """Make a data set of all hand-counted records of a way, and the visits of each of its subjects that has any."""
    rows, expected = everything(900, codes=CODES, labs=LABS, start=us("1950-05-05")), {}
    for subject, (case_way, text, visits) in enumerate(HAND_COUNTED):
        if case_way == way:
            rows += record(subject, text)
            expected[subject] = [Visit(day(start), day(end), tokens(codes)) for start, end, codes in visits]
    return rows, expected


def tokens(text: str) -> list[Token]:
    return [
        (code, float(value) if value else None) for code, _, value in (token.partition("=") for token in text.split())
    ]


def oracle(rows: list[Row], way: str, kind: type[Records] = Records) -> Records:
    return kind(rows, [task()], study(way).visits)


def prepared(folder: Path, rows: list[Row], way: str, *, splits: dict[int, str], shards: int = 1) -> Path:
    column = "stay" if way == "encounter" else None
    data = write_meds(folder / "data", rows, splits=splits, shards=shards, column=column, sort=False)
    prepare(data, folder / "out", study=study(way), tasks=[task()])
    return folder / "out"


def differences(store: Path, records: Records, splits: dict[int, str]) -> list[str]:
    """Name what differs between the store and the oracle, subject by subject; values are compared elsewhere."""
    found = []
    stored = stored_subjects(store)
    if set(stored) != set(records.records):
        found.append(f"subjects {sorted(stored)}, expected {sorted(records.records)}")
    for subject in set(stored) & set(records.records):
        has, visits, birth = stored[subject], records.visits(subject), records.birth(subject)
        born = float("nan") if birth is None else birth
        ages = [(visit.start - born) / YEAR_US for visit in visits]
        gaps = [(b.start - a.end) / DAY_US for a, b in itertools.pairwise(visits)]
        pairs = {
            "split": (has.split, splits[subject]),
            "start": (has.start_us, [visit.start for visit in visits]),
            "end": (has.end_us, [visit.end for visit in visits]),
            "codes": (has.codes, [sorted((c, v is not None) for c, v in visit.codes) for visit in visits]),
            "static": (has.static_codes, records.static_codes(subject)),
            "birth": (has.birth_us if birth is not None else None, birth),
        }
        found += [
            f"subject {subject}: {name} {got}, expected {want}" for name, (got, want) in pairs.items() if got != want
        ]
        for name, got, want in ("age", has.age_years, ages), ("gap", has.delta_days, [0.0, *gaps][: len(visits)]):
            aged = np.where(np.array(want) > 120, np.nan, want) if name == "age" else np.array(want)
            if not np.array_equal(got, aged.astype(np.float32), equal_nan=True):
                found.append(f"subject {subject}: {name} {got}, expected {aged}")
    return found


@pytest.mark.parametrize("way", WAYS)
def test_oracle_and_store_agree_with_hand_counts(way: str, tmp_path: Path) -> None:
    rows, expected = hand_rows(way)
    records, splits = oracle(rows, way), {row.subject: "train" for row in rows}
    store = prepared(tmp_path, rows, way, splits=splits, shards=2)
    stored = stored_subjects(store)
    for subject, visits in expected.items():
        assert records.visits(subject) == visits, HAND_COUNTED[subject]
        assert stored[subject].start_us == [visit.start for visit in visits], HAND_COUNTED[subject]
        assert stored[subject].end_us == [visit.end for visit in visits], HAND_COUNTED[subject]
    assert differences(store, records, splits) == []


@settings(max_examples=examples(160), deadline=None)
@given(data=data_sets(), way=st.sampled_from(list(WAYS)), shards=st.integers(1, 3))
def test_visits_are_those_of_plain_loops(data: tuple[list[Row], dict[int, str]], way: str, shards: int) -> None:
    rows, splits = data
    if way != "encounter":
        rows = [row._replace(encounter=None) for row in rows]
    with scratch() as folder:
        store = prepared(Path(folder), rows, way, splits=splits, shards=shards)
        assert differences(store, oracle(rows, way), splits) == []


def test_values_are_standardised_among_training_values_of_their_code(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(50, 10, (60, 2)).astype(np.float32)
    numbers[0] = 1000.0  # clipped
    rows = everything(900, codes=CODES, labs=(), start=us("1950-05-05"))
    rows += [
        Row(n % 9, day(n), lab, float(number))
        for n, pair in enumerate(numbers)
        for lab, number in zip(LABS, pair, strict=True)
    ]
    splits = {900: "train"} | {n: "train" if n < 6 else SPLITS[n % 2 + 1] for n in range(9)}
    store = prepared(tmp_path, rows, "day", splits=splits)
    for lab, column in zip(LABS, numbers.T.astype(np.float64), strict=True):
        training = np.array([number for n, number in enumerate(column) if n % 9 < 6])
        stored = stored_subjects(store)
        pairs = []  # (raw, rank, z) of every event of this code
        for n, number in enumerate(column):
            at = stored[n % 9].start_us.index(day(n))
            pairs += [(number, rank, z) for name, rank, z in stored[n % 9].values[at] if name == lab]
        raw, ranks, z = np.array(sorted(pairs)).T
        assert len(raw) == 60
        np.testing.assert_allclose(z, np.clip((raw - training.mean()) / training.std(), -4, 4), rtol=1e-4, atol=1e-5)
        assert z.max() == 4.0
        assert np.all(np.diff(ranks) >= 0)
        in_training = np.isin(raw, training)
        assert np.all(np.diff(ranks[in_training]) > 0)
        assert abs(ranks[in_training].mean()) < 0.05
        assert abs(ranks[in_training].std() - 1) < 0.05
