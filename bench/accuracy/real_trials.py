"""Settings of ours judged by tuning subjects alone: `python -m bench real_trials DATA OUT SET … [section.key=value …]`.

Trains on the divisions with the seeds 19000, 19001 …, which no table of results uses, and writes one row into the
table of all trials. Nothing is evaluated and no held-out subject is looked at. Finished trainings in OUT are kept.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path
from statistics import fmean

from bench.accuracy.real import SETS, TRIALS_TABLE, add_trial, study_of, trial_folder
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.core.made_of import FORMULAS
from ehrsequencing.core.signals import keep_freed_memory
from ehrsequencing.evaluation.repeated_splits import split_study
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan

FIRST_SEED = 19000


def tried(
    name: str, data: Path, folder: Path, settings: tuple[str, ...], seed: int
) -> dict[str, float]:
    """Tuning NLL, CPU seconds and epochs of one training."""
    found, records, run = folder / "trial.json", folder / "prepared", folder / "run"
    if found.is_file() and (kept := read_json(found)).pop("models", None) == FORMULAS:
        return dict(kept)
    study = split_study(study_of(name, ("training.blend=false", *settings)), seed)
    assert study.task is not None
    for half in (records, run):  # of an interruption, or of other models
        shutil.rmtree(half, ignore_errors=True)
    prepare(data / f"{name}_meds", records, study=study, tasks=[study.task])
    parts, start = Prepared(records), time.process_time()
    fit(Plan.of(parts, study.task.name, study), run)
    cpu_s = time.process_time() - start
    nll = float(Run(run).predictor.nll(parts.records(study.task.name, "tuning")).mean())
    epochs = sum(1 for _ in (run / "history.jsonl").open())
    result = {"nll": nll, "cpu_s": cpu_s, "epochs": epochs}
    write_json(found, {**result, "models": FORMULAS})
    shutil.rmtree(records)
    return result


def main() -> None:
    """Train what is missing, then write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder that holds pbc2_meds, nafld_meds …")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "words", nargs="+", metavar="SET|key=value", help=f"sets: {', '.join(SETS)}"
    )
    parser.add_argument("--splits", type=int, default=3)
    arguments = parser.parse_intermixed_args()
    settings = tuple(word for word in arguments.words if "=" in word)
    keep_freed_memory()
    for name in (word for word in arguments.words if "=" not in word):
        results = []
        for seed in range(FIRST_SEED, FIRST_SEED + arguments.splits):
            folder = trial_folder(arguments.out, settings) / name / f"seed-{seed}"
            results.append(tried(name, arguments.data, folder, settings, seed))
            print(f"{name} {seed} {' '.join(settings)}: {results[-1]}", file=sys.stderr, flush=True)
        mean = {key: fmean(one[key] for one in results) for key in results[0]}
        words = ", ".join(f"`{text}`" for text in sorted(settings)) or "defaults"
        seeds = f"{len(results)} ({FIRST_SEED}–{FIRST_SEED + len(results) - 1})"
        cost = f"not fitted ({mean['cpu_s']:.0f} CPU-s a training, {mean['epochs']:.0f} epochs)"
        date = time.strftime("%Y-%m-%d")
        add_trial(
            TRIALS_TABLE, f"| {date} | {name} | {words} | {seeds} | {mean['nll']:.4f} | {cost} |"
        )


if __name__ == "__main__":
    main()
