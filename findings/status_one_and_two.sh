#!/usr/bin/env bash
# A status of 1 = censored and 2 = dead, as R allows: all dead in lifelines, each death twice in statsmodels.
#
# Packages:  lifelines 0.30.3, statsmodels 0.15.0, scikit-survival 0.28.0
# Guess:     a status that holds 1 and 2 is read as R's Surv reads it (the higher one is the event), or refused.
# Seen:      six patients, times 1 to 6, status 1 2 1 2 1 2 (deaths at 2, 4, 6); survival after time 4:
#              as 0 and 1                  0.533
#              lifelines, as 1 and 2       0.333 (everybody dies; CoxPHFitter does the same)
#              statsmodels, as 1 and 2     0.125 (SurvfuncRight counts 1 as a death and 2 as two)
#              scikit-survival             refused
# Matters:   R's lung data and files from its users are coded so. lifelines and statsmodels
#            say nothing, and the curve falls for those who were only lost to follow-up. Write status == 2.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lifelines==0.30.3 statsmodels==0.15.0 scikit-survival==0.28.0 scikit-learn==1.9.1 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
from lifelines import CoxPHFitter, KaplanMeierFitter
from sksurv.util import Surv
from statsmodels.duration.survfunc import SurvfuncRight

time, status = np.arange(1.0, 7.0), np.array([1, 2, 1, 2, 1, 2])
dead = (status == 2).astype(int)
seen = {
    "lifelines, 0 and 1": float(KaplanMeierFitter().fit(time, dead).predict(4)),
    "lifelines, 1 and 2": float(KaplanMeierFitter().fit(time, status).predict(4)),
    "statsmodels, 0 and 1": float(SurvfuncRight(time, dead).surv_prob[1]),
    "statsmodels, 1 and 2": float(SurvfuncRight(time, status).surv_prob[3]),
}
for name, survival in seen.items():
    print(f"{name:21} survival after time 4: {survival:.3f}")
frame = pandas.DataFrame({"time": time, "status": status, "dead": dead, "all": 1, "x": [1, 0, 0, 1, 1, 0]})
ratios = [float(CoxPHFitter().fit(frame[["time", "x", event]], "time", event).params_["x"])
          for event in ("dead", "status", "all")]
print("lifelines' Cox model: dead {:.3f} | status {:.3f} | everybody dead {:.3f}".format(*ratios))
try:
    Surv.from_arrays(status, time)
    refused = False
except ValueError as error:
    refused = True
    print("scikit-survival:", error)
assert np.allclose(list(seen.values()), [0.5333, 0.3333, 0.5333, 0.125], atol=1e-4), "the curves changed"
assert ratios[1] == ratios[2] != ratios[0] and refused, "lifelines or scikit-survival changed"
PY
