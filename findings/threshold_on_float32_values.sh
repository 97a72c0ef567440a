#!/usr/bin/env bash
# A potassium of 5.1, stored as MEDS stores it, is not ">= 5.1" in Arrow; an HbA1c of 6.4 is "> 6.4".
#
# Packages:  pandas 3.1.1, polars 2.1.0, duckdb 2.0.1, pyarrow 26.0.1
# Guess:     a 32-bit column against the number 5.1 is compared in one way, and a value of 5.1 qualifies.
# Seen:      numeric_value 5.1 and 6.4 as 32-bit floats (5.0999999 and 6.4000001); 5.1 >= 5.1 | 6.4 > 6.4:
#              polars filter, pandas filter, duckdb 5.1 in the SQL     yes | no
#              arrow, pandas with Arrow types, read_parquet(filters=)  no  | yes
#              duckdb with the number as a parameter (?)               no  | yes
#            5.1 equals 5.1 in pandas and Polars (==), and is_in([5.1]) and isin([5.1]) are False.
# Matters:   MEDS stores numeric_value in 32 bits, and cut-offs are numbers with one decimal that laboratories report
#            exactly. Who sits on the cut-off is in the cohort by library, or by whether the number was written into
#            the query or bound to it. Cast the column to 64 bits and round, or give the number as a 32-bit float.
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
import numpy as np
import pandas
import polars as pl
import pyarrow.compute as pc


def answers(value):
    """Whether `value`, stored in 32 bits, is at or above, and above, `value`: by library."""
    table = pl.DataFrame({"value": pl.Series([value], dtype=pl.Float32)})
    table.write_parquet("values.parquet")
    arrow, frame = table.to_arrow(), pandas.DataFrame({"value": np.array([value], np.float32)})
    arrow_frame = arrow.to_pandas(types_mapper=pandas.ArrowDtype)
    bound = duckdb.execute("SELECT value >= ?, value > ? FROM arrow", [value, value]).fetchall()[0]
    return {
        "polars": (table["value"] >= value, table["value"] > value),
        "pandas": (frame.value >= value, frame.value > value),
        "duckdb, number in the SQL": duckdb.sql(f"SELECT value >= {value}, value > {value} FROM arrow").fetchall()[0],
        "duckdb, number bound": bound,
        "arrow": (pc.greater_equal(arrow["value"], value).to_pylist(), pc.greater(arrow["value"], value).to_pylist()),
        "pandas, Arrow types": (arrow_frame.value >= value, arrow_frame.value > value),
        "pandas, read_parquet(filters)": tuple(
            len(pandas.read_parquet("values.parquet", filters=[("value", sign, value)])) for sign in (">=", ">")
        ),
    }


potassium, hba1c = answers(5.1), answers(6.4)
seen = {}
for name in potassium:
    seen[name] = bool(np.ravel(potassium[name][0])[0]), bool(np.ravel(hba1c[name][1])[0])
    print(f"{name:30} 5.1 >= 5.1 {seen[name][0]!s:5} | 6.4 > 6.4 {seen[name][1]}")
column = pl.Series([5.1], dtype=pl.Float32)
among = [bool(column.is_in([5.1])[0]), bool(column.to_pandas().isin([5.1])[0])]
equal = [bool((column == 5.1)[0]), bool((column.to_pandas() == 5.1)[0])]
print("Polars and pandas: 5.1 == 5.1", equal, "| is in [5.1]", among)
as_decimal = {"polars", "pandas", "duckdb, number in the SQL"}
assert all(pair == ((True, False) if name in as_decimal else (False, True)) for name, pair in seen.items()), seen
assert equal == [True, True] and among == [False, False], "is_in or isin changed"
PY
