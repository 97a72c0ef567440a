#!/usr/bin/env bash
# Between two events lifelines' Cox survival falls in a straight line; scikit-survival's curve is a step.
#
# Packages:  lifelines 0.30.3, scikit-survival 0.28.0
# Guess:     both give the step function that Breslow's estimate is, so survival at day 180 is that of the last event.
# Seen:      events on days 5, 10, 365 and 400, survival of one patient at the days 10, 180, 364:
#              lifelines        predict_survival_function(times=...)   0.655 0.572 0.494
#              scikit-survival  predict_survival_function              0.655 0.655 0.655
#            lifelines' cumulative hazard grows in a straight line from one event to the next. Its Kaplan-Meier and
#            Nelson-Aalen curves are steps.
# Matters:   events are rare where horizons are asked (a small cohort, long follow-up), so risks at 180 days differ
#            between the libraries although the coefficients agree; a Brier score or a calibration plot then compares
#            interpolation, not models. Read lifelines' baseline at the last event time before the horizon.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lifelines==0.30.3 scikit-survival==0.28.0 scikit-learn==1.9.1 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
from lifelines import CoxPHFitter, KaplanMeierFitter
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.util import Surv

days = [10, 180, 364]
frame = pandas.DataFrame({
    "days": [5.0, 10.0, 365.0, 400.0, 420.0, 430.0],
    "dead": [1, 1, 1, 1, 0, 0],
    "x": [0, 1, 0, 1, 0, 1],
})
patient = frame[["x"]].iloc[:1]
lifelines_ = CoxPHFitter().fit(frame, "days", "dead").predict_survival_function(patient, times=days).iloc[:, 0]
model = CoxPHSurvivalAnalysis().fit(frame[["x"]], Surv.from_dataframe("dead", "days", frame))
scikit_survival = model.predict_survival_function(patient)[0](days)
kaplan_meier = KaplanMeierFitter().fit(frame["days"], frame["dead"]).survival_function_at_times(days)
for name, curve in {"lifelines": lifelines_, "scikit-survival": scikit_survival, "Kaplan-Meier": kaplan_meier}.items():
    print(f"{name:16}", *(f"{one:.3f}" for one in curve))
assert np.ptp(scikit_survival) == 0 and np.ptp(kaplan_meier) == 0, "the steps changed"
fall = -np.diff(np.log(lifelines_)) / np.diff(days)
assert fall.min() > 0 and np.allclose(fall, fall[0]), "lifelines no longer interpolates the cumulative hazard"
PY
