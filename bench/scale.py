"""The whole chain at a size of your choice; `python bench/scale.py OUT [SETTING …] [--subjects N] [--world …]`.

Runs simulate, prepare, train (one epoch), predict and evaluate one after another, each as its own process, and prints
for each: wall time, CPU time, memory at most and the disk that its output takes. From these rates it computes the table
for 1, 10 and 100 million subjects of the same kind, with the cost at an assumed `--price` of a core-hour.
SETTINGs are those of training, as model.size=small, and come before `--world`, which takes all words that follow it.
`--commands train,predict` runs some steps only. All numbers go to `OUT/scale.json`; a step that is there already is not
repeated, so that an interrupted run continues.

Peak memory is that of the largest process of a command, as the kernel reports it: pages of memory-mapped files count,
and the kernel can take those back. Its own memory, without them, is that of the first process (on Linux), looked at
fifty times a second. CPU time is that of all processes.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from _cpu import own_gib
from ehrsequencing.core.files import write_json
from ehrsequencing.core.version import __version__

MAIN = [sys.executable, "-m", "ehrsequencing"]
ONE_EPOCH = ("training.epochs=1", "training.blend=false")
STEPS = ("simulate", "prepare", "train", "predict", "evaluate")
SIZES = (1_000_000, 10_000_000, 100_000_000)
PRICE = 0.05  # dollars per core-hour: an assumption, not a quote
GIB = 2**30
Row = dict[str, Any]


def commands(
    out: Path, subjects: int, settings: Sequence[str], world: Sequence[str]
) -> dict[str, tuple[list[str], Path]]:
    """Step → its command and what it writes."""
    data, prepared, run = out / "data", out / "prepared", out / "run"
    predictions = out / "predictions.parquet"
    return {
        "simulate": (["simulate", str(data), "--subjects", str(subjects), "truth_futures=16", *world], data),
        "prepare": (["prepare", str(data), "--task", str(data / "task.yaml"), "--out", str(prepared)], prepared),
        "train": (["train", str(prepared), "--out", str(run), *ONE_EPOCH, *settings], run),
        "predict": (["predict", str(run), str(data), "--at", "last", "--out", str(predictions)], predictions),
        "evaluate": (["evaluate", str(run), "--baselines", "none", "evaluation.bootstrap=0"], run / "metrics.json"),
    }  # fmt: skip


def measured(command: list[str], log: Path) -> Row:
    """Run one command; its wall and CPU seconds and its memory at most in GiB."""
    start, own, ended = time.perf_counter(), 0.0, 0
    with log.open("wb") as file:
        process = subprocess.Popen([*MAIN, *command], stdout=file, stderr=subprocess.STDOUT)
        while not ended:
            own = max(own, own_gib(process.pid))
            time.sleep(0.02)
            # its own usage and that of the processes that it waited for
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"ehrseq {command[0]} ended with {process.returncode}: see {log}")
    peak = usage.ru_maxrss / (GIB if sys.platform == "darwin" else 2**20)
    return {
        "command": " ".join(["ehrseq", *command]), "wall_s": round(time.perf_counter() - start, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1), "peak_gib": round(peak, 2),
        "own_gib": round(own, 2),
    }  # fmt: skip


def disk_gib(path: Path) -> float:
    """Size of a file or of all files in a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files) / GIB


def events_of(data: Path) -> int:
    """Rows of a MEDS data set."""
    return sum(pq.read_metadata(path).num_rows for path in data.glob("data/**/*.parquet"))


def run_chain(
    out: Path,
    subjects: int,
    settings: Sequence[str],
    wanted: Sequence[str],
    world: Sequence[str] = (),
) -> Row:
    """Run the wanted steps that are not done; what was measured of all of them."""
    found = out / "scale.json"
    told: Row = {"subjects": subjects, "world": list(world), "steps": {}}
    if found.is_file():
        told |= json.loads(found.read_text())
    if told["subjects"] != subjects or told["world"] != list(world):
        raise SystemExit(
            f"{found} is of {told['subjects']:,} subjects with {told['world']}: name another folder"
        )
    told |= {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "version": __version__,
    }
    for name, (command, made) in commands(out, subjects, settings, told["world"]).items():
        if name not in wanted or name in told["steps"]:
            continue
        if name == "train" and made.exists():
            shutil.rmtree(made)
        before = os.getloadavg()[0]
        print(f"{name} …", file=sys.stderr, flush=True)
        told["steps"][name] = measured(command, out / f"{name}.log") | {
            "disk_gib": round(disk_gib(made), 3), "load_before": round(before, 1),
        }  # fmt: skip
        if name == "simulate":
            told["events"] = events_of(out / "data")
        write_json(found, told)
    return told


def measured_table(told: Row) -> list[str]:
    """What was measured, as Markdown."""
    head = f"{told['subjects']:,} subjects, {told.get('events', 0):,} events"
    lines = [
        f"| {head} | wall | CPU | own memory | with mapped files | disk | rate |",
        "|---|" + "---:|" * 6,
    ]
    for name, row in told["steps"].items():
        rate = f"{told['subjects'] / row['cpu_s']:,.0f} subjects per CPU-s"
        lines.append(
            f"| `{name}` | {row['wall_s']:,.0f} s | {row['cpu_s']:,.0f} s | {row.get('own_gib', 0):.2f} GiB "
            f"| {row['peak_gib']:.2f} GiB | {row['disk_gib']:.2f} GiB | {rate} |"
        )
    return lines


def projected_table(told: Row, price: float = PRICE) -> list[str]:
    """CPU-hours, disk and cost for larger numbers of the same subjects: all grow with the subjects.

    The cost is that of all steps but `simulate`, which users do not need. Memory and disk are not priced.
    """
    lines = [
        "| CPU-hours; disk | " + " | ".join(f"{size:,}" for size in SIZES) + " |",
        "|---|" + "---:|" * len(SIZES),
    ]
    for name, row in told["steps"].items():
        cells = []
        for size in SIZES:
            times = size / told["subjects"]
            disk = "" if name in ("train", "evaluate") else f"; {row['disk_gib'] * times:,.0f} GiB"
            cells.append(f"{row['cpu_s'] * times / 3600:,.1f}{disk}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    hours = sum(row["cpu_s"] for name, row in told["steps"].items() if name != "simulate") / 3600
    cells = [f"${hours * size / told['subjects'] * price:,.2f}" for size in SIZES]
    lines.append(
        f"| cost without `simulate`, at ${price:g} per core-hour (assumed) | "
        + " | ".join(cells)
        + " |"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--subjects", type=int, default=200_000)
    parser.add_argument(
        "--commands", default=",".join(STEPS), help="which steps, by name and with commas"
    )
    parser.add_argument(
        "--world", nargs="+", default=[], help="settings of the simulation, as visits_per_year=4"
    )
    parser.add_argument("--price", type=float, default=PRICE, help="assumed dollars per core-hour")
    parser.add_argument("settings", nargs="*", default=[], help="of training, as model.size=small")
    given = parser.parse_intermixed_args()
    given.out.mkdir(parents=True, exist_ok=True)
    told = run_chain(
        given.out, given.subjects, given.settings, given.commands.split(","), given.world
    )
    print("\n".join([*measured_table(told), "", *projected_table(told, given.price)]))


if __name__ == "__main__":
    main()
