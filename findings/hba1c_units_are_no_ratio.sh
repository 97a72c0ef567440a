#!/usr/bin/env bash
# An HbA1c of 48 mmol/mol, which is diabetes, is 4.8 % in pint and ucumvert, which is perfect health.
#
# Packages:  ucumvert 0.3.2 (reads UCUM), pint 0.25.3
# Guess:     the two units of HbA1c are two definitions (IFCC's and NGSP's), so a conversion is refused, as for two
#            dimensions; or it is 6.5 %, as laboratories print it.
# Seen:      48 mmol/mol to %:
#              ucumvert 4.8     pint 4.8     NGSP's equation (0.09148 x + 2.152) 6.5
#            Both units are numbers without a dimension, and 48 thousandths are 4.8 hundredths. 42 mmol/mol, the bound
#            of prediabetes, is 4.2 % instead of 6.0 %, and 6.5 % goes back as 65 mmol/mol instead of 48.
# Matters:   countries and years differ in the unit, so "convert all to %" is the first step of pooling them. It
#            passes the check of dimensions, every number is possible, the half of the patients with diabetes has the
#            lowest values and the order between hospitals turns round. Use the equation, by the LOINC code
#            (4548-4 is NGSP's, 59261-8 IFCC's); the same holds for other pairs that a definition joins.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check ucumvert==0.3.2 pint==0.25.3
"$dir/venv/bin/python" - <<'PY'
import pint
import ucumvert

ucum, plain = ucumvert.PintUcumRegistry(), pint.UnitRegistry()
seen = {
    "ucumvert, 48 mmol/mol": (48 * ucum.from_ucum("mmol/mol")).to(ucum.from_ucum("%")).magnitude,
    "pint, 48 mmol/mol": plain.Quantity(48, "mmol/mol").to("percent").magnitude,
    "ucumvert, 42 mmol/mol": (42 * ucum.from_ucum("mmol/mol")).to(ucum.from_ucum("%")).magnitude,
    "ucumvert, 6.5 %": (6.5 * ucum.from_ucum("%")).to(ucum.from_ucum("mmol/mol")).magnitude,
}
for name, value in seen.items():
    print(f"{name:22} {value:.1f}")
print(f"NGSP of 48 mmol/mol    {0.09148 * 48 + 2.152:.1f}")
assert [round(float(value), 6) for value in seen.values()] == [4.8, 4.8, 4.2, 65.0], "HbA1c is known or refused now"
PY
