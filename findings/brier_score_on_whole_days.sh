#!/usr/bin/env bash
# "0.5 for everybody" has a Brier score of 0.267, not 0.25, in scikit-survival, where times are whole days.
#
# Packages:  scikit-survival 0.28.0, hazardous 0.2.0, statsmodels 0.15.0 (draws the Kaplan-Meier curve S)
# Guess:     Graf's score: an event at T weighs 1 / G(T-), G being the share not censored, and who is censored on the
#            day of an event was at risk of it. Then 0.5 for everybody scores 0.25, S for everybody scores S (1 - S),
#            and to move each censoring from its day to half a day later changes nothing.
# Seen:      400 patients, horizons of 2, 4, 6 and 8 days:
#              S (1 - S)                                             0.180 0.232 0.250 0.245
#              S for everybody    scikit-survival, whole days        0.197 0.250 0.265 0.258
#                                 hazardous, whole days              0.193 0.241 0.251 0.240
#                                 both, censorings half a day later  0.180 0.232 0.250 0.245
#              0.5 for everybody  scikit-survival, whole days        0.257 0.261 0.265 0.267
#            scikit-survival divides by G(T), that day's censorings included (as it documents); hazardous too, and it
#            counts who died that day among those at risk of being censored.
# Matters:   dates without a clock are the rule, and dropouts and deaths share days. Scores are off by more than models
#            differ, and do not compare between the libraries, nor between data in days and in months. Add half a unit
#            to the times of the censored rows before you score.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    scikit-survival==0.28.0 hazardous==0.2.0 statsmodels==0.15.0 scikit-learn==1.9.1 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
from hazardous.metrics import brier_score_survival
from sksurv.metrics import brier_score
from sksurv.util import Surv
from statsmodels.duration.survfunc import SurvfuncRight

random = np.random.default_rng(0)
death = np.ceil(random.exponential(10 / np.exp(random.normal(size=400))))
dropout = np.minimum(np.ceil(random.exponential(8, 400)), 12)
days, died = np.minimum(death, dropout), death <= dropout
horizons = np.array([2.0, 4.0, 6.0, 8.0])
curve = SurvfuncRight(days, died)
kaplan_meier = np.array([curve.surv_prob[curve.surv_times <= day][-1] for day in horizons])


def scores(times, survival):
    """Brier scores at the horizons of the same `survival` for everybody, by library."""
    outcome, table = Surv.from_arrays(died, times), pandas.DataFrame({"event": died.astype(int), "duration": times})
    survival = np.broadcast_to(survival, (len(times), len(horizons)))
    return {
        "scikit-survival": brier_score(outcome, outcome, survival, horizons)[1],
        "hazardous": brier_score_survival(table, table, survival, horizons),
    }


seen = {}
for what, times in (("whole days", days), ("half a day later", np.where(died, days, days + 0.5))):
    for prediction, survival in (("0.5", 0.5), ("Kaplan-Meier", kaplan_meier)):
        for name, score in scores(times, survival).items():
            seen[name, prediction, what] = score
            print(f"{name:15} {prediction:12} censored {what:16}", *(f"{one:.3f}" for one in score))
print("S (1 - S), the Kaplan-Meier curve's score by definition    ",
      *(f"{one:.3f}" for one in kaplan_meier * (1 - kaplan_meier)))
for name in ("scikit-survival", "hazardous"):
    assert np.allclose(seen[name, "0.5", "half a day later"], 0.25), f"{name}: even without ties"
    assert np.allclose(seen[name, "Kaplan-Meier", "half a day later"], kaplan_meier * (1 - kaplan_meier)), name
off = {name: seen[name, "Kaplan-Meier", "whole days"] / (kaplan_meier * (1 - kaplan_meier)) - 1
       for name in ("scikit-survival", "hazardous")}
print("too high by", {name: np.round(share, 3).tolist() for name, share in off.items()})
assert (seen["scikit-survival", "0.5", "whole days"] > 0.255).all(), seen
assert (off["scikit-survival"] > 0.05).all() and off["hazardous"][0] > 0.05 and off["hazardous"][3] < -0.01, off
PY
