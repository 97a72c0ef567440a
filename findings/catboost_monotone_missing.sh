#!/usr/bin/env bash
# A monotone constraint in CatBoost also binds the patients whose value is missing.
#
# Packages:  catboost 1.2.10, against lightgbm 4.7.0 and xgboost-cpu 3.2.0
# Guess:     a monotone constraint orders the measured values; patients without a value get a level of their own.
# Seen:      CatBoost places a missing value below every measured one and applies the constraint there too.
#            Where the unmeasured are at high risk, it cannot say so and loses the whole covariate.
#            True levels: missing 5 | 0.05 0.50 0.95 at the values 0.05, 0.50, 0.95. Predicted:
#              catboost   missing 1.82 | 1.82 1.82 1.82
#              lightgbm   missing 5.00 | 0.04 0.51 0.92
#              xgboost    missing 5.00 | 0.04 0.48 0.92
# Matters:   in records, patients without a laboratory value differ from those with one, in either direction, and
#            "risk rises with the value" is a usual constraint. With CatBoost impute the value and add a column
#            "is missing", or give the constraint up.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    catboost==1.2.10 lightgbm==4.7.0 xgboost-cpu==3.2.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" - <<'PY'
import lightgbm
import numpy as np
import xgboost
from catboost import CatBoostRegressor

rng = np.random.default_rng(0)
value = rng.uniform(size=2000)
missing = rng.random(2000) < 0.3
target = np.where(missing, 5.0, value) + rng.normal(0, 0.1, 2000)
value[missing] = np.nan
value = value[:, None]
new = np.array([[np.nan], [0.05], [0.5], [0.95]])

cat = CatBoostRegressor(monotone_constraints=[1], iterations=200, thread_count=1, verbose=0, allow_writing_files=False)
light = dict(monotone_constraints=[1], num_threads=1, verbose=-1)
extreme = dict(monotone_constraints="(1)", nthread=1)
levels = {
    "catboost": cat.fit(value, target).predict(new),
    "lightgbm": lightgbm.train(light, lightgbm.Dataset(value, label=target), 100).predict(new),
    "xgboost": xgboost.train(extreme, xgboost.DMatrix(value, label=target), 100).predict(xgboost.DMatrix(new)),
}
for name, level in levels.items():
    print(f"{name:9} missing {level[0]:.2f} |", *(f"{one:.2f}" for one in level[1:]))
assert np.ptp(levels["catboost"]) < 0.01, "CatBoost now frees missing values from the constraint"
for name in ("lightgbm", "xgboost"):
    assert abs(levels[name][0] - 5) < 0.2, f"{name} now binds missing values"
PY
