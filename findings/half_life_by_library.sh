#!/usr/bin/env bash
# The same half-life, two averages: pandas weighs the past less than Polars, and Polars drops a tied measurement.
#
# Packages:  pandas 3.1.1, polars 2.1.0
# Guess:     an exponentially weighted mean with a half-life of 30 days is one number, and of two values of one moment
#            both count.
# Seen:      creatinine 1, 3, 3 at days 0, 30, 60:
#              pandas ewm(halflife="30D", times=...).mean()   1.00 2.33 2.71
#              polars ewm_mean_by(..., half_life="30d")       1.00 2.00 2.50   (pandas' with adjust=False)
#            Creatinine 1 and 3 at one moment:
#              pandas  1.00 2.00
#              polars  1.00 1.00   (the rows exchanged: 3.00 3.00)
#            Polars moves from the last average towards the new value by the time gone since: half after 30 days,
#            nothing after none. pandas divides the weighted sum by the sum of the weights.
# Matters:   recent values that count more are a usual feature, and early in a history, where most patients are, the
#            two differ most (2.33 against 2.00). Where dates have no clock, Polars keeps the first row of a day and
#            the others never enter, so the order of the file decides. Average each day first, and state the rule.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from datetime import datetime, timedelta

import numpy as np
import pandas
import polars as pl


def averages(days, values):
    times = [datetime(2020, 1, 1) + timedelta(days=day) for day in days]
    series = pandas.Series(values)
    frame = pl.DataFrame({"time": times, "value": values})
    return {
        "pandas": series.ewm(halflife="30D", times=pandas.Series(times)).mean().to_list(),
        "pandas, adjust=False": series.ewm(halflife="30D", times=pandas.Series(times), adjust=False).mean().to_list(),
        "polars": frame.select(pl.col("value").ewm_mean_by("time", half_life="30d"))["value"].to_list(),
    }


apart, tied, exchanged = averages([0, 30, 60], [1.0, 3, 3]), averages([0, 0], [1.0, 3]), averages([0, 0], [3.0, 1])
for name in apart:
    print(f"{name:21} days 0, 30, 60:", np.round(apart[name], 2), "| tied:", tied[name], "| exchanged:", exchanged[name])
assert np.allclose(apart["pandas"], [1, 7 / 3, 19 / 7]), "pandas' average changed"
assert np.allclose(apart["polars"], [1, 2, 2.5]) and apart["polars"] == apart["pandas, adjust=False"], "Polars changed"
assert tied["pandas"] == [1, 2] and tied["polars"] == [1, 1] and exchanged["polars"] == [3, 3], "ties changed"
PY
