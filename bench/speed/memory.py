"""Memory of every command against the number of subjects: `python -m bench memory OUT [--subjects 10000 100000]`.

With `--fhir FOLDER` of an export (.ndjson.gz), of `import fhir` instead: its resources are repeated under other ids.
With `--blend`, of the default model with two epochs and its whole evaluation, on simulations that repeat nobody.

A small simulation is repeated under other ids until there are enough subjects, 2,000 in each shard. Each command runs
in a process of its own. "Own" is its memory without the pages of mapped files, which the system takes back when it
needs them. The last columns are what each further subject takes: a command that streams has next to no memory.
"""

import argparse
import gzip
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.measure import EHRSEQ, run
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.simulate import SimulationConfig, simulate

BLOCK = 2_000  # simulated subjects, and subjects of a shard
DRAWN, FEW = "evaluation.subjects=5000", SimulationConfig(truth_futures=4)
SMALL = (
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "training.epochs=1",
    "training.subjects_per_step=null",
    "training.blend=false",
)


def repeated(source: Path, out: Path, *, times: int) -> Path:
    """A data set with the subjects of another one so many times, each time under new ids, in shards of its own."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(MANIFEST, "data", "truth*"))
    splits = pq.read_table(source / "metadata" / "subject_splits.parquet")
    step = pc.max(splits["subject_id"]).as_py() + 1
    pq.write_table(
        pa.concat_tables(_moved(splits, k * step) for k in range(times)),
        out / "metadata" / "subject_splits.parquet",
    )
    for path in sorted((source / "data").rglob("*.parquet")):
        table, folder = pq.read_table(path), out / path.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        for k in range(times):
            pq.write_table(_moved(table, k * step), folder / f"{k:05d}-{path.name}")
    return out


def repeated_fhir(source: Path, out: Path, *, times: int) -> Path:
    """The resources of an export so many times, each time with other UUIDs in ids and references."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    begins = re.compile(r"[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-)")
    for path in sorted(source.glob("*.ndjson.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        with gzip.open(out / path.name, "wt", encoding="utf-8", compresslevel=1) as file:
            for k in range(times):
                file.write(begins.sub(lambda found, k=k: f"{int(found[0], 16) ^ k:08x}", text))
    return out


def _moved(table: pa.Table, by: int) -> pa.Table:
    place = table.schema.get_field_index("subject_id")
    moved = pc.add(table["subject_id"], pa.scalar(by, pa.int64()))
    return table.set_column(place, table.schema.field(place), moved)


def measure(words: Sequence[object]) -> dict[str, float]:
    """Run a command of ehrseq: seconds, and MiB at most, with and without mapped files."""
    child = run([*EHRSEQ, *words, "-q"])
    own, peak = 1024 * child.own_gib, 1024 * child.peak_gib
    return {"own_mib": own, "peak_mib": peak, "seconds": child.wall_s, "cpu_seconds": child.cpu_s}


def commands(data: Path, folder: Path, *, blend: bool) -> dict[str, list[object]]:
    """The commands that are measured, in the order in which they need one another."""
    prepared, run, risks = folder / "prepared", folder / "run", folder / "risks.parquet"
    prepare = ["prepare", data, "--task", data / "task.yaml", "--out", prepared]
    if blend:
        train = ["train", prepared, "--out", run, "training.epochs=2"]
        return {"prepare": prepare, "train": train, "evaluate": ["evaluate", run]}
    outside = ("--data", data, "--out", folder / "external")
    few = ("evaluation.bootstrap=20", "--baselines", "none")
    return {
        "prepare": prepare,
        "train": ["train", prepared, "--out", run, *SMALL],
        "predict --at last": ["predict", run, data, "--at", "last", "--out", risks],
        "evaluate": ["evaluate", run, *few],
        "evaluate, 5,000 subjects": ["evaluate", run, *few, DRAWN],
        "evaluate --data, 5,000 subjects": ["evaluate", run, *outside, *few, DRAWN],
        "explain --subjects 100": ["explain", run, data, "--subjects", 100],
    }


def main() -> None:
    """Measure, print a table, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--subjects", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--fhir", type=Path, help="Folder with a FHIR export: measure its import")
    parser.add_argument("--blend", action="store_true", help="The default model, two epochs")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.fhir is not None:
        print(table(measure_fhir(given.fhir, given.out, given.subjects), given.subjects))
        return
    source = given.out / "block"
    if not source.is_dir():
        simulate(source, subjects=BLOCK, seed=0, config=FEW)
    found: dict[str, dict[int, Any]] = {}
    for subjects in given.subjects:
        folder = given.out / str(subjects)
        data = folder / "data"
        if not given.blend:
            repeated(source, data, times=max(1, subjects // BLOCK))
        elif not data.is_dir():
            simulate(data, subjects=subjects, seed=0, config=FEW)
        for name, words in commands(data, folder, blend=given.blend).items():
            if name == "train":
                shutil.rmtree(folder / "run", ignore_errors=True)
            found.setdefault(name, {})[subjects] = measure(words)
            print(f"{subjects:,} subjects, {name}: {found[name][subjects]}", file=sys.stderr)
    (given.out / "memory.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(table(found, given.subjects))


def measure_fhir(source: Path, out: Path, sizes: Sequence[int]) -> dict[str, dict[int, Any]]:
    """Memory of `ehrseq import fhir` by about so many patients."""
    patients = gzip.decompress((source / "Patient.ndjson.gz").read_bytes()).count(b"\n")
    found: dict[str, dict[int, Any]] = {"import fhir": {}}
    for size in sizes:
        data = repeated_fhir(source, out / f"fhir-{size}", times=max(1, round(size / patients)))
        found["import fhir"][size] = measure(["import", "fhir", data, out / f"meds-{size}"])
        print(f"{size:,} patients: {found['import fhir'][size]}", file=sys.stderr, flush=True)
        shutil.rmtree(data)
    return found


def table(found: dict[str, dict[int, Any]], sizes: Sequence[int]) -> str:
    """Own memory and CPU time by command and number of subjects, as Markdown."""
    columns = [*(f"{size:,}" for size in sizes), "bytes, CPU ms for each further subject"]
    lines = [f"| own MiB (peak), CPU s | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name, by in found.items():
        measured = [(one["own_mib"], one["peak_mib"], one["cpu_seconds"]) for one in by.values()]
        cells = [f"{own:,.0f} ({peak:,.0f}), {cpu:,.0f}" for own, peak, cpu in measured]
        first, last, further = by[min(by)], by[max(by)], max(max(by) - min(by), 1)
        more = (last["own_mib"] - first["own_mib"]) * 2**20 / further
        cpu = (last["cpu_seconds"] - first["cpu_seconds"]) * 1000 / further
        lines.append(f"| {name} | {' | '.join(cells)} | {more:,.0f}, {cpu:,.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
