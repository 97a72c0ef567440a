#!/usr/bin/env bash
# "The last creatinine of each patient" is an older one in pandas and in DuckDB's arg_max.
#
# Packages:  pandas 3.1.1, polars 2.1.0, duckdb 2.0.1
# Guess:     last() of a patient's rows, sorted by time, is the value of the last row, missing if it is missing; so is
#            arg_max(value, time).
# Seen:      patient 1: missing, then 5; patient 2: 6, then missing.
#              last    pandas 5 6 | polars 5 null | duckdb last(value ORDER BY time) 5 null
#              latest  duckdb arg_max(value, time) 5 6 | arg_max_null(value, time) 5 null
#              first   pandas 5 6 | polars null 6 | duckdb first(value ORDER BY time) null 6
# Matters:   a value comes from one row and its unit, time or flag, taken by the same last(), from another: each column
#            skips its own gaps. "No value at the last visit" turns into a number of unknown age. In pandas take
#            rows: tail(1) or nth(-1); in DuckDB write arg_max_null.
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
import duckdb
import pandas
import polars

labs = pandas.DataFrame({"patient": [1, 1, 2, 2], "time": [1, 2, 1, 2], "value": [None, 5.0, 6.0, None]})
table_ = polars.from_pandas(labs)
value = polars.col("value")
by_polars = table_.group_by("patient", maintain_order=True).agg(first=value.first(), last=value.last())
query = """
    SELECT first(value ORDER BY time), last(value ORDER BY time), arg_max(value, time), arg_max_null(value, time)
    FROM table_ GROUP BY patient ORDER BY patient
"""
rows = duckdb.execute(query).fetchall()
seen = {
    "pandas first": labs.groupby("patient")["value"].first().tolist(),
    "pandas last": labs.groupby("patient")["value"].last().tolist(),
    "polars first": by_polars["first"].to_list(),
    "polars last": by_polars["last"].to_list(),
}
for place, name in enumerate(("first", "last", "arg_max", "arg_max_null")):
    seen[f"duckdb {name}"] = [row[place] for row in rows]
for name, values in seen.items():
    print(f"{name:20}", values)
assert seen["pandas first"] == seen["pandas last"] == seen["duckdb arg_max"] == [5, 6], "missing values are kept"
assert seen["polars first"] == seen["duckdb first"] == [None, 6], "first changed"
assert seen["polars last"] == seen["duckdb last"] == seen["duckdb arg_max_null"] == [5, None], "last changed"
PY
