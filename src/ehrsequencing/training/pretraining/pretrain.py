"""`ehrseq pretrain`: fits a model to records without labels, on training subjects alone, and writes its folder.

The settings of the section `training` apply. The early stop looks at the weighted loss on the tuning split. Held-out
subjects are never read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.batches.visit_batch import VisitBatch
from ehrsequencing.config import ModelConfig, StudyConfig
from ehrsequencing.config.parts import objective
from ehrsequencing.core.arrays import Floats, Ints
from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import (
    digest,
    read_json,
    write_json,
)
from ehrsequencing.core.outputs import (
    MANIFEST,
    PRETRAINED,
    UNFINISHED_PRETRAINING,
)
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.build import build_model
from ehrsequencing.records.codes import read_descriptions
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.checkpoint import TrainingState
from ehrsequencing.training.device import training_device
from ehrsequencing.training.loop import ShowProgress, Training
from ehrsequencing.training.pretraining.masked import MaskedCodes
from ehrsequencing.training.pretraining.objective import (
    ObjectiveInputs,
    PretrainingObjective,
    code_embedding,
)
from ehrsequencing.training.pretraining.targets import (
    Excluded,
    TargetCodes,
    excluded_targets,
    target_codes,
    training_rates,
    visit_rows,
)
from ehrsequencing.training.resolve import resolve_inputs
from ehrsequencing.training.run_folder import RESULTS_FILE, RunFolder, alone_in, write_run_files
from ehrsequencing.training.train import MAY_CHANGE

MOST_CODES = 40  # the most frequent ones are listed with their neighbours
MOST_NEIGHBOURS = 3


class Pretrainer:
    """Fits one model to the objectives of `study.pretraining`.

    Args:
        prepared: The data; its training subjects are learned from, its tuning subjects decide when to stop.
        out: Folder to make.
        study: Settings; `model`, `training` and `pretraining` are used.
        task_name: A task of the set, whose outcome is then no target (`pretraining.exclude`); None for all codes.

    Raises:
        EhrseqError: A setting cannot be used, or there is nothing to learn from.
    """

    def __init__(
        self, prepared: Prepared, out: Path, *, study: StudyConfig, task_name: str | None = None
    ) -> None:
        self.prepared, self.out, self.task_name = prepared, out, task_name
        self.settings, pretraining = study.training, study.pretraining
        self.config = _without_head(study.model, prepared)
        made_with = {
            "model": self.config,
            "training": study.training,
            "pretraining": pretraining,
            "preset": study.preset,
        }
        self.study = prepared.study.model_copy(update=made_with)
        self.weights = dict(pretraining.objectives)
        classes = {name: objective.class_of(name) for name in self.weights}
        blind = [name for name, one in classes.items() if not one.is_bidirectional]
        if self.config.attention == "bidirectional" and blind:
            what = f"{', '.join(blind)} would see what it should guess"
            fix = "pretrain with masked_codes, or with model.attention=causal"
            raise EhrseqError(what, where="model.attention=bidirectional", fix=fix)

        # what may be predicted
        self.excluded: Excluded | None = None
        if task_name is not None and pretraining.exclude == "related":
            self.excluded = excluded_targets(prepared, task_name)
        excluded = self.excluded.tokens if self.excluded is not None else np.zeros(0, np.int64)
        self.codes = target_codes(prepared.vocabulary, excluded)
        self.train, self.tuning = prepared.timelines("train"), prepared.timelines("tuning")
        self._refuse_hopeless()

        # whom it learns from
        types = prepared.vocabulary.code_types if self.config.code_types else None
        self.loader, self.tuning_loader = (
            SubjectLoader.of_model(
                self.config, TaskRecords(timelines, visit_rows(timelines)), code_types=types
            )
            for timelines in (self.train, self.tuning)
        )
        visits = int(self.loader.cost[self.loader.subjects].sum())
        budget = max(1, min(self.settings.visit_budget, visits // self.settings.min_steps))

        # the model and the objectives at their start
        rates = training_rates(self.train, self.codes, seed=self.settings.seed)
        inputs = ObjectiveInputs(self.config, self.codes, rates, pretraining.masked_share)
        torch.manual_seed(self.settings.seed)
        model = build_model(self.config)
        objectives = nn.ModuleDict({name: one(inputs) for name, one in classes.items()})
        bundle = nn.ModuleDict({"model": model, "objectives": objectives}).to(training_device())
        self.objective = PretrainingObjective(
            bundle,
            self.weights,
            self.codes,
            self.loader,
            self.tuning_loader,
            self.settings,
            tuning_budget=max(128, min(self.settings.visit_budget, inputs.most_visits)),
        )
        steps_of_first_epoch = self.loader.shuffled(
            0,
            seed=self.settings.seed,
            visit_budget=budget,
            most_subjects=self.settings.subjects_per_step,
        )
        self.training = Training(
            bundle,
            self.objective,
            self.loader,
            self.settings,
            visit_budget=budget,
            steps_per_epoch=len(steps_of_first_epoch),
        )

    def _refuse_hopeless(self) -> None:
        where = str(self.prepared.folder)
        for name, timelines in {"training": self.train, "tuning": self.tuning}.items():
            if not len(timelines.end_us):
                fix = "give that split more subjects (splits of ehrseq prepare)"
                raise EhrseqError(f"no {name} subject has a visit", where=where, fix=fix)
        if len(self.codes) >= 2:
            return
        if self.excluded is None or self.task_name is None:
            fix = "prepare more records, or a lower vocabulary.min_subjects"
            raise EhrseqError("has fewer than two codes to predict", where=where, fix=fix)
        has_outcomes = self.prepared.task(self.task_name).outcomes is not None
        whose = "outcome and of its outcomes" if has_outcomes else "outcome"
        what = f"without the codes of the {whose} and their relatives, fewer than two codes are left to predict"
        fix = "use pretraining.exclude=none to predict all codes; the audit then warns that outcomes were targets"
        raise EhrseqError(what, where=f"task {self.task_name} in {where}", fix=fix)

    @property
    def fingerprint(self) -> str:
        """Digest of what a resumed run must share with its start."""
        return digest(
            [
                self.config.model_dump(),
                self.settings.model_dump(exclude=MAY_CHANGE),
                self.study.pretraining.model_dump(),
                self.codes.tokens.tolist(),
                self.prepared.identity(""),
            ]
        )

    def fit(
        self, *, resume: bool = False, on_progress: ShowProgress | None = None
    ) -> dict[str, Any]:
        """Pretrain to the early stop and write the folder; returns the content of `pretraining.json`."""
        kinds = (PRETRAINED, UNFINISHED_PRETRAINING)
        with alone_in(self.out):
            folder = RunFolder(self.out, self.prepared, "", self.fingerprint, kinds=kinds)
            if resume and (self.out / MANIFEST).is_file():
                folder.check_finished()
                results: dict[str, Any] = read_json(self.out / RESULTS_FILE)
            else:
                folder.begin(resume=resume)
                state = self.training.run(
                    self.out,
                    folder.checkpoints,
                    resume=resume,
                    on_progress=on_progress,
                )
                results = self._results(state)
                self._write(state, results)
            folder.remove_checkpoints()
        return results

    def _results(self, state: TrainingState) -> dict[str, Any]:
        """What the best weights do on the tuning split, beside the baselines."""
        measured = self.objective.measure(self.training.best)
        best: Any = self.training.best.cpu()
        data = Path(self.prepared.manifest.get("data_path", ""))
        vocabulary, number = self.prepared.vocabulary, self.codes.number[self.train.codes]
        neighbours = nearest_codes(
            best["model"],
            best["objectives"]["masked_codes"] if "masked_codes" in self.weights else None,
            self.codes,
            names=[vocabulary.tokens[token] for token in self.codes.tokens.tolist()],
            count=np.bincount(number[number >= 0], minlength=len(self.codes)),
        )
        named = {
            name
            for one in neighbours
            for name in (one["code"], *one["alike"], *one.get("beside", ()))
        }
        known = read_descriptions(data)
        descriptions = {code: known[code] for code in sorted(named) if code in known}
        return {
            **PRETRAINED.facts,
            "neighbours": {"codes": neighbours, "descriptions": descriptions},
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
                    "measures": measures.means,
                    "counts": {
                        what: shareable_count(count) for what, count in measures.counts.items()
                    },
                    "gains": measures.gains,
                }
                for name, measures in measured.items()
            },
        }

    def _write(self, state: TrainingState, results: dict[str, Any]) -> None:
        """Write the folder; its manifest comes last."""
        best: Any = self.training.best.cpu()
        write_json(self.out / RESULTS_FILE, results)
        vocabulary = self.prepared.vocabulary
        facts = {
            "task": self.task_name,
            "fingerprint": self.fingerprint,
            "seed": self.settings.seed,
            "objectives": self.weights,
            "exclude": self.study.pretraining.exclude,
            "excluded_targets": None if self.excluded is None else self.excluded.names(vocabulary),
            "best_epoch": state.best_epoch,
            "tuning_loss": state.best_nll,
        }
        write_run_files(
            self.out,
            self.prepared,
            self.study,
            best["model"],
            state.history,
            facts,
            kind=PRETRAINED,
            more=(RESULTS_FILE,),
        )


def _without_head(model: ModelConfig, prepared: Prepared) -> ModelConfig:
    """The model's settings with what the data decides; its head is not trained, and stays as it was made."""
    if model.head != "horizon" or model.members != 1 or model.wide_head:
        plain = {"members": 1, "wide_head": False}
        model = model.with_parts(head="horizon").model_copy(update=plain)
    return resolve_inputs(model, prepared)


# ---- what the model learned about codes ------------------------------------------------------------------------------
#
# Two codes with near vectors stand for each other: they occur in the same company. Codes that occur together need not
# have near vectors. What the model expects beside a code, `masked_codes` tells of a visit of that code alone.


def nearest_codes(
    model: SurvivalModel,
    objective: MaskedCodes | None,
    codes: TargetCodes,
    *,
    names: Sequence[str],
    count: Ints,
) -> list[dict[str, Any]]:
    """The most frequent codes, each with its name (`code`) and those of its neighbours (`alike`, `beside`).

    Args:
        model: In evaluation mode, on the CPU.
        objective: Its masked codes; None where they were no objective, and nothing is known to be beside a code.
        codes: The C targets.
        names: (C,) of them.
        count: (C,) how often each occurs.
    """
    near = cosines(code_embedding(model).table.weight.detach().double().numpy()[codes.tokens])
    most = np.argsort(-count, kind="stable")[:MOST_CODES]
    beside = None if objective is None else lifts(model, objective, codes, most)
    listed = []
    for row, code in enumerate(most.tolist()):
        one: dict[str, Any] = {"code": names[code], "alike": _top(near[code], names)}
        if beside is not None:
            one["beside"] = _top(beside[row], names)
        listed.append(one)
    return listed


def cosines(rows: Floats) -> Floats:
    """(C, C) cosines of the centred rows (C, d); −1 on the diagonal, so that no code is its own neighbour.

    >>> cosines(np.array([[1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]])).round(1).tolist()
    [[-1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]
    """
    centred = rows - rows.mean(0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    found: Floats = unit @ unit.T
    np.fill_diagonal(found, -1.0)
    return found


def lifts(model: SurvivalModel, objective: MaskedCodes, codes: TargetCodes, asked: Ints) -> Floats:
    """How much more often than usual the model expects each code beside another: `log p(c | a) − log p(c)`, (n, C).

    Args:
        model: In evaluation mode, on the CPU.
        objective: Its masked codes.
        codes: The targets.
        asked: (n,) which of them is alone in a first visit, of a subject whose age is unknown.
    """
    tokens, n = torch.from_numpy(codes.tokens), len(asked)
    offsets, unknown = torch.arange(n + 1), torch.full((n,), float("nan"))
    batch = VisitBatch(
        codes=tokens[torch.from_numpy(asked)],
        visit_offsets=offsets,
        subject_offsets=offsets,
        age_years=unknown,
        delta_days=torch.zeros(n),
        values=torch.full((n, 2), float("nan")),
        code_types=torch.zeros(n, dtype=torch.int64) if model.config.code_types else None,
    )
    with torch.no_grad():
        scores = objective.scores(model.states(batch)[1], code_embedding(model).table(tokens))
        found: Floats = (scores.log_softmax(1) - objective.start.log_softmax(0)).double().numpy()
    found[np.arange(n), asked] = -np.inf
    return found


def _top(closeness: Floats, names: Sequence[str]) -> list[str]:
    """Names of the nearest codes."""
    return [names[k] for k in np.argsort(-closeness, kind="stable")[:MOST_NEIGHBOURS]]
