#!/usr/bin/env bash
# A heart rate of 2 January 2020, 08:30, appended to a Zarr store by xarray, is of May 2025 when it is read.
#
# Packages:  xarray 2026.9.0, zarr 3.1.6
# Guess:     times that are appended are read as they were written, or are refused.
# Seen:      a store whose first times are 1 and 2 January 2020, both midnight; two more are appended:
#              written   2020-01-02 08:30   2020-01-02 20:15
#              read      2025-05-04 00:00   2027-04-09 00:00
#            The first write chose "days since 2020-01-01" for the store. The second finds that days cannot hold 08:30,
#            says in a warning that it writes minutes "instead" (1950 of them), and leaves the store's unit at days.
#            With the unit given at the first write (encoding={"time": {"units": "seconds since 2020-01-01"}}) all times
#            are right. (Users have reported it since 2019; it is still so.)
# Matters:   vital signs and waveforms are kept in such stores, one batch appended after the other, and a first batch of
#            daily values is enough. What is read is valid and sorted, and lies years after the patient's death.
#            Give the unit of time at the first write.
# Date:      2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    xarray==2026.9.0 zarr==3.1.6 pandas==3.1.1 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import warnings

import pandas
import xarray

daily, later = ["2020-01-01", "2020-01-02"], ["2020-01-02T08:30", "2020-01-02T20:15"]


def batch(times):
    return xarray.Dataset({"rate": ("time", [60.0, 61.0])}, coords={"time": pandas.to_datetime(times)})


def appended(store, **options):
    batch(daily).to_zarr(store, mode="w", **options)
    batch(later).to_zarr(store, append_dim="time")
    return [str(time)[:16] for time in xarray.open_zarr(store)["time"].values[2:]]


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    seen = appended("plain.zarr")
    said = [str(warning.message) for warning in caught if "faithfully" in str(warning.message)]
    given = appended("given.zarr", encoding={"time": {"units": "seconds since 2020-01-01"}})
print("written:", later)
print("read:   ", seen)
print("unit given at the first write:", given)
print("warning:", said[0][:130] if said else None)
assert given == later, "a unit that is given no longer helps"
assert len(said) == 1 and "minutes since 2020-01-01" in said[0], "the warning changed"
assert seen == ["2025-05-04T00:00", "2027-04-09T00:00"], "the times that are read changed"
PY
