"""What a user would pick instead: a pandas table at the landmarks, and LightGBM for each horizon.

    OMP_NUM_THREADS=1 python -m bench table PREPARED

Of each code how often it was recorded, and the last, mean, lowest and highest number. Prints the CPU seconds of the
whole process and the AUC of the held-out people at each horizon, without those who were censored before it.
"""

import argparse
import json
import resource
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from scipy.stats import rankdata

from ehrsequencing.records.prepared import Prepared

COLUMNS = ["subject_id", "time", "code", "numeric_value"]
SUMMARIES = ["size", "last", "mean", "min", "max"]


def table(store: Prepared, events: pd.DataFrame, split: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Features of the rows at landmarks, and what happened after them."""
    task = store.task(store.only_task())
    records = store.records(task.name, split)
    rows = records.rows
    at = np.flatnonzero(np.any([rows.at_landmark(days) for days in task.landmarks], axis=0))
    moments = pd.DataFrame({"row": at, "subject_id": records.subject_id[at]})
    moments["now"] = pd.to_datetime(rows.prediction_us[at], unit="us")
    known = moments.merge(events)
    known = known[known.time.isna() | (known.time <= known.now)].sort_values("time", kind="stable")
    numbers = known.groupby(["row", "code"]).numeric_value.agg(SUMMARIES).unstack("code")
    after = pd.DataFrame({"days": rows.duration_days[at], "had": rows.cause[at] == 1})
    return numbers.reindex(at), after


def main() -> None:
    """Fit, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    store = Prepared(parser.parse_args().prepared)
    folder = Path(store.manifest["data_path"]) / "data"
    events = pq.read_table(folder, columns=COLUMNS).to_pandas()
    (x, seen), (other, later) = (table(store, events, split) for split in ("train", "held_out"))
    auc = {}
    for days in store.task(store.only_task()).horizons:
        is_known, of_others = (
            ((one.had & (one.days <= days)) | (one.days >= days)).to_numpy()
            for one in (seen, later)
        )
        event, had = (
            (one.had & (one.days <= days)).to_numpy()[known]
            for one, known in ((seen, is_known), (later, of_others))
        )
        model = lightgbm.LGBMClassifier(n_jobs=1, verbose=-1)
        model.fit(x[is_known].to_numpy(), event)
        chance = model.predict_proba(other.reindex(columns=x.columns)[of_others].to_numpy())[:, 1]
        n, rank = int(had.sum()), rankdata(chance)
        wins = float(rank[had].sum()) - n * (n + 1) / 2
        auc[days] = round(wins / (n * (len(had) - n)), 4)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": round(used.ru_utime + used.ru_stime, 2), "auc": auc}))


if __name__ == "__main__":
    main()
