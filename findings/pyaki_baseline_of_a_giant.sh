#!/usr/bin/env bash
# pyAKI's calculated baseline of creatinine takes an ideal weight of 148 kg at 175 cm, so stage 2 is no kidney injury.
#
# Packages:  pyaki 1.0.13, pandas 2.3.3 (needs Python 3.12 or newer)
# Guess:     CreatinineBaselineMethod.CALCULATED is Cockcroft and Gault's formula with the adjusted body weight, as its
#            help says, solved for creatinine at the expected clearance of 72.
# Seen:      baseline in mg/dL:                      the formula   pyAKI
#              man, 60 years, 175 cm, 80 kg               1.18        1.92
#              woman, 60 years, 165 cm, 65 kg             0.81        1.44
#              man, 30 years, 190 cm, 90 kg               1.89        2.91
#            The ideal weight is 50 kg plus 2.3 kg for each inch above 60. A pair of brackets is missing: 60 is taken
#            from the sum, not from the inches, so the ideal weight of the first is 148 kg instead of 70.
#            Creatinine of 2.4 mg/dL of the first is stage 2 by the formula (twice the baseline), and stage 0 here.
# Matters:   a baseline is computed where nobody was measured before, which is most of an intensive-care data set. The
#            outcome "acute kidney injury" loses cases, and the incidence looks plausible.
#            Compute the baseline yourself and give it as CONSTANT.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pyaki==1.0.13 pandas==2.3.3
"$dir/venv/bin/python" -W ignore - <<'PY'
import pandas
from pyaki.probes import CreatinineBaselineMethod, RelativeCreatinineProbe
from pyaki.utils import Dataset, DatasetType

PATIENTS = [("M", 60, 175, 80), ("F", 60, 165, 65), ("M", 30, 190, 90)]
hours = pandas.date_range("2020-01-01", periods=5, freq="1h", name="time")
creatinine = pandas.DataFrame({"creat": 2.4}, index=hours)
probe = RelativeCreatinineProbe(method=CreatinineBaselineMethod.CALCULATED)
formula, seen, stages = [], [], []
for sex, age, height, weight in PATIENTS:
    ideal = (50 if sex == "M" else 45.5) + 2.3 * (height / 2.54 - 60)
    adjusted = ideal + 0.4 * (weight - ideal)
    formula.append(round((140 - age) * adjusted * (1 if sex == "M" else 0.85) / (72 * 70), 2))
    patient = pandas.Series({"gender": sex, "age": age, "height": height, "weight": weight})
    seen.append(round(float(probe.creatinine_baseline(creatinine.copy(), patient).iloc[0]), 2))
    datasets = [Dataset(DatasetType.CREATININE, creatinine.copy()), Dataset(DatasetType.DEMOGRAPHICS, patient)]
    stages.append(float(probe.probe(datasets)[0].df[probe.RESNAME].iloc[-1]))
print("formula", *formula)
print("pyAKI  ", *seen, "| stages at 2.4 mg/dL:", *stages)
assert seen == [1.92, 1.44, 2.91], "the baseline changed"
assert 2.4 / formula[0] > 2 and stages[0] == 0, "the stage changed"
PY
