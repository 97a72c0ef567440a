#!/usr/bin/env bash
# deceasedDateTime is no column in Polars if the first hundred patients are alive.
#
# Packages:  polars 2.1.0, pyarrow 26.0.1, against duckdb 2.0.1 and pandas 3.1.1
# Guess:     a field that comes late in a file of JSON lines becomes a column with nulls, or the reader stops.
# Seen:      150 patients, the last 30 with deceasedDateTime; columns, and deaths:
#              polars read_ndjson, scan_ndjson, DataFrame(rows)   id                     0
#              polars read_json, the same rows as one array       refused ("extra field")
#              pyarrow Table.from_pylist(rows)                    id                     0
#              duckdb, pandas read_json(lines=True)               id, deceasedDateTime  30
#            Polars takes the fields of the first 100 rows and drops the rest without a word; pyarrow's from_pylist
#            takes those of the first row. (Users of Polars reported it in 2026; it is still so.)
# Matters:   FHIR leaves out what is empty, its bulk exports are JSON lines, and most patients are alive. Nobody dies,
#            and the table looks whole. Give a schema, or infer_schema_length=None.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import json
from pathlib import Path

import duckdb
import pandas
import polars as pl
import pyarrow as pa

rows = [{"id": f"p{number}"} for number in range(150)]
for row in rows[120:]:
    row["deceasedDateTime"] = "2020-03-15"
Path("patients.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
Path("patients.json").write_text(json.dumps(rows))
tables = {
    "polars read_ndjson": pl.read_ndjson("patients.ndjson"),
    "polars scan_ndjson": pl.scan_ndjson("patients.ndjson").collect(),
    "polars DataFrame": pl.DataFrame(rows),
    "pyarrow from_pylist": pl.from_arrow(pa.Table.from_pylist(rows)),
    "polars, whole file": pl.read_ndjson("patients.ndjson", infer_schema_length=None),
    "duckdb": duckdb.sql("FROM 'patients.ndjson'").pl(),
    "pandas read_json": pl.from_pandas(pandas.read_json("patients.ndjson", lines=True)),
}
deaths = {}
for name, table in tables.items():
    deaths[name] = len(table["deceasedDateTime"].drop_nulls()) if "deceasedDateTime" in table.columns else 0
    print(f"{name:20} columns {table.columns}, deaths {deaths[name]}")
try:
    pl.read_json("patients.json")
    refused = False
except pl.exceptions.ComputeError as error:
    refused = True
    print("polars read_json:", error)
assert list(deaths.values()) == [0, 0, 0, 0, 30, 30, 30], deaths
assert refused, "read_json accepts a late field now"
PY
