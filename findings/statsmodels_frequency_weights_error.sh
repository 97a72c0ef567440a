#!/usr/bin/env bash
# Frequency weights of 1 change the standard errors of statsmodels' Kaplan-Meier curve.
#
# Package:   statsmodels 0.15.0
# Guess:     SurvfuncRight with every frequency weight 1 is SurvfuncRight without weights; weight 2 is the row twice.
# Seen:      the curve is the same, the column "Surv prob SE" is not. With weights it holds the error of the
#            cumulative hazard (the root of the sum of d / n^2), not multiplied by the curve:
#              curve            0.833 0.667 0.444 0.222
#              without weights  0.152 0.192 0.222 0.192
#              all weights 1    0.167 0.260 0.423 0.655
# Matters:   tables of counts per time are a common form of registry data, and frequency weights are the way
#            to read them. An interval built from the column is three times too wide at the end here
#            (0.222 +- 1.28) and has another meaning. Repeat the rows, or multiply by the curve.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check statsmodels==0.15.0 "numpy>=2,<3"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
from statsmodels.duration.survfunc import SurvfuncRight

time, event = [2, 4, 5, 7, 8, 9], [1, 1, 0, 1, 1, 0]
plain = SurvfuncRight(time, event)
weighted = SurvfuncRight(time, event, freq_weights=np.ones(6))
print("curve          ", plain.surv_prob.round(3))
print("without weights", plain.surv_prob_se.round(3))
print("all weights 1  ", weighted.surv_prob_se.round(3))
hazard_error = np.sqrt(np.cumsum(weighted.n_events / weighted.n_risk**2))
assert np.allclose(plain.surv_prob, weighted.surv_prob), "the curves differ"
assert weighted.surv_prob_se[-1] > 3 * plain.surv_prob_se[-1], "the errors now agree"
assert np.allclose(weighted.surv_prob_se, hazard_error), "the formula with weights changed"
PY
