#!/usr/bin/env bash
# A scorer of scikit-survival gives 0.26 to a model whose own score is 0.74.
#
# Package:   scikit-survival 0.28.0
# Guess:     as_concordance_index_ipcw_scorer and as_cumulative_dynamic_auc_scorer, which wrap an estimator for a grid
#            search, know whether it predicts a risk or a time, as its own score() does.
# Seen:      300 patients; C-index by score(), C-index and AUC by the scorers:
#              CoxPHSurvivalAnalysis                        0.743   0.740   0.790
#              IPCRidge                                     0.743   0.260   0.210
#              FastSurvivalSVM(rank_ratio=0)                0.743   0.259   0.210
#              FastSurvivalSVM(rank_ratio=0.5)              0.743   0.259   0.210
#              ComponentwiseGradientBoosting, loss ipcwls   0.743   0.260   0.210
#            The last four predict times, so longer is better; score() turns the sign and the scorers do not.
# Matters:   a grid search over such a model with one of these scorers picks the worst setting, and a table of models
#            shows them far below chance. Give the metric the negated prediction instead.
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
import warnings

import numpy as np
from sksurv.ensemble import ComponentwiseGradientBoostingSurvivalAnalysis
from sksurv.linear_model import CoxPHSurvivalAnalysis, IPCRidge
from sksurv.metrics import as_concordance_index_ipcw_scorer, as_cumulative_dynamic_auc_scorer
from sksurv.svm import FastSurvivalSVM
from sksurv.util import Surv

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 2))
death, end = rng.exponential(10 * np.exp(-x[:, 0])), rng.uniform(0, 40, 300)
died, time = death <= end, np.minimum(death, end) + 1.5
y, horizons = Surv.from_arrays(died, time), np.quantile(time[died], [0.3, 0.5])
models = {
    "Cox": CoxPHSurvivalAnalysis(),
    "IPCRidge": IPCRidge(),
    "FastSurvivalSVM, rank_ratio 0": FastSurvivalSVM(rank_ratio=0.0, fit_intercept=True, random_state=0),
    "FastSurvivalSVM, rank_ratio 0.5": FastSurvivalSVM(rank_ratio=0.5, fit_intercept=True, random_state=0),
    "boosting, ipcwls": ComponentwiseGradientBoostingSurvivalAnalysis(loss="ipcwls", random_state=0),
}
seen = {}
for name, model in models.items():
    own = model.fit(x, y).score(x, y)
    concordance = as_concordance_index_ipcw_scorer(model).fit(x, y).score(x, y)
    area = as_cumulative_dynamic_auc_scorer(model, horizons).fit(x, y).score(x, y)
    seen[name] = np.array([own, concordance, area])
    print(f"{name:32} score {own:.3f} | scorers: C-index {concordance:.3f}, AUC {area:.3f}")
assert np.all(seen.pop("Cox") > 0.7), "the Cox model is scored the other way"
assert all(scores[0] > 0.7 and np.all(scores[1:] < 0.3) for scores in seen.values()), "times have the right sign now"
PY
