"""Splits by file, MEDS' folders or site; parents of codes in any shape; deaths that are no cause."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.evaluation.population import Population
from ehrsequencing.records.check import check_data
from ehrsequencing.records.codes import CodeMatcher, read_parents
from ehrsequencing.records.labels import potential_days
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from helpers.bad_inputs import done, ehrseq, refused
from helpers.cohorts import a_task, moment, study
from helpers.meds import DAY_US, SPLITS, Row, record, stored_subjects, us, write_meds

START = us("2020-01-01")
SPLIT_FILE = Path("metadata") / "subject_splits.parquet"
OF = {s: SPLITS[(s * s) % 7 % 3] for s in range(30)}  # no hash would cut them like this


def rows_of(subjects: int = 30, **changes: Any) -> list[Row]:
    text = "- SEX//F, -9000 MEDS_BIRTH, 0 A, 3 B, 40 A"
    return [row._replace(**changes) for s in range(subjects) for row in record(s, text, start=START)]


def splits_of(data: Path, out: Path, *settings: str) -> dict[int, str]:
    """Everybody's split, as a prepared set stores it."""
    prepare(data, out, study=load_study(None, ["vocabulary.min_subjects=1", *settings]), tasks=[])
    return {subject: stored.split for subject, stored in stored_subjects(out).items()}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Shards in the folders of their splits, and no file that tells them."""
    data = write_meds(tmp_path / "data", rows_of(), splits=OF, shards=2)
    (data / SPLIT_FILE).unlink()
    return data


def _deep(data: Path) -> None:
    for path in [*(data / "data").rglob("*.parquet")]:
        path.parent.joinpath("a", "b").mkdir(parents=True, exist_ok=True)
        shutil.move(path, path.parent / "a" / "b" / path.name)


def _one_file_each(data: Path) -> None:
    for split in SPLITS:
        folder = data / "data" / split
        table = pa.concat_tables([pq.read_table(p, partitioning=None) for p in sorted(folder.glob("*.parquet"))])
        shutil.rmtree(folder)
        pq.write_table(table, data / "data" / f"{split}.parquet")


def _spark(data: Path) -> None:
    for split in SPLITS:
        (data / "data" / split).rename(data / "data" / f"{split}.parquet")


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "as MEDS has it": lambda data: None,
    "deeper": _deep,
    "one file a split": _one_file_each,
    "Spark's folders": _spark,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_are_the_split_where_no_file_tells_it(folders: Path, tmp_path: Path, layout: str) -> None:
    LAYOUTS[layout](folders)
    assert splits_of(folders, tmp_path / "out") == OF
    by_hash = splits_of(folders, tmp_path / "hash", "splits.by=hash")
    assert by_hash != OF  # a split that ignores the folders would be seen
    found = check_data(folders, study=load_study(), tasks=[])
    assert found.facts["splits"] == "folders"
    assert {s: found.facts["subjects"][s] for s in SPLITS} == {s: [*OF.values()].count(s) for s in SPLITS}
    assert "by the folders data/{train,tuning,held_out}" in done(ehrseq("check", folders))


def test_a_file_of_splits_wins_over_the_folders(folders: Path, tmp_path: Path) -> None:
    other = {s: SPLITS[(SPLITS.index(split) + 1) % 3] for s, split in OF.items()}
    table = pa.table({"subject_id": list(other), "split": list(other.values())})
    pq.write_table(table, folders / SPLIT_FILE)
    assert splits_of(folders, tmp_path / "out") == other
    assert check_data(folders, study=load_study(), tasks=[]).facts["splits"] == "file"


@pytest.mark.parametrize("stray", ["extra.parquet", "test/0.parquet"])
def test_a_shard_outside_of_the_folders_has_no_split(folders: Path, tmp_path: Path, stray: str) -> None:
    """With the hash in its place, who is in data/held_out would be learned from."""
    (folders / "data" / stray).parent.mkdir(exist_ok=True)
    (folders / "data" / "tuning" / "0.parquet").rename(folders / "data" / stray)
    line = refused(ehrseq("prepare", folders, "--out", tmp_path / "out"))
    assert stray in line
    assert "splits.by=hash" in line
    assert refused(ehrseq("check", folders)) == line
    assert not (tmp_path / "out").exists()
    assert len(splits_of(folders, tmp_path / "hash", "splits.by=hash")) == 30


SITE = ("splits.by=site", "splits.column=site")


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    rows = [row._replace(encounter="north" if row.subject % 3 == 0 else "south") for row in rows_of()]
    return write_meds(tmp_path / "data", rows, column="site")


def test_whoever_was_at_a_held_out_site_is_held_out(sites: Path, tmp_path: Path) -> None:
    plain = splits_of(sites, tmp_path / "plain", *SITE, "splits.held_out_sites=[north]")
    assert {s for s, split in plain.items() if split == "held_out"} == set(range(0, 30, 3))


def parents_of(folder: Path, codes: list[Any], parents: pa.Array) -> dict[str, list[str]]:
    (folder / "metadata").mkdir(exist_ok=True)
    pq.write_table(pa.table({"code": codes, "parent_codes": parents}), folder / "metadata" / "codes.parquet")
    return read_parents(folder)


SHAPES = {
    "lists": pa.array([["UP", "OUT"], None, []]),
    "large lists": pa.array([["UP", "OUT"], None, []], pa.large_list(pa.large_string())),
    "dictionaries": pa.array([["UP", "OUT"], None, []], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_parents_in_lists(tmp_path: Path, shape: str) -> None:
    assert parents_of(tmp_path, ["A", "B", "C"], SHAPES[shape]) == {"A": ["UP", "OUT"], "B": [], "C": []}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_plain_text_is_one_parent_and_not_its_letters(tmp_path: Path, kind: pa.DataType) -> None:
    parents = parents_of(tmp_path, ["A", "B", "U"], pa.array(["UP", None, ""], pa.string()).cast(kind))
    assert parents == {"A": ["UP"], "B": [], "U": []}
    under = CodeMatcher(["under:U"], parents=parents)  # by letters, A would lie below U
    assert [under(code) for code in ("A", "B", "U")] == [False, False, True]


def test_a_code_of_several_rows_has_the_parents_of_all(tmp_path: Path) -> None:
    assert parents_of(tmp_path, ["A", "A", "A"], pa.array([["X"], ["Y", "X"], None])) == {"A": ["X", "Y"]}


@pytest.mark.parametrize(
    ("codes", "parents", "says"),
    [
        (["A", "B"], pa.array([1, 2]), "column 'parent_codes' has type"),
        (["A", "B"], pa.array([[1], [2]]), "column 'parent_codes' has type"),
        ([1, 2], pa.nulls(2), "column 'code' has type int64"),
    ],
)
def test_what_is_no_code_is_refused(tmp_path: Path, codes: list[Any], parents: pa.Array, says: str) -> None:
    with pytest.raises(EhrseqError, match=says):
        parents_of(tmp_path, codes, parents)


def test_two_tasks_of_one_name_are_refused(folders: Path, tmp_path: Path) -> None:
    task = TaskConfig.model_validate(
        {"name": "t", "index": {"first_visit": True}, "outcome": {"d": ["MEDS_DEATH"]}, "horizons": ["1y"]}
    )
    with pytest.raises(EhrseqError, match="two tasks have the same name"):
        prepare(folders, tmp_path / "set", study=load_study(None, []), tasks=[task, task])
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("changes", "dies", "due"),
    [
        ({}, "9 MEDS_DEATH", True),
        ({"competing": {"death": ["MEDS_DEATH"]}}, "9 MEDS_DEATH", False),
        ({"outcome": {"any": ["OUT", "MEDS_DEATH"]}}, "9 MEDS_DEATH", False),
        ({}, "9 B", False),  # nobody dies
        ({}, "3 OUT, 9 MEDS_DEATH", False),  # who dies has had the outcome before
        ({"censoring": {"code": ["END"]}}, "5 END, 9 MEDS_DEATH", False),  # or has left before
    ],
)
def test_a_death_that_is_no_cause_is_warned_of(tmp_path: Path, changes: dict[str, Any], dies: str, due: bool) -> None:
    rows = [row for s in range(9) for row in record(s, f"0 A, {dies}" if s == 4 else "0 A, 2 OUT, 30 END", start=START)]
    data = write_meds(tmp_path / "data", rows, splits=dict.fromkeys(range(9), "train"))
    base = {"name": "t", "index": {"code": "A"}, "outcome": {"out": ["OUT"]}, "censoring": {"dataset_end": True}}
    task = TaskConfig.model_validate(base | {"horizons": ["10d"]} | changes)
    (found,) = check_data(data, study=load_study(), tasks=[task]).tasks
    assert any("death is no cause of the task" in text for text in found.warnings) == due


# ---- A split by date is a temporal validation: training and tuning know nothing from the date on ----


FROM, CUT = "2020-06-16", moment(110) // DAY_US * DAY_US  # day 110
ENDS = {
    "a code": {"code": "END"},
    "the data's end": {"dataset_end": True},
    "an age": {"age": "40y"},
    "the last event": {},
}


def people(n: int = 240) -> list[Row]:
    """Subject s has its index on day s / 2; an event 20 or 100 days later, or none; a late code from day 115 on."""
    rows = []
    for s in range(n):
        at = s / 2
        text = f"-7305 MEDS_BIRTH, {at} A, {at} IDX, {at + 10} A, {at + 150} A"
        text += {0: "", 1: f", {at + 20} OUT", 2: f", {at + 100} OUT"}[s % 3]
        text += f", {max(at + 5, 115.0)} LATE, {at + 180} END, {at + 400} A"
        rows += record(s, text)
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_meds(tmp_path_factory.mktemp("by-date") / "data", people(), shards=2)


def prepared_set(data: Path, out: Path, task: TaskConfig) -> Prepared:
    config = study("splits.by=date", f"splits.from={FROM}", "vocabulary.min_subjects=1")
    prepare(data, out, study=config, tasks=[task])
    return Prepared(out)


@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_training_and_tuning_lies_after_the_date(end: str, data: Path, tmp_path: Path) -> None:
    task = a_task(censoring=ENDS[end], horizons=["30d", "60d"])
    store = prepared_set(data, tmp_path / "out", task)
    events = 0
    for split in ("train", "tuning"):
        records = store.records("t", split)
        rows = records.rows
        ends = rows.prediction_us + np.round(rows.duration_days * DAY_US).astype(np.int64)
        assert len(rows)
        assert records.timelines.end_us.max() < CUT
        assert ends.max() <= CUT
        events += int((rows.cause > 0).sum())
        potential = potential_days(records, task, store.manifest["dataset_end_us"], store.cut_us(split))
        assert (rows.duration_days <= potential + 1e-9).all()
        early = np.asarray(rows.cause == 0) & (ends < CUT)
        assert not early.any(), "everybody without an event was followed until the date"
        assert Population.of_split(store, task, split).cut_us == CUT
    assert events
    assert "LATE" not in store.vocabulary.tokens
    held_out = store.records("t", "held_out")
    assert held_out.rows.prediction_us.min() >= CUT
    assert store.cut_us("held_out") > store.manifest["dataset_end_us"]


def test_a_later_mark_tells_that_somebody_is_under_observation_and_no_more(data: Path, tmp_path: Path) -> None:
    """Whoever has an END before the index and one after the date is still observed at an index between them."""
    rows = people()
    again = [Row(s, moment(s / 2 - 1), "END") for s in range(1, 240)]
    both = write_meds(tmp_path / "both", [*rows, *again], shards=2)
    task = a_task(censoring=ENDS["a code"], horizons=["30d"])
    counts = [len(prepared_set(one, tmp_path / f"of-{one.name}", task).rows("t", "train")) for one in (data, both)]
    assert counts[0] == counts[1]


def test_a_horizon_that_nobody_can_be_followed_for_is_refused_with_the_date_that_allows_it(
    data: Path, tmp_path: Path
) -> None:
    with pytest.raises(EhrseqError, match=r"nobody of train can be followed for 200d before 2020-06-16 .*2020-09-14"):
        prepared_set(data, tmp_path / "out", a_task(horizons=["30d", "200d"]))
    assert moment(200) // DAY_US == int(np.datetime64("2020-09-14", "D").astype(int))
