#!/usr/bin/env bash
# A decision curve of dcurves for a marker and a survival time treats those with the lowest risk.
#
# Packages:  dcurves 1.1.7, lifelines 0.30.3 (which it installs)
# Guess:     models_to_prob turns a marker into the risk of the event by the time asked for, by a Cox model, as it does
#            by a logistic model for a binary outcome.
# Seen:      500 patients, a marker that raises the hazard, net benefit at year 2 for thresholds 0.2 and 0.4:
#              the marker with models_to_prob             0.175  -0.157
#              a column of risks, 1 - survival            0.264   0.152   (the same Cox model)
#              a column of probabilities of survival      0.175  -0.157
#            The column that it makes is the probability of surviving, and it is compared with the threshold as a risk.
# Matters:   decision curves are what reviewers ask for, and models_to_prob is the way for a marker that is no
#            probability. A good marker does harm in the figure. Compute the risk before, and leave models_to_prob out.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    dcurves==1.1.7 lifelines==0.30.3 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import pandas
from dcurves import dca
from lifelines import CoxPHFitter

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
marker = rng.normal(size=500)
death, end = rng.exponential(5 * np.exp(-marker)), rng.uniform(2, 10, 500)
data = pandas.DataFrame({"time": np.minimum(death, end), "died": (death <= end).astype(int), "marker": marker})
survival = CoxPHFitter().fit(data, "time", "died").predict_survival_function(data, times=[2]).to_numpy()[0]
data = data.assign(survival=survival, risk=1 - survival)


def net_benefit(column, **options):
    curve = dca(data, "died", [column], thresholds=[0.2, 0.4], time=2, time_to_outcome_col="time", **options)
    return curve.loc[curve["model"] == column, "net_benefit"].to_numpy()


seen = {
    "marker, models_to_prob": net_benefit("marker", models_to_prob=["marker"]),
    "risk": net_benefit("risk"),
    "survival": net_benefit("survival"),
}
for name, benefit in seen.items():
    print(f"{name:23} net benefit at thresholds 0.2 and 0.4:", np.round(benefit, 3))
assert (seen["risk"] > seen["survival"] + 0.02).all(), "the risk is no better than its reverse"
assert np.allclose(seen["marker, models_to_prob"], seen["survival"]), "models_to_prob gives no survival now"
PY
