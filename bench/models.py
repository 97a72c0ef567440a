"""Every architecture on real data: `python bench/models.py DATA OUT [--task nafld] [--seeds 3] [--only flat …]`.

Trains each variant with the same settings by `ehrseq train`, evaluates it by `ehrseq evaluate` without baselines, and
prints one line a run and then a table: C, IBS and NLL on held-out subjects (mean ± sd over seeds), seconds per epoch,
epochs to the early stop, and the peak memory of the training process. Finished runs are kept, not trained again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ehrsequencing.evaluation.results import read_result

TASKS = Path(__file__).parents[1] / "examples" / "tasks"
EHRSEQ = Path(sys.executable).with_name("ehrseq")
CUTS = {"physionet2012": ["visits.by=window", "visits.window=1h"]}
SETTINGS = [
    "model.size=small", "model.dropout=0.2", "model.wide_head=true", "model.rotary=false", "training.weight_decay=1",
    "training.visit_budget=2048", "training.subjects_per_step=null", "training.masked_codes=0",
    "training.ema=0.99", "training.ema_warmup=10", "training.early_stop=landmarks", "training.decay_steps=null",
    "model.history_dropout=0", "training.recalibration=0",
]  # fmt: skip
VARIANTS = {
    "mean": ["model.visit_encoder=mean"],
    "attention, query": [],
    "attention, bottleneck": ["model.scorer=bottleneck"],
    "mini-transformer": ["model.visit_encoder=transformer"],
    "flat": ["model.architecture=flat", "model.max_tokens=512"],
}


def run(*command: object) -> int:
    """Run one command; its peak memory in MiB."""
    process = subprocess.Popen([str(EHRSEQ), *map(str, command)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: ehrseq {' '.join(map(str, command))}")
    return usage.ru_maxrss // 1024


def result(folder: Path, prepared: Path, task: str, settings: list[str]) -> dict[str, Any]:
    """Train and evaluate one variant, unless it is there already."""
    summary = folder.with_suffix(".json")
    if not summary.is_file():
        peak_mib = run(
            "train",
            prepared,
            "--task",
            task,
            "--out",
            folder,
            "--resume",
            "training.blend=false",
            *settings,
        )
        run("evaluate", folder, "evaluation.baselines=none", "evaluation.bootstrap=0")
        metrics = (read_result(folder) or {})["metrics"]
        first = min(row["landmark_days"] for row in metrics if row["landmark_days"] is not None)
        ours = [
            row
            for row in metrics
            if row["model"] == "ehrsequencing" and row["landmark_days"] == first
        ]
        history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        summary.write_text(json.dumps({
            "c": {f"{row['horizon_days']:g} d": row["value"] for row in ours if row["metric"] == "c"},
            "ibs": next(row["value"] for row in ours if row["metric"] == "ibs"),
            "nll": next(row["value"] for row in ours if row["metric"] == "nll"),
            "tuning_nll": min(row["tuning_nll"] for row in history),
            "seconds_per_epoch": statistics.median(row["seconds"] for row in history),
            "epochs": len(history), "peak_mib": peak_mib,
            "parameters": json.loads((folder / "manifest.json").read_text())["parameters"],
        }))  # fmt: skip
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the runs by variant."""

    def spread(
        runs: list[dict[str, Any]], value: Callable[[dict[str, Any]], float], digits: int
    ) -> str:
        values = [value(row) for row in runs]
        sd = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.{digits}f}{sd}"

    horizons = list(next(iter(found.values()))[0]["c"])
    names = [f"C {h}" for h in horizons] + [
        "IBS",
        "NLL",
        "s/epoch",
        "epochs",
        "peak MiB",
        "parameters",
    ]
    print(f"\n| model | seeds | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}")
    for name, runs in found.items():
        cells = [spread(runs, lambda row, h=h: row["c"][h], 3) for h in horizons]  # type: ignore[misc]
        cells += [spread(runs, lambda row, k=k: row[k], n) for k, n in (("ibs", 4), ("nll", 4))]  # type: ignore[misc]
        for key in ("seconds_per_epoch", "epochs", "peak_mib", "parameters"):
            cells.append(f"{statistics.median(row[key] for row in runs):.0f}")
        print(f"| {name} | {len(runs)} | {' | '.join(cells)} |")


def main() -> None:
    """Train and evaluate every variant with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--task", default="nafld", help="nafld or physionet2012, or another file in examples/tasks"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument(
        "--set", nargs="*", default=[], help="more settings, as in training.epochs=10"
    )
    arguments = parser.parse_args()
    task, prepared = arguments.task, arguments.out / f"{arguments.task}-prepared"
    if not prepared.is_dir():
        data = arguments.data / f"{task}_meds"
        run(
            "prepare",
            data,
            "--task",
            TASKS / f"{task}.yaml",
            "--out",
            prepared,
            *CUTS.get(task, []),
        )
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in range(arguments.seeds):
        for name in arguments.only:
            folder = arguments.out / f"{task}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            settings = [*SETTINGS, *VARIANTS[name], f"training.seed={seed}", *arguments.set]
            row = result(folder, prepared, task, settings)
            found.setdefault(name, []).append(row)
            print(name, f"seed {seed}:", json.dumps(row), flush=True)
    table(found)


if __name__ == "__main__":
    main()
