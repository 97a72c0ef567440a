#!/usr/bin/env bash
# A date known to the year becomes 1 January in two of three readers of clinical messages.
#
# Packages:  fhirclient 4.4.0, hl7 0.4.5, fhir.resources 8.3.0
# Guess:     FHIR and HL7 v2 allow dates of less precision ("1980", "1980-05"), so their libraries keep the
#            precision or give no date.
# Seen:      birthDate "1980", and HL7's "1980" (field PID-7):
#              fhirclient      .date 1980-01-01, and .isostring "1980-01-01", the same as for the full date
#              hl7             parse_datetime: 1980-01-01 00:00
#              fhir.resources  "1980" stays
#            fhirclient keeps the text for writing only (as_json gives "1980").
# Matters:   years alone are common where records were de-identified. Ages come out half a year too high on
#            average, and a diagnosis dated to the year falls before every visit of that year. Look at the length
#            of the text before you parse it.
# Date:      2026-11-27
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check fhirclient==4.4.0 hl7==0.4.5 fhir.resources==8.3.0
"$dir/venv/bin/python" - <<'PY'
import datetime

import hl7
from fhir.resources.patient import Patient
from fhirclient.models.patient import Patient as ClientPatient

year = ClientPatient({"resourceType": "Patient", "birthDate": "1980"})
day = ClientPatient({"resourceType": "Patient", "birthDate": "1980-01-01"})
pid = hl7.parse("MSH|^~\\&|A|B|C|D|20200102||ADT^A01|1|P|2.5\rPID|1||7||||1980\r").segment("PID")
message = hl7.parse_datetime(str(pid[7]))
kept = Patient(birthDate="1980").birthDate
print("fhirclient     ", year.birthDate.date, year.birthDate.isostring, "| written:", year.as_json()["birthDate"])
print("hl7            ", message)
print("fhir.resources ", kept)
assert year.birthDate.date == day.birthDate.date == datetime.date(1980, 1, 1), "fhirclient's date changed"
assert year.birthDate.isostring == day.birthDate.isostring, "fhirclient now shows the precision"
assert message == datetime.datetime(1980, 1, 1), "hl7 no longer fills the date up"
assert str(kept) == "1980", "fhir.resources no longer keeps the precision"
PY
