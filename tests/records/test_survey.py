"""Where a data set ends: at its last row on clean data, and not at a few rows decades later."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.records.attrition import task_warnings
from ehrsequencing.records.check import check_data
from ehrsequencing.records.events import Events
from ehrsequencing.records.meds import MedsReader
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.survey import DayCounts, Part, find_late_rows, survey
from helpers.cohorts import a_task
from helpers.meds import DAY_US, SPLITS, Row, record, us, write_meds

START, LATE = us("2015-01-01"), us("2099-12-31")
TASK = TaskConfig.model_validate(
    {
        "name": "t",
        "index": {"code": "A"},
        "outcome": {"death": ["MEDS_DEATH"]},
        "censoring": {"dataset_end": True},
        "horizons": ["30d"],
    }
)


def people(n: int = 40, days: int = 600) -> list[Row]:
    """Each is born, enters on a day of their own and has a row a month; every fifth dies."""
    rows = []
    for s in range(n):
        at = [s * 7 + 30 * k for k in range(8)]
        text = ", ".join(["-20000 MEDS_BIRTH", f"{at[0]} A", *(f"{day} B" for day in at[1:])])
        rows += record(s, text + (f", {at[-1] + 3} MEDS_DEATH" if s % 5 == 0 else ""), start=START)
    return [*rows, Row(1, START + days * DAY_US, "B")]


def written(folder: Path, rows: Sequence[Row], *, shards: int = 1) -> Path:
    splits = {s: ("train", "tuning", "held_out")[s % 3] for s in {row.subject for row in rows}}
    return write_meds(folder, rows, splits=splits, shards=shards)


class Nothing(Part):
    def add(self, events: Events) -> None:
        pass


def plain_end(data: Path) -> int:
    """The last timestamp in the files."""
    return max(
        int(pc.max(pq.read_table(p, columns=["time"])["time"].cast(pa.int64())).as_py())
        for p in (data / "data").rglob("*.parquet")
    )


# ---- clean data: nothing is late -------------------------------------------------------------------------------------

SHARED = ("delphi_sim_meds", "nafld_meds", "pbc2_meds")


@pytest.mark.parametrize(
    "name", [*SHARED, *(pytest.param(n, marks=pytest.mark.slow) for n in ("physionet2012_meds", "mimic4_demo_meds"))]
)
def test_real_records_end_at_their_last_row(real_data: Path, name: str) -> None:
    """MIMIC's dates are shifted person by person over a century: gaps of years are nothing there."""
    reader = MedsReader(real_data / name)
    found = survey(reader, Nothing).days
    assert reader.late is None
    assert found.last_us == plain_end(real_data / name)


def days_of(day: Sequence[int], rows: Sequence[int], leaving: Sequence[int], births: Sequence[int] = ()) -> DayCounts:
    of = np.array(births or [0] * len(day))
    none = np.zeros(len(day), np.int64)
    return DayCounts(np.array(day), np.array(rows), of, none, np.array(leaving), day[-1] * DAY_US, 0, 0)


CENTURY = 36_525
LATE_OR_NOT: dict[str, tuple[list[int], list[int], list[int], bool]] = {  # days, rows and people's last rows of each
    "a lone row": ([0, 10, CENTURY], [500, 500, 1], [50, 49, 1], True),
    "more than 1 % of the rows": ([0, 10, CENTURY], [500, 500, 11], [50, 49, 1], False),
    "more than 5 % of the people": ([0, 10, CENTURY], [500, 500, 6], [50, 44, 6], False),
    "few people, under ten years": ([0, 10, 3_000], [500, 500, 1], [49, 49, 1], False),
    "many people, under ten years": ([0, 10, 3_000], [500, 500, 1], [150, 49, 1], True),
    "under a year": ([0, 10, 370], [500, 500, 1], [150, 49, 1], False),
    "gaps are usual": ([0, 13_000, CENTURY + 10_000], [500, 500, 1], [150, 49, 1], False),
    "too few people to tell": ([0, 10, CENTURY], [50, 50, 1], [5, 3, 1], False),
}


@pytest.mark.parametrize("case", LATE_OR_NOT)
def test_what_is_late(case: str) -> None:
    *counts, is_late = LATE_OR_NOT[case]
    assert (find_late_rows(days_of(*counts)) is not None) == is_late


def test_an_early_stray_row_hides_no_late_one() -> None:
    found = find_late_rows(days_of([-40_000, 0, 10, 30_000], [1, 500, 500, 1], [0, 150, 49, 1]))
    assert found is not None
    assert (found.rows, found.subjects, found.until_us) == (1, 1, 11 * DAY_US - 1)


def test_births_fill_no_gap_but_may_come_late_themselves() -> None:
    """Births spread over decades tell nothing about gaps; a birth after all rows is an error like any other."""
    old = days_of([-20_000, -10_000, 0, 10, 30_000], [0, 0, 500, 500, 1], [0, 0, 150, 49, 1], [100, 100, 0, 0, 0])
    assert find_late_rows(old) is not None
    unborn = find_late_rows(days_of([0, 10, 30_000], [500, 500, 0], [150, 49, 1], [0, 0, 1]))
    assert unborn is not None
    assert unborn.rows == 1


# ---- late rows: the same as if they had never been there -------------------------------------------------------------


def arrays(store: Path) -> dict[str, str]:
    """The hashes of all arrays and of the vocabulary."""
    files = read_json(store / MANIFEST)["files"]
    return {name: hashed for name, hashed in files.items() if name.endswith(".npy") or name.startswith("vocabulary")}


STRAYS = {
    "a lone row": [Row(7, LATE, "B")],
    "an open end, a typing error, a new code, a number": [
        Row(7, LATE, "B"),
        Row(7, LATE + DAY_US, "NEW"),
        Row(8, us("2051-05-05"), "B", 3.0),
    ],
    "a death": [Row(7, LATE, "MEDS_DEATH")],
    "a birth after all rows": [Row(7, LATE, "MEDS_BIRTH")],
}


@pytest.mark.parametrize("strays", STRAYS.values(), ids=STRAYS)
def test_late_rows_leave_a_prepared_set_as_it_is_without_them(tmp_path: Path, strays: list[Row]) -> None:
    """Labels, vocabulary and visits; and the manifest says what was left out."""
    rows = [row for row in people() if row.subject != 7 or row.code != "MEDS_BIRTH"]  # only the stray birth is theirs
    stores = [tmp_path / "clean-set", tmp_path / "stray-set"]
    for store, more in zip(stores, ([], strays), strict=True):
        data = written(tmp_path / store.name[:5], [*rows, *more], shards=2)
        prepare(data, store, study=load_study(None), tasks=[TASK])
    clean, stray = (read_json(store / MANIFEST) for store in stores)
    assert clean["dataset_end_us"] == stray["dataset_end_us"] == START + 600 * DAY_US
    assert arrays(stores[0]) == arrays(stores[1])
    assert clean["fixes"] == {}
    assert clean["late_rows"] is None
    if strays[0].code == "MEDS_BIRTH":  # it is impossible before it is late
        assert stray["fixes"] == {"late_birth": 1}
        return
    assert stray["fixes"] == {"after_end": len(strays)}
    late = stray["late_rows"]
    assert (late["rows"], late["subjects"]) == (len(strays), len({row.subject for row in strays}))
    assert late["years"][1] in (2099, 2100)
    assert set(Prepared(stores[1]).rows("t", "train").cause.tolist()) == {0, 1}, "not everybody is followed for ever"


def test_a_declared_end_refuses_later_rows_and_calls_none_late(tmp_path: Path) -> None:
    data = written(tmp_path / "data", [*people(), *STRAYS["a lone row"]])
    with pytest.raises(EhrseqError, match="after the date of extraction"):
        prepare(data, tmp_path / "set", study=load_study(None, ["data.extracted=2030-01-01"]), tasks=[TASK])
    prepare(data, tmp_path / "set", study=load_study(None, ["data.extracted=2100-01-01"]), tasks=[TASK])
    manifest = read_json(tmp_path / "set" / MANIFEST)
    assert manifest["late_rows"] is None
    assert "after_end" not in manifest["fixes"]
    assert manifest["dataset_end_us"] == us("2100-01-02") - 1  # all of that day


def test_an_event_of_the_declared_day_is_an_event(tmp_path: Path) -> None:
    """The day of extraction is the last one that was recorded, and all of it was."""
    rows = [*people(), Row(1, START + 600 * DAY_US + DAY_US // 2, "MEDS_DEATH")]
    data, declared = written(tmp_path / "data", rows), str(np.datetime64(START + 600 * DAY_US, "us"))[:10]
    ends = {}
    for name, settings in (("declared", [f"data.extracted={declared}"]), ("found", [])):
        prepare(data, tmp_path / name, study=load_study(None, settings), tasks=[TASK])
        kept = Prepared(tmp_path / name)
        ends[name] = sum(int(kept.rows("t", split).cause.sum()) for split in ("train", "tuning", "held_out"))
    assert ends["declared"] == ends["found"] > 0


def test_open_deaths_hide_no_stray_row_and_stray_rows_no_open_deaths() -> None:
    far = 30_000  # 2052
    of = {"births": np.zeros(5, np.int64), "last_us": far * DAY_US, "static": 0, "with_number": 0}

    def days(*day: int, rows: Sequence[int], deaths: Sequence[int], leaving: Sequence[int]) -> DayCounts:
        columns = (np.array(one) for one in (day, rows, deaths, leaving))
        (at, counted, died, left), none = columns, np.zeros(len(day), np.int64)
        return DayCounts(day=at, rows=counted, deaths=died, leaving=left, **of | {"births": none})

    stray = days(0, 10, 26_000, far, rows=[500, 500, 1, 1], deaths=[0, 0, 0, 1], leaving=[150, 48, 1, 1])
    found = find_late_rows(stray)
    assert found is not None
    assert found.rows == 2, "the row of 2041 and the death of 2052"
    many = days(0, 10, far - 365, far, rows=[500, 500, 1, 150], deaths=[0, 0, 0, 150], leaving=[0, 49, 1, 150])
    found = find_late_rows(many)
    assert found is not None
    assert found.rows == 151
    assert found.until_us == 11 * DAY_US - 1


def test_people_without_a_record_before_they_are_asked_are_counted(tmp_path: Path) -> None:
    """By hand: three aged 50 at day 0; asked then and 30 days later."""
    birth = f"{-round(50 * 365.25)} MEDS_BIRTH"
    rows = [
        *record(0, f"{birth}, -9 A, 90 B", start=START),  # seen before
        *record(1, f"{birth}, 9 A, 90 B", start=START),  # seen between the two questions
        *record(2, f"{birth}, 60 A, 90 B", start=START),  # seen after both
        *record(3, f"{birth}, 90 MEDS_DEATH", start=START),  # never seen: a death is no record of a visit
    ]
    task = TASK.model_copy(
        update={"index": TASK.index.model_validate({"age": "50y"}), "landmarks": (0.0, 30.0), "horizons": (60.0,)}
    )
    data = write_meds(tmp_path / "data", rows, splits={0: "train", 1: "train", 2: "held_out", 3: "held_out"})
    prepare(data, tmp_path / "set", study=load_study(None), tasks=[task])
    attrition = Prepared(tmp_path / "set").attrition("t")

    def told(part: dict[str, list[dict[str, int]]]) -> list[tuple[int, ...]]:
        names = ("landmark_days", "subjects", "without_record_before", "first_record_later")
        return [tuple(row[name] for name in names) for row in part["records_before"]]

    assert told(attrition) == [(0, 4, 3, 2), (30, 4, 2, 1)]
    assert told(attrition["splits"]["train"]) == [(0, 2, 1, 1), (30, 2, 0, 0)]
    found = check_data(data, study=load_study(None), tasks=[task]).tasks[0]
    assert found.attrition["records_before"] == attrition["records_before"]
    assert any("immortal time" in text for text in found.warnings)


@pytest.mark.parametrize("rule", [{"code": "END"}, {"dataset_end": True}, {}])
@pytest.mark.parametrize("causes", [{}, {"outcome": {"out": "OUT"}, "competing": {"death": "MEDS_DEATH"}}])
def test_time_and_event_end_at_one_place_for_all(tmp_path: Path, rule: dict[str, Any], causes: dict[str, Any]) -> None:
    """By hand: of 423 people followed for up to 868 days, one dies on day 2,000 and another on day 2,100.

    Where the living are cut, deaths that are kept would select on the outcome.
    """
    rows = [row for s in range(420) for row in record(s, f"0 A, {30 + 2 * s} {'END' if s % 3 else 'MEDS_DEATH'}")]
    rows += record(420, "0 A, 2000 MEDS_DEATH") + record(421, "0 A, 1900 OUT2, 2100 MEDS_DEATH")
    rows += record(422, "0 A, 2050 OUT2") + record(423, "0 A, 5 OUT, 9 END")
    dies = causes or {"outcome": {"death": "MEDS_DEATH"}}
    task = a_task(index={"code": "A"}, horizons=["1y"], censoring=rule, landmarks=["0d", "1500d"], **dies)
    prepare(written(tmp_path / "data", rows), tmp_path / "set", study=load_study(None), tasks=[task])
    store, manifest = Prepared(tmp_path / "set"), read_json(tmp_path / "set" / MANIFEST)
    events, said = store.attrition("t")["events"], task_warnings(task, store.attrition("t"))
    assert (events["death"], sum(events.values())) == (140, 424)
    assert manifest["fixes"] == {"after_end": 4}, "of the one who lives, and of those who die then"
    assert any(text.startswith("<11 events death lie after the data's end") for text in said)
    parts = [store.rows("t", split) for split in SPLITS]
    days = np.sort(np.concatenate([part.duration_days for part in parts]))
    assert days[-1] == 868, "nobody is followed past the data's end"
    assert all((part.prediction_us <= manifest["dataset_end_us"]).all() for part in parts), "no landmark after it"
