#!/usr/bin/env bash
# Monthly visits from 31 January on: eight in a year, or thirteen from which all but one are on the 28th, by library.
#
# Packages:  python-dateutil 4.0.0, pandas 3.1.1, polars 2.1.0, duckdb 2.0.1, pendulum 3.3.0
# Guess:     every month from 31 January 2019 to 31 January 2020 is thirteen days: the 31st, or the month's last day.
# Seen:      dateutil rrule(MONTHLY)                    8: 31 Jan, 31 Mar, 31 May, 31 Jul, ... 31 Jan
#            pandas  date_range(freq=DateOffset)       13: 31 Jan, 28 Feb, 28 Mar, 28 Apr, ... 28 Jan
#            duckdb  generate_series, INTERVAL 1 MONTH 13: 31 Jan, 28 Feb, 28 Mar, 28 Apr, ... 28 Jan
#            polars  date_range(interval="1mo")        13: 31 Jan, 28 Feb, 31 Mar, 30 Apr, ... 31 Jan
#            pendulum interval.range("months")         13: 31 Jan, 28 Feb, 31 Mar, 30 Apr, ... 31 Jan
#            rrule leaves out months without that day (the rule of iCalendar). pandas and DuckDB add a month to the
#            day before each time, so one February moves the rest for good.
# Matters:   months of follow-up, planned visits and person-months are laid out this way from an index day, and one in
#            twelve patients has it on the 29th, 30th or 31st. They miss visits in one library, and in two others a
#            window moves by three days, so an event near its edge changes the month. Add k months to the first day.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    python-dateutil==4.0.0 pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 pendulum==3.3.0 pyarrow==26.0.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from datetime import date, datetime

import duckdb
import pandas
import pendulum
import polars as pl
from dateutil.rrule import MONTHLY, rrule

start, end = date(2019, 1, 31), date(2020, 1, 31)
series = "SELECT unnest(generate_series(DATE '2019-01-31', DATE '2020-01-31', INTERVAL 1 MONTH))"
schedules = {
    "dateutil": rrule(MONTHLY, dtstart=datetime(2019, 1, 31), until=datetime(2020, 1, 31)),
    "pandas": pandas.date_range(start, end, freq=pandas.DateOffset(months=1)),
    "duckdb": [day for (day,) in duckdb.sql(series).fetchall()],
    "polars": pl.date_range(start, end, "1mo", eager=True),
    "pendulum": pendulum.interval(pendulum.date(2019, 1, 31), pendulum.date(2020, 1, 31)).range("months"),
}
seen = {name: [f"{day:%m-%d}" for day in days] for name, days in schedules.items()}
for name, days in seen.items():
    print(f"{name:9} {len(days):2}:", *days)
month_ends = "01-31 02-28 03-31 04-30 05-31 06-30 07-31 08-31 09-30 10-31 11-30 12-31 01-31".split()
drifting = ["01-31"] + [f"{day[:3]}28" for day in month_ends[1:]]
assert seen["dateutil"] == [day for day in month_ends if day.endswith("31")], "dateutil keeps every month now"
assert seen["pandas"] == seen["duckdb"] == drifting, "pandas or DuckDB no longer drift"
assert seen["polars"] == seen["pendulum"] == month_ends, "Polars or pendulum changed"
PY
