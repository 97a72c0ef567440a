#!/usr/bin/env bash
# The same T-SQL age is 18 or 17, and 30 years of follow-up are 360 or 365 months, by SQLGlot's target.
#
# Packages:  sqlglot 30.30.0, duckdb 2.0.1 (SQLite is the one of Python)
# Guess:     T-SQL's DATEDIFF(unit, a, b) counts the turns of the year or month between two dates; SQLGlot keeps that
#            count for every target, or warns.
# Seen:      DATEDIFF written for DuckDB and for SQLite, and run there:
#              year   born 2000-12-31, on 2018-01-01    duckdb  18   sqlite  17
#              month  from 2020-01-31 to 2020-02-01     duckdb   1   sqlite   0
#              month  from 1990-01-15 to 2020-01-15     duckdb 360   sqlite 365
#            DuckDB's DATE_DIFF counts turns, as T-SQL does. For SQLite the days are divided by 365 or by 30, without
#            a warning, so six years gain a month; for PostgreSQL the query has AGE(), complete years and months.
# Matters:   OHDSI's queries are T-SQL, translated to the site's database, and small examples of it run on SQLite.
#            Cohorts "18 or older" and follow-up in months differ between sites that run "the same" query.
#            Write YEAR(b) - YEAR(a), or compare dates with DATEADD.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check sqlglot==30.30.0 duckdb==2.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import sqlite3

import duckdb
import sqlglot

database = sqlite3.connect(":memory:")
run = {
    "duckdb": lambda query: duckdb.sql(query).fetchall()[0][0],
    "sqlite": lambda query: database.execute(query).fetchall()[0][0],
}
expected = {
    ("year", "2000-12-31", "2018-01-01"): (18, 17),
    ("month", "2020-01-31", "2020-02-01"): (1, 0),
    ("month", "1990-01-15", "2020-01-15"): (360, 365),
}
for (unit, start, end), numbers in expected.items():
    query = f"SELECT DATEDIFF({unit}, '{start}', '{end}')"
    seen = tuple(run[to](sqlglot.transpile(query, read="tsql", write=to)[0]) for to in ("duckdb", "sqlite"))
    print(f"{query}: duckdb {seen[0]} | sqlite {seen[1]}")
    assert seen == numbers, f"{query} changed"
for to in ("sqlite", "postgres"):
    written = sqlglot.transpile("SELECT DATEDIFF(year, birth, day)", read="tsql", write=to)[0]
    print(f"{to:9} {written}")
    assert {"sqlite": "365.0", "postgres": "AGE("}[to] in written, f"SQLGlot writes another query for {to}"
PY
