#!/usr/bin/env bash
# The risk by day 30 misses about half of day 30's events in lifelines' competing-risk curve.
#
# Package:   lifelines 0.30.3
# Guess:     AalenJohansenFitter moves tied times by next to nothing (it warns of that), so risks at whole days stay.
# Seen:      100 patients, in whole days: 20 of cause 1 and 20 of cause 2 on day 30, one of each on day 45. Risk of
#            cause 1 by day 30 from its definition: 0.20. From predict(30), for seed 0 to 4:
#              0.10 0.15 0.12 0.12 0.08, and another number at each run without a seed
#            Without the pair on day 45: 0.20. One day with a single event of a cause beside another cause moves the
#            times of all events, up or down, and what moved past 30 is not counted by 30.
# Matters:   dates without a clock are the rule, and horizons are whole days. Day 30 or 365 is where follow-up by rule
#            piles events up. The warning speaks of ties only. Ask at 30.5, or use another library.
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
from lifelines import AalenJohansenFitter

warnings.simplefilter("ignore")


def risks(days, cause, seed):
    curve = AalenJohansenFitter(seed=seed, calculate_variance=False).fit(days, cause, event_of_interest=1)
    return float(curve.predict(30.0)), float(curve.predict(30.5))


days = np.repeat([30.0, 45.0, 60.0], [40, 2, 58])
cause = np.r_[np.tile([1, 2], 21), np.zeros(58, int)]
at_30, at_half = zip(*(risks(days, cause, seed) for seed in range(5)), strict=True)
without_pair = risks(days[days != 45], cause[days != 45], 0)[0]
print("by day 30:  ", *(f"{risk:.2f}" for risk in at_30), f"| without the pair on day 45 {without_pair:.2f}")
print("by day 30.5:", *(f"{risk:.2f}" for risk in at_half))
assert max(at_30) < 0.19 and len(set(at_30)) > 1, "the risk by day 30 now counts day 30"
assert np.allclose(at_half, 0.2) and abs(without_pair - 20 / 98) < 1e-6, "the other risks changed"
PY
