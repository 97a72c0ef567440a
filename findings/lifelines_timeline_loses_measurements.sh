#!/usr/bin/env bash
# A new potassium is lost in lifelines' timeline if the creatinine of that row is missing.
#
# Package:   lifelines 0.30.3
# Guess:     add_covariate_to_timeline takes each measured value from its time on and carries it forward; a missing one
#            leaves that covariate as it was.
# Seen:      patient 1: creatinine 1, missing, 3 and potassium 4, 6, missing on the days 0, 2, 5; followed to day 10:
#              both in one call         creatinine 1          | potassium 4            on the days 0 to 10
#              one call for each        creatinine 1, 3 at 5  | potassium 4, 6 at 2
#            A row with any missing value is dropped, with what was measured in it. No warning.
# Matters:   laboratory values side by side in one table have gaps in almost every row, since panels are ordered
#            separately. A time-varying Cox model then sees the first complete panel for the whole follow-up, and the
#            more covariates are added the fewer updates are left. Add one covariate at a time, each without its gaps.
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

import pandas
from lifelines.utils import add_covariate_to_timeline, to_long_format

warnings.simplefilter("ignore")
base = to_long_format(pandas.DataFrame({"id": [1, 2], "day": [10.0, 10.0], "died": [1, 0]}), "day")
labs = pandas.DataFrame({
    "id": [1, 1, 1, 2],
    "day": [0.0, 2.0, 5.0, 0.0],
    "creatinine": [1.0, None, 3.0, 1.0],
    "potassium": [4.0, 6.0, None, 4.0],
})
together = add_covariate_to_timeline(base, labs.copy(), "id", "day", "died")
apart = base
for name in ("creatinine", "potassium"):
    apart = add_covariate_to_timeline(apart, labs[["id", "day", name]].copy(), "id", "day", "died")
seen = {}
for way, timeline in (("one call", together), ("one call for each", apart)):
    rows = timeline[timeline["id"] == 1].sort_values("start")
    seen[way] = rows[["start", "stop", "creatinine", "potassium"]].to_numpy().tolist()
    print(f"{way}\n{rows[['start', 'stop', 'creatinine', 'potassium']].to_string(index=False)}")
assert seen["one call"] == [[0, 10, 1, 4]], "a row with a missing value is no longer dropped"
assert seen["one call for each"] == [[0, 2, 1, 4], [2, 5, 1, 6], [5, 10, 3, 6]], "single covariates changed"
PY
