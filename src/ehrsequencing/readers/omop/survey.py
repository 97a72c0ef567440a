"""A first pass over an OMOP table: checks its columns, finds how its dates are written, and counts lost lines."""

from typing import Any

import pyarrow.compute as pc

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.date_order import DateColumn, DateCounts, count_dates
from ehrsequencing.readers.import_report import ImportReport, TableCounts
from ehrsequencing.readers.omop.headers import check_columns
from ehrsequencing.readers.omop.source import Part, Source
from ehrsequencing.readers.omop.tables import date_columns
from ehrsequencing.readers.registry import Import

# a whole number as it is written in one way only: 0012 and 12 may be two persons
_NUMBER_ID = r"^\s*(0|-?[1-9]\d*)(\.0*)?\s*$"


def survey(source: Source, counts: TableCounts, job: Import) -> dict[str, DateColumn]:
    """Check the columns of a table, count its lost lines, and find how each column of text is read as dates.

    Raises:
        EhrseqError: A column is missing, person ids are not whole numbers, or dates are ambiguous.
    """
    totals: dict[str, DateCounts] = {}
    name = counts.name
    for part in source.tables[name]:
        check_columns(part.table, name, where=part.where)
        columns = text_columns(part, name)
        if part.csv is None and not columns:
            continue
        rows = names = 0
        first: int | None = None
        for batch in source.stream(survey_rows(part, name), part):
            for column in columns:
                if column != "person_id":
                    found = totals.get(column, DateCounts())
                    totals[column] = found + count_dates(batch[column])
            if "person_id" in columns:
                bad = pc.invert(pc.match_substring_regex(batch["person_id"], _NUMBER_ID))
                at = pc.index(pc.fill_null(bad, False), True).as_py()
                first = rows + at + 1 if first is None and at >= 0 else first
                names += pc.sum(bad).as_py() or 0
            rows += len(batch)
        _count_lines(source, part, rows, counts, job.report)
        if names:
            _refuse_names(part, names, first)
    return job.date_columns(totals, where=source.tables[name][0].where)


def survey_lines(source: Source, counts: TableCounts, report: ImportReport) -> None:
    """Count the rows of a table of the vocabulary; those that can be parsed are kept.

    Raises:
        EhrseqError: No row of it can be parsed.
    """
    for part in source.tables[counts.name]:
        if part.csv is not None:
            rows = int(source.one_row(part.table.aggregate(rows=part.table.count()), part)["rows"])
            _count_lines(source, part, rows, counts, report)
            counts.read += rows
            counts.kept += rows
    counts.check()


def text_columns(part: Part, name: str) -> list[str]:
    """The columns written as text of which a first pass is needed: dates, and the ids of persons."""
    wanted = [*date_columns(name), *(["person_id"] if name == "person" else [])]
    there = [column for column in wanted if column in part.table.columns]
    return [column for column in there if part.table[column].type().is_string()]


def survey_rows(part: Part, name: str) -> Any:
    """The rows of the first pass: an expression."""
    columns = text_columns(part, name)
    return part.table.select(*(columns or part.table.columns[:1]))


def _count_lines(
    source: Source, part: Part, parsed: int, counts: TableCounts, report: ImportReport
) -> None:
    """Count the rows of a CSV file that were not parsed."""
    if part.csv is None or part.file is None:
        return
    rejected, line = source.rejected_lines(part)
    lost = part.csv.rows_in(parsed, rejected) - parsed
    report.lose_lines(counts, part.file, lost, line or part.csv.odd_line or part.csv.uneven_line)


def _refuse_names(part: Part, names: int, first: int | None) -> None:
    """Refuse person ids that are not whole numbers; the message has the row of the first."""
    at = f", the first in row {first}" if first is not None and part.file is not None else ""
    what = f"column person_id holds text instead of whole numbers ({names:,} ids{at})"
    fix = "number the persons 1, 2, 3 … (no leading zeros), and write these numbers into person_id in every table"
    raise EhrseqError(what, where=part.where, fix=fix)
