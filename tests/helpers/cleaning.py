"""Rows of a reader through the cleaning rules, without a writer."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ehrsequencing.readers.cleaning_rules import cleaned
from ehrsequencing.readers.import_report import ImportReport
from ehrsequencing.readers.rows import UNUSABLE, conformed, rows_schema


def clean_rows(rows: list[dict[str, Any]]) -> tuple[pa.Table, Counter[str]]:
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
