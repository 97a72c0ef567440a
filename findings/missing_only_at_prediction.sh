#!/usr/bin/env bash
# A laboratory value that is missing for the first time at prediction is the lowest, the highest, or the average.
#
# Packages:  lightgbm 4.7.0, xgboost-cpu 3.2.0, catboost 1.2.10, scikit-learn 1.9.1
# Guess:     trees that accept missing values give something in the middle where training had none missing, or refuse.
# Seen:      values 2 to 8, outcome = value / 10, none missing; prediction for a missing value (then for 2, 5, 8):
#              lightgbm              0.21 (0.21 0.50 0.80)   as if it were 0, so the lowest
#              catboost              0.20 (0.20 0.50 0.80)   the lowest
#              xgboost               0.80 (0.20 0.50 0.80)   the highest
#              HistGradientBoosting  0.72 (0.22 0.50 0.79)   goes with the larger branch each time
#              random forest         0.70 (0.20 0.50 0.80)   the same
# Matters:   a study's table is complete, the ward's is not. The same patient without a creatinine is at the lowest
#            risk in two libraries and at the highest in a third, without a warning. Refuse such rows, or train with
#            values taken out. (With values on both sides of 0, LightGBM gives the middle, because it reads 0.)
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lightgbm==4.7.0 xgboost-cpu==3.2.0 catboost==1.2.10 scikit-learn==1.9.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from catboost import CatBoostRegressor
from lightgbm import LGBMRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from xgboost import XGBRegressor

value = np.random.default_rng(0).uniform(2, 8, 400)[:, None]
models = {
    "lightgbm": LGBMRegressor(min_child_samples=5, verbose=-1, n_jobs=1),
    "catboost": CatBoostRegressor(iterations=200, verbose=0, allow_writing_files=False, thread_count=1),
    "xgboost": XGBRegressor(n_estimators=100, n_jobs=1),
    "HistGradientBoosting": HistGradientBoostingRegressor(),
    "random forest": RandomForestRegressor(50, random_state=0),
}
seen = {}
for name, model in models.items():
    seen[name] = model.fit(value, value[:, 0] / 10).predict(np.array([[np.nan], [2.0], [5.0], [8.0]]))
    missing, *known = seen[name]
    print(f"{name:21} missing {missing:.2f} | at 2, 5, 8:", *(f"{one:.2f}" for one in known))
for name, (missing, low, _, high) in seen.items():
    expected = {"lightgbm": low, "catboost": low, "xgboost": high}.get(name, 0.7)
    assert abs(missing - expected) < 0.05, f"{name} treats a value that is first missing at prediction in another way"
PY
