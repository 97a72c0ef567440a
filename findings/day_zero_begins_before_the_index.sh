#!/usr/bin/env bash
# Eleven in the evening before the index day is day 0 in Polars; week 0 has thirteen days in DuckDB.
#
# Packages:  polars 2.1.0, pandas 3.1.1, pyarrow 26.0.1, duckdb 2.0.1, ibis-framework 12.0.0
# Guess:     days and weeks from the index moment are rounded down: an hour before it is day -1 (and week -1), so
#            "day >= 0" is "not before the index".
# Seen:      events an hour before, 25 hours before and an hour after the index; whole days from it:
#              pandas .dt.days                     -1 -2  0
#              polars .dt.total_days()              0 -1  0
#              duckdb date_sub('day', index, time)  0 -1  0   (date_diff counts midnights: -1 -2 0)
#            Days -8 to 7, which of them are in week 0 (day // 7):
#              polars, pandas, Ibis on DuckDB      0 1 2 3 4 5 6
#              duckdb, polars' SQL                 -6 -5 -4 -3 -2 -1 0 1 2 3 4 5 6
#            pyarrow's divide does as DuckDB does.
# Matters:   time zero divides history from outcome. Events of the last day or week before the index count as
#            follow-up, or those after it as history; and a plot by week from the index has a peak at 0. Divide as
#            fractions and round down.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 \
    pandas==3.1.1 pyarrow==26.0.1 duckdb==2.0.1 "ibis-framework[duckdb]==12.0.0"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from datetime import datetime, timedelta

import duckdb
import ibis
import polars as pl
import pyarrow.compute as pc

index = datetime(2020, 1, 10)
events = pl.DataFrame({"time": [index + timedelta(hours=hours) for hours in (-1, -25, 1)]})
since = events["time"] - index
whole_days = {
    "pandas .dt.days": since.to_pandas().dt.days.tolist(),
    "polars total_days": since.dt.total_days().to_list(),
}
for name in ("date_sub", "date_diff"):
    query = f"SELECT {name}('day', TIMESTAMP '{index}', time) FROM events"
    whole_days[f"duckdb {name}"] = [day for (day,) in duckdb.sql(query).fetchall()]
for name, days in whole_days.items():
    print(f"{name:20}", *days)

days = pl.DataFrame({"day": range(-8, 8)})
table = ibis.memtable(days.to_arrow())
weeks = {
    "polars": (days["day"] // 7).to_list(),
    "pandas": (days["day"].to_pandas() // 7).tolist(),
    "ibis on duckdb": table.select(week=table.day // 7).to_pyarrow()["week"].to_pylist(),
    "duckdb": [week for (week,) in duckdb.sql("SELECT day // 7 FROM days").fetchall()],
    "polars' SQL": days.sql("SELECT day // 7 AS week FROM self")["week"].to_list(),
    "pyarrow divide": pc.divide(days.to_arrow()["day"], 7).to_pylist(),
}
week_zero = {name: [day for day, week in zip(days["day"], week) if week == 0] for name, week in weeks.items()}
for name, members in week_zero.items():
    print(f"{name:20} week 0:", *members)
assert list(whole_days.values()) == [[-1, -2, 0], [0, -1, 0], [0, -1, 0], [-1, -2, 0]], whole_days
down, towards_zero = list(range(7)), list(range(-6, 7))
assert list(week_zero.values()) == [down] * 3 + [towards_zero] * 3, week_zero
PY
