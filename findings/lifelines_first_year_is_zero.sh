#!/usr/bin/env bash
# Who dies within the first year has a duration of 0 years in lifelines' datetimes_to_durations.
#
# Package:   lifelines 0.30.3
# Guess:     freq="Y" gives years with decimals, as the floats it returns suggest; 365 days are 1.0 year.
# Seen:      from 1 January 2020 to 2 January, 30 June, 31 December 2020, and 30 December 2021 (729 days):
#              freq="D"   1 181 365 729
#              freq="M"   0   5  11  23
#              freq="Y"   0   0   0   1
#            400 patients with exponential times, no censoring: median 1.13 years from days, 1.0 from "Y"; alive after
#            one year 0.55 from days, 0.28 from "Y". Months and years are those of the average calendar, cut off.
# Matters:   years are the unit of survival curves. Each time is half a year too short on average, and who died within
#            the first year is dead at time 0. Take days and divide by 365.25.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check lifelines==0.30.3 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import pandas
from lifelines import KaplanMeierFitter
from lifelines.utils import datetimes_to_durations

warnings.simplefilter("ignore")
ends = ["2020-01-02", "2020-06-30", "2020-12-31", "2021-12-30"]
seen = {freq: datetimes_to_durations(["2020-01-01"] * 4, ends, freq=freq)[0].tolist() for freq in "DMY"}
for freq, durations in seen.items():
    print(freq, durations)
rng = np.random.default_rng(0)
start = pandas.Timestamp("2015-01-01") + pandas.to_timedelta(rng.integers(0, 700, 400), "D")
days = rng.exponential(1.5 * 365.25, 400).astype(int) + 1
end = start + pandas.to_timedelta(days, "D")
curves = {}
for freq, unit in (("D", 365.25), ("Y", 1)):
    durations, died = datetimes_to_durations(start, end, freq=freq)
    curve = KaplanMeierFitter().fit(durations / unit, died)
    curves[freq] = round(float(curve.median_survival_time_), 2), round(float(curve.predict(1.0)), 2)
    print(f"from {freq}: median {curves[freq][0]} years | alive after one year {curves[freq][1]}")
assert seen == {"D": [1, 181, 365, 729], "M": [0, 5, 11, 23], "Y": [0, 0, 0, 1]}, "durations are cut in another way"
assert curves["D"] == (1.13, 0.55), "the curve from days changed"
assert curves["Y"] == (1.0, 0.28), "the curve from years changed"
PY
