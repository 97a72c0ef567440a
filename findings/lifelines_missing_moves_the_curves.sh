#!/usr/bin/env bash
# A patient without a BMI gets the next patient's survival curve from lifelines' Weibull, log-normal and other models.
#
# Packages:  lifelines 0.30.3, formulaic 1.2.2 (which it installs)
# Guess:     a row with a missing covariate gives a missing prediction at that row, as in lifelines' Cox model, or is
#            refused; all others keep their own.
# Seen:      a model from the formula "age + bmi"; patients a, b and c, and b has no BMI; survival after two years:
#                                          a     b      c
#              only a and c             0.891          0.241
#              WeibullAFTFitter         0.891  0.241   nan
#              LogNormalAFTFitter       0.898  0.232   nan
#              LogLogisticAFTFitter     0.913  0.243   nan
#              CoxPHFitter              refused
#            The row is dropped by the formula, and the curves that are left are written from the left on.
#            predict_median and predict_expectation keep the missing value at b.
# Matters:   rows to be scored have gaps. Everybody after the first gap gets somebody else's curve, and the missing
#            ones are at the end. Nothing warns, and the medians beside the curves are right. Drop such rows first.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lifelines==0.30.3 formulaic==1.2.2 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import pandas
from lifelines import CoxPHFitter, LogLogisticAFTFitter, LogNormalAFTFitter, WeibullAFTFitter

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
age, bmi = rng.normal(60, 10, 500), rng.normal(27, 4, 500)
death = rng.weibull(1.5, 500) * 5 * np.exp(-0.05 * (age - 60) - 0.05 * (bmi - 27))
rows = pandas.DataFrame({"age": age, "bmi": bmi, "years": death.clip(0.01, 8), "died": (death < 8).astype(int)})
new = pandas.DataFrame({"age": [50.0, 65.0, 80.0], "bmi": [25.0, np.nan, 30.0]}, index=["a", "b", "c"])
for kind in (WeibullAFTFitter, LogNormalAFTFitter, LogLogisticAFTFitter):
    model = kind().fit(rows, "years", "died", formula="age + bmi")
    curves = model.predict_survival_function(new, times=[2.0]).loc[2.0]
    alone = model.predict_survival_function(new.dropna(), times=[2.0]).loc[2.0]
    medians = model.predict_median(new)
    print(f"{kind.__name__:21}", *(f"{name} {value:.3f}" for name, value in curves.items()), end=" | alone ")
    print(*(f"{name} {value:.3f}" for name, value in alone.items()), "| medians", medians.round(2).to_dict())
    assert list(curves.index) == ["a", "b", "c"] and np.isnan(curves["c"]), "the curves stay with their patients"
    assert np.allclose([curves["a"], curves["b"]], alone), "the curves stay with their patients"
    assert np.isnan(medians["b"]) and medians["c"] < medians["a"], "the medians moved too"
try:
    CoxPHFitter().fit(rows, "years", "died", formula="age + bmi").predict_survival_function(new)
    refused = False
except ValueError as error:
    refused = True
    print("CoxPHFitter:", error)
assert refused, "the Cox model takes such rows now"
PY
