#!/usr/bin/env bash
# Two admissions a year or ten: a negative binomial with the same two numbers, in torch and in scipy.
#
# Packages:  torch 2.13.0 (a large download), scipy 1.17.1, numpy 2.4.6
# Guess:     NegativeBinomial(r, p) and Geometric(p) are one distribution in torch, scipy and numpy, since all three
#            call p the probability of a success.
# Seen:      means of
#                             torch   scipy   numpy (a million draws)
#              r = 2, p = 0.3  0.86    4.67    4.67
#              r = 2, p = 0.7  4.67    0.86    0.86
#              geometric, 0.3  2.33    3.33    3.33
#            torch counts successes before the r-th failure, the others failures before the r-th success. torch's
#            geometric starts at 0, the others' at 1. (Each manual says so in its own words.)
# Matters:   numbers of admissions are fitted with one library and drawn or scored with another, days of stay with a
#            geometric. p = 0.5 agrees, each value is a possible count, and the mean goes from r (1 - p) / p to
#            r p / (1 - p); the stay is a day shorter. Give torch 1 - p, and compare the means.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 scipy==1.17.1 numpy==2.4.6
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import torch
from scipy import stats

rng = np.random.default_rng(0)
seen = {}
for p in (0.3, 0.7):
    seen[f"negative binomial, r = 2, p = {p}"] = (
        float(torch.distributions.NegativeBinomial(2, probs=torch.tensor(p)).mean),
        float(stats.nbinom(2, p).mean()),
        float(rng.negative_binomial(2, p, 1_000_000).mean()),
    )
seen["geometric, p = 0.3"] = (
    float(torch.distributions.Geometric(torch.tensor(0.3)).mean),
    float(stats.geom(0.3).mean()),
    float(rng.geometric(0.3, 1_000_000).mean()),
)
for name, (of_torch, of_scipy, of_numpy) in seen.items():
    print(f"{name:33} torch {of_torch:.2f} | scipy {of_scipy:.2f} | numpy {of_numpy:.2f}")
expected = [(6 / 7, 14 / 3, 14 / 3), (14 / 3, 6 / 7, 6 / 7), (7 / 3, 10 / 3, 10 / 3)]
assert np.allclose(list(seen.values()), expected, atol=0.02), "the means changed"
half = stats.nbinom(2, 0.5).logpmf(3), float(torch.distributions.NegativeBinomial(2, 0.5).log_prob(torch.tensor(3.0)))
assert abs(half[0] - half[1]) < 1e-5, "p = 0.5 no longer agrees"
PY
