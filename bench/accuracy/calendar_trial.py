"""`ehrseq monitor` on real deaths with a calendar laid over them: `python -m bench calendar_trial NAFLD_MEDS OUT`.

Half of the people of NAFLD train a run (trees and Cox). The others enter at a random day of four years, and every four
weeks their records until then are predicted and watched. Once as they are, and once with every other death from a day
on not recorded. It prints when the alarm rang, and what was observed and expected.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

import ehrsequencing as eh
from bench.measure import ehrseq
from ehrsequencing.prediction.journal import Journal
from ehrsequencing.prediction.predict import Request
from ehrsequencing.prediction.run import Run
from ehrsequencing.reporting.risk_list import write_list

TASK = """
name: death
index: {code: INDEX}
outcome: {death: MEDS_DEATH}
censoring: {code: END_OF_FOLLOWUP}
horizons: [1y, 3y]
"""
YEARS, EVERY, LOST_FROM = (
    4,
    28,
    2,
)  # of entry; days between two looks; year from which deaths are lost
BEGIN = pd.Timestamp("2020-01-01")


def write(rows: pd.DataFrame, folder: Path) -> Path:
    """A MEDS data set."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    rows.to_parquet(folder / "data" / "0.parquet", index=False)
    return folder


def trial(rows: pd.DataFrame, run: Run, out: Path) -> None:
    """Look every four weeks."""
    alarm, watch = None, None
    for night in pd.date_range(
        BEGIN + pd.Timedelta(days=EVERY), periods=YEARS * 13, freq=f"{EVERY}D"
    ):
        inside = rows[rows.time.isna() | (rows.time <= night)]
        entered = inside[inside.code == "INDEX"].subject_id
        data = write(inside[inside.subject_id.isin(entered)], out / "now")
        journal = Journal(out / "journal")
        facts = {"extracted": str(night.date())}
        settings = run.study.data.model_copy(update=facts)
        write_list(
            run,
            data,
            out / "list.parquet",
            Request(at="index", facts=settings, overwrite=True, journal=journal),
        )
        watch = eh.monitor(
            run,
            data,
            out / "journal",
            lag="28d",
            facts=facts,
            out=out / "monitor.html",
            overwrite=True,
            progress=False,
        )
        if watch.alarm_day is not None and alarm is None:
            alarm = night.date()
    assert watch is not None
    o, e = watch.observed.sum(), watch.expected.sum()
    print(
        f"{out.name}: alarm {alarm}, observed {o:.0f}, expected {e:.1f}, O/E {o / e:.2f}",
        flush=True,
    )


def main() -> None:
    """Train, and watch twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    out = options.out
    rows = pd.concat(
        [
            pq.read_table(path).to_pandas()
            for path in sorted(options.data.rglob("data/**/*.parquet"))
        ]
    )
    rng = np.random.default_rng(84)
    people = np.unique(rows.subject_id)
    trains = rng.permutation(people)[: len(people) // 2]
    out.mkdir(parents=True, exist_ok=True)
    (out / "task.yaml").write_text(TASK)
    if not (out / "run").is_dir():
        ehrseq("prepare", write(rows[rows.subject_id.isin(trains)], out / "past"), "--task", out / "task.yaml",
               "--out", out / "prepared")  # fmt: skip
        ehrseq("train", out / "prepared", "--out", out / "run", "training.network=false")
    later = rows[~rows.subject_id.isin(trains)].copy()
    index = later[later.code == "INDEX"].groupby("subject_id").time.min()
    day = pd.Series(rng.integers(0, YEARS * 365, len(index)), index=index.index)
    shift = BEGIN + pd.to_timedelta(day, unit="D") - index
    later["time"] = later.time + later.subject_id.map(shift)
    later = later.sort_values(["subject_id", "time"], na_position="first")
    run = Run(out / "run")
    trial(later, run, out / "as-recorded")
    late = (later.code == "MEDS_DEATH") & (later.time >= BEGIN + pd.Timedelta(days=LOST_FROM * 365))
    lost = later[late].subject_id[::2]
    trial(later[~(late & later.subject_id.isin(lost))], run, out / "half-lost")


if __name__ == "__main__":
    main()
