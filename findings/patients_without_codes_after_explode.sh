#!/usr/bin/env bash
# Patients with an empty list of codes vanish from Polars' explode, stay in its SQL, and vanish from DuckDB's unnest.
#
# Packages:  polars 2.1.0, duckdb 2.0.1, pandas 3.1.1, ibis-framework 12.0.0
# Guess:     to write a list of codes as rows leaves a patient without codes as one row with a missing code, or
#            drops the patient, alike for an empty and a missing list.
# Seen:      three patients: codes A and B; an empty list; no list (null). Who is left:
#              pandas explode                   1 2 3
#              polars explode                   1 3
#              polars SQL, unnest(codes)        1 2 3
#              duckdb, Ibis on duckdb: unnest   1
#            (Polars 1.33.1 kept all three.)
# Matters:   denominators. The share of patients with a code, the number at risk and the controls of a cohort are
#            counted after this step, and who has no diagnosis is a healthy patient, not a missing one. Whether "none"
#            was stored as an empty list or as null decides in Polars. Write explode(..., empty_as_null=True), and in
#            DuckDB a left join on unnest.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    "ibis-framework[duckdb]==12.0.0" pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import ibis
import polars as pl

patients = pl.DataFrame({"id": [1, 2, 3], "codes": [["A", "B"], [], None]})
unnested = ibis.memtable(patients).mutate(code=ibis._.codes.unnest()).execute()
left_join = "SELECT id FROM patients LEFT JOIN unnest(patients.codes) list(code) ON true"
rows = {
    "pandas explode": patients.to_pandas().explode("codes")["id"].tolist(),
    "polars explode": patients.explode("codes")["id"].to_list(),
    "polars explode, empty_as_null": patients.explode("codes", empty_as_null=True)["id"].to_list(),
    "polars SQL": pl.sql("SELECT id, unnest(codes) AS code FROM patients", eager=True)["id"].to_list(),
    "duckdb unnest": [i for i, _ in duckdb.sql("SELECT id, unnest(codes) FROM patients").fetchall()],
    "ibis on duckdb": unnested["id"].tolist(),
    "duckdb left join": [i for (i,) in duckdb.sql(left_join).fetchall()],
}
left = {name: sorted(set(ids)) for name, ids in rows.items()}
for name, ids in left.items():
    print(f"{name:30}", *ids)
everybody = ("pandas explode", "polars explode, empty_as_null", "polars SQL", "duckdb left join")
assert all(left[name] == [1, 2, 3] for name in everybody), "somebody is missing where nobody was"
assert left["polars explode"] == [1, 3], "polars' explode no longer drops the empty list only"
assert left["duckdb unnest"] == left["ibis on duckdb"] == [1], "duckdb no longer drops both"
PY
