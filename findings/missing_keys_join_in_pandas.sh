#!/usr/bin/env bash
# Rows without an encounter join each other in pandas, and vanish from its groups.
#
# Packages:  pandas 3.1.1, against polars 2.1.0 and duckdb 2.0.1
# Guess:     a missing key equals nothing, so rows without an encounter id join no row (as in SQL), and a group by
#            the encounter keeps them in a group of their own (as in SQL).
# Seen:      two diagnoses of the three have no encounter, one of the two stays has none:
#              join      pandas 3 rows (2 of them by "missing = missing"), also with Int64 | polars 1 | duckdb 1
#              group by  pandas 1 group | polars 2 | duckdb 2
# Matters:   encounter ids are missing for outpatient rows everywhere. 1,000 rows without an id on each side make a
#            million joined rows, each with another patient's stay; and counts by encounter lose these rows.
#            Drop the missing keys before merge; write groupby(..., dropna=False).
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

diagnoses = pandas.DataFrame({"encounter": [1, None, None], "code": ["A", "B", "C"]})
stays = pandas.DataFrame({"encounter": [1, None], "ward": ["north", "south"]})
rows, ends = polars.from_pandas(diagnoses), polars.from_pandas(stays)
whole = {"encounter": "Int64"}
joined = {
    "pandas": len(diagnoses.merge(stays, on="encounter")),
    "pandas, Int64": len(diagnoses.astype(whole).merge(stays.astype(whole), on="encounter")),
    "polars": rows.join(ends, on="encounter").height,
    "duckdb": duckdb.execute("SELECT count(*) FROM rows JOIN ends USING (encounter)").fetchone()[0],
}
groups = {
    "pandas": diagnoses.groupby("encounter").ngroups,
    "polars": rows.group_by("encounter").len().height,
    "duckdb": len(duckdb.execute("SELECT encounter FROM rows GROUP BY encounter").fetchall()),
}
print("joined rows:", joined)
print("groups:", groups)
assert list(joined.values()) == [3, 3, 1, 1], "joins by a missing key changed"
assert list(groups.values()) == [1, 2, 2], "groups of a missing key changed"
PY
