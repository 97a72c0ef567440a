#!/usr/bin/env bash
# The codes "042" and "250.00", text in a JSON file, are the numbers 42 and 250.0 in pandas.
#
# Packages:  pandas 3.1.1, against polars 2.1.0 and duckdb 2.0.1
# Guess:     JSON says what is text and what is a number; a reader keeps "042" as text (a CSV file cannot say it).
# Seen:      two records with an id, an ICD-9 code and a drug's NDC, all in quotation marks:
#              pandas.read_json         patient 12, 13               code 42.0, 250.0    ndc 69015001, ...
#              polars, duckdb           patient "0012", "0013"       code "042", ...     ndc "00069015001", ...
#            One code with a letter (V45.0) in the column, and all of its codes stay text. lines=True does the same.
#            A whole number in a column named survival_time (names that end with _time or _at) becomes a date, counted
#            in seconds since 1970, if all values are above 31,536,000, which is one year: 40000000 is 8 April 1971.
# Matters:   ids and codes from an API or a FHIR export lose their zeros: 0012 and 12 are one patient, 250.0 and 250.00
#            one code, and a join with a code list by text finds nothing. A cohort that lives more than a year has
#            dates for its times in seconds. Pass dtype=False and convert_dates=False.
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
import io
import json

import duckdb
import pandas
import polars as pl

records = [
    {"patient": "0012", "code": "042", "ndc": "00069015001"},
    {"patient": "0013", "code": "250.00", "ndc": "00069015002"},
]
with open("records.json", "w") as file:
    json.dump(records, file)
written = [list(record.values()) for record in records]
seen = {
    "pandas": pandas.read_json("records.json").values.tolist(),
    "pandas, dtype=False": pandas.read_json("records.json", dtype=False).values.tolist(),
    "polars": [list(row) for row in pl.read_json("records.json").rows()],
    "duckdb": [list(row) for row in duckdb.sql("FROM 'records.json'").fetchall()],
}
for name, rows in seen.items():
    print(f"{name:20}", rows)
assert seen["pandas"] == [[12, 42.0, 69015001], [13, 250.0, 69015002]], "pandas keeps the text now"
for name in ("pandas, dtype=False", "polars", "duckdb"):
    assert seen[name] == written, f"{name} no longer keeps the text"

times = pandas.read_json(io.StringIO('[{"survival_time": 40000000}, {"survival_time": 90000000}]'))["survival_time"]
short = pandas.read_json(io.StringIO('[{"survival_time": 30000000}, {"survival_time": 90000000}]'))["survival_time"]
print("survival_time:", times.astype(str).tolist(), "| with one below a year:", short.tolist())
assert [str(time)[:10] for time in times] == ["1971-04-08", "1972-11-07"], "times in seconds are no dates now"
assert short.tolist() == [30000000, 90000000], "a time below one year no longer keeps the numbers"
PY
