#!/usr/bin/env bash
# The same encoder gives numbers at padded visits in training and zeros in evaluation, so pooling changes.
#
# Package:   torch 2.13.0 (a large download)
# Guess:     without dropout nn.TransformerEncoder computes one function, in train() and in eval().
# Seen:      two patients with three and four visits, padded to six, dropout 0, the default encoder: real visits agree
#            to 1e-6. Padded visits are numbers in training, and zeros in evaluation without gradients (the fast path).
#              first component, mean over all six positions  -0.723 in training | -0.385 in evaluation
#              largest over all six positions                -0.182             |  0.000
#            With norm_first=True or enable_nested_tensor=False both modes agree.
# Matters:   the mean or the largest over positions is a usual summary of a patient. The model is trained on one
#            summary and used with another; the size of the shift depends on the padding, that is, on who else is in the
#            batch. Multiply by the mask before pooling.
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

warnings.simplefilter("ignore")
visits = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
padded = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]).bool()


def both_modes(**options):
    torch.manual_seed(0)
    first = options.pop("norm_first", False)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=first)
    encoder = torch.nn.TransformerEncoder(layer, 2, **options)
    training = encoder.train()(visits, src_key_padding_mask=padded).detach()
    with torch.no_grad():
        return training, encoder.eval()(visits, src_key_padding_mask=padded)


training, evaluation = both_modes()
print("real visits agree to", float((training - evaluation)[~padded].abs().max()))
for name, pool in {"mean": lambda x: x.mean(1), "largest": lambda x: x.amax(1)}.items():
    print(f"{name:8} {float(pool(training)[0, 0]):.3f} in training | {float(pool(evaluation)[0, 0]):.3f} in evaluation")
assert torch.allclose(training[~padded], evaluation[~padded], atol=1e-5), "real visits differ"
assert bool((evaluation[padded] == 0).all()) and bool((training[padded] != 0).all()), "padded visits changed"
for options in ({"norm_first": True}, {"enable_nested_tensor": False}):
    assert torch.allclose(*both_modes(**options), atol=1e-5), f"{options} now differs"
PY
