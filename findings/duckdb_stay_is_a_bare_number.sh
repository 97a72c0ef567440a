#!/usr/bin/env bash
# A stay of 26 hours and a half in a Parquet file is 95,400,000,000,000 in DuckDB if pandas wrote it, 95,400,000,000 if
# Polars did.
#
# Packages:  duckdb 2.0.1, against pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1 (writes and reads pandas' file)
# Guess:     a duration is an interval in DuckDB, as it is when the frame itself is queried; or it is refused.
# Seen:      pandas' stay is in nanoseconds, Polars' in microseconds:
#              query of the frame, pandas       INTERVAL  1 day 02:30:00
#              Parquet written by pandas        BIGINT    95400000000000
#              Parquet written by Polars        BIGINT    95400000000
#              Polars reads pandas' file        1 day 2:30:00
#            A month (pandas' Period) of that file is a whole number too: March 2020 is 602.
# Matters:   lengths of stay and follow-up times are computed in one tool and selected in the other. "stay > 86400" is
#            true of everybody in both, and files of two writers in one folder differ by a factor of 1,000 in one
#            column. Write hours or days as numbers, with the unit in the column's name.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from datetime import timedelta

import duckdb
import pandas
import polars as pl

stay = timedelta(hours=26.5)
frame = pandas.DataFrame({"stay": pandas.Series([stay]).astype("timedelta64[ns]")})
frame.assign(month=pandas.PeriodIndex(["2020-03"], freq="M")).to_parquet("pandas.parquet")
pl.DataFrame({"stay": [stay]}).write_parquet("polars.parquet")


def seen(source):
    return duckdb.sql(f"SELECT typeof(stay), stay FROM {source}").fetchall()[0]


rows = {name: seen(name) for name in ("frame", "'pandas.parquet'", "'polars.parquet'")}
month = duckdb.sql("SELECT typeof(month), month FROM 'pandas.parquet'").fetchall()[0]
back = pl.read_parquet("pandas.parquet", columns=["stay"])["stay"][0]
for name, row in rows.items():
    print(f"{name:17}", row)
print("month:", month, "| Polars reads", back)
assert rows["frame"] == ("INTERVAL", stay) and back == stay, "the frame or Polars' reading changed"
assert rows["'pandas.parquet'"] == ("BIGINT", 95400000000000), "DuckDB's reading of pandas' file changed"
assert rows["'polars.parquet'"] == ("BIGINT", 95400000000), "DuckDB's reading of Polars' file changed"
assert month == ("BIGINT", 602), "the reading of a month changed"
PY
