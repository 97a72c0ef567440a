"""Codes found by text: the counts of a plain loop, small counts hidden for real people, nothing told by the order."""

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.outputs import SIMULATION, write_manifest
from ehrsequencing.records.code_search import find_codes
from helpers.command_line import ehrseq, refused
from helpers.meds import DAY_US, Row, write_meds

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
