#!/usr/bin/env bash
# The survival curve of statsmodels' Cox model counts each death at the next one, and the last death never.
#
# Packages:  statsmodels 0.15.0, against lifelines 0.30.3
# Guess:     the baseline cumulative hazard is Breslow's: at a death it rises by 1 over the sum of the relative risks,
#            and the martingale residuals add up to 0.
# Seen:      five deaths on the days 1 to 5, one binary covariate; survival of x = 0 at the days 1, 1.5, 2, 5 and 9:
#              Breslow's formula    0.837 0.837 0.675 0.119 0.119   (lifelines' the same at the deaths)
#              statsmodels predict  1.000 1.000 0.837 0.324 0.324
#            Each death counts from the next one on. baseline_cumulative_hazard lists 0 at the first death and 1.13
#            instead of 2.13 at the last; the martingale residuals add up to 2.33. Coefficients are right.
# Matters:   with times in whole days each horizon misses the deaths of a whole day, and the tail, where few are left
#            and each death is a large step, is too high. A risk or a residual taken from here does not compare with
#            lifelines or scikit-survival. Compute Breslow's sum from the coefficients.
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
import warnings

import numpy as np
import pandas
from lifelines import CoxPHFitter
from statsmodels.duration.hazard_regression import PHReg

warnings.simplefilter("ignore")
day, x, died = np.arange(1.0, 6.0), np.array([0.0, 1.0, 0.0, 1.0, 0.0]), np.ones(5)
ask = np.array([1, 1.5, 2, 2.5, 3, 5, 9.0])
model = PHReg(day, x[:, None], died).fit()
risk = np.exp(float(model.params[0]) * x)
steps = np.array([1 / risk[day >= time].sum() for time in day])
breslow = np.exp([-steps[day <= time].sum() for time in ask])
predicted = model.predict(exog=np.zeros((len(ask), 1)), endog=ask, pred_type="surv").predicted_values
cox = CoxPHFitter().fit(pandas.DataFrame({"day": day, "x": x, "died": died}), "day", "died")
whole = [0, 2, 4, 5, 6]  # lifelines draws straight lines between the deaths
peer = cox.predict_survival_function(pandas.DataFrame({"x": [0.0]}), times=ask[whole]).to_numpy()[:, 0]
residuals = float(model.martingale_residuals.sum())
print("day                 ", *(f"{time:5.1f}" for time in ask))
print("Breslow's formula   ", *(f"{value:5.3f}" for value in breslow))
print("statsmodels predict ", *(f"{value:5.3f}" for value in predicted))
print("lifelines at the days", *(f"{value:5.3f}" for value in peer))
print("cumulative hazard at the deaths", model.baseline_cumulative_hazard[0][1].round(3))
print("sum of the martingale residuals", round(residuals, 3))
assert np.allclose(peer, breslow[whole], atol=1e-4), "lifelines is no longer Breslow's estimate at the deaths"
listed = np.r_[0.0, np.cumsum(steps)[:-1]]
assert np.allclose(model.baseline_cumulative_hazard[0][1], listed), "the list is no longer one death late"
assert abs(residuals - 2.331) < 0.01, "the martingale residuals changed"
late = np.exp([-listed[day <= time][-1] for time in ask])
assert np.allclose(predicted, late, atol=1e-6), "predict is no longer one death late"
PY
