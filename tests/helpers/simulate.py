"""A busy world for tests of single mechanisms, and the prediction times of a simulation by a plain loop."""

from collections import defaultdict
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.process import Process
from ehrsequencing.simulate.records import Courses, simulate_courses

_BUSY = {
    "visits_per_year": 2.8,
    "outcome_per_year": 0.027,
    "pair_visit_share": 0.5,
    "pair_effect": 1.0,
    "pair_memory": 0.8,
    "order_effect": 0.8,
    "lab_effect": 0.3,
    "background_codes": 500,
    "background_per_visit": 4.0,
}


def busy_world(**knobs: Any) -> SimulationConfig:
    """More visits, weaker pairs and more background than the default's, with these knobs turned."""
    return SimulationConfig(**{**_BUSY, **knobs})


def brute_prediction_times(out: Path) -> list[tuple[int, datetime]]:
    """Index and ends of later day-visits while p < min(T, C), from raw rows and the task file."""
    task = yaml.safe_load((out / "task.yaml").read_text())
    assert task["landmarks"] == ["0d"]
    index_code, censoring = task["index"]["code"], task["censoring"]["code"]
    causes = [*task["outcome"].values(), *task["competing"].values()]
    records = defaultdict(list)
    for shard in (out / "data").glob("*/*.parquet"):
        for row in pq.read_table(shard).to_pylist():
            if row["time"] is not None:
                records[row["subject_id"]].append((row["time"], row["code"]))
    found = []
    for subject, rows in sorted(records.items()):
        index = min(time for time, code in rows if code == index_code)
        end = min(time for time, code in rows if code in causes or code == censoring)
        last_of_day: dict[date, datetime] = {}
        for time, code in rows:
            if code not in {"MEDS_BIRTH", "MEDS_DEATH", censoring}:
                last_of_day[time.date()] = max(last_of_day.get(time.date(), time), time)
        ends = {time for time in last_of_day.values() if time > index}
        found += [(subject, time) for time in sorted({index} | ends) if time < end]
    return found


def courses_of(subjects: int, seed: int = 7, **knobs: float) -> tuple[Process, Courses]:
    process = Process(busy_world(**knobs))
    return process, simulate_courses(process, np.random.default_rng(seed), subjects)


EFFECTS = ("age", "death_age", "sex", "death_sex", "chronic", "pair", "gap", "order", "decay", "lab")


NO_EFFECTS = {f"{name}_effect": 0.0 for name in EFFECTS}
