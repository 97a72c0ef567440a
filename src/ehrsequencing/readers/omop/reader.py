"""Read OMOP tables and add their rows, with codes by concept, to a MEDS writer."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.readers.meds_writer import MedsWriter
from ehrsequencing.readers.omop.concepts import Concepts
from ehrsequencing.readers.omop.source import Part, Source, open_source
from ehrsequencing.readers.omop.sql import source_sql
from ehrsequencing.readers.omop.survey import survey, survey_lines
from ehrsequencing.readers.omop.tables import (
    EVENT_TABLES,
    TABLES,
    VOCABULARY_TABLES,
    EventTable,
    date_stems,
    rows_of,
)
from ehrsequencing.readers.omop.url import local_path
from ehrsequencing.readers.parsing import dates_us
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import Role, combinations
from ehrsequencing.records.events import BIRTH, DEATH

_BIRTH = ("birth_datetime", "year_of_birth")
_NULL = pa.scalar(None, pa.string())


@reader(
    "omop",
    help="OMOP CDM 5.3 or 5.4, from files or from a live database.",
    source="Folder of CSV, CSV.gz or Parquet tables, or postgres://… or duckdb://FILE",
    sql=source_sql,
)
def import_omop(source: str, job: Import) -> None:
    """Read a folder with one file per table, or a URL that Ibis can open; see `Reader` and `open_source`."""
    report = job.report
    with open_source(source) as found:
        report.missing += [name for name in TABLES if name not in found.tables]
        report.notes += _renamed_columns(found)
        with job.writer(local_path(source), encounter=pa.int64()) as writer:
            for name in VOCABULARY_TABLES:
                if any(part.csv is not None for part in found.tables.get(name, [])):
                    survey_lines(found, report.row_counts.table(name), report)
            concepts = Concepts(found)
            writer.code_facts = concepts.facts
            for counts in job.tables(
                [n for n in TABLES if n in found.tables and n not in VOCABULARY_TABLES]
            ):
                _read(found, counts, writer, concepts, job)
            if concepts.unnamed:
                what = "concepts of the data are not in a table concept: their codes are OMOP//concept_id"
                report.notes.append(f"{concepts.unnamed:,} {what}")


def _renamed_columns(source: Source) -> list[str]:
    parts = [part for parts in source.tables.values() for part in parts]
    return [
        f"{part.file or part.where}: column {old} was read as {new}"
        for part in parts
        for new, old in part.renamed
    ]


def _read(
    source: Source, counts: TableCounts, writer: MedsWriter, concepts: Concepts, job: Import
) -> None:
    """Add the rows of one table to the writer."""
    name, parts = counts.name, source.tables[counts.name]
    dates = survey(source, counts, job)
    counts.columns |= _reason_columns(name, parts)
    if name == "person" and not any(set(_BIRTH) & set(part.table.columns) for part in parts):
        job.report.cautions.append(
            "person has neither birth_datetime nor year_of_birth: every age is unknown"
        )
    spec = EVENT_TABLES.get(name)
    for part in parts:
        counts.begin(part.file)
        for batch in source.stream(rows_of(part.table, name, dates), part):
            batch = batch.append_column("source", pa.array(counts.take(len(batch))))
            if spec is not None:
                writer.add(_events(batch, spec, concepts, job))
            elif name == "person":
                writer.add(_persons(batch, concepts))
            else:
                role, code = (Role.DEATH, DEATH) if name == "death" else (Role.OBSERVED, None)
                writer.add(_with_role(batch, role, pa.array([code] * len(batch), pa.string())))


def _reason_columns(name: str, parts: list[Part]) -> dict[str, str]:
    """Reason for dropping a row of this table → the column concerned."""
    there = {column for part in parts for column in part.table.columns}
    start = [f"{stem}_{kind}" for stem in date_stems(name)[:1] for kind in ("datetime", "date")]
    dates = " or ".join(column for column in start if column in there)
    return {"no_person": "person_id", "unknown_person": "person_id"} | (
        {"no_time": dates} if dates else {}
    )


def _with_role(batch: pa.Table, role: Role, code: pa.Array | pa.ChunkedArray) -> pa.Table:
    roles = pa.array(np.full(len(batch), int(role), dtype=np.int8))
    return batch.append_column("role", roles).append_column("code", code)


def _persons(batch: pa.Table, concepts: Concepts) -> pa.Table:
    """Persons with their births, and sex, race and ethnicity without a time."""
    year, month, day = (batch[part] for part in ("year", "month", "day"))
    written = dates_us(_ints(year, -1), _ints(month, 1), _ints(day, 1))
    birth = pc.coalesce(batch["birth"].cast(pa.timestamp("us")), written)
    rows = batch.select(["subject_id", "source"]).append_column("time", birth)
    parts = [_with_role(rows, Role.PERSON, pa.array([BIRTH] * len(batch)))]
    for name in ("gender", "race", "ethnicity"):
        known = batch.filter(pc.not_equal(batch[name], 0))
        code = concepts.codes(known[name], family=name.capitalize())
        parts.append(_with_role(known.select(["subject_id", "source"]), Role.STATIC, code))
    return pa.concat_tables(parts, promote_options="default")


def _ints(column: pa.ChunkedArray, missing: int) -> Ints:
    return np.asarray(pc.fill_null(column, missing).to_numpy(), dtype=np.int64)


def _events(batch: pa.Table, spec: EventTable, concepts: Concepts, job: Import) -> pa.Table:
    """Rows of an event table with their codes: VOCABULARY//CODE, with //UNIT or //VALUE where there is one.

    Codes are made once for each combination of concept, unit and value, of which there are few.
    """
    keys = {"concept_id": batch["concept_id"]}
    if spec.valued:
        keys |= {name: batch[name] for name in ("unit_id", "unit", "value_id")}
        keys["numbered"] = pc.is_valid(batch["number"])
    few, place = combinations(keys)
    unmapped = pc.equal(few["concept_id"], 0)
    is_unmapped = np.asarray(unmapped)[place]
    job.report.counts["unmapped"] += int(is_unmapped.sum())
    code = pc.if_else(unmapped, f"OMOP//0//{spec.domain}", concepts.codes(few["concept_id"]))
    rows = batch.select(["subject_id", "time", "end", "encounter_id", "source"])
    if spec.valued:
        suffix = pc.if_else(few["numbered"], _units(few, concepts), _values(few, concepts))
        code = concepts.derived(code, pc.if_else(unmapped, _NULL, suffix))
        number = pc.if_else(pa.array(is_unmapped), pa.scalar(None, pa.float64()), batch["number"])
        rows = rows.append_column("numeric_value", number)
        rows = rows.append_column("text_value", _without_blanks(batch["text_value"]))
    if spec.end:
        concepts.with_end(code)
    return _with_role(
        rows, spec.role, pa.DictionaryArray.from_arrays(pa.array(place), code.combine_chunks())
    )


def _without_blanks(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """The texts, null where they are blank."""
    if text.null_count == len(text):
        return text
    return pc.if_else(pc.equal(pc.utf8_trim_whitespace(pc.fill_null(text, "")), ""), _NULL, text)


def _units(batch: pa.Table, concepts: Concepts) -> pa.ChunkedArray:
    """The unit as its concept's code (mg/dL), else as the source wrote it, else as its concept's number."""
    named, known = concepts.short_codes(batch["unit_id"])
    written = _without_blanks(pc.utf8_trim_whitespace(batch["unit"]))
    return pc.coalesce(pc.if_else(known, named, _NULL), written, named)


def _values(batch: pa.Table, concepts: Concepts) -> pa.ChunkedArray:
    """The code of the value's concept, null without one."""
    given = pc.fill_null(pc.not_equal(batch["value_id"], 0), False)
    return pc.if_else(given, concepts.codes(pc.fill_null(batch["value_id"], 0)), _NULL)
