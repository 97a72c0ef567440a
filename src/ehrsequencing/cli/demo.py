"""`ehrseq demo`: simulates records with known risks, then goes the way of `ehrseq run`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ehrsequencing.api.records import simulate
from ehrsequencing.api.study import run
from ehrsequencing.cli.console import say as print_line, shown
from ehrsequencing.config import load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import entries, read_json, require_name
from ehrsequencing.core.outputs import MANIFEST, SIMULATION, is_json_of
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.results.result_types import Shared
from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.dataset import simulation_facts

EXPLORED = 300  # patients in the explorer
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
    last_horizon_years=2,  # by then most events have happened: it is the main horizon
    words=True,
)
SETTINGS = ("evaluation.bootstrap=200",)


def run_demo(
    out: Path,
    *,
    subjects: int,
    seed: int,
    say: Callable[[str], Any] = print_line,
) -> Shared:
    """Simulate, then go the whole way; steps that are complete are skipped.

    Args:
        out: Folder to make.
        subjects: How many subjects to simulate.
        seed: Seed of simulation and training.
        say: Prints a line.

    Returns:
        The metrics.
    """
    require_name(out)
    import torch

    # a model this small gains little from a second thread, and loses much on a busy machine
    torch.set_num_threads(1)
    refuse_another_demo(out, subjects=subjects, seed=seed)
    data = out / "data"
    if not (data / MANIFEST).is_file():
        say(f"0/5  simulating {subjects:,} patients, whose true risks are known")
        world = WORLD.model_dump(exclude_defaults=True)
        simulate(data, subjects=subjects, seed=seed, progress=shown(), **world)
    study = load_study(None, [*SETTINGS, f"training.seed={seed}"])
    task = load_task(data / "task.yaml")
    made = run(data, task, out=out, study=study, progress=shown(), say=say)
    if not (out / "explorer.html").is_file():
        made.explore(data, out / "explorer.html", subjects=EXPLORED, progress=shown())
    metrics: Shared = read_json(made.folder / "metrics.json")
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


def summary(metrics: Shared, *, subjects: int) -> list[str]:
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
