"""What a reader needs beside the metrics: task, data, flow of subjects, inputs of each split, a reviewer's checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ehrsequencing.config import EvaluationConfig, TaskConfig, format_days
from ehrsequencing.config.files import read_yaml
from ehrsequencing.core.errors import EhrseqError
from ehrsequencing.core.files import digest, read_json_lines
from ehrsequencing.core.made_of import made_of
from ehrsequencing.core.outputs import ARRAYS_FILE, BLEND_FILE, HISTORY, RUN_NEEDS
from ehrsequencing.core.version import versions
from ehrsequencing.evaluation.comparison import Comparison
from ehrsequencing.evaluation.population import Population, unobserved_tenths
from ehrsequencing.evaluation.rivals import Evaluated
from ehrsequencing.prediction.run import Run
from ehrsequencing.records.account import CohortCounts
from ehrsequencing.records.attrition import task_warnings
from ehrsequencing.records.meds import SPLITS
from ehrsequencing.records.prepared import Prepared
from ehrsequencing.records.timelines import TaskRecords
from ehrsequencing.records.vocabulary import Vocabulary

# key in the file (examples/tripod.yaml): (title with the item of TRIPOD+AI or the domain of PROBAST+AI, what is asked)
QUESTIONS = {
    "intended_use": (
        "Intended use and users (3b, 27)",
        "who acts on the risk, in which decision, at which moment of care",
    ),
    "health_inequalities": (
        "Health inequalities (3c, 14)",
        "in whom errors would do most harm, and who reviewed the results for them",
    ),
    "protocol": (
        "Protocol and registration (18c, 18d)",
        "where the plan of this study can be read, and what was changed",
    ),
    "ethics": ("Ethics approval (17)", "committee and reference, or why no approval is needed"),
    "data_governance": (
        "Data governance (5, 18e)",
        "legal basis, licence, data use agreement, who may read this report",
    ),
    "setting": (
        "Setting and treatments (6a, 6c)",
        "where care was given, and which treatments may have changed the outcome",
    ),
    "code_review": (
        "Clinical review of the codes (8, 9)",
        "who confirmed that outcome, index and censoring codes mean what is claimed",
    ),
    "outcome_assessment": (
        "Outcome assessment (8b, PROBAST+AI 3)",
        "whether it was assessed in the same way in everyone, blind to the predictors",
    ),
    "predictors_in_use": (
        "Predictors at hand in use (PROBAST+AI 2)",
        "whether every input is recorded in time where the model would be used",
    ),
    "sample_size": (
        "Reason for the cohort's size (10)",
        "why this many subjects are enough for the decision in question",
    ),
    "tuning_trials": (
        "Tuning trials (12c)",
        "how many settings were tried on these subjects before the ones that are shown",
    ),
    "external_validation": (
        "External validation (12, PROBAST+AI 1)",
        "another hospital, country or period, by people who did not build the model",
    ),
    "monitoring": (
        "Monitoring (27c)",
        "how drift and harm will be noticed in use, and who can switch the model off",
    ),
    "public_involvement": (
        "Patient and public involvement (19)",
        "who was asked, and what changed",
    ),
    "responsible": (
        "Responsible person (18a, 18b)",
        "name and contact, funding, conflicts of interest",
    ),
}


def read_tripod(path: str | Path | None) -> dict[str, str]:
    """The answers of a file by their keys, without those that it leaves empty; none without a file.

    Raises:
        EhrseqError: The file cannot be read, has a key that is no question, or an answer that is no text.
    """
    if path is None:
        return {}
    answers = {}
    for key, answer in read_yaml(Path(path)).items():
        if key not in QUESTIONS:
            raise EhrseqError(
                f"{key!r} is no question", where=str(path), fix=f"use {', '.join(QUESTIONS)}"
            )
        if answer is not None and not isinstance(answer, str | int | float):
            raise EhrseqError(
                f"the answer to {key!r} is no text",
                where=str(path),
                fix="write one text for each key",
            )
        if text := " ".join(str(answer or "").split()):
            answers[key] = text
    return answers


def evaluation_made_of(run: Run, split: str, settings: EvaluationConfig, **more: object) -> str:
    """Digest of all that an evaluation of a run is made of, for `metrics.json`."""
    return digest(
        made_of(
            run=run.fingerprint,
            split=split,
            evaluation=settings.model_dump(mode="json", exclude={"tripod"}),
            tripod=read_tripod(settings.tripod),
            **more,
        )
    )


# the files of a run that decide its answers, and that a shared copy has byte for byte
_ANSWERS = sorted({*RUN_NEEDS, BLEND_FILE, ARRAYS_FILE} - {"config.yaml"})
CUTOFF = "Every token at a prediction time is stamped at or before it, or carries no time at all."
UNKNOWN_CUTOFF = "Unknown: a file of predictions does not tell what its model has seen."
FEW_EVENTS = 50


@dataclass(frozen=True)
class Context:
    """A predictor, its population, and the prepared set that it was trained on (None where that is gone)."""

    source: Evaluated
    population: Population
    prepared: Prepared | None

    @cached_property
    def splits(self) -> dict[str, CohortCounts]:
        """Counts of the splits that the model was made from, and of the population."""
        made: dict[str, CohortCounts] = {}
        if self.prepared is not None:
            made = dict(self.prepared.attrition(self.source.task.name)["splits"])
            if self.population.split not in SPLITS:
                made.pop("held_out")  # other data: the held-out subjects have no part in it
        return {**made, self.population.split: self.population.counts}

    @property
    def is_simulated(self) -> bool:
        """Whether nobody of all whom the result counts or learned from is a person."""
        run = self.source.run
        return self.population.is_simulated and (run is None or bool(run.manifest.get("simulated")))

    def records(self, split: str) -> TaskRecords:
        """Visits and prediction times of one of the splits; of the one that is evaluated, whatever was drawn of it."""
        if split == self.population.split or self.prepared is None:
            return self.population.records
        return self.prepared.records(self.source.task.name, split)

    def frame(self) -> dict[str, Any]:
        """Task, data, flow, training: what the report opens and closes with."""
        task, population = self.source.task, self.population
        return {
            "title": task.heading,
            "split": population.split,
            "created": date.today().isoformat(),
            "versions": versions(),
            "task": task.model_dump(mode="json"),
            "question": question(task),
            "data": {
                "name": population.data,
                "simulated": self.is_simulated,
                "subjects": {
                    name: part["steps"][-1]["subjects"] for name, part in self.splits.items()
                },
                "visits": {
                    name: len(self.records(name).timelines.start_us) for name in self.splits
                },
                "prediction_times": {
                    name: part["prediction_times"] for name, part in self.splits.items()
                },
            },
            "causes": list(task.causes),
            "horizons_days": list(task.horizons),
            "landmarks_days": list(task.landmarks),
            "attrition": population.attrition["steps"],
            "events": {name: part["events"] for name, part in self.splits.items()},
            "records_before": population.counts["records_before"],
            "config": self.source.config,
            "inputs": {
                "by_split": {
                    name: input_rates(self.records(name), self.source.vocabulary)
                    for name in self.splits
                }
            },
            "audit": None,
            "external": None,
            "repeated_splits": None,
            "score": None,
            **self._training(),
        }

    def _training(self) -> dict[str, Any]:
        """What only a run has: its name, weights and history."""
        run = self.source.run
        if run is None:
            return {
                "run": self.source.name,
                "weights": None,
                "history": [],
                "recalibrated_in_training": False,
            }
        files = run.manifest["files"]
        is_kept = HISTORY in files and HISTORY not in run.altered
        history = read_json_lines(run.folder / HISTORY) if is_kept else []
        return {
            "run": run.folder.name,
            "weights": digest([files.get(name) for name in _ANSWERS]),
            "history": history,
            "recalibrated_in_training": "recalibration"
            in run.manifest.get("members", [run.manifest])[0],
        }

    def checks(self, *, trials: int | None) -> dict[str, Any]:
        """Content of `checks`; `trials` is what people tell of their tuning."""
        content: dict[str, Any] = {
            "time_zero": time_zero(self.source.task),
            "tuning_trials": trials,
            "parameters": None,
            "members": None,
            "predictor_cutoff": UNKNOWN_CUTOFF,
            "seeds": [],
            "trained": "",
        }
        run = self.source.run
        if run is None:
            return content
        training = run.study.training
        return {
            **content,
            "predictor_cutoff": CUTOFF,
            "parameters": int(run.manifest["parameters"]),
            "members": training.members,
            "seeds": list(range(training.seed, training.seed + training.members)),
            "trained": run.trained,
        }

    def warnings(self, comparisons: Sequence[Comparison]) -> list[str]:
        """What a reader must know of the cohort and of what could not be compared."""
        task, population = self.source.task, self.population
        sentences: list[str] = []
        if self.prepared is not None:
            sentences += task_warnings(task, self.prepared.attrition(task.name))
        if population.counts["events"][task.causes[0]] < FEW_EVENTS:
            few = f"Fewer than {FEW_EVENTS} subjects of {population.split} had the event"
            sentences.append(f"{few}: the intervals are wide.")
        there = {comparison.landmark_days for comparison in comparisons}
        sentences += [
            f"Nobody was at risk {format_days(landmark)} after the index."
            for landmark in task.landmarks
            if landmark not in there
        ]
        settings = self.source.study.training
        longest, has_length = settings.epochs, settings.schedule == "falling"
        history = self._training()["history"]
        if not has_length and any(row["best"] and row["epoch"] == longest for row in history):
            sentences.append(
                f"The training was stopped after {longest} epochs, before the model had learnt all it could: its last "
                "epoch was its best. Train it longer."
            )
        for comparison in comparisons:
            sentences += comparison.warnings(self.source.name)
            sentences += unobserved_tenths(comparison, population.records)
        return sentences


def input_rates(records: TaskRecords, vocabulary: Vocabulary) -> dict[str, object]:
    """How complete the inputs are: of subjects with a prediction time, what they had by their last one.

    Args:
        records: Visits and prediction times.
        vocabulary: The one that encoded them.

    Returns:
        `subjects`, `prediction_times`, `unknown_token_rate` (of tokens in visits) and `unknown_age_rate` (of prediction
        times); None where there is nothing to divide by.
    """
    lines, rows = records.timelines, records.rows
    subjects = np.flatnonzero(np.diff(rows.row_offsets))
    ageless = np.isnan(rows.age_years)
    last = rows.row_offsets[subjects + 1] - 1
    first_visit = lines.subject_offsets[subjects]
    begin = lines.visit_offsets[first_visit]
    end = lines.visit_offsets[first_visit + rows.visits_before[last]]
    unknown = np.zeros(len(subjects), np.int64)
    for k, (start, stop) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        unknown[k] = (lines.codes[start:stop] < vocabulary.n_unknown).sum()
    tokens = int((end - begin).sum())
    return {
        "subjects": len(subjects),
        "prediction_times": len(rows),
        "unknown_token_rate": int(unknown.sum()) / tokens if tokens else None,
        "unknown_age_rate": float(ageless.mean()) if len(rows) else None,
        # people with such a prediction time or token, and people with another one
        "people": {
            "unknown_age_rate": [len(np.unique(rows.subject[at])) for at in (ageless, ~ageless)],
            "unknown_token_rate": [int((unknown > 0).sum()), int((end - begin > unknown).sum())],
        },
    }


def time_zero(task: TaskConfig) -> str:
    """From when a subject's clock runs, and at which moments risks are compared."""
    landmarks = [format_days(days) for days in task.landmarks if days]
    at_index = "at it" if 0.0 in task.landmarks else ""
    later = f"{', '.join(landmarks)} after it" if landmarks else ""
    when = " and ".join(part for part in (at_index, later) if part)
    clock = "durations and horizons count from the moment of prediction"
    if task.blanking:
        clock += f", given no event in the {format_days(task.blanking)} that follow it"
    return f"Time zero is {task.index.words}. Models are compared {when}, among those still at risk; {clock}."


def question(task: TaskConfig) -> str:
    """The task as a sentence."""
    horizons = ", ".join(format_days(days) for days in task.horizons)
    competing = (
        f", with {' and '.join(task.competing)} as competing event" if task.competing else ""
    )
    what = f"How likely is {' or '.join(task.outcome)} within {horizons}"
    return f"{what}, predicted from {task.index.words} on and at every later visit{competing}?"
