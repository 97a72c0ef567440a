"""`ehrseq pretrain`: fits a model to objectives without labels, on training subjects alone, and writes its folder.

The optimiser, the averaged weights, the early stop and the checkpoints are those of `training/`; the settings of the
section `training` apply. The early stop looks at the weighted loss on the tuning split. Held-out subjects are never
read.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from ehrsequencing.batches.loader import Step, SubjectLoader
from ehrsequencing.config import ModelConfig, StudyConfig
from ehrsequencing.config.parts import objective
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    digest,
    read_json,
    write_bytes,
    write_json,
    write_settings,
)
from ehrsequencing.core.minimum_counts import shareable_count
from ehrsequencing.core.outputs import MANIFEST, PRETRAINED, UNFINISHED_PRETRAINING, write_manifest
from ehrsequencing.core.signals import Stop
from ehrsequencing.core.version import __version__
from ehrsequencing.models.base import CONFIG_FILE, WEIGHTS_FILE
from ehrsequencing.models.build import build_model
from ehrsequencing.records.codes import read_descriptions
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.checkpoint import (
    ExponentialMovingAverage,
    TrainingState,
    load_checkpoint,
    pack_tensors,
    save_checkpoint,
    saved_at_signals,
    unpack_tensors,
)
from ehrsequencing.training.draws import hash_seed
from ehrsequencing.training.fabric import make_fabric
from ehrsequencing.training.feed import Losses, feed
from ehrsequencing.training.optimizer import learning_rate, make_optimizer
from ehrsequencing.training.pretrained import (
    DESCRIPTIONS_FILE,
    OBJECTIVES_FILE,
    PROJECTION,
    RESULTS_FILE,
    subjects_digest,
)
from ehrsequencing.training.pretraining.described import describe_codes, fold_descriptions
from ehrsequencing.training.pretraining.exclusion import Excluded, excluded_targets
from ehrsequencing.training.pretraining.neighbours import code_neighbours
from ehrsequencing.training.pretraining.objective import Glance, Objective, Tally, World
from ehrsequencing.training.pretraining.targets import Rates, TargetCodes, visit_rows
from ehrsequencing.training.progress import Progress
from ehrsequencing.training.resolve import resolve_inputs
from ehrsequencing.training.run_folder import RunFolder, alone, write_history

_MAY_CHANGE = {"epochs", "patience", "checkpoint_steps", "checkpoint_seconds"}
_FILES = (
    *(
        CONFIG_FILE,
        WEIGHTS_FILE,
        "config.yaml",
        "history.jsonl",
        "vocabulary.json",
        "vocabulary.safetensors",
    ),
    *(DESCRIPTIONS_FILE, OBJECTIVES_FILE, RESULTS_FILE),
)


class Pretrainer:
    """Fits one model to the objectives of `study.pretraining`.

    Args:
        prepared: The data; its training subjects are learned from, its tuning subjects decide when to stop.
        out: Folder to make.
        study: Settings; `model`, `training` and `pretraining` are used.
        task_name: A task of the set, whose outcome is then no target (`pretraining.exclude`); None for all codes.
        descriptions: Code → text; default: those of the records' `codes.parquet`.

    Raises:
        EhrseqError: A setting cannot be used, or there is nothing to learn from.
    """

    def __init__(
        self,
        prepared: Prepared,
        out: Path,
        *,
        study: StudyConfig,
        task_name: str | None = None,
        descriptions: Mapping[str, str] | None = None,
    ) -> None:
        self.prepared, self.out, self.settings, self.task_name = (
            prepared,
            out,
            study.training,
            task_name,
        )
        self.config = _config(study.model, prepared)
        self.study = prepared.study.model_copy(
            update={
                "model": self.config,
                "training": study.training,
                "pretraining": study.pretraining,
                "preset": study.preset,
            }
        )
        wanted = study.pretraining.objectives
        classes = {name: objective.class_of(name) for name in wanted}
        if self.config.attention == "bidirectional" and (
            blind := [n for n, c in classes.items() if not c.sees_ahead]
        ):
            raise EhrseqError(
                f"{', '.join(blind)} would see what it should guess",
                where="model.attention=bidirectional",
                fix="pretrain with masked_codes and swapped_codes, or with model.attention=causal",
            )
        self.excluded: Excluded | None = None
        if task_name is not None and study.pretraining.exclude == "related":
            self.excluded = excluded_targets(prepared, task_name)
        none = np.zeros(0, dtype=np.int64)
        codes = TargetCodes.of(
            prepared.vocabulary, none if self.excluded is None else self.excluded.tokens
        )
        self.train, self.tuning = (prepared.timelines(split) for split in ("train", "tuning"))
        self._refuse_hopeless(codes)
        rates = Rates.of(self.train, codes, seed=self.settings.seed)
        world = World(self.config, study.pretraining, codes, rates)
        types = prepared.vocabulary.code_types if self.config.code_types else None
        self.loader, self.tuning_loader = (
            SubjectLoader.of_model(
                self.config, TaskRecords(timelines, visit_rows(timelines)), code_types=types
            )
            for timelines in (self.train, self.tuning)
        )
        total = int(self.loader.cost[self.loader.subjects].sum())
        self.budget = max(1, min(self.settings.visit_budget, total // self.settings.min_steps))
        torch.manual_seed(self.settings.seed)
        self.model = build_model(self.config)
        if descriptions is None:
            descriptions = read_descriptions(Path(prepared.manifest.get("data_path", "")))
        self.descriptions = {
            code: text for code, text in descriptions.items() if code in prepared.vocabulary.index
        }
        if (share := study.pretraining.described_share) > 0:
            self._describe(share)
        self.objectives = nn.ModuleDict({name: made(world) for name, made in classes.items()})
        self.weights = dict(wanted)
        self.tuning_budget = max(128, min(self.settings.visit_budget, world.most_visits))
        self.codes = codes
        bundle = nn.ModuleDict({"model": self.model, "objectives": self.objectives})
        self.averaged, self.best = copy.deepcopy(bundle), copy.deepcopy(bundle)
        self.fabric = make_fabric(self.settings.precision)
        steps = len(self._steps(0))
        optimizer = make_optimizer(bundle, self.settings, steps_per_epoch=steps)
        self.bundle = bundle
        self.module, self.optimizer = self.fabric.setup(bundle, optimizer)
        self.averaged, self.best = (
            self.averaged.to(self.fabric.device),
            self.best.to(self.fabric.device),
        )
        self.ema = ExponentialMovingAverage(
            bundle, self.averaged, decay=self.settings.ema, warmup=self.settings.ema_warmup
        )
        self._saved_at = time.monotonic()
        self._stop = Stop()

    def _refuse_hopeless(self, codes: TargetCodes) -> None:
        where = str(self.prepared.folder)
        if len(codes) < 2:
            raise self._too_few(where)
        for name, timelines in {"training": self.train, "tuning": self.tuning}.items():
            if not len(timelines.end_us):
                fix = "give that split more subjects (splits of ehrseq prepare)"
                raise EhrseqError(f"no {name} subject has a visit", where=where, fix=fix)

    def _describe(self, share: float) -> None:
        """Give codes vectors from their descriptions, too."""
        found = describe_codes(self.model, self.prepared.vocabulary, self.descriptions, share=share)
        if not found:
            where = f"pretraining.described_share={share:g}"
            fix = "add descriptions to metadata/codes.parquet, or leave the setting out"
            raise EhrseqError("no code of the records has a description", where=where, fix=fix)

    def _too_few(self, where: str) -> EhrseqError:
        """The error for fewer than two target codes."""
        if self.excluded is None or self.task_name is None:
            fix = "prepare more records, or a lower vocabulary.min_subjects"
            return EhrseqError("has fewer than two codes to predict", where=where, fix=fix)
        whose = (
            "outcome"
            if self.prepared.task(self.task_name).outcomes is None
            else "outcome and of its outcomes"
        )
        what = f"without the codes of the {whose} and their relatives, fewer than two codes are left to predict"
        fix = "use pretraining.exclude=none to predict all codes; the audit then warns that outcomes were targets"
        return EhrseqError(what, where=f"task {self.task_name} in {where}", fix=fix)

    @property
    def fingerprint(self) -> str:
        """Digest of what a resumed run must share with its start."""
        settings = self.settings.model_dump(exclude=_MAY_CHANGE)
        asked = self.study.pretraining.model_dump()
        targets = self.codes.tokens.tolist()
        return digest(
            [self.config.model_dump(), settings, asked, targets, self.prepared.identity("")]
        )

    @alone
    def fit(
        self, *, resume: bool = False, on_progress: Callable[[Progress], None] | None = None
    ) -> dict[str, Any]:
        """Pretrain to the early stop and write the folder; returns the content of `pretraining.json`."""
        kinds = (PRETRAINED, UNFINISHED_PRETRAINING)
        folder = RunFolder(self.out, self.prepared, "", self.fingerprint, kinds=kinds)
        if resume and (self.out / MANIFEST).is_file():
            folder.check_finished()
            folder.remove_checkpoints()
            found: dict[str, Any] = read_results(self.out)
            return found
        folder.begin(resume=resume)
        state = self._start(folder.checkpoints, resume=resume)
        with saved_at_signals(lambda: self._save(folder.checkpoints, state)) as self._stop:
            while not state.finished:
                self._epoch(state, folder.checkpoints, on_progress)
                write_history(self.out, state.history)
        best: Any = self.best.cpu()
        self.projection = fold_descriptions(best["model"])
        results = self._results(state)
        self._write(state, results)
        folder.remove_checkpoints()
        return results

    # ---- one epoch -------------------------------------------------------------------------------------------------

    def _start(self, checkpoints: Path, *, resume: bool) -> TrainingState:
        found = load_checkpoint(checkpoints, fingerprint=self.fingerprint) if resume else None
        if found is None:
            return TrainingState(self.fingerprint)
        state, tensors = found
        unpack_tensors(tensors, self._bundles, {"optimizer": self.optimizer})
        state.finished = self._is_over(state)
        return state

    @property
    def _bundles(self) -> dict[str, nn.Module]:
        return {"bundle": self.bundle, "averaged": self.averaged, "best": self.best}

    def _steps(self, epoch: int) -> list[Ints]:
        settings = self.settings
        return self.loader.shuffled(
            epoch,
            seed=settings.seed,
            visit_budget=self.budget,
            most_subjects=settings.subjects_per_step,
        )

    def _epoch(
        self,
        state: TrainingState,
        checkpoints: Path,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        """The rest of an epoch, and the look at the tuning split that ends it."""
        steps, started, seen = self._steps(state.epoch), time.monotonic(), 0
        losses = Losses(self.fabric.device, scale=1.0, where=str(self.out))
        last = state.history[-1]["tuning_loss"] if state.history else None
        parts: list[Tensor] = []
        for step in feed(self._batches(steps[state.step :]), self.fabric.device):
            if not parts:
                self._begin_step(state, total_steps=self.settings.epochs * len(steps))
            parts.append(self._backward(step))
            if not step.is_last:
                continue
            self.fabric.clip_gradients(
                self.module,
                self.optimizer,
                max_norm=self.settings.clip_norm,
                error_if_nonfinite=False,
            )
            self.optimizer.step()
            state.global_step += 1
            self.ema.update(state.global_step)
            losses.add(state, torch.stack(parts).mean(), 1)
            seen += len(steps[state.step])
            state.step, parts = state.step + 1, []
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
                        last,
                        rate,
                    )
                )
            self._stop.leave_if_asked(partial(losses.read, state))
        losses.read(state)
        self._end_epoch(state, seconds=time.monotonic() - started)
        if on_progress is not None:
            row = state.history[-1]
            on_progress(
                Progress(
                    row["epoch"],
                    self.settings.epochs,
                    row["steps"],
                    row["steps"],
                    row["train_loss"],
                    row["tuning_loss"],
                    seen / max(row["seconds"], 1e-9),
                    ended=True,
                    best=row["best"],
                )
            )
        self._save_when_due(checkpoints, state)

    def _batches(self, steps: list[Ints]) -> Iterator[Step]:
        for subjects in steps:
            yield from self.loader.steps(subjects, visit_budget=self.settings.visit_budget)

    def _begin_step(self, state: TrainingState, *, total_steps: int) -> None:
        self.bundle.train()
        # masks and dropout depend on the step alone
        torch.manual_seed(hash_seed(self.settings.seed, state.global_step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, state.global_step, total_steps)
        self.optimizer.zero_grad(set_to_none=True)

    def _backward(self, step: Step) -> Tensor:
        """Add the gradient of one batch, objective by objective; returns its weighted loss."""
        with self.fabric.autocast():
            losses = self._losses(self.bundle, step, self.train)
            loss = sum((self.weights[name] * one for name, one in losses.items()), torch.zeros(()))
        if loss.requires_grad:
            self.fabric.backward(loss)
        return loss.detach()

    def _losses(
        self,
        bundle: nn.ModuleDict,
        step: Step,
        timelines: Any,
        tallies: dict[str, Tally] | None = None,
    ) -> dict[str, Tensor]:
        """The loss of each objective; the states of the whole records are computed once for all of them."""
        model: Any = bundle["model"]
        objectives: dict[str, Objective] = dict(bundle["objectives"].items())  # type: ignore[operator]
        states = (
            model.states(step.batch)[1]
            if any(one.needs_states for one in objectives.values())
            else None
        )
        glance = Glance(model, step, timelines, self.codes, states)
        return {
            name: one(glance, tallies[name] if tallies else None)
            for name, one in objectives.items()
        }

    def _end_epoch(self, state: TrainingState, *, seconds: float) -> None:
        """Evaluate the averaged weights on the tuning split; keep them if they are the best so far."""
        tallies = self.tuning_tallies(self.averaged)
        losses = {name: tally.means.get("loss", 0.0) for name, tally in tallies.items()}
        loss = sum(self.weights[name] * one for name, one in losses.items())
        better = loss < state.best_nll - self.settings.min_gain
        if better:
            state.best_nll, state.best_epoch, state.stale_epochs = loss, state.epoch + 1, 0
            self.best.load_state_dict(self.averaged.state_dict())
        elif state.global_step > self.settings.warmup_steps:
            state.stale_epochs += 1
        state.history.append(
            {
                "epoch": state.epoch + 1,
                "steps": state.step,
                "train_loss": state.loss_sum / max(state.row_count, 1),
                "tuning_loss": loss,
                **{f"tuning_{name}": one for name, one in losses.items()},
                "best": better,
                "seconds": round(seconds, 2),
            }
        )
        state.epoch, state.step, state.loss_sum, state.row_count = state.epoch + 1, 0, 0.0, 0
        state.finished = self._is_over(state)

    def _is_over(self, state: TrainingState) -> bool:
        return state.epoch >= self.settings.epochs or (
            state.stale_epochs >= self.settings.patience and state.step == 0
        )

    def tuning_tallies(self, bundle: nn.Module) -> dict[str, Tally]:
        """What every objective measures on the tuning split, with the same masks each time."""
        tallies = {name: Tally() for name in self.weights}
        bundle.eval()
        assert isinstance(bundle, nn.ModuleDict)
        with torch.no_grad(), self.fabric.autocast(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash_seed(self.settings.seed, 2**32))
            steps = self.tuning_loader.in_order(visit_budget=self.tuning_budget)
            for step in feed(steps, self.fabric.device):
                self._losses(bundle, step, self.tuning, tallies)
                self._stop.leave_if_asked()
        return tallies

    def _save_when_due(self, checkpoints: Path, state: TrainingState) -> None:
        if (
            not state.finished
            and time.monotonic() - self._saved_at >= self.settings.checkpoint_seconds
        ):
            self._save(checkpoints, state)

    def _save(self, checkpoints: Path, state: TrainingState) -> None:
        save_checkpoint(
            checkpoints, state, pack_tensors(self._bundles, {"optimizer": self.optimizer})
        )
        self._saved_at = time.monotonic()

    # ---- the folder --------------------------------------------------------------------------------------------------

    def _results(self, state: TrainingState) -> dict[str, Any]:
        """What the best weights do on the tuning split, beside the baselines."""
        tallies = self.tuning_tallies(self.best)
        best: Any = self.best.cpu()
        data = Path(self.prepared.manifest.get("data_path", ""))
        number = self.codes.number[self.train.codes]
        neighbours = code_neighbours(
            best["model"],
            best["objectives"]["masked_codes"] if "masked_codes" in self.weights else None,
            self.codes,
            names=[self.prepared.vocabulary.tokens[token] for token in self.codes.tokens.tolist()],
            count=np.bincount(number[number >= 0], minlength=len(self.codes)),
            data=data,
        )
        return {
            **PRETRAINED.facts,
            "neighbours": neighbours | {"descriptions": _descriptions(neighbours, data)},
            "task": self.task_name,
            "subjects": len(self.loader),
            "tuning_subjects": len(self.tuning_loader),
            "targets": len(self.codes),
            "left_out": 0 if self.excluded is None else len(self.excluded.tokens),
            "best_epoch": state.best_epoch,
            "tuning_loss": state.best_nll,
            "seconds": round(sum(row["seconds"] for row in state.history), 1),
            "objectives": {
                name: {
                    "weight": self.weights[name],
                    "measures": tally.means,
                    "counts": _shareable(tally.counts),
                    "gains": tally.gains,
                }
                for name, tally in tallies.items()
            },
        }

    def _write(self, state: TrainingState, results: dict[str, Any]) -> None:
        """Write the folder; its manifest comes last."""
        out, vocabulary, manifest = self.out, self.prepared.vocabulary, self.prepared.manifest
        best: Any = self.best.cpu()
        best["model"].save_pretrained(out)
        tensors = {
            name: tensor.contiguous() for name, tensor in best["objectives"].state_dict().items()
        }
        tensors["target_tokens"] = torch.from_numpy(self.codes.tokens)
        if self.projection is not None:
            tensors[PROJECTION] = self.projection.contiguous()
        write_bytes(out / OBJECTIVES_FILE, save(tensors, metadata={"format": "pt"}))
        vocabulary.save(out)
        write_settings(out / "config.yaml", self.study)
        write_history(out, state.history)
        write_json(out / RESULTS_FILE, results)
        known = self.descriptions
        write_json(
            out / DESCRIPTIONS_FILE,
            {code: known[code] for code in vocabulary.codes if code in known},
        )
        excluded = self.excluded.names(vocabulary) if self.excluded is not None else None
        facts = {
            "task": self.task_name,
            "prepared": str(self.prepared.folder.resolve()),
            "data": manifest["data"],
            "data_path": manifest.get("data_path", ""),
            **self.prepared.identity(""),
            "fingerprint": self.fingerprint,
            "seed": self.settings.seed,
            "subjects": {split: subjects_digest(t.subject_id) for split, t in self._splits.items()},
            "objectives": self.weights,
            "exclude": self.study.pretraining.exclude,
            "excluded_targets": excluded,
            "best_epoch": state.best_epoch,
            "tuning_loss": state.best_nll,
        }
        write_manifest(
            out,
            {
                **PRETRAINED.facts,
                "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
                **facts,
            },
            files=[out / name for name in _FILES],
            required=_FILES,
        )

    @property
    def _splits(self) -> dict[str, Any]:
        return {"train": self.train, "tuning": self.tuning}


def read_results(folder: Path) -> dict[str, Any]:
    """The content of a pretrained model's `pretraining.json`."""
    found: dict[str, Any] = read_json(folder / RESULTS_FILE)
    return found


def _descriptions(neighbours: dict[str, Any], data: Path) -> dict[str, str]:
    """Of every code that is named."""
    known = read_descriptions(data)
    named = {
        name
        for one in neighbours["codes"]
        for name in (one["code"], *one["alike"], *one.get("beside", ()))
    }
    return {code: known[code] for code in sorted(named) if code in known}


def _shareable(counts: dict[str, int]) -> dict[str, int | str | None]:
    """Counts that a file may show."""
    return {name: shareable_count(count) for name, count in counts.items()}


def _config(model: ModelConfig, prepared: Prepared) -> ModelConfig:
    """The model's settings with what the data decides; the head is trained by nobody, and stays as it was made."""
    if model.head != "horizon" or model.members != 1 or model.wide_head:
        model = model.with_parts(head="horizon").model_copy(
            update={"members": 1, "wide_head": False}
        )
    return resolve_inputs(model, prepared)
