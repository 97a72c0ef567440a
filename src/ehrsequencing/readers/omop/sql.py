"""The SQL that an import sends, written for the source's own engine and never run: for whoever guards the database."""

import re
from collections.abc import Iterator
from typing import Any

from ehrsequencing.readers.omop.headers import check_columns
from ehrsequencing.readers.omop.source import Part, Source, open_source
from ehrsequencing.readers.omop.survey import survey_rows, text_columns
from ehrsequencing.readers.omop.tables import (
    TABLES,
    VOCABULARY_TABLES,
    ancestor_rows,
    concept_rows,
    relationship_kinds,
    relationship_rows,
    rows_of,
)

_VIEW = re.compile(r'"ibis_read_(parquet|csv)_[a-z0-9]+"')  # Ibis' name of a file


def source_sql(source: str) -> list[str]:
    """Every statement of an import of this source, in its dialect, each with a comment that names its table.

    The source is opened to see which tables and columns it has; no row is read, but for the check of text files.

    Raises:
        EhrseqError: As an import: the source cannot be opened, or a column is missing.
    """
    with open_source(source) as found:
        return [
            f"-- {part.file or part.where}: {what}\n{_text(found, part, expression)};"
            for name in TABLES
            for part in found.tables.get(name, [])
            for what, expression in _expressions(found, name, part)
        ]


def _text(source: Source, part: Part, expression: Any) -> str:
    """The statement; a file is called by its name, as DuckDB can read it from its folder."""
    text: str = source.connection.compile(expression, pretty=True).strip()
    if part.file is None:
        return text
    name = part.file.replace('"', '""')
    return _VIEW.sub(lambda _: f'"{name}"', text)


def _expressions(source: Source, name: str, part: Part) -> Iterator[tuple[str, Any]]:
    """What is asked of one part of a table, in words and as Ibis expressions."""
    if name in VOCABULARY_TABLES:
        if part.csv is not None:
            yield "how many rows can be parsed", part.table.aggregate(rows=part.table.count())
        if name == "concept":
            yield "codes", concept_rows(part.table).drop("concept_name")
            yield "descriptions", concept_rows(part.table).select("concept_id", "concept_name")
        elif name == "concept_ancestor":
            yield "parents", ancestor_rows(part.table)
        else:
            kinds = relationship_kinds("concept_ancestor" in source.tables)
            yield "parents", relationship_rows(part.table, kinds)
        return
    check_columns(part.table, name, where=part.where)
    if part.csv is not None or text_columns(part, name):
        yield "how dates and ids are written", survey_rows(part, name)
    yield "rows", rows_of(part.table, name)
