"""What the architectures cost: `python bench/architectures.py [--dim 128 --layers 4]`, the table of docs/models.md.

One dense batch of V = 50 visits with C = 30 codes (the original example), random codes: parameters, attention pairs per
subject and layer, FLOPs of a training step (forward and backward, counted by torch), and its measured time. Steps of
the models are interleaved, medians are taken, and the last column is the ratio to the flat model in this very run.
"""

import argparse
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ehrsequencing import ModelConfig, VisitBatch
from ehrsequencing.models.ensemble import build_model

V, C = 50, 30
VARIANTS: dict[str, dict[str, object]] = {  # None: as many as --layers
    "flat": {"architecture": "flat"},
    "mini-transformer, full depth": {"visit_encoder": "transformer", "visit_layers": None},
    "mini-transformer, 1 layer": {"visit_encoder": "transformer"},
    "attention, query": {},
    "attention, bottleneck": {"scorer": "bottleneck"},
    "mean": {"visit_encoder": "mean"},
}
PAIRS = {"flat": (V * C) ** 2, "mini": V * C**2 + V**2, "atte": V * C + V**2, "mean": V**2}


def dense_batch(subjects: int, vocab_size: int) -> VisitBatch:
    """A (B, V, C) batch without a single pad, with labels for the visit head."""
    codes = torch.randint(1, vocab_size, (subjects, V, C))
    real = torch.ones(subjects, V, C, dtype=torch.bool)
    ages, gaps = torch.full((subjects, V), 60.0), torch.full((subjects, V), 30.0)
    cause = torch.zeros(subjects, V, dtype=torch.int64)
    return VisitBatch.from_padded(
        codes, real, ages, gaps, real.any(-1), at_risk=real.any(-1), cause=cause
    )


def main() -> None:
    """Count, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--subjects", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    batch = dense_batch(arguments.subjects, vocab_size=1000)
    shape = {
        "vocab_size": 1000,
        "dim": arguments.dim,
        "heads": 4,
        "layers": arguments.layers,
        "head": "visit",
    }
    models, flops = {}, {}
    for name, settings in VARIANTS.items():
        chosen = {k: arguments.layers if v is None else v for k, v in settings.items()}
        exact = {"dropout": 0.0, "history_dropout": 0.0}
        models[name] = build_model(ModelConfig.model_validate({**shape, **chosen, **exact}))
        with (
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):  # flash FLOPs are not counted
            models[name].loss(batch).backward()  # type: ignore[no-untyped-call]
        flops[name] = counter.get_total_flops()
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(arguments.rounds):
        for name, model in models.items():
            started = time.perf_counter()
            model.zero_grad(set_to_none=True)
            model.loss(batch).backward()  # type: ignore[no-untyped-call]
            seconds[name].append(time.perf_counter() - started)
    flat = statistics.median(seconds["flat"])
    print(f"d{arguments.dim}, {arguments.layers} layers, V = {V}, C = {C}, B = {arguments.subjects}, "
          f"{torch.get_num_threads()} thread(s)\n")  # fmt: skip
    print(
        "| model | parameters | attention pairs | GFLOPs a step | ms a step | flat ÷ this: pairs | FLOPs | time |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, model in models.items():
        pairs, ms = PAIRS[name[:4]], statistics.median(seconds[name])
        parameters = sum(p.numel() for p in model.parameters())
        print(f"| {name} | {parameters / 1e6:.2f} M | {pairs:,} | {flops[name] / 1e9:.2f} | {ms * 1e3:.0f} "
              f"| {PAIRS['flat'] / pairs:.0f} | {flops['flat'] / flops[name]:.1f} | {flat / ms:.1f} |")  # fmt: skip


if __name__ == "__main__":
    main()
