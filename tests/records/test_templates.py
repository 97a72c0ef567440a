"""Task templates: each is a task, fits where its codes are, and is told apart from one that does not fit."""

from pathlib import Path

import pytest
import yaml

from ehrsequencing.config import load_study, load_task
from ehrsequencing.records.check import check_data
from ehrsequencing.records.code_search import NAMES, find_roles, suggest
from ehrsequencing.records.codes import CodeMatcher
from helpers.command_line import ehrseq, refused
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
    assert "blank  readmission" in done.output
    assert "fill in the code of a discharge and of death" in done.output
    text = (tmp_path / "tasks/readmission.yaml").read_text()
    first = "# Put the code of a discharge in place of FILL_IN_DISCHARGE; it may be one of: "
    assert text.startswith(f"{first}ICU_ADMISSION (20 rows), LAB (40 rows)\n")
    assert "FILL_IN_DISCHARGE" in refused("check", data, "--task", tmp_path / "tasks/readmission.yaml")


@pytest.mark.parametrize(
    ("codes", "admission", "discharge"),
    [
        (["ICU_ADMISSION//M", "ICU_DISCHARGE//M"], "'ICU_ADMISSION*'", "'ICU_DISCHARGE*'"),
        (
            ["OMOP//262", "OMOP//262//END", "ICU_ADMISSION"],
            "['OMOP//9201', 'OMOP//262', 'OMOP//8717', 'OMOP//8971']",
            "['OMOP//9201//END', 'OMOP//262//END', 'OMOP//8717//END', 'OMOP//8971//END']",
        ),
        (
            ["Visit//IP", "Visit//IP//END", "Visit//ER", "OMOP//32037"],
            "['Visit//IP', 'Visit//ERIP', 'CMS Place of Service//21', 'CMS Place of Service//51']",
            "['Visit//IP//END', 'Visit//ERIP//END', 'CMS Place of Service//21//END', 'CMS Place of Service//51//END']",
        ),
        (["OMOP//581383", "OMOP//9203"], "['OMOP//32037', 'OMOP//581379', 'OMOP//581382', 'OMOP//581383']", None),
        (["ADMISSION//ER", "HOSPITAL_DISCHARGE//HOME"], "'ADMISSION*'", "['DISCHARGE*', 'HOSPITAL_DISCHARGE*']"),
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


@pytest.mark.parametrize("code", ["Visit//IP", "OMOP//9201", "ENCOUNTER//inpatient"])
def test_parts_of_a_stay_are_no_admissions(code: str) -> None:
    parts = [f"{code}//PART", f"{code}//PART//END"]
    assert "ADMISSION" not in find_roles(dict.fromkeys(parts, 50), {}, subjects=100)
    patterns = find_roles(dict.fromkeys([code, f"{code}//END", *parts], 50), {}, subjects=100)
    for role in ("ADMISSION", "DISCHARGE"):
        wanted = yaml.safe_load(patterns[role])
        matcher = CodeMatcher([wanted] if isinstance(wanted, str) else wanted)
        assert matcher(code if role == "ADMISSION" else f"{code}//END")
        assert not any(map(matcher, parts))


def test_a_diagnosis_of_snomed_without_its_kind_comes_after_those_with_it() -> None:
    people = {"SNOMED//1": 30, "SNOMED//2": 40, "SNOMED//3": 20}
    texts = {"SNOMED//1": "Asthma", "SNOMED//2": "Check-up encounter", "SNOMED//3": "Gout (disorder)"}
    assert find_roles(people, texts, subjects=100)["DIAGNOSIS"] == "'SNOMED//3'"
    assert find_roles(people, texts | {"SNOMED//3": ""}, subjects=100)["DIAGNOSIS"] == "'SNOMED//1'"


def stays_of(years: int, codes: tuple[str, str] = ("HOSPITAL_ADMISSION", "HOSPITAL_DISCHARGE")) -> list[Row]:
    """40 people with one stay, or two, each of them within as many years as given; 15 die."""
    rows: list[Row] = []
    for who in range(40):
        start, (begin, end) = 365 * (who * years // 40), codes
        text = f"{start} {begin}, {start + 3} {end}, {start + 4} Visit//ER, {start + 4} Visit//ER//END"
        text += f", {start + 20} {begin}, {start + 24} {end}" if who % 2 else ""
        rows += record(who, text + (f", {start + 90} MEDS_DEATH" if who % 8 < 3 else ""), start=us("2100-01-01"))
    return rows


def test_doubts_of_shifted_dates_stand_in_the_file(tmp_path: Path) -> None:
    found = {one.name: one for one in suggest(write_meds(tmp_path / "shifted", stays_of(80)))}
    short, long = found["readmission"].text, found["death_after_admission"].text
    assert "\n# Doubt: for most of the 25 living people" in short
    assert "\ncensoring: {dataset_end: true}" in short
    assert "\n# Doubt: for most of the 25 living people" in long
    assert "\ncensoring:" not in long
    assert "\n# censoring: {dataset_end: true}" in long
    (tmp_path / "task.yaml").write_text(long)
    assert load_task(tmp_path / "task.yaml").censoring.is_last_event
    for one in suggest(write_meds(tmp_path / "plain", stays_of(1))):
        assert "Doubt" not in one.text
        assert one.missing or "\ncensoring: {dataset_end: true}" in one.text


def test_what_a_template_covers_and_which_visits_it_leaves_out(tmp_path: Path) -> None:
    rows = stays_of(1, ("Visit//IP", "Visit//IP//END"))
    rows += [Row(who, us("2101-01-01"), "Visit//ERIP") for who in range(35, 45)]
    rows += [Row(who, us("2101-01-01"), "OMOP//9201//PART") for who in range(20)]
    found = {one.name: one.covers for one in suggest(write_meds(tmp_path, rows))}
    assert found["readmission"] == "45 people, 70 stays; visits left out: Visit//ER Emergency Room Visit (40)"
    assert found["first_diagnosis"] == ""
    done = ehrseq("check", tmp_path, "--suggest")
    assert "45 people, 70 stays; visits left out" in done.output
