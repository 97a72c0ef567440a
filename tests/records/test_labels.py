"""Cohorts from elsewhere (MEDS labels, ACES, OHDSI) as index, our labels as MEDS labels, splits by date and site."""

import datetime as dt
import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import OutcomesConfig, StudyConfig, TaskConfig, load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.records.labels import read_index_times
from ehrsequencing.records.outcomes import already_had, outcome_labels
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.cohorts import a_task, moment, stored_cohort, study
from helpers.meds import DAY_US, SPLITS, STARTS, Row, record, stored_subjects, write_meds

TEXTS = {
    1: "0 A, 1 IDX, 2 A, 3 IDX, 4.5 A, 5 OUT",
    2: "1 IDX, 3 A, 6 B",
    3: "0 A, 1 B",  # no index
    4: "0 OUT, 1 IDX, 2 A",  # prevalent
    5: "1.5 IDX, 2 A, 9 OUT",
}
ROWS = [row for subject, text in TEXTS.items() for row in record(subject, text)]
INDEXES = sorted({(row.subject, row.time or 0) for row in ROWS if row.code == "IDX"})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_meds(tmp_path / "data", ROWS, splits=dict.fromkeys(TEXTS, "train"))


def times(pairs: list[tuple[int, int]]) -> pa.Array:
    return pa.array([time for _, time in pairs], pa.timestamp("us"))


def ids(pairs: list[tuple[int, int]]) -> pa.Array:
    return pa.array([subject for subject, _ in pairs], pa.int64())


def cohort_of(data: Path, out: Path, task: TaskConfig) -> Any:
    prepare(data, out, study=study(), tasks=[task])
    return stored_cohort(out, task.name)


@pytest.mark.parametrize(
    ("form", "which"),
    [("meds", "first"), *((form, "every") for form in ("aces", "aces shards", "trigger only", "csv", "csv.gz"))],
)
def test_an_index_from_a_file_is_that_of_the_code(form: str, which: str, data: Path, tmp_path: Path) -> None:
    """The same moments by another way: the same cohort, whatever else the file says about outcomes."""
    pairs = [*reversed(INDEXES), INDEXES[0], (77, moment(1))]  # unsorted, one twice, one subject too many
    observed = pa.array([n % 2 == 0 for n in range(len(pairs))])
    labels = pa.table({"subject_id": ids(pairs), "prediction_time": times(pairs), "boolean_value": observed})
    other = [(subject, time - DAY_US) for subject, time in pairs]
    aces = {"subject_id": ids(pairs), "index_timestamp": times(pairs), "label": observed, "trigger": times(other)}
    path = tmp_path / {"csv": "x.csv", "csv.gz": "x.CSV.gz", "aces shards": "shards"}.get(form, "x.parquet")
    if form == "meds":
        pq.write_table(labels, path)
    elif form == "aces":
        pq.write_table(pa.table(aces), path)
    elif form == "trigger only":
        pq.write_table(pa.table({"subject_id": ids(pairs).cast(pa.int32()), "trigger": times(pairs)}), path)
    elif form == "aces shards":
        for n in range(2):
            (path / "train").mkdir(parents=True, exist_ok=True)
            part = pa.table(aces).slice(n * 3, 3 if n == 0 else None)
            pq.write_table(part if n else part.append_column("more", part["label"]), path / "train" / f"{n}.parquet")
    else:
        pv.write_csv(labels, tmp_path / "x.csv")
        if form == "csv.gz":
            path.write_bytes(gzip.compress((tmp_path / "x.csv").read_bytes()))
    after = {"which": which, "after": "12h"}
    by_file = cohort_of(data, tmp_path / "a", a_task(index={"file": str(path), **after}))
    assert by_file == cohort_of(data, tmp_path / "b", a_task(index={"code": "IDX", **after}))
    assert len(by_file) > 3


def ohdsi(path: Path, *, upper: bool = False) -> Path:
    """A cohort of whole days, as CSV."""
    days = pa.array([time // DAY_US for _, time in INDEXES], pa.int32()).cast(pa.date32())
    n = len(INDEXES)
    ends = pa.array([None] * n, pa.date32())
    columns: dict[str, Any] = {
        "cohort_definition_id": [3] * n,
        "subject_id": ids(INDEXES),
        "cohort_start_date": days,
        "cohort_end_date": ends,
    }
    pv.write_csv(pa.table({name.upper() if upper else name: value for name, value in columns.items()}), path)
    return path


@pytest.mark.parametrize("upper", [False, True])
def test_an_ohdsi_cohort_starts_at_its_midnight(upper: bool, data: Path, tmp_path: Path) -> None:
    path = ohdsi(tmp_path / "cohort.csv", upper=upper)
    found = cohort_of(data, tmp_path / "a", a_task(index={"file": str(path), "which": "every"}))
    by_subject = {(row.subject, row.index_us) for row, _ in found}
    assert by_subject == {(1, moment(1)), (1, moment(3)), (2, moment(1)), (5, moment(1))}  # 5: the day, not its noon


def test_a_task_file_finds_its_cohort_beside_itself(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    ohdsi(folder / "cohort.csv")
    text = "name: t\nindex: {file: cohort.csv}\noutcome: {out: OUT}\nhorizons: [30d]\n"
    (folder / "task.yaml").write_text(text)
    (folder / "study.yaml").write_text("task:\n" + "".join(f"  {line}\n" for line in text.splitlines()))
    task = load_task(folder / "task.yaml")
    assert task.index.file == str(folder / "cohort.csv")
    assert load_study(folder / "study.yaml").task == task
    prepare(data, tmp_path / "out", study=study(), tasks=[task])
    assert Prepared(tmp_path / "out").task("t") == task


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subject_id": None}, "holds no cohort.*subject_id"),
        ({"prediction_time": None}, "holds no cohort.*prediction_time, index_timestamp"),
        ({"subject_id": pa.array(["1", "2"])}, "column 'subject_id' has type string"),
        ({"subject_id": pa.array([1, None], pa.int64())}, "1 rows have no subject_id"),
        ({"prediction_time": pa.array([0, None], pa.timestamp("us"))}, "1 rows have no index time"),
        ({"prediction_time": pa.array([0, 1], pa.timestamp("us", "UTC"))}, r"type timestamp\[us, tz=UTC\]"),
        ({"prediction_time": pa.array(["2020", "2021"])}, "type string"),
        ({"subject_id": pa.array([70, 71], pa.int64())}, "none of its 2 subjects is in the data"),
        ({"cohort_definition_id": pa.array([1, 2])}, "holds 2 cohorts.*keep the rows of one"),
    ],
)
def test_a_file_that_is_no_cohort_is_refused(change: dict[str, Any], message: str, data: Path, tmp_path: Path) -> None:
    good = {"subject_id": pa.array([1, 2], pa.int64()), "prediction_time": pa.array([0, 1], pa.timestamp("us"))}
    columns = {name: column for name, column in (good | change).items() if column is not None}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(EhrseqError, match=message):
        prepare(data, tmp_path / "out", study=study(), tasks=[a_task(index={"file": str(tmp_path / "x.parquet")})])
    assert not (tmp_path / "out").exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.csv").write_bytes(b'"a\n')
    header = pa.table({"subject_id": pa.array([], pa.int64()), "prediction_time": pa.array([], pa.timestamp("us"))})
    pq.write_table(header, tmp_path / "none.parquet")
    for name, message in {
        "x.parquet": "cannot be read as Parquet",
        "gone.parquet": "is no file",
        "empty": "holds no Parquet file",
        "bad.csv": "as CSV|holds no cohort",
        "none.parquet": "holds no row",
    }.items():
        with pytest.raises(EhrseqError, match=message):
            read_index_times(tmp_path / name)


def split_of(data: Path, out: Path, config: StudyConfig, *tasks: TaskConfig) -> dict[int, str]:
    prepare(data, out, study=config, tasks=tasks)
    return {subject: each.split for subject, each in stored_subjects(out).items()}


def many(n: int = 200) -> list[Row]:
    """Subject s begins on day s, has its index on day s + 1, a second on day s + 50; every tenth has no index."""
    rows = []
    for subject in range(n):
        index = "A" if subject % 10 == 3 else "IDX"
        text = f"{subject} A, {subject + 1} {index}, {subject + 50} {index}, {subject + 60} A"
        rows += record(subject, text)
    return rows


def test_splits_by_date_ask_for_the_first_index_that_counts(tmp_path: Path) -> None:
    rows = [*record(1, "0 A, 1 IDX, 9 IDX, 12 A"), *record(2, "0 A, 1 OUT, 9 IDX, 12 A"), *record(3, "0 A, 9 A")]
    rows += record(4, "-3652.5 MEDS_BIRTH, 9 A, 10 IDX, 12 A")
    data = write_meds(tmp_path / "data", rows)
    config = study("splits.by=date", "splits.from=2020-03-03")  # day 5
    index = {"code": "IDX", "which": "every"}
    held_out = {
        s
        for s, split in split_of(data, tmp_path / "a", config, a_task(index=index, horizons=["1d"])).items()
        if split == "held_out"
    }
    assert held_out == {4}  # 2 has no index without a cause before it: its record starts early
    rules = a_task(index=index, horizons=["1d"], eligibility={"history": "5d"})
    held_out = {s for s, split in split_of(data, tmp_path / "b", config, rules).items() if split == "held_out"}
    assert held_out == {1, 4}  # the index of day 1 is none
    held_out = {s for s, split in split_of(data, tmp_path / "c", config).items() if split == "held_out"}
    assert held_out == {4}  # without a task: where the record starts


# ---- Labels of many outcomes, against the records read by loops ----


CODES = ("DX//a", "DX//b", "DX//c", "DX//rare", "LAB//x", "OUT")


def drawn_rows(seed: int, *, subjects: int = 60) -> list[Row]:
    """Records of some days, with codes that recur, share their instants, and come before and after the index."""
    draw, rows = random.Random(seed), list[Row]()
    for subject in range(subjects):
        for day in sorted(draw.sample(range(30), draw.randint(2, 12))):
            names = draw.sample(CODES[:3] + CODES[4:5], draw.randint(1, 3))
            rows += [Row(subject, STARTS[1] + day * DAY_US + draw.choice((0, 3_600_000_000)), name) for name in names]
        if draw.random() < 0.4:
            rows.append(Row(subject, STARTS[1] + draw.randint(10, 30) * DAY_US, "OUT"))
    return [*rows, Row(0, STARTS[1] + 29 * DAY_US, "DX//rare")]


def prepared(folder: Path, rows: list[Row], *, blanking: float = 0.0, codes: str = "DX//*") -> Prepared:
    subjects = sorted({row.subject for row in rows})
    splits = {subject: SPLITS[0 if k % 4 < 2 else k % 4 - 1] for k, subject in enumerate(subjects)}
    data = write_meds(folder / "data", rows, splits=splits, shards=2)
    index = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=STARTS[1] + 3 * DAY_US)
    task = TaskConfig.model_validate(
        {
            "name": "t",
            "index": {"date": str(index.date())},
            "outcome": {"out": "OUT"},
            "horizons": ["10d"],
            "landmarks": ["0d", "4d"],
            "blanking": blanking,
            "outcomes": {"codes": [codes, "OUT"], "min_subjects": 5},
        }
    )
    study = StudyConfig.model_validate({"vocabulary": {"min_subjects": 1}})
    prepare(data, folder / "set", study=study, tasks=[task], processes=1)
    return Prepared(folder / "set")


@pytest.mark.parametrize("blanking", [0.0, 2.0])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_labels_are_those_of_the_records(tmp_path: Path, blanking: float, seed: int) -> None:
    """Every pair of a prediction time and an outcome: no entry, an event at its instant, or not at risk."""
    rows = drawn_rows(seed)
    store = prepared(tmp_path, rows, blanking=blanking)
    codes = store.outcomes("t")
    assert codes == ["DX//a", "DX//b", "DX//c"], "neither a rare code, nor a code of a cause, nor one that nobody named"
    events = total = 0
    for split in SPLITS:
        records = store.outcome_records("t", split)
        assert records.outcomes is not None
        listed = outcome_labels(records.outcomes, records.rows, np.arange(len(records)))
        found = dict(
            zip(zip(listed.row.tolist(), listed.code.tolist(), strict=True), listed.days.tolist(), strict=True)
        )
        assert len(found) == len(listed.row), "a pair stands once"
        for r, subject in enumerate(records.subject_id.tolist()):
            p, stop = int(records.rows.prediction_us[r]), float(records.rows.duration_days[r])
            for c, code in enumerate(codes):
                days = [
                    (row.time - p) / DAY_US for row in rows if (row.subject, row.code) == (subject, code) and row.time
                ]
                first = min(days, default=np.inf)
                expected = None if first > stop else first if first > blanking else 0.0
                assert found.get((r, c)) == (None if expected is None else pytest.approx(expected)), (split, r, code)
                events, total = events + (expected is not None and expected > 0), total + 1
    assert 50 < events < total


def test_had_before_is_what_has_no_risk(tmp_path: Path) -> None:
    """Without labels, as for new records: the pairs that the labels call not at risk (without blanking)."""
    records = prepared(tmp_path, drawn_rows(3)).outcome_records("t", "train")
    assert records.outcomes is not None
    listed = outcome_labels(records.outcomes, records.rows, np.arange(len(records)))
    row, code = already_had(records.outcomes, records.rows)
    without = listed.days == 0
    assert set(zip(row.tolist(), code.tolist(), strict=True)) == set(
        zip(listed.row[without].tolist(), listed.code[without].tolist(), strict=True)
    )


def test_outcomes_that_nobody_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"no code has an event in 5 training subjects"):
        prepared(tmp_path / "few", drawn_rows(1), codes="DX//rare")
    with pytest.raises(EhrseqError, match=r"a condition on a number is not possible in task t, outcomes.codes"):
        prepared(tmp_path / "number", drawn_rows(1), codes="LAB//x > 3")


def test_outcomes_need_causes_that_end_a_record() -> None:
    asked = {"name": "t", "index": {"first_visit": True}, "outcome": {"out": "OUT"}, "horizons": ["1y"]}
    outcomes = OutcomesConfig(codes=("DX//*",))
    with pytest.raises(ValueError, match="leave recurrent"):
        TaskConfig.model_validate({**asked, "recurrent": True, "outcomes": outcomes.model_dump()})
