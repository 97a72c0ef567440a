"""A training from top to bottom: plan → trees and Cox → network → blend → files.

What each needs is decided in `plan.py`; each thing is fitted once.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.files import read_json, read_json_lines, write_json
from ehrsequencing.core.outputs import ARRAYS_FILE, BLEND_FILE, HISTORY, RUN, read_manifest
from ehrsequencing.predictors.blend import STACKED, Stack, fit_stack
from ehrsequencing.predictors.fit import fit_blend, fit_last_step
from ehrsequencing.predictors.predictor import NETWORK, Predictor, risks_and_likelihoods
from ehrsequencing.records.people import PEOPLE, quantiles_of_risks, some_people
from ehrsequencing.records.prepared import ARRAYS, REFERENCE
from ehrsequencing.records.timelines import TaskRecords, TaskRows, Timelines, open_arrays
from ehrsequencing.results.result_types import EpochRow, Origin
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.processes import ALONE, Processes
from ehrsequencing.training.run_folder import (
    NOTHING_LEARNED,
    hold_folder,
    provenance,
    write_run_files,
)

if TYPE_CHECKING:  # torch: a run without a network never imports it
    from ehrsequencing.training.loop import Progress, ShowProgress
    from ehrsequencing.training.train import Trained, Trainer

Say = Callable[[str], None]


def fit(
    plan: Plan,
    out: Path,
    *,
    resume: bool = False,
    trainer: "Trainer | None" = None,
    processes: Processes = ALONE,
    on_start: Callable[[Origin | None], None] = lambda _: None,
    on_progress: "ShowProgress" = lambda _: None,
    say: Say = lambda _: None,
) -> None:
    """Train a plan and write its run; with several processes, in all of them, and process 0 writes.

    Args:
        plan: What to train.
        out: Folder of the run.
        resume: Go on with an interrupted run; a finished one stays as it is.
        trainer: That of the plan, where it is made already.
        processes: Those that train together.
        on_start: Called with what the weights start from, before the first step.
        on_progress: Told after each step and epoch.
        say: Called with what is fitted.

    Raises:
        EhrseqError: The folder holds something else, or the training fails.
    """
    held: AbstractContextManager[bool] = nullcontext(False)
    if processes.is_first:
        held = hold_folder(out, plan.prepared, plan.task.name, plan.made_of, resume=resume)
    with held as is_finished:
        # all processes wait for process 0 here, and learn what it found
        if processes.totals(float(is_finished)) != [0.0]:
            return
        started = time.monotonic()
        stack, training = None, plan.study.training
        teaches = training.distillation > 0 and training.network and not plan.is_member
        has_stack = training.blend is True or not training.network or teaches
        if has_stack and processes.is_first:
            stack = fit_stack(
                plan.fitting_data(),
                progress=lambda done, of: say(f"fitting trees and Cox, {done + 1} of {of}"),
            )
        fitted = time.monotonic()
        if training.distillation > 0 and plan.taught is None:
            of_first = None if stack is None else stack.out_of_fold
            shape = len(plan.train), plan.config.causes, plan.config.bins
            plan = replace(plan, taught=processes.from_first(of_first, shape))
        trained = None
        if training.network:
            from ehrsequencing.training.train import Trainer

            if plan.config.query_follows_visit:
                beside = ", and codes have additive effects" * plan.config.code_effects
                say(f"a query begins with its last visit{beside}: most codes carry no number")
            trainer = trainer or Trainer(plan, processes)
            trainer.objective.taught = plan.taught
            on_start(trainer.started_from)
            if training.members == 1:
                trained = trainer.train(out, resume=resume, on_progress=on_progress)
            else:
                trained = _members(plan, out, trainer, on_progress)
            if trained is not None and plan.transfer is not None:
                trained.model.requires_grad_(True)
                trained.facts["init"] = trainer.started_from
        if processes.is_first:
            seconds = {STACKED: fitted - started, NETWORK: time.monotonic() - fitted}
            if not _write(plan, out, stack, trained, seconds):
                say(
                    f"this run has {NOTHING_LEARNED}: train longer, or check the task and the labels"
                )


def _members(
    plan: Plan, out: Path, whole: "Trainer", on_progress: "ShowProgress"
) -> "Trained | None":
    """`training.members` networks with the seeds seed, seed + 1 …, each a run in `checkpoints/member-…`.

    A finished member is kept, an interrupted one goes on.
    """
    from ehrsequencing.models.ensemble import Ensemble, load_model
    from ehrsequencing.training.train import Trained

    processes, count = whole.processes, whole.settings.members
    ensemble, history, facts = Ensemble(plan.config), list[EpochRow](), list[dict[str, object]]()
    for number, model in enumerate(ensemble.members):
        folder = out / "checkpoints" / f"member-{number + 1:03d}"

        def show(progress: "Progress", number: int = number) -> None:
            on_progress(replace(progress, member=number + 1, members=count))

        update = {"seed": whole.settings.seed + number, "members": 1, "blend": False}
        training = whole.settings.model_copy(update=update)
        fit(
            replace(
                plan,
                study=plan.study.model_copy(update={"training": training}),
                config=plan.config.model_copy(update={"members": 1}),
                is_member=True,
            ),
            folder,
            resume=True,
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
    of_ensemble = {"seed": whole.settings.seed, "members": facts, "tuning_nll": nll}
    return Trained(ensemble.cpu(), history, of_ensemble)


def _write(
    plan: Plan,
    out: Path,
    stack: Stack | None,
    trained: "Trained | None",
    seconds: Mapping[str, float],
) -> bool:
    """Write the run, and what each stage cost; whether it has learned something (`write_run`)."""
    facts: dict[str, object] = {
        "seconds": {name: round(value, 1) for name, value in seconds.items()}
    }
    if plan.loss is not None:
        facts["loss"] = provenance(plan.loss)
    predictor: Predictor | None = None
    more = tuple[str, ...]()
    if stack is not None and (plan.study.training.blend or trained is None):
        out.mkdir(parents=True, exist_ok=True)
        data, blend = plan.fitting_data(), stack.fitted
        if trained is None:  # trees and Cox alone
            step = fit_last_step(blend.all_hazards(data.tuning), data)
            correction = None if step is None else (step.intercept, step.slope)
            blend.save(out, correction)
            predictor = blend if correction is None else blend.recalibrated(*correction)
            facts["blend"] = {"parts": [one.name for one in blend.parts]}
        else:
            from ehrsequencing.predictors.network import Network

            network = Network(trained.model, plan.code_types)
            parts = [NETWORK, *(one.name for one in blend.parts)]
            predictor = blend = fit_blend(network, blend, data, trained.last_step)
            blend.save(out)
            weights = blend.weights.value[:, 0].tolist()
            facts["blend"] = {
                "parts": parts,
                "weight_of_network": dict(zip(plan.task.causes, weights, strict=True)),
            }
        more = (BLEND_FILE, ARRAYS_FILE)
    return write_run(plan, out, trained, facts, predictor=predictor, more=more)


def write_run(
    plan: Plan,
    out: Path,
    trained: "Trained | None",
    facts: Mapping[str, object],
    *,
    predictor: Predictor | None = None,
    more: tuple[str, ...] = (),
) -> bool:
    """Write everything that prediction needs, and risks by which a moved answer is noticed; the manifest comes last.

    Args:
        plan: Of the run.
        out: Its folder.
        trained: The network; None where there is none.
        facts: For the manifest, before those of the network.
        predictor: What answers for the run; default: the network.
        more: Files that are there already, and that prediction needs too.

    Returns:
        Whether tuning people show that it has learned something; True where nobody is asked.
    """
    kept, prepared, has_learned = dict[str, Any](), plan.prepared, True
    if not plan.is_member and (prepared.folder / PEOPLE).is_file():  # older sets lack it
        if predictor is None and trained is not None:
            from ehrsequencing.predictors.network import Network, visit_hazards

            network = trained.model.eval()
            if plan.config.head == "horizon":
                predictor = Network(network, plan.code_types)
        groups = {PEOPLE: plan.tuning.take(some_people(len(plan.tuning.timelines)))}
        if (prepared.folder / REFERENCE).is_file():  # some lack it alone
            arrays = prepared.folder / ARRAYS
            visits = open_arrays(Timelines, arrays / "visits")
            groups[REFERENCE] = TaskRecords(visits, open_arrays(TaskRows, arrays / "rows"))
        days, start_days = np.array(plan.task.horizons), plan.task.blanking
        for name, people in groups.items():
            kept[name] = read_json(prepared.folder / name)
            if predictor is None:
                answers = visit_hazards(network, people, code_types=plan.code_types)
                risk = answers.astype(np.float64)
            else:
                known = {NETWORK: predictor}
                risks, nll = risks_and_likelihoods(known, people, days, start_days=start_days)
                risk = risks[NETWORK].astype(np.float64)
            if name == REFERENCE:
                kept[name]["risk"] = risk.round(6).tolist()
                continue
            kept[name]["risks"] = quantiles_of_risks(risk, people.rows)
            if predictor is not None:
                rates = plan.fitting_data().cohort_hazards()
                gain = predictor.nll_of_hazards(rates, people.rows, slice(None)) - nll[NETWORK]
                has_learned = learned(gain, people.rows.subject)
                facts = {**facts, "learned": has_learned}
    for name, content in kept.items():
        write_json(out / name, content)
    write_run_files(
        out,
        prepared,
        plan.study,
        None if trained is None else trained.model,
        [] if trained is None else trained.history,
        {**facts, **({} if trained is None else trained.facts)},
        made_of=plan.made_of,
        more=more,
        beside=tuple(kept),
    )
    return has_learned


def learned(gain: Floats, subject: Ints) -> bool:
    """Whether people are more likely under a predictor than under the cohort's own rates, beyond chance.

    Args:
        gain: (R,) by how much the NLL of each row is lower.
        subject: (R,) whose rows they are.
    """
    _, person = np.unique(subject, return_inverse=True)
    gains = np.bincount(person, gain)
    return bool(gains.mean() > 2 * gains.std() / np.sqrt(len(gains)))
