#!/usr/bin/env bash
# A laboratory value twelve hours before the index time is of day 0 or of day -1, by library.
#
# Packages:  pandas 3.1.1, polars 2.1.0, duckdb 2.0.1
# Guess:     whole days of a negative difference are rounded down in Polars as in pandas.
# Seen:      value at 1 January 12:00, index time 2 January 00:00:
#              pandas  (value - index).dt.days           -1
#              Polars  (value - index).dt.total_days()    0
#              DuckDB  datediff('day', index, value)     -1 (counts midnights)
#              DuckDB  datesub('day', index, value)       0 (counts whole days)
#            In Polars day 0 is 48 hours long, from 24 hours before the index time to 24 hours after it.
# Matters:   "day < 0 is history, day >= 0 is follow-up" is the usual split. Moved from pandas to Polars, the last
#            day of history becomes follow-up, and an outcome count gains what happened before the index time.
#            Compare the times themselves, or divide seconds and round down.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1 polars==2.1.0 duckdb==2.0.1
"$dir/venv/bin/python" - <<'PY'
from datetime import datetime

import duckdb
import pandas
import polars

index, value = datetime(2020, 1, 2), datetime(2020, 1, 1, 12)
by_parts = duckdb.execute("SELECT datediff('day', $1, $2), datesub('day', $1, $2)", [index, value]).fetchone()
seen = {
    "pandas .dt.days": int((pandas.Series([value]) - pandas.Series([index])).dt.days[0]),
    "Polars .dt.total_days()": (polars.Series([value]) - polars.Series([index])).dt.total_days()[0],
    "DuckDB datediff": by_parts[0],
    "DuckDB datesub": by_parts[1],
}
for name, days in seen.items():
    print(f"{name:24} {days:2}")
assert list(seen.values()) == [-1, 0, -1, 0], "the rounding of days changed"
PY
