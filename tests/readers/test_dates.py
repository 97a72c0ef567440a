"""Dates of an import: one order over the whole column or none, headers that are expressions, zones, missing columns."""

import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from ehrsequencing.config import ImportConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import count_dates, date_order, parse_times
from ehrsequencing.readers.flat_table import import_csv
from helpers.command_line import ehrseq
from helpers.meds import written
from helpers.omop import SMALL, write_csv, write_parquet

pytest.importorskip("ibis", reason="needs the extra omop")

from ehrsequencing.readers.omop.reader import import_omop

FORMATS = {"ymd": "%Y-%m-%d", "compact": "%Y%m%d", "dmy": "%d/%m/%Y", "mdy": "%m/%d/%Y", "german": "%d.%m.%Y"}
DATES = {"death_date", "condition_start_date", "measurement_date"}
TIMES = {"death_datetime", "condition_start_datetime", "measurement_datetime"}


AMBIGUOUS = {"person": SMALL["person"], "death": [{"person_id": 1, "death_date": "03/04/2013"}]}


def test_an_ambiguous_column_is_refused_and_the_setting_decides(tmp_path: Path) -> None:
    source = write_csv(AMBIGUOUS, tmp_path / "csv")
    result = ehrseq("import", "omop", source, tmp_path / "meds")
    assert result.exit_code == 2
    assert "death.csv, column death_date" in result.output
    assert "import.dates=dmy" in result.output
    assert "03/04" not in result.output
    for order, day in (("dmy", date(2013, 4, 3)), ("mdy", date(2013, 3, 4))):
        assert ehrseq("import", "omop", source, tmp_path / order, f"import.dates={order}").exit_code == 0
        rows = [r for p in (tmp_path / order / "data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
        assert [r["time"].date() for r in rows if r["code"] == "MEDS_DEATH"] == [day]


def test_mixed_and_unreadable_columns_are_refused(tmp_path: Path) -> None:
    for name, texts, said in (
        ("mixed", ["13/04/2013", "04/13/2013"], "written in several ways"),
        ("words", ["SECRET", "SECRET2"], "can be read"),
        ("epoch", ["1.2e9", "1.3e9"], "can be read"),
    ):
        deaths = [{"person_id": i, "death_date": text} for i, text in enumerate(texts, start=1)]
        source = write_csv({"person": SMALL["person"], "death": deaths}, tmp_path / name)
        with pytest.raises(EhrseqError, match=said) as caught:
            import_omop(str(source), tmp_path / "meds")
        assert "column death_date" in str(caught.value)
        assert "SECRET" not in str(caught.value)


@given(st.lists(st.dates(date(1900, 1, 1), date(2100, 1, 1)), min_size=1), st.sampled_from(sorted(FORMATS)))
def test_a_column_is_read_right_or_refused(days: list[date], format: str) -> None:
    text = pa.chunked_array([[day.strftime(FORMATS[format]) for day in days]])
    try:
        how = date_order(count_dates(text), None, where="x")
    except EhrseqError:
        assert all(day.day <= 12 for day in days)
        assert format in ("dmy", "mdy", "german")
        return
    assert [t.date() for t in parse_times(text, how).to_pylist()] == days


ZONED = [
    {"person_id": 1, "condition_concept_id": 77, "condition_start_datetime": text}
    for text in ("2010-05-05T10:00:00+02:00", "2010-05-05T23:30:00-05:00", "2010-01-01T00:00:00Z")
]


def test_the_same_instants_from_csv_and_parquet(tmp_path: Path) -> None:
    """Text with zones, Parquet with zones, and Parquet in a zone of its own are the same bytes."""
    person = {"person": SMALL["person"]}
    import_omop(str(write_csv({**person, "condition_occurrence": ZONED}, tmp_path / "csv")), tmp_path / "one")
    instants = [datetime.fromisoformat(str(row["condition_start_datetime"])) for row in ZONED]
    for zone in ("UTC", "America/New_York"):
        source = write_parquet(person, tmp_path / zone.replace("/", "-"))
        table = {
            "person_id": [1, 1, 1],
            "condition_concept_id": [77, 77, 77],
            "condition_start_datetime": pa.array(instants, pa.timestamp("us", zone)),
        }
        pq.write_table(pa.table(table), source / "condition_occurrence.parquet")
        import_omop(str(source), tmp_path / f"{source.name}-meds")
        assert written(tmp_path / f"{source.name}-meds") == written(tmp_path / "one")
    rows = [r for p in (tmp_path / "one" / "data").rglob("*.parquet") for r in pq.read_table(p).to_pylist()]
    times = {r["time"] for r in rows if r["code"] == "OMOP//77"}
    assert {datetime(2010, 5, 5, 8), datetime(2010, 5, 6, 4, 30)} < times


def gibleed(header: str, folder: Path) -> Path:
    source = write_csv({"person": SMALL["person"]}, folder)
    rows = "".join(f"{i},1,77,2010-05-{i + 10}\n" for i in range(9))
    text = f"procedure_occurrence_id,person_id,procedure_concept_id,{header}\n{rows}"
    (source / "procedure_occurrence.csv").write_text(text)
    return source


@pytest.mark.parametrize(
    ("header", "what", "said"),
    [
        ("\"date(procedure_date,'unixepoch')\"", "the header", "name the column that it holds: procedure_date"),
        ("\"DATE(PROCEDURE_DATETIME, 'unixepoch')\"", "the header", "name the column that it holds: procedure_date"),
        ("date(procedure_date,'unixepoch')", "", "name the column that it holds: procedure_date"),
        ("strftime('%Y procedure_datetime' procedure_date)", "", "name the column that it holds: procedure_date"),
        ('"coalesce(procedure_datetime,procedure_date)"', "the header", "that it holds: procedure_date or proc"),
        ("when_done", "has no", "has no column procedure_date or procedure_datetime"),
        ("\"date(day_done,'unixepoch')\"", "has no", "has no column procedure_date or procedure_datetime"),
    ],
)
def test_a_date_column_that_cannot_be_found_is_refused_by_name(
    tmp_path: Path, header: str, what: str, said: str
) -> None:
    result = ehrseq("import", "omop", gibleed(header, tmp_path / "csv"), tmp_path / "meds")
    assert result.exit_code == 2
    assert f"procedure_occurrence.csv: {what}" in result.output
    assert ("is an expression, and no column's name" in result.output) == (what != "has no")
    assert said in result.output


CODED = "condition_concept_id", "condition_start_date"
NO_DATES: dict[str, pa.Array] = {
    "int64": pa.array([1425254400, 1425254401]),
    "double": pa.array([20150302.0, 20160302.0]),
    "bool": pa.array([True, False]),
    "decimal128(8, 0)": pa.array([Decimal(20150302), Decimal(20160302)]),
    "time32[ms]": pa.array([1, 2], pa.time32("ms")),
}


def dated(cells: pa.Array, folder: Path) -> tuple[Path, Path]:
    """A table of conditions with these dates, as a flat table and as OMOP."""
    (folder / "omop").mkdir()
    people = pa.table({"person_id": [1, 2], "year_of_birth": [1950, 1960]})
    pq.write_table(people, folder / "omop" / "person.parquet")
    path = folder / "omop" / "condition_occurrence.parquet"
    pq.write_table(pa.table({"person_id": [1, 2], CODED[0]: [77, 78], CODED[1]: cells}), path)
    (folder / "map.yaml").write_text(
        f"subject: person_id\ntime: {CODED[1]}\nevents:\n  - {{code: A, code_from: {CODED[0]}}}\n"
    )
    return path, folder / "map.yaml"


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint32()])
def test_whole_numbers_of_8_digits_are_dates(kind: pa.DataType, tmp_path: Path) -> None:
    path, table_map = dated(pa.array([20150302, 20160302], kind), tmp_path)
    table = pq.read_table(path).append_column("condition_start_datetime", pa.nulls(2, kind))
    pq.write_table(table, path)
    import_csv(path, tmp_path / "flat", settings=ImportConfig(map=table_map))
    import_omop(str(path.parent), tmp_path / "meds")
    for folder in ("flat", "meds"):
        rows = pa.concat_tables(pq.read_table(p) for p in (tmp_path / folder / "data").rglob("*.parquet")).to_pylist()
        days = {row["time"].date() for row in rows if row["time"] is not None and row["code"] != "MEDS_BIRTH"}
        assert days == {date(2015, 3, 2), date(2016, 3, 2)}


@pytest.mark.parametrize("kind", NO_DATES)
def test_a_column_of_dates_of_another_type_is_refused(kind: str, tmp_path: Path) -> None:
    path, table_map = dated(NO_DATES[kind], tmp_path)
    where = f"table condition_occurrence, column {CODED[1]}: its type {kind} cannot be read as dates"
    with pytest.raises(EhrseqError, match=re.escape(where)):
        import_csv(path, tmp_path / "flat", settings=ImportConfig(map=table_map))
    with pytest.raises(EhrseqError, match=re.escape(where)):
        import_omop(str(path.parent), tmp_path / "meds")
