#!/usr/bin/env bash
# The same ridge penalty shrinks differently: lifelines scales the covariates, scikit-survival does not.
#
# Packages:  lifelines 0.30.3, scikit-survival 0.28.0
# Guess:     CoxPHFitter(penalizer=p) and CoxPHSurvivalAnalysis(alpha=p) are the same ridge, perhaps up to the
#            number of rows; a covariate in other units gives the same model.
# Seen:      80 patients, log hazard ratio per ten years of age, age given in years or in decades:
#              lifelines penalizer=0.1          years 0.605 | decades 0.605    (without penalty 0.709)
#              scikit-survival alpha=0.1        years 0.709 | decades 0.706
#              scikit-survival alpha=0.1 * 80   years 0.707 | decades 0.572
#            lifelines penalises standardised covariates by the mean log-likelihood; scikit-survival penalises the
#            columns as they come by the sum.
# Matters:   a penalty tuned in one library is carried to the other (or to a paper); and with scikit-survival, days
#            or years, mg or g decide how much each covariate is shrunk. Standardise, and multiply by the rows.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check lifelines==0.30.3 scikit-survival==0.28.0
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas as pd
from lifelines import CoxPHFitter
from sksurv.linear_model import CoxPHSurvivalAnalysis
from sksurv.util import Surv

rng = np.random.default_rng(1)
years = rng.normal(60, 10, 80)
time = rng.exponential(10 * np.exp(-0.05 * (years - 60)))
event = rng.random(80) < 0.7
outcome = Surv.from_arrays(event, time)


def with_lifelines(age):
    frame = pd.DataFrame({"age": age, "time": time, "event": event})
    return CoxPHFitter(penalizer=0.1).fit(frame, "time", "event").params_["age"]


def with_scikit_survival(age, alpha):
    return CoxPHSurvivalAnalysis(alpha=alpha).fit(age[:, None], outcome).coef_[0]


def per_decade(fit):
    return np.array([10 * fit(years), fit(years / 10)])


none = per_decade(lambda age: with_scikit_survival(age, 0))
lifelines = per_decade(with_lifelines)
same = per_decade(lambda age: with_scikit_survival(age, 0.1))
times_rows = per_decade(lambda age: with_scikit_survival(age, 0.1 * 80))
names = ("no penalty", "lifelines 0.1", "scikit-survival 0.1", "scikit-survival 0.1*80")
for name, pair in zip(names, (none, lifelines, same, times_rows)):
    print(f"{name:24} in years {pair[0]:.4f} | in decades {pair[1]:.4f}")
standard = (years - years.mean()) / years.std(ddof=1)
scaled = with_scikit_survival(standard, 0.1 * 80) / years.std(ddof=1) * 10
print(f"scikit-survival 0.1*80 on standardised age: {scaled:.4f}")
assert abs(np.ptp(lifelines)) < 1e-6, "lifelines now depends on the unit"
assert np.ptp(times_rows) > 0.01, "scikit-survival no longer depends on the unit"
assert abs(lifelines[1] - same[1]) > 0.01, "the two penalties now agree"
assert abs(scaled - lifelines[0]) < 1e-3, "standardised and times the rows, the two no longer agree"
PY
