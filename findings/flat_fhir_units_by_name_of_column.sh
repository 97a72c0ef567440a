#!/usr/bin/env bash
# A creatinine of 88 umol/L is 88 mg/dL in flat-fhir, in the table and in the FHIR that is made of the table.
#
# Packages:  flat-fhir 0.1.4, pandas 2.3.3
# Guess:     a column named creatinine_mg_dl holds mg/dL: another unit is converted, refused, or goes elsewhere.
# Seen:      a bundle with one patient, who died; the table, and the bundle that to_fhir makes of it:
#              creatinine 1.0 mg/dL, 88 umol/L   creatinine_mg_dl 1.0, 88.0     1.0 mg/dL, 88.0 mg/dL
#              weight 150 [lb_av]                body_weight_kg 150             150 kg
#              CRP < 5 mg/L                      crp_mg_l 5.0                   5.0 mg/L
#              creatinine 9.0, entered in error  creatinine_mg_dl 9.0           9.0 mg/dL, final
#              deceasedDateTime                  no column                      not there
#            The column's name comes from the LOINC code, which says nothing of the unit; the unit is not read.
# Matters:   2160-0 is mg/dL in one hospital and umol/L in the next, in one bundle after a transfer. A healthy kidney
#            becomes one of the worst ever measured, under a heading that vouches for the unit; the dead are alive and
#            a value below the limit is measured. Read the bundle, and check unit, comparator and status.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check flat-fhir==0.1.4 pandas==2.3.3
"$dir/venv/bin/python" - <<'PY'
from flat_fhir import FlatFHIR

CATEGORY = "http://terminology.hl7.org/CodeSystem/observation-category"


def observation(day, loinc, value, unit, category="laboratory", status="final", **more):
    return {
        "resourceType": "Observation",
        "id": f"o{day}",
        "status": status,
        "category": [{"coding": [{"system": CATEGORY, "code": category}]}],
        "code": {"coding": [{"system": "http://loinc.org", "code": loinc}]},
        "subject": {"reference": "Patient/p"},
        "effectiveDateTime": f"2024-03-0{day}T08:00:00+01:00",
        "valueQuantity": {"value": value, "unit": unit, "system": "http://unitsofmeasure.org", "code": unit} | more,
    }


resources = [
    {"resourceType": "Patient", "id": "p", "birthDate": "1950-01-02", "deceasedDateTime": "2024-05-01"},
    observation(1, "2160-0", 1.0, "mg/dL"),
    observation(2, "2160-0", 88.0, "umol/L"),
    observation(3, "29463-7", 150, "[lb_av]", category="vital-signs"),
    observation(4, "1988-5", 5.0, "mg/L", comparator="<"),
    observation(5, "2160-0", 9.0, "mg/dL", status="entered-in-error"),
]
flat = FlatFHIR({"resourceType": "Bundle", "type": "collection", "entry": [{"resource": one} for one in resources]})
creatinine = sorted(map(float, flat.labs["creatinine_mg_dl"].dropna()))
weight = [float(value) for value in flat.vitals["body_weight_kg"].dropna()]
crp = [float(value) for value in flat.labs["crp_mg_l"].dropna()]
print("creatinine_mg_dl", creatinine, "| body_weight_kg", weight, "| crp_mg_l", crp)
back = [entry["resource"] for entry in flat.to_fhir()["entry"]]
quantities = sorted(
    (float(one["valueQuantity"]["value"]), one["valueQuantity"]["unit"], one["status"])
    for one in back
    if one["resourceType"] == "Observation"
)
print(*quantities, sep="\n")
assert creatinine == [1.0, 9.0, 88.0] and weight == [150.0] and crp == [5.0], "units or statuses are looked at now"
assert {(88.0, "mg/dL", "final"), (150.0, "kg", "final"), (9.0, "mg/dL", "final")} <= set(quantities), "to_fhir changed"
assert "deceased" not in " ".join(flat.patient.columns) and "deceasedDateTime" not in back[0], "death is kept now"
assert not any("comparator" in one.get("valueQuantity", {}) for one in back), "comparators are kept now"
PY
