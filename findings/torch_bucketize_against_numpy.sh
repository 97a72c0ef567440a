#!/usr/bin/env bash
# right=False means the opposite in torch.bucketize and numpy.digitize: day 30 falls into another interval.
#
# Packages:  torch 2.13.0 (a large download), numpy 2
# Guess:     one option of one name for one task has one sense; the default closes intervals on one side.
# Seen:      edges 0, 30, 365; which interval holds day 30 (1: up to 30; 2: from 30 on)?
#              numpy.digitize  right=False (default) 2 | right=True 1
#              torch.bucketize right=False (default) 1 | right=True 2
#   Matters:   discrete-time survival models put events into intervals, in numpy when data are prepared and in torch
#            when they are trained or used. Events at an edge (30 or 365 days, exactly) then move by one interval, and
#            the loss still falls. Both manuals say it; one word in two senses is easily taken over. Test an edge.
# Date:      2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 "numpy>=2,<3"
export OMP_NUM_THREADS=1
cd "$dir"
"$dir/venv/bin/python" - <<'PY'
import numpy as np
import torch

edges, day = [0.0, 30.0, 365.0], 30.0
seen = {}
for right in (False, True):
    seen[f"numpy.digitize  right={right}"] = int(np.digitize(day, edges, right=right))
    seen[f"torch.bucketize right={right}"] = int(torch.bucketize(day, torch.tensor(edges), right=right))
for name, interval in seen.items():
    print(f"{name:28} interval {interval}")
assert list(seen.values()) == [2, 1, 1, 2], "the sides of intervals changed"
PY
