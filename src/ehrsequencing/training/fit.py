"""A training from top to bottom: plan → trees and Cox → network → blend → files.

What each needs is decided in `plan.py`; each thing is fitted once.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.core.arrays import Floats32
from ehrsequencing.core.files import read_json_lines
from ehrsequencing.core.outputs import ARRAYS_FILE, BLEND_FILE, HISTORY, RUN, read_manifest
from ehrsequencing.models.ensemble import Ensemble, load_model
from ehrsequencing.predictors.blend import STACKED, Blend
from ehrsequencing.predictors.fit import fit_last_step
from ehrsequencing.predictors.network import NETWORK, network
from ehrsequencing.predictors.stack import Stack, blend_rows, fit_stack, sampled
from ehrsequencing.predictors.weights import BlendRows, fit_weights
from ehrsequencing.training.hazards_objective import provenance
from ehrsequencing.training.loop import Progress, ShowProgress, show_nothing
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.processes import ALONE, Processes
from ehrsequencing.training.run_folder import RunFolder, write_run_files
from ehrsequencing.training.train import Trained, Trainer

# prior SD of the network's weight around one half: 46 tuning people leave it there, thousands decide it
PRIOR_SD = 0.1
Say = Callable[[str], None]


def fit(
    plan: Plan,
    out: Path,
    *,
    resume: bool = False,
    taught: Floats32 | None = None,
    trainer: Trainer | None = None,
    processes: Processes = ALONE,
    on_start: Callable[[Mapping[str, Any] | None], None] = lambda _: None,
    on_progress: ShowProgress = show_nothing,
    say: Say = lambda _: None,
) -> None:
    """Train a plan and write its run; with several processes, in all of them, and process 0 writes.

    Args:
        plan: What to train.
        out: Folder of the run.
        resume: Go on with an interrupted run; a finished one stays as it is.
        taught: (R, causes, bins) what the network learns from beside the events, where it is fitted elsewhere.
        trainer: That of the plan, where it is made already.
        processes: Those that train together.
        on_start: Called with what the weights start from, before the first step.
        on_progress: Told after each step and epoch.
        say: Called with what is fitted.

    Raises:
        EhrseqError: The folder holds something else, or the training fails.
    """
    folder = RunFolder(out, plan.prepared, plan.task.name, plan.made_of)
    held = folder.held(resume=resume) if processes.is_first else nullcontext(False)
    with held as is_finished:
        # all processes wait for process 0 here, and learn what it found
        if processes.totals(float(is_finished)) != [0.0]:
            return
        started = time.monotonic()
        stack = _stack(plan, processes, say)
        fitted = time.monotonic()
        if plan.settings.distillation > 0 and taught is None:
            taught = processes.from_first(None if stack is None else stack.out_of_fold, plan.shape)
        trained = None
        if plan.settings.network:
            trained = _network(
                plan,
                out,
                trainer,
                taught=taught,
                resume=resume,
                processes=processes,
                on_start=on_start,
                on_progress=on_progress,
            )
        if processes.is_first:
            seconds = {STACKED: fitted - started, NETWORK: time.monotonic() - fitted}
            _write(plan, out, stack, trained, seconds)


def _stack(plan: Plan, processes: Processes, say: Say) -> Stack | None:
    """Trees and Cox, where they are a part of the answer or teach the network; process 0 alone fits them."""
    if not (plan.fits_stack and processes.is_first):
        return None
    return fit_stack(
        plan.fitting_data(),
        progress=lambda done, of: say(f"fitting trees and Cox, {done + 1} of {of}"),
    )


def _network(
    plan: Plan,
    out: Path,
    trainer: Trainer | None,
    *,
    taught: Floats32 | None,
    resume: bool,
    processes: Processes,
    on_start: Callable[[Mapping[str, Any] | None], None],
    on_progress: ShowProgress,
) -> Trained | None:
    """The network, or the ensemble of networks."""
    trainer = trainer or Trainer(plan, processes)
    on_start(trainer.started_from)
    if plan.settings.members == 1:
        trained = trainer.train(out, taught=taught, resume=resume, on_progress=on_progress)
    else:
        trained = _members(plan, out, trainer, taught=taught, on_progress=on_progress)
    if trained is not None and plan.transfer is not None:
        trained.model.requires_grad_(True)
        trained.facts["init"] = trainer.started_from
    return trained


def _members(
    plan: Plan, out: Path, whole: Trainer, *, taught: Floats32 | None, on_progress: ShowProgress
) -> Trained | None:
    """`training.members` networks with the seeds seed, seed + 1 …, each a run in `checkpoints/member-…`.

    A finished member is kept, an interrupted one goes on.
    """
    processes, count = whole.processes, plan.settings.members
    ensemble, history, facts = Ensemble(plan.config), list[dict[str, Any]](), list[dict[str, Any]]()
    for number, model in enumerate(ensemble.members):
        folder = out / "checkpoints" / f"member-{number + 1:03d}"

        def show(progress: Progress, number: int = number) -> None:
            on_progress(replace(progress, member=number + 1, members=count))

        fit(
            plan.member(number),
            folder,
            resume=True,
            taught=taught,
            processes=processes,
            on_progress=show,
        )
        if not processes.is_first:
            continue
        model.load_state_dict(load_model(folder).state_dict())
        history += [{"member": number + 1, **row} for row in read_json_lines(folder / HISTORY)]
        manifest = read_manifest(folder, what=RUN.what)
        kept = ("seed", "best_epoch", "tuning_nll", "recalibration")
        facts.append({key: manifest[key] for key in kept if key in manifest})
    if not processes.is_first:
        return None
    nll = whole.objective.tuning_nll(ensemble.to(whole.training.device))
    of_ensemble = {"seed": plan.settings.seed, "members": facts, "tuning_nll": nll}
    return Trained(ensemble.cpu(), history, of_ensemble)


def _write(
    plan: Plan,
    out: Path,
    stack: Stack | None,
    trained: Trained | None,
    seconds: Mapping[str, float],
) -> None:
    """Write everything that prediction needs, and what each stage cost; the manifest comes last."""
    facts: dict[str, Any] = {"fingerprint": plan.fingerprint, "made_of": plan.made_of}
    facts["seconds"] = {name: round(value, 1) for name, value in seconds.items()}
    if plan.loss is not None:
        facts["loss"] = provenance(plan.loss)
    more: tuple[str, ...] = ()
    if stack is not None and (plan.settings.blend or trained is None):
        out.mkdir(parents=True, exist_ok=True)
        facts["blend"] = _save_blend(plan, out, stack.fitted, trained)
        more = (BLEND_FILE, ARRAYS_FILE)
    if trained is not None:
        facts |= trained.facts
    write_run_files(
        out,
        plan.prepared,
        plan.study,
        None if trained is None else trained.model,
        [] if trained is None else trained.history,
        facts,
        more=more,
    )


def _save_blend(plan: Plan, out: Path, stacked: Blend, trained: Trained | None) -> dict[str, Any]:
    """Save the blend, or trees and Cox alone; its parts, and the tuning NLL of it and of each of them."""
    tuning = plan.tuning
    if trained is None:
        step = fit_last_step(stacked, plan.fitting_data())
        whole = stacked if step is None else stacked.recalibrated(*step)
        stacked.save(out, step)
        compared = {stacked.name: whole} | {one.name: one for one in stacked.parts}
        parts = stacked.parts
    else:
        vocabulary = plan.prepared.vocabulary
        alone = network(trained.model, vocabulary.code_types if plan.config.code_types else None)
        rows = blend_rows([alone, stacked], sampled(tuning))
        own = fit_weights(BlendRows.joined(rows), n_causes=len(plan.task.causes), prior_sd=PRIOR_SD)
        blend = Blend([alone, *stacked.parts], own.before(stacked.weights))
        blend.save(out)
        compared = {one.name: one for one in (blend, alone, stacked)}
        parts = blend.parts
    mean = {name: float(np.mean(one.nll(tuning))) for name, one in compared.items()}
    return {"parts": [one.name for one in parts], "tuning_nll": mean}
