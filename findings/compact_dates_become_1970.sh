#!/usr/bin/env bash
# "20200315" is 22 August 1970 in a pydantic model, and "1980" is 1 January 1970.
#
# Packages:  pydantic 2.14.4, against msgspec 0.22.0 and Python's own datetime
# Guess:     a datetime field reads YYYYMMDD (ISO 8601's basic form, and HL7 v2's) as that day, or refuses it.
# Seen:      text of digits alone is a number of seconds since 1970, or of milliseconds if it is large:
#              "20200315"        1970-08-22 19:11:55 UTC
#              "20200315123000"  2610-02-14 22:38:43 UTC
#              "1980"            1970-01-01 00:33:00 UTC
#              "2020-03-15"      2020-03-15 00:00:00
#            Fields of type date and NaiveDatetime refuse "20200315". datetime.fromisoformat reads 2020-03-15, msgspec
#            refuses.
# Matters:   birth and event times come in this form from HL7 v2, CDA and many CSV exports, years alone from FHIR.
#            Every such day from 1900 to 2099 falls into August 1970, so all follow-up is under 24 days, and a check "is
#            a valid date" passes. Use NaiveDatetime, which digits alone do not pass, or parse with a stated format.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pydantic==2.14.4 msgspec==0.22.0
"$dir/venv/bin/python" - <<'PY'
from datetime import date, datetime

import msgspec
from pydantic import BaseModel, NaiveDatetime, ValidationError


class Event(BaseModel):
    time: datetime


class Birth(BaseModel):
    day: date


class Local(BaseModel):
    time: NaiveDatetime


texts = ("20200315", "20200315123000", "1980", "2020-03-15", "19000101", "20991231")
seen = {text: Event(time=text).time.isoformat(sep=" ", timespec="seconds") for text in texts}
for text, time in seen.items():
    print(f"{text:15} {time}")
refused = []
for name, read in (
    ("pydantic, date", lambda text: Birth(day=text)),
    ("pydantic, NaiveDatetime", lambda text: Local(time=text)),
    ("msgspec, datetime", lambda text: msgspec.convert(text, datetime)),
):
    try:
        read("20200315")
    except (ValidationError, msgspec.ValidationError):
        refused.append(name)
print("refuse 20200315:", refused)
assert seen["20200315"] == "1970-08-22 19:11:55+00:00" and seen["1980"] == "1970-01-01 00:33:00+00:00", seen
assert seen["20200315123000"].startswith("2610") and seen["2020-03-15"] == "2020-03-15 00:00:00", seen
assert seen["19000101"][:7] == seen["20991231"][:7] == "1970-08", seen
assert len(refused) == 3 and datetime.fromisoformat("20200315") == datetime(2020, 3, 15)
PY
