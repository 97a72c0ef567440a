#!/usr/bin/env bash
# A haemoglobin of -11.5 is what DuckDB's fill() gives a month after the last measurement.
#
# Packages:  duckdb 2.0.1, pandas 3.1.1, polars 2.1.0
# Guess:     to interpolate is to fill between two measurements; before the first and after the last one a value stays
#            missing, in all three.
# Seen:      haemoglobin 8 on day 1 and 7 on day 3, missing on the days 0, 2, 10 and 40:
#              day                                   0     2     10     40
#              polars  interpolate, interpolate_by   null  7.5   null   null
#              pandas  interpolate()                 nan   7.5   7.0    7.0
#              duckdb  fill(value ORDER BY day)      8.5   7.5   3.5  -11.5
#            DuckDB draws the line through the two nearest measurements on, on both sides; pandas repeats the last
#            value without a limit, but not the first one backwards.
# Matters:   a grid of days or hours is filled this way before a model sees it. After the last measurement comes
#            discharge or death, so everybody's tail is invented, and DuckDB's days before the first one hold what was
#            measured later. In pandas write limit_area="inside"; in DuckDB keep fill() between two known values.
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
import polars as pl

table = pl.DataFrame({"day": [0, 1, 2, 3, 10, 40], "value": [None, 8.0, None, 7.0, None, None]})
frame = table.to_pandas().set_index("day")
filled = duckdb.sql("SELECT day, fill(value) OVER (ORDER BY day) FROM \"table\" ORDER BY day").fetchall()
columns = {
    "polars interpolate": table["value"].interpolate().to_list(),
    "polars interpolate_by": table.select(pl.col("value").interpolate_by("day"))["value"].to_list(),
    "pandas interpolate": frame["value"].interpolate(method="index").tolist(),
    "pandas inside": frame["value"].interpolate(method="index", limit_area="inside").tolist(),
    "duckdb fill": [value for _, value in filled],
}
print(f"{'day':22}", *table["day"])
for name, values in columns.items():
    columns[name] = [None if value is None or value != value else round(value, 4) for value in values]
    print(f"{name:22}", *columns[name])
between_only = [None, 8.0, 7.5, 7.0, None, None]
for name in ("polars interpolate", "polars interpolate_by", "pandas inside"):
    assert columns[name] == between_only, f"{name} no longer stops at the last measurement"
assert columns["pandas interpolate"] == [None, 8.0, 7.5, 7.0, 7.0, 7.0], "pandas no longer carries the last value on"
assert columns["duckdb fill"] == [8.5, 8.0, 7.5, 7.0, 3.5, -11.5], "duckdb no longer extrapolates"
PY
