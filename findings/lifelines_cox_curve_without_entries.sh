#!/usr/bin/env bash
# lifelines' Cox model with entry times counts patients as at risk before they entered, in the survival curve only.
#
# Package:   lifelines 0.30.3
# Guess:     CoxPHFitter(...).fit(entry_col=) uses the risk sets of those under observation, in the coefficients and in
#            the baseline hazard, as KaplanMeierFitter(entry=) and CoxTimeVaryingFitter on the same rows do.
# Seen:      4,000 simulated patients who die at a rate of 0.1 a year; some are seen from the start and most from a year
#            between 0 and 8 on; one covariate; survival of the average patient after 2, 5 and 10 years:
#              the truth                                    0.819 0.607 0.368
#              CoxTimeVaryingFitter, the same rows          0.825 0.617 0.384
#              Breslow's formula, risk sets with entries    0.825 0.617 0.384
#              CoxPHFitter with entry_col                   0.908 0.750 0.486
#              Breslow's formula, everybody at risk from 0  0.908 0.750 0.486
#            The coefficients are right (those of CoxTimeVaryingFitter). (Users reported it in 2020; it is still so.)
# Matters:   age as the time scale, or time since diagnosis with a later referral, are the usual reasons for entry
#            times. Every predicted risk is too low, here half of it at two years, and no rank and no coefficient shows
#            it. Take the baseline from CoxTimeVaryingFitter.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lifelines==0.30.3 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import pandas
from lifelines import CoxPHFitter, CoxTimeVaryingFitter

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
x, entry, death = rng.normal(size=6000), rng.uniform(-4, 8, 6000).clip(0), rng.exponential(10, 6000)
known = np.flatnonzero(death > entry)[:4000]
x, entry, death = x[known], entry[known], death[known]
end = entry + rng.uniform(1, 15, len(x))
rows = pandas.DataFrame({"id": range(len(x)), "x": x, "entry": entry, "time": np.minimum(death, end)})
rows["died"] = (death <= end).astype(int)
cox = CoxPHFitter().fit(rows.drop(columns="id"), "time", "died", entry_col="entry")
varying = CoxTimeVaryingFitter().fit(rows, id_col="id", event_col="died", start_col="entry", stop_col="time")
ask = [2.0, 5.0, 10.0]
risk = np.exp(float(cox.params_["x"]) * (x - x.mean()))
deaths = np.sort(rows["time"][rows["died"] == 1].to_numpy())
time = rows["time"].to_numpy()


def breslow(entered):
    steps = np.array([1 / risk[(entered < death) & (time >= death)].sum() for death in deaths])
    return [float(np.exp(-steps[deaths <= year].sum())) for year in ask]


def last(curve):
    return [float(curve[curve.index <= year].iloc[-1, 0]) for year in ask]


seen = {
    "the truth": [float(np.exp(-0.1 * year)) for year in ask],
    "CoxTimeVaryingFitter": last(varying.baseline_survival_),
    "Breslow's formula with entries": breslow(entry),
    "CoxPHFitter with entry_col": last(cox.baseline_survival_),
    "Breslow's formula without entries": breslow(np.full(len(x), -1.0)),
}
for name, curve in seen.items():
    print(f"{name:34}", *(f"{value:.3f}" for value in curve))
truth, peer, right, cox_curve, wrong = seen.values()
assert np.allclose(varying.params_, cox.params_, atol=1e-4), "the coefficients differ"
assert np.allclose(peer, right, atol=2e-3) and np.allclose(right, truth, atol=0.03), "the peer changed"
assert np.allclose(cox_curve, wrong, atol=1e-3) and cox_curve[0] - right[0] > 0.05, "the entries count now"
PY
