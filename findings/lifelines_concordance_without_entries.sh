#!/usr/bin/env bash
# On the age scale, lifelines' C-index of a Cox model compares people of whom one had died before the other entered.
#
# Package:   lifelines 0.30.3
# Guess:     with entry_col, concordance_index_ and score() compare a death with those at risk then, as the model does
#            and as R's concordance of (start, stop, status) does.
# Seen:      2,000 people who enter at 40 to 80 years and are followed for five; the hazard does not depend on age; a
#            factor that is rare below 60 and usual above (hazard ratio 1.2):
#              concordance_index_ and score(...)       0.380
#              the same, among those at risk           0.519
#            Who entered at 40 dies before who entered at 75 in any case, so the factor of the old looks protective.
# Matters:   age as the time scale, with entry, is usual in epidemiology. A model with a right coefficient gets a
#            C-index below one half, or far above it where the factor protects, and it rewards covariates that tell when
#            somebody entered. Count the pairs at risk, or state that the index ignores entry.
# Date:      2026-11-29
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
from lifelines import CoxPHFitter

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
entry = rng.uniform(40, 80, 2000)
factor = (rng.random(2000) < np.where(entry > 60, 0.8, 0.2)).astype(float)
death = entry + rng.exponential(10 / (1 + 0.2 * factor))
stop, died = np.minimum(death, entry + 5), (death <= entry + 5).astype(int)
people = pandas.DataFrame({"entry": entry, "stop": stop, "died": died, "factor": factor})
model = CoxPHFitter().fit(people, "stop", "died", entry_col="entry")
risk = model.predict_partial_hazard(people).to_numpy()


def among_those_at_risk():
    pairs = right = 0.0
    for one in np.flatnonzero(died):
        others = (entry < stop[one]) & (stop > stop[one])
        pairs += others.sum()
        right += (risk[others] < risk[one]).sum() + 0.5 * (risk[others] == risk[one]).sum()
    return right / pairs


own, scored = model.concordance_index_, model.score(people, scoring_method="concordance_index")
at_risk = among_those_at_risk()
print(f"coefficient {model.params_.iloc[0]:.2f}, C-index {own:.3f}, score {scored:.3f}, at risk {at_risk:.3f}")
assert 0.1 < model.params_.iloc[0] < 0.4 and 0.5 < at_risk < 0.56, "the data or the coefficient changed"
assert abs(own - 0.380) < 0.005 and abs(scored - 0.380) < 0.005, "the C-index of a model with entries changed"
PY
