#!/usr/bin/env bash
# A patient of a ward that training never saw is predicted as one of the first ward, in lifelines with a formula.
#
# Packages:  lifelines 0.30.3, formulaic 1.2.2 (which it installs), against patsy 1.0.3
# Guess:     a category that training has not seen is refused at prediction, or its prediction is missing.
# Seen:      wards A, B, C in training; median survival predicted for A, B, C and an unknown D:
#              CoxPHFitter         0.76  0.85  3.87  0.76
#              WeibullAFTFitter    0.69  0.76  3.66  0.69
#            A warning says that D is "cast to nan"; but the row is 0 in every column, which is ward A.
#            patsy refuses the row.
# Matters:   A is the reference because it comes first in the alphabet. New wards, sites and codes come with every new
#            year, and a warning in a log does not reach who reads the risk. Compare the categories before predicting.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lifelines==0.30.3 formulaic==1.2.2 patsy==1.0.3 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
import pandas
import patsy
from lifelines import CoxPHFitter, WeibullAFTFitter

warnings.simplefilter("ignore")
time = np.random.default_rng(0).exponential(1, 90)
patients = pandas.DataFrame({"time": time, "died": 1, "ward": ["A", "B", "C"] * 30})
patients.loc[patients["ward"] == "C", "time"] *= 5
asked = pandas.DataFrame({"ward": ["A", "B", "C", "D"]})
for fitter in (CoxPHFitter(), WeibullAFTFitter()):
    fitter.fit(patients, "time", "died", formula="ward")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        median = fitter.predict_median(asked).to_numpy()
    said = " ".join(str(warning.message) for warning in caught)
    print(f"{type(fitter).__name__:17}", np.round(median, 2), "| warning:", said[:80])
    assert median[0] != median[1] and median[2] > 2 * median[0], "the known wards changed"
    assert median[3] == median[0], "an unknown ward is no longer the first one"
    assert "cast to nan" in said, "the warning changed"
design = patsy.dmatrix("ward", patients).design_info
try:
    patsy.build_design_matrices([design], asked)
except patsy.PatsyError as error:
    print("patsy:", str(error).splitlines()[0])
else:
    raise SystemExit("patsy takes an unknown ward now")
PY
