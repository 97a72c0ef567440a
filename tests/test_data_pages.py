"""The pages that go from records to a report run as they are written, on the sample data that they name."""

import doctest
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import ehrsequencing
import ehrsequencing as eh
from ehrsequencing.api import progress
from ehrsequencing.cli import main
from ehrsequencing.config import load_task
from helpers.command_line import ehrseq
from helpers.meds import DAY_US, Row, us, write_meds
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


# ---- the entry for MEDS-DEV: its files load, and its commands run as MEDS-DEV runs them ------------------------------


ENTRY = Path(__file__).parents[1] / "examples" / "meds-dev" / "ehrsequencing"
TASKS = sorted(path.relative_to(ENTRY / "tasks").with_suffix("").as_posix() for path in ENTRY.rglob("tasks/**/*.yaml"))
READMISSION = "readmission/general_hospital/30d"


def model() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ENTRY / "model.yaml").read_text())
    return found


def run_as_meds_dev(command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What `MEDS_DEV.utils.run_in_env` does: one Bash script with `set -e`; `ehrseq` and `python` are on the path."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, words in {"ehrseq": " -m ehrsequencing", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/bash\nexec "{sys.executable}"{words} "$@"\n')
        (programs / name).chmod(0o755)
    script = folder / "cmd.sh"
    script.write_text("\n".join(["#!/bin/bash", "set -e", command]))
    source = str(Path(ehrsequencing.__file__).parents[1])
    found = {**os.environ, "PYTHONPATH": source, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **env}
    return subprocess.run(["bash", str(script)], env=found, capture_output=True, text=True, check=False)


@pytest.fixture
def admitted(tmp_path: Path) -> tuple[Path, Path]:
    """Sixty people with stays, and labels at their discharges in a folder for each split, as ACES writes them."""
    rng, rows, splits = random.Random(1), [], {}
    labels: dict[str, list[tuple[int, int, bool]]] = {"train": [], "tuning": [], "held_out": []}
    for person in range(1, 61):
        splits[person] = ("train", "train", "tuning", "held_out")[person % 4]
        rows.append(Row(person, us("1950-03-01"), "MEDS_BIRTH"))
        day = us("2015-01-01") + person * DAY_US
        for _ in range(rng.randrange(2, 6)):
            rows += [
                Row(person, day, "HOSPITAL_ADMISSION//EW EMER."),
                Row(person, day + DAY_US // 2, "LAB//50811//g/dL", 12.0),
            ]
            day += 3 * DAY_US
            rows.append(Row(person, day, "HOSPITAL_DISCHARGE//HOME"))
            gap = rng.choice((10, 20, 60, 200))
            labels[splits[person]].append((person, day, gap <= 30))
            day += gap * DAY_US
        rows.append(Row(person, day, "LAB//50811//g/dL", 13.5))
    data = write_meds(tmp_path / "meds", rows, splits=splits)
    folder = tmp_path / "labels"
    for split, found in labels.items():
        person, time, value = zip(*found, strict=True)
        table = pa.table(
            {
                "subject_id": pa.array(person, pa.int64()),
                "prediction_time": pa.array(time, pa.timestamp("us")),
                "boolean_value": pa.array(value),
            }
        )
        (folder / split).mkdir(parents=True)
        pq.write_table(table, folder / split / "0.parquet")
    return data, folder


@pytest.mark.parametrize("name", TASKS)
def test_each_task_file_is_a_task_with_one_horizon(name: str, tmp_path: Path) -> None:
    """`predict` needs no --horizons then, and its first cause is that of the label."""
    text = (ENTRY / "tasks" / f"{name}.yaml").read_text()
    (tmp_path / "task.yaml").write_text(text.replace("LABELS", '"/labels"'))
    task = load_task(tmp_path / "task.yaml")
    assert len(task.horizons) == 1
    assert task.recurrent
    assert "MEDS_DEATH" in [code for codes in task.patterns.values() for code in codes]
    assert all(line.isascii() and len(line) < 160 for line in text.splitlines())


@pytest.mark.slow
def test_its_two_commands_end_in_predictions_that_its_evaluator_reads(
    admitted: tuple[Path, Path], tmp_path: Path
) -> None:
    data, labels = admitted
    steps, out = model()["commands"]["supervised"], tmp_path / "out" / "MIMIC-IV" / READMISSION
    given = {"dataset_dir": data, "labels_dir": labels, "model_dir": ENTRY, "demo": True}
    one = run_as_meds_dev(steps["train"].format(**given, output_dir=out / "train"), tmp_path)
    assert one.returncode == 0, one.stderr
    more = {"output_dir": out / "predict", "model_initialization_dir": out / "train", "split": "held_out"}
    (out / "predict").mkdir()
    two = run_as_meds_dev(steps["predict"].format(**given, **more), tmp_path)
    assert two.returncode == 0, two.stderr
    found = pq.read_table(out / "predict" / "predictions.parquet")
    wanted = pq.read_table(labels / "held_out")
    assert {f.name: f.type for f in found.schema} == {  # meds_evaluation.schema of 0.0.3, in Arrow's types
        "subject_id": pa.int64(),
        "prediction_time": pa.timestamp("us"),
        "boolean_value": pa.bool_(),
        "predicted_boolean_value": pa.bool_(),
        "predicted_boolean_probability": pa.float64(),
    }
    keys = ["subject_id", "prediction_time", "boolean_value"]
    assert (
        found.select(keys)
        .sort_by([(key, "ascending") for key in keys])
        .equals(wanted.select(keys).sort_by([(key, "ascending") for key in keys]))
    )
    risk = found["predicted_boolean_probability"].to_numpy()
    assert ((risk > 0) & (risk < 1)).all()
    assert np.ptp(risk) > 0


def test_the_task_is_named_by_a_folder_or_a_variable(tmp_path: Path) -> None:
    labels, out, script = tmp_path / "labels", tmp_path / "out", ENTRY / "make_task.py"
    command = f'python "{script}" "{{}}" "{out}"'
    unknown = run_as_meds_dev(command.format(labels), tmp_path)
    assert unknown.returncode == 1
    assert READMISSION in unknown.stderr
    for folder, env in ((labels / READMISSION, {}), (labels, {"MEDS_DEV_TASK": READMISSION})):
        done = run_as_meds_dev(command.format(folder), tmp_path, **env)
        assert done.returncode == 0, done.stderr
        task = load_task(out / "task.yaml")
        assert (task.name, task.index.file) == ("readmission_30d", str(folder))
        (out / "task.yaml").unlink()
