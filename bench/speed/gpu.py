"""What a GPU does with this package: `python -m bench gpu PREPARED OUT [--numbers NUMBERS] [--device cpu]`.

PREPARED is a prepared set: docs/scale.md took `delphi_sim_meds` with `examples/tasks/delphi_all.yaml`. NUMBERS is
one of records with numbers: `physionet2012_meds` with visits of 12 hours. Parts:

- `equal`: loss and gradients of both architectures in float32, on the device and on the CPU; with NUMBERS of a
  model with a table branch as well, on subjects of that set.
- `step`: forward, backward, clipping and fused AdamW of the default and the large model, on ragged records; their FLOPs
  per second over the best rate of an 8192 x 8192 matrix product on the device.
- `epoch`: whole epochs of `ehrseq train` on PREPARED, tuning subjects and masked codes included, and the loader alone.
- `run`: `ehrseq train` on NUMBERS with the default settings, without a blend: on the device, and on the CPU beside it.

With `--device cpu` all of it runs with tiny sizes. Exits with 1 where numbers disagree.
"""

import argparse
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.measure import EHRSEQ, machine, run
from bench.speed._interleaved import flops_of
from bench.speed.engine import SHAPES, VOCABULARY, padded
from ehrsequencing.batches.loader import Step, on_device
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, ModelSettings, StudyConfig, TrainingConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.files import read_json_lines, write_json
from ehrsequencing.core.outputs import HISTORY
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.objectives import autocast
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.train import Trainer

Row = dict[str, Any]
PRECISIONS = ("32", "bf16")
EDGES = tuple(365.25 * year for year in (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5))
EPOCH_SUBJECTS = 400_000  # Delphi-2M's training set has about so many
STEPS = {  # settings of an epoch, by what the table calls them
    "default": {},
    "large steps": {"subjects_per_step": None, "visit_budget": 16_384, "min_steps": 1},
}


def labelled(subjects: int, *, seed: int, queries: bool = False) -> VisitBatch:
    """Drawn ragged records whose visits are prediction times; some of them queries."""
    x = padded(SHAPES["ragged truncated"], subjects, seed=seed)
    chance = torch.Generator().manual_seed(seed)
    drawn = torch.rand(x.visit_mask.shape, generator=chance)
    return VisitBatch.from_padded(
        x.codes,
        x.code_mask,
        x.ages,
        x.deltas,
        x.visit_mask,
        at_risk=x.visit_mask,
        duration_days=1 + 2000 * drawn,
        cause=(3 * drawn).long(),
        is_query=(drawn < 0.2) & x.visit_mask if queries else None,
    )


def model_of(**settings: Any) -> SurvivalModel:
    """A new model with ten hazard bins and two causes."""
    torch.manual_seed(0)
    fixed = {"vocab_size": VOCABULARY, "edges_days": EDGES, "causes": 2, "values": "none"}
    return build_model(ModelConfig.model_validate({**fixed, **settings}))


# ---- the same numbers --------------------------------------------------------------------------------------------


def drawn(subjects: int) -> Iterator[tuple[str, SurvivalModel, VisitBatch]]:
    """A new model of each architecture, and drawn records."""
    for architecture in ("hierarchical", "flat"):
        model = model_of(architecture=architecture, history_dropout=0.0)
        batch = labelled(subjects, seed=0)
        model.start_at_rates(batch)
        yield architecture, model, batch


def first_epoch(trainer: Trainer) -> list[Ints]:
    """The subjects of each step of a training's first epoch."""
    settings = trainer.settings
    return trainer.loader.shuffled(
        0,
        seed=settings.seed,
        visit_budget=trainer.training.visit_budget,
        most_subjects=settings.subjects_per_step,
    )


def with_numbers(numbers: Path, out: Path) -> tuple[str, SurvivalModel, VisitBatch]:
    """A new model with a table branch for NUMBERS, no weight of it zero, and its first batch."""
    data = Prepared(numbers)
    study = StudyConfig(model=ModelSettings(table_dim=128))
    trainer = Trainer(Plan.of(data, data.only_task(), study, as_given=True))
    step = trainer.loader.collate(first_epoch(trainer)[0])
    model = trainer.model
    assert model.table is not None
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.05)
    return "hierarchical with numbers", model.eval(), step.batch


def equal(
    device: torch.device, of: Iterable[tuple[str, SurvivalModel, VisitBatch]]
) -> Iterator[Row]:
    """How far loss and gradients are from the CPU's, relative to their norms."""
    for name, model, batch in of:
        found = []
        for place in (torch.device("cpu"), device):
            model.zero_grad()
            model.to(place)
            loss = model.loss(batch.to(place))
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            found.append((float(loss.detach()), [g.double().cpu() for g in gradients]))
        (loss_here, here), (loss_there, there) = found
        off = [float((b - a).norm()) for a, b in zip(here, there, strict=True)]
        norms = [float(a.norm()) for a in here]
        yield {
            "section": "equal",
            "architecture": name,
            "loss": loss_here,
            "loss_off": abs(loss_there - loss_here) / abs(loss_here),
            "gradients_off": math.hypot(*off) / math.hypot(*norms),
            "worst_parameter_off": max(
                o / n for o, n in zip(off, norms, strict=True) if n > 1e-3 * max(norms)
            ),
        }


# ---- speed -------------------------------------------------------------------------------------------------------


def seconds_of(run: Callable[[], object], device: torch.device, *, times: int) -> float:
    """Median seconds of a call, after two that are not counted."""
    found = []
    for _ in range(times + 2):
        wait(device)
        started = time.perf_counter()
        run()
        wait(device)
        found.append(time.perf_counter() - started)
    return statistics.median(found[2:])


def wait(device: torch.device) -> None:
    """Until the device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peaks(device: torch.device, size: int) -> dict[str, float]:
    """FLOP/s of a square matrix product on random numbers, in each precision."""
    found = {}
    for precision, dtype in zip(PRECISIONS, (torch.float32, torch.bfloat16), strict=True):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        found[precision] = 2 * size**3 / seconds_of(lambda a=a, b=b: a @ b, device, times=10)
    return found


def steps(
    device: torch.device, sizes: tuple[str, ...], subjects: tuple[int, ...], rates: dict[str, float]
) -> Iterator[Row]:
    """Training steps from batches in host memory, copied while the step before is worked on."""
    for size in sizes:
        flops = flops_of(lambda size=size: model_of(size=size).loss(labelled(16, seed=2)))
        flops_per_visit = flops / labelled(16, seed=2).n_visits
        for n in subjects:
            batch = labelled(n, seed=3)
            for precision in PRECISIONS:
                model = model_of(size=size).to(device)
                seconds, mib = step_seconds(model, batch, device, precision)
                yield {
                    "section": "step",
                    "size": size,
                    "precision": precision,
                    "subjects": n,
                    "visits": batch.n_visits,
                    "codes": batch.n_codes,
                    "ms": 1e3 * seconds,
                    "us_per_visit": 1e6 * seconds / batch.n_visits,
                    "mib": mib,
                    "share_of_peak": flops_per_visit * batch.n_visits / seconds / rates[precision],
                }


def step_seconds(
    model: SurvivalModel, batch: VisitBatch, device: torch.device, precision: Any
) -> tuple[float, float | None]:
    """Median seconds of a step in a row of them, and the device's peak memory in MiB."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    count = 24 if device.type == "cuda" else 4
    nothing = np.zeros(0, dtype=np.int64)
    # a new batch each time: its indices are derived on first use
    given = (Step(replace(batch), nothing, nothing) for _ in range(count))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    moments = []
    for step in on_device(given, device):
        optimizer.zero_grad(set_to_none=True)
        with autocast(device, precision):
            loss: Tensor = model.loss(step.batch, divisor=float(batch.n_visits))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait(device)
        moments.append(time.perf_counter())
    assert bool(torch.isfinite(loss.detach()))
    mib = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    return statistics.median(b - a for a, b in pairwise(moments[1:])), mib


def epochs(prepared: Path, out: Path, sizes: tuple[str, ...], *, count: int) -> Iterator[Row]:
    """Epochs of a training as `ehrseq train` does it: the median but the first, and what the loader alone takes."""
    data = Prepared(prepared)
    for size in sizes:
        for name, settings in STEPS.items():
            for precision in PRECISIONS:
                shutil.rmtree(out, ignore_errors=True)
                training = TrainingConfig.model_validate(
                    {"epochs": count, "patience": count, "precision": precision, **settings}
                )
                study = StudyConfig(
                    model=ModelSettings.model_validate({"size": size}), training=training
                )
                trainer = Trainer(Plan.of(data, data.only_task(), study, as_given=True))
                loop = trainer.training
                started = time.perf_counter()
                groups = first_epoch(trainer)
                made = sum(1 for _ in map(trainer.loader.collate, groups))
                loader = time.perf_counter() - started
                history = loop.run(out, out / "checkpoints").history
                seconds = statistics.median(row["seconds"] for row in history[1:] or history)
                subjects = len(trainer.loader)
                yield {
                    "section": "epoch",
                    "size": size,
                    "steps": name,
                    "precision": precision,
                    "subjects": subjects,
                    "batches": made,
                    "seconds": seconds,
                    "loader_seconds": loader,
                    "subjects_per_second": subjects / seconds,
                    "minutes_of_400000": EPOCH_SUBJECTS * seconds / subjects / 60,
                    "tuning_nll": history[-1]["tuning_nll"],
                }
    shutil.rmtree(out, ignore_errors=True)


def runs(numbers: Path, out: Path, *, on_gpu: bool) -> Iterator[Row]:
    """Whole trainings, teacher included, by command: on the GPU if there is one, and without it."""
    for device in ("cuda", "cpu") if on_gpu else ("cpu",):
        folder = out / f"run-{device}"
        shutil.rmtree(folder, ignore_errors=True)
        command = ["train", str(numbers), "--out", str(folder), "training.blend=false"]
        hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        seconds = run([*EHRSEQ, *command], environment=hidden).wall_s
        history = read_json_lines(folder / HISTORY)
        yield {
            "section": "run",
            "device": device,
            "seconds": seconds,
            "epochs": len(history),
            "seconds_of_epochs": sum(row["seconds"] for row in history),
            "tuning_nll": min(row["tuning_nll"] for row in history),
        }


# ---- all of it ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path, help="folder for gpu.json")
    parser.add_argument("--numbers", type=Path, help="a prepared set of records with numbers")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    device, on_gpu = torch.device(asked.device), asked.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    asked.out.mkdir(parents=True, exist_ok=True)
    about = {
        **machine(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "tf32": False,
    }
    print(json.dumps(about), flush=True)
    rows: list[Row] = []

    def keep(found: Iterator[Row] | list[Row]) -> None:
        for row in found:
            rows.append(row)
            short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            print(json.dumps(short), flush=True)
            write_json(asked.out / "gpu.json", {"machine": about, "rows": rows})

    sizes = ("medium", "large") if on_gpu else ("small",)
    keep(equal(device, drawn(64 if on_gpu else 8)))
    if asked.numbers is not None:
        keep(equal(device, [with_numbers(asked.numbers, asked.out / "start")]))
    rates = peaks(device, 8192 if on_gpu else 512)
    keep([{"section": "peak", **{name: rate / 1e12 for name, rate in rates.items()}}])
    keep(steps(device, sizes, (64, 2048) if on_gpu else (8,), rates))
    keep(epochs(asked.prepared, asked.out / "run", sizes, count=3 if on_gpu else 1))
    if asked.numbers is not None:
        keep(runs(asked.numbers, asked.out, on_gpu=on_gpu))
    off = max(
        max(row["loss_off"], row["gradients_off"]) for row in rows if row["section"] == "equal"
    )
    print(f"float32 off by {off:.2g} (at most 1e-4)")
    sys.exit(int(off > 1e-4))


if __name__ == "__main__":
    main()
