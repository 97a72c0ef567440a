"""What means nothing in ids, codes, units and numbers; ids and numbers that another program has changed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.flat_table import import_csv
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.omop import import_omop
from ehrsequencing.readers.synthea import import_synthea
from helpers.meds import meds_rows
from helpers.omop import SMALL, write_csv, write_parquet
from helpers.synthea import NEW, write_tables

MAP = """subject: id
time: t
static: {sex: SEX}
events:
  - {code: DX, code_from: dx}
  - {code: LAB, value: lab, unit_from: unit}
"""


def imported(folder: Path, table: pa.Table, table_map: str = MAP) -> ImportReport:
    (folder / "map.yaml").write_text(table_map)
    pq.write_table(table, folder / "t.parquet")
    return import_csv(folder / "t.parquet", folder / "meds", settings=ImportConfig(map=folder / "map.yaml"))


def imported_text(folder: Path, text: str, table_map: str) -> ImportReport:
    (folder / "map.yaml").write_text(table_map)
    (folder / "t.csv").write_text(text)
    return import_csv(folder / "t.csv", folder / "meds", settings=ImportConfig(map=folder / "map.yaml"))


def codes(meds: Path) -> Counter[str]:
    return Counter(row[2] for row in meds_rows(meds) if row[2] != "MEDS_BIRTH")


@pytest.mark.parametrize("mark", [".", "N/A", "n/a", "#N/A", "<NA>", "NaT", "nan", "NULL", "None"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_marks_of_missing(mark: str, form: str, tmp_path: Path) -> None:
    columns = {
        "id": ["1", "2", mark],
        "t": ["2015-01-05 10:00"] * 3,
        "sex": ["F", mark, "F"],
        "dx": [mark, "I10", "I10"],
        "lab": ["7", mark, "8"],
        "unit": [mark, "g", "g"],
    }
    if form == "csv":
        lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
        report = imported_text(tmp_path, "\n".join(lines) + "\n", MAP)
    else:
        report = imported(tmp_path, pa.table(columns))
    is_answer = {"SEX//None": 1, "DX//None": 1} if mark == "None" else {}
    assert codes(tmp_path / "meds") == {"SEX//F": 1, "DX//I10": 1, "LAB": 1, **is_answer}
    assert report.tables["t"].cells["lab"].unread == 0
    assert report.subjects == 2
    assert [note.split(":")[0] for note in report.notes] == (["2 codes are None"] if is_answer else [])


@pytest.mark.parametrize("written", ["-9", "-9.0", "-9.00", "-9.000"])
@pytest.mark.parametrize("listed", ["-9", "-9.00"])
@pytest.mark.parametrize("kind", [pa.string(), pa.float64()])
def test_missing_numbers_in_any_form(written: str, listed: str, kind: pa.DataType, tmp_path: Path) -> None:
    lab: list[Any] = [written, "7.5"] if kind == pa.string() else [float(written), 7.5]
    table = pa.table({"id": [1, 2], "t": ["2015-01-05"] * 2, "lab": pa.array(lab, kind)})
    table_map = f"subject: id\ntime: t\nmissing: [{listed}]\nevents:\n  - {{code: LAB, value: lab}}\n"
    report = imported(tmp_path, table, table_map)
    assert codes(tmp_path / "meds") == {"LAB": 1}
    assert report.tables["t"].cells["lab"].empty == 1


ONE = "subject: id\ntime: t\nevents:\n  - {code: A}\n"


@pytest.mark.parametrize("name", ["2.023E+11", "2,023E+11", "2.023e11", "2E+11", "-2.5E+03"])
def test_ids_in_scientific_notation_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"column id: 2 ids are in scientific notation") as error:
        imported_text(tmp_path, f'id,t\n"{name}",2015-01-05\n"{name}",2015-01-06\nA7,2015-01-06\n', ONE)
    assert name == "2.023E+11" or name not in str(error.value)
    with pytest.raises(EhrseqError, match=r"column stay: 1 ids are in scientific notation"):
        imported_text(tmp_path, f'id,stay,t\n1,"{name}",2015-01-05\n', ONE + "encounter: stay\n")
    persons = [{"person_id": name, "year_of_birth": 1950}, {"person_id": "2", "year_of_birth": 1950}]
    with pytest.raises(EhrseqError, match="holds numbers in scientific notation"):
        import_omop(str(write_csv({**SMALL, "person": persons}, tmp_path / "omop")), tmp_path / "meds")
    tables = {**NEW, "patients": NEW["patients"].replace("anna", f'"{name}"')}
    with pytest.raises(EhrseqError, match="scientific notation"):
        import_synthea(str(write_tables(tables, tmp_path / "synthea")), tmp_path / "meds")


def test_ids_with_an_e_are_ids(tmp_path: Path) -> None:
    assert imported_text(tmp_path, "id,t\n12E34,2015-01-05\n1E5,2015-01-05\n", ONE).subjects == 2


@pytest.mark.parametrize(("name", "form"), [("12.5", "decimal numbers"), ("0012", "leading zeros"), ("A7", "text")])
def test_a_refusal_of_ids_says_their_form(name: str, form: str, tmp_path: Path) -> None:
    persons = [{"person_id": text, "year_of_birth": 1950} for text in ("12", name)]
    for write in (write_csv, write_parquet):
        with pytest.raises(EhrseqError, match=f"column person_id holds .*{form} instead of whole numbers"):
            import_omop(str(write({**SMALL, "person": persons}, tmp_path / write.__name__)), tmp_path / "meds")


NUMBERS = ["0.125", "00.125", "-0.125", "1.2345", "0.875"]


def test_a_dot_that_marks_no_thousands_is_unread(tmp_path: Path) -> None:
    rows = [*NUMBERS, "1.250", "12.345,5", "-1.250", "0,125", "100"]
    text = "id;t;lab\n" + "".join(f"{i};2015-01-05;{number}\n" for i, number in enumerate(rows))
    report = imported_text(tmp_path, text, "subject: id\ntime: t\ndecimal: ','\nevents:\n  - {code: LAB, value: lab}\n")
    found = [row[3] for row in meds_rows(tmp_path / "meds") if row[2] == "LAB" and row[3] is not None]
    assert sorted(found) == [-1250, 0.125, 100, 1250, 12345.5]
    assert report.tables["t"].cells["lab"].unread == len(NUMBERS)
    assert any("column lab has numbers such as 0.125, which were not read" in line for line in report.warnings())


def test_months_pass_in_a_map(tmp_path: Path) -> None:
    table_map = ONE.replace("time: t", "time: {column: t, unit: month, since: 2015-01-01}")
    imported_text(tmp_path, "id,t\n1,2\n2,0\n", table_map)
    assert [str(row[1]) for row in meds_rows(tmp_path / "meds") if row[2] == "A"] == [
        "2015-03-02 21:00:00",
        "2015-01-01 00:00:01",
    ]
    for unit in ("m", "mo"):
        with pytest.raises(EhrseqError, match="unit"):
            imported_text(tmp_path, "id,t\n1,2\n", table_map.replace("month", unit))


def test_columns_of_a_dictionary_are_exact(tmp_path: Path) -> None:
    ids = [2**55 + 1, 2**55 + 2]
    times = pa.array(["2015-01-05 10:00", "2015-01-06 11:00"]).cast(pa.timestamp("us")).dictionary_encode()
    imported(tmp_path, pa.table({"id": pa.array(ids).dictionary_encode(), "t": times}), ONE)
    rows = [row for row in meds_rows(tmp_path / "meds") if row[2] == "A"]
    assert sorted(row[0] for row in rows) == ids
    assert {str(row[1]) for row in rows} == {"2015-01-05 10:00:00", "2015-01-06 11:00:00"}


def test_whole_floats_are_ids(tmp_path: Path) -> None:
    """A column of ids with a gap becomes floats in pandas; large ones must not become 2.023e+11."""
    ids = pa.array([202_300_000_017.0, 202_300_000_029.0, None])
    imported(tmp_path, pa.table({"id": ids, "t": ["2015-01-05"] * 3}), ONE)
    assert sorted({row[0] for row in meds_rows(tmp_path / "meds")}) == [202_300_000_017, 202_300_000_029]
