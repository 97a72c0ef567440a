#!/usr/bin/env bash
# Half of the patients are dead on day 0 in scikit-survival if the first deaths of the training set are on day 5.
#
# Package:   scikit-survival 0.28.0
# Guess:     a survival curve is 1 before the first death, as Kaplan-Meier's and Breslow's definitions have it.
# Seen:      ten patients, five deaths on day 5, five censored on the days 6 to 10; survival on the days 0, 2 and 5:
#              SurvivalFunctionEstimator (Kaplan-Meier)   1.00 1.00 0.50
#              CoxPHSurvivalAnalysis                      0.49 0.49 0.49
#              RandomSurvivalForest                       0.44 0.44 0.44
#            The functions that predict_survival_function returns may be asked from 0 on, but before the first time of
#            the training set (a death or a censoring) they give the value at that time.
# Matters:   follow-up in whole years begins at 1, and stays that are only counted from 48 hours on have no earlier
#            time. The risk by a horizon before the first time is that by the first time instead of 0, curves do not
#            start at 1, and a score over a grid from 0 on counts it. Use 1 below function.x[0].
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    scikit-survival==0.28.0 scikit-learn==1.9.1 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from sksurv.ensemble import RandomSurvivalForest
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.nonparametric import SurvivalFunctionEstimator
from sksurv.util import Surv

x = np.random.default_rng(0).normal(size=(10, 2))
y = Surv.from_arrays([True] * 5 + [False] * 5, [5, 5, 5, 5, 5, 6, 7, 8, 9, 10])
ask = np.array([0.0, 2.0, 5.0])
seen = {"Kaplan-Meier": SurvivalFunctionEstimator().fit(y).predict_proba(ask)}
for model in (CoxPHSurvivalAnalysis(alpha=0.1), RandomSurvivalForest(n_estimators=5, random_state=0)):
    curve = model.fit(x, y).predict_survival_function(x[:1])[0]
    seen[type(model).__name__] = curve(ask)
    print(f"{type(model).__name__}: may be asked from {curve.domain[0]} to {curve.domain[1]}, first time {curve.x[0]}")
for name, survival in seen.items():
    print(f"{name:22}", *(f"{value:.2f}" for value in survival))
assert np.allclose(seen.pop("Kaplan-Meier"), [1, 1, 0.5]), "Kaplan-Meier changed"
assert all(np.all(survival == survival[2]) and survival[2] < 0.9 for survival in seen.values()), "curves begin at 1 now"
PY
