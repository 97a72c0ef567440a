"""Synthea's CSV exports → MEDS. Exports of several ages: `Id` or `ID`, `START` or `DATE`, gz or not, tables missing."""

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ehrsequencing.errors import EhrseqError
from ehrsequencing.readers.meds_out import CodeFacts, ImportReport, MedsWriter, meds_writer
from ehrsequencing.readers.rows import Counts, Progress, Role
from ehrsequencing.readers.settle import END_SUFFIX
from ehrsequencing.readers.text import open_text, parse_numbers, parse_times
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
_NULL = pa.scalar(None, pa.string())


def import_synthea(source: Path, out: Path, *, progress: Progress | None = None) -> ImportReport:
    """Import a folder of Synthea's CSV files.

    Args:
        source: Folder with `patients.csv` and `encounters.csv`, plain or gz; other tables may be missing.
        out: Folder to make; an earlier import there is replaced.
        progress: Called with steps done and to do.

    Returns:
        What was read, mended and written; it is also in `OUT/metadata/import_report.json`.

    Raises:
        EhrseqError: A file or column is missing or cannot be read, or the disk refuses.
    """
    files = _find(source)
    report = ImportReport("synthea", missing=[name for name in EVENT_TABLES if name not in files])
    codes = _Codes()
    steps = len(files) + 1
    with meds_writer(out, report, source, encounter=pa.string()) as writer:
        patients = _Patients()
        for done, (name, path) in enumerate(files.items()):
            report.tables[name] = 0
            for batch in _read(path, _PATIENTS if name == "patients" else _COLUMNS, report.counts):
                report.tables[name] += len(batch)
                if name == "patients":
                    patients.add(batch, writer)
                else:
                    _add_events(name, batch, writer, codes)
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
        raise EhrseqError("is not a folder", where=str(source), mend="name the folder of Synthea's CSV files")
    found = {
        path.name.lower().removesuffix(".gz").removesuffix(".csv"): path for path in sorted(source.glob("*.[cC]*"))
    }
    for name in ("patients", "encounters"):
        if name not in found:
            mend = "name the folder of Synthea's CSV files, plain or gz"
            raise EhrseqError(f"holds no {name}.csv", where=str(source), mend=mend)
    return {name: found[name] for name in ("patients", *EVENT_TABLES) if name in found}


def _read(path: Path, wanted: tuple[str, ...], counts: Counts) -> Iterator[pa.Table]:
    """The wanted columns, as text under upper-case names, a block at a time; absent ones are null."""

    def skip(_: pacsv.InvalidRow) -> str:
        counts["malformed_line"] += 1
        return "skip"

    unreadable = EhrseqError("cannot be read as CSV", where=str(path), mend="write it as UTF-8 CSV with a header line")
    try:
        with open_text(path) as file:
            names = {name.strip().upper(): name for name in next(csv.reader(file), [])}
        needed = "ID" if "BIRTHDATE" in wanted else "PATIENT"
        if needed not in names:
            raise EhrseqError(f"has no column {needed}", where=str(path), mend="see Synthea's CSV export")
        present = [names[name] for name in wanted if name in names]
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(present, pa.string()), include_columns=present, strings_can_be_null=True,
            null_values=[""], quoted_strings_can_be_null=True,
        )  # fmt: skip
        parse = pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
        with pacsv.open_csv(path, parse_options=parse, convert_options=convert) as stream:
            for batch in stream:
                columns = {name: batch[names[name]] for name in wanted if name in names}
                absent = {name: pa.nulls(len(batch), pa.string()) for name in wanted if name not in names}
                yield pa.table(columns | absent)
    except (pa.ArrowException, OSError, UnicodeError, csv.Error, EOFError) as error:
        raise unreadable from error


class _Patients:
    """Names of the patients and their numbers in MEDS."""

    def __init__(self) -> None:
        self._names: list[pa.ChunkedArray] = []
        self._table: pa.Table | None = None

    def add(self, batch: pa.Table, writer: MedsWriter) -> None:
        """Write persons, births, deaths and what never changes. Marital status does change: it is left out."""
        ids = subject_ids(batch["ID"])
        self._names.append(batch["ID"])
        writer.add(_rows(ids, Role.PERSON, BIRTH, time=parse_times(batch["BIRTHDATE"])))
        died = pa.array(np.asarray(batch["DEATHDATE"].is_valid()))
        writer.add(_rows(ids, Role.DEATH, DEATH, time=parse_times(batch["DEATHDATE"])).filter(died))
        for column in ("GENDER", "RACE", "ETHNICITY"):
            code = _joined(pa.scalar(column), batch[column])
            writer.add(_rows(ids, Role.STATIC, code).filter(pc.is_valid(batch[column])))

    def write_ids(self, path: Path) -> None:
        """Write which patient became which subject."""
        names = pc.unique(pa.chunked_array([c for names in self._names for c in names.chunks], pa.string()).drop_null())
        ids = subject_ids(pa.chunked_array([names]))
        if len(pc.unique(ids)) != len(names):
            mend = "import the patients in two parts"
            raise EhrseqError("two patients' hashed ids coincide", where="patients", mend=mend)
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


def _add_events(name: str, batch: pa.Table, writer: MedsWriter, codes: _Codes) -> None:
    """Write a block of any table but patients."""
    ids, encounter = subject_ids(batch["PATIENT"]), batch["ENCOUNTER"]
    start = pc.coalesce(batch["START"], batch["DATE"])
    time = parse_times(start)
    code = _joined(_vocabulary(batch["SYSTEM"], EVENT_TABLES[name]), batch["CODE"])
    if name == "imaging_studies":
        code = _joined(pa.scalar("DICOM"), batch["MODALITY_CODE"])
        codes.add(code, batch["MODALITY_DESCRIPTION"], None)
    else:
        codes.add(code, batch["DESCRIPTION"], None)
    if name == "encounters":
        encounter = batch["ID"]
        visit = _joined(pa.scalar("ENCOUNTER"), pc.fill_null(batch["ENCOUNTERCLASS"], "unknown"))
        end = parse_times(batch["STOP"])
        writer.add(_rows(ids, Role.VISIT, visit, time=time, end=end, encounter=encounter))
        nothing = pa.chunked_array([pa.nulls(len(batch), pa.string())])
        codes.add(pc.binary_join_element_wise(visit, pa.scalar(END_SUFFIX), ""), nothing, visit)
    number = text = None
    if name == "observations":
        number, text, valued = _valued(code, batch)
        codes.add(valued, batch["DESCRIPTION"], pc.if_else(pc.equal(valued, code), _NULL, code))
        code = valued
    writer.add(_rows(ids, Role.EVENT, code, time=time, encounter=encounter, number=number, text=text))


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


def _rows(
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
    n = len(subject_id)
    given = {"time": time, "end": end, "encounter_id": encounter, "numeric_value": number, "text_value": text}
    columns = {
        "subject_id": subject_id,
        "role": pa.array(np.full(n, int(role), dtype=np.int8)),
        "code": pa.array([code] * n, pa.string()) if isinstance(code, str) else code,
        **{name: column for name, column in given.items() if column is not None},
    }
    return pa.table(columns)
