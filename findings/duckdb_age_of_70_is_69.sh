#!/usr/bin/env bash
# An age of 70 years leaves DuckDB for Python as 25,200 days, which are 69 years.
#
# Package:   duckdb 2.0.1
# Guess:     age(index, birth) is an interval of years, months and days. Python's timedelta has days only, so a fetch is
#            refused, or gives the days between the two dates.
# Seen:      age(DATE '2020-01-01', DATE '1950-01-01'), 25,567 days in truth:
#              in DuckDB           70 years
#              fetchall()          timedelta of 25200 days, 69.0 years of 365.25 days
#              index - birth       25567
#            A year becomes 360 days, a month 30. (A user reported it in 2024; it is still so.)
# Matters:   an age, or a follow-up, that is computed in SQL and divided by 365.25 in Python is a year too low at 70,
#            half a year at 35: patients of 18 are 17, and rates per person-year rise by 1.4 %. Fetch a number:
#            date_sub('year', birth, index), or index - birth, which counts days.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb

birth, index = "DATE '1950-01-01'", "DATE '2020-01-01'"
inside, years, days = duckdb.sql(
    f"SELECT age({index}, {birth})::VARCHAR, date_sub('year', {birth}, {index}), {index} - {birth}"
).fetchall()[0]
fetched = duckdb.sql(f"SELECT age({index}, {birth})").fetchall()[0][0].days
print(f"in DuckDB: {inside}, {years} complete years, {days} days")
print(f"fetched:   {fetched} days, {fetched / 365.25:.2f} years")
assert (inside, years, days) == ("70 years", 70, 25567), "DuckDB's own count changed"
assert fetched == 25200, "a year of an interval is no longer 360 days in Python"
PY
