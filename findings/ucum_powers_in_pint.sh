#!/usr/bin/env bash
# 7.2 10*9/L white cells are 648 per litre in pint, and K/uL is kelvin.
#
# Packages:  pint 0.25.3, ucumvert 0.3.2 (reads UCUM into pint's units)
# Guess:     pint refuses what it does not know, and UCUM's powers of ten (10*9, ten to the ninth) are among it.
# Seen:      a result and its unit as one text, Quantity(text):
#              7.2 10*9/L    648 per litre         (7.2 10^9/L: 7.2e9 per litre)
#              250 10*3/uL   7500 per microlitre   (250,000 is meant)
#              12 K/uL       12 kelvin per microlitre; 5 M/uL: 5 molar per microlitre
#            The star multiplies: 7.2 times 10 times 9. Unit("10*9/L"), the unit alone, is refused ("cannot have a
#            scaling factor"). ucumvert: 1e9 per litre.
# Matters:   10*3/uL and 10*9/L are the units that FHIR and LOINC give for blood counts. They are one unit in
#            UCUM and differ by a factor of 333,333 here, and no check of the dimension finds it. Read UCUM with
#            ucumvert.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pint==0.25.3 ucumvert==0.3.2
"$dir/venv/bin/python" - <<'PY'
import pint
from ucumvert import PintUcumRegistry

units, ucum = pint.UnitRegistry(), PintUcumRegistry()
seen = {}
for text in ("7.2 10*9/L", "7.2 10^9/L", "250 10*3/uL", "1 10*9/L", "1 10*3/uL"):
    seen[text] = units.Quantity(text).to("1/L").magnitude
    print(f"{text:12} {units.Quantity(text)}   ({seen[text]:.4g} per litre)")
for text in ("12 K/uL", "5 M/uL"):
    print(f"{text:12} {units.Quantity(text)}")
read = {code: ucum.from_ucum(code).to_base_units().to("1/L").magnitude for code in ("10*9/L", "10*3/uL")}
print("ucumvert, per litre:", read)
try:
    units.Unit("10*9/L")
    refused = False
except ValueError as error:
    refused = True
    print("Unit('10*9/L'):", error)


def close(value, expected):
    return abs(value / expected - 1) < 1e-9


assert close(seen["7.2 10*9/L"], 648) and close(seen["7.2 10^9/L"], 7.2e9) and close(seen["250 10*3/uL"], 7.5e9), seen
assert close(seen["1 10*3/uL"] / seen["1 10*9/L"], 1e6 / 3), seen
assert "kelvin" in str(units.Quantity("12 K/uL")) and "molar" in str(units.Quantity("5 M/uL"))
assert all(close(value, 1e9) for value in read.values()) and refused, read
PY
