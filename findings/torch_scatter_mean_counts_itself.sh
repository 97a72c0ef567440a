#!/usr/bin/env bash
# The mean of a patient's values by scatter_reduce is too small: the zeros that it writes into count as values.
#
# Package:   torch 2.13.0 (a large download)
# Guess:     zeros(n).scatter_reduce(0, patient, value, "mean") is each patient's mean, and "amax" each one's largest.
# Seen:      values 4 and 8 of one patient, 9 of another, and -4 and -8 for the largest:
#              mean     4.0 and 4.5    (include_self=False: 6 and 9)
#              largest  0              (include_self=False: -4)
#            The start value is one of the values unless include_self=False. index_reduce does the same.
# Matters:   pooling of ragged records is written this way. Patients with few rows are shrunk most (by half with one,
#            by 1 % with a hundred), so the summary mixes up level and length of record; largest log risks below 0
#            become 0. The manual says it; the default surprises.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import torch

warnings.simplefilter("ignore")
patient, value = torch.tensor([0, 0, 1]), torch.tensor([4.0, 8.0, 9.0])
mean, largest = {}, {}
for include_self in (True, False):
    options = {"include_self": include_self}
    mean[include_self] = torch.zeros(2).scatter_reduce(0, patient, value, "mean", **options).tolist()
    largest[include_self] = torch.zeros(2).scatter_reduce(0, patient, -value, "amax", **options).tolist()
    print(f"include_self={include_self!s:5} mean {mean[include_self]} | largest {largest[include_self]}")
default = torch.zeros(2).scatter_reduce(0, patient, value, "mean").tolist()
by_index = torch.zeros(2).index_reduce(0, patient, value, "mean").tolist()
assert default == by_index == mean[True] == [4.0, 4.5] and mean[False] == [6.0, 9.0], "the mean changed"
assert largest == {True: [0.0, 0.0], False: [-4.0, -9.0]}, "the largest changed"
PY
