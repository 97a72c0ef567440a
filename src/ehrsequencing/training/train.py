"""One network: built, trained to its early stop, and recalibrated on the tuning split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ehrsequencing.batches.loader import SubjectLoader
from ehrsequencing.config import ModelConfig
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.models.base import SurvivalModel
from ehrsequencing.models.ensemble import ARCHITECTURES
from ehrsequencing.models.hierarchical import HierarchicalBEHRTForSurvival
from ehrsequencing.models.outcomes import (
    OutcomeHead,
    OutcomeLabels,
    events_and_days,
    starting_rates,
)
from ehrsequencing.predictors.fit import fit_last_step
from ehrsequencing.predictors.network import Network
from ehrsequencing.predictors.recalibration import Recalibration
from ehrsequencing.records.outcomes import ROWS_AT_ONCE, outcome_labels
from ehrsequencing.records.timelines import OutcomeEvents, TaskRecords
from ehrsequencing.results.result_types import EpochRow
from ehrsequencing.training.loop import Objective, ShowProgress, Training, full_step
from ehrsequencing.training.objectives import (
    BesideHazards,
    HazardsObjective,
    OwnObjective,
    training_device,
)
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.processes import ALONE, Processes


@dataclass(frozen=True)
class Trained:
    """A trained network, on the CPU.

    Attributes:
        model: It.
        history: One row an epoch.
        facts: For the manifest of its run.
        last_step: Its recalibration, which its head holds; None without one, and of an ensemble.
    """

    model: SurvivalModel
    history: list[EpochRow]
    facts: dict[str, object]
    last_step: Recalibration | None = None


class Trainer:
    """Fits one network to one task of a prepared set.

    Args:
        plan: What was decided before.
        processes: Those that train together; each has a trainer of the same plan, and process 0 writes.
    """

    def __init__(self, plan: Plan, processes: Processes = ALONE) -> None:
        self.plan, self.processes = plan, processes
        self.config, self.settings = plan.config, plan.study.training

        # the training and tuning subjects
        self.loader, self.tuning = (
            SubjectLoader.of_model(self.config, split, code_types=plan.code_types)
            for split in (plan.train, plan.tuning)
        )
        _, share_of_epoch = full_step(self.loader, self.settings)

        # the model at its start: at the cohort's own hazards, or with another model's weights
        torch.manual_seed(self.settings.seed)
        single = self.config.model_copy(update={"members": 1})
        self.model = ARCHITECTURES[self.config.architecture](single)
        if self.config.head == "horizon":
            hazards = plan.fitting_data().cohort_hazards()
            self.model.head.set_bias(torch.from_numpy(hazards))
        if self.model.table is not None:
            vocabulary = plan.prepared.vocabulary
            self.model.table.set_columns(vocabulary.value_columns, vocabulary.base)
        self.started_from = None if plan.transfer is None else plan.transfer.start(self.model)
        if isinstance(self.model.outcomes, OutcomeHead):
            self.model.outcomes.set_bias(starting_outcome_hazards(self.config, plan.train))
        self.model.to(training_device(self.settings.device))

        # what it learns; losses are divided by what is expected in a full step, never by what this one has
        self.objective = HazardsObjective(
            self.model,
            self.tuning,
            divisor=max(1.0, share_of_epoch * len(plan.train)),
            settings=self.settings,
            processes=processes,
        )
        self.learned: Objective = self.objective
        if plan.loss is not None:
            self.learned = OwnObjective(plan.loss, self.objective)
        self.beside: BesideHazards | None = None
        trains_codes = plan.transfer is None or plan.transfer.settings.mode == "full"
        if (
            self.settings.masked_codes > 0
            and trains_codes
            and isinstance(self.model, HierarchicalBEHRTForSurvival)
        ):
            n_visits = int(self.loader.n_visits[self.loader.subjects].sum())
            divisor = max(1.0, share_of_epoch * n_visits)
            self.beside = BesideHazards(self.model, self.settings, divisor=divisor)
        self.training = Training(
            self.model,
            self.learned,
            self.loader,
            self.settings,
            beside=self.beside,
            processes=processes,
        )

    def train(
        self,
        out: Path,
        *,
        resume: bool = False,
        on_progress: ShowProgress = lambda _: None,
    ) -> Trained | None:
        """Train to the early stop, and recalibrate the best weights on the tuning split.

        Args:
            out: Folder of the run; checkpoints are written there.
            resume: Go on with an interrupted training.
            on_progress: Told after each step and epoch.

        Returns:
            The network; None in all processes but the first.

        Raises:
            EhrseqError: The training fails, or nobody is there to learn from.
        """
        if self.settings.distillation > 0 and self.objective.taught is None:
            raise EhrseqError(
                "nobody to learn from",
                where="training.distillation",
                fix="train with ehrseq train or eh.fit, or set training.distillation=0",
            )
        checkpoints = out / "checkpoints"
        state = self.training.run(out, checkpoints, resume=resume, on_progress=on_progress)
        if not self.processes.is_first:
            return None
        best: Any = self.training.best
        facts: dict[str, object] = {
            "seed": self.settings.seed,
            "best_epoch": state.best_epoch,
            f"tuning_{self.learned.word}": state.best_nll,
        }
        step = None
        if self.config.head == "horizon":
            network, data = Network(best, self.plan.code_types), self.plan.fitting_data()
            step = fit_last_step(network.all_hazards(data.tuning), data)
        if step is not None:
            numbers = (
                torch.from_numpy(x).to(self.training.device) for x in (step.intercept, step.slope)
            )
            best.recalibrate(*numbers)
            facts["tuning_nll"] = self.objective.tuning_nll(best)
            facts["recalibration"] = step.as_json(self.plan.task.causes)
        return Trained(best.cpu(), state.history, facts, step)


def starting_outcome_hazards(config: ModelConfig, records: TaskRecords) -> Tensor:
    """Hazards (C, K) that the outcomes start at: the training rates of their codes."""
    rows, shape = records.rows, (config.outcomes, config.bins)
    events, exposed = torch.zeros(2, *shape, dtype=torch.float64)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chosen = np.arange(start, min(start + ROWS_AT_ONCE, len(rows)))
        listed = outcome_labels(cast(OutcomeEvents, records.outcomes), rows, chosen)
        entry, stop, days = (
            torch.from_numpy(np.asarray(x, dtype=np.float64))
            for x in (rows.entry_days[chosen], rows.duration_days[chosen], listed.days)
        )
        labels = OutcomeLabels(torch.from_numpy(listed.row), torch.from_numpy(listed.code), days)
        more_events, more_days = events_and_days(
            config.edges_days, labels, outcomes=config.outcomes, stop_days=stop, entry_days=entry
        )
        events += more_events
        exposed += more_days
    return starting_rates(events, exposed.clamp(min=0))
