#!/usr/bin/env bash
# Deaths on the index day vanish from Cox boosting.
#
# Packages:  xgboost-cpu 3.2.0 (the CPU build of xgboost), catboost 1.2.10
# Guess:     a Cox model uses only the order of the times, so adding 1 to every time changes nothing,
#            and an event at time 0 is an event like any other.
# Seen:      both tools write "event or censored" into the sign of the time, and 0 has no sign.
#            Eleven deaths at time 0 are read as censored. The log hazard ratio turns round:
#              xgboost    times as they are -0.050 | all times + 1  0.210 | + 1, the eleven censored -0.050
#              catboost   times as they are -0.051 | all times + 1  0.210 | + 1, the eleven censored -0.051
#            No warning, no error.
# Matters:   in records with dates only, a death on the day of the prediction has duration 0. These are
#            often the sickest patients. Add one day to all times before you call either tool.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    xgboost-cpu==3.2.0 catboost==1.2.10 "numpy>=2,<3"
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import xgboost
from catboost import CatBoost, Pool

rng = np.random.default_rng(7)
treated = np.repeat([0.0, 1.0], 100)[:, None]
both = np.array([[0.0], [1.0]])
time = rng.permutation(200) + 1.0
event = rng.random(200) < 0.5
on_index_day = (treated[:, 0] == 1) & event & (time < 60)
time[on_index_day] = 0


def with_xgboost(label):
    settings = dict(objective="survival:cox", max_depth=1, eta=0.5, min_child_weight=0, reg_lambda=0, nthread=1)
    model = xgboost.train(settings, xgboost.DMatrix(treated, label=label), 200)
    return np.diff(model.predict(xgboost.DMatrix(both), output_margin=True))[0]


def with_catboost(label):
    settings = dict(loss_function="Cox", iterations=300, depth=1, learning_rate=0.3, random_seed=0)
    model = CatBoost({**settings, "thread_count": 1, "verbose": 0, "allow_writing_files": False})
    return np.diff(model.fit(Pool(treated, label=label)).predict(both))[0]


def signed(time, event):
    return np.where(event, time, -time)


print(f"{on_index_day.sum()} deaths at time 0")
for name, log_hazard_ratio in (("xgboost", with_xgboost), ("catboost", with_catboost)):
    as_is = log_hazard_ratio(signed(time, event))
    later = log_hazard_ratio(signed(time + 1, event))
    censored = log_hazard_ratio(signed(time + 1, event & ~on_index_day))
    print(f"{name:9} as they are {as_is:6.3f} | all + 1 {later:6.3f} | all + 1, deaths of day 0 censored {censored:6.3f}")
    assert abs(as_is - later) > 0.2, "an event at time 0 now counts"
    assert abs(as_is - censored) < 1e-3, "an event at time 0 is no longer read as censored"
PY
