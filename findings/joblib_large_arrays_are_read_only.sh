#!/usr/bin/env bash
# A function that works on 10,000 patients in joblib fails on 200,000, because large arrays come read-only.
#
# Packages:  joblib 1.6.0, numpy 2
# Guess:     arguments reach a worker as copies of its own, whatever their size.
# Seen:      Parallel(n_jobs=2) of a function that centres its array in place (a -= a.mean()):
#              10,000 numbers (80 kB)   works
#              200,000 numbers (1.6 MB) ValueError: output array is read-only
#              n_jobs=1                 works at both sizes, and changes the caller's array
#            Arrays above max_nbytes (1 MB) go through a file that is mapped read-only.
# Matters:   bootstraps and cross-validation over patients are run this way, tested on a sample, and fail on the whole;
#            without workers they pass and spoil the data for the next call. Copy first, or give mmap_mode="c".
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    joblib==1.6.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import joblib
import numpy as np


def centre(values):
    values -= values.mean()
    return float(values.sum())


def outcome(size, **options):
    values = np.ones(size)
    try:
        joblib.Parallel(**options)([joblib.delayed(centre)(values)])
    except ValueError as error:
        return str(error)
    return "the caller's array is changed" if values[0] == 0 else "works"


seen = {
    "10,000, two workers": outcome(10_000, n_jobs=2),
    "200,000, two workers": outcome(200_000, n_jobs=2),
    "200,000, mmap_mode='c'": outcome(200_000, n_jobs=2, mmap_mode="c"),
    "200,000, no workers": outcome(200_000, n_jobs=1),
}
for name, what in seen.items():
    print(f"{name:23} {what}")
small, large, copied, alone = seen.values()
assert small == copied == "works" and "read-only" in large, "arrays reach workers differently"
assert alone == "the caller's array is changed", "without workers the array is now copied"
PY
