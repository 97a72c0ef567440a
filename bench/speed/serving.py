"""Latency of `ehrseq serve`: `python -m bench serving RUN DATA`.

Starts the command, sends `--requests` requests to `POST /predict` from `--clients` clients on this machine, and prints
percentiles of the time from sending a request to the end of its answer. Each request is the record of one subject of
DATA, repeated in time until it has `--visits` visits (or the nearest that its codes give).
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

OUTCOMES = ("DX//OUTCOME", "MEDS_DEATH", "END_OF_FOLLOWUP")


def bodies(data: Path, *, visits: int, count: int) -> list[bytes]:
    """Requests about subjects with so many days of rows."""
    table = pq.read_table(sorted((data / "data").rglob("*.parquet"))[0])
    found = []
    for subject in pc.unique(table["subject_id"]).to_pylist()[:count]:
        rows = table.filter(pc.equal(table["subject_id"], subject)).to_pylist()
        timed = [
            row
            for row in rows
            if row["time"] is not None and row["code"] not in ("MEDS_BIRTH", *OUTCOMES)
        ]
        days = sorted({row["time"].date() for row in timed})
        if len(days) < 2:
            continue
        span, made = timed[-1]["time"] - timed[0]["time"] + timedelta(days=1), []
        for turn in range(-(-visits // len(days))):
            made += [{**row, "time": row["time"] + turn * span} for row in timed]
        last = sorted({row["time"].date() for row in made})[:visits][-1]
        kept = [row for row in rows if row["time"] is None or row["code"] == "MEDS_BIRTH"]
        kept += [row for row in made if row["time"].date() <= last]
        found.append(json.dumps({"rows": [as_json(row) for row in kept]}).encode())
    return found


def as_json(row: dict[str, object]) -> dict[str, object]:
    """A row without its subject."""
    when = row["time"]
    return {
        "time": when.isoformat() if isinstance(when, datetime) else None,
        "code": row["code"],
        "numeric_value": row["numeric_value"],
    }


def client(port: int, sent: list[bytes]) -> list[float]:
    """Seconds of each request, one after another on one connection."""
    connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
    for body in sent:
        start = time.perf_counter()
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        seconds.append(time.perf_counter() - start)
        assert answer.status == 200, found
        assert found["predictions"], found["why_none"]
    return seconds


@contextmanager
def served(run: Path, *words: str) -> Iterator[tuple[int, int]]:
    """`ehrseq serve` in a process of its own: its number and its port."""
    command = [sys.executable, "-m", "ehrsequencing", "serve", str(run), *words, "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" (")[0]
            yield server.pid, int(address.rpartition(":")[2].strip("/ \n"))
        finally:
            server.terminate()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--visits", type=int, default=50)
    given = parser.parse_args()
    sent = bodies(given.data, visits=given.visits, count=200)
    each = given.requests // given.clients
    shares = [[sent[(k * each + n) % len(sent)] for n in range(each)] for k in range(given.clients)]
    with served(given.run, str(given.data), "--no-page") as (pid, port):
        client(port, sent[:10])
        start, cpu = time.perf_counter(), cpu_seconds(pid)
        with ThreadPoolExecutor(given.clients) as pool:
            seconds = np.concatenate(list(pool.map(lambda share: client(port, share), shares)))
        wall, cpu = time.perf_counter() - start, cpu_seconds(pid) - cpu
    size = np.mean([body.count(b'"code"') for body in sent])
    p50, p95, p99 = np.percentile(1000 * seconds, [50, 95, 99])
    print(
        f"{len(seconds)} requests of {given.visits} visits ({size:.0f} rows), {given.clients} clients:"
    )
    print(
        f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms, {len(seconds) / wall:.0f} requests a second"
    )
    print(f"{1000 * cpu / len(seconds):.1f} ms of the server's processor time for each request")


if __name__ == "__main__":
    main()
