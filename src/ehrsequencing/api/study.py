"""Studies of many steps: `run`, from records to a report; one setting at several values; `ehrseq demo`."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ehrsequencing.api.compare import RunComparison, compare
from ehrsequencing.api.data import is_path, one_task, prepare, study_of
from ehrsequencing.api.evaluate import audit, evaluate
from ehrsequencing.api.progress import training_bar
from ehrsequencing.api.records import check, simulate
from ehrsequencing.api.run import TrainedRun
from ehrsequencing.api.training import train
from ehrsequencing.config import StudyConfig, load_study, load_task
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    digest,
    entries,
    read_json,
    refuse_overlap,
    require_name,
    write_json,
    write_shareable,
)
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import (
    MANIFEST,
    POOLED,
    PREPARED,
    RUN,
    SIMULATION,
    UNFINISHED_RUN,
    complete_folder,
    is_json_of,
    refuse_existing,
    remove_existing,
    write_manifest,
)
from ehrsequencing.evaluation.context import evaluation_made_of, read_tripod
from ehrsequencing.evaluation.pooling import pool, read_sites
from ehrsequencing.evaluation.results import read_result
from ehrsequencing.prediction.run import saved_audit
from ehrsequencing.records.meds import find_shards
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.reporting.pages import render_pooled
from ehrsequencing.reporting.report import PAGES
from ehrsequencing.reporting.terminal import metric_lines
from ehrsequencing.results.redaction import redact_rows
from ehrsequencing.results.result_types import Shared
from ehrsequencing.simulate import SimulationConfig
from ehrsequencing.simulate.dataset import simulation_facts
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.run_folder import BEGUN, refuse_foreign, remove_unfinished


def run(
    data: str | os.PathLike[str],
    task: Any = None,
    *,
    out: str | os.PathLike[str],
    study: StudyConfig | None = None,
    quick: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
    **sections: Any,
) -> TrainedRun:
    """Check, prepare, train, evaluate and audit, and write the report; what is complete in `out` is not done again.

    A folder of other data, task, model or training is refused by the name of what differs. With other settings of
    `evaluation` its run is evaluated again.

    Args:
        data: A folder of MEDS data.
        task: The task: its file, its content as a mapping, or a `TaskConfig`; default: that of `study`.
        out: Folder to make, with `prepared/` and `run/`.
        study: All settings in one, in the place of sections.
        quick: Whether trees and Cox answer alone, in a fraction of the time: `training={"network": False}`.
        overwrite: Whether an earlier study in `out` that nobody has changed is removed first, and made anew.
        progress: Whether to show bars.
        say: Called with a line before each step.
        sections: Sections of a study, as in `model={"size": "small"}` or `training={"epochs": 30}`.

    Returns:
        The run.

    Raises:
        EhrseqError: Data, task or settings cannot be used, or `out` holds something else.

    Example:
        >>> import ehrsequencing as eh
        >>> quick = {"epochs": 1, "blend": False, "distillation": 0}
        >>> tiny = {"model": {"dim": 16, "heads": 2, "layers": 1}, "training": quick}
        >>> fast = {"evaluation": {"baselines": "none", "bootstrap": 0}}
        >>> study = eh.run("meds/", "task.yaml", out="study/", progress=False, **tiny, **fast)
        >>> study.evaluation.report.name
        'report.html'
    """
    settings = study_of(study, sections, where="run")
    if quick:
        training = settings.training.model_copy(update={"network": False})
        settings = settings.model_copy(update={"training": training})
    task_ = one_task(task, settings, where="run")
    store, folder = Path(out) / "prepared", Path(out) / "run"
    _make_room(data, store, folder, settings, overwrite=overwrite)
    if not (store / MANIFEST).is_file():
        say("1/5  checking the records")
        say(str(check(data, task_, study=settings, progress=progress)))
        say("2/5  preparing visits, codes and labels")
    prepared = prepare(data, task_, out=store, study=settings, progress=progress)
    if not (folder / MANIFEST).is_file():
        say("3/5  training")
        asked_for = settings
    else:  # how it is evaluated may change, but for the trees that are in the model
        known = TrainedRun(folder).study
        training = known.training
        has_trees = training.blend or not training.network or training.distillation > 0
        decided = {"seed", "tuning_trials"} if has_trees else set[str]()
        evaluation = settings.evaluation.model_copy(
            update=known.evaluation.model_dump(exclude=decided)
        )
        asked_for = settings.model_copy(update={"evaluation": evaluation})
    train(prepared, folder, study=asked_for, resume=True, progress=progress, say=say)
    made = TrainedRun(folder)
    written = set(made.manifest["files"]) - set(made.altered)
    noted, wanted = read_result(folder), evaluation_made_of(made, "held_out", settings.evaluation)
    if noted is None or noted["made_of"] != wanted or not {*PAGES} <= written:
        step = "evaluating" if noted is None else "evaluating again, by other settings,"
        say(f"4/5  {step} on held-out people, beside baselines")
        evaluate(made, progress=progress, **dict(settings.evaluation))
    if saved_audit(folder) is None:
        say("5/5  auditing: can anything from the future reach the model?")
        audit(folder, progress=progress)
    return TrainedRun(folder)


def _make_room(
    data: Any, store: Path, folder: Path, settings: StudyConfig, *, overwrite: bool
) -> None:
    """Refuse what would end the work later on; with `overwrite`, remove an earlier study.

    Raises:
        EhrseqError: The data is no data set, a file of the settings is wrong, or other things are where the study goes.
    """
    read_tripod(settings.evaluation.tripod)
    if is_path(data):
        find_shards(Path(data))
        refuse_overlap(store, Path(data))
        refuse_overlap(folder, Path(data))
    if overwrite:
        remove_unfinished(folder, UNFINISHED_RUN)
        refuse_existing(store, PREPARED, overwrite=True)
        remove_existing(folder, RUN)
        remove_existing(store, PREPARED)
    if not (store / MANIFEST).is_file():
        refuse_existing(store, PREPARED)
    if not any((folder / name).is_file() for name in (MANIFEST, f"checkpoints/{BEGUN}")):
        refuse_foreign(folder)


# ---- one setting at several values --------------------------------------------------------------------------------

ABLATION = "ablation.json"
# networks alone: no trees beside them, and none to learn from
_ALONE = ("training.blend=false", "training.distillation=0")


def ablate(
    prepared: Prepared,
    setting: str,
    values: Sequence[str],
    *,
    out: Path,
    task: str | None = None,
    seeds: int = 5,
    overrides: Sequence[str] = (),
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> RunComparison:
    """Train a network for each value and seed, and compare the values on the held-out people.

    Args:
        prepared: The data.
        setting: Its name, as in `model.visit_encoder`.
        values: As on the command line; differences are the first minus each other one.
        out: Folder with a run for each value and seed, and `ablation.json`. What is finished there is kept.
        task: Name of the task; the only one by default.
        seeds: Of the training, from 0.
        overrides: Other settings, the same for all.
        progress: Whether to show bars.
        say: Called with what is trained.

    Returns:
        The runs, in a group for each value.

    Raises:
        EhrseqError: There are no two trainings to compare, one is impossible, or a folder holds another training.
    """
    name = task or prepared.only_task()

    def study_of_value(value: str, seed: int) -> StudyConfig:
        given = [*overrides, f"{setting}={value}", *_ALONE, f"training.seed={seed}"]
        return load_study(None, given)

    studies = [study_of_value(value, 0) for value in values]
    trained = {study.model_dump_json(include={"model", "training"}) for study in studies}
    if len(values) < 2 or len(trained) < len(values):
        raise EhrseqError(
            "compares two different values or more, of what a network alone is trained with",
            where="--ablate",
            fix=f"write {setting}=ONE,OTHER",
        )
    for study in studies:  # what cannot be is refused before anything is trained
        Plan.of(prepared, name, study)
    runs: dict[str, list[Path]] = {value: [] for value in values}
    for value in values:
        for seed in range(seeds):
            say(f"{setting}={value}, seed {seed}")
            folder = out / re.sub(r"[^\w.-]+", "-", value) / f"seed-{seed}"
            with training_bar(show=progress) as report:
                plan = Plan.of(prepared, name, study_of_value(value, seed))
                fit(plan, folder, resume=True, on_progress=report)
            runs[value].append(folder)
    found = compare(runs, bootstrap=0, progress=progress)
    write_json(out / ABLATION, {"setting": setting, "task": name, "runs": found.runs()})
    return found


# ---- one run at several sites -----------------------------------------------------------------------------------


def pool_sites(
    files: Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str],
    overwrite: bool = False,
) -> dict[str, Any]:
    """Pool the evaluations of one run at several sites by random effects; writes `pooled.json` and `pooled.html`.

    Args:
        files: The `metrics.json` of each site (`evaluate` with `data=`).
        out: Folder to make.
        overwrite: Whether an earlier pooling there that nobody has changed is replaced.

    Returns:
        The content of `pooled.json`.

    Raises:
        EhrseqError: A file is impossible, or the sites are of different models or tasks.
    """
    sites = read_sites([Path(file) for file in files])
    made = made_of(sites={name: site.model_dump(mode="json") for name, site in sites.items()})
    result = redact_rows(
        {
            **pool(
                next(iter(sites.values())).title, {name: site.rows for name, site in sites.items()}
            ),
            "made_of": digest(made),
        },
        is_pooled=True,
        is_simulated=all(site.data.simulated for site in sites.values()),
    )
    with complete_folder(Path(out), POOLED, overwrite=overwrite) as folder:
        write_shareable(folder / "pooled.json", result)
        write_shareable(folder / "pooled.html", result.drawn(render_pooled))
        write_manifest(folder, {**POOLED.facts, "made_of": made})
    return result


# ---- the demo ------------------------------------------------------------------------------------------------------


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
    progress: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Shared:
    """Simulate, then go the whole way; steps that are complete are skipped.

    Args:
        out: Folder to make.
        subjects: How many subjects to simulate.
        seed: Seed of simulation and training.
        progress: Whether to show bars.
        say: Called with lines for a terminal.

    Returns:
        The metrics.
    """
    require_name(out)
    import torch

    # a model this small gains little from a second thread, and loses much on a busy machine
    torch.set_num_threads(1)
    data = out / "data"
    wanted = {**SIMULATION.facts, **simulation_facts(subjects, seed, "held_out", WORLD)}
    manifest = read_json(data / MANIFEST) if is_json_of(data / MANIFEST, SIMULATION) else {}
    is_empty = not out.exists() or (out.is_dir() and not entries(out))
    if not is_empty and not wanted.items() <= manifest.items():
        raise EhrseqError(
            "holds something else", where=str(out), fix="name another folder with --out"
        )
    if not (data / MANIFEST).is_file():
        say(f"0/5  simulating {subjects:,} patients, whose true risks are known")
        world = WORLD.model_dump(exclude_defaults=True)
        simulate(data, subjects=subjects, seed=seed, progress=progress, **world)
    study = load_study(None, [*SETTINGS, f"training.seed={seed}"])
    task = load_task(data / "task.yaml")
    made = run(data, task, out=out, study=study, progress=progress, say=say)
    if not (out / "explorer.html").is_file():
        made.explore(data, out / "explorer.html", subjects=EXPLORED, progress=progress)
    metrics: Shared = read_json(made.folder / "metrics.json")
    for line in summary(metrics, subjects=subjects):
        say(line)
    return metrics


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
