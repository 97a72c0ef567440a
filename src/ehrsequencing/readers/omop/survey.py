"""A first pass over an OMOP table: checks its columns, finds how its dates are written, and counts unreadable rows."""

from dataclasses import fields
from typing import Any

from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.readers.date_order import (
    ISO_LIKE,
    PATTERNS,
    ZONED,
    DateColumn,
    DateCounts,
    unreadable_dates,
)
from ehrsequencing.readers.import_report import ImportReport, TableCounts
from ehrsequencing.readers.omop.headers import check_columns
from ehrsequencing.readers.omop.source import Part, Source
from ehrsequencing.readers.omop.tables import date_columns, date_stems
from ehrsequencing.readers.registry import Import

_WHOLE = r"^\s*[+-]?\d+(\.0*)?\s*$"  # a whole number
_COUNTS = [field.name for field in fields(DateCounts)]


def survey(source: Source, counts: TableCounts, job: Import) -> dict[str, DateColumn]:
    """Check the columns of a table, count its unreadable rows, and find how each column of text is read as dates.

    Raises:
        EhrseqError: A column is missing, person ids are not whole numbers, or dates are ambiguous.
    """
    totals: dict[str, DateCounts] = {}
    name = counts.name
    for part in source.tables[name]:
        check_columns(part.table, name, where=part.where)
        row = source.one_row(survey_counts(part, name), part)
        _count_lines(source, part, int(row["rows"]), counts, job.report)
        if name == "person" and row.get("names"):
            _refuse_names(source, part, int(row["names"]))
        for column in text_dates(part, name):
            found = DateCounts(**{key: int(row[f"{column} {key}"] or 0) for key in _COUNTS})
            totals[column] = totals.get(column, DateCounts()) + found
    dates = job.date_columns(totals, counts, where=source.tables[name][0].where)
    _refuse_unreadable(source.tables[name], name, dates, totals)
    return dates


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


def text_dates(part: Part, name: str) -> list[str]:
    """The columns with dates written as text."""
    there = [column for column in date_columns(name) if column in part.table.columns]
    return [column for column in there if part.table[column].type().is_string()]


def survey_counts(part: Part, name: str) -> Any:
    """Counts of rows, of person ids that are no whole numbers, and of cells in each order of dates: an expression."""
    table = part.table
    found = {"rows": table.count()}
    person = table["person_id"]
    if person.type().is_string():
        found["names"] = (~person.re_search(_WHOLE)).sum()
    for column in text_dates(part, name):
        text = (table[column].strip() == "").ifelse(None, table[column])
        iso = text.like(ISO_LIKE)
        other = iso.ifelse(None, text)  # the slow patterns see only the other cells
        fits: dict[str, Any] = {
            order: other.re_search(pattern) for order, pattern in PATTERNS.items()
        }
        cells: dict[str, Any] = {
            "filled": text.notnull(),
            "iso": iso,
            "either": fits["dmy"] & fits["mdy"],
        }
        cells |= {**fits, "zoned": text.re_search(ZONED)}
        found |= {f"{column} {key}": mask.sum() for key, mask in cells.items()}
    return table.aggregate(**found)


def _count_lines(
    source: Source, part: Part, parsed: int, counts: TableCounts, report: ImportReport
) -> None:
    """Count the rows of a CSV file that were not parsed."""
    if part.csv is None or part.file is None:
        return
    rejected, line = source.rejected_lines(part)
    lost = part.csv.rows_in(parsed, rejected) - parsed
    report.lose_lines(counts, part.file, lost, line or part.csv.odd_line or part.csv.uneven_line)


def _refuse_names(source: Source, part: Part, names: int) -> None:
    """Refuse person ids that are not whole numbers; the message has the row of the first."""
    first, before = None, 0
    if part.file is not None:
        for batch in source.stream(
            part.table.select(bad=~part.table["person_id"].re_search(_WHOLE)), part
        ):
            bad = batch["bad"].to_pylist()
            if True in bad:
                first = before + bad.index(True) + 1
                break
            before += len(bad)
    at = f", the first in row {first}" if first else ""
    what = f"column person_id holds text instead of whole numbers ({names:,} ids{at})"
    fix = "number the persons 1, 2, 3 … and write these numbers into person_id in every table"
    raise EhrseqError(what, where=part.where, fix=fix)


def _refuse_unreadable(
    parts: list[Part], name: str, dates: dict[str, DateColumn], totals: dict[str, DateCounts]
) -> None:
    """Refuse a table in which the columns of a time are filled but hold no date."""
    for stem in date_stems(name):
        columns = [f"{stem}_{kind}" for kind in ("datetime", "date")]
        typed = any(
            column in part.table.columns and column not in dates
            for part in parts
            for column in columns
        )
        written = [column for column in columns if column in totals and totals[column].filled]
        if written and not typed and all(dates[column].order is None for column in written):
            raise unreadable_dates(f"{parts[0].where}, column {' or '.join(written)}")
