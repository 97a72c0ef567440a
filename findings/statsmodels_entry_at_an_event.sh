#!/usr/bin/env bash
# Who enters at the moment of another's death is at risk in statsmodels' Cox model, and not in its survival curve.
#
# Packages:  statsmodels 0.15.0, against lifelines 0.30.3
# Guess:     intervals are open at the entry and closed at the end (R's rule), in PHReg as in SurvfuncRight.
# Seen:      entry at exactly the time of a death, moved a little later, or a little earlier:
#              PHReg          the coefficient of "exactly" is that of "earlier"  -0.715 (later -0.737)
#              SurvfuncRight  the curve of "exactly" is that of "later"
#              CoxPHFitter    (lifelines) the coefficient of "exactly" is that of "later"
# Matters:   with dates in whole days, entries (a diagnosis, a move into the database) and deaths fall on one day all
#            the time. Coefficients differ from R and lifelines, most where many enter on the days of deaths, and no
#            option is visible. Add a small amount to the entries before PHReg.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    statsmodels==0.15.0 lifelines==0.30.3 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
from lifelines import CoxPHFitter
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight

x = np.array([0.0, 1, 0, 1, 1, 0, 0, 1])
end = np.array([2.0, 4, 5, 6, 7, 8, 9, 10])
dead = np.array([1, 1, 1, 1, 0, 1, 1, 0])
entry = np.array([0.0, 0, 2, 2, 4, 4, 0, 0])
moved = {"exactly": entry, "later": entry + 1e-6 * (entry > 0), "earlier": entry - 1e-6 * (entry > 0)}
cox, curve, lifelines_ = {}, {}, {}
for name, start in moved.items():
    cox[name] = float(PHReg(end, x[:, None], status=dead, entry=start, ties="efron").fit().params[0])
    curve[name] = SurvfuncRight(end, dead, entry=start).surv_prob
    frame = pandas.DataFrame({"x": x, "end": end, "dead": dead, "start": start})
    lifelines_[name] = float(CoxPHFitter().fit(frame, "end", "dead", entry_col="start").params_["x"])
    print(f"{name:8} PHReg {cox[name]:6.3f} | CoxPHFitter {lifelines_[name]:6.3f} |", *curve[name][:3].round(3))
assert np.isclose(cox["exactly"], cox["earlier"], atol=1e-5), "PHReg changed"
assert not np.isclose(cox["exactly"], cox["later"], atol=1e-2), "PHReg changed"
assert np.allclose(curve["exactly"], curve["later"]) and not np.allclose(curve["exactly"], curve["earlier"])
assert np.isclose(lifelines_["exactly"], lifelines_["later"], atol=1e-4), "lifelines changed"
PY
