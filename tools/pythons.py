"""Whether several Pythons make the same bytes: `python tools/pythons.py OUT PYTHON [PYTHON …]`.

Each interpreter, with one thread, simulates, prepares, trains a small network for two epochs, predicts and evaluates. A
table says for each kind of output whose files they are equal to, byte for byte (a run's JSON files less times, versions
and paths, as in `same_bytes.py`), and how far weights and risks are from the first one's at most. Exits 1 where two
interpreters with the same build of torch differ.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from same_bytes import ROOT, digest

SMALL = [
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=2",
    "training.min_steps=4",
    "training.blend=false",
]
ASK = "import json, sys, numpy, torch\n"
ASK += "print(json.dumps([sys.version.split()[0], torch.__version__, numpy.__version__]))"
KINDS = ["simulated", "prepared", "weights", "history", "predictions", "metrics"]


def make(python: Path, out: Path, subjects: int) -> dict[str, Any]:
    """Run the chain with one interpreter; digests of what it made, by kind."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "random",
    }
    ask = subprocess.run(
        [python, "-c", ASK], env=environment, check=True, capture_output=True, text=True
    )
    version, torch, numpy_version = json.loads(ask.stdout)
    # manifests name the folder of the data: it must be the same for all
    ready, folder = (
        out / version,
        out / "now",
    )
    data, prepared, run = folder / "data", folder / "prepared", folder / "run"
    commands: list[list[object]] = [
        ["simulate", data, "--subjects", subjects, "--seed", 0],
        ["prepare", data, "--task", data / "task.yaml", "--out", prepared],
        ["train", prepared, "--out", run, *SMALL],
        ["predict", run, data, "--out", folder / "risks.parquet"],
        ["evaluate", run, "--baselines", "fast", "evaluation.bootstrap=20"],
    ]
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        for words in commands:
            command = [python, "-m", "ehrsequencing", *map(str, words), "-q"]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        folder.rename(ready)
    data, prepared, run = ready / "data", ready / "prepared", ready / "run"
    files = {
        "simulated": sorted(path for path in data.rglob("*.parquet")),
        "prepared": sorted(path for path in prepared.rglob("*") if path.is_file()),
        "weights": [run / "model.safetensors"],
        "history": [run / "history.jsonl"],
        "predictions": [ready / "risks.parquet"],
        "metrics": [run / "metrics.json"],
    }
    digests = {
        kind: {str(path.relative_to(ready)): digest(path) for path in files[kind]} for kind in KINDS
    }
    exactly = [path for path in files["prepared"] if path.suffix == ".json"]
    digests["prepared"] |= {
        str(path.relative_to(ready)): sha256(path.read_bytes()).hexdigest() for path in exactly
    }
    return {
        "python": version,
        "torch": torch,
        "numpy": numpy_version,
        "folder": ready,
        "digests": digests,
    }


def gaps(first: Path, other: Path) -> tuple[float, float]:
    """Largest differences of weights and of risks."""
    ours, theirs = (load_file(folder / "run" / "model.safetensors") for folder in (first, other))
    weights = max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
    one, two = (pq.read_table(folder / "risks.parquet") for folder in (first, other))
    columns = [field.name for field in one.schema if str(field.type) in {"float", "double"}]
    pairs = [(one[name].to_numpy(), two[name].to_numpy()) for name in columns]
    return weights, max(float(np.nanmax(np.abs(a - b))) for a, b in pairs)


def main(out: Path, pythons: list[Path], subjects: int) -> int:
    """Print the table; how many pairs differ that should not."""
    found = [make(python, out, subjects) for python in pythons]
    wrong = 0
    print(
        "| Python | torch | NumPy | "
        + " | ".join(KINDS)
        + " | weights differ by | risks differ by |"
    )
    print("|---|---|---|" + "---|" * (len(KINDS) + 2))
    for one in found:
        cells = []
        for kind in KINDS:
            same = next(other for other in found if other["digests"][kind] == one["digests"][kind])
            cells.append(
                f"as {same['python']}"
                if same is not one
                else "its own"
                if one is not found[0]
                else "first"
            )
            mates = [other for other in found if other["torch"] == one["torch"]]
            wrong += one["digests"][kind] != mates[0]["digests"][kind]
        weights, risks = gaps(found[0]["folder"], one["folder"])
        print(
            f"| {one['python']} | {one['torch']} | {one['numpy']} | {' | '.join(cells)} | {weights:.1e} | {risks:.1e} |"
        )
    (out / "pythons.json").write_text(json.dumps(found, indent=1, default=str))
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("pythons", type=Path, nargs="+")
    parser.add_argument("--subjects", type=int, default=400)
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    sys.exit(
        1 if main(out, [path.absolute() for path in arguments.pythons], arguments.subjects) else 0
    )
