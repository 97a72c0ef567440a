"""A whole number is the same with decimals and without, as pandas writes it: in keys of a map, codes and ids."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.flat_table import import_csv
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.synthea import import_synthea

ADTTE = "subject: USUBJID\ntime: ADT\nevents:\n  - {code_from: CNSR, codes: %s}\n"
ONE = "subject: id\ntime: at\nevents:\n  - {code: ICD9, code_from: dx}\n"


def imported(table: pd.DataFrame | pa.Table, mapping: str, folder: Path, form: str) -> tuple[list[str], ImportReport]:
    """The codes of a table in the order of its people and times, and the report."""
    folder.mkdir()
    (folder / "map.yaml").write_text(mapping)
    source = folder / f"t.{form}"
    frame = table.to_pandas() if isinstance(table, pa.Table) else table
    if form == "csv":
        frame.to_csv(source, index=False)
    else:
        pq.write_table(table if isinstance(table, pa.Table) else pa.Table.from_pandas(frame), source)
    report = import_csv(source, folder / "meds", settings=ImportConfig(map=folder / "map.yaml"))
    parts = [pq.read_table(path) for path in (folder / "meds/data").rglob("*.parquet")]
    rows = pa.concat_tables(parts).sort_by([("subject_id", "ascending"), ("time", "ascending")])
    return rows["code"].to_pylist(), report


def of_codes(report: ImportReport) -> list[str]:
    """The warnings of the column of codes."""
    return [warning for warning in report.warnings() if "CNSR" in warning]


def adtte(status: Any) -> pa.Table:
    names = [f"S-{number}" for number in range(len(status))]
    return pa.table({"USUBJID": names, "ADT": ["2015-06-01"] * len(status), "CNSR": status})


@pytest.mark.parametrize(
    "keys", ["{0: MEDS_DEATH, 1: END}", "{'0': MEDS_DEATH, '1': END}", "{0.0: MEDS_DEATH, 1.0: END}"]
)
@pytest.mark.parametrize(
    "status",
    [
        pa.array([0.0, 1.0, 1.0, None]),
        pa.array([0, 1, 1, None], pa.int8()),
        pa.array(["0", "1", "1.0", None]),
        pa.array(["0.00", "1.00", "1,0", ""]),
        pa.array([0, 1, 1, None], pa.int8()).cast(pa.decimal128(18, 3)),  # DuckDB's NUMERIC
        pa.array([0, 1, 1, None], pa.float32()),
        pa.array([5.397605346934028e-79, 1.0, 1.0, None]),  # pandas on a SAS transport file
    ],
    ids=["double", "int8", "text", "two decimals", "decimal", "float", "SAS"],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_keys_are_whole_numbers(keys: str, status: pa.Array, form: str, tmp_path: Path) -> None:
    codes, report = imported(adtte(status), ADTTE % keys, tmp_path / "x", form)
    assert sorted(codes) == ["END", "END", "MEDS_DEATH"]
    assert not of_codes(report)


@pytest.mark.parametrize(
    "keys", ["{2: MEDS_DEATH}", "{event: MEDS_DEATH, Censored: END}", "{00: END, 0.5: MEDS_DEATH}"]
)
def test_codes_of_which_no_key_occurs_are_refused(keys: str, tmp_path: Path) -> None:
    with pytest.raises(EhrseqError, match=r"none of the 3 cells of column CNSR can be read .*the keys of its codes"):
        imported(adtte(pa.array([0.0, 1.0, 1.0])), ADTTE % keys, tmp_path / "x", "csv")
    assert not (tmp_path / "x" / "meds").exists()


def test_texts_that_no_codes_list_warn_above_a_twentieth(tmp_path: Path) -> None:
    says = "2 of 40 values in column CNSR of t (5.0%) cannot be read, or are no key of the map's codes"
    for unlisted, warned in ((2, False), (3, True)):
        status = pa.array([0.0] * (40 - unlisted) + [7.0] * unlisted)
        _, report = imported(adtte(status), ADTTE % "{0: MEDS_DEATH}", tmp_path / str(unlisted), "csv")
        assert of_codes(report) == ([says.replace("2 of", "3 of").replace("5.0%", "7.5%")] if warned else [])
        assert report.counts["unlisted"] == unlisted
        cells = report.tables["t"].cells["CNSR"]
        assert (cells.values, cells.unread) == (40 - unlisted, unlisted)


def test_two_codes_of_one_column_list_its_texts_together(tmp_path: Path) -> None:
    mapping = "subject: USUBJID\ntime: ADT\nevents:\n  - {code_from: CNSR, codes: {0: MEDS_DEATH}}\n"
    mapping += "  - {code_from: CNSR, codes: {1: END}, time: 2016-01-01}\n"
    codes, report = imported(adtte(pa.array([0.0, 1.0, 1.0])), mapping, tmp_path / "x", "csv")
    assert sorted(codes) == ["END", "END", "MEDS_DEATH"]
    assert not of_codes(report)


@pytest.mark.parametrize(
    ("cells", "codes"),
    [
        ([250.0, 401.0, np.nan], ["250", "401"]),  # pandas has no gaps in columns of integers
        ([250.0, 401.9, np.nan], ["250.0", "401.9"]),
        (["250.0", "V45", "401.9"], ["250.0", "V45", "401.9"]),
        (["250", "V45.0", "401.0"], ["250", "V45.0", "401.0"]),
        ([250, 401, 414], ["250", "401", "414"]),
    ],
    ids=["whole", "fractions", "letters", "text", "integers"],
)
def test_one_frame_has_the_same_codes_as_csv_and_as_parquet(cells: list[Any], codes: list[str], tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2, 3], "at": ["2015-06-01 10:00"] * 3, "dx": cells, "sex": [1.0, 2.0, np.nan]})
    mapping = ONE.replace("events:", "static: {sex: SEX, dx: FIRST}\nevents:")
    found = {form: imported(frame, mapping, tmp_path / form, form)[0] for form in ("csv", "parquet")}
    assert found["csv"] == found["parquet"]
    assert sorted(found["csv"]) == sorted(
        [f"{name}//{code}" for code in codes for name in ("ICD9", "FIRST")] + ["SEX//1", "SEX//2"]
    )


def test_ids_are_the_same_across_tables(tmp_path: Path) -> None:
    """A table with gaps was a column of floats in pandas, the table of patients was none."""
    source = tmp_path / "csv"
    source.mkdir()
    (source / "patients.csv").write_text("Id,BIRTHDATE,GENDER\n1,1950-03-01,F\n2,1960-03-01,M\n")
    (source / "encounters.csv").write_text(
        "Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE\n"
        "7,2015-01-05T10:00:00Z,2015-01-06T10:00:00Z,1.0,inpatient,32485007\n"
        "8,2015-01-05T10:00:00Z,2015-01-06T10:00:00Z,2.0,inpatient,32485007\n"
    )
    (source / "procedures.csv").write_text(
        "START,PATIENT,ENCOUNTER,CODE\n2015-01-05T11:00:00Z,1.0,7.0,430193006\n2015-01-05T11:00:00Z,2.0,8.0,430193006\n"
    )
    report = import_synthea(str(source), tmp_path / "meds")
    assert report.subjects == 2
    assert not report.counts["unknown_person"]
    assert not report.counts["dangling_encounter"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_map_for_cdisc_reads_a_time_to_event_table(form: str, tmp_path: Path) -> None:
    """As the page has it; the zeros are those that pandas reads from a transport file."""
    page = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8").partition("### From CDISC")[2]
    mapping = textwrap.dedent(page[page.index("    subject: ") : page.index("\n- `CNSR`")])
    frame = pd.DataFrame(
        {
            "USUBJID": ["01-701-1015", "01-701-1023", "01-701-1028"],
            "STARTDT": ["2014-01-02", "2012-08-05", "2013-07-19"],
            "ADT": ["2014-07-02", "2012-09-02", "2014-01-14"],
            "AVAL": [182.0, 29.0, 180.0],
            "CNSR": [1.0, 5.397605346934028e-79, 1.0],
            "SEX": ["F", "M", "M"],
            "TRTP": ["Placebo", "Placebo", "Xanomeline High Dose"],
        }
    )
    codes, report = imported(frame, mapping, tmp_path / "x", form)
    assert sorted(codes) == sorted(
        ["SEX//F", "SEX//M", "SEX//M", "ARM//Placebo", "ARM//Placebo", "ARM//Xanomeline High Dose"]
        + ["RANDOMISED"] * 3
        + ["END", "END", "MEDS_DEATH"]
    )
    assert not of_codes(report)
