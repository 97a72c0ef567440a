#!/usr/bin/env bash
# The same eight predictions have an AUROC of 0.63 or 0.81 in torchmetrics, by how they fall into batches.
#
# Packages:  torchmetrics 1.9.0, torch 2.13.0 (a large download)
# Guess:     BinaryAUROC depends on the order of the scores only, and on all of them together.
# Seen:      eight logits, five of them between 0 and 1, given
#              in one batch                           0.8125
#              in two batches of four, first order    0.6250
#              in two batches of four, second order   0.8125
#            A batch with a value outside 0 to 1 goes through the sigmoid, a batch without one stays as it is; both
#            kinds are then ranked together. (Users reported it from 2023 on; it is still so.)
# Matters:   log hazards and other scores around 0 fall between 0 and 1 by chance in small batches, in the last batch,
#            or where a model is new. Early stopping then follows the shuffle. Average precision and the calibration
#            error change in the same way. Apply the sigmoid yourself.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    torchmetrics==1.9.0 torch==2.13.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import torch
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, BinaryCalibrationError

logits = torch.tensor([0.2, 0.9, 0.1, 0.8, 2.0, -1.0, 1.5, -3.0])
died = torch.tensor([0, 0, 1, 1, 1, 0, 1, 0])


def value(kind, scores, *batches):
    """The metric of the rows, given in these batches."""
    metric = kind()
    for rows in batches:
        metric.update(scores[rows], died[rows])
    return round(float(metric.compute()), 4)


first, second = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]
for kind in (BinaryAUROC, BinaryAveragePrecision, BinaryCalibrationError):
    seen = [value(kind, logits, *batches) for batches in ([list(range(8))], first, second)]
    print(f"{kind.__name__:24} one batch {seen[0]:.4f} | two batches {seen[1]:.4f}, or {seen[2]:.4f}")
    assert seen[0] == seen[2] != seen[1], f"{kind.__name__} changed"
    assert value(kind, logits.sigmoid(), *first) == seen[0], f"{kind.__name__} changed with the sigmoid before it"
    assert kind is not BinaryAUROC or seen == [0.8125, 0.625, 0.8125], seen
PY
