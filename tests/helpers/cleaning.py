"""Rows of a reader through the cleaning rules, without a writer."""

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.readers.cleaning_rules import cleaned
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.rows import UNUSABLE, Role, conformed, rows_schema

Row = dict[str, Any]
DAY, SECOND = dt.timedelta(days=1), dt.timedelta(seconds=1)
PERSON: Row = {"role": Role.PERSON, "time": dt.datetime(1950, 1, 1), "code": "MEDS_BIRTH"}


def clean_rows(rows: list[Row]) -> tuple[pa.Table, Counter[str]]:
    """The MEDS rows of rows whose times are datetimes or microseconds, and how often each rule was applied."""
    report, schema = ImportReport("test"), rows_schema(pa.int64())
    source = report.table("rows").take(len(rows)).tolist()
    full = [
        {name: row.get(name) for name in schema.names} | {"source": at} for row, at in zip(rows, source, strict=True)
    ]
    columns = {name: pa.array([row[name] for row in full]) for name in schema.names}
    columns = {name: column.cast(schema.field(name).type) for name, column in columns.items()}
    table = conformed(pa.table(columns), schema, report)
    made = cleaned(table.filter(pc.not_equal(table["role"], UNUSABLE)), report)
    return made.set_column(2, "code", made["code"].cast(pa.string())), report.counts


def cleaned_person(*rows: Row) -> tuple[list[Row], Counter[str]]:
    """The rows of one person, born in 1950, after the cleaning rules, and what was counted."""
    made, counts = clean_rows([{"subject_id": 1, **row} for row in [PERSON, *rows]])
    return made.to_pylist(), counts


def times_of_codes(*rows: Row) -> tuple[dict[str, list[Any]], Counter[str]]:
    """The times of each code of such a person, and what was counted."""
    made, counts = cleaned_person(*rows)
    times: dict[str, list[Any]] = {}
    for row in made:
        times.setdefault(row["code"], []).append(row["time"])
    return times, counts
