#!/usr/bin/env bash
# Admissions at the weekend become admissions on Mondays when SQLGlot writes BigQuery or T-SQL for DuckDB.
#
# Packages:  sqlglot 30.30.0, duckdb 2.0.1
# Guess:     SQLGlot, which turns BigQuery's week that starts on Sunday into DuckDB's, also turns the number of the
#            weekday: Sunday is 1 and Saturday 7 in BigQuery and (as T-SQL is installed) in T-SQL, 0 and 6 in DuckDB.
# Seen:      EXTRACT(DAYOFWEEK FROM day) of BigQuery and DATEPART(weekday, day) of T-SQL both become
#            EXTRACT(DAYOFWEEK FROM day), without a warning; "IN (1, 7)" over a week from Sunday 5 January 2020 on:
#              meant   Sunday, Saturday
#              DuckDB  Monday
#            DATE_TRUNC(day, WEEK) and DATE_DIFF(..., WEEK) of BigQuery are converted.
# Matters:   the weekend effect is a usual covariate, and queries for public intensive-care data are written for
#            BigQuery, OHDSI's in T-SQL. The share of the weekend falls from two days of seven to one, and it is the
#            wrong day. Compare with ISODOW, or shift the number by one yourself.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check sqlglot==30.30.0 duckdb==2.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import sqlglot

duckdb.sql("CREATE TABLE stays AS SELECT DATE '2020-01-05' + i::INT AS day FROM range(7) week(i)")
queries = {
    "bigquery": "SELECT day FROM stays WHERE EXTRACT(DAYOFWEEK FROM day) IN (1, 7) ORDER BY day",
    "tsql": "SELECT day FROM stays WHERE DATEPART(weekday, day) IN (1, 7) ORDER BY day",
}
for dialect, query in queries.items():
    written = sqlglot.transpile(query, read=dialect, write="duckdb")[0]
    days = [f"{day:%A}" for (day,) in duckdb.sql(written).fetchall()]
    print(f"{dialect:9} {written}\n{'':9} {days}")
    assert days == ["Monday"], f"{dialect}: the weekend is another one now"
week = sqlglot.transpile("SELECT DATE_TRUNC(day, WEEK) AS week FROM stays", read="bigquery", write="duckdb")[0]
starts = {f"{day:%A}" for (day,) in duckdb.sql(week).fetchall()}
print(f"{'bigquery':9} {week}\n{'':9} {starts}")
assert starts == {"Sunday"}, "SQLGlot no longer converts the start of the week"
PY
