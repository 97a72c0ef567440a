#!/usr/bin/env bash
# pandas reads the zeros of a SAS transport file as 5.4e-79, so CNSR == 0 finds no event.
#
# Packages:  pandas 3.1.1, pyreadstat 1.3.7 (writes the file and reads it as the reference)
# Guess:     small whole numbers survive SAS transport (XPT): 0 is 0.
# Seen:      pandas.read_sas(format="xport") gives 5.397605346934028e-79 for 0; other numbers are exact.
#              rows with CNSR == 0: pandas 0 of 2 | pyreadstat 2 of 2
#            The zeros in the file are eight zero bytes, the true zero of the format. (Users of pandas reported
#            it years ago for survey files; it is still so.) Dates come as days since 1960, also with DATE9.
# Matters:   in ADaM's time-to-event table (ADTTE), CNSR 0 marks the event. A script that keeps CNSR == 0
#            has no event at all, and a cast to bool makes every row censored. Round the column, or read it
#            with pyreadstat.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1 pyreadstat==1.3.7
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import datetime

import pandas
import pyreadstat

dates = [datetime.date(2020, 1, 2), datetime.date(2020, 3, 1), datetime.date(2021, 1, 1)]
adtte = pandas.DataFrame({"CNSR": [0.0, 1.0, 0.0], "AVAL": [0.1, 250.0, 3.0], "ADT": dates})
pyreadstat.write_xport(adtte, "adtte.xpt", table_name="ADTTE", file_format_version=5)
assert bytes(8) in open("adtte.xpt", "rb").read()[-160:], "the file no longer holds a zero of zero bytes"

by_pandas = pandas.read_sas("adtte.xpt", format="xport")
by_pyreadstat, _ = pyreadstat.read_xport("adtte.xpt")
print(by_pandas)
print("rows with CNSR == 0: pandas", (by_pandas.CNSR == 0).sum(), "| pyreadstat", (by_pyreadstat.CNSR == 0).sum())
assert (by_pandas.CNSR == 0).sum() == 0 and by_pandas.CNSR[0] > 0, "pandas now reads zero"
assert (by_pyreadstat.CNSR == 0).sum() == 2, "pyreadstat no longer reads zero"
assert by_pandas.AVAL.tolist() == [0.1, 250.0, 3.0], "other numbers changed"
assert by_pandas.ADT[0] == 21916, "dates are no longer days since 1960"
PY
