#!/usr/bin/env bash
# The square of age 50 is -60 in pandas and Polars if the Stata file stored the age in one byte.
#
# Packages:  pandas 3.1.1, polars 2.1.0, patsy 1.0.3, formulaic 1.2.2, against pyreadstat 1.3.7, duckdb 2.0.1
# Guess:     age ** 2 is the square of the age, whatever type the file has.
# Seen:      ages 9, 50, 64, 90 in a Stata file as bytes, which is how Stata's compress stores ages; squares:
#              pandas.read_stata, age ** 2                        81  -60     0   -92
#              the same as Int8                                   81  -60     0   -92
#              patsy and formulaic, I(age ** 2)                   81  -60     0   -92
#              polars from that frame, ** 2                       81  -60     0   -92
#              pyreadstat (64 bits), age ** 2                     81 2500  4096  8100
#              pandas with Arrow types, age ** 2                  81 2500  4096  8100
#              duckdb, age ** 2                                   81 2500  4096  8100   (age * age: refused)
#            age * 12, the age in months, is 108, 88, 0, 56. A height of 182 cm in 16 bits has the square -32412.
# Matters:   age squared is in most risk models, and statsmodels and lifelines take it as a formula. Ages up to 11 are
#            right, so a small look passes, and the model converges. weight / height ** 2 is below 0 from
#            182 cm on. Cast whole-number columns to float after reading.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1 pyreadstat==1.3.7 patsy==1.0.3 formulaic==1.2.2 \
    "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import formulaic
import numpy as np
import pandas
import patsy
import polars as pl
import pyreadstat

ages = pandas.DataFrame({"age": np.array([9, 50, 64, 90], dtype="int8")})
ages.to_stata("ages.dta", write_index=False)
rows = pandas.read_stata("ages.dta")
wide, _ = pyreadstat.read_dta("ages.dta")
print("types:", rows["age"].dtype, "in pandas,", wide["age"].dtype, "in pyreadstat")
seen = {
    "pandas": rows["age"] ** 2,
    "pandas, Int8": rows["age"].astype("Int8") ** 2,
    "patsy": np.asarray(patsy.dmatrix("I(age ** 2)", rows))[:, 1],
    "formulaic": formulaic.model_matrix("I(age ** 2)", rows).iloc[:, 1],
    "polars": pl.from_pandas(rows).select(pl.col("age") ** 2)["age"],
    "pyreadstat": wide["age"] ** 2,
    "pandas, Arrow types": rows["age"].astype("int8[pyarrow]") ** 2,
    "duckdb": [square for (square,) in duckdb.sql("SELECT age ** 2 FROM rows").fetchall()],
}
seen = {name: [int(square) for square in squares] for name, squares in seen.items()}
for name, squares in seen.items():
    print(f"{name:20}", *squares)
months = [int(month) for month in rows["age"] * 12]
height = int((pandas.Series([182], dtype="int16") ** 2)[0])
print("age * 12 in pandas  ", *months, "| 182 cm in 16 bits, squared:", height)
wrong, right = [81, -60, 0, -92], [81, 2500, 4096, 8100]
assert list(seen.values()) == [wrong] * 5 + [right] * 3, "squares changed"
assert months == [108, 88, 0, 56] and height == -32412, "months or heights changed"
PY
