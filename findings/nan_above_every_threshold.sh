#!/usr/bin/env bash
# A laboratory value NaN is above every threshold, or not, by library and by who wrote the file.
#
# Packages:  polars 2.1.0, duckdb 2.0.1, pyarrow 26.0.1, numpy 2
# Guess:     NaN > 5 is False everywhere (IEEE 754), and a filter on a Parquet file gives the rows that it
#            gives on the same table in memory.
# Seen:      value > 10 over the values 1, NaN, 9 (no row qualifies):
#              Arrow 0 rows | Polars 1 (the NaN) | DuckDB on the table 1 (the NaN)
#            DuckDB on a Parquet file depends on the writer of the file, because pyarrow and Polars store a
#            smallest and largest value that leave NaN out (then DuckDB skips the rows), and DuckDB stores none:
#              written by pyarrow 0 | by Polars 0 | by DuckDB 1
# Matters:   numpy arrays carry unmeasured values as NaN, and Arrow keeps a NaN of numpy as a value, not as
#            null. "Creatinine above 10" then selects patients who were never measured, and the cohort changes
#            when the same table is written anew. Turn NaN into null where the data come in.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1 "numpy>=2,<3"
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import numpy as np
import polars
import pyarrow
import pyarrow.compute
import pyarrow.parquet

table = pyarrow.table({"value": np.array([1.0, np.nan, 9.0])})
frame = polars.DataFrame(table)
pyarrow.parquet.write_table(table, "pyarrow.parquet")
frame.write_parquet("polars.parquet")
duckdb.execute("COPY (SELECT value FROM frame) TO 'duckdb.parquet' (FORMAT parquet)")

seen = {
    "Arrow": table.filter(pyarrow.compute.field("value") > 10).num_rows,
    "Polars": frame.filter(polars.col("value") > 10).height,
    "DuckDB, table": duckdb.execute("SELECT count(*) FROM frame WHERE value > 10").fetchone()[0],
}
for writer in ("pyarrow", "polars", "duckdb"):
    query = f"SELECT count(*) FROM '{writer}.parquet' WHERE value > 10"
    seen[f"DuckDB, file by {writer}"] = duckdb.execute(query).fetchone()[0]
for name, rows in seen.items():
    print(f"value > 10: {name:24} {rows} rows")
assert list(seen.values()) == [0, 1, 1, 0, 0, 1], "NaN and thresholds changed"
PY
