"""The engine against the original design, in one run: `python -m bench engine [--quick | --full] [--only SECTION …]`.

Sections, each interleaved within itself:

- `step`: a training step (forward, backward, clipping, fused AdamW) and inference of flat BEHRT and the padded
  hierarchical model (`bench/speed/_seeds.py`), and of the packed ones: float32, bf16 mode, mini-transformer, with
  places within the visit, and with rotary attention. Ratios round by round; share of the measured GEMM peak.
- `memory`: peak of a training step on a dense batch, each model in a process of its own.
- `train`: where the time of `ehrseq train` goes, on simulated and (where DATA has them) real records.
- `scaling`: an epoch's cost per subject, and its memory, against the number of subjects.

Prints the goals of the design beside what was measured, then every ratio; writes all of it as JSON. Fails on no number.
Models are compared without dropout: dropout on *attention*, which only the original design would have, leaves the fast
path of the CPU and made flat BEHRT look 2.5 times as slow again (PERFORMANCE: 144 instead of 58).
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.measure import machine, peak_mib, quartiles, run_bench
from bench.speed._engine_table import goals_table, ratios_table, sections_table
from bench.speed._engine_train import cost_of_subjects, one_training, time_of_train
from bench.speed._interleaved import (
    Contender,
    flops_of,
    gemm_contenders,
    interleaved,
    peak_rates,
    ratio,
)
from bench.speed._seeds import PaddedFlat, PaddedHierarchical, PaddedTokens, PaddedVisits
from ehrsequencing import ModelConfig, VisitBatch
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model

Row = dict[str, Any]
HEADS = 4
VOCABULARY = 5000  # codes, drawn with frequencies 1 / rank
N_BATCHES = 3  # drawn batches; round r takes batch r mod 3
OURS: dict[str, dict[str, object]] = {
    "ours": {},
    "ours bf16": {},
    "ours mini": {"visit_encoder": "transformer"},
    "ours positions": {"code_position": True},
    "ours rotary": {"rotary": True},
}
PAIRS = [
    ("flat", "padded"),
    ("flat", "ours"),
    ("flat", "ours mini"),
    ("padded", "ours"),
    ("padded", "ours bf16"),
    ("padded", "ours positions"),
    ("padded", "ours rotary"),
]


# ---- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Sizes of records: lognormal by median and 99th percentile, or all at the limit."""

    visits: tuple[float, float] | None  # per subject
    codes: tuple[float, float] | None  # per visit
    most_visits: int = 10**6
    most_codes: int = 10**6

    @staticmethod
    def draw(
        law: tuple[float, float] | None, most: int, size: tuple[int, ...], chance: torch.Generator
    ) -> Tensor:
        """Sizes of at least one."""
        if law is None:
            return torch.full(size, most)
        spread = math.log(law[1] / law[0]) / 2.3263  # the normal's 99th percentile
        return (
            (law[0] * (spread * torch.randn(size, generator=chance)).exp())
            .round()
            .clamp(1, most)
            .long()
        )


SHAPES = {
    "dense": Shape(None, None, 50, 30),
    "ragged truncated": Shape((12, 152), (6, 55), 50, 30),
    "ragged": Shape((12, 152), (6, 55)),
}


def padded(shape: Shape, subjects: int, *, seed: int) -> PaddedVisits:
    """Drawn records with ages, gaps, and an event after half of the last visits."""
    chance = torch.Generator().manual_seed(seed)
    visits = shape.draw(shape.visits, shape.most_visits, (subjects,), chance)
    visit_mask = torch.arange(int(visits.max())) < visits.unsqueeze(1)  # (B, V)
    codes = shape.draw(shape.codes, shape.most_codes, tuple(visit_mask.shape), chance) * visit_mask
    code_mask = torch.arange(int(codes.max())) < codes.unsqueeze(2)  # (B, V, C)
    frequencies = 1 / torch.arange(1, VOCABULARY, dtype=torch.float64)
    ids = torch.multinomial(frequencies, code_mask.numel(), replacement=True, generator=chance) + 1
    gaps = (90 * torch.randn(visit_mask.shape, generator=chance).exp()).round()
    gaps[:, 0] = 0
    ages = 20 + 60 * torch.rand(subjects, 1, generator=chance) + gaps.cumsum(1) / 365.25
    event = torch.rand(subjects, generator=chance) < 0.5
    return PaddedVisits(
        ids.view_as(code_mask) * code_mask,
        code_mask,
        ages * visit_mask,
        gaps * visit_mask,
        visit_mask,
        event,
    )


def packed(x: PaddedVisits) -> VisitBatch:
    """The same records without pads."""
    last = x.visit_mask & ~F.pad(x.visit_mask[:, 1:], (0, 1))
    cause = (last & x.has_event.unsqueeze(1)).long()
    return VisitBatch.from_padded(
        x.codes, x.code_mask, x.ages, x.deltas, x.visit_mask, at_risk=x.visit_mask, cause=cause
    )


# ---- how much to run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    sizes: tuple[tuple[int, int], ...]  # (dim, layers)
    threads: tuple[int, ...]
    subjects: dict[str, tuple[int, int, int]]  # per shape: packed, padded, flat
    rounds: int
    burst: float  # seconds that a fast contender is given in each round
    memory_subjects: int
    simulated: int  # subjects of the simulated data set
    cohorts: tuple[int, ...]  # numbers of subjects whose cost is compared
    repeats: int  # of each training


SCALES = {
    "quick": Scale(
        sizes=((16, 1),),
        threads=(1,),
        subjects={name: (2, 2, 2) for name in SHAPES},
        rounds=2,
        burst=0.0,
        memory_subjects=2,
        simulated=120,
        cohorts=(120, 240),
        repeats=1,
    ),
    "short": Scale(
        sizes=((128, 4),),
        threads=(1,),
        subjects={"dense": (32, 8, 4), "ragged truncated": (64, 32, 16), "ragged": (64, 8, 8)},
        rounds=3,
        burst=0.25,
        memory_subjects=8,
        simulated=1000,
        cohorts=(1000, 4000),
        repeats=1,
    ),
    "full": Scale(
        sizes=((128, 4), (256, 6)),
        threads=(1, 2),
        subjects={"dense": (32, 16, 8), "ragged truncated": (64, 64, 16), "ragged": (64, 16, 16)},
        rounds=5,
        burst=0.25,
        memory_subjects=32,
        simulated=2000,
        cohorts=(1000, 10_000, 100_000),
        repeats=3,
    ),
}


# ---- one model, one step ---------------------------------------------------------------------------------------------


Model = PaddedFlat | PaddedHierarchical | SurvivalModel


def model_of(name: str, dim: int, layers: int) -> Model:
    """A contender's model: the original settings for all, so that they compute the same function."""
    settings: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "dim": dim,
        "layers": layers,
        "heads": HEADS,
        "dropout": 0.0,
        "history_dropout": 0.0,
        "head": "visit",
        "values": "none",
        "max_visits": 4096,
    }
    flat: dict[str, object] = {"architecture": "flat", "attention": "bidirectional"}
    hierarchical: dict[str, object] = {"visit_mlp": False, "delta_bins": "linear", "rotary": False}
    torch.manual_seed(0)
    if name == "flat":
        return PaddedFlat(ModelConfig.model_validate({**settings, **flat}))
    if name == "padded":
        return PaddedHierarchical(ModelConfig.model_validate({**settings, **hierarchical}))
    return build_model(ModelConfig.model_validate({**settings, **hierarchical, **OURS[name]}))


def contender(
    name: str, mode: str, *, shape: str, subjects: int, dim: int, layers: int
) -> Contender:
    """A model with its own first `subjects` of the drawn batches; its units are real visits."""
    drawn = [padded(SHAPES[shape], subjects, seed=seed) for seed in range(N_BATCHES)]
    if name == "flat":
        batches: list[Any] = [PaddedTokens.of(x) for x in drawn]
    else:
        batches = list(drawn) if name == "padded" else [packed(x) for x in drawn]

    def prepare(number: int) -> Any:
        given = batches[number % N_BATCHES]
        # a packed batch derives its indices on first use: each step starts with a new one
        return replace(given)

    model = model_of(name, dim, layers).train(mode == "train")
    visits = [float(x.visit_mask.sum()) for x in drawn]
    run = (
        train_step(model, bf16=name == "ours bf16")
        if mode == "train"
        else inference(model, bf16=name == "ours bf16")
    )
    return Contender(prepare, run, lambda number: visits[number % N_BATCHES])


def train_step(model: Any, *, bf16: bool) -> Any:
    """Forward, backward, clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def inference(model: Any, *, bf16: bool) -> Any:
    """Logits of a batch."""

    @torch.no_grad()
    def step(batch: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            model(batch)

    return step


# ---- sections --------------------------------------------------------------------------------------------------------


def steps(scale: Scale, *, busy: bool) -> Iterator[list[Row]]:
    """Every shape, size, number of threads and mode, one after another."""
    for threads in scale.threads:
        torch.set_num_threads(threads)
        for dim, layers in scale.sizes:
            for shape in SHAPES:
                for mode in ("train", "inference"):
                    cell = {
                        "shape": shape,
                        "mode": mode,
                        "dim": dim,
                        "layers": layers,
                        "threads": threads,
                    }
                    yield one_cell(cell, scale, busy=busy and threads == 1)
                    print(
                        f"{shape}, {mode}, d{dim}, {layers} layers, {threads} thread(s): done",
                        flush=True,
                    )


def one_cell(cell: Row, scale: Scale, *, busy: bool = False) -> list[Row]:
    """Times of all contenders on one shape, their ratios, and our share of the GEMM peak."""
    n_packed, n_padded, n_flat = scale.subjects[cell["shape"]]
    size = {"shape": cell["shape"], "dim": cell["dim"], "layers": cell["layers"]}
    subjects = {"flat": n_flat, "padded": n_padded, **dict.fromkeys(OURS, n_packed)}
    contenders = {
        name: contender(name, cell["mode"], subjects=n, **size) for name, n in subjects.items()
    }
    if cell["mode"] == "train":
        contenders |= gemm_contenders(int(contenders["ours"].units(0)), cell["dim"])
    clock = time.process_time if busy else time.perf_counter
    seconds = interleaved(contenders, rounds=scale.rounds, burst=scale.burst, clock=clock)
    rows: list[Row] = [
        {
            "section": "step",
            **cell,
            "contender": name,
            "subjects": n,
            "us_per_visit": quartiles(seconds[name], 1e6),
        }
        for name, n in subjects.items()
    ]
    for slow, fast in PAIRS:
        found = ratio(seconds[slow], seconds[fast])
        rows.append({"section": "ratio", **cell, "slow": slow, "fast": fast, "ratio": found})
    if cell["mode"] == "train":
        peaks = peak_rates(seconds)
        flops = [flops_per_visit(seed, subjects=n_packed, **size) for seed in range(N_BATCHES)]
        shares = [flops[i % N_BATCHES] / s / peaks[i] for i, s in enumerate(seconds["ours"])]
        rows.append(
            {
                "section": "share",
                **cell,
                "share": quartiles(shares),
                "peak_gflops": quartiles(peaks, 1e-9),
                "kflops_per_visit": quartiles(flops, 1e-3),
            }
        )
    return rows


def flops_per_visit(seed: int, *, shape: str, subjects: int, dim: int, layers: int) -> float:
    """FLOPs of our float32 training step as executed, per real visit of one of the drawn batches."""
    batch = packed(padded(SHAPES[shape], subjects, seed=seed))
    model = model_of("ours", dim, layers)
    assert isinstance(model, SurvivalModel)
    return flops_of(lambda: model.loss(batch)) / batch.n_visits


def memory(scale: Scale) -> list[Row]:
    """Peak of a training step on a dense batch, beyond what the imports take."""
    (dim, layers), subjects, rows = scale.sizes[0], scale.memory_subjects, list[Row]()
    for name in ("flat", "padded", "ours", "ours mini"):
        size = ("--dim", dim, "--layers", layers, "--subjects", subjects)
        found = run_bench("engine", "--peak-of", name, *size).json
        rows.append(
            {
                "section": "memory",
                "contender": name,
                "dim": dim,
                "layers": layers,
                "subjects": subjects,
                **found,
            }
        )
    print("memory: done", flush=True)
    return rows


def one_peak(name: str, *, dim: int, layers: int, subjects: int) -> Row:
    """In a process of its own: two training steps on a dense batch."""
    before = peak_mib()
    one = contender(name, "train", shape="dense", subjects=subjects, dim=dim, layers=layers)
    for _ in range(2):
        one.run(one.prepare(0))
    return {"peak_mib": peak_mib() - before, "imports_mib": before}


SECTIONS = ("step", "memory", "train", "scaling")


def main(given: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", dest="scale", action="store_const", const="quick", help="seconds: does it run?"
    )
    size.add_argument(
        "--full", dest="scale", action="store_const", const="full", help="the whole table"
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument(
        "--busy",
        action="store_true",
        help="section step at one thread: CPU time, for a busy machine",
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="where the real data sets are"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench/engine.json"))
    # the rest: what child processes are asked
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--train-of", type=Path, help=argparse.SUPPRESS)
    for name in ("--dim", "--layers", "--subjects", "--epochs"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.peak_of:
        print(
            json.dumps(
                one_peak(
                    arguments.peak_of,
                    dim=arguments.dim,
                    layers=arguments.layers,
                    subjects=arguments.subjects,
                )
            )
        )
    elif arguments.train_of:
        print(json.dumps(one_training(arguments.train_of, epochs=arguments.epochs)))
    else:
        measure(
            arguments.scale or "short",
            arguments.only,
            data=arguments.data,
            out=arguments.out,
            busy=arguments.busy,
        )


def measure(name: str, sections: Sequence[str], *, data: Path, out: Path, busy: bool) -> None:
    """Run the sections and print the tables; the JSON is written anew after each piece, so that a stop loses one."""
    scale, rows, started = SCALES[name], list[Row](), time.monotonic()
    facts = {**machine(), "clock_of_one_thread": "CPU time" if busy else "wall"}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ehrseq-bench-") as folder:
        for found in pieces(
            scale, sections, Path(folder), data=data, quick=name == "quick", busy=busy
        ):
            rows += found
            facts["minutes"] = round((time.monotonic() - started) / 60, 1)
            out.write_text(
                json.dumps({"machine": facts, "scale": name, "rows": rows}, indent=1) + "\n"
            )
    print(
        f"\n{facts}\n\n{goals_table(rows)}\n\n{ratios_table(rows)}\n\n{sections_table(rows)}\n\n{out}"
    )


def pieces(
    scale: Scale, sections: Sequence[str], folder: Path, *, data: Path, quick: bool, busy: bool
) -> Iterator[list[Row]]:
    """The rows of all sections, as they are measured."""
    if "step" in sections:
        yield from steps(scale, busy=busy)
    torch.set_num_threads(1)
    if "memory" in sections:
        yield memory(scale)
    if "train" in sections:
        yield time_of_train(
            folder, data, subjects=scale.simulated, repeats=scale.repeats, quick=quick
        )
    if "scaling" in sections:
        yield cost_of_subjects(folder, scale.cohorts, repeats=scale.repeats)


if __name__ == "__main__":
    main()
