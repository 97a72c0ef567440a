#!/usr/bin/env bash
# A stay of 26 hours and a half in an SPSS or SAS file is 02:30 in pandas and pyreadstat.
#
# Packages:  pyreadstat 1.3.7, pandas 3.1.1
# Guess:     a value with a TIME format is a number of seconds, as SPSS and SAS mean it, so 95,400 s is 26.5 hours.
# Seen:      lengths of stay of 5.5, 26.5 and 50 hours, written as seconds with a time format, and read:
#              pyreadstat  sav, TIME8 (hours)           05:30  02:30  02:00
#              pyreadstat  sav, DTIME12 (days, hours)   05:30  02:30  02:00
#              pyreadstat  SAS transport, TIME8         05:30  02:30  02:00
#              pandas      read_spss, either            05:30  02:30  02:00
#              with disable_datetime_conversion=True    19800  95400  180000
#            They come as times of the day, and whole days are lost.
# Matters:   SPSS and SAS show 26:30 for such a column, and length of stay, time to surgery and duration of ventilation
#            are kept in it. A long stay looks like a short one, most of all in the patients who stay longest, and
#            nothing tells. Read with disable_datetime_conversion=True.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pyreadstat==1.3.7 pandas==3.1.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from datetime import time

import pandas
import pyreadstat

stays = pandas.DataFrame({"stay": [5.5 * 3600, 26.5 * 3600, 50 * 3600.0]})
seen = {}
for kind in ("TIME8", "DTIME12"):
    pyreadstat.write_sav(stays, "stays.sav", variable_format={"stay": kind})
    seen[f"pyreadstat, sav, {kind}"] = pyreadstat.read_sav("stays.sav")[0]["stay"]
    seen[f"pandas, sav, {kind}"] = pandas.read_spss("stays.sav")["stay"]
seconds = pyreadstat.read_sav("stays.sav", disable_datetime_conversion=True)[0]["stay"]
pyreadstat.write_xport(stays, "stays.xpt", variable_format={"stay": "TIME8"})
seen["pyreadstat, SAS transport, TIME8"] = pyreadstat.read_xport("stays.xpt")[0]["stay"]
for name, column in seen.items():
    print(f"{name:33}", *column)
    assert list(column) == [time(5, 30), time(2, 30), time(2, 0)], f"{name} changed"
print("without conversion               ", *seconds)
assert list(seconds) == list(stays["stay"]), "the seconds are not in the file"
PY
