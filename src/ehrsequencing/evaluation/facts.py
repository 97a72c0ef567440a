"""What stands beside the metrics: the task, the data, the flow, the inputs of each split, and a reviewer's checks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ehrsequencing import __version__
from ehrsequencing.evaluation.checks import question, run_checks
from ehrsequencing.evaluation.inputs import drift, input_rates
from ehrsequencing.evaluation.judged import Judged
from ehrsequencing.evaluation.oracle import is_simulation
from ehrsequencing.predict import Run
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRows, Timelines


@dataclass(frozen=True)
class Facts:
    """A run, whom it is judged on, and the prepared set that it was made from (None where that is gone)."""

    run: Run
    judged: Judged
    prepared: Prepared | None

    @cached_property
    def splits(self) -> dict[str, Mapping[str, Any]]:
        """Counts of the splits that the model was made from, and of those judged."""
        made: dict[str, Mapping[str, Any]] = {}
        if self.prepared is not None:
            made = self.prepared.attrition(self.run.task.name)["splits"]
            if self.judged.split not in SPLITS:  # other data: the held-out subjects have no part in it
                made = {name: part for name, part in made.items() if name != "held_out"}
        return {**made, self.judged.split: self.judged.counts}

    def arrays(self, split: str) -> tuple[Timelines, TaskRows]:
        """Visits and prediction times of one of the splits."""
        if split == self.judged.split or self.prepared is None:
            return self.judged.timelines, self.judged.rows
        return self.prepared.timelines(split), self.prepared.rows(self.run.task.name, split)

    def frame(self) -> dict[str, Any]:
        """Task, data, flow, training: what the report opens and closes with."""
        run, task = self.run, self.run.task
        member = run.manifest.get("members", [run.manifest])[0]
        history = [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
        return {
            "title": task.name, "run": run.folder.name, "split": self.judged.split,
            "created": date.today().isoformat(),
            "versions": {"ehrsequencing": __version__, "torch": torch.__version__},
            "task": task.model_dump(mode="json"), "question": question(task),
            "data": {
                "name": self.judged.data, "simulated": is_simulation(self.judged.source),
                "subjects": {name: part["steps"][-1]["subjects"] for name, part in self.splits.items()},
                "visits": {name: len(self.arrays(name)[0].start_us) for name in self.splits},
                "prediction_times": {name: part["prediction_times"] for name, part in self.splits.items()},
            },
            "causes": list(task.causes), "horizons_days": list(task.horizons),
            "landmarks_days": list(task.landmarks), "attrition": self.judged.attrition["steps"],
            "events": {name: part["events"] for name, part in self.splits.items()},
            "history": [{**row, "train_loss": row["train_nll"]} for row in history],
            "config": run.study.model_dump(mode="json"),
            "oracle": None, "external": None, "recalibration": None, "repeated_splits": None,
            "recalibrated_in_training": "recalibration" in member,
        }  # fmt: skip

    def inputs(self, *, landmark_days: float | None, seed: int) -> dict[str, Any]:
        """Content of `inputs`: rates of every split, and drift from training to those judged at one landmark."""
        vocabulary = self.run.vocabulary
        moved = []
        if self.prepared is not None and landmark_days is not None:
            train, judged = self.arrays("train"), (self.judged.timelines, self.judged.rows)
            moved = drift(train, judged, vocabulary, landmark_days=landmark_days, seed=seed)
        rates = {name: input_rates(*self.arrays(name), vocabulary) for name in self.splits}
        return {"by_split": rates, "drift": moved}

    def checks(self, *, trials: int | None = None) -> dict[str, Any]:
        """Content of `checks`; `trials` is what people tell of their tuning."""
        names = dict.fromkeys([*(SPLITS if self.prepared is not None else ()), self.judged.split])
        ids = {name: np.asarray(self.arrays(name)[0].subject_id) for name in names}
        events = None
        if self.prepared is not None:
            events = int(self.splits["train"]["events"][self.run.task.causes[0]])
        return run_checks(self.run, ids, training_events=events, trials=trials)
