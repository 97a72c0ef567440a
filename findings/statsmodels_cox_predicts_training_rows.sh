#!/usr/bin/env bash
# statsmodels' Cox model predicts the training patients, whoever is given to it.
#
# Package:   statsmodels 0.15.0
# Guess:     results.predict(new) is the prediction for the rows of `new`, as for statsmodels' other models.
# Seen:      50 patients for training, then predict() of three new ones:
#              OLS, Logit             3 predictions
#              PHReg                  50 predictions, those of the training rows, also from a formula
#              PHReg, exog=new        3 predictions
#            The first argument of predict is endog here, the times, which a log hazard ratio does not need: it is
#            dropped, and without exog the training rows are taken. (A user reported it in 2016; it is still so.)
# Matters:   with a test set of as many rows as the training set (two halves, a bootstrap sample) nothing fails, and
#            each test patient gets a training patient's risk: the C-index is that of chance. Otherwise the number of
#            predictions is the only sign. Write exog=.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    statsmodels==0.15.0 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
import statsmodels.api as sm
import statsmodels.formula.api as smf

random = np.random.default_rng(0)
train = pandas.DataFrame(random.normal(size=(50, 2)), columns=["age", "sodium"])
new = pandas.DataFrame(random.normal(size=(3, 2)), columns=["age", "sodium"])
time = np.exp(-train["age"]) + random.random(50)
cox = sm.PHReg(time, train).fit()
formula = smf.phreg("time ~ age + sodium", train.assign(time=time), status=np.ones(50)).fit()
training_rows = train.to_numpy() @ cox.params
seen = {
    "OLS": sm.OLS(time, train).fit().predict(new),
    "Logit": sm.Logit((time > time.median()).astype(float), train).fit(disp=0).predict(new),
    "PHReg": cox.predict(new).predicted_values,
    "PHReg, formula": formula.predict(new).predicted_values,
    "PHReg, exog=": cox.predict(exog=new).predicted_values,
}
for name, prediction in seen.items():
    print(f"{name:15} {len(prediction)} predictions for 3 patients")
print("PHReg's are the training rows':", np.allclose(seen["PHReg"], training_rows))
assert [len(prediction) for prediction in seen.values()] == [3, 3, 50, 50, 3], seen
assert np.allclose(seen["PHReg"], training_rows), "the first argument of PHReg's predict changed"
assert np.allclose(seen["PHReg, exog="], new.to_numpy() @ cox.params)
PY
