"""Read OMOP tables and add their rows, with codes by concept, to a MEDS writer."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.core.arrays import Ints
from ehrsequencing.readers.cells import Block, dates_us
from ehrsequencing.readers.import_report import TableCounts
from ehrsequencing.readers.meds_writer import MedsWriter
from ehrsequencing.readers.omop.concepts import Concepts
from ehrsequencing.readers.omop.source import Part, Source, open_source
from ehrsequencing.readers.omop.sql import source_sql
from ehrsequencing.readers.omop.survey import survey, survey_lines
from ehrsequencing.readers.omop.tables import (
    BIRTH_PARTS,
    EVENT_TABLES,
    PERSON_CONCEPTS,
    TABLES,
    VOCABULARY_TABLES,
    EventTable,
    date_stems,
    rows_of,
)
from ehrsequencing.readers.omop.url import local_path
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import Role, combinations
from ehrsequencing.records.events import BIRTH, DEATH

_BIRTH = ("birth_datetime", "year_of_birth")
# concepts of `operator_concept_id` by which a number is only a bound
_BOUNDS = {4171756: "<", 4171754: "<=", 4172704: ">", 4171755: ">="}
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
    counts.required |= {f"{spec.concept}_concept_id"} if spec is not None else set()
    for part in parts:
        counts.begin(part.file)
        for batch in source.stream(rows_of(part.table, name), part):
            block = Block(batch, counts, dates=dates)
            if spec is not None:
                writer.add(_events(block, spec, concepts, job))
            elif name == "person":
                writer.add(_persons(block, concepts))
            elif name == "death":
                rows = {"time": _moment(block, "death")}
                writer.add(_with_role(block, rows, Role.DEATH, DEATH))
            else:
                start, end = (_moment(block, f"observation_period_{at}") for at in ("start", "end"))
                rows = {"time": start, "end": end}
                writer.add(_with_role(block, rows, Role.OBSERVED, None))


def _moment(block: Block, stem: str) -> pa.ChunkedArray:
    """(n,) the time of the `_datetime` column, else the date at midnight."""
    return pc.coalesce(block.times(f"{stem}_datetime"), block.times(f"{stem}_date"))


def _concept(block: Block, stem: str) -> pa.ChunkedArray:
    """(n,) the standard concept, else the source concept, else 0."""
    own = pc.fill_null(block.whole(f"{stem}_source_concept_id"), 0)
    standard = block.whole(f"{stem}_concept_id")
    return pc.if_else(pc.equal(pc.fill_null(standard, 0), 0), own, standard)


def _reason_columns(name: str, parts: list[Part]) -> dict[str, str]:
    """Reason for dropping a row of this table → the column concerned."""
    there = {column for part in parts for column in part.table.columns}
    start = [f"{stem}_{kind}" for stem in date_stems(name)[:1] for kind in ("datetime", "date")]
    dates = " or ".join(column for column in start if column in there)
    return {"no_person": "person_id", "unknown_person": "person_id"} | (
        {"no_time": dates} if dates else {}
    )


def _with_role(
    block: Block, columns: dict[str, Any], role: Role, code: str | pa.Array | pa.ChunkedArray | None
) -> pa.Table:
    """Rows for the writer, one for each row of the block; the absent columns are null."""
    n = len(block)
    codes = pa.array([code] * n, pa.string()) if code is None or isinstance(code, str) else code
    base = {"subject_id": block.whole("person_id"), "source": block.source}
    roles = pa.array(np.full(n, int(role), dtype=np.int8))
    return pa.table({**base, **columns, "role": roles, "code": codes})


def _persons(block: Block, concepts: Concepts) -> pa.Table:
    """Persons with their births, and sex, race and ethnicity without a time."""
    missing = zip((block.whole(part) for part in BIRTH_PARTS), (-1, 1, 1), strict=True)
    written = dates_us(*(_ints(column, none) for column, none in missing))
    born = pc.coalesce(block.times("birth_datetime"), written)
    parts = [_with_role(block, {"time": born}, Role.PERSON, BIRTH)]
    for name in PERSON_CONCEPTS:
        concept = _concept(block, name)
        code = concepts.codes(concept, family=name.capitalize())
        rows = _with_role(block, {}, Role.STATIC, code)
        parts.append(rows.filter(pc.not_equal(concept, 0)))
    return pa.concat_tables(parts, promote_options="default")


def _ints(column: pa.ChunkedArray, missing: int) -> Ints:
    return np.asarray(pc.fill_null(column, missing).to_numpy(), dtype=np.int64)


def _events(block: Block, spec: EventTable, concepts: Concepts, job: Import) -> pa.Table:
    """Rows of an event table with their codes: VOCABULARY//CODE, with //UNIT or //VALUE where there is one.

    Codes are made once for each combination of concept, unit and value, of which there are few.
    """
    keys = {"concept_id": _concept(block, spec.concept)}
    number = text = None
    if spec.valued:
        number, text = _values(block, job)
        keys |= {
            "unit_id": block.whole("unit_concept_id"),
            "unit": block.coded("unit_source_value"),
            "value_id": block.whole("value_as_concept_id"),
            "numbered": pc.is_valid(number),
        }
    few, place = combinations(keys)
    unmapped = pc.equal(few["concept_id"], 0)
    is_unmapped = np.asarray(unmapped)[place]
    job.report.counts["unmapped"] += int(is_unmapped.sum())
    code = pc.if_else(unmapped, f"OMOP//0//{spec.domain}", concepts.codes(few["concept_id"]))
    columns = {
        "time": _moment(block, spec.start),
        "encounter_id": block.whole("visit_occurrence_id"),
    }
    if spec.end is not None:
        columns["end"] = _moment(block, spec.end)
    if spec.valued:
        suffix = pc.if_else(few["numbered"], _units(few, concepts), _value_codes(few, concepts))
        code = concepts.derived(code, pc.if_else(unmapped, _NULL, suffix))
        nothing = pa.scalar(None, pa.float64())
        columns["numeric_value"] = pc.if_else(pa.array(is_unmapped), nothing, number)
        columns["text_value"] = text
    if spec.end:
        concepts.with_end(code)
    coded = pa.DictionaryArray.from_arrays(pa.array(place), code.combine_chunks())
    return _with_role(block, columns, spec.role, coded)


def _values(block: Block, job: Import) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """(n,) the numbers, and (n,) the texts; a bound, or what cannot be read, is a text as written."""
    number, text = block.numbers("value_as_number"), block.text("value_as_string")
    operator = block.whole("operator_concept_id")
    sign = pc.index_in(operator, pa.array([*_BOUNDS], pa.int64()))
    bound = pc.and_(pc.is_valid(sign), pc.is_valid(number))
    bounds = 0 if operator.null_count == len(block) else pc.sum(bound).as_py() or 0
    if bounds or block.is_text("value_as_number"):
        job.report.counts["bound"] += bounds
        written, signs = block.text("value_as_number"), pa.array([*_BOUNDS.values()])
        signed = pc.binary_join_element_wise(signs.take(sign.combine_chunks()), written, "")
        unread = pc.and_(pc.is_valid(written), pc.is_null(number))
        text = pc.coalesce(text, pc.if_else(bound, signed, pc.if_else(unread, written, _NULL)))
        number = pc.if_else(bound, pa.scalar(None, pa.float64()), number)
    return number, text


def _units(batch: pa.Table, concepts: Concepts) -> pa.ChunkedArray:
    """The unit as its concept's code (mg/dL), else as the source wrote it, else as its concept's number."""
    named, known = concepts.short_codes(batch["unit_id"])
    return pc.coalesce(pc.if_else(known, named, _NULL), batch["unit"], named)


def _value_codes(batch: pa.Table, concepts: Concepts) -> pa.ChunkedArray:
    """The code of the value's concept, null without one."""
    given = pc.fill_null(pc.not_equal(batch["value_id"], 0), False)
    return pc.if_else(given, concepts.codes(pc.fill_null(batch["value_id"], 0)), _NULL)
