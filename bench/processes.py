"""Training in one and in several processes; `python bench/processes.py PREPARED OUT [--rounds 3] [--devices 2]`.

In each round one process and N processes, of one thread each, train the same epochs in turning order. Printed are
medians over the rounds of subjects per second (the epochs' own clock, tuning split included) and of CPU seconds per
process, less those of a command that only starts. On a machine that others use, the clock says little. The ratio of CPU
seconds is what N idle cores could reach if no process ever waited for another.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

SETTINGS = ("model.size=medium", "training.epochs=2")


def cpu_seconds(command: list[str], threads: int) -> float:
    """CPU seconds of a command and all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(
    prepared: Path, out: Path, *, devices: int, threads: int, settings: list[str]
) -> tuple[float, float]:
    """Subjects per second, and CPU seconds per process without the start."""
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "ehrsequencing",
        "train",
        str(prepared),
        "--out",
        str(out),
        "--quiet",
    ]
    command += [*SETTINGS, *settings, *(["--devices", str(devices)] if devices > 1 else [])]
    whole = cpu_seconds(command, threads)
    # of a finished run: it starts and has nothing to do
    start = cpu_seconds([*command, "--resume"], threads)
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return statistics.mean(row["subjects_per_second"] for row in rows), (whole - start) / devices


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("settings", nargs="*", default=[])
    given = parser.parse_intermixed_args()
    ways = {"1 process": (1, 1), f"{given.devices} processes": (given.devices, 1)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(given.rounds):
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for name in order:
            devices, threads = ways[name]
            found[name].append(
                run(
                    given.prepared,
                    given.out,
                    devices=devices,
                    threads=threads,
                    settings=given.settings,
                )
            )
            print(
                number,
                name,
                found[name][-1],
                f"load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )
    print("| | subjects/s | CPU-s per process |\n|---|---:|---:|")
    for name, rows in found.items():
        rates, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {rates:.0f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()
