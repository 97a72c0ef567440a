#!/usr/bin/env bash
# Charlson scores of pycomorb come in another order of patients at each call.
#
# Packages:  pycomorb 1.20261001.1, polars 2.1.0
# Guess:     one row a patient, in the order of the ids or of their first rows, and the same at each call.
# Seen:      64 patients with ids 1 to 64; ids of the first rows, by call:
#              40 24  1 58 ...     9 59 27 56 ...     31 56 17  7 ...
#            Each row is right. The groups of Polars come in no order, and nothing sorts them.
# Matters:   scores are put beside a table of one row a patient. To take the column (hstack, with_columns, .to_numpy())
#            gives everybody somebody else's score, the mean and the histogram are right, and the model finds that
#            comorbidity predicts nothing. A seed does not help, and no two runs agree. Join by the id.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pycomorb==1.20261001.1 polars==2.1.0
"$dir/venv/bin/python" - <<'PY'
import polars as pl
from pycomorb import comorbidity

ids = list(range(1, 65))
codes = ["I21" if number % 2 else "Z000" for number in ids]
frame = pl.DataFrame({"id": ids, "code": codes, "age": [65] * 64})
orders = []
for _ in range(5):
    scores = comorbidity(
        score="charlson", df=frame, id_col="id", code_col="code", age_col="age",
        icd_version="icd10", implementation="quan",
    )
    order = scores["id"].to_list()
    orders.append(order)
    right = scores.select(((pl.col("id") % 2) == pl.col("Charlson Comorbidity Index")).all()).item()
    print("ids", *order[:8], "... each row right:", right)
    assert right and sorted(order) == ids, "the scores changed"
assert all(order != ids for order in orders), "rows come in the order of the ids now"
assert len(set(map(tuple, orders))) > 1, "the order is one and the same now"
PY
