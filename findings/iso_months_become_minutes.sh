#!/usr/bin/env bash
# "P3M", three months, is three minutes in pandas and 90 days in pydantic.
#
# Packages:  pandas 3.1.1, pydantic 2.14.4, against isodate 0.7.2 and pendulum 3.3.0
# Guess:     a duration in ISO 8601 whose unit has no fixed length is refused by types that only count seconds; "P3M"
#            is months, because minutes come after a T ("PT3M").
# Seen:                             P3M          P18M          P1Y           PT3M
#              pandas Timedelta     3 minutes    18 minutes    refused       3 minutes   (to_timedelta the same)
#              pydantic timedelta   90 days      540 days      365 days      3 minutes
#              isodate, pendulum    3 months     18 months     1 year        3 minutes
#            (Users of pandas reported it in 2019 and 2023; it is still so.)
# Matters:   SDTM writes durations of treatments and adverse events in this form (EXDUR, AEDUR), and openEHR all of
#            them. pandas makes minutes out of months without a word and refuses the years beside them, so a column
#            that passes looks checked; 18 months are eight days short in pydantic. Parse with isodate and add the
#            result to a date.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 pydantic==2.14.4 isodate==0.7.2 pendulum==3.3.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
from datetime import timedelta

import isodate
import pandas
import pendulum
from pydantic import TypeAdapter

start = isodate.parse_date("2020-01-15")
read = {
    "pandas Timedelta": pandas.Timedelta,
    "pandas to_timedelta": lambda text: pandas.to_timedelta([text])[0],
    "pydantic timedelta": TypeAdapter(timedelta).validate_python,
    "isodate": isodate.parse_duration,
    "pendulum": pendulum.parse,
}
seen = {}
for name, parse in read.items():
    for text in ("P3M", "P18M", "P1Y", "PT3M"):
        try:
            seen[name, text] = parse(text)
        except ValueError as error:
            seen[name, text] = "refused"
        print(f"{name:20} {text:5} {seen[name, text]}")
for name in ("pandas Timedelta", "pandas to_timedelta"):
    minutes = [timedelta(minutes=3), timedelta(minutes=18), "refused", timedelta(minutes=3)]
    assert [seen[name, text] for text in ("P3M", "P18M", "P1Y", "PT3M")] == minutes, f"{name} changed"
days = [seen["pydantic timedelta", text].days for text in ("P3M", "P18M", "P1Y", "PT3M")]
assert days == [90, 540, 365, 0], "pydantic changed"
assert str(start + seen["isodate", "P3M"]) == "2020-04-15" and seen["pendulum", "P18M"].months == 18, "peers changed"
PY
