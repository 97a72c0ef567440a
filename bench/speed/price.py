"""What the default model costs and how likely held-out people are under it, today's build beside another.

    python -m bench price OUT --set pbc2 --divisions 20007-20016 --source new=src --source old=BUILD/src

Each division of each set is prepared and trained by every source in processes of its own with one thread, interleaved;
`OUT/price.json` keeps, by source, the CPU seconds of the training (all of the process, and its imports) and the mean
NLL of the held-out people's rows. What is there already is kept. `--settings` adds settings to one source, as in
`--settings "short=training.epochs=10"`. `--table` adds the price of a landmark table with LightGBM.

P12's divisions are its five published ones, 1 to 5. The simulated sets are those of `ehrseq simulate`; a division is a
seed of theirs.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.accuracy.p12 import divided, published
from bench.measure import ROOT

TASKS = {
    "pbc2": ("pbc2_meds", "pbc2"),
    "physionet2012": ("physionet2012_meds", "physionet2012"),
    "nafld": ("nafld_meds", "nafld"),
    "delphi": ("delphi_sim_meds", "delphi_sim"),
    "p12": ("p12_meds", ""),
    "simulated2000": ("", ""),
    "simulated20000": ("", ""),
}
# imports apart: lightgbm's loads scikit-learn and pandas; torch is not loaded where no network is trained
TRAIN = """
import importlib, json, resource, sys
from pathlib import Path
prepared, out, found, *settings = sys.argv[1:]
has_network = "training.network=false" not in settings
for name in ("lightgbm", "scipy.optimize", *(["torch"] if has_network else [])):
    importlib.import_module(name)
from ehrsequencing.api.training import train
from ehrsequencing.config import load_study
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
imports = cpu()
train(Prepared(Path(prepared)), Path(out), study=load_study(None, settings), progress=False)
facts = {"cpu": cpu(), "imports": imports}
facts["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
run = Run(Path(out))
facts["nll"] = float(run.predictor.nll(run.prepared().records(run.task.name, "held_out")).mean())
Path(found).write_text(json.dumps(facts))
"""
# what a competent user would do: a row a person and landmark, the league's features, a classifier a cause and horizon
TABLE = """
import json, resource, sys
from pathlib import Path
import lightgbm, numpy as np
from bench.accuracy._league_features import Columns, Events, feature_table, known_events
from bench.accuracy._league_tasks import LandmarkRows
from ehrsequencing.records.prepared import Prepared
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
imports = cpu()
prepared, meds, found = Prepared(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
task = prepared.task(prepared.only_task())
rows = {name: LandmarkRows.of(prepared, task, name) for name in ("train", "tuning", "held_out")}
events = Events.read(meds)
at = {name: one.column("prediction_us") for name, one in rows.items()}
columns = Columns.choose(events, known_events(events, rows["train"].subject_id, at["train"]))
x, day, cause = {}, {}, {}
for name, one in rows.items():
    x[name] = feature_table(events, one.subject_id, at[name], one.column("index_us"), columns=columns)
    day[name], cause[name] = one.column("duration_days"), one.column("cause")
settings = {"objective": "binary", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 20, "lambda_l2": 1.0}
settings |= {"feature_fraction": 0.5, "num_threads": 1, "verbosity": -1, "seed": 0}
for number, horizon in ((e, h) for e in range(1, len(task.causes) + 1) for h in task.horizons):
    known = {name: (day[name] >= horizon) | (cause[name] > 0) for name in rows}
    y = {name: ((cause[name] == number) & (day[name] <= horizon))[known[name]] for name in rows}
    if not (0 < y["train"].sum() < len(y["train"]) and 0 < y["tuning"].sum()):
        continue
    sets = {name: lightgbm.Dataset(x[name][known[name]], y[name]) for name in ("train", "tuning")}
    stop = lightgbm.early_stopping(25, verbose=False)
    model = lightgbm.train(settings, sets["train"], 500, valid_sets=[sets["tuning"]], callbacks=[stop])
    model.predict(x["held_out"])
facts = {"cpu": cpu(), "imports": imports, "nll": float("nan")}
Path(found).write_text(json.dumps(facts))
"""


def main() -> None:
    """Train what is missing, then print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data")
    parser.add_argument("--set", dest="name", choices=TASKS, required=True)
    parser.add_argument("--divisions", required=True, help="as in 20007-20016")
    parser.add_argument(
        "--source", action="append", required=True, help="NAME=folder of a build's src"
    )
    parser.add_argument(
        "--settings", action="append", default=[], help="NAME=SETTING=VALUE for a source"
    )
    parser.add_argument(
        "--table", action="store_true", help="also LightGBM on a landmark table, as source `table`"
    )
    asked = parser.parse_args()
    first, _, last = asked.divisions.partition("-")
    sources = dict(one.split("=", 1) for one in asked.source)
    if asked.table:
        sources["table"] = next(iter(sources.values()))
    more: dict[str, list[str]] = {}
    for one in asked.settings:
        name, _, setting = one.partition("=")
        more.setdefault(name, []).append(setting)
    kept = asked.out / "price.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    for division in range(int(first), int(last or first) + 1):
        for name, source in sources.items():
            key = f"{asked.name}/{division}/{name}"
            if key not in found:
                found[key] = trained(asked, division, name, source, more.get(name, []))
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(found, indent=1))
    print_table(found, asked.name, list(sources))


def trained(
    asked: argparse.Namespace, division: int, name: str, source: str, settings: list[str]
) -> Any:
    """One training in a process of its own."""
    records, task = TASKS[asked.name]
    folder = asked.out / asked.name / str(division)
    environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve()), "OMP_NUM_THREADS": "1"}
    prepared, run, facts = folder / f"prepared-{name}", folder / name, folder / f"{name}.json"
    ehrseq = [sys.executable, "-m", "ehrsequencing"]
    meds, yaml = asked.data / records, ROOT / f"examples/tasks/{task}.yaml"
    splits = [
        "splits.by=hash",
        "splits.train=0.65",
        "splits.tuning=0.15",
        f"splits.seed={division}",
    ]
    if asked.name == "p12":
        yaml, splits = meds / "task.yaml", ["visits.by=window", "visits.window=12h"]
        divisions = published(meds / "published_splits.parquet")
        meds = divided(meds, folder / "meds", divisions[f"split{division}"])
    elif asked.name.startswith("simulated"):
        meds, splits = folder / "meds", []
        yaml = meds / "task.yaml"
        if not yaml.is_file():
            people = ["--subjects", asked.name.removeprefix("simulated"), "--seed", str(division)]
            command = [*ehrseq, "simulate", str(meds), *people]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    if not (prepared / "manifest.json").is_file():
        command = [*ehrseq, "prepare", str(meds), "--out", str(prepared), "--task", str(yaml)]
        subprocess.run([*command, *splits], check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", str(run)], check=True)
    command = [sys.executable, "-c", TRAIN, str(prepared), str(run), str(facts), *settings]
    if name == "table":
        command = [sys.executable, "-c", TABLE, str(prepared), str(meds), str(facts)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", str(run)], check=True)
    return json.loads(facts.read_text())


def print_table(found: dict[str, Any], name: str, sources: list[str]) -> None:
    """Means over divisions, and each source less the last one but a table, and its cost over that of the last one."""
    rows: dict[str, dict[str, Any]] = {source: {} for source in sources}
    for key, facts in found.items():
        of, division, source = key.split("/")
        if of == name and source in rows:
            rows[source][division] = facts
    last = [source for source in sources if source != "table"][-1]
    print(
        f"{name}: source, divisions, CPU s, of it imports, NLL, less {last} (mean, s.e., better in)"
    )
    for source in sources:
        both = sorted(set(rows[source]) & set(rows[last]))
        less = np.array([rows[source][d]["nll"] - rows[last][d]["nll"] for d in both])
        mean = {
            what: np.mean([one.get(what, np.nan) for one in rows[source].values()])
            for what in ("cpu", "imports", "nll")
        }
        se = less.std(ddof=1) / len(less) ** 0.5 if len(less) > 1 else float("nan")
        better = f"{int((less < 0).sum())} of {len(less)}"
        print(
            f"  {source:12} {len(rows[source]):3} {mean['cpu']:8.1f} {mean['imports']:6.1f}"
            f" {mean['nll']:8.4f} {less.mean():+.4f} ({se:.4f}) {better}"
        )


if __name__ == "__main__":
    main()
