#!/usr/bin/env bash
# Row weights in Cox boosting do not weigh the risk set: three libraries, three answers, none right.
#
# Packages:  xgboost-cpu 3.2.0 (the CPU build of xgboost), catboost 1.2.10, scikit-survival 0.28.0
# Guess:     a row of weight 0 is a row that is not there; weights count in the events and in the risk sets.
# Seen:      log hazard ratio of one binary covariate, 200 patients; weight 0 for the censored ones of one arm
#            (57 rows), or the same rows taken out (0.187 with every row):
#              catboost         weight 0  0.187 | taken out -0.813   (the weights do nothing)
#              scikit-survival  weight 0 -1.644 | taken out -0.813
#              xgboost          weight 0 -0.837 | taken out -0.813
#            In scikit-survival and XGBoost the scores also grow with every tree, without end (to 50 and 82
#            here; below 1 without weights), because weighted gradients over an unweighted risk set never reach 0.
# Matters:   case-cohort sampling, inverse-probability weights and weights that balance sites are given this
#            way. Hazard ratios are wrong and the size of the scores is an artefact of the number of trees.
#            Repeat rows, subsample, or use a Cox model whose likelihood is weighted.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    xgboost-cpu==3.2.0 catboost==1.2.10 scikit-survival==0.28.0 scikit-learn==1.9.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import xgboost
from catboost import CatBoost, Pool
from sksurv.ensemble import GradientBoostingSurvivalAnalysis
from sksurv.util import Surv

rng = np.random.default_rng(7)
arm = np.repeat([0.0, 1.0], 100)[:, None]
both = np.array([[0.0], [1.0]])
time = rng.permutation(200) + 1.0
event = rng.random(200) < 0.5
weight = np.where((arm[:, 0] == 0) & ~event, 0.0, 1.0)


def with_catboost(rows, weight):
    settings = dict(loss_function="Cox", iterations=300, depth=1, learning_rate=0.3, random_seed=0, thread_count=1)
    data = Pool(arm[rows], label=np.where(event, time, -time)[rows], weight=weight)
    return CatBoost({**settings, "verbose": 0, "allow_writing_files": False}).fit(data).predict(both)


def with_scikit_survival(rows, weight):
    model = GradientBoostingSurvivalAnalysis(n_estimators=300, learning_rate=0.5, max_depth=1, random_state=0)
    return model.fit(arm[rows], Surv.from_arrays(event, time)[rows], sample_weight=weight).predict(both)


def with_xgboost(rows, weight):
    settings = dict(objective="survival:cox", max_depth=1, eta=0.5, min_child_weight=0, reg_lambda=0, nthread=1)
    data = xgboost.DMatrix(arm[rows], label=np.where(event, time, -time)[rows], weight=weight)
    model = xgboost.train(dict(settings, tree_method="exact", base_score=0.5), data, 200)
    return model.predict(xgboost.DMatrix(both), output_margin=True)


everybody, some = np.arange(200), np.flatnonzero(weight)
print(f"{200 - len(some)} rows of weight 0")
ratio, largest = {}, {}
for fit in (with_catboost, with_scikit_survival, with_xgboost):
    name = fit.__name__.removeprefix("with_")
    scores = [fit(everybody, weight), fit(some, None), fit(everybody, None)]
    ratio[name] = [float(score[1] - score[0]) for score in scores]
    largest[name] = [float(np.abs(score).max()) for score in scores]
    print(f"{name:15}  weight 0 {ratio[name][0]:6.3f} | taken out {ratio[name][1]:6.3f} | every row {ratio[name][2]:6.3f}",
          f"| largest score {largest[name][0]:.1f} and {largest[name][1]:.1f}")
for name, (weighted, taken_out, unweighted) in ratio.items():
    assert abs(taken_out + 0.813) < 0.002 and abs(unweighted - 0.187) < 0.002, f"{name}: the plain fits changed"
    assert abs(weighted - taken_out) > 0.02, f"{name} now weighs the risk set"
assert abs(ratio["catboost"][0] - ratio["catboost"][2]) < 1e-6, "CatBoost now uses the weights"
assert min(largest["scikit_survival"][0], largest["xgboost"][0]) > 20, "the scores no longer grow"
PY
