"""Task templates: each is a task, fits where its codes are, and is told apart from one that does not fit."""

from pathlib import Path

import pytest

from ehrsequencing.config import load_study, load_task
from ehrsequencing.records.check import check_data
from ehrsequencing.records.code_search import NAMES, find_roles, suggest
from helpers.command_line import ehrseq
from helpers.meds import Row, record, us, write_meds

STAY = "HOSPITAL_ADMISSION//ER, {} LAB, {} HOSPITAL_DISCHARGE//HOME"
STAYS = f"0 {STAY.format(0.5, 3)}, 9 {STAY.format(9.5, 12)}"
LIFE = f"-9000 MEDS_BIRTH, {STAYS}, 40 RX//A, 50 DX//B, 90 RX//A"


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of 60 people have the treatment and the diagnosis, a fifth dies in hospital."""
    rows: list[Row] = []
    for who in range(60):
        text = LIFE if who % 2 else LIFE.partition(", 40 RX")[0] + ", 80 LAB"
        dies = "-9000 MEDS_BIRTH, 0 HOSPITAL_ADMISSION//ER, 2 LAB, 5 MEDS_DEATH"
        rows += record(who, dies if who % 5 == 0 else text, start=us("2020-01-01"))
    return write_meds(tmp_path_factory.mktemp("hospital") / "meds", rows)


def test_every_template_that_fits_is_a_task_that_keeps_people(hospital: Path, tmp_path: Path) -> None:
    done = ehrseq("check", hospital, "--suggest", "--out", tmp_path / "tasks", "--json")
    assert done.exit_code == 0, done.output
    paths = [tmp_path / "tasks" / f"{name}.yaml" for name in NAMES]
    assert sorted(paths) == sorted((tmp_path / "tasks").iterdir())
    tasks = [load_task(path) for path in paths]
    assert [task.name for task in tasks] == list(NAMES)
    found = check_data(hospital, study=load_study(), tasks=tasks)
    events = {task.task.name: task.attrition["events"] for task in found.tasks}
    assert events["readmission"] == {"censored": 0, "readmission": 48, "death": 0}
    assert events["death_after_admission"] == {"censored": 48, "death": 12}
    assert events["in_hospital_death"] == {"censored": 0, "death": 12, "discharge": 48}
    assert events["first_diagnosis"]["diagnosis"] == events["next_treatment"]["treatment"] == 24
    again = ehrseq("check", hospital, "--suggest", "--out", tmp_path / "tasks")
    assert again.exit_code == 2
    assert "is there already" in again.stderr


def test_what_does_not_fit_says_why(tmp_path: Path) -> None:
    rows = [row for who in range(20) for row in record(who, "0 ICU_ADMISSION, 1 LAB, 9 LAB", start=us("2020-01-01"))]
    data = write_meds(tmp_path / "meds", rows)
    missing = {one.name: one.missing for one in suggest(data)}
    assert missing == {
        "readmission": ("a discharge", "death"),
        "death_after_admission": ("death",),
        "in_hospital_death": ("death", "a discharge"),
        "first_diagnosis": ("a diagnosis",),
        "next_treatment": ("a treatment",),
    }
    done = ehrseq("check", data, "--suggest", "--out", tmp_path / "tasks")
    assert done.exit_code == 0
    assert "No template fits" in done.output
    assert f"ehrseq codes {data} TEXT" in done.output
    assert not (tmp_path / "tasks").exists()


@pytest.mark.parametrize(
    ("codes", "admission", "discharge"),
    [
        (["ICU_ADMISSION//M", "ICU_DISCHARGE//M"], "'ICU_ADMISSION*'", "'ICU_DISCHARGE*'"),
        (["OMOP//262", "OMOP//262//END", "ICU_ADMISSION"], "['OMOP//9201', 'OMOP//262']", None),
        (["ENCOUNTER//inpatient", "ENCOUNTER//inpatient//END"], "'ENCOUNTER//inpatient'", None),
        (["STAY//ADMISSION", "STAY//DISCHARGE"], "'STAY//ADMISSION'", "'STAY//DISCHARGE'"),
    ],
)
def test_admissions_of_every_source(codes: list[str], admission: str, discharge: str | None) -> None:
    found = find_roles(dict.fromkeys(codes, 50), {}, subjects=100)
    assert found["ADMISSION"] == admission
    assert discharge is None or found["DISCHARGE"] == discharge


def test_codes_are_common_but_not_everybodys(tmp_path: Path) -> None:
    people = {"DX//ALL": 90, "DX//SOME": 40, "DX//FEW": 30, "RxNorm//1": 20, "SNOMED//1": 45, "SNOMED//2": 48}
    found = find_roles(people, {"SNOMED//1": "Asthma (disorder)"}, subjects=100)
    assert found["DIAGNOSIS"] == "'SNOMED//1'"
    assert found["TREATMENT"] == "'RxNorm//1'"
    assert found["CENSORING"] == "{dataset_end: true}"
    assert "DEATH" not in found
    assert find_roles({"END_OF_FOLLOWUP": 30}, {}, subjects=40)["CENSORING"] == "{code: END_OF_FOLLOWUP}"
