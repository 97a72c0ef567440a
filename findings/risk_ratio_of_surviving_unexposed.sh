#!/usr/bin/env bash
# A risk ratio of 2.00 is 1.33 in statsmodels for columns of 0 and 1, and 0.32 or 1.00 for columns of words.
#
# Package:   statsmodels 0.15.0
# Guess:     Table2x2.from_data(frame of exposure and outcome) compares the risk of the outcome among the exposed with
#            that among the unexposed.
# Seen:      40 of 100 exposed died, 20 of 100 unexposed: risk ratio 2.00, odds ratio 2.67:
#              0 and 1, or no and yes, in both columns   risk ratio 1.33   odds ratio 2.67
#              control/treated and alive/dead            risk ratio 0.32   odds ratio 0.006
#              exposed/unexposed and alive/died          risk ratio 1.00   odds ratio 1.00
#            Rows and columns are sorted, and the first row's risk of the first column is compared with the second's:
#            to survive if unexposed. If rows and columns have different names, the table is first filled up to the
#            four names on both sides, and the numbers come from its corner.
# Matters:   1.33 looks like a risk ratio and is another one (the odds ratio does not tell, as it is the same both
#            ways). With words both numbers are meaningless and no warning is given; only the summary with its
#            intervals stops. A pandas crosstab given to Table2x2 does the same. Give the numbers as an array, exposed
#            and died first.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check statsmodels==0.15.0 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
from statsmodels.stats.contingency_tables import Table2x2

exposed = np.repeat([1, 1, 0, 0], [40, 60, 20, 80])
died = np.repeat([1, 0, 1, 0], [40, 60, 20, 80])
words = {
    "0, 1 | 0, 1": ([0, 1], [0, 1]),
    "no, yes | no, yes": (["no", "yes"], ["no", "yes"]),
    "control, treated | alive, dead": (["control", "treated"], ["alive", "dead"]),
    "unexposed, exposed | alive, died": (["unexposed", "exposed"], ["alive", "died"]),
}
seen = {}
for name, (rows, columns) in words.items():
    frame = pandas.DataFrame({"exposed": np.array(rows)[exposed], "died": np.array(columns)[died]})
    table = Table2x2.from_data(frame)
    crossed = Table2x2(pandas.crosstab(frame["exposed"], frame["died"]))
    seen[name] = round(float(table.riskratio), 2), round(float(table.oddsratio), 3)
    print(f"{name:33} risk ratio {seen[name][0]:.2f} | odds ratio {seen[name][1]:.3f}")
    assert np.isclose(table.riskratio, crossed.riskratio), "from_data and crosstab differ"
    assert np.isclose(table.oddsratio, crossed.oddsratio), "from_data and crosstab differ"
array = Table2x2(np.array([[40, 60], [20, 80]]))
print(f"{'array, exposed and died first':33} risk ratio {array.riskratio:.2f} | odds ratio {array.oddsratio:.3f}")
assert round(float(array.riskratio), 2) == 2.0 and round(float(array.oddsratio), 2) == 2.67, "the array changed"
assert list(seen.values()) == [(1.33, 2.667), (1.33, 2.667), (0.32, 0.006), (1.0, 1.0)], "from_data changed"
PY
