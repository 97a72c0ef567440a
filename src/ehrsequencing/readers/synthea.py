"""Synthea's CSV exports → MEDS. Exports of several ages: `Id` or `ID`, `START` or `DATE`, gz or not, tables missing."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ehrsequencing.arrays import Ints
from ehrsequencing.config import ImportConfig
from ehrsequencing.errors import EhrseqError
from ehrsequencing.readers.dates import ISO_COLUMN, DateColumn, DateCounts, count_dates, date_column, unreadable_dates
from ehrsequencing.readers.files import BLOCK_BYTES, CsvFile, check_one_file_each, read_csv_lines
from ehrsequencing.readers.meds_out import CodeFacts, ImportReport, meds_writer
from ehrsequencing.readers.rows import Progress, Role
from ehrsequencing.readers.settle import END_SUFFIX
from ehrsequencing.readers.text import parse_numbers, parse_times
from ehrsequencing.records.events import BIRTH, DEATH

TEXT_VALUE_LENGTH = 64  # a longer text value makes no code of its own
# Vocabulary of each table's codes, where the table does not name it in SYSTEM.
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
_COLUMNS = (
    "ID", "PATIENT", "ENCOUNTER", "START", "DATE", "STOP", "CODE", "DESCRIPTION", "SYSTEM", "ENCOUNTERCLASS",
    "VALUE", "UNITS", "TYPE", "MODALITY_CODE", "MODALITY_DESCRIPTION",
)  # fmt: skip
_NEEDED = {  # of each of these, a table needs one column
    "patients": (("ID",),),
    "imaging_studies": (("PATIENT",), ("START", "DATE"), ("MODALITY_CODE",)),
    "events": (("PATIENT",), ("START", "DATE"), ("CODE",)),
}
_DATES = ("BIRTHDATE", "DEATHDATE", "START", "DATE", "STOP")
_NULL = pa.scalar(None, pa.string())


def import_synthea(
    source: Path, out: Path, *, settings: ImportConfig | None = None, progress: Progress | None = None
) -> ImportReport:
    """Import a folder of Synthea's CSV files.

    Args:
        source: Folder with `patients.csv` and `encounters.csv`, plain or gz; other tables may be missing.
        out: Folder to make; an earlier import there is replaced.
        settings: The order of dates, where their columns do not tell.
        progress: Called with steps done and to do.

    Returns:
        What was read, fixed and written; it is also in `OUT/metadata/import_report.json`.

    Raises:
        EhrseqError: A file or column is missing, ambiguous or cannot be read, nothing is left of a table, or the disk
            refuses.
    """
    files = _find(source)
    report = ImportReport("synthea", missing=[name for name in EVENT_TABLES if name not in files])
    codes, patients = _Codes(), _Patients()
    steps = len(files) + 1
    with meds_writer(out, report, source, encounter=pa.string()) as writer:
        for done, (name, path) in enumerate(files.items()):
            account = report.account.table(name)
            file, dates = _survey(name, path, settings or ImportConfig(), report)
            for batch in _read(file, _PATIENTS if name == "patients" else _COLUMNS):
                block = _Block(account.take(len(batch)), dates)
                if name == "patients":
                    writer.add(patients.rows(batch, block))
                else:
                    writer.add(_events(name, batch, block, codes))
            report.tables[name] = account.read
            account.check()
            if progress is not None:
                progress(done + 1, steps)
        patients.write_ids(writer.folder / "metadata" / "subject_ids.parquet")
        writer.finish(codes.facts)
    if progress is not None:
        progress(steps, steps)
    return report


def _find(source: Path) -> dict[str, Path]:
    """The known tables of the folder, patients first."""
    if not source.is_dir():
        raise EhrseqError("is not a folder", where=str(source), fix="name the folder of Synthea's CSV files")
    files = [
        (path.name.lower().removesuffix(".gz").removesuffix(".csv"), path) for path in sorted(source.glob("*.[cC]*"))
    ]
    files = [(name, path) for name, path in files if name == "patients" or name in EVENT_TABLES]
    check_one_file_each(files)
    found = dict(files)
    for name in ("patients", "encounters"):
        if name not in found:
            fix = "name the folder of Synthea's CSV files, plain or gz"
            raise EhrseqError(f"holds no {name}.csv", where=str(source), fix=fix)
    return {name: found[name] for name in ("patients", *EVENT_TABLES) if name in found}


def _survey(
    name: str, path: Path, settings: ImportConfig, report: ImportReport
) -> tuple[CsvFile, dict[str, DateColumn]]:
    """Check the columns of a file, find out how its dates are written, and count rows that cannot be parsed."""
    file, account = read_csv_lines(path), report.account.table(name)
    there = {column.upper() for column in file.header}
    for choice in _NEEDED.get(name, _NEEDED["events"]):
        if not there & set(choice):
            what = f"has no column {' or '.join(choice)}"
            raise EhrseqError(what, where=str(path), fix="rename the column that holds it; see Synthea's CSV export")
    if name == "patients" and "BIRTHDATE" not in there:
        report.cautions.append("patients has no column BIRTHDATE: every age is unknown")
    columns = [column for column in _DATES if column in there]
    counts, parsed, rejected = {column: DateCounts() for column in columns}, 0, Counter[str]()
    for batch in _read(file, tuple(columns) or (file.header[0].upper(),), rejected):
        parsed += len(batch)
        counts = {column: found + count_dates(batch[column]) for column, found in counts.items()}
    lost = file.rows_in(parsed, rejected.total()) - parsed
    report.counts["malformed_line"] += lost
    account.lose_lines(path.name, lost, file.uneven_line if rejected else file.odd_line)
    account.begin(path.name)
    dates = {}
    for column, found in counts.items():
        where = f"{path}, column {column}"
        dates[column] = how = date_column(found, settings.dates, where=where)
        account.unreadable[column] = (how.unreadable, found.filled)
        if how.order is None:
            raise unreadable_dates(where)
    start = " or ".join(column for column in ("START", "DATE") if column in there)
    person = "ID" if name == "patients" else "PATIENT"
    account.columns |= {"no_person": person, "unknown_person": person, "no_time": start, "no_code": "CODE"}
    return file, dates


def _read(file: CsvFile, wanted: tuple[str, ...], rejected: Counter[str] | None = None) -> Iterator[pa.Table]:
    """The wanted columns, as text under upper-case names, a block at a time; absent ones are null."""

    def skip(_: pacsv.InvalidRow) -> str:
        if rejected is not None:
            rejected["rows"] += 1
        return "skip"

    names = {name.upper(): name for name in file.header}
    present = [names[name] for name in wanted if name in names]
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(present, pa.string()), include_columns=present, strings_can_be_null=True,
        null_values=[""], quoted_strings_can_be_null=True,
    )  # fmt: skip
    escapes = file.escape == "\\"
    parse = pacsv.ParseOptions(
        delimiter=file.delimiter, quote_char=file.quote or False, double_quote=not escapes,
        escape_char="\\" if escapes else False, newlines_in_values=bool(file.quote), invalid_row_handler=skip,
    )  # fmt: skip
    read = pacsv.ReadOptions(column_names=list(file.header), skip_rows=1, block_size=BLOCK_BYTES)
    try:
        with pacsv.open_csv(file.path, read_options=read, parse_options=parse, convert_options=convert) as stream:
            for batch in stream:
                columns = {name: batch[names[name]] for name in wanted if name in names}
                absent = {name: pa.nulls(len(batch), pa.string()) for name in wanted if name not in names}
                yield pa.table(columns | absent)
    except (pa.ArrowException, OSError) as error:
        if str(error).startswith("Empty CSV file"):  # a header without a line below it
            return
        fix = "write it as UTF-8 CSV with a header line"
        raise EhrseqError("cannot be read as CSV", where=str(file.path), fix=fix) from error


class _Patients:
    """Names of the patients and their numbers in MEDS."""

    def __init__(self) -> None:
        self._names: list[pa.ChunkedArray] = []
        self._table: pa.Table | None = None

    def rows(self, batch: pa.Table, block: "_Block") -> pa.Table:
        """Persons, births, deaths and what never changes. Marital status does change: it is left out."""
        ids = subject_ids(batch["ID"])
        self._names.append(batch["ID"])
        parts = [block.rows(ids, Role.PERSON, BIRTH, time=block.times(batch, "BIRTHDATE"))]
        died = pa.array(np.asarray(batch["DEATHDATE"].is_valid()))
        parts.append(block.rows(ids, Role.DEATH, DEATH, time=block.times(batch, "DEATHDATE")).filter(died))
        for column in ("GENDER", "RACE", "ETHNICITY"):
            code = _joined(pa.scalar(column), batch[column])
            parts.append(block.rows(ids, Role.STATIC, code).filter(pc.is_valid(batch[column])))
        return pa.concat_tables(parts)

    def write_ids(self, path: Path) -> None:
        """Write which patient became which subject."""
        names = pc.unique(pa.chunked_array([c for names in self._names for c in names.chunks], pa.string()).drop_null())
        ids = subject_ids(pa.chunked_array([names]))
        if len(pc.unique(ids)) != len(names):
            fix = "import the patients in two parts"
            raise EhrseqError("two patients' hashed ids coincide", where="patients", fix=fix)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"subject_id": ids, "source_id": names}).sort_by("subject_id"), path)


def subject_ids(names: pa.ChunkedArray) -> pa.Array:
    """A patient's name → 63 bits of its SHA-256: the same in every export, whoever else is in it.

    >>> subject_ids(pa.chunked_array([["a", "a", None]])).to_pylist()
    [7299139317422481125, 7299139317422481125, None]
    """
    names = names.combine_chunks().dictionary_encode()
    names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    hashes = [int.from_bytes(hashlib.sha256(n.encode()).digest()[:8], "big") >> 1 for n in names.dictionary.to_pylist()]
    return pa.array(hashes, pa.int64()).take(names.indices)


class _Codes:
    """Descriptions and parents of the codes met so far."""

    def __init__(self) -> None:
        self._facts: dict[str, CodeFacts] = {}

    def add(self, code: pa.Array | pa.ChunkedArray, description: pa.ChunkedArray, parent: pa.Array | None) -> None:
        parent = pa.nulls(len(code), pa.string()) if parent is None else parent
        table = pa.table({"code": code, "description": description, "parent": parent})
        distinct = table.group_by("code", use_threads=False).aggregate([("description", "min"), ("parent", "min")])
        for row in distinct.to_pylist():
            if row["code"] is None:
                continue
            before = self._facts.get(row["code"], CodeFacts())
            texts = [t for t in (before.description, row["description_min"]) if t]
            up = row["parent_min"]
            self._facts[row["code"]] = CodeFacts(min(texts, default=None), (up,) if up else before.parents)

    def facts(self, seen: set[str]) -> dict[str, CodeFacts]:
        """Of the codes written, and of their parents."""
        wanted = seen | {up for code in seen for up in self._facts.get(code, CodeFacts()).parents}
        return {code: self._facts[code] for code in wanted if code in self._facts}


def _events(name: str, batch: pa.Table, block: "_Block", codes: _Codes) -> pa.Table:
    """The rows of a block of any table but patients."""
    ids, encounter, visits = subject_ids(batch["PATIENT"]), batch["ENCOUNTER"], []
    time = pc.if_else(batch["START"].is_valid(), block.times(batch, "START"), block.times(batch, "DATE"))
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
        visits = [block.rows(ids, Role.VISIT, visit, time=time, end=end, encounter=encounter)]
        nothing = pa.chunked_array([pa.nulls(len(batch), pa.string())])
        codes.add(pc.binary_join_element_wise(visit, pa.scalar(END_SUFFIX), ""), nothing, visit)
    number = text = None
    if name == "observations":
        number, text, valued = _valued(code, batch)
        codes.add(valued, batch["DESCRIPTION"], pc.if_else(pc.equal(valued, code), _NULL, code))
        code = valued
    events = block.rows(ids, Role.EVENT, code, time=time, encounter=encounter, number=number, text=text)
    return pa.concat_tables([*visits, events])


def _valued(code: pa.ChunkedArray, batch: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """Number, text and code of observations: CODE//UNIT with a number and a unit, CODE//TEXT with a short text."""
    declared_text = pc.fill_null(pc.equal(pc.utf8_lower(batch["TYPE"]), "text"), False)
    number = pc.if_else(declared_text, pa.scalar(None, pa.float64()), parse_numbers(batch["VALUE"]))
    numeric = number.is_valid()
    text = pc.if_else(numeric, _NULL, batch["VALUE"])
    short = pc.fill_null(pc.less_equal(pc.utf8_length(text), TEXT_VALUE_LENGTH), False)
    suffix = pc.if_else(numeric, batch["UNITS"], pc.if_else(short, text, _NULL))
    return number, text, pc.coalesce(_joined(code, suffix), code)


def _vocabulary(system: pa.ChunkedArray, default: str) -> pa.ChunkedArray:
    """The vocabulary that SYSTEM names ("SNOMED-CT", "http://snomed.info/sct" …), or the table's own."""
    lower, found = pc.utf8_lower(system), pa.scalar(default)
    for part, name in (("snomed", "SNOMED"), ("rxnorm", "RxNorm"), ("loinc", "LOINC"), ("cvx", "CVX")):
        found = pc.if_else(pc.fill_null(pc.match_substring(lower, part), False), name, found)
    return found


def _joined(left: pa.Scalar | pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """LEFT//RIGHT; null where either is."""
    return pc.binary_join_element_wise(left, right, "//")


@dataclass(frozen=True)
class _Block:
    """Where the rows of a block come from, and how its dates are written."""

    source: Ints
    dates: dict[str, DateColumn]

    def times(self, batch: pa.Table, column: str) -> pa.Array:
        """A column of dates as timestamps."""
        return parse_times(batch[column], self.dates.get(column, ISO_COLUMN))

    def rows(
        self,
        subject_id: pa.Array,
        role: Role,
        code: str | pa.ChunkedArray,
        *,
        time: pa.Array | None = None,
        end: pa.Array | None = None,
        encounter: pa.ChunkedArray | None = None,
        number: pa.ChunkedArray | None = None,
        text: pa.ChunkedArray | None = None,
    ) -> pa.Table:
        """One row of MEDS for each row of the block."""
        n, moment = len(subject_id), pa.timestamp("us")
        columns = {
            "subject_id": subject_id,
            "role": pa.array(np.full(n, int(role), dtype=np.int8)),
            "code": pa.array([code] * n, pa.string()) if isinstance(code, str) else code,
            "time": pa.nulls(n, moment) if time is None else time,
            "end": pa.nulls(n, moment) if end is None else end,
            "encounter_id": pa.nulls(n, pa.string()) if encounter is None else encounter,
            "numeric_value": pa.nulls(n, pa.float64()) if number is None else number,
            "text_value": pa.nulls(n, pa.string()) if text is None else text,
            "source": pa.array(self.source),
        }
        return pa.table(columns)
