"""Us and the peers on the same data in one run: `python -m bench peers DATA OUT [--only prepare step load]`.

DATA holds `physionet2012_meds` and `mimic4_demo_meds`; a simulated set is made. OUT gets all that is prepared, logs,
and `peers.json`. First make the environments: `python bench/speed/peers/install.py`. README.md beside this file says
what is and what is not comparable.

Contenders take turns, round after round, so that all meet the same machine; the tables give medians over rounds, and
ratios of the same round. A peer that does not run is a row that says why.
"""

import argparse
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import measure
from bench.speed.peers.install import PEERS, installed, python_of
from bench.speed.peers.tables import Row, median_first, say, show_prepare, show_turns
from bench.speed.peers.turns import Worker, WorkerError

HERE = Path(__file__).parent
TASKS = measure.ROOT / "examples" / "tasks"
PYTHON = Path(sys.executable)
# the package that this python imports
EHRSEQ = [str(PYTHON), "-c", "from ehrsequencing.cli.app import main; main()"]
SIZES = {
    "medium": ["--dim=128", "--heads=4", "--layers=4"],
    "large": ["--dim=256", "--heads=8", "--layers=6"],
}
OURS, PYHEALTH, MEDS_TORCH_DATA = "ours", "pyhealth", "meds_torch_data"


@dataclass(frozen=True)
class Data:
    """A data set and how it is used here.

    Attributes:
        name: In tables.
        folder: MEDS.
        task: Task file.
        settings: Of `ehrseq prepare`.
        batch: Subjects in a batch. 8 where codes per visit reach the thousands: 32 would be tens of GiB when padded.
        subjects: Drawn for steps and loading.
    """

    name: str
    folder: Path
    task: Path
    settings: tuple[str, ...] = ()
    batch: int = 32
    subjects: int = 128


def environment(threads: int) -> dict[str, str]:
    """The same number of threads for everybody; no network, no questions."""
    count = str(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS")
    peer = python_of(MEDS_TORCH_DATA).parent
    # its commands call one another by name
    path = f"{peer}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **dict.fromkeys(names, count), "HF_HUB_OFFLINE": "1", "PATH": path}


# ---- data ------------------------------------------------------------------------------------------------------


def data_sets(data: Path, out: Path, *, simulated: int) -> list[Data]:
    """The two real sets, and one simulated."""
    made = out / f"simulated-{simulated}"
    if not (made / "task.yaml").is_file():
        shutil.rmtree(made, ignore_errors=True)
        command = [*EHRSEQ, "simulate", str(made), "--subjects", str(simulated)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    hourly = ("visits.by=window", "visits.window=1h")
    return [
        Data("simulated", made, made / "task.yaml"),
        Data("physionet2012", data / "physionet2012_meds", TASKS / "physionet2012.yaml", hourly),
        Data(
            "mimic4_demo",
            data / "mimic4_demo_meds",
            TASKS / "mimic4_demo.yaml",
            batch=8,
            subjects=32,
        ),
    ]


def events_of(folder: Path) -> int:
    """Rows of a MEDS data set."""
    return sum(pq.read_metadata(path).num_rows for path in (folder / "data").rglob("*.parquet"))


def several_times(data: Data, out: Path, copies: int) -> Data:
    """The same records so many times over, each copy in shards of its own and under subject ids of its own."""
    made = out / f"{data.name}-x{copies}"
    shutil.rmtree(made, ignore_errors=True)
    splits = pq.read_table(data.folder / "metadata" / "subject_splits.parquet")
    shift = int(pc.max(splits["subject_id"]).as_py()) + 1

    def moved(table: pa.Table, copy: int) -> pa.Table:
        place = table.schema.get_field_index("subject_id")
        ids = pc.add(table["subject_id"], pa.scalar(copy * shift, pa.int64()))
        return table.set_column(place, table.schema.field(place), ids)

    for path in sorted((data.folder / "data").rglob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        folder = made / path.parent.relative_to(data.folder)
        folder.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            pq.write_table(moved(table, copy), folder / f"{copy}-{path.name}")
    (made / "metadata").mkdir()
    for name in ("codes.parquet", "dataset.json"):
        if (data.folder / "metadata" / name).is_file():
            shutil.copyfile(data.folder / "metadata" / name, made / "metadata" / name)
    every = pa.concat_tables([moved(splits, copy) for copy in range(copies)])
    pq.write_table(every, made / "metadata" / "subject_splits.parquet")
    return Data(f"{data.name} ×{copies}", made, data.task, data.settings, data.batch, data.subjects)


# ---- preparing -------------------------------------------------------------------------------------------------


def prepare_commands(data: Data, out: Path) -> dict[str, tuple[list[str], Path]]:
    """Each contender's command and the folder that it makes."""
    place = data.name.replace(" ×", "-x")
    ours, bare = out / f"ours-{place}", out / f"ours-{place}-no-task"
    theirs = out / f"meds-torch-data-{place}"
    words = [*EHRSEQ, "prepare", str(data.folder), *data.settings]
    peer = str(python_of(MEDS_TORCH_DATA).with_name("MTD_preprocess"))
    places = [f"MEDS_dataset_dir={data.folder.resolve()}", f"output_dir={theirs.resolve()}"]
    return {
        "ours": ([*words, "--out", str(bare)], bare),
        "ours, with labels": ([*words, "--out", str(ours), "--task", str(data.task)], ours),
        "meds-torch-data": ([peer, *places, "do_overwrite=True"], theirs),
    }


def measured_child(command: Sequence[str], made: Path, log: Path, threads: int) -> Row:
    """Run to the end: wall and CPU seconds, children of children included, and the peak of the largest process."""
    if not Path(command[0]).is_file():
        return {"failed": f"{command[0]} is not there: python bench/speed/peers/install.py"}
    child = measure.run(
        command, environment=environment(threads), with_errors=True, must_succeed=False
    )
    log.write_text(child.printed)
    peak = 1024 * child.peak_gib
    row: Row = {"seconds": child.wall_s, "cpu_seconds": child.cpu_s, "peak_mib": peak}
    if child.code or not made.is_dir():
        row["failed"] = last_error(log)
    return row


def last_error(log: Path) -> str:
    """The last line of a log that names an error, without its colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace")).splitlines()
    telling = [line.strip() for line in lines if "Error" in line or "error:" in line] or lines
    return f"{telling[-1][:300] if telling else 'no word'} (see {log})"


def bench_prepare(data: Sequence[Data], out: Path, *, rounds: int, threads: int) -> list[Row]:
    """Every data set by every contender, round after round."""
    rows: list[Row] = []
    for number in range(rounds):
        for each in data:
            events = events_of(each.folder)
            for name, (command, made) in prepare_commands(each, out).items():
                shutil.rmtree(made, ignore_errors=True)
                row = measured_child(
                    command, made, out / "logs" / f"prepare-{made.name}.log", threads
                )
                row |= {"data": each.name, "contender": name, "events": events, "round": number}
                rows.append(row)
                say(row)
    return rows


def prepare_table(rows: Sequence[Row], grown: tuple[str, str]) -> list[Row]:
    """Medians over rounds, and what a further event costs between a data set and the same several times over."""
    table: list[Row] = []
    for data, name in dict.fromkeys((row["data"], row["contender"]) for row in rows):
        here = [row for row in rows if (row["data"], row["contender"]) == (data, name)]
        failed = [row["failed"] for row in here if "failed" in row]
        line: Row = {"data": data, "contender": name, "events": here[0]["events"]}
        if failed:
            table.append(line | {"failed": failed[0]})
            continue
        line |= {
            key: statistics.median(row[key] for row in here)
            for key in ("cpu_seconds", "seconds", "peak_mib")
        }
        table.append(line | {"events_per_cpu_second": line["events"] / line["cpu_seconds"]})
    good = {(line["data"], line["contender"]): line for line in table if "failed" not in line}
    small, large = grown
    for name in dict.fromkeys(line["contender"] for line in table):
        if (small, name) in good and (large, name) in good:
            a, b = good[small, name], good[large, name]
            further = (b["events"] - a["events"]) / max(b["cpu_seconds"] - a["cpu_seconds"], 1e-9)
            b["further_events_per_cpu_second"] = further
    return table


# ---- steps and loading -------------------------------------------------------------------------------------------


def contenders(what: str, data: Data, out: Path, size: str) -> dict[str, list[str]]:
    """Commands of the workers of one comparison; ours first."""
    samples, prepared = str(out / f"samples-{data.name}.json"), str(out / f"ours-{data.name}")
    batch = ["--batch", str(data.batch)]
    ours = [str(PYTHON), str(HERE / "ours.py"), what, prepared, samples, *batch]
    pyhealth = [str(python_of(PYHEALTH)), str(HERE / "pyhealth_step.py"), what, samples, *batch]
    if what == "step":
        return {
            "ours": [*ours, *SIZES[size]],
            "ours, codes only": [*ours, *SIZES[size], "--inputs=codes"],
            "PyHealth Transformer": [*pyhealth, *SIZES[size]],
        }
    tensorized = str(out / f"meds-torch-data-{data.name}")
    peer = [
        str(python_of(MEDS_TORCH_DATA)),
        str(HERE / "meds_torch_data.py"),
        tensorized,
        samples,
        *batch,
    ]
    return {
        "ours": [*ours],
        "meds-torch-data": [*peer],
        "meds-torch-data, last 512": [*peer, "--max-length=512"],
        "PyHealth, in memory": [*pyhealth],
    }


def bench_turns(
    what: str, data: Data, out: Path, *, size: str, rounds: int, threads: int
) -> list[Row]:
    """Workers of one comparison, one turn each per round; the first round only warms up."""
    table: list[Row] = []
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, command in contenders(what, data, out, size).items():
            log = out / "logs" / f"{what}-{data.name}-{re.sub('[^a-z0-9]+', '-', name.lower())}.log"
            line: Row = {"data": data.name, "contender": name, "batch": data.batch}
            table.append(line)
            try:
                workers[name] = stack.enter_context(Worker(command, environment(threads), log))
                line |= workers[name].facts | {"turns": []}
            except WorkerError as error:
                line["failed"] = str(error)
        for number in range(rounds + 1):
            for line in table:
                if "failed" in line:
                    continue
                try:
                    turn = workers[line["contender"]].turn()
                except WorkerError as error:
                    line["failed"] = str(error)
                    continue
                if number:
                    line["turns"].append(turn)
    summarise(table)
    for line in table:
        say(line)
    return table


def summarise(table: Sequence[Row]) -> None:
    """Medians and quartiles over rounds; ratios ours ÷ theirs within a round."""
    for line in table:
        if "failed" in line:
            line.pop("turns", None)
            continue
        turns = line["turns"]
        line["subjects_per_second"] = median_first(
            [turn["subjects"] / turn["seconds"] for turn in turns]
        )
        line["subjects_per_cpu_second"] = median_first(
            [turn["subjects"] / turn["cpu_seconds"] for turn in turns]
        )
        line["peak_mib"] = max(turn["peak_mib"] for turn in turns)
    first = table[0]
    for line in table[1:]:
        if "failed" in line or "failed" in first:
            continue
        pairs = list(zip(first["turns"], line["turns"], strict=True))
        line["ours_times_faster"] = median_first(
            [a["subjects"] / a["seconds"] / (b["subjects"] / b["seconds"]) for a, b in pairs]
        )
        line["ours_times_faster_cpu"] = median_first(
            [
                a["subjects"] / a["cpu_seconds"] / (b["subjects"] / b["cpu_seconds"])
                for a, b in pairs
            ]
        )


# ---- all of it ----------------------------------------------------------------------------------------------------


def machine() -> Row:
    """Where this ran, with what."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions: Row = {}
    for name in PEERS:
        wanted = ("torch", "pyhealth", "meds-torch-data", "meds-transforms", "polars", "numpy")
        found = {key.replace("_", "-"): version for key, version in installed(name).items()}
        versions[name] = {key: version for key, version in found.items() if key in wanted}
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "ehrsequencing": metadata.version("ehrsequencing"),
        "peers": versions,
    }


def main() -> None:
    """Run what is asked for, print tables, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["prepare", "step", "load"],
        default=["prepare", "step", "load"],
    )
    parser.add_argument(
        "--names", nargs="+", help="of simulated, physionet2012, mimic4_demo; default all"
    )
    parser.add_argument("--rounds", type=int, default=9, help="of steps and loading")
    parser.add_argument("--prepare-rounds", type=int, default=3)
    parser.add_argument(
        "--copies", type=int, default=8, help="of physionet2012, to see what a further event costs"
    )
    parser.add_argument("--simulated", type=int, default=3000, help="subjects")
    parser.add_argument("--size", choices=list(SIZES), default="medium")
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    missing = [name for name in PEERS if not python_of(name).is_file()]
    if missing:
        print(
            f"not installed: {', '.join(missing)} (python bench/speed/peers/install.py)",
            file=sys.stderr,
        )
    (a.out / "logs").mkdir(parents=True, exist_ok=True)
    result: Row = {"machine": machine(), "arguments": {k: str(v) for k, v in vars(a).items()}}
    data = [
        d
        for d in data_sets(a.data, a.out, simulated=a.simulated)
        if not a.names or d.name in a.names
    ]

    if "prepare" in a.only:
        base = next((d for d in data if d.name == "physionet2012"), data[0])
        grown = several_times(base, a.out, a.copies)
        rounds = bench_prepare([*data, grown], a.out, rounds=a.prepare_rounds, threads=a.threads)
        result["prepare_rounds"], result["prepare"] = (
            rounds,
            prepare_table(rounds, (base.name, grown.name)),
        )
        for folder in (
            grown.folder,
            *(made for _, made in prepare_commands(grown, a.out).values()),
        ):
            shutil.rmtree(folder, ignore_errors=True)
    for what in ("step", "load"):
        if what not in a.only:
            continue
        result[what] = []
        for each in data:
            make_ready(each, a.out, a.threads)
            result[what] += bench_turns(
                what, each, a.out, size=a.size, rounds=a.rounds, threads=a.threads
            )
    result["seconds_of_children"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    (a.out / "peers.json").write_text(json.dumps(result, indent=1))

    print(json.dumps(result["machine"], indent=1))
    if "prepare" in result:
        show_prepare(result["prepare"])
    if "step" in result:
        title = (
            f"Training step ({a.size}): forward, backward, clip, fused AdamW, float32, no dropout"
        )
        show_turns(title, result["step"], {"parameters": lambda r: f"{r['parameters']:,}"})
    if "load" in result:
        extra = {
            "codes per subject": lambda r: (
                f"{r['codes_per_subject']:.0f}" if "codes_per_subject" in r else "-"
            )
        }
        show_turns("Loading: random subjects → a batch", result["load"], extra)
    print(f"\n{a.out / 'peers.json'}")


def make_ready(data: Data, out: Path, threads: int) -> None:
    """Prepare what is not there yet, and draw the batches."""
    for name, (command, made) in prepare_commands(data, out).items():
        if not made.is_dir() and name != "ours":
            row = measured_child(command, made, out / "logs" / f"prepare-{made.name}.log", threads)
            if "failed" in row and name == "ours, with labels":
                raise SystemExit(f"ehrseq prepare failed on {data.name}: {row['failed']}")
    samples = out / f"samples-{data.name}.json"
    words = [str(out / f"ours-{data.name}"), str(samples), "--subjects", str(data.subjects)]
    subprocess.run(
        [str(PYTHON), str(HERE / "ours.py"), "export", *words], check=True, env=environment(threads)
    )


if __name__ == "__main__":
    main()
