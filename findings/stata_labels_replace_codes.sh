#!/usr/bin/env bash
# A death coded 0/1 in a Stata or SPSS file is "no"/"yes" in pandas, so died == 1 finds nobody.
#
# Packages:  pandas 3.1.1, pyreadstat 1.3.7 (writes the files and reads them as the reference)
# Guess:     a labelled variable comes as its codes, with the labels beside them.
# Seen:      died is 0, 1, 1, 0 with the labels no and yes; ecog is 0, 1, 9, 2 and only 9 has a label ("unknown"):
#              pandas read_stata, read_spss   died == 1: 0 of 2 | ecog 0 1 "unknown" 2, a category of numbers and text
#              pyreadstat                     died == 1: 2 of 2 | ecog 0 1 9 2
# Matters:   registries and trials send Stata and SPSS files with labels. Every patient becomes censored, and a column
#            with one labelled code is no longer a number. Give convert_categoricals=False, which then shows 9 as a
#            value: look up what it means.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 pyreadstat==1.3.7 pyarrow==26.0.1
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import pandas
import pyreadstat

table = pandas.DataFrame({"died": [0, 1, 1, 0], "ecog": [0, 1, 9, 2]})
labels = {"died": {0: "no", 1: "yes"}, "ecog": {9: "unknown"}}
pyreadstat.write_dta(table, "trial.dta", variable_value_labels=labels)
pyreadstat.write_sav(table, "trial.sav", variable_value_labels=labels)
frames = {
    "pandas, Stata": pandas.read_stata("trial.dta"),
    "pandas, SPSS": pandas.read_spss("trial.sav"),
    "pyreadstat, Stata": pyreadstat.read_dta("trial.dta")[0],
    "pyreadstat, SPSS": pyreadstat.read_sav("trial.sav")[0],
    "pandas, codes": pandas.read_stata("trial.dta", convert_categoricals=False),
}
deaths = {}
for name, frame in frames.items():
    deaths[name] = int((frame["died"] == 1).sum())
    print(f"{name:18} died == 1: {deaths[name]} of 2 | ecog", frame["ecog"].tolist())
assert list(deaths.values()) == [0, 0, 2, 2, 2], "labels and codes changed"
assert frames["pandas, Stata"]["ecog"].tolist() == [0, 1, "unknown", 2], "partly labelled columns changed"
PY
