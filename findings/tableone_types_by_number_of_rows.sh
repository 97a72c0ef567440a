#!/usr/bin/env bash
# Creatinine has a mean in 300 patients and is a list of categories in 10,000, and its p-value another test, in tableone.
#
# Package:   tableone 0.9.6
# Guess:     a column of numbers is a number, and one of a few codes a category, whatever the number of rows.
# Seen:      the same draw of creatinine (one decimal) and of a stage 0, 1 or 2, in two arms:
#                             creatinine           stage               p-value of creatinine
#              300 patients   1.0 (0.2)            1.0 (0.8)           t-test
#              10,000         n (%) of 15 values   n (%) of 0, 1, 2    chi-squared test
#            A column is a category if it has fewer different values than 0.5 % of the rows. (The manual advises to
#            name the types.)
# Matters:   laboratory values are reported with one or two digits. The same script prints another table, with another
#            test, for the pilot and the full study, or for the training set and the test set; and a stage, or a death
#            of 0 and 1, has a mean in the small one. Name the types: categorical=[...], continuous=[...].
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check tableone==0.9.6 pandas==2.3.3 "numpy>=2,<3"
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import pandas
from tableone import TableOne

seen = {}
for patients in (300, 10_000):
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "creatinine": random.normal(1.0, 0.2, patients).clip(0.4, 2).round(1),
            "stage": random.integers(0, 3, patients),
            "arm": random.choice(["a", "b"], patients),
        }
    )
    table = TableOne(frame, groupby="arm", pval=True, htest_name=True).tableone
    rows = list(dict.fromkeys(name for name, _ in table.index))
    tests = table[("Grouped by arm", "Test")]
    seen[patients] = rows, next(test for (name, _), test in tests.items() if name.startswith("creatinine"))
    print(patients, *rows, "| test of creatinine:", seen[patients][1])
assert seen[300][0] == ["n", "creatinine, mean (SD)", "stage, mean (SD)"], "types in small tables changed"
assert seen[10_000][0] == ["n", "creatinine, n (%)", "stage, n (%)"], "types in large tables changed"
assert "T-test" in seen[300][1] and "Chi" in seen[10_000][1], "the tests changed"
PY
