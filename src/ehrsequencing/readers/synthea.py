"""Synthea's CSV export → MEDS.

Reads exports of several versions: `Id` or `ID`, `START` or `DATE`, plain or gz, with or without most tables.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cleaning_rules import END_SUFFIX
from ehrsequencing.readers.code_book import CodeBook
from ehrsequencing.readers.csv_files import (
    CsvFile,
    check_one_file_each,
    read_blocks,
    read_csv_lines,
)
from ehrsequencing.readers.date_order import (
    ISO_COLUMN,
    DateColumn,
    DateCounts,
    count_dates,
    unreadable_dates,
)
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.readers.parsing import parse_numbers, parse_times
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
                block = _Block(pa.array(counts.take(len(batch))), dates)
                if counts.name == "patients":
                    names.add(batch["ID"])
                    writer.add(_patients(batch, block))
                else:
                    writer.add(_events(counts.name, batch, block, codes))
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
    dates = job.date_columns(totals, counts, where=str(path))
    for column, how in dates.items():
        if how.order is None:
            raise unreadable_dates(f"{path}, column {column}")
    start = " or ".join(column for column in ("START", "DATE") if column in there)
    person = "ID" if name == "patients" else "PATIENT"
    counts.columns |= {
        "no_person": person,
        "unknown_person": person,
        "no_time": start,
        "no_code": "CODE",
    }
    return file, dates


def _patients(batch: pa.Table, block: "_Block") -> pa.Table:
    """Persons, births, deaths, and what never changes (so not the marital status)."""
    ids = subject_ids(batch["ID"])
    parts = [block.rows(ids, Role.PERSON, BIRTH, time=block.times(batch, "BIRTHDATE"))]
    died = pa.array(np.asarray(batch["DEATHDATE"].is_valid()))
    parts.append(
        block.rows(ids, Role.DEATH, DEATH, time=block.times(batch, "DEATHDATE")).filter(died)
    )
    for column in ("GENDER", "RACE", "ETHNICITY"):
        code = _joined(pa.scalar(column), batch[column])
        parts.append(block.rows(ids, Role.STATIC, code).filter(pc.is_valid(batch[column])))
    return _joined_rows(parts)


def _events(name: str, batch: pa.Table, block: "_Block", codes: CodeBook) -> pa.Table:
    """The rows of a block of any table except patients."""
    ids, encounter, visits = subject_ids(batch["PATIENT"]), batch["ENCOUNTER"], []
    time = pc.if_else(
        batch["START"].is_valid(), block.times(batch, "START"), block.times(batch, "DATE")
    )
    code = _joined(_vocabulary(batch["SYSTEM"], EVENT_TABLES[name]), batch["CODE"])
    if name == "imaging_studies":
        code = _joined(pa.scalar("DICOM"), batch["MODALITY_CODE"])
        codes.add(code, batch["MODALITY_DESCRIPTION"], None)
    else:
        codes.add(code, batch["DESCRIPTION"], None)
    if name == "encounters":
        encounter = batch["ID"]
        visit = _joined(pa.scalar("ENCOUNTER"), pc.fill_null(batch["ENCOUNTERCLASS"], "unknown"))
        end = block.times(batch, "STOP")
        visits = [block.rows(ids, Role.VISIT, visit, time=time, end=end, encounter_id=encounter)]
        nothing = pa.chunked_array([pa.nulls(len(batch), pa.string())])
        codes.add(pc.binary_join_element_wise(visit, pa.scalar(END_SUFFIX), ""), nothing, visit)
    values = {}
    if name == "observations":
        number, text, valued = _valued(code, batch)
        values = {"numeric_value": number, "text_value": text}
        codes.add(valued, batch["DESCRIPTION"], pc.if_else(pc.equal(valued, code), _NULL, code))
        code = valued
    return _joined_rows(
        [*visits, block.rows(ids, Role.EVENT, code, time=time, encounter_id=encounter, **values)]
    )


def _valued(
    code: pa.ChunkedArray, batch: pa.Table
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """Number, text and code of observations: CODE//UNIT for a number with a unit, CODE//TEXT for a short text."""
    declared_text = pc.fill_null(pc.equal(pc.utf8_lower(batch["TYPE"]), "text"), False)
    number = pc.if_else(declared_text, pa.scalar(None, pa.float64()), parse_numbers(batch["VALUE"]))
    numeric = number.is_valid()
    text = pc.if_else(numeric, _NULL, batch["VALUE"])
    short = pc.fill_null(pc.less_equal(pc.utf8_length(text), TEXT_VALUE_LENGTH), False)
    suffix = pc.if_else(numeric, batch["UNITS"], pc.if_else(short, text, _NULL))
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


@dataclass(frozen=True)
class _Block:
    """The source's row numbers of a block of a table, and how its dates are written."""

    source: pa.Array
    dates: dict[str, DateColumn]

    def times(self, batch: pa.Table, column: str) -> pa.Array:
        """A column of dates as timestamps."""
        return parse_times(batch[column], self.dates.get(column, ISO_COLUMN))

    def rows(
        self, subject_id: pa.Array, role: Role, code: str | pa.ChunkedArray, **columns: Any
    ) -> pa.Table:
        """Rows for the writer, one for each row of the block; the absent columns are null."""
        n = len(subject_id)
        code = pa.array([code] * n, pa.string()) if isinstance(code, str) else code
        roles = pa.array(np.full(n, int(role), dtype=np.int8))
        return pa.table(
            {
                "subject_id": subject_id,
                "role": roles,
                "code": code,
                **columns,
                "source": self.source,
            }
        )


def _joined_rows(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts, promote_options="default")
