"""A night of a hospital: yesterday's table comes in, a list goes out, or a sentence that names what has changed."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from helpers.command_line import ehrseq, refused
from helpers.settings import TINY

MAP = """
subject: id
time: when
death: died
static: {sex: SEX}
midnight: when
events:
  - {code: DISCHARGE, code_from: ward}
  - {code: LAB//GLUCOSE, value: glucose, unit_from: unit}
"""
TASK = """
name: death
index: {code: "DISCHARGE//*", which: every}
outcome: {death: MEDS_DEATH}
censoring: {dataset_end: true}
horizons: [30d, 1y]
"""


def stays(people: int, *, seed: int, unit: str = "mg/dL", since: str = "2000-01-01") -> pd.DataFrame:
    """One row a stay; from the day `since` on the laboratory writes its numbers in another unit."""
    rng = np.random.default_rng(seed)
    count = 3 + rng.poisson(3, people)
    rows = pd.DataFrame({"id": np.repeat(np.arange(people) + 1, count)})
    rows["when"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.uniform(0, 1400, len(rows)).round(3), unit="D")
    rows["ward"], rows["sex"] = rng.choice(["A", "B"], len(rows)), np.where(rows.id % 2, "F", "M")
    is_new = (unit != "mg/dL") & (rows.when >= since)
    rows["glucose"] = rng.normal(110, 20, len(rows)) / np.where(is_new, 18, 1)
    rows["unit"] = np.where(is_new, unit, "mg/dL")
    last = rows.groupby("id").when.transform("max")
    rows["died"] = (last + pd.Timedelta(days=40)).where(rows.id % 3 == 0)
    return rows.sort_values(["id", "when"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("hospital")
    (here / "map.yaml").write_text(MAP)
    (here / "task.yaml").write_text(TASK)
    stays(400, seed=0).to_csv(here / "past.csv", index=False)
    for words in (
        ("import", "csv", here / "past.csv", "--map", here / "map.yaml", here / "past"),
        ("prepare", here / "past", "--task", here / "task.yaml", "--out", here / "prepared"),
        ("train", here / "prepared", "--out", here / "run", *TINY),
    ):
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
    return here


def night(place: Path, table: pd.DataFrame, *more: str) -> tuple[int, dict[str, object]]:
    """The two commands of the job."""
    table.to_csv(place / "tonight.csv", index=False)
    made = ehrseq("import", "csv", place / "tonight.csv", "--map", place / "map.yaml", place / "meds", "--overwrite")
    assert made.exit_code == 0, made.output
    at = ("--at", "index", "--out", place / "risks.csv", "--strict", "--overwrite", "--json")
    done = ehrseq("predict", place / "run", place / "meds", *at, *more)
    return done.exit_code, json.loads(done.stdout)


def test_two_commands_make_the_list_of_the_newest_discharge_of_each_person(place: Path) -> None:
    code, told = night(place, stays(150, seed=1))
    assert (code, told["error"]) == (0, None)
    listed = pd.read_csv(place / "risks.csv", parse_dates=["prediction_time", "index_time"])
    assert list(listed.columns[4:9]) == ["risk", "kind", "index_time", "days_since_index", "start_days"]
    assert set(listed.kind) == {"index"}
    end = stays(150, seed=1)[["when", "died"]].stack().max()
    since = (end - listed.index_time) / pd.Timedelta(days=1)
    np.testing.assert_allclose(listed.days_since_index, since, atol=1e-3)
    newest = stays(150, seed=1).groupby("id").when.max()
    of_person = listed.groupby("subject_id").prediction_time.agg(["min", "max", "nunique"])
    assert (of_person["nunique"] == 1).all()
    gap = (of_person["max"] - newest[of_person.index]).abs()
    assert gap[gap >= pd.Timedelta("2s")].to_dict() == {}
    summary = json.loads((place / "risks.json").read_text())
    assert summary["prediction_times"] == {"index": len(of_person)}
    main = listed[listed.horizon_days == 365.25]
    is_open = (end - main.prediction_time) / pd.Timedelta(days=1) < 365.25
    for name, some in (("highest", main[is_open]), ("highest_over", main[~is_open])):
        assert [one["subject_id"] for one in summary[name]] == some.nlargest(10, "risk").subject_id.tolist()
    assert summary["over"] == (~is_open).sum() > 0
    ago = ((end - main.prediction_time) / pd.Timedelta(days=1)).median()
    assert summary["median_days_ago"] == pytest.approx(ago, rel=0.1)
    first = summary["highest"][0]
    ward = stays(150, seed=1).set_index("id").loc[first["subject_id"]].sort_values("when").ward.iloc[-1]
    assert first["moment"] == f"{first['prediction_time'][:16].replace('T', ' ')} DISCHARGE//{ward}"
    page = (place / "risks.html").read_text()
    assert page.index("The highest risks") < page.index("Their horizon of 1y has passed") < page.index("Asked: ")
    above = int((main[is_open].risk >= np.float32(summary["threshold"])).sum())
    assert summary["above"] == {"prediction_times": above, "people": above}
    assert {*summary["made_by"]} == {"run", "fingerprint", "data", "version"}
    for name in ("risks.html", "risks.json"):
        assert (place / name).stat().st_mode & 0o777 == 0o600
    assert 'src="http' not in (place / "risks.html").read_text()


@pytest.mark.parametrize(
    ("since", "words"), [("2000-01-01", "mg/dL is gone, mmol/L is new"), ("2023-06-01", "mmol/L is new")]
)
def test_the_job_of_the_night_on_which_the_unit_changes_stops_with_the_codes_name(
    since: str, words: str, place: Path
) -> None:
    (place / "risks.csv").unlink(missing_ok=True)
    code, told = night(place, stays(150, seed=2, unit="mmol/L", since=since))
    assert code == told["exit_code"] == 4
    assert f"the unit of LAB//GLUCOSE changed ({words})" in str(told["warnings"])
    assert not (place / "risks.csv").exists()
    assert "the unit of LAB//GLUCOSE changed" in (place / "risks.html").read_text()


def test_every_way_to_ask_tells_its_kind_and_its_index(place: Path, tmp_path: Path) -> None:
    data, columns = place / "past", ["subject_id", "kind", "index_time", "days_since_index"]
    for at, kinds in (
        ("all", {"index", "visit"}),
        ("last", {"index", "visit"}),
        ("every-index", {"index"}),
        ("2022-06-01", {"date"}),
    ):
        out = tmp_path / f"{at}.parquet"
        assert ehrseq("predict", place / "run", data, "--at", at, "--out", out).exit_code == 0
        table = pq.read_table(out).select([*columns, "prediction_time"]).to_pandas()
        assert set(table.kind) <= kinds
        now = pd.Timestamp(at) if kinds == {"date"} else stays(400, seed=0)[["when", "died"]].stack().max()
        np.testing.assert_allclose(table.days_since_index, (now - table.index_time) / pd.Timedelta(days=1), atol=1e-3)
        assert (table.prediction_time >= table.index_time).all()
        if at == "every-index":
            assert table.drop_duplicates().subject_id.duplicated().any()


@pytest.mark.parametrize(("at", "since"), [("index", "200d"), ("last", "2023-03-01"), ("2022-06-01", "90d")])
def test_since_keeps_the_people_whose_newest_index_is_recent(at: str, since: str, place: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "r.parquet", ("predict", place / "run", place / "past", "--at", at)
    assert ehrseq(*words, "--out", tmp_path / "all.parquet").exit_code == 0
    assert ehrseq(*words, "--since", since, "--out", out).exit_code == 0
    every, some = (pd.read_parquet(path) for path in (tmp_path / "all.parquet", out))
    end = pd.Timestamp(at) if at[0] == "2" else stays(400, seed=0)[["when", "died"]].stack().max()
    first = pd.Timestamp(since) if "-" in since else end - pd.Timedelta(since)
    assert 0 < len(some) < len(every)
    pd.testing.assert_frame_equal(every[every.index_time >= first].reset_index(drop=True), some)
    frame = eh.load(place / "run").predict(place / "past", at=at, since=since, progress=False)
    assert frame.subject_id.tolist() == some.subject_id.drop_duplicates().tolist()
    assert "--since" in refused(*words, "--since", "soon", "--out", tmp_path / "new.parquet")


@pytest.mark.parametrize("threshold", [0.0, 0.2])
def test_people_above_a_threshold_are_counted(threshold: float, place: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    assert ehrseq("predict", place / "run", place / "past", "--out", out, "--threshold", threshold).exit_code == 0
    table = pq.read_table(out).to_pandas()
    end = stays(400, seed=0)[["when", "died"]].stack().max()
    is_open = (end - table.prediction_time) / pd.Timedelta(days=1) < 365.25
    above = table[(table.horizon_days == 365.25) & (table.risk >= threshold) & is_open]
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["above"] == {"prediction_times": len(above), "people": above.subject_id.nunique()}
    assert found["threshold_from"] == "--threshold"


def test_wrong_arguments_are_noticed_before_a_model_is_loaded(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "page.html").write_text("mine")
    run.mkdir()  # no run at all: what is said first has not looked into it
    assert "'today' is not a date (use all, last, index, every-index" in refused(
        "predict", run, place / "past", "--at", "today"
    )
    assert "is not an ISO date" in refused("predict", run, place / "past", "--at", "2026-02-30")
    assert "is there already" in refused("predict", run, place / "past", "--out", tmp_path / "there.csv")
    assert "is not a folder" in refused("predict", run, tmp_path / "nowhere")
    assert "does not end in a format" in refused("predict", run, place / "past", "--out", tmp_path / "r.xlsx")
    page = refused("predict", place / "run", place / "past", "--out", tmp_path / "page.csv", "--overwrite")
    assert "page.html: is not a summary of predictions that ehrseq wrote" in page


def test_the_next_command_is_one_that_helps(place: Path, tmp_path: Path) -> None:
    stays(150, seed=2, unit="mmol/L").to_csv(tmp_path / "bad.csv", index=False)
    made = ehrseq("import", "csv", tmp_path / "bad.csv", "--map", place / "map.yaml", tmp_path / "bad", "--json")
    assert json.loads(made.stdout)["next"] == f"ehrseq check {tmp_path / 'bad'} --suggest"
    assert ehrseq("check", tmp_path / "bad", "--suggest").exit_code == 0
    for words in (("drift",), ("predict", "--strict", "--out", str(tmp_path / "r.csv"))):
        done = ehrseq(words[0], place / "run", tmp_path / "bad", *words[1:], "--json")
        assert done.exit_code == 4
        assert "ehrseq predict" not in json.loads(done.stdout)["next"]
    told = json.loads(ehrseq("drift", place / "run", place / "past", "--json").stdout)
    assert told["next"] == f"ehrseq predict {place / 'run'} {place / 'past'} --at index"
    for folder in (place / "prepared", place / "run"):
        assert "import" not in refused("check", folder)
        assert "import" not in refused("predict", place / "run", folder)


@pytest.mark.parametrize("words", [("explain",), ("explore",), ("drift",), ("serve",), ("evaluate", "--data")])
def test_a_missing_folder_is_noticed_before_the_run_is_opened(words: tuple[str, ...], tmp_path: Path) -> None:
    assert "nowhere: is not a folder" in refused(words[0], tmp_path, *words[1:], tmp_path / "nowhere")
