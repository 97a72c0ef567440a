#!/usr/bin/env bash
# safetensors stores a transposed numpy array with its numbers in other places, and reads it back without a word.
#
# Packages:  safetensors 0.8.0, numpy 2
# Guess:     save_file keeps an array as it is, or refuses one that is not contiguous, as its torch side does.
# Seen:      safetensors.numpy, array 0 1 2 / 3 4 5 transposed, so rows (0 3) (1 4) (2 5):
#              read back (0 1) (2 3) (4 5), the shape of one and the order of the other
#            Every second number of 0 to 5 (0 2 4) is read back as 0 1 2. A copy in C order is kept.
#            safetensors.torch refuses such a tensor with an error.
# Matters:   arrays in Fortran order come from pandas' to_numpy, from scikit-learn, from .T and from Arrow. Weights,
#            scales or risks are shuffled in the file, the shape is right, and no check of the format notices.
#            Write numpy.ascontiguousarray(array) before saving.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    safetensors==0.8.0 "numpy>=2,<3" pandas==3.1.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import pandas
from safetensors.numpy import load_file, save_file

frame = pandas.DataFrame({"risk": [0.1, 0.2, 0.3], "weight": [1.0, 2.0, 3.0]})
arrays = {
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "every second": np.arange(6.0)[::2],
    "pandas": frame.to_numpy(),
    "copy": np.ascontiguousarray(np.arange(6.0).reshape(2, 3).T),
}
same = {}
for name, array in arrays.items():
    save_file({"array": array}, "arrays.safetensors")
    back = load_file("arrays.safetensors")["array"]
    same[name] = back.shape == array.shape and bool((back == array).all())
    print(f"{name:13}", array.tolist(), "->", "the same" if same[name] else back.tolist())
assert list(same.values()) == [False, False, False, True], "arrays that are not contiguous are stored differently"
PY
