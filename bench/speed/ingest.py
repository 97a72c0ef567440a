"""MEDS → prepared arrays: events per CPU-second and peak memory; `python -m bench ingest OUT [--events N …]`.

Writes MEDS data sets of given sizes (shards of at most a million rows, subjects scattered over the shards as other
tools leave them), prepares each with one task, in a process of its own at one and at more processes, and prints a table
and `ingest.json`. CPU time is user and system time of all processes; peak memory is that of the largest process. Data
that is there already is used again; `--clean` removes each size's files after it was measured.
"""

import argparse
import json
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from joblib.externals.loky import get_reusable_executor
from numpy.typing import NDArray

from bench.measure import machine, made_once, run_bench
from ehrsequencing.config import TaskConfig, load_study
from ehrsequencing.core.files import write_json
from ehrsequencing.records.prepare import prepare

MUST_RATE, MUST_GIB = 5e6, 0.6  # PERFORMANCE.md: events per CPU-second, and peak memory
SHARD_ROWS = 1_000_000
CODES, NUMERIC_CODES, NUMERIC_SHARE = 20_000, 1_000, 0.30
EVENTS_PER_SUBJECT = 208  # visits and codes as drawn below, birth, sex and deaths
DAY_US = 86_400_000_000
TASK = TaskConfig.model_validate(
    {
        "name": "death",
        "index": {"first_visit": True},
        "outcome": {"death": ["MEDS_DEATH"]},
        "horizons": ["90d", "1y"],
        "landmarks": ["0d", "1y"],
    }
)
Row = dict[str, Any]


# ---- data ------------------------------------------------------------------------------------------------------------


def code_table() -> tuple[list[str], NDArray[np.float64]]:
    """Names of the codes (birth, death, two sexes, then those with numbers, then the others), and shares of the last.

    Both kinds fall off as Zipf's law has it; together the codes with numbers make up `NUMERIC_SHARE` of the events.
    """
    names = ["MEDS_BIRTH", "MEDS_DEATH", "SEX//F", "SEX//M"]
    names += [f"LAB//{k}" for k in range(NUMERIC_CODES)]
    kinds = ("DX", "RX", "PROC", "ADM")
    names += [f"{kinds[k % len(kinds)]}//{k}" for k in range(CODES - NUMERIC_CODES)]
    labs = 1.0 / np.arange(1, NUMERIC_CODES + 1)
    others = 1.0 / np.arange(1, CODES - NUMERIC_CODES + 1)
    return names, np.r_[
        labs / labs.sum() * NUMERIC_SHARE, others / others.sum() * (1 - NUMERIC_SHARE)
    ]


def make_shard(
    subject_id: NDArray[np.int64], seed: int, names: list[str], shares: NDArray[np.float64]
) -> pa.Table:
    """Draw one shard: visits per subject and codes per visit are lognormal (median 12, p99 152; median 6, p99 55)."""
    rng = np.random.default_rng(seed)
    n = len(subject_id)
    visits = np.maximum(np.rint(rng.lognormal(np.log(12), 1.09, n)), 1).astype(np.int64)
    owner = np.repeat(np.arange(n), visits)
    codes = np.maximum(np.rint(rng.lognormal(np.log(6), 0.95, len(owner))), 1).astype(np.int64)
    birth = rng.integers(-20_000, 10_000, n)
    day = (birth + 7_000)[owner] + rng.integers(0, 5_000, len(owner))
    visit = np.repeat(np.arange(len(owner)), codes)
    time_us = day[visit] * DAY_US + rng.integers(0, 600, len(visit)) * 60_000_000
    code = 4 + np.searchsorted(np.cumsum(shares)[:-1], rng.random(len(visit)), side="right")
    has_number = code < 4 + NUMERIC_CODES
    value = np.where(has_number, rng.normal(50 + code % 97, 12, len(code)).round(1), np.nan)
    dead = np.flatnonzero(rng.random(n) < 0.2)
    last = np.full(n, -(2**60))
    np.maximum.at(last, owner[visit], time_us)
    who = np.r_[np.arange(n), np.arange(n), owner[visit], dead]
    code = np.r_[2 + (subject_id % 2), np.zeros(n, np.int64), code, np.ones(len(dead), np.int64)]
    static = np.iinfo(np.int64).min
    time_us = np.r_[np.full(n, static), birth * DAY_US, time_us, last[dead] + 30 * DAY_US]
    value = np.r_[np.full(2 * n, np.nan), value, np.full(len(dead), np.nan)]
    order = np.lexsort((time_us, who))
    who, code, time_us, value = who[order], code[order], time_us[order], value[order]
    coded = pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), pa.array(names))
    return pa.table(
        {
            "subject_id": pa.array(subject_id[who]),
            "time": pa.array(time_us, mask=time_us == static).cast(pa.timestamp("us")),
            "code": coded.cast(pa.string()),
            "numeric_value": pa.array(value.astype(np.float32), mask=np.isnan(value)),
        }
    )


def make_data(folder: Path, events: int) -> int:
    """Write a data set of about so many events; returns how many it has."""
    return made_once(folder, "events", lambda: _write_data(folder, events))


def _write_data(folder: Path, events: int) -> int:
    names, shares = code_table()
    subjects = max(events // EVENTS_PER_SUBJECT, 1)
    # a tenth of room: no shard over the limit
    shards = -(-subjects * EVENTS_PER_SUBJECT * 11 // 10 // SHARD_ROWS)
    ids = np.random.default_rng(events).permutation(subjects).astype(np.int64) + 1_000_000
    (folder / "data").mkdir(parents=True, exist_ok=True)
    total = 0
    for number, part in enumerate(np.array_split(ids, shards)):
        table = make_shard(np.sort(part), events + number, names, shares)
        pq.write_table(table, folder / "data" / f"{number:04d}.parquet")
        total += len(table)
    return total


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(data: Path, out: Path, processes: int, settings: list[str]) -> Row:
    """Prepare in a child process; its CPU seconds (those of its own children included), wall seconds and peak RSS."""
    words = ("--prepare", data, "--processes", processes, *settings)
    child = run_bench("ingest", out, *words, threads=None)
    used = {"user_s": child.user_s, "system_s": child.system_s, "wall_s": child.wall_s}
    peaks = json.loads((out.parent / f"{out.name}.json").read_text())
    return {**used, "own_gib": child.own_gib, **peaks}


def prepare_here(data: Path, out: Path, processes: int, settings: list[str]) -> None:
    """What the child process does: prepare, then note the peak memory of this process and of its largest worker."""
    shutil.rmtree(out, ignore_errors=True)
    prepare(data, out, study=load_study(None, settings), tasks=[TASK], processes=processes)
    get_reusable_executor().shutdown(wait=True)  # a worker's memory counts when it has ended
    kinds = {"peak_gib": resource.RUSAGE_SELF, "worker_peak_gib": resource.RUSAGE_CHILDREN}
    peak = {name: resource.getrusage(kind).ru_maxrss / 2**20 for name, kind in kinds.items()}
    write_json(out.parent / f"{out.name}.json", peak)


def table(rows: list[Row]) -> str:
    """The results as Markdown."""
    lines = [
        "| events | processes | M events per CPU-second | CPU s (user + system) | wall s | peak GiB | worker GiB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        cpu = f"{r['user_s']:.1f} + {r['system_s']:.1f}"
        lines.append(
            f"| {r['events']:,} | {r['processes']} | {r['rate'] / 1e6:.2f} | {cpu} | {r['wall_s']:.1f} "
            f"| {r['peak_gib']:.2f} | {r['worker_peak_gib']:.2f} |"
        )
    goal = f"must: {MUST_RATE / 1e6:g} M events per CPU-second, {MUST_GIB} GiB, the same memory at every size"
    return "\n".join([*lines, "", goal])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", help="settings of prepare, as values.carry=false")
    parser.add_argument("--events", type=int, nargs="+", default=[10_000_000, 20_000_000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--clean", action="store_true", help="remove each size's data after it was measured"
    )
    parser.add_argument("--keep", action="store_true", help="leave each size's prepared set")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prepare is not None:
        prepare_here(given.prepare, given.out, given.processes[0], given.settings)
        return
    rows: list[Row] = []
    for size in given.events:
        data, out = given.out / f"meds-{size}", given.out / f"prepared-{size}"
        events = make_data(data, size)
        for processes in given.processes:
            found = measure(data, out, processes, given.settings)
            rate = events / (found["user_s"] + found["system_s"])
            rows.append({"events": events, "processes": processes, "rate": rate, **found})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        for folder in [data] * given.clean + [out] * (not given.keep):
            shutil.rmtree(folder)
    write_json(
        given.out / "ingest.json", {"machine": machine(), "settings": given.settings, "rows": rows}
    )
    print(table(rows))


if __name__ == "__main__":
    main()
