"""Train, predict and serve in a loop: does memory or the number of open files grow? `python -m bench soak [SECONDS]`.

One process trains a small model and predicts with it, again and again; another one is `ehrseq serve`, which answers
requests meanwhile. After each round both are looked at: memory of their own (without mapped files) and descriptors.
The first fifth of the rounds is warming up. The command ends with 1 unless both are flat in the rest: no descriptor
more, and memory within 3 % + 8 MiB of where it was.

torch keeps up to 1,024 compiled kernels of oneDNN, one for each shape that it has met. Each training here has batches
of other shapes, so that this cache fills slowly and looks like a leak. Here it holds 16.
"""

import argparse
import gc
import http.client
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.speed.serving import bodies, served
from ehrsequencing.config import load_study, load_task
from ehrsequencing.prediction.predict import Request, predict
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

TINY = (
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=2",
    "training.min_steps=4",
    "training.blend=false",
)
CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
REQUESTS = 50  # a round


def train(store: Path, task: str, out: Path, *settings: str) -> None:
    """A tiny network alone."""
    study = load_study(None, [*TINY, *settings])
    fit(Plan.of(Prepared(store), task, study, as_given=True), out)


def looked_at(pid: int) -> tuple[float, int]:
    """MiB of a process's own memory, and its open descriptors."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    own = next(line for line in text.splitlines() if line.startswith("RssAnon"))
    return int(own.split()[1]) / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def asked(port: int, requests: list[bytes]) -> list[int]:
    """Send requests one after another; the status of each answer."""
    found = []
    for body in requests:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            found.append(reply.status)
        finally:
            connection.close()
    return found


def rounds(folder: Path, seconds: float) -> Iterator[dict[str, tuple[float, int]]]:
    """Until the time is over: a training, a prediction, requests; then what both processes have."""
    data, store = folder / "data", folder / "set"
    simulate(data, subjects=300, seed=5, config=SimulationConfig(truth_futures=4))
    task = load_task(data / "task.yaml")
    prepare(data, store, study=load_study(None, TINY), tasks=[task])
    train(store, task.name, folder / "served")
    requests = bodies(data, visits=20, count=REQUESTS)
    ends = time.monotonic() + seconds
    with served(folder / "served") as (server, port):
        number = 0
        while time.monotonic() < ends:
            number += 1
            out = folder / "run"
            train(store, task.name, out, f"training.seed={number}")
            predict(out, data, folder / "risks.parquet", Request(at="last"))
            answers = asked(port, requests)
            if set(answers) != {200}:
                raise SystemExit(f"the server answered {sorted(set(answers))}")
            shutil.rmtree(out)
            gc.collect()
            yield {"train and predict": looked_at(os.getpid()), "serve": looked_at(server)}


def verdict(seen: list[dict[str, tuple[float, int]]]) -> tuple[list[str], bool]:
    """A line for each process, and whether all are flat."""
    lines, flat = [], True
    start = len(seen) // 5
    part = max((len(seen) - start) // 4, 1)
    for name in seen[0]:
        memory = [row[name][0] for row in seen]
        files = [row[name][1] for row in seen]
        first, last = (
            statistics.median(memory[start : start + part]),
            statistics.median(memory[-part:]),
        )
        more = max(files[-part:]) - max(files[start : start + part])
        is_flat = last <= 1.03 * first + 8 and more <= 0
        flat &= is_flat
        lines.append(
            f"{name}: {first:.1f} MiB after warming up, {last:.1f} MiB at the end; {max(files[-part:])} descriptors "
            f"({more:+d}): {'flat' if is_flat else 'GROWS'}"
        )
    return lines, flat


def main() -> None:
    """Loop, print a line a minute, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=3600)
    given = parser.parse_args()
    if CACHE not in os.environ:  # read when torch is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, CACHE: "16"})
    seen: list[dict[str, tuple[float, int]]] = []
    told = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ehrseq-soak-") as folder:
        for found in rounds(Path(folder), given.seconds):
            seen.append(found)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(json.dumps({"rounds": len(seen), **found}), file=sys.stderr, flush=True)
    if len(seen) < 10:
        raise SystemExit(f"{len(seen)} rounds are too few to tell: give it more seconds")
    lines, flat = verdict(seen)
    print(
        f"{len(seen)} rounds of a training, a prediction and {REQUESTS} requests in {given.seconds:.0f} s"
    )
    print("\n".join(lines))
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
