#!/usr/bin/env bash
# A patient whose visits are all masked is 0 or NaN in torch's attention, by call, by option and by mode.
#
# Package:   torch 2.13.0 (a large download)
# Guess:     nn.MultiheadAttention is scaled_dot_product_attention with projections: a row without any key gives the
#            same from both, NaN or 0, in training and in evaluation.
# Seen:      all keys masked, NaN in the output?
#              scaled_dot_product_attention                 no, zeros
#              MultiheadAttention, need_weights=True        yes in training, yes in evaluation
#              MultiheadAttention, need_weights=False       no in training, yes in evaluation without gradients
# Matters:   new patients have no visit yet, and padded batches hold such rows. Training runs without a NaN, and the
#            model gives NaN for them when it is used (or the other way round, when weights are drawn). Replace such
#            rows yourself, or give everybody one token that is never masked.
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
import warnings

import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
torch.manual_seed(0)
x = torch.randn(1, 3, 8)
masked = torch.ones(1, 3, dtype=torch.bool)  # True: not to be seen
attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)


def has_nan(weights):
    return bool(attention(x, x, x, key_padding_mask=masked, need_weights=weights)[0].isnan().any())


seen = {"scaled_dot_product_attention": bool(F.scaled_dot_product_attention(x, x, x, attn_mask=~masked).isnan().any())}
for weights in (True, False):
    attention.train()
    seen[f"training, need_weights={weights}"] = has_nan(weights)
    attention.eval()
    with torch.no_grad():
        seen[f"evaluation, need_weights={weights}"] = has_nan(weights)
for name, nan in seen.items():
    print(f"{name:32} {'NaN' if nan else 'numbers'}")
assert list(seen.values()) == [False, True, True, False, True], "rows without keys changed"
PY
