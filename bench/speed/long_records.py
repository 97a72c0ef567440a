"""What one long record costs: `python -m bench long_records [--dim 128 --layers 4] [--json FILE]`.

One subject at a time, every visit a prediction time, 30 % of the codes with a number: 1,000 to 100,000 visits of ten
codes, and a million codes in 20,000 visits and in a single one. A training step (forward, backward, clip, AdamW) and a
prediction, each in a process of its own. CPU time per visit says whether cost is linear, memory above what the process
held before (model and record) what a visit takes.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.measure import machine, own_mib, peak_mib, run_bench
from ehrsequencing.batches.loader import MAX_VISIT_CODES, SubjectLoader
from ehrsequencing.config import ModelConfig, TrainingConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.predictors.network import Network
from ehrsequencing.records.timelines import TaskRecords, TaskRows, Timelines
from ehrsequencing.training.loop import make_optimizer
from ehrsequencing.training.objectives import CLIP_NORM

CASES = {  # visits, codes of each
    "1 k visits": (1_000, 10),
    "10 k visits": (10_000, 10),
    "100 k visits": (100_000, 10),
    "1 M codes, 20 k visits": (20_000, 50),
    "1 M codes, 1 visit": (1, 1_000_000),
}
VOCABULARY, WITH_NUMBER = 5_000, 0.3
DAY_US = 86_400_000_000


def long_record(n_visits: int, codes_per_visit: int) -> TaskRecords:
    """One subject with a visit a day, each a prediction time."""
    rng = np.random.default_rng(0)
    n_codes, end = n_visits * codes_per_visit, (1 + np.arange(n_visits)) * DAY_US
    values = rng.normal(size=(n_codes, 2)).astype(np.float32)
    values[rng.random(n_codes) >= WITH_NUMBER] = np.nan
    none, delta = np.zeros(n_visits, np.float32), np.r_[0, np.ones(n_visits - 1)].astype(np.float32)
    timelines = Timelines(
        subject_id=np.array([1]),
        birth_us=np.array([0]),
        subject_offsets=np.array([0, n_visits]),
        start_us=end,
        end_us=end,
        age_years=np.linspace(20, 90, n_visits, dtype=np.float32),
        delta_days=delta,
        visit_offsets=np.arange(n_visits + 1) * codes_per_visit,
        codes=np.minimum(rng.zipf(1.3, n_codes), VOCABULARY - 1).astype(np.int32),
        values=values,
        static_codes=np.array([1], np.int32),
        static_offsets=np.array([0, 1]),
    )
    rows = TaskRows(
        row_offsets=np.array([0, n_visits]),
        prediction_us=end,
        index_us=np.zeros(n_visits, np.int64),
        is_query=np.zeros(n_visits, bool),
        visits_before=(1 + np.arange(n_visits)).astype(np.int32),
        age_years=timelines.age_years,
        delta_days=none,
        duration_days=rng.exponential(500.0, n_visits) + 1,
        unfinished_codes=np.zeros(n_visits, np.int32),
        entry_days=none,
        cause=rng.integers(0, 2, n_visits).astype(np.int8),
        carry_offsets=np.zeros(n_visits + 1, np.int64),
        carry_codes=np.zeros(0, np.int32),
        carry_values=np.zeros((0, 2), np.float32),
    )
    return TaskRecords(timelines, rows)


def train_step(model: SurvivalModel, records: TaskRecords) -> None:
    """One update by one subject."""
    settings = TrainingConfig()
    optimizer = make_optimizer(model.train(), settings)
    loader = SubjectLoader.of_model(model.config, records)
    for step in loader.in_order(visit_budget=settings.visit_budget):
        model.loss(step.batch, divisor=float(settings.visit_budget)).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()


def measure(case: str, task: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Cost of one task on one record, in this process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    n_visits, codes_per_visit = CASES[case]
    records = long_record(n_visits, codes_per_visit)
    model = build_model(
        ModelConfig(vocab_size=VOCABULARY, edges_days=(30.0, 180.0, 365.25), **settings)
    ).eval()
    train_step(model, long_record(20, 10))  # buffers and optimiser states
    before, started = own_mib(), time.process_time()
    if task == "train":
        train_step(model, records)
    else:
        Network(model.eval()).risk(records, [365.25])
    seconds = time.process_time() - started
    return {
        "case": case,
        "task": task,
        "visits": n_visits,
        "codes": n_visits * codes_per_visit,
        "cpu_seconds": seconds,
        "ms_per_visit": 1e3 * seconds / n_visits,
        "us_per_code": 1e6 * seconds / (n_visits * codes_per_visit),
        "mib": peak_mib() - before,
    }


def main() -> None:
    """Run every case in a process of its own, print the table, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--architecture", default="hierarchical", choices=["hierarchical", "flat"])
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), metavar="CASE", help=f"of {list(CASES)}"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shape = {
        "dim": arguments.dim,
        "layers": arguments.layers,
        "architecture": arguments.architecture,
    }
    if arguments.child:
        print(json.dumps(measure(*arguments.child, shape)))
        return
    chosen = [
        *(f"--{name}={value}" for name, value in shape.items()),
    ]
    found = []
    print(f"{'':24}{'':>8}{'CPU s':>9}{'ms/visit':>10}{'µs/code':>9}{'MiB':>8}")
    for case in arguments.cases or CASES:
        if arguments.architecture == "flat" and CASES[case][1] > MAX_VISIT_CODES:
            print(f"{case:24} refused: each code would look at each")
            continue
        for task in ("train", "predict"):
            row = run_bench("long_records", *chosen, "--child", case, task).json
            found.append(row)
            times = f"{row['cpu_seconds']:9.1f}{row['ms_per_visit']:10.2f}{row['us_per_code']:9.1f}"
            print(f"{case:24}{task:>8}{times}{row['mib']:8.0f}", flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": machine(), "shape": shape, "rows": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
