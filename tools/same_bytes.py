"""Whether a change moved an output: `python tools/same_bytes.py SOURCE OUT`, then `… --compare OUT OTHER`.

Runs the demo, NAFLD (default settings, three epochs, evaluated and predicted) and an OMOP import with the package in
SOURCE (a checkout's `src`), and writes `OUT/digests.json`: one SHA-256 for each file of every folder made. JSON and
HTML files are hashed less the time, the speed, the versions and the place of a run. `--compare` lists the files whose
digests differ between two such folders, with the JSON entries that do, and exits 1 where there are any. `--values`
compares numbers in place of bytes: every tensor and risk must be equal, every metric to half of its last printed digit.
"""

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("EHRSEQ_DATA", ROOT / "../shared/data")).resolve()
VOLATILE = {
    "versions",
    "created",
    "path",
    "data",
    "data_path",
    "prepared",
    "files",
    "manifest",
    "sha256",
}
VOLATILE |= {"seconds", "wall_seconds"}
SPEED = re.compile(rb" in [0-9.,]+ (seconds|minutes|hours)")


def jobs(out: Path) -> list[tuple[str, list[object]]]:
    """The commands, in order, each with the folder whose presence says that it is done."""
    nafld, prepared, run = DATA / "nafld_meds", out / "nafld-prepared", out / "nafld"
    pbc2, pbc2_prepared = DATA / "pbc2_meds", out / "pbc2-prepared"
    tasks = ROOT / "examples/tasks"
    demo = ["train", out / "demo/prepared", "--out"]
    alone = ["training.blend=false"]  # commits before it was a default take it too
    short = ["training.epochs=2", "training.min_steps=4"]
    objectives = ["pretraining.objectives={masked_codes: 1.0, time_to_code: 1.0}", *short]
    return [
        ("demo", ["demo", "--out", out / "demo"]),
        (
            "nafld-prepared",
            ["prepare", nafld, "--task", tasks / "nafld.yaml", "--out", prepared],
        ),
        (
            "nafld",
            ["train", prepared, "--task", "nafld", "--out", run, "training.epochs=3", *alone],
        ),
        ("nafld/report.html", ["evaluate", run]),
        ("nafld.parquet", ["predict", run, nafld, "--out", out / "nafld.parquet"]),
        ("pbc2-prepared", ["prepare", pbc2, "--task", tasks / "pbc2.yaml", "--out", pbc2_prepared]),
        ("pbc2", ["train", pbc2_prepared, "--task", "pbc2", "--out", out / "pbc2", *alone]),
        ("pbc2/report.html", ["evaluate", out / "pbc2"]),
        ("pbc2.parquet", ["predict", out / "pbc2", pbc2, "--out", out / "pbc2.parquet"]),
        (
            "pretrained",
            ["pretrain", out / "demo/prepared", "--out", out / "pretrained", *objectives],
        ),
        (
            "frozen",
            [*demo, out / "frozen", "--init", out / "pretrained", "transfer.mode=frozen", *short],
        ),
        ("members", [*demo, out / "members", "training.members=2", *short, *alone]),
        ("blend", [*demo, out / "blend", "training.blend=true", *short]),
        ("omop", ["import", "omop", DATA / "mimic4_demo_omop", out / "omop"]),
    ]


def cleaned(value: Any) -> Any:
    """A JSON value without what differs between two runs of the same code."""
    if isinstance(value, dict):
        return {key: cleaned(entry) for key, entry in value.items() if key not in VOLATILE}
    return [cleaned(entry) for entry in value] if isinstance(value, list) else value


def digest(path: Path) -> str:
    """SHA-256 of a file; of a JSON file, of its lasting entries."""
    if path.suffix in {".json", ".jsonl"}:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return hashlib.sha256(
            json.dumps([cleaned(json.loads(line)) for line in lines]).encode()
        ).hexdigest()
    found = path.read_bytes()
    return hashlib.sha256(SPEED.sub(b"", found) if path.suffix == ".html" else found).hexdigest()


def make(source: Path, out: Path) -> None:
    """Run every job and write the digests."""
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    for made, command in jobs(out):
        if not (out / made).exists():
            words = [
                sys.executable,
                "-c",
                "from ehrsequencing.cli.app import main; main()",
                *map(str, command),
            ]
            subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    files = sorted(
        path for path in out.rglob("*") if path.is_file() and path != out / "digests.json"
    )
    table = {str(path.relative_to(out)): digest(path) for path in files}
    (out / "digests.json").write_text(json.dumps(table, indent=1))


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Where two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted((before.keys() | after.keys()) - VOLATILE)
        return [
            d
            for key in keys
            for d in differences(before.get(key), after.get(key), f"{place}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{place}/{i}")]
    return [] if before == after else [place]


def compare(one: Path, other: Path) -> int:
    """Print what differs; how many files do."""
    before, after = (json.loads((folder / "digests.json").read_text()) for folder in (one, other))
    moved = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    for name in moved:
        print(name, "" if name in before else "is new", "" if name in after else "is gone")
        if name in before and name in after and name.endswith(".json"):
            places = differences(
                *(json.loads((folder / name).read_text()) for folder in (one, other))
            )
            print("   ", *places[:8], f"and {len(places) - 8} more" if len(places) > 8 else "")
    print(f"{len(before.keys() | after.keys()) - len(moved)} files equal, {len(moved)} not")
    return len(moved)


def same_arrays(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two sets of named arrays are equal to the bit."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f")
        for name in one
    )


def risks(path: Path) -> dict[str, np.ndarray]:
    """The columns of a prediction file, in their order."""
    table = pq.read_table(path)
    return {
        name: column.to_numpy(zero_copy_only=False)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def metric_values(value: Any, place: str = "") -> dict[str, float]:
    """Every number of a JSON value under a metric's name, by its place; counts are left out."""
    if isinstance(value, dict):
        return {
            name: found
            for key, entry in value.items()
            for name, found in metric_values(entry, f"{place}/{key}").items()
        }
    if isinstance(value, list):
        return {
            name: found
            for number, entry in enumerate(value)
            for name, found in metric_values(entry, f"{place}/{number}").items()
        }
    return {place: value} if isinstance(value, float) and math.isfinite(value) else {}


def compare_values(one: Path, other: Path) -> int:
    """Print which numbers moved: weights, risks, metrics."""
    moved = 0
    for path in sorted(one.rglob("model.safetensors")):
        name = path.relative_to(one)
        equal = (other / name).is_file() and same_arrays(load_file(path), load_file(other / name))
        print("weights", name, "equal" if equal else "MOVED")
        moved += not equal
    for path in sorted(one.glob("*.parquet")):
        equal = (other / path.name).is_file() and same_arrays(risks(path), risks(other / path.name))
        print("risks", path.name, "equal" if equal else "MOVED")
        moved += not equal
    for path in sorted(one.rglob("metrics.json")):
        name = path.relative_to(one)
        before, after = (metric_values(json.loads((f / name).read_text())) for f in (one, other))
        shared = before.keys() & after.keys()
        far = sorted(
            place for place in shared if not math.isclose(before[place], after[place], abs_tol=6e-4)
        )
        print("metrics", name, f"{len(shared) - len(far)} equal, {len(far)} MOVED", *far[:8])
        print(
            "    only before:", len(before.keys() - shared), "only now:", len(after.keys() - shared)
        )
        moved += len(far)
    return moved


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--compare", action="store_true", help="list the files whose bytes differ")
    parser.add_argument("--values", action="store_true", help="list the numbers that differ")
    arguments = parser.parse_args()
    if arguments.values:
        sys.exit(1 if compare_values(arguments.first, arguments.second) else 0)
    if arguments.compare:
        sys.exit(1 if compare(arguments.first, arguments.second) else 0)
    make(arguments.first.resolve(), arguments.second.resolve())
