"""Codes found by text: the counts of a plain loop, small counts hidden for real people, nothing told by the order."""

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import SIMULATION, write_manifest
from ehrsequencing.records.check import check_data
from ehrsequencing.records.code_search import NAMES, find_codes, find_roles, suggest
from ehrsequencing.records.codes import CodeMatcher
from helpers.command_line import ehrseq, refused
from helpers.meds import DAY_US, Row, record, us, write_meds

DESCRIPTIONS = {
    "ICD10//E11.9": "Type 2 diabetes mellitus",
    "ICD10//E10.1": "Type 1 Diabetes, with ketoacidosis",
    "ICD10//I10": "Hypertension",
    "LAB//HbA1c": "Diabetes control",
    "ICD10//O24": "Diabetes in pregnancy",  # listed, and nobody has it
    "ICD10": "Every diagnosis",
}
FREE_TEXT = "NOTE//diabetes of Mrs Example"  # in the rows, but no metadata lists it


def described(folder: Path, rows: list[Row], *, simulated: bool = False) -> Path:
    data = write_meds(folder, rows, shards=2)
    parents = [["ICD10"] if code.startswith("ICD10//") else None for code in DESCRIPTIONS]
    (data / "metadata").mkdir(exist_ok=True)
    table = {"code": list(DESCRIPTIONS), "description": list(DESCRIPTIONS.values()), "parent_codes": parents}
    pq.write_table(pa.table(table), data / "metadata" / "codes.parquet")
    if simulated:
        write_manifest(data, SIMULATION.facts)
    return data


def rows_of(people: dict[str, int]) -> list[Row]:
    """Codes with how many subjects have them, two rows each; subject 0 has all of them."""
    days = {code: k for k, code in enumerate(people)}
    return [
        Row(who, (100 + 2 * days[code] + twice) * DAY_US, code)
        for code, count in people.items()
        for who in range(count)
        for twice in (0, 1)
    ]


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from([*DESCRIPTIONS][:4]), st.integers(1, 30), min_size=1), st.booleans())
def test_counts_are_those_of_a_plain_loop_and_small_ones_are_hidden(people: dict[str, int], simulated: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = described(Path(folder) / "meds", rows_of({"X": 31, **people}), simulated=simulated)
        found = {one.code: one for one in find_codes(data, "DIABETES")}
    fitting = {code for code, text in DESCRIPTIONS.items() if "diabetes" in text.lower()}
    assert set(found) == fitting
    for code in fitting:
        subjects = people.get(code, 0)
        hidden = not simulated and 0 < subjects < 11
        assert found[code].subjects == ("<11" if hidden else subjects)
        assert found[code].rows == (None if hidden else 2 * subjects)


def order_of(data: Path) -> list[str]:
    return [one.code for one in find_codes(data, "diabetes")]


def test_the_order_tells_nothing_of_a_hidden_count(tmp_path: Path) -> None:
    first, second = {"LAB//HbA1c": 20, "ICD10//E10.1": 9, "ICD10//E11.9": 2}, {"LAB//HbA1c": 20}
    one = described(tmp_path / "one", rows_of(first))
    other = described(tmp_path / "other", rows_of({**second, "ICD10//E10.1": 2, "ICD10//E11.9": 9}))
    assert order_of(one) == order_of(other) == ["LAB//HbA1c", "ICD10//E10.1", "ICD10//E11.9", "ICD10//O24"]


def test_a_code_of_few_people_is_named_only_if_metadata_lists_it(tmp_path: Path) -> None:
    few = described(tmp_path / "few", rows_of({FREE_TEXT: 4, "X": 20}))
    assert FREE_TEXT not in [one.code for one in find_codes(few, "diabetes")]
    many = described(tmp_path / "many", rows_of({FREE_TEXT: 5, "X": 20}))
    (named,) = (one for one in find_codes(many, "mrs DIABETES"))
    assert (named.code, named.subjects) == (FREE_TEXT, "<11")
    with pytest.raises(EhrseqError) as told:
        find_codes(few, "exampel")
    assert "Example" not in str(told.value)
    assert "example" not in str(told.value)


def test_patterns_of_task_files_and_words_that_come_close(tmp_path: Path) -> None:
    data = described(tmp_path / "meds", rows_of({"ICD10//E11.9": 12, "ICD10//I10": 15}))
    listed = {"ICD10//E11.9", "ICD10//E10.1", "ICD10//O24"}
    assert {one.code for one in find_codes(data, "ICD10//E1*")} == listed - {"ICD10//O24"}
    assert {one.code for one in find_codes(data, "under:ICD10")} == {*listed, "ICD10//I10", "ICD10"}
    assert "what comes close: diabetes" in refused("codes", data, "diabtes")
    every = [one.code for one in find_codes(data, "")]  # without a text: all, the most frequent first
    assert {*listed} <= {*every}
    done = ehrseq("codes", data, "icd10", "--top", "2")
    assert done.stdout.splitlines()[1].split() == ["ICD10//I10", "15", "30", "Hypertension"]
    assert "and 3 more" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:4])) <= 100
    told = json.loads(ehrseq("codes", data, "icd10", "--top", "2", "--json").stdout)["result"]
    assert [one["subjects"] for one in told["codes"]] == [15, 12, 0, 0, 0]


def test_visits_are_found_by_what_they_are(tmp_path: Path) -> None:
    codes = ("OMOP//9201", "OMOP//9201//END", "OMOP//8870", "Visit//IP", "OMOP//92010", "LAB//9201", "OMOP//9201//PART")
    data = write_meds(tmp_path, rows_of(dict.fromkeys(codes, 20)))
    found = {one.code: one.description for one in find_codes(data, "inpatient")}
    stays = ("OMOP//9201", "OMOP//9201//END", "OMOP//9201//PART", "Visit//IP")
    assert found == dict.fromkeys(stays, "Inpatient Visit")
    assert [one.code for one in find_codes(data, "emergency")] == ["OMOP//8870"]


# ---- Task templates: each is a task, fits where its codes are, and is told apart from one that does not fit ----


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
