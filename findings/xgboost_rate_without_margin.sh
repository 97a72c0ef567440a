#!/usr/bin/env bash
# A rate model fitted with exposure predicts wrong rates when the exposure is left out at prediction.
#
# Package:   xgboost-cpu 3.2.0 (the CPU build of xgboost)
# Guess:     count:poisson with base_margin = log(exposure) learns a rate; to predict without a margin is
#            to predict with margin 0, that is, the rate for one unit of exposure.
# Seen:      without a margin the model adds its own intercept, log(mean count), which training with a
#            margin never used. Every rate is too high by the mean count of the training set (here 1.205):
#              expected events / observed events with margin 0: 1.000 | without a margin: 1.205
#            The factor depends on the training set: a longer follow-up makes it larger.
# Matters:   piecewise-exponential and event-rate models are fitted this way (events per person-year).
#            Ranks stay right, so a C-index does not show it; calibration is off by the factor. Give a
#            base margin of zeros, or base_score=1 in training.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check xgboost-cpu==3.2.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import xgboost

rng = np.random.default_rng(0)
covariate = rng.normal(size=(400, 1))
years = rng.uniform(1, 10, 400)
events = rng.poisson(0.2 * np.exp(0.5 * covariate[:, 0]) * years).astype(float)


def fit(**settings):
    data = xgboost.DMatrix(covariate, label=events, base_margin=np.log(years))
    return xgboost.train(dict(objective="count:poisson", max_depth=2, eta=0.1, nthread=1, **settings), data, 200)


def expected_over_observed(model, **margin):
    rate = model.predict(xgboost.DMatrix(covariate, **margin))
    return (rate * years).sum() / events.sum()


model = fit()
zero = expected_over_observed(model, base_margin=np.zeros(400))
absent = expected_over_observed(model)
fixed = expected_over_observed(fit(base_score=1.0))
print(f"mean count {events.mean():.3f}")
print(f"expected / observed: margin 0 {zero:.3f} | no margin {absent:.3f} | no margin, base_score=1 {fixed:.3f}")
assert abs(zero - 1) < 0.01, "with margin 0 the rates no longer fit"
assert abs(absent / zero - events.mean()) < 0.001, "the factor is no longer the mean count"
assert abs(fixed - 1) < 0.01, "base_score=1 no longer helps"
PY
