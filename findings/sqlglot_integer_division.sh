#!/usr/bin/env bash
# SQLGlot leaves PostgreSQL's division of whole numbers as it is, and DuckDB gives fractions.
#
# Packages:  sqlglot 30.30.0, duckdb 2.0.1
# Guess:     SQLGlot, which knows that PostgreSQL's / divides whole numbers without rest and DuckDB's does not, writes
#            7 / 2 for DuckDB so that it stays 3.
# Seen:      transpile("SELECT 7 / 2", read="postgres", write="duckdb") gives SELECT 7 / 2, which is 3.5; the decade of
#            birth, 1957 / 10 * 10, becomes 1957 instead of 1950. Only after annotate_types, for columns with a
#            schema, is the rest cut off: CAST(TRUNC(1957 / 10) AS BIGINT) * 10.
# Matters:   age bands and decades of birth are written this way in queries for OMOP on PostgreSQL. On DuckDB each year
#            is a band of its own. Run annotate_types with the schema, or write floor().
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    sqlglot==30.30.0 duckdb==2.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import sqlglot
from sqlglot.optimizer.annotate_types import annotate_types

query = "SELECT 7 / 2, 1957 / 10 * 10"
plain = sqlglot.transpile(query, read="postgres", write="duckdb")[0]
typed = annotate_types(sqlglot.parse_one(query, read="postgres"), dialect="postgres").sql("duckdb")
seen = {}
for name, text in {"transpile": plain, "with types": typed}.items():
    seen[name] = tuple(float(one) for one in duckdb.execute(text).fetchone())
    print(f"{name:11} {text} -> {seen[name]}")
assert seen["transpile"] == (3.5, 1957.0), "SQLGlot or DuckDB changed the division"
assert seen["with types"] == (3.0, 1950.0), "the division with types changed"
PY
