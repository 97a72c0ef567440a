#!/usr/bin/env bash
# The unit 10^9/L of an HL7 v2 result is 10\S\9/L, or "10" and "9/L", by library and by the way of reading.
#
# Packages:  hl7 0.4.5, hl7apy 1.3.5, hl7conv2 0.2.5
# Guess:     a parser gives the text of a field; escapes of the wire format (\S\ for ^, \T\ for &) are undone.
# Seen:      OBX-6 of a white-cell count, sent as 10\S\9/L:
#              hl7      str(segment[6])          10\S\9/L
#              hl7      message["OBX.F6"]        10^9/L
#              hl7apy   segment.obx_6.value      10\S\9/L
#              hl7conv2 Hl7Json(text).hl7_json   6.1 is 10, and 6.2 is 9/L
#            hl7conv2 undoes the escape before it splits the field at its separators, so the unit is "10".
# Matters:   the circumflex is the separator of components, so this unit must be escaped, and blood counts use
#            it. A unit table that is looked up with the raw text misses; two exports of the same results, read in
#            two ways, give two codes for one measurement. Undo the escapes (hl7: message.unescape).
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check hl7==0.4.5 hl7apy==1.3.5 hl7conv2==0.2.5
"$dir/venv/bin/python" - <<'PY'
import hl7
import hl7conv2
from hl7apy.parser import parse_message

text = (
    "MSH|^~\\&|LAB|H|EHR|H|20200102101010||ORU^R01^ORU_R01|1|P|2.5\r"
    "PID|1||7^^^H^MR\r"
    "OBR|1|||58410-2^CBC^LN\r"
    "OBX|1|NM|6690-2^WBC^LN||7.2|10\\S\\9/L|||||F\r"
)
message = hl7.parse(text)
seen = {
    "hl7, segment[6]": str(message.segment("OBX")[6]),
    'hl7, message["OBX.F6"]': message["OBX.F6"],
    "hl7apy, obx_6.value": parse_message(text, find_groups=False).obx.obx_6.value,
}
result = next(part for part in hl7conv2.Hl7Json(text).hl7_json if part["segment_name"] == "OBX")
seen |= {f"hl7conv2, {name}": unit for name, unit in sorted(result.items()) if name.startswith("6")}
for name, unit in seen.items():
    print(f"{name:24} {unit}")
assert message.unescape(seen["hl7, segment[6]"]) == "10^9/L", "hl7.unescape changed"
assert list(seen.values()) == ["10\\S\\9/L", "10^9/L", "10\\S\\9/L", "10", "9/L"], "the reading of escapes changed"
PY
