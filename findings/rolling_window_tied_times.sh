#!/usr/bin/env bash
# Two laboratory values at one moment: a rolling window holds both, or only the ones above it, by library.
#
# Packages:  pandas 3.1.1, polars 2.1.0, duckdb 2.0.1
# Guess:     "the last seven days" at a time is one set of rows, so pandas, Polars and SQL give one sum.
# Seen:      values 1, 2 on 1 January and 4, 8 on 5 January, sum over seven days:
#              pandas  rolling("7D")                       1  3  7 15
#              polars  rolling_sum_by(..., "7d")           3  3 15 15
#              duckdb  RANGE BETWEEN INTERVAL 7 DAYS ...   3  3 15 15
#            pandas counts a row of the same time only if it stands above; the others count all of them.
# Matters:   tied times are the rule where dates have no clock. With pandas the feature depends on the order of
#            the rows; with Polars and SQL the first value of a day already holds the day's last one. Neither says
#            so, and a feature moved from one to the other changes. Take one row for each time first.
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

times = pandas.to_datetime(["2020-01-01", "2020-01-01", "2020-01-05", "2020-01-05"])
labs = pandas.DataFrame({"time": times, "value": [1.0, 2.0, 4.0, 8.0]})
query = """
    SELECT sum(value) OVER (ORDER BY time RANGE BETWEEN INTERVAL 7 DAYS PRECEDING AND CURRENT ROW) FROM labs
"""
seen = {
    "pandas": labs.rolling("7D", on="time")["value"].sum().tolist(),
    "polars": polars.DataFrame(labs).select(polars.col("value").rolling_sum_by("time", "7d"))["value"].to_list(),
    "duckdb": [total for (total,) in duckdb.execute(query).fetchall()],
}
for name, sums in seen.items():
    print(f"{name:8}", *(f"{one:3.0f}" for one in sums))
assert seen["pandas"] == [1, 3, 7, 15], "pandas changed"
assert seen["polars"] == seen["duckdb"] == [3, 3, 15, 15], "Polars or DuckDB changed"
PY
