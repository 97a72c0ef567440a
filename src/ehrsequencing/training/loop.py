"""The training loop: random subjects up to a visit budget, AdamW, averaged weights, early stop on tuning NLL.

With `training.members=M` a run is M such models, one after another, saved as one (`models/ensemble.py`).
A run depends only on its data, settings and seed: each step seeds its dropout from its own number, and each epoch its
order of subjects, so that an interrupted run continues to the same bits. The parts of a long record
(`ehrsequencing.batches.loader`) are batches of one step: their gradients add up before the one update.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.config import StudyConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json_lines
from ehrsequencing.core.outputs import HISTORY, MANIFEST, RUN, read_manifest
from ehrsequencing.core.signals import Stop
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.build import build_model, load_model
from ehrsequencing.models.ensemble import Ensemble
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.outcomes import OutcomeHead
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.training.checkpoint import (
    ExponentialMovingAverage,
    TrainingState,
    load_checkpoint,
    pack_tensors,
    save_checkpoint,
    saved_at_signals,
    unpack_tensors,
)
from ehrsequencing.training.draws import hash_seed, resampled
from ehrsequencing.training.fabric import make_fabric
from ehrsequencing.training.feed import Losses, feed
from ehrsequencing.training.masked_codes import BesideHazards
from ehrsequencing.training.optimizer import learning_rate, make_optimizer
from ehrsequencing.training.pretrained import Pretrained
from ehrsequencing.training.processes import ALONE, Processes
from ehrsequencing.training.progress import Progress as Progress
from ehrsequencing.training.progress import of_epoch
from ehrsequencing.training.recalibration import recalibrate_head
from ehrsequencing.training.resolve import resolve_model, starting_hazards, starting_outcome_hazards
from ehrsequencing.training.run_files import write_run_files
from ehrsequencing.training.run_folder import RunFolder, alone, write_history
from ehrsequencing.training.together import Together
from ehrsequencing.training.transfer import Transfer, keep_adapters, merge_adapters
from ehrsequencing.training.tuning import mean_nll

# settings that a resumed run may change
_MAY_CHANGE = {
    "epochs",
    "patience",
    "checkpoint_steps",
    "checkpoint_seconds",
}


class Trainer:
    """Fits one model, or `training.members` of them, to one task of a prepared set.

    Args:
        prepared: The data.
        task_name: Which of its tasks.
        out: Folder of the run.
        study: Settings; `model` and `training` are used. With `training.blend` this is the network of the blend.
        leave_out: Training subjects (numbers) that nothing is fitted to but the grid: a fold of the blend.
        init: A model to start from, used as `study.transfer` says.
        processes: Those that train together; each has a trainer with the same arguments, and process 0 writes.
    """

    def __init__(
        self,
        prepared: Prepared,
        task_name: str,
        out: Path,
        *,
        study: StudyConfig,
        leave_out: Ints | None = None,
        init: Pretrained | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.processes = processes
        self.prepared, self.task, self.out, self.leave_out = (
            prepared,
            prepared.task(task_name),
            out,
            leave_out,
        )
        self.settings = study.training.model_copy(update={"blend": False})
        train, tuning = (
            prepared.outcome_records(task_name, split) for split in ("train", "tuning")
        )
        self.train_rows, self.tuning_rows = train.rows, tuning.rows
        self._refuse_hopeless()
        self.init = None if init is None else Transfer(init, study.transfer, prepared)
        model = study.model if self.init is None else self.init.config(study.model)
        self.config, hazards = resolve_model(
            model, prepared, self.task, self.train_rows, self.settings
        )
        if leave_out is not None:
            kept = np.setdiff1d(np.arange(len(train.timelines)), leave_out)
            self.train_rows = train.rows.take(kept)
            self._refuse_hopeless()
            hazards = starting_hazards(self.config, self.train_rows)
        made_by = prepared.study.model_copy(
            update={"task": self.task, "evaluation": study.evaluation, "preset": study.preset}
        )
        self.study = made_by.model_copy(
            update={"model": self.config, "training": self.settings, "transfer": study.transfer}
        )
        types = prepared.vocabulary.code_types if self.config.code_types else None
        self.loader, self.tuning = (
            SubjectLoader.of_model(self.config, records, code_types=types)
            for records in (train, tuning)
        )
        if leave_out is not None:
            self.loader.subjects = np.setdiff1d(self.loader.subjects, leave_out)
        if self.settings.bootstrap:
            self.loader.subjects = resampled(self.loader.subjects, seed=self.settings.seed)
        total = int(self.loader.cost[self.loader.subjects].sum())
        self.budget = max(1, min(self.settings.visit_budget, total // self.settings.min_steps))
        # The loss is divided by a constant, the rows expected in a full step, never by the rows of this one.
        of_all = min(1.0, self.budget / max(total, 1))
        if self.settings.subjects_per_step is not None:
            of_all = min(of_all, self.settings.subjects_per_step / len(self.loader))
        self.rows_per_step = max(1.0, of_all * len(self.train_rows))
        self.visits_per_step = max(
            1.0, of_all * int(self.loader.n_visits[self.loader.subjects].sum())
        )

        torch.manual_seed(self.settings.seed)
        self.model = build_model(self.config.model_copy(update={"members": 1}))
        if self.config.head == "horizon":
            self.model.head.set_bias(torch.from_numpy(hazards))
        self.started_from = None if self.init is None else self.init.start(self.model)
        if isinstance(self.model.outcomes, OutcomeHead):
            self.model.outcomes.set_bias(starting_outcome_hazards(self.config, train))
        self.averaged, self.best = copy.deepcopy(self.model), copy.deepcopy(self.model)
        self.fabric = make_fabric(self.settings.precision, devices=processes.devices)
        optimizer = make_optimizer(self.model, self.settings, steps_per_epoch=1 / of_all)
        self.module, self.optimizer = self.fabric.setup(self.model, optimizer)
        self.masked_codes: BesideHazards | None = None
        trains_codes = self.init is None or self.init.trains_codes
        if (
            self.settings.masked_codes > 0
            and trains_codes
            and isinstance(self.model, HierarchicalBEHRTForSurvival)
        ):
            self.masked_codes = BesideHazards(self.model, self.settings)
        self.together = Together(
            processes,
            self.fabric,
            model=self.model,
            loader=self.loader,
            masked_codes=self.masked_codes,
            visits_per_step=self.visits_per_step,
            settings=self.settings,
        )
        self.averaged, self.best = (
            self.averaged.to(self.fabric.device),
            self.best.to(self.fabric.device),
        )
        self.ema = ExponentialMovingAverage(
            self.model, self.averaged, decay=self.settings.ema, warmup=self.settings.ema_warmup
        )
        self._codes_rate = 0.0  # learning rate of the codes in this step
        self._saved_at = time.monotonic()  # of the last checkpoint; none is due at the start
        self._stop = Stop()

    def _refuse_hopeless(self) -> None:
        where = f"task {self.task.name} in {self.prepared.folder}"
        if int(np.sum(np.diff(self.train_rows.row_offsets) > 0)) < 2:
            raise EhrseqError(
                "fewer than two training subjects have a prediction time",
                where=where,
                fix="see ehrseq check",
            )
        if not np.any(self.train_rows.cause == 1):
            what = f"no event of interest ({self.task.causes[0]}) in training"
            raise EhrseqError(
                what, where=where, fix="check the task's outcome codes with ehrseq check"
            )
        if not self._landmark_rows().any():
            fix = "give the tuning split more subjects, or the task an earlier landmark"
            raise EhrseqError("no tuning subject is at risk at a landmark", where=where, fix=fix)

    def _landmark_rows(self) -> Any:
        return np.any([self.tuning_rows.at_landmark(days) for days in self.task.landmarks], axis=0)

    @property
    def fingerprint(self) -> str:
        """Digest of what a resumed run must share with its start."""
        settings = self.settings.model_dump(
            exclude={*_MAY_CHANGE, "members", "blend", "blend_folds"}
        )
        # one model: as before there were more
        members = [self.settings.members] if self.settings.members > 1 else []
        config = self.config.model_dump(exclude={"members"})
        without = [] if self.leave_out is None else ["without", self.leave_out.tolist()]
        init = [] if self.init is None else ["init", self.init.fingerprint]
        return digest(
            [config, settings, self.prepared.identity(self.task.name), *members, *without, *init]
        )

    def fit(
        self, *, resume: bool = False, on_progress: Callable[[Progress], None] | None = None
    ) -> None:
        """Train to the early stop and write the run; with several processes, in all of them."""
        if self.processes.is_first:
            self._lead(resume=resume, on_progress=on_progress)
        else:
            self._follow()

    def _follow(self) -> None:
        """What the processes do that write nothing."""
        if self.settings.members > 1:
            for number in range(self.settings.members if self.processes.tell() else 0):
                self._member(number).fit()
        elif (told := self.processes.tell()) is not None:
            self._train(self._begin_together(told), None, None)

    @alone
    def _lead(self, *, resume: bool, on_progress: Callable[[Progress], None] | None) -> None:
        """What process 0 does."""
        folder = RunFolder(self.out, self.prepared, self.task.name, self.fingerprint)
        checkpoints = folder.checkpoints
        if resume and (self.out / MANIFEST).is_file():
            folder.check_finished()
            folder.remove_checkpoints()
            self.processes.tell(None)
            return
        folder.begin(resume=resume)
        if self.settings.members > 1:
            self.processes.tell(True)
            self._fit_members(on_progress)
            folder.remove_checkpoints()
            return
        state = self._start(checkpoints, resume=resume)
        if self.processes.several:
            self._begin_together(self.processes.tell(asdict(state)))
        self._train(state, checkpoints, on_progress)
        facts: dict[str, Any] = {"best_epoch": state.best_epoch, "tuning_nll": state.best_nll}
        if self.settings.recalibration > 0 and self.config.head == "horizon":
            facts |= self._recalibrate()
        self.write_run(self.best.cpu(), state.history, facts)
        folder.remove_checkpoints()

    def _begin_together(self, told: dict[str, Any]) -> TrainingState:
        """Take over where process 0 stands, with all its tensors."""
        state = TrainingState(**told)
        if state.fingerprint != self.fingerprint:
            what, fix = (
                "this process sees other data or settings than process 0",
                "use one shared file system",
            )
            raise EhrseqError(what, where=str(self.prepared.folder), fix=fix)
        tensors = self.processes.tell_tensors(pack_tensors(self._models, self._optimizers))
        if not self.processes.is_first:
            unpack_tensors(tensors, self._models, self._optimizers)
        return state

    def _train(
        self,
        state: TrainingState,
        checkpoints: Path | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        """Train from a state to the early stop; only with a folder for checkpoints is anything written."""
        with saved_at_signals(lambda: self._save_and_leave(checkpoints, state)) as self._stop:
            while not state.finished:
                started = time.monotonic()
                seen = self._epoch(state, checkpoints, on_progress)
                self._end_epoch(state, seconds=time.monotonic() - started, seen=seen)
                self._save_when_due(checkpoints, state)
                if checkpoints is not None:
                    write_history(self.out, state.history)
                if on_progress is not None:
                    on_progress(of_epoch(state.history[-1], self.settings.epochs))

    def _recalibrate(self) -> dict[str, Any]:
        """Recalibrate the best model; the fitted numbers, and the tuning NLL after it."""
        fitted = recalibrate_head(
            self.best,
            self.tuning,
            prior_sd=self.settings.recalibration,
            visit_budget=4 * self.settings.visit_budget,
            device=self.fabric.device,
        )
        return {
            "tuning_nll": self.tuning_nll(self.best),
            "recalibration": fitted.as_json(self.task.causes),
        }

    def _fit_members(self, on_progress: Callable[[Progress], None] | None) -> None:
        """One member after another, each a run of its own in `checkpoints/member-…`; then all of them as one run.

        A finished member is kept, an interrupted one goes on from its own checkpoints.
        """
        count, history, facts, adapters = self.settings.members, [], [], list[str]()
        ensemble = Ensemble(self.config)
        for number, model in enumerate(ensemble.members):
            member = self._member(number)

            def show(progress: Progress, member: int = number + 1) -> None:
                if on_progress is not None:
                    on_progress(replace(progress, member=member, members=count))

            member.fit(resume=True, on_progress=show)
            model.load_state_dict(load_model(member.out).state_dict())
            history += [
                {"member": number + 1, **row} for row in read_json_lines(member.out / HISTORY)
            ]
            manifest = read_manifest(member.out, what=RUN.what)
            kept = ("seed", "best_epoch", "tuning_nll", "recalibration")
            facts.append({key: manifest[key] for key in kept if key in manifest})
            adapters += keep_adapters(member.out, self.out, member=number + 1)
        nll = self.tuning_nll(ensemble.to(self.fabric.device))
        self.write_run(
            ensemble.cpu(), history, {"members": facts, "tuning_nll": nll}, more=tuple(adapters)
        )

    def _member(self, number: int) -> "Trainer":
        """What trains one member of an ensemble, from 0 on."""
        settings = self.settings.model_copy(
            update={"seed": self.settings.seed + number, "members": 1}
        )
        single = self.config.model_copy(update={"members": 1})
        return Trainer(
            self.prepared,
            self.task.name,
            self.out / "checkpoints" / f"member-{number + 1:03d}",
            study=self.study.model_copy(update={"training": settings, "model": single}),
            leave_out=self.leave_out,
            init=None if self.init is None else self.init.source,
            processes=self.processes,
        )

    def _start(self, checkpoints: Path, *, resume: bool) -> TrainingState:
        found = load_checkpoint(checkpoints, fingerprint=self.fingerprint) if resume else None
        if found is None:
            return TrainingState(self.fingerprint)
        state, tensors = found
        unpack_tensors(tensors, self._models, self._optimizers)
        state.finished = self._is_over(state)  # epochs and patience may have changed
        return state

    def _save_when_due(self, checkpoints: Path | None, state: TrainingState) -> None:
        """Save a checkpoint, unless the last one is recent or the run is about to be written."""
        if (
            not state.finished
            and time.monotonic() - self._saved_at >= self.settings.checkpoint_seconds
        ):
            self._save(checkpoints, state)

    def _save_and_leave(self, checkpoints: Path | None, state: TrainingState) -> None:
        """Save a last checkpoint; the others wait for it, since Slurm ends all once a process has ended."""
        self._save(checkpoints, state)
        if self._stop.is_joint:
            self.processes.totals(0.0)

    def _save(self, checkpoints: Path | None, state: TrainingState) -> None:
        if checkpoints is None:
            return
        save_checkpoint(checkpoints, state, pack_tensors(self._models, self._optimizers))
        self._saved_at = time.monotonic()

    @property
    def _models(self) -> dict[str, nn.Module]:
        models: dict[str, nn.Module] = {
            "model": self.model,
            "averaged": self.averaged,
            "best": self.best,
        }
        return (
            models
            if self.masked_codes is None
            else {**models, "masked_codes": self.masked_codes.objective}
        )

    @property
    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        found: dict[str, torch.optim.Optimizer] = {"optimizer": self.optimizer}
        return (
            found
            if self.masked_codes is None
            else {**found, "masked_codes_optimizer": self.masked_codes.optimizer}
        )

    def _epoch(
        self,
        state: TrainingState,
        checkpoints: Path | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> int:
        """The rest of an epoch; returns the number of subjects seen."""
        settings = self.settings
        steps = self.loader.shuffled(
            state.epoch,
            seed=settings.seed,
            visit_budget=self.budget,
            most_subjects=settings.subjects_per_step,
        )
        started, seen, rows = time.monotonic(), 0, 0
        parts: list[torch.Tensor] = []  # losses of the batches of one step
        tuning_nll = state.history[-1]["tuning_nll"] if state.history else None
        losses = Losses(self.fabric.device, scale=self.rows_per_step, where=str(self.out))
        for step in feed(self._batches(steps[state.step :]), self.fabric.device):
            if not parts:
                self._begin_step(state, total_steps=self.settings.epochs * len(steps))
            parts.append(self._backward(step))
            rows += len(step.rows)
            if not step.is_last:
                continue
            summed, counted = torch.stack(parts).sum(), torch.tensor(rows)
            if self.processes.several:
                summed, counted = self.together.add_up(
                    state, summed, rows, steps[state.step], self._stop
                )
            self._update(state)
            losses.add(state, summed, counted)
            state.step, seen, parts, rows = state.step + 1, seen + len(steps[state.step]), [], 0
            if state.global_step % self.settings.checkpoint_steps == 0 and state.step < len(steps):
                losses.read(state)
                self._save_when_due(checkpoints, state)
            if on_progress is not None:
                rate = seen / max(time.monotonic() - started, 1e-9)
                loss = state.loss_sum / max(state.row_count, 1)
                on_progress(
                    Progress(
                        state.epoch + 1,
                        self.settings.epochs,
                        state.step,
                        len(steps),
                        loss,
                        tuning_nll,
                        rate,
                    )
                )
            if not self.processes.several or self.together.all_leave:
                self._stop.leave_if_asked(partial(losses.read, state))
        losses.read(state)
        return seen

    def _batches(self, steps: list[Any]) -> Iterator[Step]:
        for subjects in steps:
            mine = self.processes.share(subjects, self.loader.cost[subjects])
            if len(mine):
                yield from self.loader.steps(mine, visit_budget=self.settings.visit_budget)
            else:
                yield self.loader.collate(mine)  # fewer subjects than processes: a batch of nobody

    def _begin_step(self, state: TrainingState, *, total_steps: int) -> None:
        self.model.train()
        # Dropout depends on the step alone; among several processes, also on which one this is.
        torch.manual_seed(hash_seed(self.settings.seed, state.global_step, self.processes.rank))
        rate = learning_rate(self.settings, state.global_step, total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._codes_rate = rate
        self.optimizer.zero_grad(set_to_none=True)

    def _backward(self, step: Step) -> torch.Tensor:
        """Add the gradient of one batch; returns its summed NLL over `rows_per_step`."""
        if not step.batch.n_subjects:
            return torch.zeros((), device=self.fabric.device)
        with self.fabric.autocast():
            loss = self.model.loss(step.batch, divisor=self.rows_per_step)
        self.fabric.backward(loss)
        if self.masked_codes is not None and not self.processes.several:
            with self.fabric.autocast():
                of_codes = self.masked_codes.loss(step.batch) / self.visits_per_step
            self.masked_codes.backward(of_codes)
        return loss.detach()

    def _update(self, state: TrainingState) -> None:
        """One step of the optimiser along the gradients of all its batches."""
        self.fabric.clip_gradients(
            self.module, self.optimizer, max_norm=self.settings.clip_norm, error_if_nonfinite=False
        )
        self.optimizer.step()
        if self.masked_codes is not None:
            self.masked_codes.step(self._codes_rate)
        state.global_step += 1
        self.ema.update(state.global_step)

    def _end_epoch(self, state: TrainingState, *, seconds: float, seen: int) -> None:
        """Evaluate the averaged weights on the tuning split; keep them if they are the best so far."""
        self.processes.keep_same([*self.model.parameters(), *self.averaged.parameters()])
        nll = self.tuning_nll(self.averaged, self.processes)
        better = nll < state.best_nll - self.settings.min_gain
        if better:
            state.best_nll, state.best_epoch, state.stale_epochs = nll, state.epoch + 1, 0
            self.best.load_state_dict(self.averaged.state_dict())
        elif (
            state.global_step > self.settings.warmup_steps
        ):  # before, the averaged weights are hardly trained
            state.stale_epochs += 1
        state.history.append(
            {
                "epoch": state.epoch + 1,
                "steps": state.step,
                "train_nll": state.loss_sum / max(state.row_count, 1),
                "tuning_nll": nll,
                "best": better,
                "seconds": round(seconds, 2),
                "subjects_per_second": round(seen / max(seconds, 1e-9), 1),
            }
        )
        state.epoch, state.step, state.loss_sum, state.row_count = state.epoch + 1, 0, 0.0, 0
        state.finished = self._is_over(state)

    def _is_over(self, state: TrainingState) -> bool:
        return state.epoch >= self.settings.epochs or (
            state.stale_epochs >= self.settings.patience and state.step == 0
        )

    def tuning_nll(self, model: SurvivalModel, processes: Processes = ALONE) -> float:
        """Mean NLL at the tuning split's prediction times, or at its landmarks alone (`early_stop`; `horizon` head).

        Args:
            model: Whose.
            processes: Each computes a part; all must call it.
        """
        alone = self.settings.early_stop == "landmarks" and self.config.head == "horizon"
        chosen = self._landmark_rows() if alone else np.ones(len(self.tuning_rows), dtype=bool)
        budget = 4 * self.settings.visit_budget
        return mean_nll(
            model,
            self.tuning,
            chosen,
            visit_budget=budget,
            fabric=self.fabric,
            stop=self._stop,
            processes=processes,
        )

    def write_run(
        self,
        model: SurvivalModel,
        history: list[dict[str, Any]],
        facts: dict[str, Any],
        *,
        more: tuple[str, ...] = (),
    ) -> None:
        """Write everything that prediction needs; the manifest comes last.

        Args:
            model: The trained model.
            history: One row an epoch.
            facts: For the manifest.
            more: Files that are there already, and that prediction needs too.
        """
        if self.init is not None:
            model, own = merge_adapters(model, self.out)
            facts, more = {**facts, "init": self.started_from}, (*more, *own)
        facts = {"seed": self.settings.seed, "fingerprint": self.fingerprint, **facts}
        write_run_files(self.out, self.prepared, self.study, model, history, facts, more=more)
