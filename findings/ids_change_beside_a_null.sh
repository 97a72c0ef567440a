#!/usr/bin/env bash
# One missing id changes the others: 64-bit ids from a Parquet file lose their last digits in pandas.
#
# Packages:  pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1
# Guess:     a column of 64-bit ids with a null is read as whole numbers (pandas has Int64), or refused.
# Seen:      ids 9007199254740993 and 9007199254740995, and one null:
#              pandas.read_parquet, Polars to_pandas, Arrow to_pandas   9007199254740992 9007199254740996 (floats)
#              DuckDB df(), read_parquet(dtype_backend="pyarrow")       9007199254740993 9007199254740995
#            Without the null every way keeps them.
# Matters:   hashed ids of patients and encounters have 64 bits, and encounter ids are null in some rows. Two ids can
#            become one, and none equals the id in another file any more, so joins lose rows in silence. Which shard
#            has a null decides. Read with dtype_backend="pyarrow".
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import pandas
import polars

ids = [9007199254740993, 9007199254740995]
whole, table = polars.DataFrame({"id": ids}), polars.DataFrame({"id": [*ids, None]})
whole.write_parquet("whole.parquet")
table.write_parquet("ids.parquet")
seen = {
    "pandas": pandas.read_parquet("ids.parquet"),
    "polars": table.to_pandas(),
    "arrow": table.to_arrow().to_pandas(),
    "duckdb": duckdb.execute("SELECT id FROM 'ids.parquet'").df(),
    "pandas, pyarrow": pandas.read_parquet("ids.parquet", dtype_backend="pyarrow"),
}
kept = {}
for name, frame in seen.items():
    kept[name] = [int(one) for one in frame["id"][:2]]
    print(f"{name:16} {frame['id'].dtype!s:16}", *kept[name])
changed = [9007199254740992, 9007199254740996]
assert kept["pandas"] == kept["polars"] == kept["arrow"] == changed, "ids beside a null are now kept"
assert kept["duckdb"] == kept["pandas, pyarrow"] == ids, "the ways that kept ids changed"
assert pandas.read_parquet("whole.parquet")["id"].tolist() == ids, "ids without a null changed"
PY
