"""The 64 kinds of bad input (docs/data.md), each with its declared outcome: rejected, fixed and counted, accepted.

Every case goes through `ehrseq check` and `ehrseq prepare`, and through `ehrseq predict` with a run that was trained on
the clean data: no traceback, one line of error, no patient's id, date, value or text in any message, nothing
half-written. What is special to one input (training, reports, our own files) is tested below the table.
"""

import datetime as dt
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.core.outputs import MANIFEST, write_manifest
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.shards import ShardWork
from helpers.bad_inputs import (
    CANARIES,
    FIRST_ID,
    SHARD,
    SPLIT_FILE,
    TASK,
    TEXT,
    TINY,
    VALUE,
    Change,
    broken_link,
    cell,
    column,
    damage,
    day,
    done,
    edit,
    ehrseq,
    every_shard,
    file_in_place,
    insert,
    link_folder_out,
    link_out,
    move_half_of_a_record,
    new_code,
    nothing,
    one_subject,
    only,
    refused,
    together,
    write_clean,
)
from helpers.storage import snapshot


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clean(tmp_path_factory.mktemp("clean") / "meds")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "task.yaml"
    path.write_text(TASK)
    return path


@pytest.fixture(scope="module")
def prepared(clean: Path, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "set"
    done(ehrseq("prepare", clean, "--task", task, "--out", out))
    return out


@pytest.fixture(scope="module")
def run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    done(ehrseq("train", prepared, "--out", out, *TINY))
    return out


@pytest.fixture
def data(clean: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clean, tmp_path / "meds"))


class Case(NamedTuple):
    """One bad input: `says` is a part of the error (R) or of the output (A); `fixes` (F) are kind → count."""

    number: int
    name: str
    outcome: str
    spoil: Change
    says: str = ""
    fixes: Mapping[str, int] = MappingProxyType({})
    row: int | None = None  # the row that the message must name
    settings: tuple[str, ...] = ()
    predicts: bool = True  # whether `predict` meets the input as well
    task: str = TASK
    as_clean: bool = False  # whether the prepared set is, to the byte, that of the clean data


R, F, A = "R", "F", "A"
ROWS = 128  # of the shard: 20 subjects with 6 rows, 7 deaths, the rare code
CASES = [
    # schema
    Case(1, "no subject_id", R, edit(lambda t: t.drop_columns(["subject_id"])), "no column 'subject_id'"),
    Case(2, "no code", R, edit(lambda t: t.drop_columns(["code"])), "no column 'code'"),
    Case(3, "no time", R, edit(lambda t: t.drop_columns(["time"])), "no column 'time'"),
    Case(4, "string id", R, every_shard(column("subject_id", lambda c: c.cast(pa.string()))), "type string"),
    Case(5, "float id", R, every_shard(column("subject_id", lambda c: c.cast(pa.float64()))), "type double"),
    Case(6, "null id", R, cell("subject_id", 7, None), "1 rows have no subject_id", row=7),
    Case(7, "null code", R, cell("code", 8, None), "1 rows have no code", row=8),
    Case(
        7,
        "null code in a dictionary",
        R,
        column(
            "code", lambda c: pa.array([None if n == 5 else x for n, x in enumerate(c.to_pylist())]).dictionary_encode()
        ),
        "1 rows have no code",
        row=5,
    ),
    Case(8, "empty code", R, cell("code", 9, ""), "empty or blank", row=9),
    Case(9, "string time", R, every_shard(column("time", lambda c: c.cast(pa.string()))), "'time' has type string"),
    Case(
        10,
        "nanoseconds",
        F,
        every_shard(column("time", lambda c: c.cast(pa.timestamp("ns")))),
        fixes={"time_unit": 161},
        as_clean=True,
    ),
    Case(
        10,
        "dates",
        F,
        every_shard(column("time", lambda c: c.cast(pa.date32()))),
        fixes={"time_unit": 161},
        as_clean=True,
    ),
    Case(
        10,
        "milliseconds beyond microseconds",
        F,
        together(every_shard(column("time", lambda c: c.cast(pa.timestamp("ms")))), cell("time", 4, 2**62)),
        fixes={"time_unit": 161, "bad_year": 1},
    ),
    Case(11, "time zone", R, every_shard(column("time", lambda c: c.cast(pa.timestamp("us", "UTC")))), "time_zone="),
    Case(
        11,
        "time zone, clock named",
        F,
        every_shard(column("time", lambda c: c.cast(pa.timestamp("us", "UTC")))),
        fixes={"time_zone": 161},
        settings=("data.time_zone=America/New_York",),
    ),
    Case(12, "dictionary code", A, column("code", lambda c: c.dictionary_encode()), as_clean=True),
    Case(
        13,
        "float64 value",
        F,
        every_shard(column("numeric_value", lambda c: c.cast(pa.float64()))),
        fixes={"value_type": 30},
        as_clean=True,
    ),
    Case(
        13,
        "integer value",
        F,
        every_shard(
            column(
                "numeric_value", lambda c: pa.array([None if x is None else 2**60 for x in c.to_pylist()], pa.int64())
            )
        ),
        fixes={"value_type": 30},
    ),
    Case(14, "types differ by shard", R, column("time", lambda c: c.cast(pa.timestamp("ns"))), "is timestamp["),
    Case(14, "value types differ", R, column("numeric_value", lambda c: c.cast(pa.float64())), "'numeric_value' is"),
    Case(
        14,
        "string and integer widths differ",
        A,
        together(
            column("code", lambda c: c.cast(pa.large_string())), column("subject_id", lambda c: c.cast(pa.int32()))
        ),
        as_clean=True,
    ),
    Case(
        15,
        "extra and index columns",
        A,
        edit(
            lambda t: t.append_column("__index_level_0__", pa.array(range(len(t)))).append_column(
                "notes", pa.array([[{"a": TEXT}]] * len(t))
            )
        ),
        as_clean=True,
    ),
    Case(
        16,
        "list of codes",
        R,
        every_shard(column("code", lambda c: pa.array([[x] for x in c.to_pylist()]))),
        "'code' has type list",
    ),
    Case(17, "duplicate column", R, edit(lambda t: t.append_column("code", t["code"])), "'code' twice"),
    # identity
    Case(
        18,
        "unsorted times",
        F,
        edit(lambda t: t.take([0, 1, 3, 2, *range(4, len(t))])),
        as_clean=True,
        fixes={"unsorted": 1},
    ),
    Case(
        19,
        "scattered rows",
        F,
        edit(lambda t: t.take([*range(6), *range(7, len(t)), 6])),
        fixes={"not_contiguous": 1},
        as_clean=True,
    ),
    Case(20, "subject in two shards", R, move_half_of_a_record, "a subject is in two shards"),
    Case(
        21,
        "duplicate rows",
        F,
        edit(lambda t: t.take([0, 1, 2, 2, 2, *range(3, len(t))])),
        fixes={"duplicates": 2},
        as_clean=True,
    ),
    Case(
        22,
        "subject in two splits",
        R,
        edit(lambda t: pa.concat_tables([t, pa.table({"subject_id": [FIRST_ID], "split": ["tuning"]})]), SPLIT_FILE),
        "in two splits",
        predicts=False,
    ),
    Case(23, "subject without a split", R, edit(lambda t: t.slice(1), SPLIT_FILE), "have no split", predicts=False),
    Case(
        24,
        "split of an absent subject",
        F,
        edit(
            lambda t: pa.concat_tables([t, pa.table({"subject_id": [FIRST_ID + 99], "split": ["train"]})]), SPLIT_FILE
        ),
        fixes={"absent_split": 1},
        as_clean=True,
    ),
    Case(
        25,
        "unknown split",
        R,
        column("split", lambda c: pa.array(["test", *c.to_pylist()[1:]]), SPLIT_FILE),
        "unknown split",
        predicts=False,
    ),
    # time
    Case(
        26,
        "after the extraction",
        R,
        insert((1, day(400), "A")),
        "after the date of extraction",
        row=14,
        settings=("data.extracted=2019-12-31",),
    ),
    Case(27, "year 1850", F, insert((1, dt.datetime(1850, 1, 1), "A")), fixes={"bad_year": 1}, as_clean=True),
    Case(
        27,
        "year 9999",
        F,
        insert((1, dt.datetime(9999, 12, 31), "A")),
        fixes={"bad_year": 1},
        as_clean=True,
        settings=("data.extracted=2030-01-01",),
    ),
    Case(28, "before birth", F, insert((1, dt.datetime(1930, 1, 1), "A")), fixes={"before_birth": 1}, as_clean=True),
    Case(
        29,
        "two births",
        R,
        insert((1, dt.datetime(1850, 1, 1), "A"), (1, dt.datetime(1950, 1, 2), "MEDS_BIRTH")),
        "two births",
    ),
    Case(30, "no birth", A, only(lambda r: r["code"] != "MEDS_BIRTH"), "20 without a birth"),
    Case(31, "after death", F, insert((0, day(40), "A")), fixes={"after_death": 1}, as_clean=True),
    Case(32, "age over 120", F, cell("time", 1, dt.datetime(1850, 1, 1)), fixes={"old_age": 4}),
    Case(33, "static rows", A, insert((1, None, "RACE//X")), "31 without a time"),
    Case(34, "only static rows", F, insert((-1, None, "SEX//F")), fixes={"static_only": 1}, as_clean=True),
    Case(35, "equal timestamps", A, insert(*((1, day(0), f"X//{n}") for n in range(50)))),
    Case(36, "29 February", A, insert((1, dt.datetime(2020, 2, 29, 23, 59), "A"))),
    Case(
        37,
        "a gap of a century",
        A,
        together(
            only(lambda r: r["code"] != "MEDS_BIRTH" or r["subject_id"] != FIRST_ID + 1),
            insert((1, dt.datetime(1915, 5, 5), "A")),
        ),
    ),
    # values
    *(
        Case(number, name, F, cell("numeric_value", 3, value), fixes={"bad_value": 1})
        for number, name, value in (
            (38, "NaN", float("nan")),
            (39, "+inf", float("inf")),
            (39, "-inf", float("-inf")),
            (40, "1e38", 1e38),
        )
    ),
    Case(41, "a code of 1 MB", R, cell("code", 4, "X" * 1_000_000), "over 1 MB", row=4),
    Case(41, "a code of 1 MB in 250,000 signs", R, cell("code", 4, "😀" * 250_000), "over 1 MB", row=4),
    Case(42, "emoji and right to left", A, new_code("DX//😀 שלום \u202e")),
    Case(43, "NUL in a code", R, cell("code", 4, "A\0B"), "line break or a NUL", row=4),
    Case(43, "newline in a code", R, cell("code", 4, "A\nB"), "line break or a NUL", row=4),
    Case(44, "a code of blanks", R, cell("code", 4, " \t\u3000"), "empty or blank", row=4),
    # 81 supersedes 45: such a code is a code
    *(Case(45, name, A, new_code(name)) for name in ("[PAD]", "[UNK]", "[UNK//DX]", "[D]Chest pain", "LAST//LAB//A")),
    Case(46, "<script>", A, new_code("<script>alert(1)</script>")),
    Case(47, "text_value", A, edit(lambda t: t.append_column("text_value", pa.array([TEXT] * len(t)))), as_clean=True),
    # cohort
    Case(
        48,
        "empty shard",
        A,
        lambda data: pq.write_table(
            pa.table({name: pa.nulls(0) for name in ("subject_id", "time", "code")}), data / "data/train/1.parquet"
        ),
        as_clean=True,
    ),
    Case(49, "no subjects", R, every_shard(edit(lambda t: t.slice(0, 0))), "holds no subject"),
    Case(50, "one subject", A, one_subject, "1 train"),
    Case(51, "one visit", A, only(lambda r: r["code"] in ("A", "MEDS_DEATH"))),
    Case(53, "10,000 visits", A, insert(*((1, day(30 + n), "A") for n in range(10_000)))),
    Case(
        54, "5,000 codes in a visit", A, insert(*((1, day(9), f"X//{n}") for n in range(5_000))), as_clean=True
    ),  # of one subject, beside its rare code: all are the one unknown code
    Case(55, "no event of interest", A, every_shard(only(lambda r: r["code"] != "MEDS_DEATH")), "0 death"),
    Case(
        56,
        "event at the index",
        F,
        insert(*((s, day(0), "OUT") for s in (1, 2))),
        "(−2)",
        task=TASK.replace("MEDS_DEATH", "OUT"),
        predicts=False,
    ),
    Case(
        57,
        "event after the censoring",
        F,
        insert((1, day(12), "END"), (1, day(25), "OUT"), (2, day(25), "OUT")),
        fixes={"after_censoring": 1},
        task=TASK.replace("MEDS_DEATH", "OUT") + "censoring: {code: END}\n",
        predicts=False,
    ),
    Case(
        60,
        "unknown cause",
        R,
        nothing,
        "no code of the data matches",
        predicts=False,
        task=TASK.replace("MEDS_DEATH", "MEDS_DETH"),
    ),
    # files
    Case(61, "zero bytes", R, damage(lambda b: b""), "cannot be read as Parquet"),
    Case(62, "truncated", R, damage(lambda b: b[: len(b) // 2]), "cannot be read as Parquet"),
    Case(
        63,
        "a flipped bit under a checksum",
        R,
        together(
            edit(lambda t: t, write_page_checksum=True, compression="none"),
            damage(lambda b: b.replace(b"LAB//X", b"LAB//Y", 1)),
        ),
        "cannot be read as Parquet",
    ),
    Case(64, "a link out of the folder", R, link_out, "is a link out of the data set"),
    Case(64, "a linked folder", R, link_folder_out, "is a link to a folder"),
    *(
        Case(64, f"a broken link at {place}", R, broken_link(place), "a link to a folder or to nothing", predicts=False)
        for place in ("data/held_out", "data/held_out/0.parquet", SPLIT_FILE)
    ),
    Case(64, "metadata that is a file", R, file_in_place("metadata"), "cannot be listed"),
]
ELSEWHERE = {  # inputs that are no records: each has a test of its own below
    50: "test_one_subject_cannot_train",
    52: "test_an_empty_visit_has_a_finite_answer",
    55: "test_no_event_of_interest_cannot_train_and_is_undefined_in_evaluation",
    58: "test_records_of_unknown_codes_only_are_answered_and_the_rate_is_told",
    59: "test_a_vocabulary_that_is_not_the_models_is_refused",
    60: "test_a_label_of_an_unknown_cause_is_refused",
    63: "test_flipped_bytes_of_foreign_parquet_never_show_a_traceback",  # and ours: tests/faults/test_faults.py
}


def test_every_input_of_the_list_has_its_case() -> None:
    assert {case.number for case in CASES} | set(ELSEWHERE) == set(range(1, 65))
    assert set(ELSEWHERE.values()) <= set(globals())
    fixed = {case.number for case in CASES if case.outcome == F}
    assert fixed == {10, 11, 13, 18, 19, 21, 24, 27, 28, 31, 32, 34, 38, 39, 40, 56, 57}
    accepted = {case.number for case in CASES if case.outcome == A}
    assert accepted == {12, 14, 15, 30, 33, 35, 36, 37, 42, 45, 46, 47, 48, 50, 51, 53, 54, 55}


#: One form of each kind in `make test`; the others in `make test-all`.
FIRST = {case.number: case.name for case in reversed(CASES)}
FORMS = [
    pytest.param(case, id=f"{case.number}-{case.name}", marks=[pytest.mark.slow] * (FIRST[case.number] != case.name))
    for case in CASES
]


@pytest.mark.parametrize("case", FORMS)
def test_a_bad_input_ends_as_declared(case: Case, data: Path, prepared: Path, run: Path, tmp_path: Path) -> None:
    case.spoil(data)
    task = tmp_path / "task.yaml"
    task.write_text(case.task)
    before = snapshot(tmp_path)
    written, store, risks = tmp_path / "check.json", tmp_path / "set", tmp_path / "p.parquet"
    prepare = ehrseq("prepare", data, *case.settings, "--task", task, "--out", store)
    check = predict = None
    if not case.as_clean:  # what becomes the clean data is checked and answered as that
        check = ehrseq("check", data, *case.settings, "--task", task, "--out", written)
        if case.predicts:
            predict = ehrseq("predict", run, data, *case.settings, "--out", risks, "--at", "last")
    if case.outcome == R:
        assert snapshot(tmp_path) == before, "something was left behind"
        for result in filter(None, (check, prepare, predict)):
            line = refused(result)
            assert case.says in line or (case.number == 49 and "nobody has a prediction time" in line)
            assert case.row is None or f"row {case.row}:" in line or f"row {case.row}," in line
        return
    for output in (done(result) for result in (check, prepare) if result):
        assert output.count("fixed: ") == len(case.fixes)
        assert all(f"fixed: {count:,} " in output for count in case.fixes.values())
    assert read_json(store / MANIFEST)["fixes"] == case.fixes
    if check is not None:
        text = written.read_text()
        assert not any(canary in text for canary in CANARIES)
        assert {fix["kind"]: fix["count"] for fix in json.loads(text)["fixes"]} == case.fixes
    assert check is None or case.says in check.output
    assert predict is None or done(predict)
    found, clean = arrays_of(store), arrays_of(prepared)
    if case.settings:  # the day of the export stands in the counts of how follow-up ends, and who is followed
        for name in ("tasks/t/attrition.json", "people.json"):
            del found[name], clean[name]
    assert case.as_clean == (found == clean)
    assert not any("tmp" in name for name in snapshot(tmp_path) if "meds" not in name)


def arrays_of(store: Path) -> dict[str, str]:
    """The hashes of a prepared set's arrays and labels."""
    return {name: hashed for name, hashed in read_json(store / MANIFEST)["files"].items() if name != "config.yaml"}


def test_the_clean_data_is_clean(clean: Path, task: Path, prepared: Path) -> None:
    """Without it, a fix that is always counted, or a canary that is never there, would pass above."""
    assert "nothing to fix" in done(ehrseq("check", clean, "--task", task))
    assert read_json(prepared / MANIFEST)["fixes"] == {}
    table = pq.read_table(clean / SHARD, partitioning=None)
    assert len(table) == ROWS
    assert str(FIRST_ID).startswith("9120001")
    assert {VALUE} < set(table["numeric_value"].to_pylist())
    assert "2019-03-17" in str(table["time"][2])


# ---- what is special to one input -----------------------------------------------------------------------------------


def test_one_subject_cannot_train(data: Path, task: Path, tmp_path: Path) -> None:
    one_subject(data)
    done(ehrseq("prepare", data, "--task", task, "--out", tmp_path / "set"))
    refused(ehrseq("train", tmp_path / "set", "--out", tmp_path / "run", *TINY))
    assert not (tmp_path / "run").exists()


def test_an_empty_visit_has_a_finite_answer(run: Path) -> None:
    codes = torch.tensor([[[2, 3], [0, 0]]])
    mask = torch.tensor([[[True, True], [False, False]]])
    ages, gaps, visits = torch.tensor([[50.0, 51.0]]), torch.tensor([[0.0, 9.0]]), torch.ones(1, 2, dtype=torch.bool)
    model = Run(run).model
    risk = model.risk(VisitBatch.from_padded(codes, mask, ages, gaps, visits), horizons_days=[10.0])
    assert torch.isfinite(risk).all()
    assert ((risk > 0) & (risk < 1)).all()


def test_no_event_of_interest_cannot_train_and_is_undefined_in_evaluation(
    data: Path, task: Path, run: Path, tmp_path: Path
) -> None:
    every_shard(only(lambda r: r["code"] != "MEDS_DEATH"))(data)
    done(ehrseq("prepare", data, "--task", task, "--out", tmp_path / "set"))
    assert "no event of interest" in refused(ehrseq("train", tmp_path / "set", "--out", tmp_path / "run", *TINY))
    assert not (tmp_path / "run").exists()
    external = ("--data", data, "--out", tmp_path / "external", "--baselines", "none", "evaluation.bootstrap=0")
    assert "too few events, nothing is compared" in done(ehrseq("evaluate", run, *external))


def test_records_of_unknown_codes_only_are_answered_and_the_rate_is_told(data: Path, run: Path, tmp_path: Path) -> None:
    strange = column("code", lambda c: pa.array([x if x.startswith("MEDS_") else f"Z//{x}" for x in c.to_pylist()]))
    every_shard(strange)(data)
    out = ("--out", tmp_path / "p.parquet")
    assert "100.0% of the rows have a code that the run does not know" in refused(ehrseq("predict", run, data, *out))
    assert "100.0% of the rows" in done(ehrseq("predict", run, data, *out, "--force"))
    assert pq.read_table(tmp_path / "p.parquet").num_rows > 0
    external = ("--data", data, "--out", tmp_path / "external", "--baselines", "none", "evaluation.bootstrap=0")
    done(ehrseq("evaluate", run, *external))
    told = json.loads((tmp_path / "external" / "metrics.json").read_text())["external"]
    assert told["unknown_token_rate"] == 1.0
    assert told["training_unknown_token_rate"] is None  # fewer than 11 training people have such a row


def test_a_vocabulary_that_is_not_the_models_is_refused(clean: Path, run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "run"))
    vocabulary = read_json(other / "vocabulary.json")
    first = vocabulary["tokens"].index("A")
    vocabulary["tokens"][first] = "a code of the same length in its place"
    write_json(other / "vocabulary.json", vocabulary)
    predict = ("predict", other, clean, "--out", tmp_path / "p.parquet")
    assert "has changed since it was written" in refused(ehrseq(*predict))
    manifest = read_json(other / MANIFEST)
    write_manifest(other, {name: value for name, value in manifest.items() if name != "files"})
    assert "vocabulary is not the one" in refused(ehrseq(*predict))
    assert not (tmp_path / "p.parquet").exists()


def test_a_label_of_an_unknown_cause_is_refused(run: Path) -> None:
    batch = VisitBatch.from_padded(
        torch.tensor([[[2]]]),
        torch.ones(1, 1, 1, dtype=torch.bool),
        torch.tensor([[50.0]]),
        torch.tensor([[0.0]]),
        torch.ones(1, 1, dtype=torch.bool),
        at_risk=torch.ones(1, 1, dtype=torch.bool),
        duration_days=torch.tensor([[5.0]]),
        cause=torch.tensor([[2]]),
    )
    with pytest.raises(EhrseqError, match="one of 1 causes"):
        Run(run).model.loss(batch)


@pytest.mark.parametrize("file", [SHARD, SPLIT_FILE])
def test_flipped_bytes_of_foreign_parquet_never_show_a_traceback(data: Path, file: str) -> None:
    """Where decoding shows it, it is refused; where not, nobody can know. Every 17th byte, footer included."""
    raw = (data / file).read_bytes()
    refused = 0
    for position in range(0, len(raw), 17):
        spoiled = bytearray(raw)
        spoiled[position] ^= 0x11
        (data / file).write_bytes(spoiled)
        try:
            work = ShardWork.of_study(data, StudyConfig(), [])
            for events in work.reader:
                work.lookup(events.subjects[0])
        except EhrseqError:
            refused += 1
    assert 0 < refused < len(raw) // 17
