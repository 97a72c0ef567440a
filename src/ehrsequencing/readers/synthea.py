"""Synthea's CSV export → MEDS.

Reads exports of several versions: `Id` or `ID`, `START` or `DATE`, plain or gz, with or without most tables.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import Block, parse_numbers
from ehrsequencing.readers.cleaning_rules import END_SUFFIX
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.csv_files import (
    CsvFile,
    check_one_file_each,
    read_blocks,
    read_csv_lines,
)
from ehrsequencing.readers.date_order import DateColumn, DateCounts, count_dates
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import Role
from ehrsequencing.readers.subject_ids import SubjectNames, subject_ids
from ehrsequencing.records.events import BIRTH, DEATH

TEXT_VALUE_LENGTH = 64  # a text value up to this length becomes part of the code
# The vocabulary of each table's codes, if its column SYSTEM does not name one.
EVENT_TABLES = {
    "encounters": "SNOMED",
    "conditions": "SNOMED",
    "procedures": "SNOMED",
    "medications": "RxNorm",
    "immunizations": "CVX",
    "observations": "LOINC",
    "allergies": "SNOMED",
    "careplans": "SNOMED",
    "devices": "SNOMED",
    "supplies": "SNOMED",
    "imaging_studies": "DICOM",
}
_PATIENTS = ("ID", "BIRTHDATE", "DEATHDATE", "GENDER", "RACE", "ETHNICITY")
_TEXTS = ("CODE", "DESCRIPTION", "SYSTEM", "ENCOUNTERCLASS", "VALUE", "UNITS", "TYPE")
_MODALITY = ("MODALITY_CODE", "MODALITY_DESCRIPTION")
_COLUMNS = ("ID", "PATIENT", "ENCOUNTER", "START", "DATE", "STOP", *_TEXTS, *_MODALITY)
_NEEDED = {  # a table needs one column of each group
    "patients": (("ID",),),
    "imaging_studies": (("PATIENT",), ("START", "DATE"), ("MODALITY_CODE",)),
    "events": (("PATIENT",), ("START", "DATE"), ("CODE",)),
}
_DATES = ("BIRTHDATE", "DEATHDATE", "START", "DATE", "STOP")
_NULL = pa.scalar(None, pa.string())


@reader(
    "synthea", help="Synthea's CSV export.", source="Folder of Synthea's CSV files, plain or gz"
)
def import_synthea(source: str, job: Import) -> None:
    """Read `patients.csv`, `encounters.csv` and the other tables, where they are there; see `Reader`."""
    files = _find(Path(source))
    job.report.missing += [name for name in EVENT_TABLES if name not in files]
    codes, names = CodeBook(), SubjectNames()
    with job.writer(Path(source), encounter=pa.string()) as writer:
        writer.code_facts = lambda seen: codes.facts
        for counts in job.tables(list(files)):
            file, dates = _survey(files[counts.name], counts, job)
            for batch in read_blocks(file, _PATIENTS if counts.name == "patients" else _COLUMNS):
                absent = frozenset(c for c in batch.column_names if c.lower() not in file.header)
                block = Block(batch, counts, dates=dates, absent=absent)
                if counts.name == "patients":
                    names.add(block.text("ID"))
                    writer.add(_patients(block))
                else:
                    writer.add(_events(counts.name, block, codes))
        names.write(writer.folder)


def _find(source: Path) -> dict[str, Path]:
    """The known tables of the folder, patients first."""
    if not source.is_dir():
        raise EhrseqError(
            "is not a folder", where=str(source), fix="name the folder of Synthea's CSV files"
        )
    files = [
        (path.name.lower().removesuffix(".gz").removesuffix(".csv"), path)
        for path in sorted(source.glob("*.[cC]*"))
    ]
    files = [(name, path) for name, path in files if name == "patients" or name in EVENT_TABLES]
    check_one_file_each(files)
    found = dict(files)
    for name in ("patients", "encounters"):
        if name not in found:
            fix = "name the folder of Synthea's CSV files, plain or gz"
            raise EhrseqError(f"holds no {name}.csv", where=str(source), fix=fix)
    return {name: found[name] for name in ("patients", *EVENT_TABLES) if name in found}


def _survey(path: Path, counts: TableCounts, job: Import) -> tuple[CsvFile, dict[str, DateColumn]]:
    """Check the columns of a file, find out how its dates are written, and count rows that cannot be parsed."""
    file, name = read_csv_lines(path), counts.name
    there = {column.upper() for column in file.header}
    for choice in _NEEDED.get(name, _NEEDED["events"]):
        if not there & set(choice):
            what = f"has no column {' or '.join(choice)}"
            raise EhrseqError(
                what,
                where=str(path),
                fix="rename the column that holds it; see Synthea's CSV export",
            )
    if name == "patients" and "BIRTHDATE" not in there:
        job.report.cautions.append("patients has no column BIRTHDATE: every age is unknown")
    columns = [column for column in _DATES if column in there]
    totals, parsed, rejected = {column: DateCounts() for column in columns}, 0, Counter[str]()
    for batch in read_blocks(file, tuple(columns) or (file.header[0].upper(),), rejected):
        parsed += len(batch)
        totals = {column: found + count_dates(batch[column]) for column, found in totals.items()}
    lost = file.rows_in(parsed, rejected.total()) - parsed
    job.report.lose_lines(counts, path.name, lost, file.uneven_line if rejected else file.odd_line)
    counts.begin(path.name)
    dates = job.date_columns(totals, where=str(path))
    start = " or ".join(column for column in ("START", "DATE") if column in there)
    person = "ID" if name == "patients" else "PATIENT"
    counts.required |= {person, "START" if "START" in there else "DATE"}
    counts.columns |= {
        "no_person": person,
        "unknown_person": person,
        "no_time": start,
        "no_code": "CODE",
    }
    return file, dates


def _patients(block: Block) -> pa.Table:
    """Persons, births, deaths, and what never changes (so not the marital status)."""
    ids = subject_ids(block.text("ID"))
    died = pc.is_valid(block.text("DEATHDATE"))
    parts = [
        _rows(block, ids, Role.PERSON, BIRTH, time=block.times("BIRTHDATE")),
        _rows(block, ids, Role.DEATH, DEATH, time=block.times("DEATHDATE")).filter(died),
    ]
    for column in ("GENDER", "RACE", "ETHNICITY"):
        code = _joined(pa.scalar(column), block.text(column))
        parts.append(_rows(block, ids, Role.STATIC, code).filter(pc.is_valid(code)))
    return _joined_rows(parts)


def _events(name: str, block: Block, codes: CodeBook) -> pa.Table:
    """The rows of a block of any table except patients."""
    ids, encounter, visits = subject_ids(block.text("PATIENT")), block.text("ENCOUNTER"), []
    time = pc.coalesce(block.times("START"), block.times("DATE"))
    description = block.text("DESCRIPTION")
    if name == "imaging_studies":
        code = _joined(pa.scalar("DICOM"), block.text("MODALITY_CODE"))
        description = block.text("MODALITY_DESCRIPTION")
    else:
        vocabulary = _vocabulary(block.text("SYSTEM"), EVENT_TABLES[name])
        code = _joined(vocabulary, block.text("CODE"))
    codes.add(code, description, None)
    if name == "encounters":
        encounter = block.text("ID")
        kind = pc.fill_null(block.text("ENCOUNTERCLASS"), "unknown")
        visit = _joined(pa.scalar("ENCOUNTER"), kind)
        end = block.times("STOP")
        visits = [_rows(block, ids, Role.VISIT, visit, time=time, end=end, encounter_id=encounter)]
        nothing = pa.chunked_array([pa.nulls(len(block), pa.string())])
        codes.add(pc.binary_join_element_wise(visit, pa.scalar(END_SUFFIX), ""), nothing, visit)
    values = {}
    if name == "observations":
        number, text, valued = _valued(code, block)
        values = {"numeric_value": number, "text_value": text}
        codes.add(valued, description, pc.if_else(pc.equal(valued, code), _NULL, code))
        code = valued
    events = _rows(block, ids, Role.EVENT, code, time=time, encounter_id=encounter, **values)
    return _joined_rows([*visits, events])


def _valued(
    code: pa.ChunkedArray, block: Block
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """Number, text and code of observations: CODE//UNIT for a number with a unit, CODE//TEXT for a short text."""
    value = block.text("VALUE")
    declared_text = pc.fill_null(pc.equal(pc.utf8_lower(block.text("TYPE")), "text"), False)
    number = pc.if_else(declared_text, pa.scalar(None, pa.float64()), parse_numbers(value))
    numeric = number.is_valid()
    text = pc.if_else(numeric, _NULL, value)
    short = pc.fill_null(pc.less_equal(pc.utf8_length(text), TEXT_VALUE_LENGTH), False)
    suffix = pc.if_else(numeric, block.text("UNITS"), pc.if_else(short, text, _NULL))
    return number, text, pc.coalesce(_joined(code, suffix), code)


def _vocabulary(system: pa.ChunkedArray, default: str) -> pa.ChunkedArray:
    """The vocabulary that SYSTEM names ("SNOMED-CT", "http://snomed.info/sct" …), else the default."""
    lower, found = pc.utf8_lower(system), pa.scalar(default)
    for part, name in (
        ("snomed", "SNOMED"),
        ("rxnorm", "RxNorm"),
        ("loinc", "LOINC"),
        ("cvx", "CVX"),
    ):
        found = pc.if_else(pc.fill_null(pc.match_substring(lower, part), False), name, found)
    return found


def _joined(left: pa.Scalar | pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """LEFT//RIGHT; null where either is null."""
    return pc.binary_join_element_wise(left, right, "//")


def _rows(
    block: Block, subject_id: pa.Array, role: Role, code: str | pa.ChunkedArray, **columns: Any
) -> pa.Table:
    """Rows for the writer, one for each row of the block; the absent columns are null."""
    n = len(subject_id)
    code = pa.array([code] * n, pa.string()) if isinstance(code, str) else code
    roles = pa.array(np.full(n, int(role), dtype=np.int8))
    base = {"subject_id": subject_id, "role": roles, "code": code}
    return pa.table({**base, **columns, "source": block.source})


def _joined_rows(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts, promote_options="default")
