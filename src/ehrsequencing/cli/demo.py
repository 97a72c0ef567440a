"""`ehrseq demo`: simulates records with known risks, then goes the way of `ehrseq run`.

With `--pretrain` it measures what records without labels are worth (`run_pretraining_demo`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ehrsequencing.api.data import prepare
from ehrsequencing.api.progress import training_bar
from ehrsequencing.api.records import simulate
from ehrsequencing.api.study import run
from ehrsequencing.baselines.blend.train import trainer_of
from ehrsequencing.cli.console import say as print_line
from ehrsequencing.cli.console import shown
from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import entries, read_json, require_name, write_json
from ehrsequencing.core.outputs import MANIFEST, SIMULATION, is_json_of
from ehrsequencing.evaluation.trained_baselines import FewLabels
from ehrsequencing.metrics.bootstrap import mean_by_subject
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.pages import pretraining_lines
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.dataset import simulation_facts
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.transfer import Pretrained

LABELLED = 1_000  # training subjects with labels; all of the demo's records are pretrained on
RESULT = "pretraining-gain.json"
_MODEL = ("model.size=small", "model.dim=32", "model.layers=1")
_PRETRAINING = (
    *_MODEL,
    "training.learning_rate=2e-3",
    "training.epochs=20",
)
# Both trainings have the same settings, so that only the start differs: what is given is no default of few events.
_SAME = (
    "model.dropout=0",
    "model.code_dropout=0",
    "model.wide_head=false",
    "model.age_polynomial=false",
)
_TRAINING = (
    *_MODEL,
    *_SAME,
    "training.learning_rate=1e-3",
    "training.warmup_steps=20",
    "training.blend=false",
)


def run_pretraining_demo(
    prepared: Prepared, out: Path, *, task: str, seed: int, say: Callable[[str], Any]
) -> dict[str, Any]:
    """Pretrain on all records, train with few labels with and without it, and compare on held-out subjects.

    Args:
        prepared: The demo's set.
        out: The demo's folder.
        task: Its task.
        seed: Of labels and trainings.
        say: Prints a line.

    Returns:
        The mean NLL of both runs, the gain with its interval, and how many labels there were.
    """
    folders = {name: out / name for name in ("pretrained", "few-labels", "few-labels-pretrained")}
    labels = FewLabels(prepared, task, min(LABELLED, prepared.manifest["subjects"] // 4), seed)
    own = f"training.seed={seed}"
    say("pretraining on the records of all training patients, without their labels")
    asked = load_study(None, [*_PRETRAINING, own])
    pretrainer = Pretrainer(prepared, folders["pretrained"], study=asked, task_name=task)
    with training_bar("pretraining", "tuning loss", show=shown()) as show:
        for line in pretraining_lines(
            pretrainer.fit(resume=folders["pretrained"].is_dir(), on_progress=show)
        ):
            say(line)
    study = load_study(None, [*_TRAINING, own])
    starts = {"few-labels": None, "few-labels-pretrained": Pretrained(folders["pretrained"])}
    for name, init in starts.items():
        say(
            f"training with the labels of {labels.n:,} patients, {'from scratch' if init is None else 'pretrained'}"
        )
        trainer = trainer_of(labels, task, folders[name], study=study, init=init)
        with training_bar(show=shown()) as show:
            trainer.fit(resume=folders[name].is_dir(), on_progress=show)
    held_out = prepared.records(task, "held_out")
    scratch, pretrained = (Run(folders[name]).answers.nll(held_out) for name in starts)
    gain, error = mean_by_subject(scratch - pretrained, held_out.rows.subject)
    found = {
        "labelled": labels.n,
        "labelled_with_event": labels.events,
        "held_out_prediction_times": len(held_out),
        "nll": {"from scratch": float(scratch.mean()), "pretrained": float(pretrained.mean())},
        "gain": gain,
        "low": gain - 1.96 * error,
        "high": gain + 1.96 * error,
    }
    write_json(out / RESULT, found)
    for line in gain_lines(found):
        say(line)
    return found


def gain_lines(found: dict[str, Any]) -> list[str]:
    """The difference, as lines for a terminal.

    >>> gain_lines({"labelled": 9, "labelled_with_event": 3, "nll": {"from scratch": 2.5, "pretrained": 2.4},
    ...             "gain": 0.1, "low": -0.1, "high": 0.3})[-1]
    'This does not show that pretraining helps here: the interval holds 0.'
    """
    nll = found["nll"]
    verdict = (
        "Pretraining helps here: the interval is above 0."
        if found["low"] > 0
        else "Pretraining does harm here: the interval is below 0."
        if found["high"] < 0
        else "This does not show that pretraining helps here: the interval holds 0."
    )
    return [
        "",
        f"{found['labelled']:,} labelled patients, {found['labelled_with_event']} of them with the event",
        f"NLL on held-out patients: {nll['from scratch']:.4f} from scratch, {nll['pretrained']:.4f} pretrained",
        f"gain {found['gain']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f}), 95 % interval, one simulation",
        verdict,
    ]


FEWEST = 1000  # subjects, below which chance decides how the models compare
# A simple simulation for a small cohort: the default 24 pairs and 200 background codes need over 10,000 subjects.
WORLD = SimulationConfig(
    pairs=3,
    background_codes=60,
    order_visit_share=0,
    acute_visit_share=0,
    stay_visit_share=0,
    visit_effect=0,
    drop_out_effect=0,
    truth_futures=64,
)
SETTINGS = (  # a small model with dropout
    "model.size=small",
    "model.dropout=0.2",
    "model.history_dropout=0",
    "training.learning_rate=1e-3",
    "training.subjects_per_step=24",
    "training.epochs=30",
    "training.blend=false",  # four networks, and the trees of its folds, would take minutes
    "evaluation.bootstrap=200",
)


def run_demo(
    out: Path,
    *,
    subjects: int,
    seed: int,
    pretrain: bool = False,
    say: Callable[[str], Any] = print_line,
) -> dict[str, Any]:
    """Simulate, then go the whole way; steps that are complete are skipped.

    Args:
        out: Folder to make.
        subjects: How many subjects to simulate.
        seed: Seed of simulation and training.
        pretrain: Show what pretraining gains with few labels, in place of training, evaluation, report and audit.
        say: Prints a line.

    Returns:
        The metrics; with `pretrain` the gain (`run_pretraining_demo`).
    """
    require_name(out)
    # so small a model gains little from a second thread, and loses much on a busy machine
    torch.set_num_threads(1)
    refuse_another_demo(out, subjects=subjects, seed=seed)
    data = out / "data"
    if not (data / MANIFEST).is_file():
        say(f"0/5  simulating {subjects:,} patients, whose true risks are known")
        world = WORLD.model_dump(exclude_defaults=True)
        simulate(data, subjects=subjects, seed=seed, progress=shown(), **world)
    study = load_study(None, [*SETTINGS, f"training.seed={seed}"])
    task = load_task(data / "task.yaml")
    if pretrain:
        store = prepare(data, task, out=out / "prepared", study=study, progress=shown())
        return run_pretraining_demo(store, out, task=task.name, seed=seed, say=say)
    made = run(data, task, out=out, study=study, progress=shown(), say=say)
    metrics: dict[str, Any] = read_json(made.folder / "metrics.json")
    for line in summary(metrics, subjects=subjects):
        say(line)
    return metrics


def refuse_another_demo(out: Path, *, subjects: int, seed: int) -> None:
    """Refuse a folder that holds anything but this demo, complete or interrupted."""
    wanted = {**SIMULATION.facts, **simulation_facts(subjects, seed, "held_out", WORLD)}
    manifest = out / "data" / MANIFEST
    if is_json_of(manifest, SIMULATION) and wanted.items() <= read_json(manifest).items():
        return
    if out.exists() and (not out.is_dir() or entries(out)):
        raise EhrseqError(
            "holds something else", where=str(out), fix="name another folder with --out"
        )


def summary(metrics: dict[str, Any], *, subjects: int) -> list[str]:
    """The main results, as lines for a terminal."""
    lines = ["", *metric_lines(metrics)]
    if subjects < FEWEST:
        return [
            *lines,
            f"Nothing can be concluded from {subjects:,} patients: take {FEWEST:,} or more.",
        ]
    if metrics["oracle"] is not None:
        lines.append(
            "No model can beat the true hazards in expected likelihood or Brier score, but in C one can."
        )
    return lines
