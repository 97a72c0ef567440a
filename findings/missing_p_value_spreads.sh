#!/usr/bin/env bash
# One test that could not be made turns all adjusted p-values into NaN in statsmodels, and still "rejects".
#
# Packages:  statsmodels 0.15.0, against scipy 1.17.1
# Guess:     multipletests leaves a missing p-value out, as R's p.adjust does, or refuses it.
# Seen:      p-values 0.001, 0.01, missing, 0.03; adjusted, and which are rejected at 0.05:
#              fdr_bh, missing left out   0.003 0.015 0.030         yes yes yes
#              fdr_bh                     nan   nan   nan   nan     yes yes no  yes
#              hommel                     nan   nan   nan   nan     no  no  no  no   (left out: yes yes yes)
#              holm                       0.004 0.030 nan   0.060   yes yes no  no   (left out: 0.030, yes)
#              scipy false_discovery_control: refused
#            fdr_bh takes a running minimum from the largest p downwards, and NaN is sorted as the largest; holm counts
#            the missing test as a test.
# Matters:   in a scan over a thousand diagnoses some models do not converge and leave a NaN. With one of them the
#            adjusted values are all missing, or all too large, and "rejected" contradicts them. Take the missing ones
#            out first.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    statsmodels==0.15.0 scipy==1.17.1 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
from scipy.stats import false_discovery_control
from statsmodels.stats.multitest import multipletests

warnings.simplefilter("ignore")
p = np.array([0.001, 0.01, np.nan, 0.03])
adjusted, rejected = {}, {}
for method in ("fdr_bh", "hommel", "holm"):
    for name, values in ((method, p), (f"{method}, left out", p[~np.isnan(p)])):
        rejected[name], adjusted[name] = multipletests(values, method=method)[:2]
        print(f"{name:17}", adjusted[name].round(3), rejected[name])
try:
    false_discovery_control(p)
    refused = False
except ValueError as error:
    refused = True
    print("scipy refused:", error)
for method in ("fdr_bh", "hommel"):
    assert np.isnan(adjusted[method]).all(), f"{method} no longer spreads the missing value"
    assert rejected[f"{method}, left out"].all(), f"{method} changed where nothing is missing"
assert rejected["fdr_bh"].tolist() == [True, True, False, True], "fdr_bh: the rejected ones changed"
assert not rejected["hommel"].any(), "hommel: the rejected ones changed"
assert round(float(adjusted["holm"][3]), 3) == 0.06 and round(float(adjusted["holm, left out"][2]), 3) == 0.03, "holm"
assert refused, "scipy takes a missing value now"
PY
