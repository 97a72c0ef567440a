#!/usr/bin/env bash
# Neighbouring OMOP concept ids are one value to several tree libraries.
#
# Packages:  xgboost-cpu 3.2.0, catboost 1.2.10, lightgbm 4.7.0, scikit-survival 0.28.0, scikit-learn 1.9.1
# Guess:     a tree can separate any two whole numbers that a float64 array holds.
# Seen:      XGBoost, CatBoost, and scikit-survival's and scikit-learn's forests turn features into 32-bit
#            floats, where whole numbers above 16,777,216 are no longer all different. Four neighbouring ids from
#            45,768,449 on, outcomes 0 1 0 1:
#              xgboost   0.5 0.5 0.5 0.5     catboost  0.5 0.5 0.5 0.5
#              lightgbm  0 1 0 1             HistGradientBoosting  0 1 0 1
#              random survival forest: ids 1 and 2 the same risk, ids 3 and 4 the same risk
# Matters:   many of OMOP's concept ids and all local ones (above 2,000,000,000) lie there, as do times in
#            seconds since 1970 (steps of 128 s). Columns of ids or times lose their meaning without a word, and
#            which library is affected is not visible from the calls. Use categories, or days since the index date.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check xgboost-cpu==3.2.0 catboost==1.2.10 \
    lightgbm==4.7.0 scikit-survival==0.28.0 scikit-learn==1.9.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" - <<'PY'
import lightgbm
import numpy as np
import xgboost
from catboost import CatBoostRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sksurv.ensemble import RandomSurvivalForest
from sksurv.util import Surv

concept = np.tile(np.arange(45768449.0, 45768453.0), 50)[:, None]
outcome = np.tile([0.0, 1.0, 0.0, 1.0], 50)
four = concept[:4]

extreme = dict(max_depth=3, eta=1, reg_lambda=0, min_child_weight=0, nthread=1)
light = dict(objective="l2", learning_rate=1, min_data_in_leaf=1, min_data_in_bin=1, num_threads=1, verbose=-1)
hist = HistGradientBoostingRegressor(learning_rate=1, max_iter=5, min_samples_leaf=1)
cat = CatBoostRegressor(iterations=50, thread_count=1, verbose=0, allow_writing_files=False)
predicted = {
    "xgboost": xgboost.train(extreme, xgboost.DMatrix(concept, label=outcome), 5).predict(xgboost.DMatrix(four)),
    "catboost": cat.fit(concept, outcome).predict(four),
    "lightgbm": lightgbm.train(light, lightgbm.Dataset(concept, label=outcome), 5).predict(four),
    "HistGradientBoosting": hist.fit(concept, outcome).predict(four),
}
for name, values in predicted.items():
    print(f"{name:22}", *(f"{value:.2f}" for value in values))
time = 1 + 5 * outcome + np.random.default_rng(0).random(200)
forest = RandomSurvivalForest(n_estimators=20, random_state=0)
risk = forest.fit(concept, Surv.from_arrays(np.ones(200, bool), time)).predict(four)
print(f"{'RandomSurvivalForest':22}", *(f"{value:.1f}" for value in risk))

for name in ("xgboost", "catboost"):
    assert np.ptp(predicted[name]) < 1e-6, f"{name} now separates the ids"
for name in ("lightgbm", "HistGradientBoosting"):
    assert np.allclose(predicted[name], [0, 1, 0, 1], atol=0.02), f"{name} no longer separates the ids"
assert risk[0] == risk[1] and risk[2] == risk[3], "the survival forest now separates the ids"
PY
