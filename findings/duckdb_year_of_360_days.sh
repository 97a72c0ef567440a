#!/usr/bin/env bash
# "At least one year of history" is true from 360 days on in DuckDB.
#
# Package:   duckdb 2.0.1
# Guess:     (end - start) >= INTERVAL '1 year' holds from 365 or 366 days on.
# Seen:      the difference of two timestamps counts days; to compare it with years, DuckDB takes a month as
#            30 days, so a year is 360:
#              359 days False | 360 days True | 364 days True | 365 days True
#            start + INTERVAL '1 year' <= end uses the calendar: 364 days False, 365 days True.
# Matters:   washout periods and "one year of observation before the index date" are written this way over
#            observation_period. Patients with 360 to 364 days enter the cohort.
#            Add the interval to a date; never compare a difference with months or years.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1
"$dir/venv/bin/python" - <<'PY'
import duckdb

query = """
    SELECT days,
           finish - start >= INTERVAL '1 year' AS by_difference,
           start + INTERVAL '1 year' <= finish AS by_calendar
    FROM (SELECT days, TIMESTAMP '2021-01-01' AS start, TIMESTAMP '2021-01-01' + to_days(days) AS finish
          FROM (VALUES (359), (360), (364), (365)) AS t(days))
    ORDER BY days
"""
rows = duckdb.sql(query).fetchall()
for days, by_difference, by_calendar in rows:
    print(f"{days} days: difference >= 1 year {by_difference!s:5} | start + 1 year <= end {by_calendar}")
assert [row[1] for row in rows] == [False, True, True, True], "a year is no longer 360 days here"
assert [row[2] for row in rows] == [False, False, False, True], "the calendar's year changed"
PY
