"""Read OMOP tables, from files or a database, and add their rows, with codes by concept, to a MEDS writer."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.config.importing import MISSING
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.cells import FORMS_OF_IDS, NO_NUMBER, NO_TEXT, Block, parse_times
from ehrsequencing.readers.import_report import MOST_UNSURE, UNSURE, TableCounts
from ehrsequencing.readers.omop.database import (
    VOCABULARY_TABLES,
    Concepts,
    database_tables,
    local_path,
    looks_like_database,
    public_name,
)
from ehrsequencing.readers.registry import Import, reader
from ehrsequencing.readers.rows import TERMS, Left, Role, combinations, make_rows
from ehrsequencing.readers.table_files import SourceTable, one_file_each, open_table
from ehrsequencing.records.codes import PROVISIONAL
from ehrsequencing.records.events import BIRTH, DEATH, PERIOD_START
from ehrsequencing.records.parquet_rows import is_text

_TERMS = TERMS["omop"]
_NAMES = _TERMS["names"]
_DEFAULT = {"end": None, "role": "EVENT", "valued": False}
# event tables by name; a column that a source lacks is read as null
EVENT_TABLES = {name: SimpleNamespace(**_DEFAULT | spec) for name, spec in _TERMS["tables"].items()}
_PERSONS_TABLES = ("person", "observation_period", *EVENT_TABLES, "death")
TABLES = (*_PERSONS_TABLES, *VOCABULARY_TABLES)
_BILLS = [one for first, last in _TERMS["bills"] for one in range(first, last + 1)]
_STEMS = {  # of dates
    "person": ("birth",),
    "observation_period": ("observation_period_start", "observation_period_end"),
    "death": ("death",),
    **{name: tuple(filter(None, (spec.start, spec.end))) for name, spec in EVENT_TABLES.items()},
}
# concepts of `operator_concept_id` by which a number is only a bound
_BOUNDS = {4171756: "<", 4171754: "<=", 4172704: ">", 4171755: ">="}
# a whole number as it is written in one way only: 0012 and 12 may be two persons
_NUMBER_ID = r"^\s*(0|-?[1-9]\d*)(\.0*)?\s*$"
_NAME, _QUOTED = re.compile(r"[a-z_][a-z0-9_]*"), re.compile(r"'[^']*'")


@reader(
    "omop",
    help="OMOP CDM 5.3 or 5.4, from files or from a live database.",
    source="Folder of CSV, CSV.gz or Parquet tables, or postgres://… or duckdb://FILE",
)
def import_omop(source: str, job: Import) -> None:
    """Read a folder with one file per table, or a database; see `Reader`."""
    with _opened(source) as tables:
        job.report.missing += [name for name in TABLES if name not in tables]
        with job.writer(local_path(source), encounter=pa.int64()) as writer:
            concepts = _read_tables(tables, job, writer.add)
            writer.code_facts = concepts.facts
            unsure, diagnoses = (
                job.report.counts["provisional"],
                job.report.table("condition_occurrence").rows_in,
            )
            if unsure > MOST_UNSURE * diagnoses:
                job.report.cautions.append(
                    UNSURE.format(unsure, diagnoses, "diagnoses", "preliminary")
                )
            if concepts.unnamed:
                job.report.notes.append(
                    f"{concepts.unnamed:,} concepts of the data are not in a table concept: "
                    "their codes are OMOP//concept_id"
                )


# ---- the source --------------------------------------------------------------------------------

Tables = Mapping[str, list[SourceTable]]  # several files of a folder, or with custom concepts


@contextmanager
def _opened(source: str) -> Iterator[Tables]:
    """The tables of a folder or a database by name, with the names of OMOP's columns.

    Raises:
        EhrseqError: The source cannot be opened, or lacks the table person.
    """
    names = {*TABLES, *_NAMES["aliases"]}
    is_url = "://" in source
    opened = database_tables(source, names) if is_url else nullcontext(_files(source, names))
    with opened as source_tables:
        tables: dict[str, list[SourceTable]] = {}
        for alias, table in source_tables:
            name = _NAMES["aliases"].get(alias, alias)
            for header in table.names:
                # a header may be an SQL expression, as date(x,'unixepoch')
                meant = sorted(
                    set(_NAME.findall(_QUOTED.sub("", header))) & set(_TERMS["columns"][name])
                )
                if meant and header not in meant:
                    raise EhrseqError(
                        f"the header {header!r} is an expression, and no column's name",
                        where=table.where,
                        fix=f"name the column that it holds: {' or '.join(meant)}",
                    )
            tables.setdefault(name, []).append(table)
        if "person" not in tables:
            raise EhrseqError(
                "holds no table person",
                where=public_name(source),
                fix="name a folder or schema with OMOP tables",
            )
        yield tables


def _files(source: str, names: set[str]) -> Sequence[tuple[str, SourceTable]]:
    """The tables of a folder: each a file, or a folder of Parquet files as Spark writes them."""
    folder = Path(source)
    if not folder.is_dir():
        if looks_like_database(source) and not folder.exists():
            raise EhrseqError(
                "SOURCE is neither a folder nor the URL of a database",
                fix="name a folder, or a database as postgres://USER:PASSWORD@HOST/DATABASE or duckdb://FILE",
            )
        raise EhrseqError(
            "is not a folder", where=source, fix="name a folder of OMOP tables, or a URL"
        )
    paths = []
    for path in sorted(folder.iterdir()):
        name, _, kind = path.name.lower().partition(".")
        is_file = kind in ("parquet", "csv", "csv.gz") and path.is_file()
        if name in names and (is_file or any(path.glob("*.parquet"))):
            paths.append((name, path))
    return [
        (
            name,
            open_table(
                file,
                name=file.relative_to(folder).as_posix(),
                missing=("NULL", "\\N") if name in VOCABULARY_TABLES else MISSING,
                plain_tabs=name in VOCABULARY_TABLES,
            ),
        )
        for name, path in one_file_each(paths).items()
        for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])
    ]


def _dates(name: str) -> list[str]:
    """The columns of a table that hold dates."""
    return [f"{stem}_{kind}" for stem in _STEMS[name] for kind in ("datetime", "date")]


# ---- rows --------------------------------------------------------------------------------------


def _read_tables(tables: Tables, job: Import, add: Callable[[pa.Table], None]) -> Concepts:
    """Add the rows of all tables of persons; returns the concepts that they use."""
    concepts, numbers = Concepts(tables, job), [pa.array([], pa.string())]
    for counts in job.tables([name for name in _PERSONS_TABLES if name in tables]):
        name, files = counts.name, tables[counts.name]
        spec, dates = EVENT_TABLES.get(name), _dates(name)
        _check(files, counts, spec, job)
        orders = job.survey(files, counts, dates)
        for block in job.blocks(files, counts, _TERMS["columns"][name], orders):
            base = {"subject_id": block.whole("person_id"), "source": block.source}
            if spec is not None:
                add(_events(block, base, spec, concepts, job))
            elif name == "person":
                numbers += pc.drop_null(block.name(_NAMES["number"])).chunks
                add(_persons(block, base, concepts))
            elif name == "death":
                add(make_rows(Role.DEATH, base, DEATH, time=_moment(block, "death")))
            else:
                start, end = (_moment(block, stem) for stem in _STEMS[name])
                add(make_rows(Role.OBSERVED, base, PERIOD_START, time=start, end=end))
    counts = pc.value_counts(pa.chunked_array(numbers))
    job.report.counts["shared_number"] += sum(
        one["counts"]
        for one in counts.filter(pc.greater(counts.field("counts"), 1)).to_pylist()
        if not re.fullmatch(TERMS["fhir"]["identity"]["placeholder"], one["values"].lower())
    )
    return concepts


def _check(
    files: list[SourceTable], counts: TableCounts, spec: SimpleNamespace | None, job: Import
) -> None:
    """Refuse files without a needed column, and say which columns the reasons for dropping a row concern."""
    name, needed = counts.name, [["person_id"]]

    def has(column: str) -> bool:
        return any(file.has(column) for file in files)

    if name == "person":
        if not has("birth_datetime") and not has("year_of_birth"):
            job.report.cautions.append(
                "person has neither birth_datetime nor year_of_birth: every age is unknown"
            )
    else:
        stems = [spec.start] if spec else _STEMS[name]
        needed += [[f"{stem}_date", f"{stem}_datetime"] for stem in stems]
        times = [f"{stems[0]}_{kind}" for kind in ("datetime", "date")]
        counts.columns["no_time"] = " or ".join(filter(has, times))
        counts.required |= set(filter(has, times)) if name == "death" else set()
    if spec is not None:
        needed.append([f"{spec.concept}_concept_id", f"{spec.concept}_source_concept_id"])
        counts.required.add(f"{spec.concept}_concept_id")
    counts.columns |= {"no_person": "person_id", "unknown_person": "person_id"}
    for file in files:
        file.check(*needed)


def _moment(block: Block, stem: str) -> pa.ChunkedArray:
    """(n,) the time of the `_datetime` column; the date at midnight without one, or if it lies days away."""
    return block.agreed(f"{stem}_datetime", block.times(f"{stem}_date"))


def _concept(block: Block, stem: str) -> pa.ChunkedArray:
    """(n,) the standard concept, else the source concept, else 0."""
    own = pc.fill_null(block.whole(f"{stem}_source_concept_id"), 0)
    standard = pc.fill_null(block.whole(f"{stem}_concept_id"), 0)
    return pc.if_else(pc.equal(standard, 0), own, standard)


def _persons(block: Block, base: Mapping[str, Any], concepts: Concepts) -> pa.Table:
    """Persons with their births, and sex, race and ethnicity without a time; ids must be whole numbers."""
    ids = block.rows["person_id"]
    if is_text(ids.type):
        bad = ids.filter(pc.invert(pc.match_substring_regex(ids, _NUMBER_ID)))
        for form, pattern in FORMS_OF_IDS.items():
            if pc.any(pc.match_substring_regex(bad, pattern)).as_py():
                raise EhrseqError(
                    f"column person_id holds {form} instead of whole numbers ({len(bad):,} ids)",
                    where="table person",
                    fix="number the persons 1, 2, 3 … (no leading zeros), with the same numbers in every table",
                )
    given, moment = [block.whole(part) for part in _NAMES["birth"]], block.times("birth_datetime")
    # what is missing is that of a moment in this year, or 1
    moment = pc.if_else(pc.equal(pc.year(moment), given[0]), moment, pa.scalar(None, moment.type))
    own = (pc.year(moment), pc.month(moment), pc.day(moment))
    parts = (pc.coalesce(*both, pa.scalar(1)) for both in zip(given[1:], own[1:], strict=True))
    written = pc.binary_join_element_wise(
        *(part.cast(pa.string()) for part in (given[0], *parts)), "-"
    )
    born = block.agreed("birth_datetime", parse_times(written))
    rows = [make_rows(Role.PERSON, base, BIRTH, time=born)]
    for name in _NAMES["person"]:
        concept = _concept(block, name)
        code = concepts.codes(concept, family=name.capitalize())
        rows.append(make_rows(Role.STATIC, base, code, pc.not_equal(concept, 0)))
    return pa.concat_tables(rows, promote_options="default")


def _events(
    block: Block, base: Mapping[str, Any], spec: SimpleNamespace, concepts: Concepts, job: Import
) -> pa.Table:
    """Rows of an event table with their codes: VOCABULARY//CODE, with //UNIT or //VALUE where there is one.

    Codes are made once for each combination of concept, unit and value, of which there are few.
    """
    visit = block.whole("visit_occurrence_id")
    columns = {"time": _moment(block, spec.start), "encounter_id": visit}
    keys = {"concept_id": _concept(block, spec.concept)}
    if spec.end is not None:
        columns["end"] = _moment(block, spec.end)
    if spec.valued:
        columns["numeric_value"], columns["text_value"] = _values(block, job)
        keys |= {
            "unit_id": block.whole("unit_concept_id"),
            "unit": block.name("unit_source_value"),
            "value_id": block.whole("value_as_concept_id"),
            "numbered": pc.is_valid(columns["numeric_value"]),
        }
    if spec.role == "BEGUN":
        status = block.whole("condition_status_concept_id")  # counts before a word
        is_named = pc.fill_null(pc.greater(status, 0), False)
        word = pc.if_else(is_named, NO_TEXT, block.name("condition_status_source_value"))
        keys |= {"status_id": status, "status": word}
    few, place = combinations(keys)
    unmapped = pc.equal(few["concept_id"], 0)
    is_unmapped = np.asarray(unmapped)[place]
    job.report.counts["unmapped"] += int(is_unmapped.sum())
    code = pc.if_else(unmapped, f"OMOP//0//{spec.domain}", concepts.codes(few["concept_id"]))
    if spec.valued:
        # the unit as its concept's code (mg/dL), else as the source wrote it, else as its concept's number
        named, known = concepts.short_codes(few["unit_id"])
        unit = pc.coalesce(pc.if_else(known, named, NO_TEXT), few["unit"], named)
        value_id = pc.fill_null(few["value_id"], 0)
        value = pc.if_else(pc.equal(value_id, 0), NO_TEXT, concepts.codes(value_id))
        suffix = pc.if_else(few["numbered"], unit, value)
        code = concepts.derived(code, pc.if_else(unmapped, NO_TEXT, suffix))
        number = columns["numeric_value"]
        columns["numeric_value"] = pc.if_else(pa.array(is_unmapped), NO_NUMBER, number)
    if spec.role == "BEGUN" and job.settings.provisional == "apart":
        is_unsure = pc.is_in(few["status_id"], pa.array(_TERMS["provisional"]))
        is_unsure = pc.or_(is_unsure, _says(few["status"], _TERMS["unsure"]))
        job.report.counts["provisional"] += int(np.asarray(is_unsure)[place].sum())
        code = concepts.derived(code, pc.if_else(is_unsure, PROVISIONAL[2:], NO_TEXT))
    if spec.end is not None:
        concepts.with_end(code)
        for name in ("acute", "inpatient"):
            is_so = pc.is_in(few["concept_id"], pa.array(_TERMS[name])).combine_chunks()
            columns[name] = is_so.take(pa.array(place))
        columns |= {"site": block.name("care_site_id"), "left": _left(block, spec)}
    coded = pa.DictionaryArray.from_arrays(pa.array(place), code.combine_chunks())
    is_early = spec.role == "BEGUN" and job.settings.known == "earliest"
    made = make_rows(Role.EVENT if is_early else Role[spec.role], base, coded, **columns)
    if spec.role != "BEGUN":
        return made
    if not is_early:
        billed = pc.is_in(block.whole("condition_type_concept_id"), pa.array(_BILLS))
        role = pc.if_else(billed, int(Role.BILLED), int(Role.BEGUN)).cast(pa.int8())
        made = made.set_column(made.column_names.index("role"), "role", role)
    is_absent = np.asarray(_says(few["status"], _TERMS["absent"]))[place]
    job.report.counts["not_done"] += int(is_absent.sum())
    job.report.mark("not_done", block.source.to_numpy()[is_absent])
    return made.filter(pa.array(~is_absent))


def _says(words: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray:
    """(n,) which words a pattern finds; none in null."""
    return pc.fill_null(pc.match_substring_regex(words, pattern), False)


def _left(block: Block, spec: SimpleNamespace) -> pa.ChunkedArray:
    """(n,) how a visit ended, as `Left`; null where its discharge is not said, or is that of a part."""
    said, words = _TERMS["discharge"], _TERMS["discharge"]["words"]
    concepts = [block.whole(f"{stem}_concept_id") for stem in _NAMES["discharge"]]
    concept = pc.max_element_wise(*concepts)
    word = pc.coalesce(*(block.text(f"{stem}_source_value") for stem in _NAMES["discharge"]))

    is_known = pc.or_(pc.fill_null(pc.greater(concept, 0), False), _says(word, "[A-Za-z]"))
    is_whole = spec.role == "VISIT"
    left = pc.if_else(pc.and_(is_known, is_whole), int(Left.ALIVE), pa.scalar(None, pa.int8()))
    is_told = pc.fill_null(pc.greater(concept, 0), False)  # a concept counts before a word
    for name in ("moved", "still", "died") if is_whole else ("died",):
        by_word = _says(word, words[name])
        if name == "moved":
            by_word = pc.and_(by_word, pc.invert(pc.or_(_says(word, words["home"]), is_told)))
        is_so = pc.or_(pc.is_in(concept, pa.array(said[name])), by_word)
        left = pc.if_else(is_so, int(Left[name.upper()]), left)
    return left.cast(pa.int8())


def _values(block: Block, job: Import) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """(n,) the numbers, and (n,) the texts; a bound, or what cannot be read, is a text as written."""
    number, text = block.numbers("value_as_number"), block.text("value_as_string")
    operator = block.whole("operator_concept_id")
    sign = pc.index_in(operator, pa.array([*_BOUNDS], pa.int64()))
    bound = pc.and_(pc.is_valid(sign), pc.is_valid(number))
    job.report.count("bound", bound)
    cells = (
        block.rows["value_as_number"] if "value_as_number" in block.rows.column_names else number
    )
    if is_text(cells.type) or pc.any(bound).as_py():
        written, signs = block.name("value_as_number"), pa.array([*_BOUNDS.values()])
        signed = pc.binary_join_element_wise(signs.take(sign.combine_chunks()), written, "")
        unread = pc.if_else(pc.is_null(number), written, NO_TEXT)
        text = pc.coalesce(text, pc.if_else(bound, signed, unread))
        number = pc.if_else(bound, NO_NUMBER, number)
    return number, text
