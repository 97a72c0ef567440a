#!/usr/bin/env bash
# A ward without a single calibration patient gets a 95 % interval of width 0 from crepes.
#
# Package:   crepes 0.9.1
# Guess:     conformal intervals by group (Mondrian categories) are infinite for a group that calibration has not
#            seen, as they are for a group with too few patients; or it is refused.
# Seen:      errors of 100 patients of ward A and of 4 of ward B, standard normal; intervals around 0 at 95 %:
#              ward A   about -2 to 2
#              ward B   -infinity to infinity, with a warning that there are too few
#              ward C   0 to 0, without a warning of its own
#            The bounds of a group are filled in by the groups of the calibration; another group keeps the prediction.
# Matters:   a new ward, site or year is what groups meet after deployment. The patients of whom nothing is known have
#            the most certain predictions, and a rule such as "act where the interval is narrow" picks them first.
#            Compare the groups with those of the calibration before predicting.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    crepes==0.9.1 scikit-learn==1.9.1 "pandas<4" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
from crepes import ConformalRegressor

errors = np.random.default_rng(0).normal(size=104)
ward = np.array(["A"] * 100 + ["B"] * 4)
regressor = ConformalRegressor()
regressor.fit(errors, bins=ward)
seen, said = {}, {}
for name in "ABC":
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        interval = regressor.predict_int(np.zeros(1), bins=np.array([name]), confidence=0.95)
    seen[name], said[name] = interval[0].tolist(), [str(warning.message)[-90:] for warning in caught]
    print(f"ward {name}: {np.round(seen[name], 2).tolist()} {said[name]}")
assert seen["A"][0] == -seen["A"][1] and 1 < seen["A"][1] < 3, "the interval of a known ward changed"
assert seen["B"] == [-np.inf, np.inf], "the interval of a small ward changed"
assert seen["C"] == [0, 0], "the interval of an unknown ward changed"
assert not any("C" in text.split("bins:")[-1].split(";")[0] for text in said["C"]), "it now warns of the unknown ward"
PY
