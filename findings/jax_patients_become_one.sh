#!/usr/bin/env bash
# Three patients become one in JAX: 64-bit ids are cut to their last 32 bits.
#
# Package:   jax 0.10.2
# Guess:     an array of 64-bit ids is kept, or is refused because JAX works in 32 bits (a single number that does not
#            fit is refused), or at least gives a warning.
# Seen:      numpy's ids 4294967297, 1 and 9007199254740993 as a JAX array: 1, 1, 1. No warning, none either from
#            segment_sum over them, which adds all three patients up.
#              jnp.asarray([4294967297])                       refused ("out of bounds for int32")
#              jnp.asarray(ids, dtype="int64")                 1 1 1, with a warning
#              times in microseconds since 1970 (int64)        cut as well, some below 0
#            With the option jax_enable_x64 all are kept. (That 32 bits are the default is in the manual.)
# Matters:   hashed ids and times since 1970 have 64 bits, and both go into JAX beside the features, for groups, random
#            effects and gaps. Sums by patient mix people, and order by time is lost. Number the patients 0, 1, 2, ...
#            and subtract the index time before the data enter.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    jax==0.10.2 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import jax
import jax.numpy as jnp
import numpy as np

ids = np.array([4294967297, 1, 9007199254740993])
with warnings.catch_warnings():
    warnings.simplefilter("error")
    array = jnp.asarray(ids)
    counts = jax.ops.segment_sum(jnp.ones(3), ids, num_segments=2)
    moments = jnp.asarray(np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[us]").astype("int64"))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    asked = jnp.asarray(ids, dtype="int64")
try:
    jnp.asarray([4294967297])
    refused = False
except OverflowError as error:
    refused = True
    print("a single number:", error)
print("ids", *ids.tolist(), "become", *array.tolist(), "| sums by id 0 and 1:", *counts.tolist())
print("1 and 2 January 2020 in microseconds:", *moments.tolist())
print("int64 asked for:", *asked.tolist(), "|", len(said), "warning")
assert array.tolist() == asked.tolist() == [1, 1, 1] and counts.tolist() == [0, 3], "ids are kept now"
assert refused and len(said) == 1, "single numbers or int64 are treated in another way now"
assert moments.tolist()[1] - moments.tolist()[0] != 86_400_000_000, "times are kept now"
jax.config.update("jax_enable_x64", True)
assert jnp.asarray(ids).tolist() == ids.tolist(), "jax_enable_x64 changed"
PY
