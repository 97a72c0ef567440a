"""What records without labels are worth: `python bench/few_labels.py OUT [--subjects 6000] [--labelled 0.05]`.

Simulates records, prepares them, pretrains on the training subjects without their labels, and then fits the task with
the labels of a random share of them: from scratch, from the pretrained model in every mode, and boosted trees. From
scratch and trees are fitted with all labels, too. Every arm stops early on the same share of the tuning subjects, and
is compared on all held-out prediction times by mean negative log-likelihood. `gap` is the share of the distance from
scratch with few labels to scratch with all labels that an arm covers. Finished arms in OUT are kept; results go to
OUT/few_labels.json.

The control `--shuffled` pretrains on records whose codes are shuffled over all visits: its gain must vanish.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ehrsequencing.answers import nll_of_rows
from ehrsequencing.arrays import Floats, Ints
from ehrsequencing.baselines.base import FittingData
from ehrsequencing.baselines.boosted import BoostedVisits
from ehrsequencing.config import StudyConfig, load_study, load_task
from ehrsequencing.models.build import load_model
from ehrsequencing.pretraining.loop import Pretrainer
from ehrsequencing.records.prepared import Prepared, prepare
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.training.loop import Trainer
from ehrsequencing.training.pretrained import Pretrained

MODES = ("full", "frozen", "lora")


def drawn(n: int, share: float, *, seed: int) -> Ints:
    """Numbers of the subjects that are left out."""
    order = np.random.default_rng([seed, n]).permutation(n)
    return np.sort(order[max(2, round(share * n)) :])


def make_data(out: Path, *, subjects: int, seed: int, knobs: dict[str, Any]) -> Prepared:
    """Simulated records, prepared."""
    if not (out / "set" / "manifest.json").is_file():
        simulate(out / "data", subjects=subjects, seed=seed, config=SimulationConfig(truth_futures=4, **knobs))
        task = load_task(out / "data" / "task.yaml")
        prepare(out / "data", out / "set", study=load_study(None, ["values.carry=false"]), tasks=[task], processes=1)
    return Prepared(out / "set")


def pretrain(prepared: Prepared, out: Path, study: StudyConfig, *, shuffled: bool) -> None:
    """Pretrain with the task's outcome excluded."""
    if (out / "manifest.json").is_file():
        return
    trainer = Pretrainer(prepared, out, study=study, task_name="simulated")
    if shuffled:
        for loader in (trainer.loader, trainer.tuning_loader):
            order = np.random.default_rng(study.training.seed).permutation(len(loader.timelines.codes))
            loader.timelines = replace(
                loader.timelines, codes=loader.timelines.codes[order], values=loader.timelines.values[order]
            )
        trainer.train, trainer.tuning = trainer.loader.timelines, trainer.tuning_loader.timelines
    trainer.fit()


def fine_tune(
    prepared: Prepared, out: Path, study: StudyConfig, *, without: Ints | None, tuning: Ints, init: Pretrained | None
) -> Floats:
    """Train, or read what was trained, and return the held-out NLL of every prediction time."""
    if not (out / "manifest.json").is_file():
        trainer = Trainer(prepared, "simulated", out, study=study, leave_out=without, init=init)
        trainer.tuning.subjects = np.setdiff1d(trainer.tuning.subjects, tuning)
        trainer.fit()
    return nll_of_rows(load_model(out), prepared.records("simulated", "held_out"))


def trees(prepared: Prepared, run: Path, *, without: Ints | None, tuning: Ints, seed: int) -> Floats:
    """Boosted trees on the same labels; on the time grid of a run."""
    train, held_out = (prepared.records("simulated", split) for split in ("train", "held_out"))
    stop = prepared.records("simulated", "tuning")
    if without is not None:
        train = train.take(np.setdiff1d(np.arange(len(train.timelines)), without))
    stop = stop.take(np.setdiff1d(np.arange(len(stop.timelines)), tuning))
    edges = load_model(run).config.edges_days
    data = FittingData(prepared.task("simulated"), prepared.vocabulary, train, stop, edges, seed)
    return BoostedVisits(data, trials=1).nll(held_out, np.arange(len(held_out)))


def main() -> None:
    """Run all arms of one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", help="settings of pretraining and training, as training.epochs=20")
    parser.add_argument("--subjects", type=int, default=6000)
    parser.add_argument("--labelled", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--knob", nargs="*", default=[], help="knobs of the simulator, as pairs=6")
    parser.add_argument("--objectives", nargs="+", default=["masked_codes", "next_visit"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--pretrain-epochs", type=int, default=20)
    parser.add_argument("--shuffled", action="store_true", help="the control: codes shuffled over all visits")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    knobs = {
        key: float(value) if "." in value else int(value) for key, _, value in (k.partition("=") for k in asked.knob)
    }
    prepared = make_data(asked.out, subjects=asked.subjects, seed=asked.seed, knobs=knobs)
    settings = ["model.size=small", f"training.seed={asked.seed}", *asked.settings]
    study = load_study(None, settings)
    train, tuning = (prepared.timelines(split) for split in ("train", "tuning"))
    without = drawn(len(train), asked.labelled, seed=asked.seed)
    stop = drawn(len(tuning), max(asked.labelled, 30 / len(tuning)), seed=asked.seed)
    everyone = np.zeros(0, dtype=np.int64)
    nll: dict[str, Floats] = {}

    def report(name: str, found: Floats, started: float) -> None:
        nll[name] = found
        print(f"{name:<24} {found.mean():.4f}   {time.monotonic() - started:.0f} s", flush=True)

    kind = "+".join(asked.objectives) + ("-shuffled" if asked.shuffled else "")
    started = time.monotonic()
    few = {"without": without, "tuning": stop}
    report("scratch, few labels", fine_tune(prepared, asked.out / "scratch-few", study, **few, init=None), started)
    started = time.monotonic()
    named = "{" + ", ".join(f"{name}: 1.0" for name in asked.objectives) + "}"
    longer = [*settings, f"pretraining.objectives={named}", f"training.epochs={asked.pretrain_epochs}"]
    pretrain(prepared, asked.out / f"pretrained-{kind}", load_study(None, longer), shuffled=asked.shuffled)
    print(f"pretraining {kind}: {time.monotonic() - started:.0f} s", flush=True)
    source = Pretrained(asked.out / f"pretrained-{kind}")
    for mode in asked.modes:
        started = time.monotonic()
        mode_study = load_study(None, [*settings, f"transfer.mode={mode}"])
        found = fine_tune(prepared, asked.out / f"{mode}-{kind}", mode_study, **few, init=source)
        report(f"{mode}, few labels", found, started)
    started = time.monotonic()
    report("trees, few labels", trees(prepared, asked.out / "scratch-few", **few, seed=asked.seed), started)
    started = time.monotonic()
    every = {"without": None, "tuning": everyone}
    report("scratch, all labels", fine_tune(prepared, asked.out / "scratch-all", study, **every, init=None), started)
    started = time.monotonic()
    report("trees, all labels", trees(prepared, asked.out / "scratch-all", **every, seed=asked.seed), started)
    rows = prepared.records("simulated", "held_out").rows
    write(asked.out / "few_labels.json", nll, rows.subject, kind)


def write(path: Path, nll: dict[str, Floats], subject: Ints, kind: str) -> None:
    """Print every arm beside scratch with few labels, with a paired standard error over subjects, and save it."""
    base, best = nll["scratch, few labels"], nll["scratch, all labels"]
    gap = float(base.mean() - best.mean())
    known = json.loads(path.read_text()) if path.is_file() else {}
    found: dict[str, Any] = {}
    print(f"\n{kind}\n{'arm':<24} {'NLL':>8} {'gain':>8} {'SE':>7} {'gap':>6}")
    for name, one in nll.items():
        gain = np.bincount(subject, weights=base - one)
        se = float(np.sqrt(len(gain)) * gain.std(ddof=1) / len(subject))
        mean = float((base - one).mean())
        found[name] = {"nll": float(one.mean()), "gain": mean, "se": se, "gap": mean / gap if gap > 0 else None}
        print(f"{name:<24} {one.mean():8.4f} {mean:8.4f} {se:7.4f} {mean / gap if gap > 0 else float('nan'):6.2f}")
    path.write_text(json.dumps({**known, kind: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
