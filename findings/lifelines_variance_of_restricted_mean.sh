#!/usr/bin/env bash
# The variance that lifelines gives with a restricted mean survival time does not shrink with more patients.
#
# Package:   lifelines 0.30.3
# Guess:     restricted_mean_survival_time(curve, t, return_variance=True) gives the estimate and the variance of that
#            estimate (Greenwood's, as R's survRM2), for an interval or a test.
# Seen:      exponential times with mean 10, half of them censored, restricted to 10; patients, root of the variance
#            given, Greenwood's standard error, and the standard deviation of the estimate over 100 bootstrap samples:
#                100   3.5   0.38   0.33
#               1000   3.6   0.13   0.13
#            What is given is the variance of a patient's time up to t, min(T, t), not that of its mean.
#            (Users reported it in 2021, 2022 and 2026; it is still so.)
# Matters:   RMST is reported where hazards cross, with a difference and a p-value. With this variance the interval of
#            1,000 patients is 27 times too wide, and two arms that differ never do. Divide nothing by the number of
#            patients either (censoring is left out then): use Greenwood's formula or a bootstrap.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    lifelines==0.30.3 "pandas<3" "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import numpy as np
from lifelines import KaplanMeierFitter
from lifelines.utils import restricted_mean_survival_time

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)


def greenwood(time, died, limit):
    """Sum over the deaths of (area under the curve from there to the limit) ** 2 d / (n (n - d))."""
    days = np.unique(time[(died == 1) & (time <= limit)])
    at_risk = np.array([(time >= day).sum() for day in days])
    deaths = np.array([((time == day) & (died == 1)).sum() for day in days])
    curve = np.cumprod(1 - deaths / at_risk)
    area = np.cumsum((curve * np.diff(np.r_[days, limit]))[::-1])[::-1]
    return float(np.sum(area**2 * deaths / (at_risk * (at_risk - deaths))))


given = []
for patients in (100, 1000):
    death, end = rng.exponential(10, patients), rng.exponential(10, patients)
    time, died = np.minimum(death, end), (death <= end).astype(int)
    curve = KaplanMeierFitter().fit(time, died)
    mean, variance = restricted_mean_survival_time(curve, t=10, return_variance=True)
    draws = []
    for _ in range(100):
        rows = rng.integers(0, patients, patients)
        draws.append(restricted_mean_survival_time(KaplanMeierFitter().fit(time[rows], died[rows]), t=10))
    error = greenwood(time, died, 10) ** 0.5
    print(f"{patients:5} patients: mean {mean:.2f}, given {variance ** 0.5:.2f}, ", end="")
    print(f"Greenwood {error:.3f}, bootstrap {np.std(draws):.3f}")
    assert abs(np.std(draws) / error - 1) < 0.3, "Greenwood's error and the bootstrap disagree"
    given.append(variance**0.5)
assert all(3 < root < 4 for root in given), "the variance given is another one now"
PY
