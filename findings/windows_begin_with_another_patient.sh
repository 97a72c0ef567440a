#!/usr/bin/env bash
# A patient's 30-day windows begin with another patient in pandas, and before the first event in Polars and DuckDB.
#
# Packages:  pandas 3.1.1, polars 2.1.0, duckdb 2.0.1
# Guess:     windows of 30 days by patient begin at each patient's first day; pandas' two ways to write it are one.
# Seen:      visits of patient 2 on 11 January, 2, 9 and 12 February 2020; start of the first window, visits by window:
#              pandas  groupby("id").resample("30D")                   11 January    3 1
#              pandas  groupby(["id", Grouper(freq="30D")]), alone     11 January    3 1
#                      the same, with patient 1, seen on 1 January      1 January    1 3
#              polars  group_by_dynamic(every="30d", group_by="id")     9 January    2 2
#              duckdb  time_bucket(INTERVAL 30 DAY, day)               19 December   1 3
#            Grouper begins at the first day of the whole frame. Polars counts from 1970, DuckDB from 2000.
# Matters:   counts of visits and means of laboratory values by month of follow-up are made this way. With Grouper a
#            patient's features change when another patient joins or leaves the file, so training, test set and a
#            single patient at the bedside are cut differently. Divide the days since the patient's own start by 30.
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
import polars as pl

days = pandas.to_datetime(["2020-01-01", "2020-01-11", "2020-02-02", "2020-02-09", "2020-02-12"])
visits = pandas.DataFrame({"id": [1, 2, 2, 2, 2], "day": days, "n": 1})
alone = visits[visits["id"] == 2]
grouper = pandas.Grouper(key="day", freq="30D")
dynamic = pl.from_pandas(visits).group_by_dynamic("day", every="30d", group_by="id").agg(pl.col("n").sum())
buckets = "SELECT id, time_bucket(INTERVAL 30 DAY, day) AS day, sum(n)::INT AS n FROM visits GROUP BY ALL"
tables = {
    "pandas resample": visits.groupby("id").resample("30D", on="day")["n"].sum().reset_index(),
    "pandas Grouper, alone": alone.groupby(["id", grouper])["n"].sum().reset_index(),
    "pandas Grouper, with patient 1": visits.groupby(["id", grouper])["n"].sum().reset_index(),
    "polars": dynamic.to_pandas(),
    "duckdb": duckdb.sql(buckets).df(),
}
seen = {}
for name, table in tables.items():
    windows = table[(table["id"] == 2) & (table["n"] > 0)].sort_values("day")
    seen[name] = (str(windows["day"].iloc[0].date()), *map(int, windows["n"]))
    print(f"{name:31}", *seen[name])
assert seen["pandas resample"] == seen["pandas Grouper, alone"] == ("2020-01-11", 3, 1), "pandas begins elsewhere"
assert seen["pandas Grouper, with patient 1"] == ("2020-01-01", 1, 3), "Grouper no longer follows other patients"
assert seen["polars"] == ("2020-01-09", 2, 2), "polars begins elsewhere"
assert seen["duckdb"] == ("2019-12-19", 1, 3), "duckdb begins elsewhere"
PY
