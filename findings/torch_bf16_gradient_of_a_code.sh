#!/usr/bin/env bash
# The gradient of a code that occurs 1,000 times is 256 in bfloat16, on the CPU.
#
# Package:   torch 2.13.0 (a large download)
# Guess:     sums over rows are kept in 32 bits and rounded once, whichever operation makes them.
# Seen:      1,000 ones of bfloat16 added up (256 + 1 is 256 in bfloat16):
#              1000  sum, cumsum, embedding_bag, scatter_add_, index_add_ of rows, a matrix product
#               256  index_put_(accumulate=True), segment_reduce, index_add_ of single numbers
#               256  the gradients of embedding, embedding_bag and table[ids]
# Matters:   in records a few codes make most of the rows. With parameters in bfloat16 their gradients stop growing at
#            256 times one row's and all others do not, so the share of frequent codes is lost in silence; and pooling
#            by segment_reduce levels off, embedding_bag does not. Keep embedding tables in float32.
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
import torch
import torch.nn.functional as F

bf16 = torch.bfloat16
ids, ones = torch.zeros(1000, dtype=torch.long), torch.ones(1000, 4, dtype=bf16)
zeros, starts = torch.zeros(1, 4, dtype=bf16), torch.arange(0, 1000, 10)


def gradient(use):
    table = torch.zeros(1, 4, dtype=bf16, requires_grad=True)
    use(table).sum().backward()
    return float(table.grad[0, 0])


seen = {
    "sum": ones.sum(0)[0],
    "cumsum": ones.cumsum(0)[-1, 0],
    "embedding_bag": F.embedding_bag(ids, zeros + 1, torch.tensor([0]), mode="sum")[0, 0],
    "scatter_add_": zeros.clone().scatter_add_(0, ids[:, None].expand(-1, 4), ones)[0, 0],
    "index_add_, rows": zeros.clone().index_add_(0, ids, ones)[0, 0],
    "matrix product": (ones[:, 0] @ ones)[0],
    "index_put_": zeros.clone().index_put_((ids,), ones, accumulate=True)[0, 0],
    "segment_reduce": torch.segment_reduce(ones, "sum", lengths=torch.tensor([1000]))[0, 0],
    "index_add_, numbers": zeros[:, 0].clone().index_add_(0, ids, ones[:, 0])[0],
    "gradient of embedding": gradient(lambda table: F.embedding(ids, table)),
    "gradient of embedding_bag": gradient(lambda table: F.embedding_bag(ids, table, starts, mode="sum")),
    "gradient of table[ids]": gradient(lambda table: table[ids]),
}
for name, total in seen.items():
    print(f"{name:26} {float(total):.0f}")
assert [float(total) for total in seen.values()] == [1000.0] * 6 + [256.0] * 6, "sums in bfloat16 changed"
PY
