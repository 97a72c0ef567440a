#!/usr/bin/env bash
# Two fewer admissions than before are 4,294,967,294 more in Polars, and ten thousand platelet counts add up below 0.
#
# Package:   polars 2.1.0, against pandas 3.1.1 and duckdb 2.0.1
# Guess:     a count is a number that can be subtracted, and a sum over 32-bit whole numbers has room, as in pandas and
#            DuckDB; Polars' manual says that it widens small types for sums.
# Seen:      one patient, one admission before the index day and three after; after less before, and before less after:
#              polars  len() - len()       2   4294967294
#              duckdb  count() - count()   2           -2
#            10,000 platelet counts of 250,000 per microlitre as Int32; sum:
#              polars  sum, sum by group, streaming, SQL   -1794967296    (8 and 16 bits are widened, 32 bits are not)
#              pandas, duckdb                               2500000000
#            The mean is right in all three.
# Matters:   change in use, net events and unmatched rows are differences of counts, and 32 bits are a usual type of
#            value columns in Parquet files. The first number is absurd and is found; the mean over patients of a ratio
#            or of a standardised column that holds some of them is not. Cast to Int64 before subtracting and adding.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    polars==2.1.0 pandas==3.1.1 duckdb==2.0.1 pyarrow==26.0.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import polars as pl

visits = pl.DataFrame({"patient": [1, 1, 1, 1], "day": [-20, 5, 9, 30]})
before, after = (pl.col("day").filter(pl.col("day") < 0).len(), pl.col("day").filter(pl.col("day") >= 0).len())
polars = visits.group_by("patient").agg(more=after - before, fewer=before - after).row(0)[1:]
count = "count(*) FILTER (day {} 0)"
query = f"SELECT {count.format('>=')} - {count.format('<')}, {count.format('<')} - {count.format('>=')} FROM visits"
database = duckdb.sql(query).fetchall()[0]
print("after less before, before less after: polars", *polars, "| duckdb", *database)
assert polars == (2, 2**32 - 2) and database == (2, -2), "differences of counts changed"
results = pl.DataFrame({"patient": [1] * 10_000, "platelets": pl.Series([250_000] * 10_000, dtype=pl.Int32)})
total = pl.col("platelets").sum()
sums = {
    "polars sum": results.select(total).item(),
    "polars by group": results.group_by("patient").agg(total)["platelets"].item(),
    "polars streaming": results.lazy().select(total).collect(engine="streaming").item(),
    "polars SQL": results.sql("SELECT sum(platelets) FROM self").item(),
    "polars, 16 bits": pl.Series([25_000] * 100_000, dtype=pl.Int16).sum(),
    "pandas": int(results.to_pandas()["platelets"].sum()),
    "duckdb": duckdb.sql("SELECT sum(platelets) FROM results").fetchall()[0][0],
}
for name, value in sums.items():
    print(f"{name:17} {value}")
assert results["platelets"].mean() == 250_000, "the mean changed"
assert list(sums.values()) == [2_500_000_000 - 2**32] * 4 + [2_500_000_000] * 3, "sums changed"
PY
