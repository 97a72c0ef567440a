"""Panels and arms of `bench/few_labels.py`: which records, whose labels, and who is fitted to them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from _labels import FewLabels
from _league_tasks import FIRST_DIAGNOSES, TASKS, Place
from ehrsequencing.config import StudyConfig, load_study, load_task
from ehrsequencing.core.arrays import Floats
from ehrsequencing.core.outputs import MANIFEST
from ehrsequencing.prediction.run import Run
from ehrsequencing.predictors.boosted import BoostedVisits
from ehrsequencing.predictors.fitting_data import FittingData
from ehrsequencing.records.prepare import prepare
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import Timelines
from ehrsequencing.simulate import SimulationConfig, simulate
from ehrsequencing.training.fit import fit
from ehrsequencing.training.plan import Plan
from ehrsequencing.training.pretraining.pretrain import Pretrainer
from ehrsequencing.training.train import Trainer
from ehrsequencing.training.transfer import Pretrained

PANELS = TASKS | FIRST_DIAGNOSES
CONTROLS = ("shuffled", "other_pairs", "everything", "random")
_ARM = re.compile(
    r"(?P<source>[a-z_+]+)(-(?P<control>[a-z_]+))?(/(?P<mode>full|frozen))?(\[(?P<settings>.*)\])?"
)


@dataclass(frozen=True)
class Arm:
    """Who is fitted: `scratch`, `scratch_long`, `trees`, or `OBJECTIVES[-CONTROL]/MODE`; `[settings]` may follow.

    Attributes:
        source: Objectives with a `+` between, or one of the three.
        control: What was done to the pretraining; None for nothing. `everything` leaves no code out of the targets,
            `random` leaves the weights as they were drawn.
        mode: Of the transfer.
        settings: Of the fine-tuning alone.
    """

    source: str
    control: str | None
    mode: str | None
    settings: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Arm:
        """The arm with a name."""
        found = _ARM.fullmatch(text)
        if found is None or (found["control"] not in (None, *CONTROLS)):
            raise SystemExit(f"{text} is no arm")
        settings = tuple(filter(None, (found["settings"] or "").split(",")))
        return cls(found["source"], found["control"], found["mode"], settings)

    def fits(self, panel: str) -> bool:
        """Whether a panel can have it: only simulated records have known pairs."""
        return self.control != "other_pairs" or PANELS[panel].world is not None

    @property
    def pretrained(self) -> str:
        """Folder of the pretrained model."""
        return "pretrained-" + self.source + (f"-{self.control}" if self.control else "")


@dataclass(frozen=True)
class Site:
    """One panel with one seed: its records, labels and finished arms.

    Attributes:
        panel: A task of the league.
        out: Folder of the bench.
        seed: Of the simulation or of the division into splits, of the draw of labels, and of all training.
        subjects: How many to simulate.
        settings: Of every network, pretrained or not.
        pretraining: Of pretraining alone.
    """

    panel: str
    out: Path
    seed: int
    subjects: int
    settings: tuple[str, ...] = ()
    pretraining: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Of this seed."""
        size = "" if PANELS[self.panel].world is None else f"-{self.subjects}"
        return self.out / f"{self.panel}{size}" / f"seed-{self.seed}"

    @cached_property
    def prepared(self) -> Prepared:
        """The prepared set; records are simulated first where they are."""
        world = PANELS[self.panel].world
        if world is None:
            return Place(self.panel, self._shared_data, self.out, self.seed).prepared()
        if not (self.folder / "prepared" / MANIFEST).is_file():
            knobs = SimulationConfig.model_validate({**dict(world), "truth_futures": 4})
            simulate(self.folder / "data", subjects=self.subjects, seed=self.seed, config=knobs)
            task = load_task(self.folder / "data" / "task.yaml")
            study = load_study(None, [])
            prepare(
                self.folder / "data",
                self.folder / "prepared",
                study=study,
                tasks=[task],
                processes=1,
            )
        return Prepared(self.folder / "prepared")

    @property
    def _shared_data(self) -> Path:
        return Path(__file__).parents[2] / "shared" / "data"

    @property
    def task(self) -> str:
        """Its name."""
        return self.prepared.only_task()

    # ---- labels ------------------------------------------------------------------------------------------------------

    def labels(self, n: int | None) -> FewLabels:
        """The task with the labels of n training subjects."""
        return FewLabels(self.prepared, self.task, n, self.seed)

    def most(self) -> int:
        """Training subjects with a prediction time."""
        return len(self.labels(None).subjects("train"))

    @property
    def rows(self) -> Any:
        """Held-out prediction times."""
        return self.prepared.records(self.task, "held_out").rows

    # ---- arms --------------------------------------------------------------------------------------------------------

    def path(self, arm: str, n: int | None) -> Path:
        """Where an arm's held-out likelihoods are kept."""
        name = re.sub(r"[^\w.+=-]+", ".", arm).strip(".")
        return self.folder / "arms" / f"{name}@{'all' if n is None else n}.json"

    def run(self, arm: str, n: int | None) -> Floats:
        """Held-out NLL of every prediction time; a finished arm is read."""
        path = self.path(arm, n)
        if path.is_file():
            return np.array(json.loads(path.read_text())["nll"])
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "subjects.json").write_text(json.dumps(self.rows.subject.tolist()) + "\n")
        started, asked = time.process_time(), Arm.read(arm)
        facts: dict[str, Any] = {}
        if asked.source == "trees":
            nll = self._trees(n)
        else:
            nll, facts = self._network(asked, n, path.with_suffix(""))
        facts |= {"arm": arm, "n": n, "cpu_seconds": time.process_time() - started}
        facts["subjects_with_event"] = self.labels(n).events
        path.write_text(json.dumps({**facts, "nll": nll.tolist()}) + "\n")
        return nll

    def _trees(self, n: int | None) -> Floats:
        labels = self.labels(n)
        train, stop = (
            labels.records(self.task, s).take(labels.subjects(s)) for s in ("train", "tuning")
        )
        task, held_out = self.prepared.task(self.task), self.prepared.records(self.task, "held_out")
        plan = Plan.of(labels, self.task, load_study(None, []), as_given=True)
        edges = plan.config.edges_days
        data = FittingData(task, self.prepared.vocabulary, train, stop, edges, self.seed)
        return BoostedVisits.fit(data).nll(held_out)

    def _network(self, arm: Arm, n: int | None, run: Path) -> tuple[Floats, dict[str, Any]]:
        settings = ["model.size=small", "training.blend=false", f"training.seed={self.seed}"]
        study = load_study(None, [*settings, *self.settings, *arm.settings])
        init: Pretrained | None = None
        if arm.mode is not None:
            init = self.pretrained(arm)
            study = study.model_copy(
                update={"transfer": study.transfer.model_copy(update={"mode": arm.mode})}
            )
        labels = self.labels(n)
        plan = Plan.of(labels, self.task, study, init=init)
        if arm.source == "scratch_long":
            plan = Plan.of(labels, self.task, self._as_long(study, Trainer(plan)))
        if not (run / MANIFEST).is_file():
            fit(plan, run, resume=run.is_dir())
        rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        best = max(row["epoch"] for row in rows if row["best"])
        facts = {
            "epochs": len(rows),
            "best_epoch": best,
            "steps": sum(row["steps"] for row in rows),
        }
        return Run(run).predictor.nll(self.prepared.records(self.task, "held_out")), facts

    def _as_long(self, study: StudyConfig, trainer: Trainer) -> StudyConfig:
        """As many epochs as pretraining had steps for, and no early end (the best epoch is kept all the same)."""
        pretrained = sorted(self.folder.glob("pretrained-*/history.jsonl"))
        rows = [
            json.loads(line) for path in pretrained[:1] for line in path.read_text().splitlines()
        ]
        steps = sum(row["steps"] for row in rows)
        per_epoch = len(trainer.loader.shuffled(
            0, seed=0, visit_budget=trainer.budget, most_subjects=trainer.settings.subjects_per_step
        ))  # fmt: skip
        epochs = study.training.epochs + -(-steps // per_epoch)
        return study.model_copy(update={
            "training": study.training.model_copy(update={"epochs": epochs, "patience": epochs})
        })  # fmt: skip

    # ---- pretraining -------------------------------------------------------------------------------------------------

    def pretrained(self, arm: Arm) -> Pretrained:
        """The model to start from, pretrained on the training subjects where that is not done yet."""
        folder = self.folder / arm.pretrained
        if not (folder / MANIFEST).is_file():
            named = "{" + ", ".join(f"{name}: 1.0" for name in arm.source.split("+")) + "}"
            asked = [
                "model.size=small",
                f"training.seed={self.seed}",
                *self.settings,
                *self.pretraining,
            ]
            asked += ["pretraining.exclude=none"] if arm.control == "everything" else []
            # random weights: one epoch whose steps are below the rounding of every weight
            still = ["training.epochs=1", "training.learning_rate=1e-30"]
            asked += still if arm.control == "random" else []
            study = load_study(None, [*asked, f"pretraining.objectives={named}"])
            trainer = Pretrainer(self.prepared, folder, study=study, task_name=self.task)
            for loader in (trainer.loader, trainer.tuning_loader):
                loader.timelines = self._changed(loader.timelines, arm.control)
            trainer.train = trainer.loader.timelines
            trainer.tuning = trainer.tuning_loader.timelines
            trainer.fit(resume=folder.is_dir())
        return Pretrained(folder)

    def _changed(self, timelines: Timelines, control: str | None) -> Timelines:
        """The records of a null control."""
        if control == "shuffled":  # any code may be in any visit
            order = np.random.default_rng(self.seed).permutation(len(timelines.codes))
            return replace(timelines, codes=timelines.codes[order], values=timelines.values[order])
        if control == "other_pairs":  # A_k goes with another B in these records
            vocabulary = self.prepared.vocabulary
            partners = [
                token for code, token in vocabulary.index.items() if code.startswith("RX//B")
            ]
            new = np.arange(len(vocabulary), dtype=timelines.codes.dtype)
            new[partners] = np.roll(partners, 1)
            return replace(timelines, codes=new[timelines.codes])
        return timelines
