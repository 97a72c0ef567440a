"""Does rounding packed rows up to a multiple of 64 pay in bf16? `python bench/rounding.py [--dim 128] [--rounds 30]`.

Times a layer's feed-forward products and one weight gradient at N rows and at N rounded up, in turns, in CPU time.
Above 1: the rounded length is quicker, though it has more rows.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from _measure import quartiles


def forward(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return F.linear(F.linear(x, w1), w2)


def weight_gradient(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return F.linear(x, w1).t() @ x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rows", type=int, nargs="+", default=[1153, 1175, 1201, 1303, 1600])
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    d = given.dim
    weights = torch.randn(4 * d, d).bfloat16(), torch.randn(d, 4 * d).bfloat16()
    print(
        "| rows | rounded | feed-forward: odd ÷ rounded | weight gradient: odd ÷ rounded |\n|---:|---:|---:|---:|"
    )
    for odd in given.rows:
        lengths = odd, -(-odd // 64) * 64
        inputs = {n: torch.randn(n, d).bfloat16() for n in lengths}
        cells = []
        for work in (forward, weight_gradient):
            ratios = []
            for turn in range(given.rounds + 1):  # the first one warms up
                seconds = {}
                for n in lengths if turn % 2 else lengths[::-1]:
                    started = time.process_time()
                    for _ in range(4):
                        work(inputs[n], *weights)
                    seconds[n] = time.process_time() - started
                ratios.append(seconds[lengths[0]] / seconds[lengths[1]])
            low, middle, high = quartiles(ratios[1:])
            cells.append(f"{middle:.2f} ({low:.2f}–{high:.2f})")
        print(f"| {lengths[0]:,} | {lengths[1]:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
