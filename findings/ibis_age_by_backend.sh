#!/usr/bin/env bash
# A patient of 17.6 years is 17 or 18: one Ibis expression, two backends.
#
# Packages:  ibis-framework 12.0.0 with duckdb 2.0.1 and polars 2.1.0
# Guess:     Ibis gives an expression one meaning on every backend; a cast to an integer cuts off, round() is one rule.
# Seen:      ages 17.6, 64.5, 0.5:
#              age.cast("int64")  DuckDB 18 64 0 | Polars 17 64 0
#              age.round()        DuckDB 18 65 1 | Polars 18 64 0
#            DuckDB's cast rounds (a half to the even number) and its round takes a half up; Polars' cast cuts off and
#            its round takes a half to the even number. Ibis passes both on.
# Matters:   the age at index decides who is an adult and which age band a row falls into. A query that is tried on
#            Polars and run on DuckDB selects other patients. Write age.floor() before the cast.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    "ibis-framework[duckdb,polars]==12.0.0" duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1 pandas==3.1.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import ibis
import polars

ages = polars.DataFrame({"age": [17.6, 64.5, 0.5]})
ages.write_parquet("ages.parquet")
tables = {
    "duckdb": ibis.duckdb.connect().read_parquet("ages.parquet", table_name="ages"),
    "polars": ibis.polars.connect({"ages": ages}).table("ages"),
}
seen = {}
for name, table in tables.items():
    seen[name] = {
        "cast": table.age.cast("int64").execute().tolist(),
        "round": table.age.round().execute().tolist(),
        "floor": table.age.floor().cast("int64").execute().tolist(),
    }
    print(name, seen[name])
assert (seen["duckdb"]["cast"], seen["polars"]["cast"]) == ([18, 64, 0], [17, 64, 0]), "casts changed"
assert (seen["duckdb"]["round"], seen["polars"]["round"]) == ([18, 65, 1], [18, 64, 0]), "round changed"
assert seen["duckdb"]["floor"] == seen["polars"]["floor"] == [17, 64, 0], "floor changed"
PY
