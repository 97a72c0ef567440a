#!/usr/bin/env bash
# A count of 0 is "unknown" to XGBoost if the matrix is sparse, and 0 if it is dense.
#
# Packages:  xgboost-cpu 3.2.0, against lightgbm 4.7.0 and catboost 1.2.10
# Guess:     a sparse and a dense matrix of the same counts are the same data.
# Seen:      trained on the dense counts, risk of a patient with no admission: as a dense row 3.0, as a sparse row 4.0
#            (trained on sparse counts: as a sparse row 3.0, as a dense row 1.0). LightGBM and CatBoost: 3.0 and 3.0.
#            XGBoost takes what a sparse matrix does not store as missing, not as 0.
# Matters:   counts of codes are sparse where models are trained (one column a code) and dense where a single patient
#            is scored. Everybody without a code then goes the way of "missing", which training never saw.
#            Score with the kind of matrix that trained, or store the zeros.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    xgboost-cpu==3.2.0 lightgbm==4.7.0 catboost==1.2.10 scikit-learn==1.9.1 scipy "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from catboost import CatBoostRegressor
from lightgbm import LGBMRegressor
from scipy.sparse import csr_matrix
from xgboost import XGBRegressor

counts = np.random.default_rng(0).poisson(0.7, (400, 3)).astype(float)
outcome = np.where(counts[:, 0] == 0, 3.0, counts[:, 0])
nobody = np.zeros((1, 3))  # a patient without any admission; the true level is 3
models = {
    "xgboost": lambda: XGBRegressor(n_estimators=50, n_jobs=1),
    "lightgbm": lambda: LGBMRegressor(min_child_samples=5, verbose=-1, n_jobs=1),
    "catboost": lambda: CatBoostRegressor(iterations=300, verbose=0, allow_writing_files=False, thread_count=1),
}
seen = {}
for name, make in models.items():
    dense, sparse = make().fit(counts, outcome), make().fit(csr_matrix(counts), outcome)
    rows = (nobody, csr_matrix(nobody))
    seen[name] = [float(model.predict(row)[0]) for model in (dense, sparse) for row in rows]
    print("{:9} trained dense: {:.2f} dense, {:.2f} sparse | trained sparse: {:.2f} dense, {:.2f} sparse".format(
        name, *seen[name]))
assert np.allclose(seen["lightgbm"], 3, atol=0.05) and np.allclose(seen["catboost"], 3, atol=0.05)
assert abs(seen["xgboost"][0] - 3) < 0.05 and abs(seen["xgboost"][3] - 3) < 0.05, "XGBoost, one kind, changed"
assert min(abs(seen["xgboost"][1] - 3), abs(seen["xgboost"][2] - 3)) > 0.5, "XGBoost reads both kinds alike"
PY
