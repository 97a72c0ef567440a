"""Small MEDS data sets from Python rows, for every test that starts from records."""

import datetime as dt
import itertools
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
YEAR_US = 8766 * HOUR_US  # 365.25 d

SPLITS = ("train", "tuning", "held_out")


class Row(NamedTuple):
    """One MEDS row; `time` in µs since 1970-01-01, None for a static row; `encounter` is the visits.column."""

    subject: int
    time: int | None
    code: str
    value: float | None = None
    encounter: str | None = None


def us(text: str) -> int:
    """Turn an ISO date or time into µs since 1970-01-01, whatever the machine's time zone.

    >>> us("1970-01-02"), us("1969-12-31 23:00")
    (86400000000, -3600000000)
    """
    return (dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def table(rows: Sequence[Row], column: str | None = None) -> pa.Table:
    """Lay rows out as a MEDS 0.4 table, in the order given; `column` names the encounter column, None leaves it out."""
    columns = {
        "subject_id": pa.array([row.subject for row in rows], pa.int64()),
        "time": pa.array([row.time for row in rows], pa.timestamp("us")),
        "code": pa.array([row.code for row in rows], pa.string()),
        "numeric_value": pa.array([row.value for row in rows], pa.float32()),
    }
    if column is not None:
        columns[column] = pa.array([row.encounter for row in rows], pa.string())
    return pa.table(columns)


CODES = ("IDX", "A", "OUT", "LAB//X", "CENS", "COMP", "B", "OUT2", "DX//1", "DX//2", "LAB//Y", "IGN")
LABS = ("LAB//X", "LAB//Y")
STARTS = (us("1969-12-30"), us("2020-02-27"))  # around the epoch, and a 29 February
MOMENTS = (0, 1, HOUR_US // 3, HOUR_US, 6 * HOUR_US, 12 * HOUR_US, 50 * HOUR_US // 3, DAY_US - 1)


def write_meds(
    folder: Path,
    rows: Sequence[Row],
    *,
    splits: Mapping[int, str] | None = None,
    shards: int = 1,
    parents: Mapping[str, Sequence[str]] | None = None,
    column: str | None = None,
    sort: bool = True,
) -> Path:
    """Write `rows` as a MEDS data set.

    Args:
        folder: Where to write; made with its parents.
        rows: All subjects' rows.
        splits: Split of each subject → `metadata/subject_splits.parquet` and `data/SPLIT/SHARD.parquet`. None writes no
            split file, and shards right under `data/`.
        shards: Shards per split. Subjects are dealt out in turn, so that no shard holds a range of ids.
        parents: `parent_codes` of each code → `metadata/codes.parquet`; None writes none.
        column: Name of the encounter column; None leaves it out.
        sort: Sort rows by subject and time (null first, ties as given). MEDS wants it; False tests the fix.

    Returns:
        `folder`.
    """
    if sort:
        rows = sorted(rows, key=lambda row: (row.subject, row.time is not None, row.time or 0))
    by_shard: dict[str, list[Row]] = {}
    subjects = list(dict.fromkeys(row.subject for row in rows))
    for split in dict.fromkeys(splits.values()) if splits else ("",):
        members = [subject for subject in subjects if not splits or splits.get(subject) == split]
        for shard in range(shards):
            chosen = set(members[shard::shards])
            by_shard[f"{split}/{shard}" if split else str(shard)] = [row for row in rows if row.subject in chosen]
    for name, part in by_shard.items():
        path = folder / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(part, column), path)

    metadata = folder / "metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "dataset.json").write_text(json.dumps({"dataset_name": "test", "meds_version": "0.4.1"}))
    if splits is not None:
        pq.write_table(
            pa.table(
                {"subject_id": pa.array(splits.keys(), pa.int64()), "split": pa.array(splits.values(), pa.string())}
            ),
            metadata / "subject_splits.parquet",
        )
    if parents is not None:
        pq.write_table(
            pa.table(
                {
                    "code": pa.array(parents.keys(), pa.string()),
                    "description": pa.nulls(len(parents), pa.string()),
                    "parent_codes": pa.array([list(above) for above in parents.values()], pa.list_(pa.string())),
                }
            ),
            metadata / "codes.parquet",
        )
    return folder


def record(subject: int, text: str, *, start: int = STARTS[1]) -> list[Row]:
    """Write a record by hand: `day code`, `day code=value` or `day code @encounter`, by commas; a day of `-` is static.

    >>> record(1, "0.5 A, 1 LAB=2, - SEX//F", start=0)[1]
    Row(subject=1, time=86400000000, code='LAB', value=2.0, encounter=None)
    """
    rows = []
    for item in text.split(","):
        day, name, *encounter = item.split()
        code, _, value = name.partition("=")
        time = None if day == "-" else start + round(float(day) * DAY_US)
        rows.append(Row(subject, time, code, float(value) if value else None, encounter[0][1:] if encounter else None))
    return rows


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Open a temporary folder for a drawn example: in memory where that can be, since a store is made of many files."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def load_arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Load the `.npy` arrays of a folder of the prepared store by name."""
    return {path.stem: np.load(path, allow_pickle=False) for path in sorted(folder.glob("*.npy"))}


class StoredSubject(NamedTuple):
    """A subject's visits as the prepared store holds them, its tokens by name."""

    split: str
    birth_us: int
    start_us: list[int]
    end_us: list[int]
    age_years: npt.NDArray[Any]
    delta_days: npt.NDArray[Any]
    codes: list[list[tuple[str, bool]]]  # of each visit, sorted: token, whether it has a value
    values: list[list[tuple[str, float, float]]]  # of each visit, sorted: token, rank, standardised value
    static_codes: list[str]


def token_names(store: Path) -> list[str]:
    """Name of every token id."""
    return list(json.loads((store / "vocabulary.json").read_text(encoding="utf-8"))["tokens"])


def stored_subjects(store: Path) -> dict[int, StoredSubject]:
    """Read `visits/` of a prepared store."""
    names, subjects = token_names(store), {}
    for split in SPLITS:
        at = load_arrays(store / "visits" / split)
        named = [names[code] for code in at["codes"]]
        visits = list(itertools.pairwise(at["visit_offsets"].tolist()))
        for n, subject in enumerate(at["subject_id"].tolist()):
            first, last = at["subject_offsets"][n : n + 2].tolist()
            tokens = [list(zip(named[a:b], at["values"][a:b].tolist(), strict=True)) for a, b in visits[first:last]]
            still = at["static_codes"][slice(*at["static_offsets"][n : n + 2])]
            assert subject not in subjects, "a subject has one split"
            subjects[subject] = StoredSubject(
                split=split,
                birth_us=int(at["birth_us"][n]),
                start_us=at["start_us"][first:last].tolist(),
                end_us=at["end_us"][first:last].tolist(),
                age_years=at["age_years"][first:last],
                delta_days=at["delta_days"][first:last],
                codes=[sorted((name, rank == rank) for name, (rank, _) in visit) for visit in tokens],
                values=[sorted((name, rank, z) for name, (rank, z) in visit if rank == rank) for visit in tokens],
                static_codes=sorted(names[code] for code in still),
            )
    return subjects


def everything(subject: int, *, codes: Sequence[str], labs: Sequence[str], start: int) -> list[Row]:
    """Make a record of all codes, a day apart, each lab with six values: with it in training, every code of a test has
    its token and every task matches something.
    """
    rows = [Row(subject, start + day * DAY_US, code) for day, code in enumerate(codes)]
    rows += [Row(subject, start + n * DAY_US, lab, float(n * n - 4)) for lab in labs for n in range(6)]
    rows += [Row(subject, start + 20_000 * HOUR_US, "MEDS_DEATH"), Row(subject, start - YEAR_US, "MEDS_BIRTH")]
    return [*rows, Row(subject, None, "SEX//F")]


@st.composite
def subject_rows(draw: st.DrawFn, subject: int, start: int) -> list[Row]:
    """Draw one record, hostile on purpose: few moments of few days, so that everything falls on everything."""
    any_moment = st.builds(lambda day, time: start + day * DAY_US + time, st.integers(0, 6), st.sampled_from(MOMENTS))
    moment = st.sampled_from(draw(st.lists(any_moment, min_size=1, max_size=5))) | any_moment
    value = st.sampled_from([None, -1.0, 0.0, 2.5, 2.5, 7.0])
    encounter = st.sampled_from([None, None, "e1", "e2", "e3"])
    rows = []
    for code in draw(st.lists(st.sampled_from([*CODES, "IDX", "OUT"]), max_size=14)):
        number = draw(value) if code in LABS else None
        rows.append(Row(subject, draw(moment), code, number, draw(encounter)))
    if draw(st.booleans()):  # turns 50 on one of the days
        rows.append(Row(subject, draw(moment) - 50 * YEAR_US, "MEDS_BIRTH"))
    if draw(st.integers(0, 2)) == 0:
        at_midnight = draw(st.booleans())
        death = draw(moment)
        rows.append(Row(subject, death - (death - start) % DAY_US if at_midnight else death, "MEDS_DEATH"))
    rows += [Row(subject, None, code) for code in draw(st.lists(st.sampled_from(["SEX//F", "A"]), max_size=2))]
    return rows


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[list[Row], dict[int, str]]:
    """Draw all rows of a data set, in any order, and the split of each subject. A training subject has every code."""
    start = draw(st.sampled_from(STARTS))
    rows = everything(77, codes=CODES, labs=LABS, start=us("1950-05-05"))
    splits = {77: "train"}
    for subject in draw(st.lists(st.sampled_from([-4, 0, 5, 76, 78, 2**40]), unique=True, min_size=1)):
        splits[subject] = draw(st.sampled_from(SPLITS))
        rows += draw(subject_rows(subject, start))
    if draw(st.booleans()):
        random.Random(draw(st.integers(0, 99))).shuffle(rows)
    present = {row.subject for row in rows}
    return rows, {subject: split for subject, split in splits.items() if subject in present}


def written(out: Path) -> dict[str, bytes]:
    """The bytes of the data and metadata, without the report that names the source's tables."""
    files = [p for p in out.rglob("*") if p.is_file() and p.name not in ("manifest.json", "import_report.json")]
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in files}


def meds_rows(out: Path) -> list[tuple[Any, ...]]:
    """All rows of a data set as subject, time, code, number, text, encounter, in the order of subjects and files."""
    tables = [pq.read_table(path) for path in sorted((out / "data").rglob("*.parquet"))]
    columns = ("subject_id", "time", "code", "numeric_value", "text_value", "encounter_id")
    rows = [row for table in tables for row in zip(*(table[c].to_pylist() for c in columns), strict=True)]
    return sorted(rows, key=lambda row: row[0])  # stable: a subject's rows stay as they were written
