#!/usr/bin/env bash
# On a ward of women sex is "false" in DuckDB.
#
# Package:   duckdb 2.0.1, against pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1
# Guess:     a column of F, or of T and F, in a CSV file is text; only true and false are booleans.
# Seen:      type and values of a column with
#                               duckdb                      pandas, Polars, Arrow
#              F, F             boolean, false, false       text, F F
#              F, M             text, F M                   text, F M
#              T, F             boolean, true, false        text, T F
#              no, yes          boolean, false, true        text, no yes
#              Y, N             text, Y N                   text, Y N
#            Two files read together, women only and women and men: F F F M. The women's alone, and the
#            tables put together after: false false F M, as text.
# Matters:   exports are cut by ward, by day or by study (gynaecology, breast cancer), and a part with one sex is
#            common; so are T for a test and F for a fasting sample. sex = 'F' finds nobody in that part, and no row
#            fails. State the types: read_csv(..., types={'sex': 'VARCHAR'}).
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from pathlib import Path

import duckdb
import pandas
import polars as pl
from pyarrow import csv

seen = {}
for values in ("FF", "FM", "TF", ("no", "yes"), "YN"):
    Path("rows.csv").write_text("id,flag\n" + "".join(f"{row},{value}\n" for row, value in enumerate(values)))
    database = [flag for (flag,) in duckdb.sql("SELECT flag FROM read_csv('rows.csv')").fetchall()]
    peers = [
        pandas.read_csv("rows.csv")["flag"].to_list(),
        pl.read_csv("rows.csv")["flag"].to_list(),
        csv.read_csv("rows.csv")["flag"].to_pylist(),
    ]
    print(*values, "| duckdb", *database, "| pandas, Polars, Arrow", *peers[0])
    assert peers == [list(values)] * 3, "pandas, Polars or Arrow changed"
    seen["".join(values)] = database
assert seen == {
    "FF": [False, False], "FM": ["F", "M"], "TF": [True, False], "noyes": [False, True], "YN": ["Y", "N"]
}, "duckdb reads these columns in another way"
Path("a.csv").write_text("id,sex\n1,F\n2,F\n")
Path("b.csv").write_text("id,sex\n3,F\n4,M\n")
con = duckdb.connect()
con.execute("CREATE TABLE a AS FROM 'a.csv'")
con.execute("CREATE TABLE b AS FROM 'b.csv'")
both = [sex for (sex,) in con.execute("SELECT sex FROM a UNION ALL SELECT sex FROM b").fetchall()]
together = [sex for (sex,) in con.execute("SELECT sex FROM read_csv(['a.csv', 'b.csv'])").fetchall()]
women = con.execute("SELECT count(*) FROM (FROM a UNION ALL FROM b) WHERE sex = 'F'").fetchone()[0]
print("two tables put together:", *both, "| two files read together:", *together, "| women found:", women)
assert both == ["false", "false", "F", "M"] and women == 1, "the tables put together changed"
assert together == ["F", "F", "F", "M"], "the files read together changed"
PY
