#!/usr/bin/env bash
# percentile(0.9) in lifelines is the time that nine of ten survive; quantile(0.9) in statsmodels, that one of ten does.
#
# Packages:  lifelines 0.30.3, against statsmodels 0.15.0
# Guess:     a percentile of a survival time is that of the time, as everywhere in statistics (and R's quantile() of a
#            survfit): by the 90th percentile nine of ten have died.
# Seen:      a hundred deaths on the days 1 to 100:
#                                                   0.1   0.5   0.9
#              numpy percentile                    10.9  50.5  90.1
#              statsmodels SurvfuncRight.quantile    11    51    91
#              lifelines percentile                  90    50    10   (Kaplan-Meier)
#              lifelines percentile                  92    45    15   (Weibull)
#              lifelines predict_percentile          91    51    11   (Cox model)
#            The p of lifelines is the share alive. Its one sentence in the manual says S(t) = p.
# Matters:   length of stay, time to readmission and prediction intervals are reported by percentiles, and the median,
#            which one tries first, is the same both ways. "Nine of ten are discharged by day" gives the day by which
#            one of ten is. An interval from 0.1 to 0.9 comes with its ends exchanged. Ask for 1 - p.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lifelines==0.30.3 statsmodels==0.15.0 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import pandas
from lifelines import CoxPHFitter, KaplanMeierFitter, WeibullFitter
from statsmodels.duration.survfunc import SurvfuncRight

warnings.simplefilter("ignore")
day, died, ask = np.arange(1.0, 101.0), np.ones(100), (0.1, 0.5, 0.9)
curve, peer = KaplanMeierFitter().fit(day, died), SurvfuncRight(day, died)
weibull = WeibullFitter().fit(day, died)
rows = pandas.DataFrame({"day": day, "died": died, "x": np.arange(100) % 2})
cox = CoxPHFitter().fit(rows, "day", "died")
average = pandas.DataFrame({"x": [0.5]})
seen = {
    "numpy percentile": [float(np.quantile(day, p)) for p in ask],
    "statsmodels quantile": [float(peer.quantile(p)) for p in ask],
    "lifelines percentile, Kaplan-Meier": [float(curve.percentile(p)) for p in ask],
    "lifelines percentile, Weibull": [float(weibull.percentile(p)) for p in ask],
    "lifelines predict_percentile, Cox": [float(cox.predict_percentile(average, p=p)) for p in ask],
}
for name, days in seen.items():
    print(f"{name:35}", *(f"{value:5.1f}" for value in days))
rising = [bool(np.all(np.diff(days) > 0)) for days in seen.values()]
assert rising == [True, True, False, False, False], "percentiles count the same way now"
assert seen["lifelines percentile, Kaplan-Meier"] == [90.0, 50.0, 10.0], "Kaplan-Meier's percentile changed"
PY
