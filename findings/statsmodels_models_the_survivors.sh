#!/usr/bin/env bash
# A GLM in statsmodels models the probability of "not died" if the outcome is True/False or yes/no.
#
# Package:   statsmodels 0.15.0
# Guess:     the formula "died ~ age" with an outcome of True and False means True, as in R and scikit-learn; "yes" and
#            "no" mean the later level, as in R, or are refused.
# Seen:      400 patients, risk rises with age; intercept and coefficient of age:
#              died as 0 and 1            glm, gee, logit   -1.13   1.03
#              died as False and True     glm, gee           1.13  -1.03    logit: refused
#              died as "no" and "yes"     glm, gee           1.13  -1.03    logit: refused
#            The formula makes two columns of such an outcome, and a binomial model takes two columns as (successes,
#            failures): the first level, False or "no", is the success. (Users reported it in 2015; it is still so.)
# Matters:   comparisons give booleans, so "died = time <= 365" is one. Every odds ratio is inverted, predicted risks
#            are survival probabilities, and nothing warns; only the name of the outcome in the summary (two names)
#            tells. Cast the outcome to 0 and 1.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check statsmodels==0.15.0 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
import statsmodels.api as sm
import statsmodels.formula.api as smf

rng = np.random.default_rng(0)
age = rng.normal(size=400)
died = rng.random(400) < 1 / (1 + np.exp(1 - age))
outcomes = {"0/1": died.astype(int), "False/True": died, "no/yes": np.where(died, "yes", "no")}
visits = np.arange(400) // 2
binomial = sm.families.Binomial()
models = {
    "glm": lambda frame: smf.glm("died ~ age", frame, family=binomial).fit(),
    "gee": lambda frame: smf.gee("died ~ age", visits, frame, family=binomial).fit(),
    "logit": lambda frame: smf.logit("died ~ age", frame).fit(disp=0),
}
seen = {}
for coded, outcome in outcomes.items():
    for name, fit in models.items():
        try:
            seen[name, coded] = [float(value) for value in fit(pandas.DataFrame({"died": outcome, "age": age})).params]
            print(f"{name:6} {coded:11}", *(f"{value:6.2f}" for value in seen[name, coded]))
        except ValueError as error:
            seen[name, coded] = None
            print(f"{name:6} {coded:11} refused: {str(error)[:60]} ...")
for coded in ("False/True", "no/yes"):
    assert seen["logit", coded] is None, "logit no longer refuses"
    for name in ("glm", "gee"):
        assert np.allclose(seen[name, coded], np.negative(seen[name, "0/1"]), atol=1e-6), f"{name} models {coded} anew"
PY
