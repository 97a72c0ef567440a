#!/usr/bin/env bash
# NUMERIC, the type of laboratory values in OMOP, keeps three decimals in DuckDB.
#
# Packages:  duckdb 2.0.1, sqlglot 30.30.0, ibis-framework 12.0.0
# Guess:     NUMERIC without a precision holds any number of decimals, as in PostgreSQL; a value that does not
#            fit is refused; SQLGlot and Ibis, which know both dialects, keep the meaning.
# Seen:      DuckDB reads NUMERIC as DECIMAL(18,3) and rounds on insert, without a word:
#              0.00045 -> 0.000 | 0.0126 -> 0.013
#            SQLGlot turns PostgreSQL's NUMERIC into DuckDB's DECIMAL, the same type. Ibis writes
#            cast("decimal") as DECIMAL(18, 3).
# Matters:   OMOP's tables declare value_as_number, quantity and the ranges as NUMERIC. A value that is
#            small in its unit becomes 0 or loses digits when such a table is made in DuckDB; then "above
#            0.0004" selects nobody. DuckDB's manual names the default; few look it up for a type that they
#            know. Declare DOUBLE, or a DECIMAL with a scale.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1 sqlglot==30.30.0 "ibis-framework[duckdb]==12.0.0"
"$dir/venv/bin/python" - <<'PY'
import duckdb
import ibis
import sqlglot

ddl = "CREATE TABLE measurement (value_as_number NUMERIC)"
connection = duckdb.connect()
connection.execute(ddl)
connection.execute("INSERT INTO measurement VALUES (0.00045), (0.0126)")
kind = connection.execute("SELECT column_type FROM (DESCRIBE measurement)").fetchone()[0]
stored = [str(row[0]) for row in connection.execute("SELECT value_as_number FROM measurement").fetchall()]
print("DuckDB's type of NUMERIC:", kind, "| stored:", *stored)

translated = sqlglot.transpile(ddl, read="postgres", write="duckdb")[0]
print("SQLGlot, postgres to duckdb:", translated)
other = duckdb.connect()
other.execute(translated)
translated_kind = other.execute("SELECT column_type FROM (DESCRIBE measurement)").fetchone()[0]

table = ibis.table({"value_as_number": "string"}, name="measurement")
cast = ibis.to_sql(table.value_as_number.cast("decimal"), dialect="duckdb")
print("Ibis:", " ".join(str(cast).split()))

assert kind == translated_kind == "DECIMAL(18,3)", "DuckDB's NUMERIC or SQLGlot's translation changed"
assert stored == ["0.000", "0.013"], "the values are no longer rounded to three decimals"
assert "DECIMAL(18, 3)" in str(cast), "Ibis no longer casts to three decimals"
PY
