"""What a second thread is worth, alone and beside other work.

`python bench/threads.py PREPARED OUT [--others 0 1 2] [--rounds 3]` trains the same epochs in turning order with one
thread and with one thread a core, alone and beside processes that compute all the time. `spinning` waits as OpenMP does
by itself, `brief` for 30,000 turns. Printed are medians of subjects per second. Nothing else should run.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETTINGS = ("training.epochs=1", "training.blend=false")
CORES = str(os.cpu_count())
WAYS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "all cores, spinning": {"OMP_NUM_THREADS": CORES, "GOMP_SPINCOUNT": "30000000000"},
    "all cores, brief": {"OMP_NUM_THREADS": CORES, "GOMP_SPINCOUNT": "30000"},
}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Some processes that compute as long as the block lasts."""
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def rate(prepared: Path, out: Path, way: dict[str, str], settings: list[str]) -> float:
    """Subjects per second of a training, by its own clock."""
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
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    subprocess.run([*command, *SETTINGS, *settings], env=own | way, check=True)
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    return statistics.mean(row["subjects_per_second"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--others", type=int, nargs="+", default=[0, 1, 2], help="processes that compute beside it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("settings", nargs="*", default=[])
    given = parser.parse_intermixed_args()
    found: dict[tuple[str, int], list[float]] = {
        (name, others): [] for name in WAYS for others in given.others
    }
    for number in range(given.rounds):
        turns = list(found)[number % len(found) :] + list(found)[: number % len(found)]
        for name, others in turns:
            with busy(others):
                found[name, others].append(
                    rate(given.prepared, given.out, WAYS[name], given.settings)
                )
            print(
                number, name, others, f"{found[name, others][-1]:.0f}", file=sys.stderr, flush=True
            )
    print("| busy processes beside it | " + " | ".join(map(str, given.others)) + " |")
    print("|---" + "|---:" * len(given.others) + "|")
    for name in WAYS:
        cells = [f"{statistics.median(found[name, others]):.0f}" for others in given.others]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
