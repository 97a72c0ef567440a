"""`ehrseq pretrain`: fits a model to records without labels, on training subjects alone, and writes its folder.

The settings of the section `training` apply. The early stop looks at the weighted loss on the tuning split. Held-out
subjects are never read.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import ModelConfig, StudyConfig
from ehrsequencing.core.arrays import Ints
from ehrsequencing.core.disclosure import shareable_count
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import read_json, write_json
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import (
    PRETRAINED,
    UNFINISHED_PRETRAINING,
)
from ehrsequencing.models.ensemble import build_model
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.training.checkpoints import TrainingState
from ehrsequencing.training.loop import ShowProgress, Training
from ehrsequencing.training.objectives import training_device
from ehrsequencing.training.plan import SAVING, shape_of_inputs
from ehrsequencing.training.pretraining.objectives import (
    OBJECTIVES,
    ObjectiveInputs,
    PretrainingObjective,
)
from ehrsequencing.training.pretraining.targets import (
    all_of,
    excluded_targets,
    names_of,
    target_codes,
    training_rates,
    visit_rows,
)
from ehrsequencing.training.run_folder import (
    RESULTS_FILE,
    hold_folder,
    write_run_files,
)


class Pretrainer:
    """Fits one model to the objectives of `study.pretraining`.

    Args:
        prepared: The data; its training subjects are learned from, its tuning subjects decide when to stop.
        out: Folder to make.
        study: Settings; `model`, `training` and `pretraining` are used.
        task_name: A task of the set, whose outcome is then no target; None for all codes.

    Raises:
        EhrseqError: A setting cannot be used, or there is nothing to learn from.
    """

    def __init__(
        self, prepared: Prepared, out: Path, *, study: StudyConfig, task_name: str | None = None
    ) -> None:
        self.prepared, self.out, self.task_name = prepared, out, task_name
        self.settings, pretraining = study.training, study.pretraining
        # the model's settings; its head is not trained, and stays as it was made
        model = study.model.model_copy(
            update={"head": "horizon", "wide_head": False, "table_dim": 0}
        )
        self.config = ModelConfig.of(model, shape_of_inputs(model, prepared))
        made_with = {
            "model": model,
            "training": study.training,
            "pretraining": pretraining,
        }
        self.study = prepared.study.model_copy(update=made_with)
        self.weights = {str(name): one for name, one in pretraining.objectives.items()}
        # which codes may be predicted
        self.excluded: dict[str, Ints] = {}
        if task_name is not None:
            self.excluded = excluded_targets(prepared, task_name)
        self.codes = target_codes(prepared.vocabulary, all_of(self.excluded))
        self.train, self.tuning = prepared.timelines("train"), prepared.timelines("tuning")
        self._refuse_hopeless()

        # the training and tuning subjects
        types = prepared.vocabulary.code_types if self.config.code_types else None
        self.loader, self.tuning_loader = (
            SubjectLoader.of_model(
                self.config, TaskRecords(timelines, visit_rows(timelines)), code_types=types
            )
            for timelines in (self.train, self.tuning)
        )

        # the model and the objectives at their start
        rates = training_rates(self.train, self.codes, seed=self.settings.seed)
        inputs = ObjectiveInputs(self.config, self.codes, *rates)
        torch.manual_seed(self.settings.seed)
        start = build_model(self.config)
        objectives = nn.ModuleDict({name: OBJECTIVES[name](inputs) for name in self.weights})
        bundle = nn.ModuleDict({"model": start, "objectives": objectives}).to(
            training_device(study.training.device)
        )
        self.objective = PretrainingObjective(
            bundle,
            self.weights,
            self.loader,
            self.tuning_loader,
            self.settings,
            tuning_budget=max(128, min(self.settings.visit_budget, inputs.most_visits)),
        )
        self.training = Training(bundle, self.objective, self.loader, self.settings)

    def _refuse_hopeless(self) -> None:
        blind = [n for n in self.weights if not OBJECTIVES[n].is_bidirectional]
        if self.config.attention == "bidirectional" and blind:
            raise EhrseqError(
                f"{', '.join(blind)} would see what it should guess",
                where="model.attention=bidirectional",
                fix="pretrain with masked_codes, or with model.attention=causal",
            )
        where = str(self.prepared.folder)
        for name, timelines in {"training": self.train, "tuning": self.tuning}.items():
            if not len(timelines.end_us):
                raise EhrseqError(
                    f"no {name} subject has a visit",
                    where=where,
                    fix="give that split more subjects (splits of ehrseq prepare)",
                )
        if len(self.codes) >= 2:
            return
        if not self.excluded or self.task_name is None:
            raise EhrseqError(
                "has fewer than two codes to predict",
                where=where,
                fix="prepare more records, or a lower vocabulary.min_subjects",
            )
        has_outcomes = self.prepared.task(self.task_name).outcomes is not None
        whose = "outcome and of its outcomes" if has_outcomes else "outcome"
        raise EhrseqError(
            f"without the codes of the {whose} and their relatives, fewer than two codes are left to predict",
            where=f"task {self.task_name} in {where}",
            fix="leave out --task to predict all codes; the audit then warns that outcomes were targets",
        )

    @property
    def made_of(self) -> dict[str, str]:
        """What decides the model beside its data; a resumed pretraining must share it with its start."""
        return made_of(
            model=self.config.model_dump(mode="json"),
            training=self.settings.model_dump(mode="json", exclude=SAVING),
            pretraining=self.study.pretraining.model_dump(mode="json"),
            targets=self.codes.tokens.tolist(),
        )

    def fit(
        self, *, resume: bool = False, on_progress: ShowProgress = lambda _: None
    ) -> dict[str, Any]:
        """Pretrain to the early stop and write the folder; returns the content of `pretraining.json`."""
        kinds = (PRETRAINED, UNFINISHED_PRETRAINING)
        with hold_folder(
            self.out, self.prepared, "", self.made_of, resume=resume, kinds=kinds
        ) as is_finished:
            if not is_finished:
                checkpoints = self.out / "checkpoints"
                state = self.training.run(
                    self.out, checkpoints, resume=resume, on_progress=on_progress
                )
                self._write(state)
        return read_json(self.out / RESULTS_FILE)

    def _write(self, state: TrainingState) -> None:
        """Write the folder; its manifest comes last."""
        results = {
            **PRETRAINED.facts,
            "task": self.task_name,
            "subjects": len(self.loader),
            "tuning_subjects": len(self.tuning_loader),
            "targets": len(self.codes),
            "left_out": len(all_of(self.excluded)),
            "best_epoch": state.best_epoch,
            "tuning_loss": state.best_nll,
            "seconds": round(sum(row["seconds"] for row in state.history), 1),
            "objectives": {
                name: {
                    **one,
                    "weight": self.weights[name],
                    "targets": shareable_count(one["targets"]),
                }
                for name, one in self.objective.measure(self.training.best).items()
            },
        }

        write_json(self.out / RESULTS_FILE, results)
        best: Any = self.training.best.cpu()
        vocabulary = self.prepared.vocabulary
        facts = {
            "task": self.task_name,
            "seed": self.settings.seed,
            "objectives": self.weights,
            "excluded_targets": names_of(self.excluded, vocabulary) or None,
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
            made_of=self.made_of,
            kind=PRETRAINED,
            more=(RESULTS_FILE,),
        )
