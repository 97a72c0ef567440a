#!/usr/bin/env bash
# 03/04/2020 is 4 March in pandas and 3 April in Polars and DuckDB; one other row can turn it round.
#
# Packages:  pandas 3.1.1, polars 2.1.0, duckdb 2.0.1
# Guess:     libraries that recognise dates in CSV files read an unclear one the same way, or leave it as text.
# Seen:      a column in which every row is unclear, 03/04/2020:
#              pandas parse_dates 4 March | polars try_parse_dates 3 April | duckdb 3 April
#            The same row in a file that also has 05/16/2020, so that only month first fits:
#              pandas 4 March | polars "03/04/2020", text, for the whole column | duckdb 4 March
#            None warns.
# Matters:   a small extract, or one month of a large one, has only unclear rows. Dates then differ by up to eleven
#            months between libraries, and in DuckDB between two files of one export. State the format.
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

seen = {}
for name, second in {"unclear": "05/06/2020", "clear": "05/16/2020"}.items():
    with open(f"{name}.csv", "w") as file:
        file.write(f"patient,admitted\n1,03/04/2020\n2,{second}\n")
    seen[name] = [
        str(pandas.read_csv(f"{name}.csv", parse_dates=["admitted"])["admitted"][0].date()),
        str(polars.read_csv(f"{name}.csv", try_parse_dates=True)["admitted"][0]),
        str(duckdb.execute(f"SELECT admitted FROM '{name}.csv'").fetchone()[0]),
    ]
    print(f"{name:8} pandas {seen[name][0]} | polars {seen[name][1]} | duckdb {seen[name][2]}")
assert seen["unclear"] == ["2020-03-04", "2020-04-03", "2020-04-03"], "unclear dates are read differently"
assert seen["clear"] == ["2020-03-04", "03/04/2020", "2020-03-04"], "month-first dates are read differently"
PY
