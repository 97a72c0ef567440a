"""The pages that go from records to a report run as they are written, on the sample data that they name."""

import doctest
import re
import shlex
import shutil
from pathlib import Path
from textwrap import dedent

import numpy as np
import pyarrow.parquet as pq
import pytest

from ehrsequencing.api import progress
from ehrsequencing.cli import main
from ehrsequencing.config import load_task
from helpers.omop import hospital, write_csv

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
