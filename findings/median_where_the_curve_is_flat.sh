#!/usr/bin/env bash
# The median survival time of four patients is 2 or 3, by library.
#
# Packages:  lifelines 0.30.3, statsmodels 0.15.0
# Guess:     where the Kaplan-Meier curve is exactly 0.5 over an interval, the median is its midpoint, in both.
# Seen:      deaths at 1, 2, 3, 4 (the curve is 0.5 from 2 to 3):
#              lifelines median_survival_time_ 2 (the start of the flat piece, curve <= 0.5)
#              statsmodels quantile(0.5)       3 (its end, curve < 0.5)
# Matters:   a small arm of even size without early censoring hits 0.5 exactly, and its flat piece may be long. The
#            median in the table then depends on the library although the curves agree. State the rule beside it.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check lifelines==0.30.3 statsmodels==0.15.0
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from lifelines import KaplanMeierFitter
from statsmodels.duration.survfunc import SurvfuncRight

time, event = [1, 2, 3, 4], [1, 1, 1, 1]
first, second = KaplanMeierFitter().fit(time, event), SurvfuncRight(time, event)
curve = first.survival_function_at_times(time).to_numpy()
print("curve", *curve.round(12), "|", *second.surv_prob.round(12))
halves = float(first.median_survival_time_), float(second.quantile(0.5))
print("lifelines   median", halves[0])
print("statsmodels median", halves[1])
assert np.allclose(curve, second.surv_prob), "the curves differ"
assert halves == (2, 3), "the rule for a flat piece changed"
PY
