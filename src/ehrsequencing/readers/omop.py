"""OMOP's Common Data Model 5.3 and 5.4 → MEDS, from files or from a live database."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.arrays import Ints
from ehrsequencing.config import ImportConfig
from ehrsequencing.readers.meds_out import ImportReport, MedsWriter, meds_writer
from ehrsequencing.readers.omop_concepts import Concepts
from ehrsequencing.readers.omop_profile import survey, survey_lines
from ehrsequencing.readers.omop_source import Part, Source, open_source
from ehrsequencing.readers.omop_tables import (
    EVENT_TABLES,
    TABLES,
    VOCABULARY_TABLES,
    EventTable,
    date_stems,
    death_rows,
    event_rows,
    period_rows,
    person_rows,
)
from ehrsequencing.readers.omop_url import local_path
from ehrsequencing.readers.rows import Progress, Role
from ehrsequencing.readers.text import dates_us
from ehrsequencing.records.events import BIRTH, DEATH

_BIRTH = ("birth_datetime", "year_of_birth")
_NULL = pa.scalar(None, pa.string())


def import_omop(
    source: str, out: Path, *, settings: ImportConfig | None = None, progress: Progress | None = None
) -> ImportReport:
    """Import OMOP tables.

    Args:
        source: Folder of CSV, CSV.gz or Parquet files, one a table, with headers in any case; or a URL that Ibis can
            open, as in `duckdb://cdm.duckdb` and `postgres://user:password@host/database?schema=cdm`.
        out: Folder to make; an earlier import there is replaced.
        settings: The order of dates, where their columns do not tell.
        progress: Called with steps done and to do.

    Returns:
        What was read, fixed and written; it is also in `OUT/metadata/import_report.json`.

    Raises:
        EhrseqError: Ibis is not installed, the source cannot be read, a column is missing or ambiguous, nothing is
            left of a table, or the disk refuses.
    """
    with open_source(source) as found:
        report = ImportReport("omop", missing=[name for name in TABLES if name not in found.tables])
        report.notes += _renamings(found)
        names = [name for name in TABLES if name in found.tables and name not in VOCABULARY_TABLES]
        steps = len(names) + 2
        with meds_writer(out, report, local_path(source), encounter=pa.int64()) as writer:
            for name in VOCABULARY_TABLES:
                if any(part.csv is not None for part in found.tables.get(name, [])):
                    _survey_vocabulary(found, name, report)
            concepts = Concepts(found)
            for done, name in enumerate(names, start=1):
                report.tables[name] = _read(found, name, writer, concepts, settings or ImportConfig())
                if progress is not None:
                    progress(done, steps)
            if concepts.unnamed:
                what = "concepts of the data are not in a table concept: their codes are OMOP//concept_id"
                report.notes.append(f"{concepts.unnamed:,} {what}")
            writer.finish(concepts.facts)
    if progress is not None:
        progress(steps, steps)
    return report


def _renamings(source: Source) -> list[str]:
    parts = [part for parts in source.tables.values() for part in parts]
    return [f"{part.file or part.where}: column {old} was read as {new}" for part in parts for new, old in part.renamed]


def _survey_vocabulary(source: Source, name: str, report: ImportReport) -> None:
    """Account for the lines of a vocabulary's files; its rows name codes, and what is parsed is kept."""
    account = report.account.table(name)
    survey_lines(source, name, account, report.counts)
    account.check()


def _read(source: Source, name: str, writer: MedsWriter, concepts: Concepts, settings: ImportConfig) -> int:
    """Write the rows of one table; how many were read."""
    spec, account = EVENT_TABLES.get(name), writer.report.account.table(name)
    dates = survey(source, name, settings, account, writer.report.counts)
    account.columns |= _reason_columns(name, source.tables[name])
    if name == "person" and not any(set(_BIRTH) & set(part.table.columns) for part in source.tables[name]):
        writer.report.cautions.append("person has neither birth_datetime nor year_of_birth: every age is unknown")
    for part in source.tables[name]:
        account.begin(part.file)
        if spec is not None:
            expression = event_rows(part.table, spec, dates)
        else:
            make = {"person": person_rows, "observation_period": period_rows, "death": death_rows}
            expression = make[name](part.table, dates)
        for batch in source.stream(expression, part):
            batch = batch.append_column("source", pa.array(account.take(len(batch))))
            if spec is not None:
                writer.add(_events(batch, spec, concepts, writer))
            elif name == "person":
                writer.add(_persons(batch, concepts))
            else:
                role, code = (Role.DEATH, DEATH) if name == "death" else (Role.OBSERVED, None)
                writer.add(_with_role(batch, role, pa.array([code] * len(batch), pa.string())))
    account.check()
    return account.read


def _reason_columns(name: str, parts: list[Part]) -> dict[str, str]:
    """Which column each reason for dropping a row of this table lies in."""
    there = {column for part in parts for column in part.table.columns}
    start = [f"{stem}_{kind}" for stem in date_stems(name)[:1] for kind in ("datetime", "date")]
    dates = " or ".join(column for column in start if column in there)
    return {"no_person": "person_id", "unknown_person": "person_id"} | ({"no_time": dates} if dates else {})


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
        rows = known.select(["subject_id", "source"])
        rows = rows.append_column("time", pa.nulls(len(rows), pa.timestamp("us")))
        parts.append(_with_role(rows, Role.STATIC, concepts.codes(known[name], family=name.capitalize())))
    return pa.concat_tables(parts)


def _ints(column: pa.ChunkedArray, missing: int) -> Ints:
    return np.asarray(pc.fill_null(column, missing).to_numpy(), dtype=np.int64)


def _events(batch: pa.Table, spec: EventTable, concepts: Concepts, writer: MedsWriter) -> pa.Table:
    """Rows of an event table with their codes: VOCABULARY//CODE, and //UNIT or //VALUE where there is one."""
    unmapped = pc.equal(batch["concept_id"], 0)
    writer.report.counts["unmapped"] += pc.sum(unmapped).as_py() or 0
    code = pc.if_else(unmapped, f"OMOP//0//{spec.domain}", concepts.codes(batch["concept_id"]))
    rows = batch.select(["subject_id", "time", "end", "encounter_id", "source"])
    if spec.valued:
        number = pc.if_else(unmapped, pa.scalar(None, pa.float64()), batch["number"])
        text = batch["text_value"]
        blank = pc.equal(pc.utf8_trim_whitespace(pc.fill_null(text, "")), "")
        text = pc.if_else(blank, _NULL, text)
        suffix = pc.if_else(number.is_valid(), _units(batch, concepts), _values(batch, concepts))
        suffix = pc.if_else(unmapped, _NULL, suffix)
        code = concepts.derived(code, suffix)
        rows = rows.append_column("numeric_value", number).append_column("text_value", text)
    if spec.end:
        concepts.with_end(code)
    return _with_role(rows, spec.role, code)


def _units(batch: pa.Table, concepts: Concepts) -> pa.ChunkedArray:
    """Unit by its concept's code (mg/dL), else as the source wrote it, else by its concept's number."""
    named, known = concepts.short_codes(batch["unit_id"])
    written = pc.utf8_trim_whitespace(batch["unit"])
    written = pc.if_else(pc.equal(pc.fill_null(written, ""), ""), _NULL, written)
    return pc.coalesce(pc.if_else(known, named, _NULL), written, named)


def _values(batch: pa.Table, concepts: Concepts) -> pa.ChunkedArray:
    """The code of the value's concept, where there is one."""
    given = pc.fill_null(pc.not_equal(batch["value_id"], 0), False)
    return pc.if_else(given, concepts.codes(pc.fill_null(batch["value_id"], 0)), _NULL)
