#!/usr/bin/env bash
# Heart failure is no comorbidity for elixhauser-ahrq if it is the first code of the list.
#
# Packages:  elixhauser-ahrq 2026.1.3, pandas 2.3.3
# Guess:     map_patient_diagnoses(codes) maps every code, in any order, as the package's front page shows: I509, E119,
#            I10, N183, E6601 have heart failure, diabetes, hypertension, renal failure and obesity.
# Seen:      valid codes of that patient (N18.3 has five characters since 2020), index for mortality:
#              I509 E119 I10 N1830 E6601   diabetes, hypertension, obesity    -7
#              E6601 N1830 I10 E119 I509   diabetes, hypertension              0
#              E119 alone                  nothing                             0
#            The first code is taken as the principal diagnosis and left out (as the SAS program does; the function's
#            help says so). Heart failure and renal failure count with "present on admission" only, which is not asked
#            for: with poa_indicators of Y in the second list both are there.
# Matters:   records are sorted by time, code or nothing at all, and have no principal diagnosis and no such mark. Who
#            has one code has no comorbidity, and the order of the rows decides what the others have. Put a filler
#            first, give the marks, and count once against a list by hand.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check elixhauser-ahrq==2026.1.3 pandas==2.3.3
"$dir/venv/bin/python" - <<'PY'
from elixhauser_ahrq import ElixhauserMapper, ElixhauserScorer

mapper, scorer = ElixhauserMapper(), ElixhauserScorer(index_type="mortality")
forward = ["I509", "E119", "I10", "N1830", "E6601"]
seen = {}
for name, codes, marks in (
    ("as listed", forward, None),
    ("backward", forward[::-1], None),
    ("backward, all present", forward[::-1], ["Y"] * 5),
    ("E119 alone", ["E119"], None),
):
    flags = mapper.map_patient_diagnoses(codes, marks)
    seen[name] = (sorted(flag for flag, value in flags.items() if value), int(scorer.calculate_score(flags)))
    print(f"{name:22} {seen[name][1]:3}  {', '.join(seen[name][0])}")
assert seen["as listed"] == (["DIAB_UNCX", "HTN_UNCX", "OBESE"], -7), "the first code or the marks count otherwise"
assert seen["backward"] == (["DIAB_UNCX", "HTN_UNCX"], 0), "the order of codes no longer matters"
assert {"HF", "RENLFL_MOD"} <= set(seen["backward, all present"][0]), "marks count otherwise"
assert seen["E119 alone"] == ([], 0), "a single code counts now"
PY
