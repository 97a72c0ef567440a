#!/usr/bin/env bash
# code != "A" keeps patients without a code, or drops them, by how pandas read the file.
#
# Packages:  pandas 3.1.1, polars 2.1.0 (writes the file)
# Guess:     the text types of pandas 3 differ in speed and memory, and a filter gives the same rows with each.
# Seen:      one Parquet column with A, B and a missing code; rows where code != "A":
#              read_parquet()                                  2 (B and the missing one)
#              read_parquet(dtype_backend="numpy_nullable")    1 (B)
#              read_parquet(dtype_backend="pyarrow")           1 (B)
#              query("code != 'A'"), any of the three          2
#            A missing code is "not equal" for the type str and "unknown" for the types string and pyarrow; query
#            fills "unknown" with true. Polars and SQL give 1.
# Matters:   "everybody but those with the excluding code" is how exclusions are written. The cohort changes with an
#            option that is chosen for memory, and with query against square brackets. Say what missing means.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import pandas
import polars

polars.DataFrame({"code": ["A", "B", None]}).write_parquet("codes.parquet")
by_brackets, by_query = {}, {}
for backend in ("default", "numpy_nullable", "pyarrow"):
    options = {} if backend == "default" else {"dtype_backend": backend}
    frame = pandas.read_parquet("codes.parquet", **options)
    by_brackets[backend] = len(frame[frame["code"] != "A"])
    by_query[backend] = len(frame.query("code != 'A'"))
    print(f"{backend:15} {frame['code'].dtype!s:22} brackets {by_brackets[backend]} | query {by_query[backend]}")
by_polars = polars.read_parquet("codes.parquet").filter(polars.col("code") != "A").height
print("polars", by_polars)
assert list(by_brackets.values()) == [2, 1, 1], "filters on missing text changed"
assert list(by_query.values()) == [2, 2, 2] and by_polars == 1, "query or Polars changed"
PY
