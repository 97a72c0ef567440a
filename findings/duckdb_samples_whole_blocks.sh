#!/usr/bin/env bash
# A ten per cent sample of 1,000 patients has nobody or everybody in DuckDB; 50 of the dead are about five.
#
# Package:   duckdb 2.0.1
# Guess:     USING SAMPLE 10% takes each row with probability 0.1; USING SAMPLE 50 ROWS after WHERE takes 50 of the rows
#            that WHERE leaves.
# Seen:      1,000 patients, 100 of them dead; 200 samples:
#              FROM patients USING SAMPLE 10%           0 patients, or 1,000 (about one time in ten)
#              FROM patients TABLESAMPLE 10%            the same
#              FROM patients TABLESAMPLE bernoulli(10%) about 100 patients, now 77, now 130
#              WHERE dead USING SAMPLE 50 ROWS          0 to 11 patients, 5 on average
#            A percentage takes whole blocks of 2,048 rows; a number of rows is drawn before WHERE. (Both are in the
#            manual.)
# Matters:   controls, chart reviews and trial runs on a part of the data are drawn this way. Above 2,048 rows the
#            number looks right, but the sample is of neighbours in the file: one hospital, one year, or the same
#            patients' rows. Write bernoulli, and put WHERE into a subquery.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb

con = duckdb.connect()
con.execute("CREATE TABLE patients AS SELECT range AS id, range % 10 = 0 AS dead FROM range(1000)")
con.execute("CREATE TABLE many AS SELECT range AS id FROM range(204800)")


def sizes(query):
    return [con.execute(f"SELECT count(*) FROM ({query})").fetchone()[0] for _ in range(200)]


seen = {
    query: sizes(f"SELECT * FROM {query}")
    for query in (
        "patients USING SAMPLE 10%",
        "patients TABLESAMPLE 10%",
        "patients TABLESAMPLE bernoulli(10%)",
        "patients WHERE dead USING SAMPLE 50 ROWS",
        "(SELECT * FROM patients WHERE dead) USING SAMPLE 50 ROWS",
    )
}
for query, counts in seen.items():
    print(f"{query:57} {min(counts):4} to {max(counts):4}, mean {sum(counts) / 200:.0f}, sizes {len(set(counts))}")
whole, table, single, dead, inside = seen.values()
assert set(whole) == set(table) == {0, 1000} and 2 <= whole.count(1000) <= 50, "percentages take single rows now"
assert all(40 < count < 180 for count in single) and len(set(single)) > 10, "bernoulli changed"
assert max(dead) < 20 and 3 < sum(dead) / 200 < 7 and set(inside) == {50}, "the sample is drawn after WHERE now"
rows = con.execute("SELECT count(*), count(DISTINCT id // 2048) FROM (FROM many USING SAMPLE 10%)").fetchone()
print("204,800 rows, 10%: {} rows from {} blocks of 100".format(*rows))
assert rows[0] == 2048 * rows[1], "the sample is no longer made of whole blocks"
PY
