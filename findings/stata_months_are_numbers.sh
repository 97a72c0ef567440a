#!/usr/bin/env bash
# March 2020 in a Stata file is a date in pandas and the number 722 in pyreadstat.
#
# Packages:  pyreadstat 1.3.7, pandas 3.1.1 (writes the file and reads it as the reference)
# Guess:     a date format is a date format: monthly, quarterly and yearly dates come as dates, as daily ones do.
# Seen:      2020-03-01 written as a daily (%td) and a monthly (%tm) date, a quarter (%tq), a half-year, a year:
#              pandas      2020-03-01 | 2020-03-01 | 2020-01-01 | 2020-01-01 | 2020-01-01
#              pyreadstat  2020-03-01 | 722        | 240        | 120        | 2020
# Matters:   months are how registries blur dates. 722 read as days since 1960 (Stata's and SAS's epoch) is
#            23 December 1961, and a follow-up of 20 months becomes 20 days. Look at the format of the column
#            (metadata.original_variable_types) before you use the numbers.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 pyreadstat==1.3.7 pyarrow==26.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import pandas
import pyreadstat

dates = pandas.DataFrame({"date": pandas.to_datetime(["2020-03-01"]), "patient": [1]})
by_pandas, by_pyreadstat = {}, {}
for kind in ("td", "tm", "tq", "th", "ty"):
    dates.to_stata(f"{kind}.dta", convert_dates={"date": kind}, write_index=False)
    by_pandas[kind] = str(pandas.read_stata(f"{kind}.dta")["date"][0].date())
    by_pyreadstat[kind] = str(pyreadstat.read_dta(f"{kind}.dta")[0]["date"][0])
    print(f"%{kind}  pandas {by_pandas[kind]} | pyreadstat {by_pyreadstat[kind]}")
assert list(by_pandas.values()) == ["2020-03-01"] * 2 + ["2020-01-01"] * 3, "pandas changed"
assert list(by_pyreadstat.values()) == ["2020-03-01", "722.0", "240.0", "120.0", "2020.0"], "pyreadstat changed"
PY
