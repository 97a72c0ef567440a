"""`ehrseq train` under the clock: where its time goes, and what a subject costs as their number grows."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from bench.measure import ROOT, Clock, own_mib, peak_mib, quartiles, run_bench
from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import ModelSettings, StudyConfig, TrainingConfig
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training import fit as fitting, loop
from ehrsequencing.training.objectives import BesideHazards, MaskedCodes
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.train import Trainer

Row = dict[str, Any]
EHRSEQ = Path(sys.executable).with_name("ehrseq")
TASKS = ROOT / "examples" / "tasks"
REAL = {"mimic4_demo": [], "physionet2012": ["visits.by=window", "visits.window=1h"]}
EPOCHS = {"mimic4_demo": 5}  # 100 subjects: one epoch is over too soon
# what a step has to do; the rest is what the program adds
INSIDE = ("forward", "backward", "optimiser")


# ---- data ------------------------------------------------------------------------------------------------------------


def ehrseq(*words: object) -> None:
    """Run a command quietly."""
    subprocess.run([str(EHRSEQ), *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def simulated(folder: Path, subjects: int) -> Path:
    """A simulated data set, prepared."""
    ehrseq("simulate", folder / "meds", "--subjects", subjects, "--seed", 0)
    return prepared(folder / "meds", folder / "prepared", folder / "meds" / "task.yaml")


def prepared(data: Path, out: Path, task: Path, *settings: str) -> Path:
    """A data set, prepared for one task."""
    ehrseq("prepare", data, "--out", out, "--task", task, *settings)
    return out


def copies(data: Path, out: Path, times: int) -> Path:
    """A MEDS data set whose subjects are so many copies of another's: records of the very same shape."""
    files = [p for p in sorted(data.rglob("*.parquet")) if not p.name.startswith("truth")]
    splits = data / "metadata" / "subject_splits.parquet"
    apart = int(pc.max(pq.read_table(splits)["subject_id"]).as_py()) + 1
    shutil.copytree(data / "metadata", out / "metadata")
    for file in files:
        table = pq.read_table(file)
        place = out / file.relative_to(data)
        if file == splits:
            pq.write_table(
                pa.concat_tables([_moved(table, n * apart) for n in range(times)]), place
            )
        elif "subject_id" in table.column_names:
            place.parent.mkdir(parents=True, exist_ok=True)
            for n in range(times):
                pq.write_table(_moved(table, n * apart), place.with_stem(f"{place.stem}-{n:04d}"))
    return out


def _moved(table: pa.Table, by: int) -> pa.Table:
    column = table.column_names.index("subject_id")
    return table.set_column(
        column,
        table.schema.field("subject_id"),
        pc.add(table["subject_id"], pa.scalar(by, pa.int64())),
    )


# ---- training under the clock ----------------------------------------------------------------------------------------


def trainer_of(folder: Path, *, size: str, epochs: int, **settings: Any) -> Trainer:
    """A trainer with the default settings, but for the model's size, the number of epochs, and what else is given."""
    data = Prepared(folder)
    model = ModelSettings.model_validate({"size": size})
    training = TrainingConfig(epochs=epochs, patience=epochs, **settings)
    study = StudyConfig(model=model, training=training)
    return Trainer(Plan.of(data, data.only_task(), study, as_given=True))


def time_of_train(
    folder: Path, data: Path, *, subjects: int, repeats: int, quick: bool
) -> list[Row]:
    """Where the time of training goes: shares by part, on simulated records and on the real ones that are there."""
    sets = {"simulated": simulated(folder / "simulated", subjects)}
    for name, settings in REAL.items():
        if (data / f"{name}_meds").is_dir() and not quick:
            sets[name] = prepared(
                data / f"{name}_meds", folder / name, TASKS / f"{name}.yaml", *settings
            )
    rows = []
    for name, found in sets.items():
        runs = [
            clocked(
                found,
                folder / "run",
                size="small" if quick else "medium",
                epochs=EPOCHS.get(name, 1),
            )
            for _ in range(repeats)
        ]
        parts = {
            part: quartiles([run.get(part, 0.0) / sum(run.values()) for run in runs])
            for part in sorted(runs[0])
        }
        step = [sum(run[part] for part in (*INSIDE, "collate")) for run in runs]
        outside = [1 - sum(run[part] for part in INSIDE) / sum(run.values()) for run in runs]
        rows.append(
            {
                "section": "train",
                "data": name,
                "seconds": quartiles([sum(run.values()) for run in runs]),
                "collate": quartiles(
                    [run["collate"] / s for run, s in zip(runs, step, strict=True)]
                ),
                "outside": quartiles(outside),
                "parts": parts,
            }
        )
        print(f"train, {name}: done", flush=True)
    return rows


def clocked(folder: Path, out: Path, *, size: str, epochs: int) -> dict[str, float]:
    """Seconds of each part of a training; "rest" is what has no name. Forward passes of tuning count too."""
    shutil.rmtree(out, ignore_errors=True)
    trainer, clock = trainer_of(folder, size=size, epochs=epochs), Clock()
    places = [
        (SurvivalModel, "loss", "forward"),
        (SurvivalModel, "nll", "forward"),
        (MaskedCodes, "forward", "forward"),
        (torch.Tensor, "backward", "backward"),
        (BesideHazards, "backward", "backward"),
        (BesideHazards, "step", "optimiser"),
        (loop.nn.utils, "clip_grad_norm_", "optimiser"),
        (trainer.training.optimizer, "step", "optimiser"),
        (trainer.training.optimizer, "zero_grad", "optimiser"),
        (loop, "average", "averaged weights"),
        (SubjectLoader, "collate", "collate"),
        (SubjectLoader, "shuffled", "shuffle"),
        (loop, "save_checkpoint", "checkpoint"),
        (fitting, "write_run_files", "write the run"),
    ]
    with clock.watching(places):
        clock.wrap(fitting.fit, "rest")(trainer.plan, out, trainer=trainer)
    shutil.rmtree(out)
    return clock.seconds


# ---- cost against number of subjects ---------------------------------------------------------------------------------


def cost_of_subjects(folder: Path, cohorts: Sequence[int], *, repeats: int) -> list[Row]:
    """Time of an epoch per subject, and the training process's own memory, for cohorts of copies of one another."""
    base = simulated(folder / "base", cohorts[0])
    sets = {cohorts[0]: base}
    for n in cohorts[1:]:
        data = copies(folder / "base" / "meds", folder / f"meds-{n}", n // cohorts[0])
        sets[n] = prepared(data, folder / f"prepared-{n}", folder / "base" / "meds" / "task.yaml")
        shutil.rmtree(data)
    found: dict[int, list[Row]] = {n: [] for n in cohorts}
    for _ in range(repeats):
        for n, place in sets.items():
            epochs = max(1, min(5, 10 * cohorts[0] // n))  # a short epoch is measured more often
            found[n].append(run_bench("engine", "--train-of", place, "--epochs", epochs).json)
        print("scaling: one round done", flush=True)
    smallest = [run["us_per_subject"] for run in found[cohorts[0]]]
    return [
        {
            "section": "scaling",
            "subjects": n,
            "us_per_subject": quartiles([run["us_per_subject"] for run in runs]),
            "against_smallest": quartiles(
                [run["us_per_subject"] / s for run, s in zip(runs, smallest, strict=True)]
            ),
            "peak_mib": quartiles([run["peak_mib"] for run in runs]),
            "own_mib": quartiles([run["own_mib"] for run in runs]),
        }
        for n, runs in found.items()
    ]


def one_training(folder: Path, *, epochs: int) -> Row:
    """In a process of its own: the epochs' median time per subject, tuning excluded, and memory."""
    out = folder.parent / f"{folder.name}-run"
    # or small cohorts get smaller steps
    trainer = trainer_of(folder, size="small", epochs=epochs, min_steps=1)
    fitting.fit(trainer.plan, out, trainer=trainer)
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    seconds = quartiles([row["seconds"] for row in history])[1]
    return {
        "us_per_subject": 1e6 * seconds / len(trainer.loader),
        "peak_mib": peak_mib(),
        "own_mib": own_mib(),
    }
