"""The pages that go from records to a report run as they are written, on the sample data that they name."""

import doctest
import json
import re
import shlex
import shutil
from pathlib import Path
from textwrap import dedent

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import ehrsequencing as eh
from ehrsequencing.api import progress
from ehrsequencing.cli import main
from ehrsequencing.config import load_task
from helpers.command_line import ehrseq
from helpers.omop import hospital, write_csv
from helpers.settings import TINY

DOCS = Path(__file__).parents[1] / "docs"
SAMPLES = {  # page → the sample data that it names, and what it calls them
    "data-omop.md": ("mimic4_demo_omop", "omop_csv"),
    "data-fhir.md": ("pysynthea_fhir", "fhir_export"),
    "data-synthea.md": ("synthea_csv_unmc", "synthea_csv"),
    "data-csv.md": ("synthea_csv_unmc/encounters.csv.gz", "encounters.csv.gz"),
    "data-meds.md": ("mimic4_demo_meds", "meds"),
}


def commands(page: str) -> list[list[str]]:
    """Every command of ours on a page, as arguments."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [shlex.split(line)[1:] for line in re.findall(r"^    (ehrseq .+)$", text, re.MULTILINE)]


def blocks(page: str, first: str) -> list[str]:
    """Every indented block whose first line begins so."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [dedent(block) for block in re.findall(rf"(?m)^    {first}.*\n(?:    .+\n)+", text)]


def in_folder(page: str, real_data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder that has what the page says is there: its sample data, its task file and its map."""
    source, name = SAMPLES[page]
    if page == "data-omop.md":
        pytest.importorskip("ibis", reason="needs the extra omop")
    if page == "data-fhir.md":
        pytest.importorskip("duckdb", reason="needs the extra fhir")
    monkeypatch.chdir(folder)
    if (real_data / source).is_dir():
        shutil.copytree(real_data / source, name, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(real_data / source, name)
    Path("task.yaml").write_text(blocks(page, "name: ")[0], encoding="utf-8")
    for text in blocks(page, "subject: "):
        Path("map.yaml").write_text(text, encoding="utf-8")


def type_in(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["ehrseq", *arguments])
    monkeypatch.setattr(progress, "stamps", False)  # `main` sets it for its process
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, arguments


@pytest.mark.parametrize("page", SAMPLES)
def test_every_task_on_a_page_is_a_task(page: str, tmp_path: Path) -> None:
    tasks = blocks(page, "name: ")
    assert tasks
    for text in tasks:
        (tmp_path / "task.yaml").write_text(text, encoding="utf-8")
        assert load_task(tmp_path / "task.yaml").horizons


@pytest.mark.parametrize("page", ["data-synthea.md", "data-csv.md"])
def test_the_commands_of_a_page_get_to_a_prepared_set(
    page: str, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder(page, real_data, tmp_path, monkeypatch)
    for arguments in commands(page):
        if arguments[0] in ("import", "codes", "check", "prepare"):
            type_in(arguments, monkeypatch)
    assert Path("prepared/tasks/emergency/cohort.parquet").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("page", SAMPLES)
def test_a_reader_who_types_a_page_gets_a_report(
    page: str, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder(page, real_data, tmp_path, monkeypatch)
    for arguments in commands(page):
        type_in(arguments, monkeypatch)
    out = "study/run" if page == "data-omop.md" else "run"
    assert Path(out, "report.html").stat().st_size > 0


def test_from_omop_to_a_report_in_two_commands_and_600_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page as it is written, on a small hospital, with a model that trains in seconds."""
    pytest.importorskip("ibis", reason="needs the extra omop")
    typed = commands("data-omop.md")
    assert [arguments[0] for arguments in typed] == ["import", "run"]
    assert len((DOCS / "data-omop.md").read_text(encoding="utf-8").split()) <= 600
    monkeypatch.chdir(tmp_path)
    write_csv(hospital(), Path("omop_csv"))
    Path("task.yaml").write_text(blocks("data-omop.md", "name: ")[0], encoding="utf-8")
    type_in(typed[0], monkeypatch)
    tiny = [
        "model.dim=16",
        "model.heads=2",
        "model.layers=1",
        "training.epochs=1",
        "training.min_steps=2",
        "training.distillation=0",
        "training.blend=false",
    ]
    type_in([*typed[1], *tiny, "evaluation.bootstrap=0", "evaluation.baselines=none"], monkeypatch)
    assert "emergency" in Path("study/run/report.html").read_text(encoding="utf-8")


# ---- the tutorial: its Python, its task file and its commands, in order ----------------------------------------------


def first_rows(meds: Path) -> list[str]:
    """The first six rows of patient 1, as the page prints them."""
    tables = [pq.read_table(path) for path in sorted((meds / "data").rglob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist() if row["subject_id"] == 1][:6]
    times = [f"{row['time']:%Y-%m-%d %H:%M}" if row["time"] else "" for row in rows]
    numbers = ["" if row["numeric_value"] is None else f"{row['numeric_value']:g}" for row in rows]
    return [f"1,{t},{row['code']},{n}" for t, row, n in zip(times, rows, numbers, strict=True)]


@pytest.mark.slow
def test_a_reader_who_types_the_tutorial_gets_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    results = doctest.testfile(str(DOCS / "tutorial.md"), module_relative=False, encoding="utf-8")
    assert results.attempted > 3
    assert results.failed == 0
    for name, first in {"death.yaml": "name: death", "map.yaml": "subject: id"}.items():
        (block,) = blocks("tutorial.md", first)
        Path(name).write_text(block, encoding="utf-8")
    every = commands("tutorial.md")
    typed = every[:-HOSPITAL]
    steps = ["import", "check", "prepare", "train", "evaluate", "audit", "predict"]
    assert [arguments[0] for arguments in typed] == steps
    for arguments in typed:
        type_in(arguments, monkeypatch)
        if arguments[0] == "import":
            assert "\n".join(f"    {row}" for row in first_rows(Path("meds"))) in text
    assert Path("run/report.html").stat().st_size > 0
    assert Path("risks.csv").read_text(encoding="utf-8").startswith('"subject_id","prediction_time","cause"')


HOSPITAL = 6  # the commands of the tutorial's last part


@pytest.mark.slow
def test_three_files_of_a_hospital_become_a_report_and_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part of the tutorial, as it is written, without pandas."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8").partition("## 10.")[2]
    code = "".join(line[4:] + "\n" for line in text.splitlines() if line.startswith((">>> ", "... ")))
    exec(code, {"np": np, "Path": Path})
    for arguments in commands("tutorial.md")[-HOSPITAL:]:
        type_in([*arguments, *(["evaluation.bootstrap=20"] if arguments[0] == "run" else [])], monkeypatch)
    assert "unsure" not in Path("hospital.yaml").read_text(encoding="utf-8").partition("files:")[2]
    assert Path("readmission/run/report.html").stat().st_size > 0
    assert Path("list.csv").read_text(encoding="utf-8").count("\n") > 400


# ---- a fortnight of a hospital, from the lines of docs/production.md -------------------------------------------------


MAP = """
subject: id
time: when
death: died
static: {sex: SEX}
midnight: when
events:
  - {code: DISCHARGE, code_from: ward}
  - {code: LAB//GLUCOSE, value: glucose}
"""
TASK = """
name: death
index: {code: "DISCHARGE//*", which: every}
outcome: {death: MEDS_DEATH}
censoring: {dataset_end: true}
horizons: [30d, 60d]
"""
PAGE = Path(__file__).parents[1] / "docs" / "production.md"
NIGHTLY, UPDATE = (
    [shlex.split(line)[1:] for line in block.strip().splitlines()]
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
START, CHANGE = pd.Timestamp("2024-01-01"), 301  # the day from which six times as many die


def stays() -> pd.DataFrame:
    """Nine discharges a day, one a person."""
    rng, n = np.random.default_rng(5), 3_000
    day = np.sort(rng.uniform(0, 330, n))
    ward = rng.choice(["A", "B"], n)
    hazard = np.where(ward == "B", 0.006, 0.002)
    until = np.maximum(CHANGE - day, 0)
    needed = rng.exponential(size=n)
    gap = np.where(needed < hazard * until, needed / hazard, until + (needed - hazard * until) / (6 * hazard))
    rows = pd.DataFrame({"id": np.arange(n) + 1, "when": day, "died": day + gap, "ward": ward})
    rows["sex"], rows["glucose"] = rng.choice(["F", "M"], n), rng.normal(110, 20, n)
    for name in ("when", "died"):
        rows[name] = (START + pd.to_timedelta(rows[name].round(3), unit="D")).dt.floor("s")
    return rows


def known(rows: pd.DataFrame, day: float) -> pd.DataFrame:
    """What was known on a day."""
    now = START + pd.Timedelta(days=day)
    some = rows[rows.when <= now].copy()
    some["died"] = some.died.where(some.died <= now)
    return some


@pytest.fixture(scope="module")
def fortnight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here, rows = tmp_path_factory.mktemp("fortnight"), stays()
    (here / "map.yaml").write_text(MAP)
    (here / "task.yaml").write_text(TASK)
    known(rows, 280).to_csv(here / "past.csv", index=False)
    for words in (
        ("import", "csv", here / "past.csv", "--map", here / "map.yaml", here / "past"),
        ("prepare", here / "past", "--task", here / "task.yaml", "--out", here / "prepared"),
        ("train", here / "prepared", "--out", here / "run", *TINY),
    ):
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
    return here


def test_the_fortnight_of_the_page(fortnight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fortnight)
    rows, codes = stays(), list[int]()
    for night in range(300, 315, 2):
        known(rows, night).to_csv("tonight.csv", index=False)
        imported, listed, watched = (ehrseq(*words, "--json") for words in NIGHTLY)
        assert (imported.exit_code, listed.exit_code) == (0, 0), listed.output
        assert watched.exit_code in (0, 4), watched.output
        codes.append(watched.exit_code)
        told = json.loads(watched.stdout)
        assert told["result"]["alarm"] == (watched.exit_code == 4)
    assert codes == sorted(codes)  # it stays
    first = codes.index(4)
    assert first > 1  # nobody was woken before anything had changed, and its day was closed
    assert told["result"]["since"] >= "2024-10-28"
    assert told["result"]["action"] == "update"
    assert told["next"] == "ehrseq update run meds --out updated"
    page = Path("monitor.html").read_text()
    assert page.count("<svg") == 3
    assert "More events than predicted" in page
    assert "src=" not in page
    metrics = dict(line.split() for line in Path("monitor.prom").read_text().splitlines()[1:])
    assert float(metrics["ehrseq_monitor_alarm"]) == 1.0
    for words in UPDATE:
        done = ehrseq(*words)
        assert done.exit_code == 0, done.output
    assert eh.load("updated").manifest["update"]["death"]["method"] != "none"
