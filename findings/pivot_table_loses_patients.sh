#!/usr/bin/env bash
# A patient whose laboratory values are all missing vanishes from pandas' pivot_table, or has a sum of 0.
#
# Packages:  pandas 3.1.1, against polars 2.1.0 and duckdb 2.0.1
# Guess:     a table with a row for each patient and a column for each code has a row for every patient of the list;
#            what was ordered and not measured is missing there.
# Seen:      patient 1 has creatinine 1 and sodium 140, patient 2 a creatinine without a value, patient 3 creatinine 3:
#              pandas pivot_table, mean or max      patients 1, 3
#              pandas pivot_table, sum              patients 1, 2, 3; creatinine of patient 2 is 0.0
#              pandas pivot_table, dropna=False     patients 1, 2, 3; missing
#              pandas pivot, polars, duckdb         patients 1, 2, 3; missing
#            The manual says of dropna (True unless told otherwise) that it leaves out columns without values. (A user
#            reported the lost rows in 2018; it is still so.)
# Matters:   "ordered, not measured" is common, and the patients of whom it is true differ from others. They leave the
#            cohort at the step that makes the features, with no message; and a sum, as of urine or of doses, says 0 of
#            those of whom nothing is known. Join the table to the list of patients.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import pandas
import polars as pl

rows = {"id": [1, 1, 2, 3], "code": ["cr", "na", "cr", "cr"], "value": [1.0, 140.0, None, 3.0]}
frame, polars_frame = pandas.DataFrame(rows), pl.DataFrame(rows)


def creatinine(table):
    return {int(patient): None if pandas.isna(value) else float(value) for patient, value in table["cr"].items()}


def wide(**options):
    return creatinine(frame.pivot_table(index="id", columns="code", values="value", **options))


pivoted = polars_frame.pivot("code", index="id", values="value", aggregate_function="mean")
query = "PIVOT frame ON code USING avg(value) GROUP BY id"
seen = {
    "pandas, mean": wide(),
    "pandas, max": wide(aggfunc="max"),
    "pandas, sum": wide(aggfunc="sum"),
    "pandas, dropna=False": wide(dropna=False),
    "pandas, pivot": creatinine(frame.pivot(index="id", columns="code", values="value")),
    "polars": dict(zip(pivoted["id"], pivoted["cr"], strict=True)),
    "duckdb": dict(duckdb.sql(f"SELECT id, cr FROM ({query}) ORDER BY id").fetchall()),
}
for name, values in seen.items():
    print(f"{name:21}", values)
whole = {1: 1.0, 2: None, 3: 3.0}
for name in ("pandas, dropna=False", "pandas, pivot", "polars", "duckdb"):
    assert seen[name] == whole, f"{name} changed"
assert seen["pandas, mean"] == seen["pandas, max"] == {1: 1.0, 3: 3.0}, "pandas keeps the patient now"
assert seen["pandas, sum"] == {1: 1.0, 2: 0.0, 3: 3.0}, "pandas' sum of a missing value changed"
PY
