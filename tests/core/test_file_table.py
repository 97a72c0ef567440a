"""Every file that commands leave in a run's folder is in the one list of files, with its kind."""

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ehrsequencing.core.files import read_json
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.records.prepared import REFERENCE
from ehrsequencing.reporting.report import render
from ehrsequencing.results.redaction import redact
from helpers.command_line import ehrseq
from helpers.disclosure import as_real, records_of_people

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
QUICK = ("--baselines", "none", "evaluation.bootstrap=0")


def table() -> dict[str, str]:
    """Name or pattern → kind; a pattern of an ending alone, as `*.csv`, names no file of a run."""
    rows = PAGE.read_text(encoding="utf-8").partition("## May it leave")[2]
    found = {}
    for kind, names in re.findall(r"^- \*\*(May leave|Owner's)[^*]*\*\*[^:]*: (.+)$", rows, flags=re.MULTILINE):
        listed = [name.replace("NAME", "*") for name in re.findall(r"`([^` ]+)`", names)]
        found |= {name: kind for name in listed if not name.startswith("*.")}
    return found


def unlisted(folder: Path) -> list[str]:
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if not any(fnmatch(name, known) for known in table()))


def test_every_file_of_a_run_is_in_the_list(sim_run: Path, sim_data: Path, tmp_path: Path) -> None:
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    people = records_of_people(sim_data, tmp_path / "hospital")
    for command in (
        ("evaluate", run, *QUICK),
        ("evaluate", run, "--data", people, *QUICK),
        ("audit", run, "--subjects", 5),
        ("predict", run, people, "--out", run / "predictions.parquet"),
        ("export", sim_run, "--format", "share", "--out", tmp_path / "shared"),
    ):
        done = ehrseq(*command)
        assert done.exit_code == 0, done.output
    written = {path.name for path in run.rglob("*") if path.is_file()}
    assert REFERENCE in written
    assert written >= {"metrics.json", "report-details.html", "audit.json", "predictions.parquet"}
    assert unlisted(run) == unlisted(tmp_path / "shared") == []
    (run / "secret.json").write_text("{}")
    assert unlisted(run) == ["secret.json"]


def test_single_people_are_on_their_owners_page_alone(sim_run: Path, tmp_path: Path) -> None:
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    assert ehrseq("evaluate", run, *QUICK).exit_code == 0
    details = run / "report-details.html"
    assert details.stat().st_mode & 0o777 == 0o600
    assert "Do not share this page" in details.read_text(encoding="utf-8")
    assert "Do not share this page" not in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_owners_page_keeps_exact_curves_as_long_as_the_exact_result_is_there(sim_run: Path, tmp_path: Path) -> None:
    run = as_real(Path(shutil.copytree(sim_run, tmp_path / "run")))
    assert ehrseq("evaluate", run, *QUICK).exit_code == 0
    details = run / "report-details.html"
    before = details.read_text(encoding="utf-8")
    assert "Do not share this page" in before
    exact = read_json(run / "metrics-individual.json")
    assert before != render(redact(exact), details.name)
    for command in (("evaluate", run, "--redraw"), ("audit", run, "--subjects", 5)):
        assert ehrseq(*command).exit_code == 0
        assert "Do not share this page" in details.read_text(encoding="utf-8")
    (run / "metrics-individual.json").unlink()
    assert ehrseq("evaluate", run, "--redraw").exit_code == 0
    assert "Do not share this page" not in details.read_text(encoding="utf-8")


def test_the_list_knows_both_kinds() -> None:
    kinds = table()
    assert kinds["metrics.json"] == kinds["report.html"] == "May leave"
    assert kinds["report-details.html"] == "Owner's"
    assert kinds["metrics-individual.json"] == kinds[MANIFEST] == "Owner's"
