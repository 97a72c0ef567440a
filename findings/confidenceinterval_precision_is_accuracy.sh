#!/usr/bin/env bash
# Precision, recall and F1 are one number, the accuracy, in confidenceinterval, unless told otherwise.
#
# Packages:  confidenceinterval 1.0.5, against scikit-learn 1.6.1
# Guess:     precision_score(y, p) of labels 0 and 1 is that of the label 1, as in scikit-learn, whose names it takes.
# Seen:      100 patients, 10 of them dead; 12 are predicted dead, 6 rightly:
#                                 precision   recall       F1
#              scikit-learn            0.50     0.60     0.55
#              confidenceinterval      0.90     0.90     0.90, each with the interval 0.84 to 0.96
#            The default is average="micro", which counts both labels: the share of right predictions. With
#            average="binary" (and method="wilson" for the first two) all three are scikit-learn's.
# Matters:   where few die everybody is right about the survivors, so a model that finds hardly a death has an F1 of
#            0.9 in the table, and an interval that looks tight. Write average="binary".
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    confidenceinterval==1.0.5 scikit-learn==1.6.1 "numpy>=2,<3" "pandas<3"
export OMP_NUM_THREADS=1
"$dir/venv/bin/python" - <<'PY'
import confidenceinterval
from sklearn import metrics

died = [1] * 10 + [0] * 90
predicted = [1] * 6 + [0] * 4 + [1] * 6 + [0] * 84
names = ("precision_score", "recall_score", "f1_score")
wanted = [round(getattr(metrics, name)(died, predicted), 2) for name in names]
default, binary = [], []
for name in names:
    metric = getattr(confidenceinterval, name)
    value, (low, high) = metric(died, predicted)
    default.append((round(float(value), 2), round(float(low), 2), round(float(high), 2)))
    binary.append(round(float(metric(died, predicted, average="binary", method="wilson")[0]), 2))
print("scikit-learn      ", *wanted)
print("confidenceinterval", *default)
print('average="binary"  ', *binary)
assert wanted == [0.5, 0.6, 0.55] == binary, "scikit-learn or average='binary' changed"
assert default == [(0.9, 0.84, 0.96)] * 3, "the default changed"
PY
