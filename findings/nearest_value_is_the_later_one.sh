#!/usr/bin/env bash
# The value nearest to the index day is yesterday's in pandas and tomorrow's in Polars.
#
# Packages:  pandas 3.1.1, polars 2.1.0
# Guess:     an as-of join with "nearest" settles a tie in one way; if not by a rule, then by the earlier value.
# Seen:      creatinine 1.0 the day before the index day and 3.0 the day after:
#              pandas merge_asof(direction="nearest")    1.0
#              polars join_asof(strategy="nearest")      3.0, for dates, times and numbers, with by= and without
# Matters:   "baseline is the measurement nearest to the index date" is a usual definition, and with whole days one
#            before and one after are often equally near. Polars then takes the one that lies in the future, so the
#            covariate holds what the prediction is about, and the same study gives other baselines in pandas.
#            Join backward, or backward first and forward for the rest.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import datetime
import warnings

import pandas
import polars as pl

warnings.simplefilter("ignore")
day = datetime.date(2020, 3, 10)
one_day = datetime.timedelta(days=1)
index = pl.DataFrame({"id": [1], "time": [day]})
labs = pl.DataFrame({"id": [1, 1], "time": [day - one_day, day + one_day], "creatinine": [1.0, 3.0]})
seen = {}
for kind, convert in {"date": pl.col("time"), "datetime": pl.col("time").cast(pl.Datetime("us")),
                      "number": pl.col("time").cast(pl.Int32)}.items():
    left, right = index.with_columns(convert), labs.with_columns(convert)
    for by in (None, "id"):
        joined = left.join_asof(right, on="time", by=by, strategy="nearest")
        seen["polars", kind, by] = joined["creatinine"][0]
    if kind != "date":
        frames = left.to_pandas(), right.to_pandas()
        joined = pandas.merge_asof(*frames, on="time", by="id", direction="nearest")
        seen["pandas", kind, "id"] = float(joined["creatinine"][0])
for (library, kind, by), value in seen.items():
    print(f"{library} {kind:9} by={by}: {value}")
assert {value for key, value in seen.items() if key[0] == "polars"} == {3.0}, "polars no longer takes the later value"
assert {value for key, value in seen.items() if key[0] == "pandas"} == {1.0}, "pandas no longer takes the earlier value"
PY
